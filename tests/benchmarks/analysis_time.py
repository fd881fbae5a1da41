"""How the time of loading and analysing grows with the rows of the comparison table.

    python tests/benchmarks/analysis_time.py [--most 100000] [--repeats 3]

Synthetic runs of summaries: 4 backends, 9 N, 3 clocks, and as many shapes as it takes. Prints the least of
some repeats, in seconds, of: reading the run file; making the table; the crossovers of every shape on one
clock; all that the Overview shows (every clock, memory, speed-ups, counts); and one slice, filtered out of
the whole table and judged. The aim: 100 000 rows analysed (the Overview) in under 2 s on 2 cores, a slice in
under 0.3 s.

On 2 cores with a load of 3 (30 Nov 2026), at 100 224 rows, before (commit 23a5b27) and after:

              read file   table   crossovers   overview   one slice
    before       6.1       5.6       0.43        1.9        0.02
    after        2.1       2.0       0.13        0.7        0.02

The garbage collector is paused while records are made (two thirds of reading), columns are made by case
instead of by row, modelled bytes once a shape instead of once a backend, and N* by a spline's matrix.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from profiling.analysis.crossover import crossovers
from profiling.analysis.summary import overview
from profiling.store import frame, load_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synthetic import LAWS, synthetic_run, write_synthetic

COUNTS = (1_000, 3_000, 10_000, 30_000, 100_000)
AXES: dict[str, Any] = {
    "backends": ("naive", "flash", "sdpa_flash", "tiled"),
    "seq_lens": tuple(64 * 2**k for k in range(9)),
    "clocks": ("wall", "device", "graph"),
    # so that most shapes have a crossing, which takes more than none
    "laws": {**LAWS, "flash": LAWS["flash"]._replace(launch_ms=2.0)},
}
ROWS_A_SHAPE = 4 * 9 * 3


def least(repeats: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """The least time of some repeats, in seconds, and the last result."""
    times, result = [], None
    for _ in range(repeats):
        result = None
        gc.collect()
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return min(times), result


def one_slice(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first shape."""
    chosen = (table["batch"] == 1) & (table["direction"] == "fwd") & ~table["causal"]
    return table[chosen & (table["head_dim"] == 64)]


def measure(rows: int, repeats: int, folder: Path) -> str:
    """One line: the number of rows, and the time of each step."""
    path = folder / f"{rows}.jsonl"
    shapes = max(1, round(rows / ROWS_A_SHAPE))
    axes: dict[str, Any] = {}
    if shapes >= 8:  # both directions, masks and two widths; then more batches
        axes = {"directions": ("fwd", "bwd"), "causals": (False, True), "head_dims": (64, 128)}
    batches = max(1, round(shapes / (8 if axes else 1)))
    batch_heads = [(batch, 16) for batch in range(1, batches + 1)]
    run = synthetic_run(**AXES, **axes, batch_heads=batch_heads, keep_samples=False)
    write_synthetic(run, path)
    del run
    read, loaded = least(repeats, lambda: load_run(path))
    made, table = least(repeats, lambda: frame(loaded))
    judged, _ = least(repeats, lambda: crossovers(table, clock="device"))
    seen, _ = least(repeats, lambda: overview(table))
    single, found = least(repeats, lambda: crossovers(one_slice(table), clock="device"))
    if len(found) != 1:
        raise SystemExit(f"one slice was expected, got {len(found)}")
    return f"{len(table):>9}" + "".join(f"{seconds:>11.3f}" for seconds in (read, made, judged, seen, single))


def main() -> None:
    """Print a line for each number of rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--most", type=int, default=COUNTS[-1], help="stop at so many rows")
    parser.add_argument("--repeats", type=int, default=3)
    ask = parser.parse_args()
    names = ("rows", "read file", "table", "crossovers", "overview", "one slice")
    print(f"{names[0]:>9}" + "".join(f"{name:>11}" for name in names[1:]))
    with tempfile.TemporaryDirectory() as folder:
        for rows in (count for count in COUNTS if count <= ask.most):
            print(measure(rows, ask.repeats, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
