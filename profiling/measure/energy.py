"""Energy of one call: how far the board's energy counter moves while calls run back to back, by their number.

The counter moves in steps, every 20 to 100 ms on the boards seen, so a window begins at one step and ends at
another, a second or more later; the calls in it are interpolated between marks behind every few of them. A
queue of calls is kept ahead of the GPU, as in the clock `pipelined`. What is counted is the whole board: its
memory, and what it takes when idle, too. Power times time is no substitute here: where there is no counter,
there is no number.
"""

from __future__ import annotations

import gc
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from profiling.case import Case
from profiling.measure.backend import Call
from profiling.measure.backends import COMPILED, bind, resolve
from profiling.measure.block import PoisonedError
from profiling.measure.failures import classify, forget
from profiling.measure.inputs import AnyInputs, inputs_of
from profiling.measure.messages import CaseEnergy, EnergyRequest, EnergyResult, Outcome
from profiling.measure.telemetry import Telemetry

if TYPE_CHECKING:
    from profiling.measure.block import Bench

WARM_S = 1.0  # of calls before the window: clocks and power need that long to settle under a load
WINDOW_S = 1.0
MIN_STEPS = 5  # of the counter in a window; a window may take longer for them
MIN_CALLS = 10  # a call has phases of different power: a window must not cut too much of them off
MAX_CALL_S = 5.0
_GIVE_UP_S = 10.0  # after the warm-up, or this many calls:
_GIVE_UP_CALLS = 3 * MIN_CALLS
_BATCH_S = 2e-3  # the counter is looked at between batches of about this length
_MAX_BATCH = 200
_QUEUE_S = 20e-3  # of calls ahead of the GPU


class Meter(Protocol):
    """What a measurement of energy asks of a device."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    def energy_mj(self) -> int | None:
        """The energy counter; None where it does not answer."""
        ...

    def mark(self) -> Callable[[], bool]:
        """A mark behind what is enqueued: whether the device has come to it."""
        ...


class CudaMeter:
    """A CUDA device: its events, and NVML's counter."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.energy_mj = telemetry.energy_mj
        self.now = time.perf_counter

    def mark(self) -> Callable[[], bool]:
        """See `Meter.mark`."""
        event = torch.cuda.Event()
        event.record()
        return event.query


def energy_of(call: Call, call_s: float, meter: Meter) -> CaseEnergy:
    """Energy of one call in millijoules, whole board; or why it is not known.

    Args:
        call: enqueues the same work each time.
        call_s: about how long it takes.
        meter: the device's clock, counter and marks.
    """
    if call_s > MAX_CALL_S:
        return CaseEnergy(reason=f"a call takes {call_s:.1f} s, and {MIN_CALLS} of them would be too long")
    batch = min(max(int(_BATCH_S / max(call_s, 1e-9)), 1), _MAX_BATCH)
    ahead = max(2, math.ceil(_QUEUE_S / (batch * max(call_s, 1e-9))))
    give_up_s = max(_GIVE_UP_S, _GIVE_UP_CALLS * call_s)
    began = meter.now()
    before = meter.energy_mj()
    enqueued = 0
    waiting: deque[tuple[Callable[[], bool], int]] = deque()
    done: list[tuple[float, int]] = []  # seconds, calls that are done by then
    steps: list[tuple[float, int]] = []  # seconds, the counter after its step
    while True:
        if len(waiting) < ahead:
            for _ in range(batch):
                call()
            enqueued += batch
            waiting.append((meter.mark(), enqueued))
        counter, now = meter.energy_mj(), meter.now()
        if counter is None or before is None:
            return CaseEnergy(reason="the energy counter did not answer")
        if counter < before:
            return CaseEnergy(reason="the energy counter went backwards")
        while waiting and waiting[0][0]():
            done.append((now, waiting.popleft()[1]))
        if counter > before and done and now - began >= WARM_S:
            steps.append((now, counter))
        before = counter
        if found := _window(steps, done):
            return found
        if now - began > WARM_S + give_up_s:
            often = f"moved only {len(steps)} time(s)" if steps else "did not move"
            return CaseEnergy(reason=f"the energy counter {often} in {now - began - WARM_S:.0f} s of calls")


def _window(steps: Sequence[tuple[float, int]], done: Sequence[tuple[float, int]]) -> CaseEnergy | None:
    """The energy of a call between the first step and the last, once that is far enough.

    The last step counts when a mark behind it has been seen.
    """
    covered = [step for step in steps[-3:] if done and step[0] <= done[-1][0]]
    if not covered or len(steps) <= MIN_STEPS:
        return None
    (start, from_mj), (end, to_mj) = steps[0], covered[-1]
    if end - start < WINDOW_S:
        return None
    calls = _calls_by(done, end) - _calls_by(done, start)
    if calls < MIN_CALLS:
        return None
    return CaseEnergy(energy_mj=(to_mj - from_mj) / calls, energy_window_s=end - start)


def _calls_by(done: Sequence[tuple[float, int]], at: float) -> float:
    """How many calls were done at a time between two marks."""
    place = bisect_left(done, at, key=lambda mark: mark[0])
    later, calls = done[place]
    if place == 0 or later == at:
        return calls
    earlier, fewer = done[place - 1]
    return fewer + (calls - fewer) * (at - earlier) / (later - earlier)


# ------------------------------------------------------------------------------------------ in a worker


def energy_of_block(
    bench: Bench, request: EnergyRequest, stage: Callable[[int | None, str], None]
) -> EnergyResult:
    """Energy of each of a block's cases, one after another. A case that fails has a reason, no number.

    Args:
        bench: the worker's device, seed and telemetry.
        request: cases of one shape.
        stage: told of each step before it is taken.

    Raises:
        PoisonedError: a case made this process unusable.
    """
    if bench.device.type != "cuda":
        return _none(request, "energy is read from a GPU's counter, and this is a CPU")
    if reason := bench.telemetry.no_energy():
        return _none(request, reason)
    if any(case.backend in COMPILED for case in request.cases):
        torch.compiler.reset()
    stage(None, "inputs")
    try:
        inputs = inputs_of(request.cases[0], bench.device, bench.protocol.seed)
    except Exception as error:
        reason = classify(error, ours=True).reason
        forget(error)
        return _none(request, reason)
    found = []
    for index, case in enumerate(request.cases):
        stage(index, "energy")
        try:
            found.append(_of_case(bench, case, inputs))
        except Exception as error:
            failure = classify(error, ours=":" not in case.backend)
            forget(error)
            if failure.fatal:
                outcome = Outcome(status=failure.status, reason=failure.reason)
                raise PoisonedError(index, outcome) from None
            found.append(CaseEnergy(reason=f"{failure.status}: {failure.reason}"))
        gc.collect()
        torch.cuda.empty_cache()
    return EnergyResult(energies=tuple(found))


def _none(request: EnergyRequest, reason: str) -> EnergyResult:
    return EnergyResult(energies=tuple(CaseEnergy(reason=reason) for _ in request.cases))


def _of_case(bench: Bench, case: Case, inputs: AnyInputs) -> CaseEnergy:
    backend = resolve(case, bench.device)
    call = bind(backend.forward, case, backend.prepare(inputs))
    try:
        call()  # compiles, and starts libraries
        torch.cuda.synchronize(bench.device)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize(bench.device)
        call_s = time.perf_counter() - start
        return energy_of(call, call_s, CudaMeter(bench.telemetry))
    finally:
        torch.cuda.synchronize(bench.device)
