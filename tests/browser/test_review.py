"""A review in a real Chromium: signed, seen by a colleague who follows the link, taken along as files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_server import settle
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = [
    pytest.mark.browser,
    # pytest-base-url, which pytest-playwright brings, still uses a hook's old argument
    pytest.mark.filterwarnings("ignore::pytest.PytestRemovedIn10Warning")
    if hasattr(pytest, "PytestRemovedIn10Warning")
    else pytest.mark.filterwarnings("default"),
]
QUERY = "run=h200-standard&context_from=256&context_to=4096"


@pytest.fixture
def review(page: Page, app_url: str) -> Iterator[Page]:
    """The page, on the contexts that the run has."""
    page.set_viewport_size({"width": 1280, "height": 1800})
    page.goto(f"{app_url}/review?{QUERY}")
    settle(page)
    yield page
    assert page.get_by_test_id("stException").count() == 0


def downloaded(page: Page, label: str) -> str:
    """The text behind an export button."""
    with page.expect_download() as download:
        page.get_by_test_id("stDownloadButton").get_by_role("button", name=label, exact=True).last.click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_exports_hold_the_numbers_of_the_run_file(review: Page, data: Path) -> None:
    """The CSV's ratios recompute from the run file, and all three files carry the page's fingerprint."""
    main = review.get_by_test_id("stMain")
    shown = re.search(r"Evidence fingerprint (\w{16})", main.inner_text())
    assert shown is not None
    files = {label: downloaded(review, label) for label in ("CSV", "Markdown", "HTML")}
    assert all(shown[1] in text for text in files.values())
    (line,) = csv.DictReader(io.StringIO(files["CSV"]))
    p50 = {}
    for text in (data / "samples" / "h200-standard.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        case = row.get("case", {})
        wanted = {"direction": "fwd", "causal": True, "head_dim": 128}
        if row["kind"] == "case" and all(case[name] == value for name, value in wanted.items()):
            for clock in row["clocks"]:
                if clock["clock"] == "device":
                    p50[case["backend"], case["seq_len_k"]] = clock["latency_p50_ms"]
    ratios = [p50["naive", n] / p50["flash", n] for n in (256, 1024, 4096)]
    assert (line["head_dim"], line["causal"], line["candidate"]) == ("128", "true", "flash")
    assert float(line["naive_ratio_min"]) == pytest.approx(min(ratios), rel=0.03)
    assert float(line["naive_ratio_max"]) == pytest.approx(max(ratios), rel=0.03)


def test_the_html_opens_offline(review: Page, context: BrowserContext, tmp_path: Path) -> None:
    """From a file, it asks for nothing else and shows the table."""
    path = tmp_path / "review.html"
    path.write_text(downloaded(review, "HTML"), encoding="utf-8")
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    other = context.new_page()
    other.goto(path.as_uri())
    expect(other.get_by_role("heading", name="Deployment review")).to_be_visible()
    assert other.get_by_role("row").count() >= 2
    assert asked == [path.as_uri()]


def test_a_signature_is_seen_by_a_colleague(review: Page, context: BrowserContext) -> None:
    """Name, decision and comment: refused without a comment, then kept, and shown behind the shared link."""
    main = review.get_by_test_id("stMain")
    main.get_by_label("Name", exact=True).fill("Ada <b>")
    main.get_by_text("approved with conditions", exact=True).click()
    main.get_by_role("button", name="Sign", exact=True).click()
    expect(main.get_by_text("needs a comment")).to_be_visible()
    main.get_by_label("Comment", exact=True).fill("only to N = 4096")
    main.get_by_role("button", name="Sign", exact=True).click()
    expect(main.get_by_text("Signed.", exact=True)).to_be_visible()
    settle(review)
    review.get_by_role("button", name="Link to this view").click()
    link = review.get_by_test_id("stPopoverBody").locator("code").inner_text()
    other = context.new_page()
    other.goto(link)
    settle(other)
    entry = other.get_by_test_id("stMain").get_by_text("Ada <b>: approved with conditions")
    expect(entry).to_be_visible()
    expect(entry).to_contain_text("only to N = 4096")
    other.goto(link.replace("context_to=4096", "context_to=2048"))
    settle(other)
    expect(other.get_by_test_id("stMain").get_by_text("1 more in the log")).to_be_visible()
