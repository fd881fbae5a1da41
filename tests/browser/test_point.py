"""A point of a chart in a real Chromium: clicked, chosen by keyboard, and opened by a colleague's link."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


@pytest.fixture
def latency(page: Page, app_url: str) -> Iterator[Page]:
    """The Latency page of the GPU's run."""
    page.set_viewport_size({"width": 1280, "height": 2000})
    page.goto(f"{app_url}/latency?run=h200-standard")
    settle(page)
    yield page
    assert page.get_by_test_id("stException").count() == 0


def click(page: Page, curve: int, point: int) -> None:
    """Click a point of the first chart by its trace and number, as a hand would: at its place."""
    place = page.evaluate(
        """([curve, point]) => {
          const plot = document.querySelector('.js-plotly-plot');
          const trace = plot._fullData[curve], d = plot.calcdata[curve][point];
          const [x, y] = ['x', 'y'].map(a => plot._fullLayout[trace[a + 'axis'].replace(a, a + 'axis')]);
          const at = plot.getBoundingClientRect();
          return [at.left + x._offset + x.c2p(d.x), at.top + y._offset + y.c2p(d.y)];
        }""",
        [curve, point],
    )
    page.mouse.move(*place)
    page.wait_for_timeout(100)  # plotly clicks what it hovers over
    page.mouse.click(*place)


def test_a_point_is_picked_kept_and_shared(latency: Page, context: BrowserContext) -> None:
    """A click opens its panel, a second click another; a clock chosen then keeps it, and a link has it."""
    main = latency.get_by_test_id("stMain")
    seen = []
    for point in (4, 2):
        click(latency, 1, point)
        latency.wait_for_url(re.compile(r"[?&]case="))
        expect(main.get_by_text("Measure it again")).to_be_visible()
        expect(main.get_by_role("heading", level=3)).not_to_have_text(seen[-1] if seen else "")
        settle(latency)
        seen.append(main.get_by_role("heading", level=3).inner_text())
    assert len(set(seen)) == 2
    main.get_by_role("radio", name="graph", exact=True).click()  # another figure: Streamlit forgets clicks
    expect(main).to_contain_text("Latency, graph clock")
    settle(latency)
    expect(main.get_by_role("heading", level=3)).to_have_text(seen[-1])
    latency.get_by_role("button", name="Link to this view").click()
    link = latency.get_by_test_id("stPopoverBody").locator("code").inner_text()
    other = context.new_page()
    other.goto(link)
    settle(other)
    expect(other.get_by_role("heading", level=3)).to_have_text(seen[-1])


def test_a_point_is_chosen_by_keyboard(latency: Page) -> None:
    """The box under the chart takes typing and Enter, and its panel has the command of that case."""
    main = latency.get_by_test_id("stMain")
    box = main.get_by_role("combobox", name="Point of the chart")
    box.focus()
    latency.keyboard.type("N4096")
    latency.keyboard.press("Enter")
    expect(main.get_by_role("heading", level=3)).to_contain_text("N4096")
    expect(main.locator("code", has_text="/dev/stdin")).to_contain_text("seq_len = [4096]")
