"""One GPU against all GPUs of a host through ray: the same sweep, wall-clock time and rows.

    python tests/benchmarks/compare_executors.py SWEEP [--out DIR] [--git-commit SHA]

Runs `flashscope run SWEEP` on cuda:0, then with `--executor ray`, each with an empty Triton cache of its
own, so that neither profits from what the other compiled. Prints the ratio of the two times, commands as a
whole, and whether the rows are the same set of cases; the runs stay in DIR (a new folder of the temporary
one by default) as `one-gpu` and `ray`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from profiling.records import Run
from profiling.store import load_run


def measure(sweep: Path, out: Path, run_id: str, more: list[str]) -> tuple[Run, float]:
    """The run, and the seconds of its command."""
    with tempfile.TemporaryDirectory(prefix="triton-") as cache:
        begin = time.perf_counter()
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
        return load_run(out / f"{run_id}.jsonl"), time.perf_counter() - begin


def main() -> None:
    """Run twice and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--git-commit")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="executors-"))
    commit = ["--git-commit", options.git_commit] if options.git_commit else []
    one, one_s = measure(options.sweep, out, "one-gpu", ["--device", "cuda:0", *commit])
    both, both_s = measure(options.sweep, out, "ray", ["--executor", "ray", *commit])
    for name, run, seconds in (("one GPU", one, one_s), ("ray", both, both_s)):
        counts = Counter(row.status for row in run.measurements)
        rows = Counter(row.environment for row in run.measurements)
        print(f"{name}: {seconds:.0f} s, {dict(counts)}, rows by environment {dict(rows)}")
    cases = [{row.case for row in run.measurements} for run in (one, both)]
    print(f"cases: {len(cases[0])} and {len(cases[1])}, {len(cases[0] ^ cases[1])} in one of them only")
    print(f"ray takes {both_s / one_s:.3f} of one GPU's time; the runs are in {out}")


if __name__ == "__main__":
    main()
