"""How well runs of the same sweep on the same GPU agree.

    python tests/benchmarks/repeatability.py RUN.jsonl RUN.jsonl ... [--clock device] [--above-us 20]

Of each case and run the median on one clock; a case agrees when the medians of all runs lie within 2 % of
their own median. Prints the share of cases that agree, the widest disagreements, and the share of rows with
a flag. Runs of several GPUs are refused.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path

from profiling.records import Run
from profiling.store import load_run

WITHIN = 0.02
SHOWN = 8


def medians_ms(runs: list[Run], clock: str) -> dict[str, list[float]]:
    """By case label: its median on the clock in each run that has it, `ok`."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for row in run.measurements:
            for one in row.clocks:
                if row.status == "ok" and one.clock == clock and one.latency_p50_ms is not None:
                    found.setdefault(row.case.label, []).append(one.latency_p50_ms)
    return found


def spread(values: list[float]) -> float:
    """The largest distance from the median of the runs, relative to it."""
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values) / middle


def flags(runs: list[Run], clock: str) -> tuple[Counter[str], int, int]:
    """(rows by flag, rows with any, rows): a row is a case on the clock in a run."""
    by_flag: Counter[str] = Counter()
    flagged = rows = 0
    for run in runs:
        for row in run.measurements:
            own = {*row.flags, *(flag for one in row.clocks if one.clock == clock for flag in one.flags)}
            by_flag.update(own)
            flagged += bool(own)
            rows += 1
    return by_flag, flagged, rows


def main() -> None:
    """Compare the runs that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--clock", default="device")
    parser.add_argument("--above-us", type=float, default=20.0)
    options = parser.parse_args()
    runs = [load_run(path) for path in options.runs]
    gpus = {run.header.environment.device_uuid for run in runs}
    if len(runs) < 2 or len(gpus) > 1:
        sys.exit(f"there must be two runs or more, all of one GPU, got {len(runs)} of {len(gpus)}")
    found = {label: ms for label, ms in medians_ms(runs, options.clock).items() if len(ms) == len(runs)}
    long = {label: ms for label, ms in found.items() if statistics.median(ms) * 1e3 > options.above_us}
    spreads = {label: spread(ms) for label, ms in found.items()}
    for name, labels in ((f"above {options.above_us:g} us", long), ("all", found)):
        agree = sum(spreads[label] <= WITHIN for label in labels)
        worst = max((spreads[label] for label in labels), default=0.0)
        typical = statistics.median(spreads[label] for label in labels) if labels else 0.0
        print(
            f"{len(runs)} runs, {options.clock} clock, {name}: {agree} of {len(labels)} cases within "
            f"{WITHIN:.0%} ({agree / max(len(labels), 1):.1%}); spread typically {typical:.2%}, "
            f"at most {worst:.2%}"
        )
    for label in sorted(spreads, key=spreads.__getitem__, reverse=True)[:SHOWN]:
        told = " ".join(f"{1e3 * ms:.1f}" for ms in found[label])
        print(f"   {spreads[label]:6.2%}  {label}: {told} us")
    by_flag, flagged, rows = flags(runs, options.clock)
    print(f"{flagged} of {rows} rows flagged ({flagged / rows:.1%}): {dict(by_flag) or 'none'}")


if __name__ == "__main__":
    main()
