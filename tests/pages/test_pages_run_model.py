"""Claims about a run under way: its pace, the block at hand, the GPU's trace, and who waits for whom."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from page_runs import cpu_run, gpu_run

from profiling.figures import gpu_trace
from profiling.grid import Sweep
from profiling.measure.budget import cost_s
from profiling.pages import run_model
from profiling.pages.jobs import Job
from profiling.records import GpuState, Run

NOW = datetime(2026, 1, 1, 0, 1, 0, tzinfo=UTC)
SWEEP = Sweep.model_validate(
    {
        "name": "x",
        "group": [
            {
                "backends": ["naive", "tiled"],
                "dtype": ["fp32"],
                "heads": [4],
                "seq_len": [64, 128, 256],
                "head_dim": [64],
            }
        ],
    }
)


def begun(n: int, *, sweep: Any = None, at: str = "2026-01-01T00:00:30Z", **header: Any) -> Run:
    """The first rows of a run, measured at one time."""
    run = cpu_run()
    changes = {"sweep": (sweep or SWEEP).model_dump(mode="json"), "planned_cases": 6, **header}
    rows = tuple(row.model_copy(update={"measured_at": at}) for row in run.measurements[:n])
    return dataclasses.replace(run, header=run.header.model_copy(update=changes), measurements=rows, end=None)


def test_the_pace_weighs_cases_by_what_they_cost() -> None:
    """Two of six cases in a minute: what is left takes as much longer as its cases are guessed to cost."""
    run = begun(2)
    assert [row.case for row in run.measurements] == SWEEP.cases()[:2]
    pace = run_model.pace(run, "2026-01-01T00:00:00Z", 6, NOW)
    costs = [cost_s(case, SWEEP.protocol, ("wall",), "cpu") for case in SWEEP.cases()]
    assert pace.elapsed_s == 60.0
    assert pace.per_minute == 2.0
    assert pace.left_s == pytest.approx(60 * sum(costs[2:]) / sum(costs[:2]), rel=1e-9)


def test_only_rows_of_this_part_count_for_the_pace() -> None:
    """A run that was gone on with a minute ago has not been measuring since it was created."""
    run = begun(4)
    before = [row.model_copy(update={"measured_at": "2025-12-01T00:00:00Z"}) for row in run.measurements[:2]]
    run = dataclasses.replace(run, measurements=(*before, *run.measurements[2:]))
    pace = run_model.pace(run, "2026-01-01T00:00:00Z", 6, NOW)
    assert pace.per_minute == 2.0


@pytest.mark.parametrize(
    ("run", "began", "planned"),
    [
        (begun(0), "2026-01-01T00:00:00Z", 6),
        (begun(2), "2026-01-01T00:00:00Z", None),
        (begun(2, at="2025-01-01T00:00:00Z"), "2026-01-01T00:00:00Z", 6),
    ],
)
def test_without_a_row_or_a_plan_there_is_no_estimate(run: Run, began: str, planned: int | None) -> None:
    """Nothing done yet, nothing planned: only the time so far is told."""
    assert run_model.pace(run, began, planned, NOW) == run_model.Pace(60.0)
    assert run_model.pace(run, "nonsense", planned, NOW) == run_model.Pace(None)
    assert run_model.pace_text(run_model.Pace(60.0)) == ", 1 minute so far"


def test_a_part_of_a_sweep_is_estimated_by_its_count() -> None:
    """Where the header's sweep is not what was planned, or cannot be read, every case counts alike."""
    for run in (
        begun(2, planned_cases=4),
        begun(2, planned_cases=4, sweep=SWEEP.model_copy(update={"name": "A B"})),
    ):
        assert run_model.pace(run, "2026-01-01T00:00:00Z", 4, NOW).left_s == pytest.approx(60.0)
        assert run_model.at_hand(run) == ""


def test_the_block_at_hand_is_the_first_without_rows() -> None:
    """The file says what was measured; what comes next is measured now."""
    assert run_model.at_hand(begun(2)) == "naive, tiled at fwd fp32 B1 H4 N128 d64, 2 cases"
    assert run_model.at_hand(begun(6)) == ""


def test_the_gpus_trace_is_in_minutes_and_in_order() -> None:
    """Rows without a state, or without a time, have no place in it; a CPU has no trace."""
    run = gpu_run(seq_lens=(64,), directions=("fwd",), causals=(False,))
    states = [
        ("2026-01-01T00:02:00Z", GpuState(sm_clock_mhz=1980, power_w=650.5, temperature_c=60)),
        ("2026-01-01T00:00:00Z", GpuState(sm_clock_mhz=1200)),
        ("nonsense", GpuState(sm_clock_mhz=1)),
        ("2026-01-01T00:01:00Z", None),
    ]
    rows = [
        row.model_copy(update={"measured_at": at, "gpu_after": gpu})
        for row, (at, gpu) in zip(run.measurements, states, strict=True)
    ]
    found = run_model.moments(rows)
    assert [(m.minute, m.sm_clock_mhz, m.power_w) for m in found] == [(0, 1200, None), (2, 1980, 650.5)]
    fig = gpu_trace.figure(found)
    assert [list(trace.y) for trace in fig.data] == [[1200, 1980], [650.5], [60]]
    only = gpu_trace.figure(found[:1])
    assert len(only.data) == 1
    on_cpu = [row.model_copy(update={"gpu_after": None}) for row in cpu_run().measurements]
    assert run_model.moments(on_cpu) == []
    assert len(gpu_trace.figure([]).data) == 0


def test_the_trace_is_thinned_to_what_can_be_seen() -> None:
    """Of thousands of moments some hundred are drawn, the last one among them."""
    many = [gpu_trace.Moment(float(i), "c", i) for i in range(10_001)]
    kept = gpu_trace.thinned(many)
    assert len(kept) <= gpu_trace.MOST
    assert kept[-1] == many[-1]
    assert [m.minute for m in kept] == sorted(m.minute for m in kept)


@pytest.mark.parametrize(
    ("argv", "kind", "device"),
    [
        (("run", "x.toml", "--device", "cuda:1"), "cuda", "cuda:1"),
        (("run", "x.toml", "--device=cpu"), "cpu", "cpu"),
        (("run", "x.toml"), "cuda", "cuda:0"),
        (("run", "x.toml", "--device", "evil; rm"), "cpu", "cpu"),
    ],
)
def test_a_run_goes_on_on_its_own_device(argv: tuple[str, ...], kind: str, device: str) -> None:
    """The device of the command it was started by, else the first of its kind."""
    run = cpu_run()
    environment = run.environments[0].model_copy(update={"argv": argv, "device_kind": kind})
    assert run_model.device_of(dataclasses.replace(run, environments=(environment,))) == device


def test_who_waits_is_said() -> None:
    """The run that has the device, and the others that want it."""
    job = Job("b", 1, "cpu", "")
    assert run_model.queue_text(job, ["a"], []) == "b waits for cpu: a has it. It begins when that has ended."
    assert "a run started elsewhere has it" in run_model.queue_text(job, [], [])
    assert run_model.queue_text(job, ["a"], ["c", "d"]).endswith("So do c, d: one begins after the other.")
