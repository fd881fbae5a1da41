"""The clocks of a device: how long one call takes, host included or not, caches cold or warm.

Every method returns milliseconds of one call. What each clock contains is said in data/README.md; the
difference between them is the launch, the gaps and the cache, and it decides where a crossover lies.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from profiling.measure import budget
from profiling.measure.backend import Call

_MAX_HOLD_MS = 60.0
_L2_FALLBACK_BYTES = 64 * 2**20
_EMPTY_CALLS = 20  # of a kernel that does nothing, to see what a clock adds
_STEP_READINGS = 48


class Samples(NamedTuple):
    """Samples of one visit in milliseconds, and a remark where the clock could not keep its promise."""

    ms: list[float]
    remark: str = ""


class Timer(Protocol):
    """What the worker asks of a device's clocks."""

    floor_ms: dict[str, float]  # what a clock reads for an empty kernel (on a CPU: an empty call)
    resolution_ms: dict[str, float]  # the smallest difference that a clock shows
    l2_bytes: int

    def sync(self) -> None:
        """Wait until the device is idle."""
        ...

    def wall(self, call: Call, samples: int, calls: int) -> Samples:
        """One eager call, launch included, caches as left; a sample is the median of `calls` calls."""
        ...

    def pipelined(self, call: Call, samples: int, calls: int) -> Samples:
        """`calls` calls and one synchronisation, divided by `calls`."""
        ...


class CpuTimer:
    """Clocks of a CPU: `wall` and `pipelined`, both by the host's monotonic clock."""

    l2_bytes = 0

    def __init__(self) -> None:
        empty = self.wall(lambda: None, 50, 1).ms
        self.floor_ms: dict[str, float] = dict.fromkeys(("wall", "pipelined"), statistics.median(empty))
        self.resolution_ms: dict[str, float] = dict.fromkeys(self.floor_ms, _host_step_ms())

    def sync(self) -> None:
        """Nothing to wait for: CPU operators return when they are done."""

    def wall(self, call: Call, samples: int, calls: int) -> Samples:
        """See `Timer.wall`."""
        return Samples([statistics.median(_host_times(call, self.sync, calls)) for _ in range(samples)])

    def pipelined(self, call: Call, samples: int, calls: int) -> Samples:
        """See `Timer.pipelined`."""
        return Samples([_pipelined_ms(call, self.sync, calls) for _ in range(samples)])


def _host_step_ms() -> float:
    """The smallest step of the host's clock that two readings in a row show."""
    ticks = [time.perf_counter_ns() for _ in range(1000)]
    return min((b - a for a, b in itertools.pairwise(ticks) if b > a), default=1) / 1e6


def _host_times(call: Call, sync: Call, calls: int) -> list[float]:
    times = []
    for _ in range(calls):
        sync()
        start = time.perf_counter_ns()
        call()
        sync()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return times


def _pipelined_ms(call: Call, sync: Call, calls: int) -> float:
    sync()
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    sync()
    return (time.perf_counter_ns() - start) / 1e6 / calls


class CudaTimer:
    """Clocks of one CUDA device. Everything runs on the stream that is current when it is made.

    The `device` clock enqueues its calls while the GPU is held by a spinning kernel, so that the time
    between two events holds no launch latency; before each call L2 is filled with lines of no use to it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.l2_bytes = int(
            getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or _L2_FALLBACK_BYTES
        )
        # Made once and on the measured device: a buffer elsewhere would leave this L2 warm.
        self._flush = torch.empty(2 * self.l2_bytes // 4, dtype=torch.float32, device=device)
        self._swept = torch.empty((), dtype=torch.float32, device=device)
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._cycles_per_ms = self._calibrate()
        self.floor_ms = self._floors()
        self.resolution_ms = self._resolutions()

    def sync(self) -> None:
        """Wait until the device is idle; raises what an earlier kernel did wrong."""
        torch.cuda.synchronize(self.device)

    def wall(self, call: Call, samples: int, calls: int) -> Samples:
        """See `Timer.wall`."""
        return Samples([statistics.median(_host_times(call, self.sync, calls)) for _ in range(samples)])

    def pipelined(self, call: Call, samples: int, calls: int) -> Samples:
        """See `Timer.pipelined`."""
        return Samples([_pipelined_ms(call, self.sync, calls) for _ in range(samples)])

    def cold(self, call: Call, samples: int, calls: int, host_ms: float) -> Samples:
        """The `device` clock: event pairs around single calls, L2 cold, the queue never empty.

        `host_ms` is the host time to enqueue one call; a sample is the median of `calls` calls.
        """
        total = samples * calls
        events = self._event_pairs(total)
        hold_ms = 0.2 + 1.5 * total * (host_ms + 0.05)
        kept_ahead = False
        for _ in range(3):
            self._hold(min(hold_ms, _MAX_HOLD_MS))
            for start, end in events:
                self._empty_l2()
                start.record()
                call()
                end.record()
            # The GPU has not come to the first call yet: all of it was enqueued ahead.
            kept_ahead = not events[0][0].query()
            self.sync()
            if kept_ahead or hold_ms > _MAX_HOLD_MS:
                break
            hold_ms *= 2
        times = [start.elapsed_time(end) for start, end in events]
        groups = [statistics.median(times[i : i + calls]) for i in range(0, total, calls)]
        return Samples(groups, "" if kept_ahead else "the host could not keep the queue full")

    def capture(self, calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
        """A CUDA graph of these calls, one after another, each warmed up before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(self.device)):
            for call in calls:
                call()
        return graph

    def replay(self, graph: torch.cuda.CUDAGraph, copies: int, samples: int) -> Samples:
        """Replays of a graph of `copies` calls, each divided by `copies`."""
        ((start, end),) = self._event_pairs(1)
        out = []
        for _ in range(samples):
            self._hold(0.1)
            start.record()
            graph.replay()
            end.record()
            self.sync()
            out.append(start.elapsed_time(end) / copies)
        return Samples(out)

    def _event_pairs(self, count: int) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
        while len(self._events) < count:
            pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for event in pair:
                event.record()  # a CUDA event is made at its first record
            self._events.append(pair)
        return self._events[:count]

    def _empty_l2(self) -> None:
        """Overwrite L2, and read it over: what was only written would be written back during the call.

        On an H200 that took the rounds of a short backward from 4-7 % apart to 1 %.
        """
        self._flush.zero_()
        torch.sum(self._flush, dim=0, out=self._swept)

    def _hold(self, ms: float) -> None:
        """Keep the GPU busy for about `ms` milliseconds, without memory traffic."""
        torch.cuda._sleep(int(ms * self._cycles_per_ms))  # pyright: ignore[reportPrivateUsage]

    def _calibrate(self) -> float:
        """Cycles of the spinning kernel in a millisecond, at the clock of a busy GPU."""
        ((start, end),) = self._event_pairs(1)
        cycles, rate = 2_000_000, 0.0
        for _ in range(20):  # an idle GPU needs some tens of milliseconds to reach its clock
            start.record()
            torch.cuda._sleep(cycles)  # pyright: ignore[reportPrivateUsage]
            end.record()
            self.sync()
            rate = max(rate, cycles / max(start.elapsed_time(end), 1e-3))
        return rate

    def _floors(self) -> dict[str, float]:
        """What each clock reads for a kernel that does nothing; a latency near it says little."""

        def nothing() -> None:
            torch.cuda._sleep(0)  # pyright: ignore[reportPrivateUsage]

        nothing()
        floors = {
            "wall": statistics.median(self.wall(nothing, 20, 1).ms),
            "pipelined": statistics.median(self.pipelined(nothing, 5, _EMPTY_CALLS).ms),
            "device": statistics.median(self.cold(nothing, _EMPTY_CALLS, 1, 0.01).ms),
        }
        try:
            graph = self.capture([nothing] * _EMPTY_CALLS)
        except RuntimeError:  # what can be captured at all is each case's own affair
            return floors
        replayed = statistics.median(self.replay(graph, _EMPTY_CALLS, 5).ms)
        return floors | dict.fromkeys(("graph", "graph_hot"), replayed)

    def _resolutions(self) -> dict[str, float]:
        """The step of the host's clock, and that of events, by which a graph's replay is divided, too."""

        def spin(cycles: int) -> float:
            return self.cold(lambda: torch.cuda._sleep(cycles), 1, 1, 0.01).ms[0]  # pyright: ignore[reportPrivateUsage]

        # Of lengths that are no multiples of anything a clock might tick in.
        lengths_ms = (0.002 + 0.00013 * i for i in range(_STEP_READINGS))
        readings = sorted({spin(int(self._cycles_per_ms * ms)) for ms in lengths_ms})
        steps = [b - a for a, b in itertools.pairwise(readings)]
        # Readings are fp32 milliseconds: closer than that they are one.
        event = min((step for step in steps if step > 1e-6), default=1e-3)
        host = _host_step_ms()
        return {"wall": host, "pipelined": host, "device": event, "graph": event, "graph_hot": event}


def timer_for(device: torch.device) -> CpuTimer | CudaTimer:
    """The clocks of a device."""
    return CudaTimer(device) if device.type == "cuda" else CpuTimer()


def warm_up(call: Call, timer: Timer, at_least_ms: float) -> tuple[float, float]:
    """Call until `at_least_ms` have passed and calls get no faster: (milliseconds of a call, of enqueueing).

    One call at least, and no longer than `budget.WARM_FACTOR` times `at_least_ms`. Both results are the
    fastest seen, for planning only.
    """
    calls_ms: list[float] = []
    host_ms = math.inf
    begin = time.perf_counter_ns()
    while True:
        timer.sync()
        start = time.perf_counter_ns()
        call()
        enqueued = time.perf_counter_ns()
        timer.sync()
        done = time.perf_counter_ns()
        host_ms = min(host_ms, (enqueued - start) / 1e6)
        calls_ms.append((done - start) / 1e6)
        spent_ms = (done - begin) / 1e6
        if spent_ms >= at_least_ms * budget.WARM_FACTOR or (
            spent_ms >= at_least_ms and budget.warm(calls_ms)
        ):
            return min(calls_ms), host_ms
