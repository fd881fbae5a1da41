"""One GPU against all GPUs of a host through ray: the same sweep, wall-clock time and rows.

    python tests/benchmarks/compare_executors.py SWEEP [--out DIR] [--run-id ID] [--git-commit SHA]

Runs `flashscope run SWEEP` on cuda:0, then with `--executor ray`, each with an empty Triton cache of its
own, so that neither profits from what the other compiled. Prints, of each, the seconds of the command, of its
start until the file was begun and until the first rows were there (whole seconds: files have no finer times),
and of what came after; the ratio of the two commands, and of what came after the first rows; and whether the
rows are the same set of cases. The runs stay in DIR (a new folder of the temporary one by default) as ID
(`one-gpu` by default) and `ray`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from profiling.records import Run
from profiling.store import load_run


class Timed(NamedTuple):
    """A run, and seconds since its command began: until the header, the first rows, and the end."""

    run: Run
    header_s: float
    first_rows_s: float
    took_s: float

    @property
    def rest_s(self) -> float:
        """Seconds from the first rows to the end."""
        return self.took_s - self.first_rows_s


def measure(sweep: Path, out: Path, run_id: str, more: list[str]) -> Timed:
    """The run of a command, timed."""
    with tempfile.TemporaryDirectory(prefix="triton-") as cache:
        began, begin = datetime.now(UTC), time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "profiling",
            "run",
            str(sweep),
            "--out",
            str(out),
            "--run-id",
            run_id,
        ]
        subprocess.run([*command, *more], check=True, env={**os.environ, "TRITON_CACHE_DIR": cache})
        took_s = time.perf_counter() - begin
    run = load_run(out / f"{run_id}.jsonl")
    rows_at = min(row.measured_at for row in run.measurements)
    header_s, rows_s = (
        (datetime.fromisoformat(at) - began).total_seconds() for at in (run.header.created_at, rows_at)
    )
    return Timed(run, header_s, rows_s, took_s)


def main() -> None:
    """Run twice and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--run-id", default="one-gpu")
    parser.add_argument("--git-commit")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="executors-"))
    commit = ["--git-commit", options.git_commit] if options.git_commit else []
    one = measure(options.sweep, out, options.run_id, ["--device", "cuda:0", *commit])
    both = measure(options.sweep, out, "ray", ["--executor", "ray", *commit])
    for name, timed in (("one GPU", one), ("ray", both)):
        counts = Counter(row.status for row in timed.run.measurements)
        rows = Counter(row.environment for row in timed.run.measurements)
        print(
            f"{name}: {timed.took_s:.0f} s (file begun after {timed.header_s:.0f} s, first rows after "
            f"{timed.first_rows_s:.0f} s, then {timed.rest_s:.0f} s), {dict(counts)}, "
            f"rows by environment {dict(rows)}"
        )
    cases = [{row.case for row in timed.run.measurements} for timed in (one, both)]
    print(f"cases: {len(cases[0])} and {len(cases[1])}, {len(cases[0] ^ cases[1])} in one of them only")
    print(
        f"ray takes {both.took_s / one.took_s:.3f} of one GPU's time, after the first rows "
        f"{both.rest_s / one.rest_s:.3f}; the runs are in {out}"
    )


if __name__ == "__main__":
    main()
