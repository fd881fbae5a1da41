"""Numerics lab in a real Chromium: computed on request, and other inputs say something else."""

from __future__ import annotations

import pytest
from app_server import settle
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def test_a_safeguard_is_left_out_on_request(page: Page, app_url: str) -> None:
    """Masked rows need the guard; the address holds the inputs, and the chart its crosses."""
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto(f"{app_url}/numerics-lab?inputs=masked")
    settle(page)
    page.get_by_role("button", name="Compute now").click()
    main = page.get_by_test_id("stMain")
    expect(main).to_contain_text("no guard for empty rows: 7", timeout=60_000)
    settle(page)
    assert "inputs=masked" in page.url
    chart = main.locator(".js-plotly-plot").first
    expect(chart).to_contain_text("no guard for empty rows")
    assert page.get_by_test_id("stException").count() == 0
    scroll = "document.querySelector('[data-testid=stMain]')"
    page.set_viewport_size({"width": 390, "height": 1400})
    page.wait_for_timeout(300)
    assert page.evaluate(f"{scroll}.scrollWidth <= {scroll}.clientWidth")
