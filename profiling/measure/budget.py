"""How many calls, samples, rounds and copies a case gets, and what that costs. Pure; no torch.

A sweep of 500 cases must end in minutes, so a case is given what its spread needs and no more: calls
shorter than `SAMPLE_MS` are repeated until a sample lasts that long, a clock whose rounds agree is left
alone, and calls that are long by themselves are visited in fewer rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from profiling.case import CPU_CLOCKS, DIRECTIONS, Case, Protocol

SAMPLE_MS = 0.5  # a sample of a short call averages over as many calls as fill this
VISIT_MS = 10.0  # the samples of one clock in one visit should not take longer
WARM_CALLS, WARM_GAIN = 6, 0.02
WARM_FACTOR = 10  # a warm-up may last this many times as long as the protocol asks at least
MAX_CALLS = 10
MAX_DEVICE_CALLS = 50
AHEAD_MS = 20.0  # host time that may be enqueued while the GPU is held: some hundred launches fit its queue
MAX_PIPELINED = 50
MAX_COPIES = 256  # of a call in one CUDA graph
CAPTURE_MS = 200.0  # host time to capture one graph
GRAPH_MS = 3.0  # as many copies as eager calls fill this: replays are shorter, yet dwarf their launch

# For the guess of a run's length alone; on a GPU as the committed runs of an H200 took it (`cost_s`'s test).
# Rates in TFLOP/s of a slow and of a fast implementation.
_RATES = {"cuda": (110.0, 420.0), "cpu": (0.03, 0.05)}
# A case in one process: prepare, warm up, short calls; each clock has its own on a GPU.
_FIXED_S = {"cuda": 0.0, "cpu": 0.25}
_CLOCK_S = {"cuda": {"fwd": 0.05, "bwd": 0.08, "fwd_bwd": 0.11}, "cpu": dict.fromkeys(DIRECTIONS, 0.0)}
_ROUNDS_SHARE = {"cuda": 0.4, "cpu": 1.0}  # of the rounds there may be: clocks settle before
_CHECK_CALLS = {"cuda": 8, "cpu": 3}  # what the fp64 reference and the measuring of memory take, in calls
# And where torch.compile comes first: later processes find much of it in its cache.
_COMPILE_S = {"cuda": {"naive_compiled": 0.3, "flex": 1.0}, "cpu": {"naive_compiled": 4.0}}
_LAUNCHES_S = 0.65  # and where a call is a kernel launch a step, on a GPU


def planned_clocks(protocol: Protocol, device: str) -> tuple[str, ...]:
    """The protocol's clocks that exist on a device; where a CPU has none of them, all a CPU has."""
    if device != "cpu":
        return tuple(protocol.clocks)
    return tuple(clock for clock in protocol.clocks if clock in CPU_CLOCKS) or CPU_CLOCKS


class Visit(NamedTuple):
    """What one visit takes of one clock: `samples` samples, each over `calls` calls."""

    samples: int
    calls: int


def visit(clock: str, call_ms: float, samples_per_round: int, host_ms: float = 0.0) -> Visit:
    """The samples of one visit for a call of about `call_ms` milliseconds on that clock.

    `host_ms` is what enqueueing a call takes: calls of the `device` clock are all enqueued at once.
    """
    call_ms = max(call_ms, 1e-4)
    most = {"pipelined": MAX_PIPELINED, "device": MAX_DEVICE_CALLS}.get(clock, MAX_CALLS)
    if clock == "device":
        most = min(max(int(AHEAD_MS / (samples_per_round * (host_ms + 0.02))), 1), most)
    least = 3 if clock == "pipelined" and call_ms < VISIT_MS else 1
    calls = min(max(math.ceil(SAMPLE_MS / call_ms), least), most)
    samples = min(max(int(VISIT_MS / (call_ms * calls)), 1), samples_per_round)
    return Visit(samples, calls)


def rounds(
    clocks: Sequence[str], call_ms: float, protocol: Protocol, gpu_ms: float = 0.0, host_ms: float = 0.0
) -> int:
    """How many rounds may visit a case: all of the protocol's, fewer when a visit is long.

    `call_ms` is a call with its launch, `gpu_ms` without, where that is known.
    """
    calls = 1 + sum(clock.startswith("graph") for clock in clocks)  # untimed: one opens a visit, one a graph
    for clock in clocks:
        alone = gpu_ms if clock == "device" and gpu_ms else call_ms
        plan = visit(clock, alone, protocol.samples_per_round, host_ms)
        calls += plan.samples * (1 if clock.startswith("graph") else plan.calls)
    affordable = int(protocol.max_ms / max(calls * call_ms, 1e-4))
    return min(protocol.rounds, max(affordable, protocol.min_rounds))


def settled(medians_ms: Sequence[float], protocol: Protocol) -> bool:
    """Whether a clock has had enough rounds: their medians' standard error is within `rel_stderr`."""
    count = len(medians_ms)
    if count < min(protocol.min_rounds, protocol.rounds):
        return False
    if count == 1:
        return True
    stderr = statistics.stdev(medians_ms) / math.sqrt(count)
    return stderr <= protocol.rel_stderr * statistics.fmean(medians_ms)


def warm(times_ms: Sequence[float]) -> bool:
    """Whether calls have stopped getting faster: of six, the later three gain less than 2 %."""
    half = WARM_CALLS // 2
    if len(times_ms) < WARM_CALLS:
        return False
    before, after = (statistics.median(part) for part in (times_ms[-2 * half : -half], times_ms[-half:]))
    return after >= (1 - WARM_GAIN) * before


def rotating_copies(set_bytes: int, l2_bytes: int, host_ms: float) -> int:
    """Input sets to rotate through in a graph, so that each call finds its inputs evicted from L2.

    Twice the L2 in all, as CUTLASS's measurement guideline asks; one set where it is that large itself.
    Where capturing so many calls would take too long there are fewer: such calls run for so long that a
    warm input does not matter.
    """
    wanted = math.ceil(2 * l2_bytes / max(set_bytes, 1))
    affordable = int(CAPTURE_MS / max(host_ms, 1e-3))
    return max(1, min(wanted, affordable, MAX_COPIES))


def replays(copies: int, replay_ms: float, samples_per_round: int) -> int:
    """Replays of a graph in one visit: one where it is the mean of many calls already."""
    if copies >= MAX_CALLS:
        return 1
    return min(max(int(VISIT_MS / max(replay_ms, 1e-4)), 1), samples_per_round)


def hot_copies(call_ms: float, host_ms: float) -> int:
    """Copies of one call on the same buffers, enough for a replay that dwarfs its own launch."""
    wanted = math.ceil(GRAPH_MS / max(call_ms, 1e-4))
    affordable = int(CAPTURE_MS / max(host_ms, 1e-3))
    return max(1, min(wanted, affordable, MAX_COPIES))


def cost_s(case: Case, protocol: Protocol, clocks: Sequence[str], device_kind: str) -> float:
    """A rough guess of the seconds a case takes: for an ETA, a budget, and which series comes first."""
    slow, fast = _RATES[device_kind]
    rate = slow if case.backend.startswith(("naive", "tiled", "sdpa_math")) else fast
    pairs = case.batch * case.heads * case.seq_len_q * case.seq_len_k
    flops = (
        pairs * 2 * (case.head_dim + case.head_dim_v) * {"fwd": 1, "bwd": 2.5, "fwd_bwd": 3.5}[case.direction]
    )
    call_ms = flops / (rate * 1e9) * (0.5 if case.causal and rate == fast else 1.0)
    calls = len(clocks) + 1
    least = min(protocol.min_rounds, protocol.rounds) * calls
    timed_ms = call_ms * min(protocol.rounds * calls, max(protocol.max_ms / max(call_ms, 1e-4), least))
    fixed_s = _FIXED_S[device_kind] + _CLOCK_S[device_kind][case.direction] * len(clocks)
    fixed_s += _COMPILE_S[device_kind].get(case.backend, 0.0)
    if case.backend == "tiled" and device_kind == "cuda":
        fixed_s += _LAUNCHES_S
    rounds_s = _ROUNDS_SHARE[device_kind] * timed_ms / 1e3
    return protocol.processes * (fixed_s + rounds_s) + _CHECK_CALLS[device_kind] * call_ms / 1e3
