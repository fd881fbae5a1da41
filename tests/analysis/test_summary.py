"""The overview's numbers are those of the engine and of the rows, and its headline says nothing else."""

from __future__ import annotations

import dataclasses
import math

import pytest
from synthetic import Law, failed_measurement, synthetic_case, synthetic_run

from profiling.analysis.crossover import crossovers
from profiling.analysis.summary import SPEEDUP_AT, counts, overview
from profiling.store import frame, samples_frame


@pytest.fixture(scope="module")
def run() -> object:
    """Two passes, two masks; naive stops at 4096, flash at 16384."""
    return synthetic_run(
        seq_lens=(64, 256, 1024, 4096, 16384),
        directions=("fwd", "bwd"),
        causals=(False, True),
        oom_from={"naive": 4096, "flash": 16384},
    )


def test_rows_hold_the_engine_s_answers(run: object) -> None:
    """One row a shape; each clock and memory as `crossovers` gives them; speed-ups are its points."""
    table, samples = frame(run), samples_frame(run)
    seen = overview(table, samples)
    assert len(seen.rows) == 4
    assert seen.clocks == ("wall", "device")
    assert seen.clock == "device"
    for clock in seen.clocks:
        assert [row.by_clock[clock] for row in seen.rows] == crossovers(table, samples, clock=clock)
    assert [row.memory for row in seen.rows] == crossovers(table, metric="memory")
    for row in seen.rows:
        assert row.slice.clock == row.slice.mem_method == ""
        at_1k, at_4k, at_16k = row.speedups
        ratios = {p.seq_len: p.ratio for p in row.by_clock["device"].points}
        assert at_1k.ratio == ratios[1024]
        assert (at_4k.ratio, at_4k.reason) == (None, "naive: oom")
        assert (at_16k.ratio, at_16k.reason) == (None, "naive: oom, flash: oom")
        assert tuple(each.seq_len for each in row.speedups) == SPEEDUP_AT
        assert row.largest == {"naive": 1024, "flash": 4096}


def test_speedups_recompute_from_raw_rows(run: object) -> None:
    """At 1024 the ratio is that of the two medians, within the noise of 1 %."""
    seen = overview(frame(run), samples_frame(run))
    for row in seen.rows:
        p50 = {}
        for m in run.measurements:
            same = (m.case.direction, m.case.causal) == (row.slice.direction, row.slice.causal)
            if same and m.case.seq_len_q == 1024 and m.status == "ok":
                p50[m.case.backend] = next(c.latency_p50_ms for c in m.clocks if c.clock == "device")
        assert row.speedups[0].ratio == pytest.approx(p50["naive"] / p50["flash"], rel=0.02)


def test_cases_are_counted_once(run: object) -> None:
    """By status and by flag, over all backends and tiles, a case on two clocks being one."""
    flagged = tuple(
        m.model_copy(update={"flags": ("noisy", "thermal") if k == 0 else ("noisy",)}) if k < 3 else m
        for k, m in enumerate(run.measurements)
    )
    seen = overview(frame(dataclasses.replace(run, measurements=flagged)))
    assert seen.n_cases == 40
    assert seen.n_by_status == {"ok": 28, "oom": 12}
    assert seen.n_by_flag == {"noisy": 3, "thermal": 1}
    assert counts(frame([])) == ({}, {}, 0)


def test_the_headline_names_clock_passes_and_memory(run: object) -> None:
    """Both passes cross, and memory is always less: the sentence says it with numbers of the rows."""
    seen = overview(frame(run), samples_frame(run))
    assert seen.headline.startswith("On the device clock, flash against naive: forward ahead from N* = ")
    assert "; backward ahead from N* = " in seen.headline
    assert "in both shapes" in seen.headline
    assert "In peak memory it is ahead at every N" in seen.headline
    fwd = sorted(
        row.by_clock["device"].crossover_seq_len for row in seen.rows if row.slice.direction == "fwd"
    )
    assert f"N* = {round(fwd[0])} to {round(fwd[1])}" in seen.headline.replace("\u00a0", "")


def test_the_headline_of_a_single_shape_has_its_interval() -> None:
    """One crossing is told with its interval; passes with the same answer share a clause."""
    run = synthetic_run()
    seen = overview(frame(run), samples_frame(run), clock="wall")
    low, high = (round(n) for n in seen.rows[0].by_clock["wall"].interval)
    assert f"[{low}, {high}]" in seen.headline.replace("\u00a0", "")
    fast = {"naive": Law(0.1, 2e-9, 4.0, 128.0), "flash": Law(0.01, 0.5e-9, token_bytes=132.0)}
    run = synthetic_run(laws=fast, directions=("fwd", "bwd"))
    assert (
        "forward and backward ahead at every N (64 to 4\u00a0096)"
        in overview(frame(run), samples_frame(run)).headline
    )


def test_the_headline_tells_verdicts_apart() -> None:
    """A shape that is behind is not hidden among those that are ahead."""
    run = synthetic_run(seq_lens=(64, 128), head_dims=(64, 128))
    slow = synthetic_run(seq_lens=(4096, 8192), head_dims=(64,), batch_heads=((4, 16),))
    both = dataclasses.replace(run, measurements=(*run.measurements, *slow.measurements))
    seen = overview(frame(both), samples_frame(both))
    assert "in 1 of 3 shapes" in seen.headline
    assert "behind at every N (64 to 8\u00a0192) in 2 of 3 shapes" in seen.headline


def test_nothing_to_compare_is_said() -> None:
    """No rows, one backend alone, or no common N: a sentence, not an error."""
    alone = synthetic_run(backends=("flash",), seq_lens=(64,))
    apart = synthetic_run(seq_lens=())
    apart = dataclasses.replace(
        apart,
        measurements=(
            failed_measurement(synthetic_case("naive", 64)),
            failed_measurement(synthetic_case("flash", 64)),
        ),
    )
    for table in (frame([]), frame(alone), frame(apart)):
        seen = overview(table)
        assert seen.headline == "No N has both naive and flash, so there is nothing to compare."
        assert all(
            each.ratio is None or math.isfinite(each.ratio) for row in seen.rows for each in row.speedups
        )


def test_a_cpu_run_answers_on_the_wall_clock() -> None:
    """Without GPU events the caller's time is the default."""
    from synthetic import synthetic_environment

    run = synthetic_run(
        backends=("naive", "sdpa_flash"), environment=synthetic_environment("some CPU", "cpu")
    )
    seen = overview(frame(run), samples_frame(run), candidate="sdpa_flash")
    assert seen.clock == "wall"
    assert seen.clocks == ("wall", "pipelined")
    assert "sdpa_flash against naive" in seen.headline


def test_a_flag_of_one_clock_is_a_flag_of_its_case() -> None:
    """Noise on the wall clock alone counts once, whichever clock comes first."""
    run = synthetic_run(seq_lens=(64,), backends=("flash",))
    (m,) = run.measurements
    clocks = (m.clocks[0], m.clocks[1].model_copy(update={"flags": ("noisy",)}))
    flagged = m.model_copy(update={"clocks": clocks, "flags": ("thermal",)})
    assert counts(frame(dataclasses.replace(run, measurements=(flagged,))))[1] == {"noisy": 1, "thermal": 1}
