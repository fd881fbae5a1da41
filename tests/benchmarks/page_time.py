"""How long a reader waits, in a real Chromium: for the first chart, and for a changed filter.

    python tests/benchmarks/page_time.py [--rows 10000,100000] [--changes 8]

Synthetic runs with samples' summaries, about as many rows of the comparison table as asked for. For each
page the app is started anew. `chart` is from asking for the address until a chart is drawn, on a server that
has read nothing, and `first` until nothing runs any more, either; `again` is the same in a new tab, the run
in the cache;
`change` is from the click on a filter's chip until the chart has other numbers and nothing runs any more:
median and most of the changes. Seconds. The aim, on 2 cores: chart under 4 and change under 0.5 with 10 000
rows, change under 1.5 with 100 000.

On 2 cores (30 Nov 2026, Chromium without a GPU, commit 08b508a):

        rows page         chart   first   again  change    most
       10368 latency       3.50    3.62    2.59    0.33    0.35
       10368 crossover     4.19    4.24    2.55    0.35    0.38
       10368 memory        3.89    4.01    2.71    0.29    0.44
      101088 latency       9.24    9.33    3.12    0.98    0.99
      101088 crossover    10.75   11.08    3.25    0.93    0.98
      101088 memory        9.49    9.55    3.24    0.90    1.61

The same machine at other hours says up to 15 % more or less: `first` at 9d77b83 was 3.33, 3.76, 3.91 on one
evening and 3.69, 3.80, 4.50 on another.

Before each page's module was imported when first asked for, and with scipy.stats: first 4.35, 5.85 and 6.31
with 10 000 rows. Of what is left some 2.7 s are Streamlit's and plotly's own start in the browser.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "browser")]

from app_server import CHROMIUM_ARGS, SETTLED, app, chromium  # noqa: E402
from synthetic import synthetic_run, write_synthetic  # noqa: E402

PAGES = ("latency", "crossover", "memory")
CHIPS = ("bwd", "fwd")  # of the filter Direction, in turns
AXES: dict[str, Any] = {
    "run_id": "h200-standard",
    "backends": ("naive", "flash", "sdpa_flash", "tiled"),
    "seq_lens": tuple(64 * 2**k for k in range(9)),
    "clocks": ("wall", "device", "graph"),
    "directions": ("fwd", "bwd", "fwd_bwd"),
    "causals": (False, True),
    "head_dims": (64, 96, 128, 256),
    "keep_samples": False,
}
ROWS_A_SHAPE = 4 * 9 * 3 * 3 * 2 * 4  # of the axes above
CHART = "() => [...document.querySelectorAll('.js-plotly-plot')].some(plot => plot.data && plot.data.length)"
CHANGE = """(chip) => new Promise((done) => {
  const seen = () => JSON.stringify([...document.querySelectorAll('.js-plotly-plot')]
    .map((plot) => (plot.data || []).map((trace) => [trace.name, (trace.y || [])[0]])));
  const settled = SETTLED;
  const before = seen(), begin = performance.now();
  chip.click();
  const look = () => (seen() !== before && settled()) ? done(performance.now() - begin)
    : requestAnimationFrame(look);
  look();
})""".replace("SETTLED", SETTLED)


def write_run(rows: int, folder: Path) -> int:
    """A run file of about so many rows; returns how many they are."""
    kinds = max(1, round(rows / ROWS_A_SHAPE))
    dtypes = ("bf16", "fp16", "fp32")[: 1 if kinds < 6 else 3]
    batches = [(batch, 16) for batch in range(1, max(1, round(kinds / len(dtypes))) + 1)]
    write_synthetic(
        synthetic_run(**AXES, dtypes=dtypes, batch_heads=batches), folder / "samples" / "h200-standard.jsonl"
    )
    return len(batches) * len(dtypes) * ROWS_A_SHAPE


def visit(browser: Browser, url: str) -> tuple[Page, float, float]:
    """The page, and the seconds until it had a chart and until nothing ran any more."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    begin = time.perf_counter()
    page.goto(url)
    page.wait_for_function(CHART, timeout=300_000)
    chart = time.perf_counter() - begin
    page.wait_for_function(SETTLED, timeout=300_000)
    return page, chart, time.perf_counter() - begin


def changes(page: Page, count: int) -> list[float]:
    """Seconds of each change of the direction."""
    times = []
    for number in range(count):
        chip = page.get_by_test_id("stSidebar").get_by_role("button", name=CHIPS[number % 2], exact=True)
        chip = chip.or_(
            page.get_by_test_id("stSidebar").get_by_role("radio", name=CHIPS[number % 2], exact=True)
        )
        times.append(page.evaluate(CHANGE, chip.first.element_handle()) / 1e3)
    return times


def main() -> None:
    """Print a line a page and number of rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", default="10000,100000")
    parser.add_argument("--changes", type=int, default=8)
    ask = parser.parse_args()
    print(f"{'rows':>8} {'page':<10}{'chart':>8}{'first':>8}{'again':>8}{'change':>8}{'most':>8}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
        for asked in (int(text) for text in ask.rows.split(",")):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "runs").mkdir()
                rows = write_run(asked, folder)
                for place in PAGES:
                    with app(folder, folder / "app.log") as url:
                        page, chart, first = visit(browser, f"{url}/{place}")
                        page.close()
                        page, _, again = visit(browser, f"{url}/{place}")
                        changes(page, 2)  # each side once: what is computed is computed
                        times = changes(page, ask.changes)
                        page.close()
                    found = (chart, first, again, statistics.median(times), max(times))
                    print(f"{rows:>8} {place:<10}" + "".join(f"{x:>8.2f}" for x in found), flush=True)


if __name__ == "__main__":
    main()
