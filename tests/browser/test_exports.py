"""What leaves the app in a real Chromium: charts as pictures, and a report that opens without a network."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from app_server import settle
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

pytestmark = [
    pytest.mark.browser,
    # pytest-base-url, which pytest-playwright brings, still uses a hook's old argument
    pytest.mark.filterwarnings("ignore::pytest.PytestRemovedIn10Warning")
    if hasattr(pytest, "PytestRemovedIn10Warning")
    else pytest.mark.filterwarnings("default"),
]


def saved(page: Page, button: Any, folder: Path) -> Path:
    """The file that a click brings."""
    with page.expect_download() as download:
        button.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def check_pictures(page: Page, buttons: Sequence[Any], folder: Path) -> None:
    """An SVG that is XML with the chart's lines and words, and a PNG of twice the pixels."""
    svg, png = (saved(page, button, folder) for button in buttons)
    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    text = "".join(root.itertext())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Sequence length N (tokens)" in text
    assert svg.stem == png.stem
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert (width, height) == (2 * float(root.attrib["width"]), 2 * float(root.attrib["height"]))


def test_a_chart_of_a_page_saves_as_svg_and_png(page: Page, app_url: str, tmp_path: Path) -> None:
    """The buttons under a chart save that chart, whichever it is of the page."""
    page.set_viewport_size({"width": 1280, "height": 1800})
    page.goto(f"{app_url}/memory")
    settle(page)
    main = page.get_by_test_id("stMain")
    buttons = tuple(main.get_by_role("button", name=f"{kind} of chart memory") for kind in ("SVG", "PNG"))
    expect(buttons[0]).to_be_visible()
    page.get_by_test_id("stDataFrame").first.hover()
    expect(page.get_by_role("button", name="Fullscreen").first).to_be_visible()
    assert page.get_by_role("button", name="Download as CSV").count() == 0  # Streamlit's own, unguarded
    check_pictures(page, buttons, tmp_path)


@pytest.fixture
def report(page: Page, app_url: str, tmp_path: Path) -> Path:
    """The file behind the button on Overview."""
    page.goto(f"{app_url}/?run=h200-standard&clock=wall")
    settle(page)
    button = page.get_by_test_id("stDownloadButton").get_by_role("button", name="Report", exact=True)
    return saved(page, button, tmp_path)


def test_the_report_opens_offline_with_the_numbers_of_the_run_file(
    report: Path, browser: Browser, data: Path, tmp_path: Path
) -> None:
    """Without a network and in the dark: charts hold the raw rows' medians, a shape can be chosen, pictures
    are saved, axe finds nothing serious, and nothing beyond the file is asked for.
    """
    medians: dict[int, float] = {}
    for line in (data / "samples" / "h200-standard.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        case = row.get("case", {})
        wanted = {"backend": "flash", "direction": "bwd", "head_dim": 128, "causal": True}
        if row["kind"] == "case" and all(case[name] == value for name, value in wanted.items()):
            (clock,) = [clock for clock in row["clocks"] if clock["clock"] == "wall"]
            medians[case["seq_len_k"]] = clock["latency_p50_ms"]
    context = browser.new_context(offline=True, color_scheme="dark", accept_downloads=True)
    page = context.new_page()
    asked: list[str] = []
    faults: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto(report.as_uri())
    expect(page.get_by_role("heading", name="FlashScope: h200-standard")).to_be_visible()
    page.get_by_label("Shape", exact=True).select_option(label="bwd bf16 B1 H16 d128 causal")
    chart = page.locator("figure[data-chart=latency]")
    expect(chart.locator("path.point").first).to_be_visible()
    lines = page.evaluate(
        "document.querySelector('figure[data-chart=latency] .js-plotly-plot').data"
        ".filter(line => line.name === 'flash').map(line => [Array.from(line.x), Array.from(line.y)])"
    )
    assert dict(zip(*lines[0], strict=True)) == medians
    rows = page.locator("table[data-group=shapes] tbody tr")
    assert rows.count() == 3 * 5
    expect(page.get_by_role("region", name="Failures").get_by_text("oom").first).to_be_visible()
    buttons = tuple(chart.get_by_role("button", name=f"Save as {kind}") for kind in ("SVG", "PNG"))
    check_pictures(page, buttons, tmp_path)
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["impact"]) for v in found if v["impact"] in ("serious", "critical")] == []
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [report.as_uri()]
    assert faults == []
