"""The app without a mouse, in a real Chromium: Tab reaches everything, one sees where one is, keys act."""

from __future__ import annotations

import re
from typing import Any

import pytest
from app_server import settle
from playwright.sync_api import Browser, Page, expect

from profiling.pages import registry

pytestmark = [
    pytest.mark.browser,
    # pytest-base-url, which pytest-playwright brings, still uses a hook's old argument
    pytest.mark.filterwarnings("ignore::pytest.PytestRemovedIn10Warning")
    if hasattr(pytest, "PytestRemovedIn10Warning")
    else pytest.mark.filterwarnings("default"),
]

MOST = 90  # presses of Tab until a page has been walked through
# What has the focus: role, name, width of its outline in pixels, and the outline's contrast to the page.
FOCUSED = """() => {
  let element = document.activeElement;
  while (element.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
  if (element === document.body) return null;
  const role = element.getAttribute("role") ?? {A: "link", INPUT: "textbox"}[element.tagName]
    ?? element.tagName.toLowerCase();
  const icons = [...element.querySelectorAll("[data-testid=stIconMaterial]")].map(icon => icon.innerText);
  const words = element.innerText.split("\\n").map(line => line.trim());
  const name = element.getAttribute("aria-label") ?? words.find(word => word && !icons.includes(word)) ?? "";
  const drawn = role === "switch" ? element.closest("label") : element;  // its input is not to be seen
  const rgb = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = colour => rgb(colour).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const style = getComputedStyle(drawn);
  const both = [style.outlineColor, getComputedStyle(document.querySelector("[data-testid=stApp]"))
    .backgroundColor].map(light).sort();
  const width = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
  return {role, name, width, contrast: (both[1] + 0.05) / (both[0] + 0.05)};
}"""


def walk(page: Page) -> list[dict[str, Any]]:
    """Everything that Tab reaches, from the top of the page to its end."""
    found = []
    for _ in range(MOST):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is None:
            return found
        found.append(focused)
    raise AssertionError(f"{MOST} presses of Tab did not reach the end of the page")


def go_to(page: Page, role: str, name: str) -> None:
    """Press Tab until that has the focus."""
    for _ in range(2 * MOST):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED) or {}
        if (focused.get("role"), focused.get("name")) == (role, name):
            return
    raise AssertionError(f"Tab does not reach {role} {name}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tab_reaches_everything_and_one_sees_where_one_is(browser: Browser, app_url: str, theme: str) -> None:
    """Navigation, filters, controls, the chart's buttons and its box, in that order; each with an outline."""
    context = browser.new_context(
        color_scheme="dark" if theme == "dark" else "light", viewport={"width": 1280, "height": 1400}
    )
    page = context.new_page()
    page.goto(f"{app_url}/latency?run=h200-standard")
    settle(page)
    page.locator(".js-plotly-plot .modebar-btn").first.wait_for(state="attached")
    found = walk(page)
    context.close()
    pale = [each for each in found if each["width"] < 2 or each["contrast"] < 3]
    assert not pale
    reached = [(each["role"], each["name"]) for each in found]
    wanted = [("link", entry.title) for entry in registry.ENTRIES]
    wanted += [("combobox", "Run"), ("radio", "fwd"), ("radio", "naive")]  # a group is one stop
    wanted += [("button", "Link to this view"), ("radio", "wall"), ("switch", "Log axes")]
    wanted += [("button", "Zoom"), ("button", "SVG of chart latency"), ("button", "PNG of chart latency")]
    wanted += [("combobox", "Point of the chart"), ("summary", "Table, CSV, Markdown (15 rows)")]
    assert [each for each in reached if each in wanted] == wanted


def test_keys_do_what_a_click_does(page: Page, app_url: str) -> None:
    """Enter follows a link, opens a popover, saves a chart; arrows and Space choose; Space turns a switch."""
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto(f"{app_url}/data")
    settle(page)
    go_to(page, "link", "Latency")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Latency", exact=True, level=1)).to_be_visible(timeout=30_000)
    settle(page)
    go_to(page, "radio", "fwd")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.wait_for_url(re.compile(r"[?&]direction=bwd"))
    settle(page)
    go_to(page, "button", "Link to this view")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("stPopoverBody").locator("code")).to_contain_text("direction=bwd")
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("stPopoverBody")).to_have_count(0)
    go_to(page, "switch", "Log axes")
    page.keyboard.press("Space")
    page.wait_for_url(re.compile(r"[?&]log=false"))
    kinds = "document.querySelector('.js-plotly-plot')._fullLayout"
    page.wait_for_function(f"{kinds}.xaxis.type === 'linear' && {kinds}.yaxis.type === 'linear'")
    settle(page)
    go_to(page, "button", "SVG of chart latency")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "flashscope-latency.svg"
    go_to(page, "combobox", "Point of the chart")
    page.keyboard.type("N4096")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("stMain").get_by_role("heading", level=3)).to_contain_text("N4096")
    settle(page)
    go_to(page, "summary", "Table, CSV, Markdown (15 rows)")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("stMain").get_by_role("button", name="CSV", exact=True).last).to_be_visible()
    assert page.get_by_test_id("stException").count() == 0
