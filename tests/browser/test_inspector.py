"""Page Inspector in a real Chromium: a kernel is really compiled on a click, for a GPU that is not there."""

from __future__ import annotations

import importlib.util
import re

import pytest
from app_server import settle
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="compiling needs triton, on Linux")
def test_a_click_compiles_and_the_link_shows_it_again(page: Page, app_url: str) -> None:
    """The answer, the chart and the code come; the address opens the same view, compiled already."""
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto(f"{app_url}/inspector?ins_target=sm_80&ins_d=64")
    settle(page)
    main = page.get_by_test_id("stMain")
    main.get_by_role("button", name="Compile", exact=True).click()
    answer = main.get_by_text("registers a thread; no spills")
    expect(answer).to_be_visible(timeout=60_000)
    settle(page)
    said = answer.inner_text()
    expect(main.locator(".js-plotly-plot")).to_contain_text("Instructions")
    code = main.get_by_text(re.compile(r"^forward_kernel, .* lines$"))
    instructions = code.inner_text()
    main.get_by_role("radio", name="source lines", exact=True).click()
    page.wait_for_url(re.compile("ins_view=source"))
    settle(page)
    expect(code).to_have_count(1)  # while the page is drawn anew the old one stands beside it
    expect(code).not_to_have_text(instructions)
    page.goto(page.url)
    settle(page)
    assert answer.inner_text() == said
    assert main.get_by_role("button", name="Compile", exact=True).count() == 0
