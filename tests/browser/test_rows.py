"""Operations over rows in a real Chromium: the committed run, its filters, its axis, its crossover."""

from __future__ import annotations

import pytest
from app_server import settle
from playwright.sync_api import Page, expect
from test_accessibility import faults

pytestmark = pytest.mark.browser


def test_a_crossover_runs_along_the_classes(page: Page, app_url: str) -> None:
    """From the overview to the crossover of another operation: its words, its link, and a picked point."""
    page.set_viewport_size({"width": 1280, "height": 1600})
    page.goto(f"{app_url}/?run=h200-softmax")
    settle(page)
    main, sidebar = page.get_by_test_id("stMain"), page.get_by_test_id("stSidebar")
    expect(main).to_contain_text("online against naive")
    sidebar.get_by_role("link", name="Crossover").click()
    settle(page)
    sidebar.get_by_role("radio", name="softmax top-k", exact=True).click()
    sidebar.get_by_role("radio", name="fp32", exact=True).click()
    page.wait_for_url(lambda url: "dtype=fp32" in url and "operation=" in url)
    settle(page)
    chart = main.locator(".js-plotly-plot").first
    expect(chart).to_contain_text("Classes of a row")
    expect(main).to_contain_text("classes")
    assert "equence length N" not in chart.inner_text()
    main.get_by_role("combobox", name="Point of the chart").click()
    page.get_by_role("option").filter(has_text="online").first.click()
    settle(page)
    expect(main).to_contain_text("softmax top-k 50")
    address = page.url
    page.goto(address)
    settle(page)
    expect(main).to_contain_text("softmax top-k 50")
    assert page.get_by_test_id("stException").count() == 0


@pytest.mark.parametrize(
    "path", ["crossover?run=h200-softmax", "latency?run=h200-softmax", "roofline?run=h200-softmax"]
)
def test_no_serious_fault(page: Page, app_url: str, path: str) -> None:
    """Pages that show such a run, and one that says where to look instead."""
    browser = page.context.browser
    assert browser is not None
    assert faults(browser, f"{app_url}/{path}?run=h200-softmax", "light") == []
