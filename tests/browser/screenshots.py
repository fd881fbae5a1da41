"""Pictures of the running app: every page, light and dark, at 1280 px and on a phone; the README's pictures.

    python tests/browser/screenshots.py [FOLDER] [--readme] [--data DIR]

With a FOLDER all pages go there; `--readme` writes those of the README, in light, to `data/screenshots`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

from app_server import CHROMIUM_ARGS, ROOT, app, chromium, settle
from playwright.sync_api import Browser, sync_playwright

from profiling.pages import registry

PAGES = tuple(entry.path for entry in registry.ENTRIES)
README_FOLDER = ROOT / "data" / "screenshots"
# Its pictures: the address of each.
README_VIEWS = {
    "overview": "",
    "latency": "latency?run=h200-peers&d=128&show=TFLOP%2Fs",
    "review": "review?run=h200-models",
    "roofline": "roofline",
}
WIDTHS = (1280, 390)
TALLEST = 6000
README_HEIGHT = 1120


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


def shoot_all(browser: Browser, url: str, folder: Path) -> None:
    """Every page in both themes and both widths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, theme, width in itertools.product(PAGES, ("light", "dark"), WIDTHS):
        target = folder / f"{name}-{theme}-{width}.png"
        address = url if name == PAGES[0] else f"{url}/{name}"  # the first page has no path
        shoot(browser, address, target, theme=theme, width=width)
        print(target)


def main() -> int:
    """Take the pictures asked for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    asked = parser.parse_args()
    browser_path = chromium()
    if browser_path is None:
        print("needs a Chromium on PATH", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory() as scratch,
        app(asked.data.resolve(), Path(scratch) / "app.log") as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=browser_path, args=CHROMIUM_ARGS)
        if asked.folder is not None:
            shoot_all(browser, url, asked.folder)
        if asked.readme:
            README_FOLDER.mkdir(parents=True, exist_ok=True)
            for name, view in README_VIEWS.items():
                target = README_FOLDER / f"{name}.png"
                shoot(browser, f"{url}/{view}", target, theme="light", width=1280, height=README_HEIGHT)
                print(target)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
