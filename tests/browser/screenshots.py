"""Pictures of every page of the running app, light and dark, at 1280 px and on a phone.

    python tests/browser/screenshots.py FOLDER [--data DIR] [--readme]

`--readme` also writes the picture of the README: the Overview in light, to `data/screenshots/overview.png`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from app_server import CHROMIUM_ARGS, ROOT, app, chromium, settle
from playwright.sync_api import Browser, sync_playwright

PAGES = ("", "crossover", "latency", "memory", "traffic", "tiles", "run", "data")
README_PICTURE = ROOT / "data" / "screenshots" / "overview.png"
WIDTHS = (1280, 390)
TALLEST = 6000


def shoot(
    browser: Browser, url: str, path: Path, *, theme: str, width: int, height: int | None = None
) -> None:
    """One page as one picture, as tall as its content if no height is given."""
    context = browser.new_context(
        viewport={"width": width, "height": height or 900},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(url)
    settle(page, timeout_s=120)
    if height is None:
        # Streamlit scrolls an inner element, so a full-page screenshot would cut it.
        content = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": width, "height": min(TALLEST, max(900, content))})
    page.wait_for_timeout(1500)  # charts are drawn after the script has ended
    settle(page)
    page.screenshot(path=path, animations="disabled")
    context.close()


def main() -> int:
    """Take all pictures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    parser.add_argument("--readme", action="store_true")
    asked = parser.parse_args()
    browser_path = chromium()
    if browser_path is None:
        print("needs a Chromium on PATH", file=sys.stderr)
        return 2
    asked.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        app(asked.data.resolve(), Path(scratch) / "app.log") as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=browser_path, args=CHROMIUM_ARGS)
        for name in PAGES:
            for theme in ("light", "dark"):
                for width in WIDTHS:
                    target = asked.folder / f"{name or 'overview'}-{theme}-{width}.png"
                    shoot(browser, f"{url}/{name}", target, theme=theme, width=width)
                    print(target)
        if asked.readme:
            README_PICTURE.parent.mkdir(parents=True, exist_ok=True)
            shoot(browser, url, README_PICTURE, theme="light", width=1280, height=1100)
            print(README_PICTURE)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
