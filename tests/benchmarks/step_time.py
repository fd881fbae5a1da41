"""How long a step of page Algorithm takes, in a real Chromium.

    python tests/benchmarks/step_time.py

A walk of N queries and keys in tiles; each step is from the click on Step until the browser has painted the
frame (two animation frames, which at 60 a second are 17 to 33 ms by themselves), and beside it what the
player's own code takes of it. Milliseconds, over all steps of both directions; `slow` are steps above the
aim, 100 ms.

On 2 cores with nothing else on them (30 Nov 2026, Chromium without a GPU, load 1.5, its own):

    N   d   tile  steps  slow  median    most    code    most
   64  16      8    127     0    33.3    35.3     4.4     7.6
  128  64      8    511     0    33.3    76.1     8.4    26.0
  128  64     16    127     0    33.3    35.0     9.7    17.5

A second run had 34.2, 74.5 and 36.2 at most. With tests beside it (load 2 to 4) the worst steps of three runs
took 149, 152 and 522; in two of them 6 and 1 of the 765 steps were slow, others each time: they had waited
for a core. The medians stayed.

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

AIM_MS = 100
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
    print("    N   d   tile  steps  slow  median    most    code    most")
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
                slow = sum(time > AIM_MS for time in times)
                head = f"{n:>5} {d:>3} {side:>6} {count:>6} {slow:>5}"
                print(head + "".join(f"{x:>8.1f}" for x in found), flush=True)


if __name__ == "__main__":
    main()
