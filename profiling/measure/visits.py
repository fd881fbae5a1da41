"""What is timed of one case: its call, its plan per clock, and the CUDA graphs it is replayed from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch

from profiling.case import Case, Protocol
from profiling.measure import budget
from profiling.measure.backend import Backend, Call
from profiling.measure.backends import bind
from profiling.measure.clocks import CpuTimer, CudaTimer, Samples, warm_up
from profiling.measure.failures import classify, forget
from profiling.measure.inputs import AnyInputs, clone_inputs
from profiling.measure.messages import ClockNote


class _Graph(NamedTuple):
    """A captured graph, the calls in it (they own its buffers), the memory of both, and a replay's time."""

    graph: torch.cuda.CUDAGraph
    calls: list[Call]
    nbytes: int
    replay_ms: float


class Visitor:
    """Times one case. Made by warming it up; `visit` is then called once a round, until it is `done`.

    A call or a graph that holds more than `keep_bytes` (the saved scores of a long naive forward) is
    dropped after each visit and made anew, so that the cases of a block do not take each other's memory.
    """

    def __init__(
        self,
        case: Case,
        backend: Backend,
        inputs: AnyInputs,
        timer: CpuTimer | CudaTimer,
        protocol: Protocol,
        clocks: Sequence[str],
        keep_bytes: int,
    ) -> None:
        self.case = case
        self.notes: dict[str, ClockNote] = {}
        self.uncapturable = ""
        self._backend = backend
        self._inputs = inputs
        self._timer = timer
        self._protocol = protocol
        self._clocks = clocks
        self._medians_ms: dict[str, list[float]] = {clock: [] for clock in clocks}  # a round each
        self._n_visits = 0
        self._keep_bytes = keep_bytes
        self._graphs: dict[str, _Graph] = {}
        self._bound: Call | None = None
        self._held_bytes = 0
        call = self._call()
        self.call_ms, self.host_ms = warm_up(call, timer, protocol.warmup_ms)
        self.gpu_ms = self.call_ms
        if isinstance(timer, CudaTimer):  # of a short call the launch is most of it
            self.gpu_ms = min(self.call_ms, *timer.cold(call, 3, 1, self.host_ms).ms)
        self._rounds = budget.rounds(clocks, self.call_ms, protocol, self.gpu_ms, self.host_ms)
        del call
        self._drop_if_large()

    @property
    def done(self) -> bool:
        """Whether it has had its rounds, or no clock needs another."""
        return self._n_visits >= self._rounds or not self._open()

    def _open(self) -> list[str]:
        """The clocks that have samples to give and have not settled."""
        return [
            clock
            for clock, medians in self._medians_ms.items()
            if not budget.settled(medians, self._protocol)
            and (clock not in self.notes or self.notes[clock].status == "ok")
        ]

    def close(self) -> None:
        """Let go of everything held on the device."""
        self._bound = None
        self._graphs.clear()

    def visit(self, uncapturable: str | None = None) -> dict[str, list[float]]:
        """Milliseconds of one call by clock: this round's samples, on the clocks that need more.

        `uncapturable` is why this backend is known to fit no CUDA graph.
        """
        clocks = self._open()
        self._n_visits += 1
        call = self._call()
        call()  # brings back what the other cases evicted: allocator blocks, library state
        self._timer.sync()
        graphs = [clock for clock in clocks if clock.startswith("graph")]
        found = {clock: self._eager(clock, call) for clock in clocks if clock not in graphs}
        del call
        self._drop_if_large()  # a graph holds a copy of its own, and needs the room
        found |= {clock: self._replayed(clock, uncapturable) for clock in graphs}
        for clock, samples in found.items():
            if samples.remark:
                self.notes.setdefault(clock, ClockNote(status="ok", reason=samples.remark))
            if samples.ms:
                self._medians_ms[clock].append(statistics.median(samples.ms))
        return {clock: samples.ms for clock, samples in found.items() if samples.ms}

    def _call(self) -> Call:
        if self._bound is None:
            before = self._allocated()
            self._bound = bind(self._backend.forward, self.case, self._inputs)
            self._held_bytes = self._allocated() - before
            if self.case.direction == "bwd" and self._inputs.device.type == "cpu":
                self._held_bytes = _saved_bytes_on_cpu(self.case)
        return self._bound

    def _drop_if_large(self) -> None:
        if self._held_bytes > self._keep_bytes:
            self._bound = None

    def _allocated(self) -> int:
        device = self._inputs.device
        return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    def _eager(self, clock: str, call: Call) -> Samples:
        call_ms = self.gpu_ms if clock == "device" else self.call_ms
        plan = budget.visit(clock, call_ms, self._protocol.samples_per_round, self.host_ms)
        if clock == "wall":
            return self._timer.wall(call, *plan)
        if clock == "pipelined":
            return self._timer.pipelined(call, *plan)
        if not isinstance(self._timer, CudaTimer):
            self.notes[clock] = ClockNote(status="unsupported", reason="this clock needs a CUDA device")
            return Samples([])
        return self._timer.cold(call, *plan, self.host_ms)

    # ------------------------------------------------------------------------------------ CUDA graphs

    def _replayed(self, clock: str, uncapturable: str | None) -> Samples:
        timer = self._timer
        if not isinstance(timer, CudaTimer):
            self.notes[clock] = ClockNote(status="unsupported", reason="this clock needs a CUDA device")
        elif uncapturable:
            self.notes.setdefault(clock, ClockNote(status="unsupported", reason=uncapturable))
        note = self.notes.get(clock)
        if not isinstance(timer, CudaTimer) or (note is not None and note.status != "ok"):
            return Samples([])
        if clock not in self._graphs:
            try:
                self._graphs[clock] = self._captured(clock, timer)
            except Exception as error:
                self._not_captured(clock, error)
                timer.sync()  # raises if the failed capture took the context with it
                torch.cuda.empty_cache()
                return Samples([])
        graph = self._graphs[clock]
        samples = budget.replays(len(graph.calls), graph.replay_ms, self._protocol.samples_per_round)
        found = timer.replay(graph.graph, len(graph.calls), samples)
        if graph.nbytes > self._keep_bytes:
            del self._graphs[clock], graph
            torch.cuda.empty_cache()
        return found

    def _not_captured(self, clock: str, error: Exception) -> None:
        failure = classify(error, ours=True)
        status = "oom" if failure.status == "oom" else "unsupported"
        self.notes[clock] = ClockNote(status=status, reason=f"CUDA graph: {failure.reason}")
        if failure.status not in ("oom", "unsupported"):
            # Other shapes would fail in the same way, and each failed capture risks the context.
            self.uncapturable = self.notes[clock].reason
        forget(error)

    def _captured(self, clock: str, timer: CudaTimer) -> _Graph:
        """A graph of this case's calls.

        `graph` rotates through copies of the inputs until they exceed L2; `graph_hot` repeats one call.
        """
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved(timer.device)
        copies = 1
        if clock == "graph":
            set_bytes = self._inputs.read_bytes(self.case.direction) + max(self._held_bytes, 0)
            copies = budget.rotating_copies(set_bytes, timer.l2_bytes, self.host_ms)
        sets = [self._inputs, *(clone_inputs(self._inputs) for _ in range(copies - 1))]
        calls = [bind(self._backend.forward, self.case, inputs) for inputs in sets]
        # A short graph would be mostly launch: go round the sets until it lasts.
        calls *= math.ceil(budget.hot_copies(self.gpu_ms, self.host_ms) / len(calls))
        timer.sync()
        graph = timer.capture(calls)
        (replay_ms,) = timer.replay(graph, 1, 1).ms  # uploads it, too
        return _Graph(graph, calls, torch.cuda.memory_reserved(timer.device) - reserved, replay_ms)


def _saved_bytes_on_cpu(case: Case) -> int:
    """What a backward's graph may hold on a CPU, where no allocator can be asked: a score matrix or two."""
    return 8 * case.batch * case.heads * case.seq_len_q * case.seq_len_k
