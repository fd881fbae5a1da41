"""The player of page Algorithm in a real Chromium: it steps and plays without asking the server."""

from __future__ import annotations

import re

import pytest
from app_server import settle
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
PICTURE = "() => document.querySelector('.player canvas').toDataURL()"


def test_64_tiles_are_stepped_through_without_the_server(page: Page, app_url: str) -> None:
    """A step has its own title and picture, the end is reached, and nothing is sent meanwhile."""
    sent: list[object] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto(f"{app_url}/algorithm?n=64&dim=16")
    settle(page)
    title = page.locator(".player .title")
    expect(title).to_contain_text("Forward, step 1 of 64: queries 0 to 7, keys 0 to 7")
    before = len(sent)
    assert before
    pictures = {page.evaluate(PICTURE)}
    for step in range(63):
        page.get_by_role("button", name="Step", exact=True).click()
        if step % 9 == 0:
            pictures.add(page.evaluate(PICTURE))
    expect(title).to_contain_text("Forward, step 64 of 64: queries 56 to 63, keys 56 to 63")
    assert len(pictures) == 8
    page.get_by_role("button", name="Backward", exact=True).click()
    expect(title).to_contain_text("Backward, step 1 of 64: queries 0 to 7")
    page.get_by_role("button", name="Step back", exact=True).click()
    expect(title).to_contain_text("Forward, step 64")
    page.get_by_label("Speed").select_option("20 steps/s")
    page.get_by_role("button", name="Play", exact=True).click()
    expect(title).to_contain_text("Backward, step")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("slider", name="Step").press("End")
    expect(title).to_contain_text("Backward, step 64 of 64")
    expect(page.get_by_role("button", name="Step", exact=True)).to_be_disabled()
    assert len(sent) == before
    page.wait_for_url(re.compile("[?&]step=128"))


def test_another_mask_is_another_walk(page: Page, app_url: str) -> None:
    """The player starts over with the new walk's frames, and the address holds the choice."""
    page.set_viewport_size({"width": 390, "height": 1400})
    page.goto(f"{app_url}/algorithm?n=16&br=4&bc=4")
    settle(page)
    title = page.locator(".player .title")
    page.get_by_role("button", name="Step", exact=True).click()
    expect(title).to_contain_text("step 2 of 16")
    page.get_by_test_id("stMain").get_by_role("radio", name="causal", exact=True).click()
    expect(title).to_contain_text("step 1 of 10", timeout=30_000)
    assert "walk_mask=causal" in page.url
    page.get_by_role("button", name="Step", exact=True).click()
    page.get_by_role("button", name="Step", exact=True).click()
    page.wait_for_url(re.compile("[?&]step=3"))
    page.goto(page.url)
    expect(title).to_contain_text("Forward, step 3 of 10", timeout=30_000)
