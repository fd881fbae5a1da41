"""No page has a serious fault by the rules of axe (WCAG 2 A and AA), in light and in dark."""

from __future__ import annotations

import pytest
from app_server import settle
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from profiling.pages import registry

pytestmark = pytest.mark.browser
# Streamlit's own navigation: its headings stand between the items of a list.
NOT_OURS = {"list", "listitem"}
IN_NAVIGATION = "element => Boolean(element.closest('[data-testid=stSidebarNav]'))"


def faults(browser: Browser, url: str, theme: str) -> list[str]:
    """Serious and critical violations of a page, a line each."""
    context = browser.new_context(
        color_scheme="dark" if theme == "dark" else "light",
        viewport={"width": 1280, "height": 1400},
        reduced_motion="reduce",
    )
    page = context.new_page()
    try:
        page.goto(url)
        settle(page)
        page.wait_for_timeout(1000)  # charts are drawn after the script has ended
        return [
            f"{violation['id']}: {node['html'][:200]} {node['failureSummary']}"
            for violation in Axe().run(page).response["violations"]
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"]
            if not (violation["id"] in NOT_OURS and page.eval_on_selector(node["target"][0], IN_NAVIGATION))
        ]
    finally:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", [entry.path for entry in registry.ENTRIES])
def test_no_serious_fault(browser: Browser, app_url: str, path: str, theme: str) -> None:
    """Contrast, names and roles of everything on the page."""
    default = path == registry.ENTRIES[0].path
    assert faults(browser, app_url if default else f"{app_url}/{path}", theme) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", ["latency?run=h200-standard&case=flash+fwd+bf16+B1+H16+N1024+d128", "run?source=my+own"]
)
def test_no_serious_fault_in_what_is_opened(browser: Browser, app_url: str, path: str, theme: str) -> None:
    """A point that is picked, and the form for a sweep of one's own."""
    assert faults(browser, f"{app_url}/{path}", theme) == []
