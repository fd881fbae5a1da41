"""Ten readers at once: does the app stay up, and does each see what that one chose?

    python tests/browser/crowd.py [--sessions 10] [--seconds 120] [--data DIR]

Each session is a browser context of its own. In turns it opens a page and chooses a direction, a head dim
and a mask by the chips; after every step its chips must say what it chose, the address too, and no error may
stand on the page. Prints steps, seconds a step (median and most) and faults; ends in 1 if there are any.

On 2 cores, which ran the ten browsers as well (30 Nov 2026): 10 sessions, 196 steps, 0 faults; seconds a
step: median 2.96, most 9.49 (before the pages had pickable points and pictures: 260, 0; 1.97, 9.23).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from app_server import CHROMIUM_ARGS, ROOT, SETTLED, app, chromium
from playwright.async_api import Browser, Page, async_playwright

PAGES = ("latency", "crossover", "memory", "traffic", "numerics", "roofline")
CHOICES = {"Direction": ("direction", ("fwd", "bwd")), "Head dim d": ("d", ("64", "128", "256"))}


class Session:
    """One reader, with choices of its own."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.chosen: dict[str, str] = {}
        self.times: list[float] = []
        self.faults: list[str] = []
        self.name = f"session {number}"

    async def run(self, browser: Browser, url: str, until: float) -> None:
        """Read until the time is up."""
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"{self.name}: {str(error)[:200]}"))
        try:
            await page.goto(f"{url}/latency")
            await self._settled(page)
            while time.monotonic() < until:
                await page.wait_for_timeout(self.random.uniform(300, 1500))  # a reader reads
                begin = time.monotonic()
                await self._step(page)
                self.times.append(time.monotonic() - begin)
                if await self._wrong(page):  # or not there yet: on a full machine a click takes its time
                    await page.wait_for_timeout(2000)
                    await self._settled(page)
                    self.faults += [f"{self.name}: {fault}" for fault in await self._wrong(page)]
        except Exception as error:
            self.faults.append(f"{self.name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        finally:
            await context.close()

    async def _step(self, page: Page) -> None:
        if self.random.random() < 0.3:
            title = self.random.choice(PAGES).capitalize()
            items = page.get_by_test_id("stSidebarNavItems")
            await items.get_by_role("link", name=title, exact=True).click()
        else:
            label, (_, values) = self.random.choice(list(CHOICES.items()))
            value = self.random.choice(values)
            await (
                page.get_by_role("radiogroup", name=label)
                .get_by_role("radio", name=value, exact=True)
                .click()
            )
            self.chosen[label] = value
        await self._settled(page)

    async def _settled(self, page: Page) -> None:
        await page.wait_for_timeout(300)  # until the click has reached the server
        await page.wait_for_function(SETTLED, timeout=120_000)

    async def _wrong(self, page: Page) -> list[str]:
        """What is not as this reader chose it."""
        faults = []
        if await page.get_by_test_id("stException").count():
            faults.append("an exception stands on the page")
        query = parse_qs(urlsplit(page.url).query)
        for label, value in self.chosen.items():
            group = page.get_by_role("radiogroup", name=label)
            chosen = await group.locator("[aria-checked=true]").all_inner_texts()
            if [text.strip() for text in chosen] != [value]:
                faults.append(f"{label} says {chosen}, chosen was {value}")
            key = CHOICES[label][0]
            if key in query and query[key] != [value]:
                faults.append(f"the address says {key}={query[key]}, chosen was {value}")
        return faults


async def crowd(url: str, count: int, seconds: float) -> list[Session]:
    """All sessions, side by side."""
    sessions = [Session(number) for number in range(count)]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
        until = time.monotonic() + seconds
        await asyncio.gather(*(session.run(browser, url, until) for session in sessions))
        await browser.close()
    return sessions


def main() -> None:
    """Print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    ask = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, app(ask.data, Path(folder) / "app.log") as url:
        sessions = asyncio.run(crowd(url, ask.sessions, ask.seconds))
    times = [x for session in sessions for x in session.times]
    faults = [fault for session in sessions for fault in session.faults]
    print(f"{len(sessions)} sessions, {len(times)} steps, {len(faults)} faults")
    if times:
        print(f"seconds a step: median {statistics.median(times):.2f}, most {max(times):.2f}")
    print("\n".join(faults[:20]))
    sys.exit(bool(faults or not times))


if __name__ == "__main__":
    main()
