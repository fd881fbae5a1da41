"""The table of issue 5's targets, on runs whose ratios are known."""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from profiling.grid import load_sweep
from profiling.records import Measurement, Run, RunEnd, RunHeader
from tests.synthetic import synthetic_environment, write_synthetic

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "benchmarks" / "peers_table.py"
CASES = load_sweep(ROOT / "data" / "sweeps" / "peers.toml").cases()
FA4 = "profiling.measure.peers:fa4"


def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("peers_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers_table"] = module
    spec.loader.exec_module(module)
    return module


TABLE = script()
# Milliseconds at N = 512 by backend; of all of them they grow with N, so that ratios stay.
MS: dict[str, float] = {
    "flash": 2.0,
    "flash_portable": 1.6,
    "flash_hopper": 1.0,
    "flash_hopper/deterministic": 1.25,
    "sdpa": 2.0,
    "sdpa_flash": 2.0,
    "sdpa_cudnn": 1.1,
    "sdpa_efficient": 4.0,
    "naive": 8.0,
    "naive_compiled": 6.0,
    "flex": 3.0,
}


def run(ms: Any = None, failed: dict[str, str] | None = None, flagged: Any = None, **more: float) -> Run:
    """A run of the sweep.

    `ms(case, name)` may say another latency at N = 512, `failed` are backends that did not run, with a
    reason; `flagged(case)` are those within what a clock takes; `more` has further backends with their ms.
    """
    known = MS | more
    measurements = []
    for case in CASES:
        name = TABLE.name_of(case)
        fields: dict[str, Any] = {"case": case, "measured_at": "2026-01-02T03:04:05Z"}
        reason = (failed or {}).get(name, "not installed" if name not in known else "")
        latency = ((ms(case, name) if ms else None) or known.get(name, 0.0)) * case.seq_len_q / 512
        flags = ("timer_limited",) if flagged and flagged(case) else ()
        if reason:
            fields |= {"status": "unsupported", "reason": reason}
        else:
            factors = {"wall": 2.0, "device": 1.0, "graph": 0.5}
            clocks = [
                {"clock": clock, "latency_p50_ms": latency * factor, "flags": flags}
                for clock, factor in factors.items()
            ]
            fields |= {"status": "ok", "clocks": clocks}
        measurements.append(Measurement.model_validate(fields))
    header = RunHeader(
        run_id="peers-run",
        created_at="2026-01-02T03:00:00Z",
        environment=synthetic_environment(),
        sweep={"name": "peers"},
        clocks=("wall", "device", "graph"),
        planned_cases=len(measurements),
    )
    return Run(
        header=header,
        measurements=tuple(measurements),
        environments=(header.environment,),
        end=RunEnd(status="finished", at="2026-01-02T04:00:00Z"),
    )


def found(of: Run) -> dict[tuple[str, str], Any]:
    """Each target's answer, by its text and our side."""
    return {(t.text, t.ours): TABLE.judge(of, t) for t in TABLE.TARGETS}


def test_ratios_are_those_that_were_put_in() -> None:
    """Theirs over ours, of the better of cuDNN and FlashAttention-4; on the graph clock the inverse."""
    rows = found(run())
    for text in ("forward, no mask", "forward, causal", "backward, default"):
        assert rows[text, "flash_hopper"].mean == pytest.approx(1.1)
        assert rows[text, "flash_hopper"].verdict == "aim"
    assert rows["backward, deterministic", "flash_hopper/deterministic"].mean == pytest.approx(0.88)
    assert rows["forward, each shape", "flash_portable"].mean == pytest.approx(1.25)
    assert rows["forward, each shape", "flash_portable"].verdict == "must"
    assert rows["N <= 512, 16 heads", "flash"].mean == pytest.approx(2 / 1.1)
    assert rows["N <= 512, 16 heads", "flash"].verdict == "missed"
    assert rows["N <= 512, 16 heads", "flash_hopper"].mean == pytest.approx(1 / 1.1)
    assert rows["N <= 512, 16 heads", "flash_hopper"].verdict == "aim"


def test_each_row_has_its_shapes_and_no_other() -> None:
    """12 a mask forward, 24 backward; the small ones, which have 16 heads in all, are a row of their own."""
    counts = {key: len(one.ratios) for key, one in found(run()).items()}
    assert counts["forward, no mask", "flash_hopper"] == counts["forward, causal", "flash_hopper"] == 12
    assert counts["forward, each shape", "flash_portable"] == 24
    assert counts["backward, default", "flash_hopper"] == counts["backward", "flash_portable"] == 24
    assert counts["N <= 512, 16 heads", "flash"] == 6
    for one in found(run()).values():
        assert all(TABLE.is_small(case) == (one.target.clock == "graph") for case in one.ratios)


def test_means_are_geometric_and_the_worst_shape_is_named() -> None:
    """A shape at which ours takes four times as long is one of twelve logarithms, and misses `each shape`."""

    def slow(case: Any, name: str) -> float | None:
        there = (case.seq_len_q, case.head_dim, case.causal, case.direction) == (2048, 128, False, "fwd")
        return 4 * MS[name] if there and name in ("flash_hopper", "flash_portable") else None

    rows = found(run(slow))
    one = rows["forward, no mask", "flash_hopper"]
    assert one.mean == pytest.approx(1.1 * math.exp(-math.log(4) / 12))
    assert one.worst[0].seq_len_q == 2048
    assert one.worst[1] == pytest.approx(1.1 / 4)
    assert one.verdict == "missed"
    each = rows["forward, each shape", "flash_portable"]
    assert each.mean > 1.15
    assert each.verdict == "missed"
    assert "0.31 (N = 2048, d = 128)" in TABLE.table(run(slow))


def test_the_better_peer_counts_at_each_shape() -> None:
    """FlashAttention-4 where it is faster than cuDNN; where it did not run, cuDNN alone."""

    def with_fa4(case: Any, name: str) -> float | None:
        return 0.5 if name == "sdpa_cudnn" and case.causal else None

    one = found(run(with_fa4))
    assert one["forward, causal", "flash_hopper"].mean == pytest.approx(0.5)
    assert one["forward, causal", "flash_hopper"].verdict == "missed"
    assert one["forward, no mask", "flash_hopper"].mean == pytest.approx(1.1)
    three = run(**{FA4: 0.8})
    assert found(three)["forward, no mask", "flash_hopper"].mean == pytest.approx(0.8)
    assert "better of cuDNN and FlashAttention-4" in TABLE.table(three)
    assert "FlashAttention-4" not in TABLE.table(run())


def test_what_did_not_run_is_said_and_not_averaged() -> None:
    """Ours or theirs failed: no ratio, the verdict says so, and the reason is printed."""
    rows = found(run(failed={"flash_hopper/deterministic": "no such kernel"}))
    one = rows["backward, deterministic", "flash_hopper/deterministic"]
    assert (one.ratios, len(one.lacking), one.verdict) == ({}, 24, "not measured")
    gone = run(failed={"flash_hopper/deterministic": "no such kernel", "sdpa_flash": "gone"})
    assert found(gone)["backward", "flash_portable"].verdict == "not measured"
    said = TABLE.lacking_text(gone)
    assert "flash_hopper/deterministic: 24 rows, such as unsupported: no such kernel" in said

    def first(case: Any) -> bool:
        return case.backend == "flash_hopper" and case.direction == "fwd" and case.head_dim == 64

    limited = found(run(flagged=lambda case: first(case) and case.seq_len_q == 8192))
    assert limited["forward, no mask", "flash_hopper"].verdict == "aim, without 1 of the shapes"
    assert len(limited["forward, no mask", "flash_hopper"].ratios) == 11
    assert limited["backward, default", "flash_hopper"].verdict == "aim"


def test_it_is_a_command(tmp_path: Path) -> None:
    """It prints the run, a row for each target, with `--shapes` every ratio; a missing file is a sentence."""
    path = tmp_path / "peers.jsonl"
    write_synthetic(run(), path)
    command = [sys.executable, str(SCRIPT)]
    printed = subprocess.run(
        [*command, str(path), "--shapes"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert printed.startswith("Run peers-run: NVIDIA H200, torch 2.11.0, triton 3.6.0, commit 0000000\n")
    rows = re.findall(r"^\| (?:forward|backward|N <=).*\| (aim|must|missed) \|$", printed, re.MULTILINE)
    assert len(rows) == len(TABLE.TARGETS)
    assert "| forward, no mask | `flash_hopper` | 64 | - |" in printed
    gone = subprocess.run([*command, str(tmp_path / "none.jsonl")], capture_output=True, text=True, cwd=ROOT)
    assert gone.returncode == 1
    assert "none.jsonl" in gone.stderr
    assert "Traceback" not in gone.stderr
