"""A colleague's walk through the app in a real Chromium: every page, a filter, a shared link, a CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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

PAGES = (
    "Overview",
    "Crossover",
    "Review",
    "Latency",
    "Memory",
    "Traffic",
    "Tiles",
    "Roofline",
    "Numerics",
    "Compare",
    "What-if",
    "Algorithm",
    "Numerics lab",
    "Claims",
    "Capacity",
    "Inspector",
    "Run",
    "Data",
)


@pytest.fixture
def requests(context: BrowserContext) -> list[str]:
    """The address of everything the browser asks for."""
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    return asked


@pytest.fixture
def visit(page: Page, app_url: str, requests: list[str]) -> Iterator[Page]:
    """The app; at the end, no page has asked anything of the network beyond 127.0.0.1."""
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto(f"{app_url}/data")  # the quickest to draw
    settle(page)
    yield page
    hosts = {urlsplit(url).hostname for url in requests if not url.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"}


def go(page: Page, title: str) -> None:
    """Choose a page in the navigation."""
    page.get_by_test_id("stSidebarNavItems").get_by_role("link", name=title, exact=True).click()
    expect(page.get_by_role("heading", name=title, exact=True, level=1)).to_be_visible(timeout=30_000)
    settle(page)


def rows(path: Path) -> list[dict]:
    """The case lines of a run file."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["kind"] == "case"]


def test_every_page_opens_without_an_error(visit: Page) -> None:
    """No page shows an exception, and none needs sideways scrolling at 1280 px or on a phone."""
    for title in PAGES:
        go(visit, title)
        assert visit.get_by_test_id("stException").count() == 0, title
        for width in (1280, 390):
            visit.set_viewport_size({"width": width, "height": 1400})
            visit.wait_for_timeout(300)
            main = "document.querySelector('[data-testid=stMain]')"
            assert visit.evaluate(f"{main}.scrollWidth <= {main}.clientWidth"), (title, width)
        visit.set_viewport_size({"width": 1280, "height": 1400})


def test_a_filter_moves_to_the_next_page_and_into_the_address(visit: Page) -> None:
    """Choosing d = 64 changes the chart and the URL; the next page has the same filter."""
    go(visit, "Latency")
    before = visit.locator(".js-plotly-plot").first.inner_html()
    visit.get_by_test_id("stSidebar").get_by_role("radio", name="64", exact=True).click()
    visit.wait_for_url(re.compile(r"[?&]d=64"))  # which the browser writes before the app has heard
    visit.wait_for_function(
        "seen => document.querySelector('.js-plotly-plot').innerHTML !== seen", arg=before
    )
    settle(visit)
    go(visit, "Crossover")
    assert "d=64" in visit.url
    expect(visit.get_by_test_id("stSidebar").get_by_role("radio", name="64", exact=True)).to_be_checked()


def test_a_shared_link_shows_the_same_view(visit: Page, context: BrowserContext) -> None:
    """The address behind 'Link to this view', opened elsewhere, has the same filters and the same answer."""
    go(visit, "Crossover")
    answers = visit.get_by_test_id("stMetricValue")
    for place, name in (("stSidebar", "bwd"), ("stMain", "wall")):
        before = answers.all_inner_texts()
        visit.get_by_test_id(place).get_by_role("radio", name=name, exact=True).click()
        expect(answers).not_to_have_text(before)
        settle(visit)
    assert re.search(r"direction=bwd", visit.url)
    assert re.search(r"clock=wall", visit.url)
    answer = answers.all_inner_texts()
    visit.get_by_role("button", name="Link to this view").click()
    link = visit.get_by_test_id("stPopoverBody").locator("code").inner_text()
    assert "run=h200-standard" in link
    other = context.new_page()
    other.goto(link)
    settle(other)
    expect(other.get_by_test_id("stSidebar").get_by_role("radio", name="bwd", exact=True)).to_be_checked()
    assert other.get_by_test_id("stMetricValue").all_inner_texts() == answer


def test_the_csv_holds_the_numbers_of_the_run_file(visit: Page, data: Path) -> None:
    """Each latency of the downloaded comparison CSV is the run file's, to the last digit."""
    go(visit, "Data")
    with visit.expect_download() as download:
        visit.get_by_role("button", name="Comparison CSV").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    table = list(csv.DictReader(io.StringIO(text)))
    expected = {}
    for row in rows(data / "samples" / "h200-standard.jsonl"):
        for clock in row["clocks"]:
            case = row["case"]
            key = (case["backend"], case["direction"], case["seq_len_q"], case["head_dim"], case["causal"])
            expected[(*key, clock["clock"])] = clock["latency_p50_ms"]
    found = {
        (
            row["backend"],
            row["direction"],
            int(row["seq_len_q"]),
            int(row["head_dim"]),
            row["causal"].lower() == "true",
            row["clock"],
        ): float(row["latency_p50_ms"])
        for row in table
        if row["status"] == "ok"
    }
    assert found == expected
    assert {row["status"] for row in table} == {"ok", "oom"}


def test_a_link_of_the_overview_leads_to_its_evidence(visit: Page, context: BrowserContext) -> None:
    """A cell of the table opens the Crossover page with that row's filters and that column's clock."""
    go(visit, "Overview")
    link = visit.get_by_test_id("stTable").get_by_role("link").first
    asked = parse_qs(urlsplit(str(link.get_attribute("href"))).query)
    assert asked["run"] == ["h200-standard"]
    with context.expect_page() as opened:
        link.click()
    other = opened.value
    settle(other)
    expect(other.get_by_role("heading", name="Crossover", exact=True, level=1)).to_be_visible()
    sidebar = other.get_by_test_id("stSidebar")
    for key in ("direction", "d", "mask"):
        expect(sidebar.get_by_role("radio", name=asked[key][0], exact=True)).to_be_checked()
    main = other.get_by_test_id("stMain")
    expect(main.get_by_role("radio", name=asked["clock"][0], exact=True)).to_be_checked()


def test_the_first_page_has_a_path_of_its_own_too(visit: Page, app_url: str) -> None:
    """Typed by hand with a choice it is drawn so; it is once in the navigation, and Back leads to it."""
    visit.goto(f"{app_url}/overview?clock=graph")
    settle(visit)
    assert visit.get_by_text("Page not found").count() == 0
    expect(visit.get_by_test_id("stMain").get_by_role("radio", name="graph", exact=True)).to_be_checked()
    expect(visit.get_by_test_id("stSidebarNavItems").get_by_role("link")).to_have_count(len(PAGES))
    current = visit.locator("[data-testid=stSidebarNavLink][aria-current=page]")
    expect(current).to_contain_text("Overview")
    go(visit, "Data")
    visit.go_back()
    expect(visit.get_by_role("heading", name="Overview", exact=True, level=1)).to_be_visible(timeout=30_000)
    settle(visit)
    assert urlsplit(visit.url).path == "/overview"
    expect(current).to_contain_text("Overview")


def test_the_roofline_explains_the_call_that_is_chosen(visit: Page) -> None:
    """Another backend, N and level of memory change the sentence and the axis, and stand in the address."""
    go(visit, "Roofline")
    main = visit.get_by_test_id("stMain")
    expect(main.get_by_text("takes").first).to_contain_text("flash")
    for choice, query in (("L2", "level=L2"), ("naive", "explain=naive"), ("256", "explain_n=256")):
        main.get_by_role("radio", name=choice, exact=True).click()
        visit.wait_for_url(re.compile(rf"[?&]{query}"))
        settle(visit)
    expect(main.get_by_text("takes").first).to_contain_text("At N = 256 naive")
    expect(main.locator(".js-plotly-plot").first).to_contain_text("FLOPs a byte through the L2")


def test_published_results_are_laid_over_on_request(visit: Page) -> None:
    """Off at first; chosen in the sidebar, their methods join the legend and the caption names the paper."""
    visit.set_viewport_size({"width": 1280, "height": 2000})  # a list at the window's end shuts as it scrolls
    go(visit, "Latency")
    main = visit.get_by_test_id("stMain")
    main.get_by_role("radio", name="TFLOP/s", exact=True).click()
    settle(visit)
    assert "(published)" not in main.inner_text()
    visit.get_by_test_id("stSidebar").get_by_role("combobox", name="Published results").click()
    visit.get_by_role("option", name="H100-80GB-SXM5 fp16").click()
    settle(visit)
    expect(main.locator(".js-plotly-plot").first).to_contain_text("FlashAttention-3 (published)")
    expect(main).to_contain_text("FlashAttention-3 arXiv:2407.08608")
    expect(main).to_contain_text("another GPU or dtype than this run's")
    assert "published=" in visit.url


def test_what_a_link_asked_for_stays_on_other_pages(context: BrowserContext, app_url: str) -> None:
    """Run, filter, clock and axes of an address hold on the page that one goes to next, and the next."""
    page = context.new_page()
    page.goto(f"{app_url}/crossover?run=h200-before&d=64&clock=wall&log=false")
    settle(page)
    for name in ("Latency", "Memory", "Crossover"):
        go(page, name)
        run = page.get_by_test_id("stSidebar").get_by_role("combobox", name="Run")
        expect(run).to_have_value("h200-before")
        expect(page.get_by_role("switch", name="Log axes")).not_to_be_checked()
    expect(page.get_by_role("radio", name="wall", exact=True)).to_be_checked()
    assert page.get_by_test_id("stAlert").count() == 0


def test_two_runs_are_compared_and_taken_along(visit: Page, context: BrowserContext) -> None:
    """The CSV holds as many rows of each verdict as the page counts; the link shows the same view."""
    go(visit, "Compare")
    main = visit.get_by_test_id("stMain")
    counts = main.get_by_test_id("stMetricValue").all_inner_texts()
    main.get_by_text("Table, CSV, Markdown").first.click()
    settle(visit)  # else the button may be drawn anew under the click
    with visit.expect_download() as download:
        main.get_by_role("button", name="CSV", exact=True).click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    verdicts = [row["verdict"] for row in csv.DictReader(io.StringIO(text))]
    order = ("same", "faster", "slower", "ambiguous", "missing")
    assert [verdicts.count(verdict) for verdict in order] == [int(count) for count in counts]
    assert len(verdicts) > verdicts.count("missing") > 0
    visit.get_by_test_id("stSidebar").get_by_role("button", name="missing", exact=True).click()
    visit.wait_for_url(re.compile(r"verdicts=missing"))
    expect(main.get_by_test_id("stMetricValue")).to_have_text(["0", "0", "0", "0", counts[-1]])
    settle(visit)
    visit.get_by_role("button", name="Link to this view").click()
    other = context.new_page()
    other.goto(visit.get_by_test_id("stPopoverBody").locator("code").inner_text())
    settle(other)
    again = other.get_by_test_id("stMain").get_by_test_id("stMetricValue").all_inner_texts()
    assert again == ["0", "0", "0", "0", counts[-1]]


def test_another_gpu_is_predicted(visit: Page) -> None:
    """Choosing an L4 draws dashed lines under its name, says what fits it, and stands in the address."""
    go(visit, "What-if")
    visit.get_by_test_id("stMain").get_by_role("combobox", name="GPU").click()
    visit.get_by_role("option", name="L4", exact=True).click()
    visit.wait_for_url(re.compile(r"[?&]gpu=L4"))
    settle(visit)
    main = visit.get_by_test_id("stMain")
    expect(main.locator(".js-plotly-plot").first).to_contain_text("flash on L4 (modelled)")
    expect(main).to_contain_text("This is a prediction, not a measurement")
    expect(main).to_contain_text("otherwise empty L4 of 24 GiB")


def test_a_verdict_narrows_the_claims_and_a_card_leads_on(visit: Page) -> None:
    """One click leaves the open claims and writes the address; their link opens the page that shows more."""
    go(visit, "Claims")
    cards = visit.locator("[class*=st-key-claim-]")
    expect(cards).to_have_count(42)
    visit.get_by_test_id("stSidebar").get_by_role("button", name="open", exact=True).click()
    expect(cards).to_have_count(2)
    assert "verdict=open" in visit.url
    cards.first.get_by_role("link", name="More on page Capacity").click()
    expect(visit.get_by_role("heading", name="Capacity", exact=True, level=1)).to_be_visible(timeout=30_000)


def test_capacity_follows_its_controls(visit: Page) -> None:
    """In 16 bits the headline changes, and the address says what it is about."""
    go(visit, "Capacity")
    said = visit.get_by_text("Eager attention holds")
    before = said.inner_text()
    visit.get_by_test_id("stMain").get_by_role("radio", name="bf16", exact=True).click()
    expect(said).not_to_have_text(before)
    settle(visit)
    assert "cap_dtype=bf16" in visit.url
    assert visit.locator(".js-plotly-plot").count() == 1
