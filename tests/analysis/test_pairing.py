"""Pairing: what two backends share within a round cancels, and a timer's step is no difference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import Law, synthetic_run

from profiling.analysis.crossover import Crossover, crossovers
from profiling.analysis.pairing import timer_step
from profiling.records import Run, Sample
from profiling.store import frame, samples_frame


def only(found: list[Crossover]) -> Crossover:
    """The single crossover."""
    assert len(found) == 1
    return found[0]


def measured(run: Run) -> list[Crossover]:
    """The crossovers of a run with its samples."""
    return crossovers(frame(run), samples_frame(run))


def quantised(run: Run, step_ms: float) -> Run:
    """The run as a clock of that step would have seen it."""

    def tick(sample: Sample) -> Sample:
        return sample.model_copy(update={"ms": max(1, round(sample.ms / step_ms)) * step_ms})

    changed = []
    for m in run.measurements:
        samples = tuple(tick(s) for s in m.samples)
        clocks = tuple(
            c.model_copy(
                update={"latency_p50_ms": float(np.median([s.ms for s in samples if s.clock == c.clock]))}
            )
            for c in m.clocks
        )
        changed.append(m.model_copy(update={"samples": samples, "clocks": clocks}))
    return dataclasses.replace(run, measurements=tuple(changed))


def test_a_difference_of_one_timer_step_is_no_difference() -> None:
    """With a 1.024 µs event clock two 5 µs kernels one tick apart are alike, however often they ran."""
    laws = {"naive": Law(0.0049, 2e-9), "flash": Law(0.0060, 0.5e-9)}
    run = synthetic_run(
        laws=laws, seq_lens=(16, 32, 1024, 2048), round_noise=0.002, process_noise=0.0, processes=5
    )
    fine = only(measured(run))
    coarse = only(measured(quantised(run, 0.001024)))
    assert [p.sign for p in fine.points] == [-1, -1, 1, 1]
    assert [p.sign for p in coarse.points] == [0, 0, 1, 1]
    assert coarse.verdict == "ambiguous"


def test_the_timer_step_is_found_only_where_there_is_one() -> None:
    """Multiples of a tick betray it; a continuous clock, or a handful of values, do not."""
    rng = np.random.default_rng(0)
    ticks = rng.integers(5, 40, 200) * 0.000512
    assert timer_step(ticks) == pytest.approx(0.000512)
    assert timer_step(ticks.astype(np.float32).astype(np.float64)) == pytest.approx(0.000512, rel=1e-4)
    assert timer_step(rng.uniform(0.005, 0.02, 200)) is None
    assert timer_step(np.array([0.5, 0.5, 0.6])) is None
    assert timer_step(np.array([])) is None


def test_one_disturbed_round_moves_nothing() -> None:
    """A hundredfold hiccup in one round of one process leaves the crossing where it was."""
    run = synthetic_run()
    clean = only(measured(run))
    changed = []
    for m in run.measurements:
        hit = m.case.backend == "naive" and m.case.seq_len_q == 512
        samples = tuple(
            s.model_copy(update={"ms": s.ms * 100}) if hit and (s.process, s.round) == (0, 0) else s
            for s in m.samples
        )
        changed.append(m.model_copy(update={"samples": samples}))
    disturbed = only(measured(dataclasses.replace(run, measurements=tuple(changed))))
    assert disturbed.verdict == "clear"
    assert disturbed.crossover_seq_len == pytest.approx(clean.crossover_seq_len, rel=0.02)


def test_rounds_are_paired_not_pooled() -> None:
    """A drift that both backends share within a round cancels: the interval stays narrow."""
    rng = np.random.default_rng(5)
    drift = np.exp(rng.normal(0, 0.3, (4, 8)))
    run = synthetic_run(processes=4, rounds=8, round_noise=0.005, process_noise=0.0)
    drifting = tuple(
        m.model_copy(
            update={
                "samples": tuple(
                    s.model_copy(update={"ms": s.ms * drift[s.process, s.round]}) for s in m.samples
                )
            }
        )
        for m in run.measurements
    )
    steady = only(measured(run))
    drifted = only(measured(dataclasses.replace(run, measurements=drifting)))
    assert drifted.verdict == "clear"
    assert drifted.interval == pytest.approx(steady.interval, rel=1e-6)


def test_uneven_rounds_and_processes_are_used_as_far_as_they_pair() -> None:
    """A worker that died early leaves fewer rounds; what paired counts, what did not is passed over."""
    run = synthetic_run(processes=4, rounds=6)
    cut = tuple(
        m.model_copy(
            update={
                "samples": tuple(
                    s
                    for s in m.samples
                    if not (m.case.seq_len_q == 512 and s.process == 3 and s.round > 1)
                    and not (m.case.seq_len_q == 1024 and s.process == 2)
                    and not (m.case.backend == "flash" and s.round == 0)
                )
            }
        )
        for m in run.measurements
    )
    found = only(measured(dataclasses.replace(run, measurements=cut)))
    assert found.verdict == "clear"
    assert found.processes == 3


def test_a_point_without_pairs_leaves_brackets_only() -> None:
    """If one N has a summary but no samples, there is no interval to report."""
    run = synthetic_run()
    bare = tuple(
        m.model_copy(update={"samples": ()}) if m.case.seq_len_q == 64 and m.case.backend == "flash" else m
        for m in run.measurements
    )
    found = only(measured(dataclasses.replace(run, measurements=bare)))
    assert found.bracket_only
    assert found.interval is None
    assert found.verdict == "clear"
