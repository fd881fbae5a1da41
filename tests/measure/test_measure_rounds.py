"""Rounds, on a clock that a test moves: who is visited when, and when it is enough."""

from __future__ import annotations

import itertools

import pytest
import torch

from profiling.case import Protocol
from profiling.measure.block import Bench
from profiling.measure.clocks import CpuTimer, Samples
from profiling.measure.messages import BlockRequest
from profiling.measure.telemetry import Telemetry

CLOCKS = ("wall", "pipelined")
BACKENDS = ("naive", "tiled", "sdpa_math")
STEADY = itertools.repeat(1.0)


class ScriptedTimer(CpuTimer):
    """Reads what a script says: an endless list of milliseconds for each (backend, clock)."""

    def __init__(self, script: dict[tuple[str, str], itertools.repeat[float] | itertools.cycle[float]]):
        self.script = script
        self.at = ""  # whose turn it is
        super().__init__()

    def _read(self, clock: str, samples: int) -> Samples:
        value = next(self.script.get((self.at, clock), STEADY))
        return Samples([value] * samples)

    def wall(self, call, samples, calls):
        """As the script says."""
        return self._read("wall", samples)

    def pipelined(self, call, samples, calls):
        """As the script says."""
        return self._read("pipelined", samples)


@pytest.fixture
def measured(make_case, no_grad, monkeypatch):
    """Measures the three backends in one block on a scripted timer: (timer, outcomes, stages)."""

    def measure(script=None, call_ms=1.0, seed=0, process=0, **protocol):
        timer = ScriptedTimer(script or {})
        plan = {"rounds": 9, "min_rounds": 3, "rel_stderr": 0.01, "memory": False, "warmup_ms": 0}
        bench = Bench(torch.device("cpu"), process, Protocol(**(plan | protocol), seed=seed), Telemetry(""))
        monkeypatch.setattr(Bench, "timer", timer)
        times = call_ms if isinstance(call_ms, dict) else dict.fromkeys(BACKENDS, call_ms)

        def warm(call, timer_, at_least_ms):
            return times[timer.at], 0.01

        monkeypatch.setattr("profiling.measure.visits.warm_up", warm)
        cases = [make_case(backend=name) for name in BACKENDS]

        def stage(index, name):
            timer.at = "" if index is None else cases[index].backend

        request = BlockRequest(cases=tuple(cases), clocks=CLOCKS, first=False)
        return timer, bench.measure(request, stage).outcomes

    return measure


def rounds_of(outcome, clock):
    """The rounds in which a case has samples on a clock."""
    return sorted({sample.round for sample in outcome.samples if sample.clock == clock})


def orders(outcomes):
    """The backends in the order in which each round visited them."""
    places = {}
    for name, outcome in zip(BACKENDS, outcomes, strict=True):
        for sample in outcome.samples:
            places.setdefault(sample.round, {})[sample.order] = name
    return [[places[number][place] for place in sorted(places[number])] for number in sorted(places)]


def test_what_agrees_gets_the_least_number_of_rounds(measured):
    """Steady clocks need no more than `min_rounds`."""
    _, outcomes = measured()
    for outcome, clock in itertools.product(outcomes, CLOCKS):
        assert rounds_of(outcome, clock) == [0, 1, 2]


def test_only_the_clock_that_does_not_settle_goes_on(measured):
    """One noisy clock of one case gets all rounds; its other clock, and its neighbours, are left alone."""
    _, (naive, tiled, math) = measured({("tiled", "wall"): itertools.cycle([1.0, 1.5])})
    assert rounds_of(tiled, "wall") == list(range(9))
    assert rounds_of(tiled, "pipelined") == [0, 1, 2]
    for outcome, clock in itertools.product((naive, math), CLOCKS):
        assert rounds_of(outcome, clock) == [0, 1, 2]


def test_noise_is_measured_until_its_mean_is_known(measured):
    """The standard error falls with the rounds: less noise needs fewer of them."""

    def needed(spread):
        script = {("naive", "wall"): itertools.cycle([1.0, 1.0 + spread])}
        _, (naive, *_) = measured(script, rounds=60, max_ms=1e6)
        return len(rounds_of(naive, "wall"))

    found = [needed(spread) for spread in (0.0, 0.05, 0.08, 0.12)]
    assert found == sorted(found)
    assert found[0] == 3
    assert 3 < found[1] < found[3] < 60


def test_a_long_call_is_visited_until_its_time_is_up(measured):
    """`max_ms` bounds what a case may take, but not below `min_rounds`."""
    noise = {(name, "wall"): itertools.cycle([1.0, 1.5]) for name in BACKENDS}
    lengths = {"naive": 1.0, "tiled": 20.0, "sdpa_math": 500.0}
    _, (short, longer, longest) = measured(noise, call_ms=lengths, max_ms=400.0)
    assert len(rounds_of(short, "wall")) == 9
    assert 3 < len(rounds_of(longer, "wall")) < 9
    assert len(rounds_of(longest, "wall")) == 3


def test_variants_are_interleaved_in_an_order_shuffled_anew(measured):
    """Each round visits every case once; the order differs between rounds, and between processes."""
    noise = {(name, "wall"): itertools.cycle([1.0, 1.5]) for name in BACKENDS}
    _, first = measured(noise, process=0)
    _, second = measured(noise, process=1)
    seen = orders(first)
    assert all(sorted(order) == sorted(BACKENDS) for order in seen)
    assert len({tuple(order) for order in seen}) > 1
    assert orders(second) != seen


def test_the_same_seed_gives_the_same_order(measured):
    """An order can be had again: it comes from the protocol's seed and the process."""
    noise = {(name, "wall"): itertools.cycle([1.0, 1.5]) for name in BACKENDS}
    assert orders(measured(noise, seed=5)[1]) == orders(measured(noise, seed=5)[1])
    assert orders(measured(noise, seed=5)[1]) != orders(measured(noise, seed=6)[1])


def test_a_round_of_one_leaves_nothing_out(measured):
    """With a single round allowed every clock still has its samples."""
    _, outcomes = measured(rounds=1, min_rounds=1)
    for outcome, clock in itertools.product(outcomes, CLOCKS):
        assert rounds_of(outcome, clock) == [0]
