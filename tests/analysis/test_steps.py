"""Attention's share of a model step and what its speed-up is worth, against the raw rows and Amdahl's law."""

from __future__ import annotations

import functools
import statistics

import pytest
from synthetic import synthetic_run

from profiling import step_table
from profiling.analysis.decision import Decision, decide
from profiling.analysis.deployment import Question, Shape
from profiling.analysis.steps import Steps, steps
from profiling.case import InputError
from profiling.devices import find_device
from profiling.model.step import Body
from profiling.records import Run
from profiling.store import frame

SHAPE = Shape("sixteen", 16, 16, 64, 64, causal=False)
BODY = Body(1024, 4096, 8, 32000)
DIRECTIONS = {"inference": ("fwd",), "training": ("fwd", "bwd")}


@functools.cache
def the_run() -> Run:
    """Three backends, both directions, naive out of memory at the end."""
    return synthetic_run(
        backends=("naive", "flash", "sdpa_flash"),
        seq_lens=(256, 1024, 4096, 16384),
        directions=("fwd", "bwd"),
        clocks=("device",),
        processes=1,
        rounds=3,
        oom_from={"naive": 16384},
    )


@pytest.fixture
def run() -> Run:
    """The same for all."""
    return the_run()


@functools.cache
def decided(workload: str, batches: tuple[int, int], seq_lens: tuple[int, int]) -> Decision:
    """The decision on the shape, and on a stranger of other heads."""
    shapes = (SHAPE, SHAPE._replace(name="stranger", heads=8, kv_heads=8))
    question = Question(shapes, batches, seq_lens, workload=workload)
    return decide(frame(the_run()), None, question, find_device("h200"))


def found(
    workload: str = "inference",
    efficiency: float = 0.5,
    batches: tuple[int, int] = (1, 1),
    seq_lens: tuple[int, int] = (256, 16384),
) -> Steps:
    """The steps of it."""
    decision = decided(workload, batches, seq_lens)
    out = steps(decision, frame(the_run()), {"sixteen": BODY}, find_device("h200"), efficiency)
    assert out is not None
    return out


def median_ms(run: Run, backend: str, n: int, directions: tuple[str, ...]) -> float | None:
    """The sum over directions of the median over all raw samples; None where it did not run."""
    total = 0.0
    for row in run.measurements:
        case = row.case
        if (case.backend, case.seq_len_k) == (backend, n) and case.direction in directions:
            if row.status != "ok":
                return None
            total += statistics.median(sample.ms for sample in row.samples)
    return total


@pytest.mark.parametrize("workload", DIRECTIONS)
def test_steps_recompute_from_raw_samples_and_flops(run: Run, workload: str) -> None:
    """Each N: medians of the raw samples, other layers as FLOPs over half the peak, shares and ratios."""
    out = found(workload)
    assert [step.seq_len for step in out.rows] == [256, 1024, 4096, 16384]
    peak = find_device("h200").bf16_tflops
    assert peak is not None
    for step in out.rows:
        n = step.seq_len
        weights = 4 * 1024 * 1024 + 3 * 1024 * 4096
        head = 2 * 1024 * 32000 * (n if workload == "training" else 1) / 8
        flops = (3 if workload == "training" else 1) * (2 * n * weights + head)
        assert step.est_other_ms == pytest.approx(flops / (0.5 * peak * 1e9))
        ways = {"naive": step.naive, "sdpa_flash": step.sdpa, "flash": step.candidate}
        for backend, way in ways.items():
            ms = median_ms(run, backend, n, DIRECTIONS[workload])
            assert (way is None) == (ms is None)
            if way is not None and ms is not None:
                assert (way.backend, way.latency_ms) == (backend, pytest.approx(ms))
                assert step.est_share(way) == pytest.approx(ms / (ms + step.est_other_ms))
                share, faster = step.est_share(way), way.latency_ms / step.candidate.latency_ms
                assert step.est_speedup(way) == pytest.approx(1 / (1 - share + share / faster))


def test_a_better_efficiency_makes_attention_a_larger_share() -> None:
    """Other layers take half the time at twice the rate; the measured part does not move."""
    slow, fast = found(efficiency=0.4).rows[2], found(efficiency=0.8).rows[2]
    assert fast.est_other_ms == pytest.approx(slow.est_other_ms / 2)
    assert fast.candidate == slow.candidate
    assert fast.est_share(fast.candidate) > slow.est_share(slow.candidate)


def test_only_what_was_measured_at_its_own_size_has_a_step() -> None:
    """Between two sizes or beyond the asked contexts there is none; a model without a body is named."""
    out = found(batches=(1, 2), seq_lens=(1024, 4096))
    assert {(step.batch, step.seq_len) for step in out.rows} == {(1, 1024), (1, 4096)}
    assert out.lacking == ("stranger",)


def test_without_a_peak_there_is_no_model() -> None:
    """An unknown device, and a dtype without a peak."""
    decision = decided("inference", (1, 1), (256, 16384))
    assert steps(decision, frame(the_run()), {"sixteen": BODY}, None) is None
    device = find_device("h200").model_copy(update={"bf16_tflops": None})
    assert steps(decision, frame(the_run()), {"sixteen": BODY}, device) is None


@pytest.mark.parametrize("efficiency", [0.0, -1.0, 1.01, float("nan")])
def test_an_efficiency_that_is_none_is_refused(efficiency: float) -> None:
    """One sentence, with what is allowed."""
    with pytest.raises(InputError, match="above 0 and at most 1"):
        found(efficiency=efficiency)


# ------------------------------------------------------------------------------------------- tables


def test_one_step_a_model_is_shown_at_the_longest_that_all_ran() -> None:
    """16384 did not run with naive, so 4096 stands for the model; an asked N is that one."""
    out = found()
    (step,) = step_table.shown(out)
    assert step.seq_len == 4096
    assert [step.seq_len for step in step_table.shown(out, 16384)] == [16384]
    assert step_table.shown(out, 17) == []


def test_texts_and_digits_agree() -> None:
    """The table for people rounds the columns with every digit; what did not run is empty, not 0."""
    out = found()
    numbers = step_table.numbers(out)
    assert len(numbers) == 4
    assert numbers["naive_attention_ms"].isna().tolist() == [False, False, False, True]
    assert numbers["est_speedup_over_naive"].isna().tolist() == [False, False, False, True]
    modelled = {
        name for name in numbers.columns if name.endswith(("_share", "other_ms")) or "speedup" in name
    }
    assert all(name.startswith("est_") for name in modelled)
    text = step_table.table(step_table.shown(out), "flash").iloc[0]
    assert text["est. step over naive"] == step_table.units.ratio_text(numbers["est_speedup_over_naive"][2])
    assert text["est. share, flash"] == step_table.units.percent_text(numbers["est_candidate_share"][2])
    last = step_table.table(step_table.shown(out, 16384), "flash").iloc[0]
    assert last["naive, one layer"] == last["est. step over naive"] == step_table.units.UNKNOWN


def test_the_sentence_and_legend_say_what_is_modelled() -> None:
    """Range of shares and of the step's speed-up; the assumption, and what is left out."""
    out = found()
    said = step_table.sentence(step_table.shown(out), "flash")
    assert said.startswith("By this model attention is ")
    assert step_table.sentence(step_table.shown(out, 16384), "flash") == ""
    legend = step_table.legend(out)
    assert "at 50 % of the 989 TFLOP/s of H200" in legend
    assert "left out: stranger." in legend
