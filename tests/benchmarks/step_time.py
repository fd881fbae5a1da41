"""How long a step of page Algorithm takes, in a real Chromium.

    python tests/benchmarks/step_time.py

A walk of N queries and keys in tiles; each step is from the click on Step until the browser has painted the
frame (two animation frames, which at 60 a second are 17 to 33 ms by themselves), and beside it what the
player's own code takes of it. Milliseconds, over all steps of both directions. The aim: under 100 a step.

On 2 cores with other work on them (30 Nov 2026, Chromium without a GPU):

    N   d   tile  steps  median    most    code    most
   64  16      8    127    33.3    34.7     4.3     7.8
  128  64      8    511    33.5   418.1    10.1   343.2
  128  64     16    127    33.3    88.2     9.3    43.9

With a rectangle filled for each cell, and not one picture enlarged, the code took 10.6, 95.2 and 87.4.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "browser")]

from app_server import CHROMIUM_ARGS, app, chromium, settle  # noqa: E402

WALKS = ((64, 16, 8), (128, 64, 8), (128, 64, 16))
STEPS = """(count) => new Promise((done) => {
  const button = document.querySelector('.player .next'), times = [], own = [];
  const step = () => {
    if (times.length === count) return done([times, own]);
    const begin = performance.now();
    button.click();
    own.push(performance.now() - begin);
    requestAnimationFrame(() => requestAnimationFrame(() => {
      times.push(performance.now() - begin);
      step();
    }));
  };
  step();
})"""


def main() -> None:
    """Print a line a walk."""
    print(f"{'N':>5} {'d':>3} {'tile':>6} {'steps':>6}{'median':>8}{'most':>8}{'code':>8}{'most':>8}")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
        folder = Path(name)
        for sub in ("runs", "samples"):
            (folder / sub).mkdir()
        with app(folder, folder / "app.log") as url:
            for n, d, side in WALKS:
                page = browser.new_page(viewport={"width": 1280, "height": 1400})
                page.goto(f"{url}/algorithm?n={n}&dim={d}&br={side}&bc={side}")
                settle(page)
                page.locator(".player .title").wait_for()
                count = 2 * (n // side) ** 2 - 1
                times, own = page.evaluate(STEPS, count)
                page.close()
                found = (statistics.median(times), max(times), statistics.median(own), max(own))
                print(
                    f"{n:>5} {d:>3} {side:>6} {count:>6}" + "".join(f"{x:>8.1f}" for x in found), flush=True
                )


if __name__ == "__main__":
    main()
