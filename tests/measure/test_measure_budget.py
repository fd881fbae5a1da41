"""The budget: short calls are repeated, long ones rationed, and a sweep ends in minutes."""

import math
import statistics
from datetime import datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from profiling.case import CLOCKS, Case, Protocol
from profiling.grid import Sweep
from profiling.measure import budget
from profiling.paths import DATA_DIR
from profiling.store import load_run

CALL_MS = st.floats(1e-5, 1e5, allow_nan=False)


@given(clock=st.sampled_from(CLOCKS), call_ms=CALL_MS, samples=st.integers(1, 20))
def test_a_visit_takes_at_least_one_sample_of_one_call(clock, call_ms, samples):
    """Whatever a call costs, a visit yields a sample, and never more than the protocol asks for."""
    plan = budget.visit(clock, call_ms, samples)
    assert 1 <= plan.samples <= samples
    assert 1 <= plan.calls <= budget.MAX_PIPELINED


@given(call_ms=st.floats(0.001, 5.0))
def test_short_calls_fill_a_sample(call_ms):
    """A sample lasts `SAMPLE_MS` or holds as many calls as are allowed."""
    plan = budget.visit("wall", call_ms, 3)
    assert plan.calls == budget.MAX_CALLS or plan.calls * call_ms >= budget.SAMPLE_MS


def test_a_pipeline_is_more_than_one_call():
    """`pipelined` over a single call would be `wall`."""
    assert budget.visit("pipelined", 2.0, 3).calls == 3
    assert budget.visit("pipelined", 0.01, 3).calls == budget.MAX_PIPELINED
    assert budget.visit("pipelined", 500.0, 3).calls == 1


@given(call_ms=CALL_MS, rounds=st.integers(1, 20))
def test_rounds_are_between_two_and_the_protocols(call_ms, rounds):
    """Long calls are visited less often, but twice at least where the protocol allows it."""
    protocol = Protocol(rounds=rounds)
    found = budget.rounds(("wall", "device", "graph"), call_ms, protocol)
    assert min(rounds, protocol.min_rounds) <= found <= rounds


def test_rounds_fall_with_the_length_of_a_call():
    """A call of 10 µs gets all rounds, one of a second the least."""
    protocol = Protocol(rounds=10, min_rounds=3)
    assert budget.rounds(("wall",), 0.01, protocol) == 10
    assert budget.rounds(("wall",), 1000.0, protocol) == 3


def test_a_clock_settles_when_its_rounds_agree():
    """Not before the least number of rounds, then by the standard error of their medians."""
    protocol = Protocol(rounds=10, min_rounds=3, rel_stderr=0.01)
    assert not budget.settled([1.0, 1.0], protocol)
    assert budget.settled([1.0, 1.0, 1.0], protocol)
    assert not budget.settled([1.0, 1.1, 0.9], protocol)
    assert budget.settled([1.0, 1.1, 0.9] * 40, protocol)
    assert budget.settled([1.0], Protocol(rounds=1))


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=12), st.floats(1e-3, 1e3))
def test_whether_it_has_settled_does_not_depend_on_the_unit(medians, scale):
    """The rule is relative: a clock in seconds settles when one in milliseconds does."""
    protocol = Protocol(rel_stderr=0.02)
    away = statistics.stdev(medians) / math.sqrt(len(medians)) / statistics.fmean(medians) - 0.02
    assume(abs(away) > 1e-9)
    assert budget.settled(medians, protocol) == budget.settled([scale * x for x in medians], protocol)


def test_a_call_is_warm_when_it_gets_no_faster():
    """Six calls at least; falling times are a cold GPU, noise around a level is not."""
    assert not budget.warm([1.0] * 5)
    assert budget.warm([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert not budget.warm([3.0, 2.5, 2.0, 1.6, 1.3, 1.1])
    assert budget.warm([1.0, 1.2, 1.1, 1.15, 1.05, 1.3])


def test_rotation_exceeds_l2_twice():
    """Small inputs are copied until all copies together are twice the L2; large ones not at all."""
    l2 = 60 * 2**20
    assert budget.rotating_copies(2**20, l2, 0.05) == 120
    assert budget.rotating_copies(2 * l2, l2, 0.05) == 1
    assert budget.rotating_copies(0, l2, 1e-9) == budget.MAX_COPIES


def test_a_graph_of_many_launches_has_few_copies():
    """Where a call takes long to enqueue, a graph of it is kept short."""
    assert budget.rotating_copies(1, 2**30, 20.0) == 10
    assert budget.rotating_copies(1, 2**30, 1e6) == 1
    assert budget.hot_copies(0.03, 0.01) == 100
    assert budget.hot_copies(100.0, 0.01) == 1


def test_a_replay_of_many_calls_is_sampled_once():
    """A mean over many calls needs no repetition in its visit; a long single call gets none either."""
    assert budget.replays(100, 2.0, 3) == 1
    assert budget.replays(2, 1.0, 3) == 3
    assert budget.replays(1, 80.0, 3) == 1


def test_planned_clocks():
    """A CPU has two clocks; a sweep that names none of them gets both."""
    assert budget.planned_clocks(Protocol(clocks=("wall", "device")), "cpu") == ("wall",)
    assert budget.planned_clocks(Protocol(clocks=("device",)), "cpu") == ("wall", "pipelined")
    assert budget.planned_clocks(Protocol(clocks=("device", "graph")), "cuda:0") == ("device", "graph")


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_cost_grows_with_the_work(kind):
    """A longer sequence, a backward and more processes are each expected to cost more."""

    def cost(n, direction="fwd", processes=1):
        case = Case(
            backend="naive",
            direction=direction,
            heads=16,
            kv_heads=16,
            seq_len_q=n,
            seq_len_k=n,
            head_dim=64,
            head_dim_v=64,
        )
        return budget.cost_s(case, Protocol(processes=processes), ("wall",), kind)

    assert 0 < cost(64) < cost(4096) < cost(4096, "bwd") < cost(4096, "bwd", processes=3)


@pytest.mark.parametrize("name", ["standard", "peers", "features", "models", "decode", "tiles"])
def test_the_guess_is_about_what_the_committed_run_took(name):
    """Of attention, the cases that ran, from the header to the last row: within a quarter."""
    run = load_run(DATA_DIR / "samples" / f"h200-{name}.jsonl")
    ran = [row for row in run.measurements if row.status != "unsupported"]
    last = max(datetime.fromisoformat(row.measured_at) for row in ran)
    took_s = (last - datetime.fromisoformat(run.header.created_at)).total_seconds()
    protocol = Sweep.model_validate(run.header.sweep).protocol
    guess_s = sum(budget.cost_s(row.case, protocol, run.header.clocks, "cuda") for row in ran)
    assert 0.8 < guess_s / took_s < 1.25
