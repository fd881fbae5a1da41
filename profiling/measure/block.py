"""Measure one block in a worker: all cases of a shape, prepared one by one, timed interleaved.

Preparing a case is: first call (timed apart), error, kernel, memory; then nothing of it is kept. Timing
is by rounds: each visits the cases in a freshly shuffled order, and a visit samples every clock. A case
that fails leaves an outcome, and the others go on; what makes the whole worker unusable is raised as
`PoisonedError`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from profiling.case import Case, Protocol
from profiling.measure import oracle
from profiling.measure.backend import Backend
from profiling.measure.backends import COMPILED, kernel_name, resolve, tile
from profiling.measure.clocks import CpuTimer, CudaTimer, timer_for
from profiling.measure.compiling import CompileClock
from profiling.measure.failures import Failure, classify, forget, one_line
from profiling.measure.inputs import AnyInputs, inputs_of
from profiling.measure.memory import Memory, available_bytes, child_memory, cpu_shortage, cuda_memory
from profiling.measure.messages import BlockRequest, BlockResult, Outcome, RehearsalRequest
from profiling.measure.telemetry import Telemetry
from profiling.measure.visits import Visitor
from profiling.records import Sample

_MAX_KEEP_BYTES = 2**30
_LEAK_BYTES = 2**27  # memory that may be missing after a failure: work spaces that libraries keep


class PoisonedError(Exception):
    """The worker must end: case `index` failed with `outcome` and may have harmed what comes after.

    None stands for what the cases share: none of them is to blame.
    """

    def __init__(self, index: int | None, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.index = index
        self.outcome = outcome


class Bench:
    """One worker's device and protocol; measures block after block."""

    def __init__(
        self,
        device: torch.device,
        process: int,
        protocol: Protocol,
        telemetry: Telemetry,
    ) -> None:
        self.device = device
        self.process = process
        self.protocol = protocol
        self.telemetry = telemetry
        self._uncapturable: dict[tuple[str, str], str] = {}  # what no CUDA graph took, and why

    @functools.cached_property
    def timer(self) -> CpuTimer | CudaTimer:
        """The device's clocks. Made for the first block: until then the device may be another run's."""
        return timer_for(self.device)

    def measure(self, request: BlockRequest, stage: Callable[[int | None, str], None]) -> BlockResult:
        """Outcomes of a block's cases.

        Args:
            request: the cases, all of one shape.
            stage: told of each step before it is taken.

        Raises:
            PoisonedError: a case made this process unusable.
        """
        stage(None, "clocks")
        self.timer.sync()
        if any(case.backend in COMPILED for case in request.cases):
            torch.compiler.reset()  # a compiler that has seen many shapes would start to generalise
        run = _BlockRun(self, request, stage)
        try:
            return run.result()
        finally:
            run.close()
            del run
            gc.collect()
            # What is alive now are modules (a compiler's are many), and looking at them again and again
            # would cost every later collection tenths of a second.
            gc.freeze()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # another worker may be next, and need it

    def rehearse(self, request: RehearsalRequest) -> None:
        """Call each case once and keep nothing but what its libraries loaded.

        What fails here fails again where it is a row. The clocks that are made here are thrown away: other
        workers are at the device, and what a clock reads for an empty kernel goes into rows.

        Raises:
            PoisonedError: the device is lost to this process.
        """
        began = time.monotonic()
        for work in (self._make_clocks, *(functools.partial(self._call_once, c) for c in request.cases)):
            if time.monotonic() - began >= request.limit_s:
                break
            try:
                work()
            except Exception as error:
                failure = classify(error, ours=True)
                forget(error)
                if failure.fatal:
                    raise PoisonedError(None, Outcome(status=failure.status, reason=failure.reason)) from None
            self._tidy()
        if any(case.backend in COMPILED for case in request.cases):
            torch.compiler.reset()
            self._tidy()
        gc.freeze()

    def _make_clocks(self) -> None:
        timer_for(self.device).sync()

    def _call_once(self, case: Case) -> None:
        backend = resolve(case, self.device)
        inputs = backend.prepare(inputs_of(case, self.device, self.protocol.seed))
        _first_call(backend, case, inputs)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _tidy(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # other workers are beside this one, and need it


class _BlockRun:
    def __init__(self, bench: Bench, request: BlockRequest, stage: Callable[[int | None, str], None]) -> None:
        self.bench = bench
        self.request = request
        self.stage = stage
        self.outcomes: dict[int, Outcome] = {}
        self.inputs: AnyInputs | None = None
        self.reference: oracle.Reference | None = None
        self.unchecked = "" if request.check else "not checked: the reference ended its process"
        self.visitors: dict[int, Visitor] = {}
        self.before_bytes = 0
        self.sm_clocks: dict[int, list[int]] = {}
        self.event_reasons = 0
        self.timed_s = 0.0

    @property
    def cases(self) -> Sequence[Case]:
        return self.request.cases

    def close(self) -> None:
        """Let go of everything on the device."""
        for visitor in self.visitors.values():
            visitor.close()
        self.visitors.clear()
        self.inputs = self.reference = None

    def result(self) -> BlockResult:
        """Prepare, time and report."""
        runnable = self._affordable()
        if runnable:
            self._shared(runnable)
        for index in [i for i in runnable if i not in self.outcomes]:
            self._guarded(index, "prepare", lambda i=index: self._prepare(i))
        before = self.bench.telemetry.state()
        if self.visitors:
            self._rounds()
        return BlockResult(
            outcomes=tuple(self.outcomes[i] for i in range(len(self.cases))),
            gpu_before=before,
            gpu_after=self.bench.telemetry.state(),
            event_reasons=self.event_reasons,
            floor_ms=self.bench.timer.floor_ms,
            resolution_ms=self.bench.timer.resolution_ms,
            timed_s=self.timed_s,
        )

    def _affordable(self) -> list[int]:
        """The cases that memory is expected to hold; the others are rows already."""
        if self.bench.device.type == "cuda":
            return list(range(len(self.cases)))  # its allocator refuses by itself, and harms nobody
        for index, case in enumerate(self.cases):
            if shortage := cpu_shortage(case):
                self.outcomes[index] = Outcome(status="oom", reason=shortage)
        return [i for i in range(len(self.cases)) if i not in self.outcomes]

    def _shared(self, indices: list[int]) -> None:
        """Inputs and reference, for all cases; where even the inputs do not fit, no case can run."""
        case = self.cases[indices[0]]
        seed = self.bench.protocol.seed
        try:
            self.stage(None, "inputs")
            self.inputs = inputs_of(case, self.bench.device, seed)
            self.bench.timer.sync()
        except Exception as error:
            failure = classify(error, ours=True)
            outcome = Outcome(status=failure.status, reason=f"inputs: {failure.reason}")
            self.outcomes |= dict.fromkeys(indices, outcome)
            forget(error)
            if failure.fatal:
                raise PoisonedError(None, outcome) from None
            return
        if not (self.request.first and self.request.check):
            return
        try:
            self.stage(None, "reference")
            self.reference = oracle.reference(case, self.inputs, seed)
            self.unchecked = self.reference.unchecked
            self.bench.timer.sync()
        except Exception as error:
            failure = classify(error, ours=True)
            self.unchecked = f"not checked: the reference failed: {one_line(str(error))}"
            forget(error)
            if failure.fatal:  # the next case would fail for nothing
                raise PoisonedError(None, Outcome(status=failure.status, reason=self.unchecked)) from None
        self._free()

    def _guarded(self, index: int, name: str, work: Callable[[], Any]) -> None:
        """Do a step of a case; a failure becomes its outcome, and everything of the case is dropped."""
        self.stage(index, name)
        case = self.cases[index]
        self.before_bytes = self._allocated() if index not in self.visitors else self.before_bytes
        try:
            work()
        except Exception as error:
            failure = classify(error, ours=":" not in case.backend)
            forget(error)
        else:
            return
        self._fail(index, failure)

    def _fail(self, index: int, failure: Failure) -> None:
        known = self.visitors.pop(index, None)
        outcome = self.outcomes.get(index, Outcome()).model_copy(
            update={"status": failure.status, "reason": failure.reason}
        )
        self.outcomes[index] = outcome
        if failure.fatal:
            raise PoisonedError(index, outcome)
        leaked = self._leaked(known)
        if leaked:
            raise PoisonedError(index, outcome.model_copy(update={"reason": f"{failure.reason}{leaked}"}))

    def _leaked(self, visitor: Visitor | None) -> str:
        """What is wrong with the device after a failure, or ""."""
        if visitor is not None:
            visitor.close()
        try:
            self.bench.timer.sync()
            self._free()
        except Exception as error:
            return f" (and the device was lost: {one_line(str(error))})"
        if visitor is None and self._allocated() > self.before_bytes + _LEAK_BYTES:
            return " (and its memory did not come back)"
        return ""

    def _free(self) -> None:
        gc.collect()
        if self.bench.device.type == "cuda":
            torch.cuda.empty_cache()

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.bench.device) if self.bench.device.type == "cuda" else 0

    # ------------------------------------------------------------------------------------- preparation

    def _prepare(self, index: int) -> None:
        case = self.cases[index]
        assert self.inputs is not None
        backend = resolve(case, self.bench.device)
        inputs = backend.prepare(self.inputs)
        self.bench.timer.sync()
        block_m, block_n = tile(case, inputs)
        with CompileClock().watch() as compiling:
            start = time.perf_counter_ns()
            results = _first_call(backend, case, inputs)
            self.bench.timer.sync()
            first_call_ms = (time.perf_counter_ns() - start) / 1e6
        outcome = Outcome(
            first_call_ms=first_call_ms, compile_ms=compiling.ms, block_m=block_m, block_n=block_n
        )
        self.outcomes[index] = outcome
        if self.request.first:
            self.stage(index, "check")
            outcome = outcome.model_copy(update=self._checked(backend, case, inputs, results))
        del results
        if self.request.first:
            outcome = outcome.model_copy(update={"kernel": kernel_name(case, backend, inputs)})
            if self.bench.protocol.memory and outcome.status == "ok":
                self.stage(index, "memory")
                memory = self._memory(backend, case, inputs)
                outcome = outcome.model_copy(
                    update={
                        "peak_mem_bytes": memory.peak_bytes,
                        "retained_mem_bytes": memory.retained_bytes,
                        "reserved_mem_bytes": memory.reserved_bytes,
                        "process_mem_bytes": memory.process_bytes,
                        "mem_method": memory.method,
                    }
                )
        self.outcomes[index] = outcome
        if outcome.status != "ok":
            return
        self.stage(index, "warm up")
        self.visitors[index] = Visitor(
            case,
            backend,
            inputs,
            self.bench.timer,
            self.bench.protocol,
            self.request.clocks,
            self._keep_bytes(),
        )

    def _checked(
        self, backend: Backend, case: Case, inputs: AnyInputs, results: dict[str, torch.Tensor]
    ) -> dict[str, Any]:
        """Error fields of the outcome; status `incorrect` where a tensor breaks the rule."""
        if self.reference is None or not self.reference.tensors:
            return {"reason": self.unchecked}
        if backend.beside is not None:
            with contextlib.suppress(torch.OutOfMemoryError), torch.no_grad():
                results = results | backend.beside(inputs)
        errors, wrong = {}, []
        for name, error, within in oracle.compare(case, results, self.reference):
            errors[name] = error
            if not within:
                wrong.append(
                    f"{name}: max error {_short(error.max_error)}, allowed {_short(error.max_allowed)}"
                )
        fields: dict[str, Any] = {
            "tensor_errors": errors,
            "rel_error": _largest(error.rel_error for error in errors.values()),
            "eager_rel_error": _largest(error.eager_rel_error for error in errors.values()),
        }
        return fields | ({"status": "incorrect", "reason": "; ".join(wrong)} if wrong else {})

    def _memory(self, backend: Backend, case: Case, inputs: AnyInputs) -> Memory:
        if self.bench.device.type == "cuda":
            asks = self.bench.telemetry.process_bytes
            return cuda_memory(backend.forward, case, inputs, self.bench.device, asks)
        if case.backend in COMPILED:
            return Memory()  # the child would compile again, and its compiler's memory would be the peak
        try:
            return child_memory(case, self.bench.protocol.seed, self.bench.protocol.timeout_s / 2)
        except RuntimeError:
            return Memory()  # unknown; the case itself ran

    # ------------------------------------------------------------------------------------------ rounds

    def _keep_bytes(self) -> int:
        """What each case may hold between visits, per call or graph: a share of a quarter of the memory."""
        if self.bench.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.bench.device).total_memory
        else:
            total = available_bytes() or _MAX_KEEP_BYTES
        things = len(self.cases) * (1 + sum(clock.startswith("graph") for clock in self.request.clocks))
        return min(total // (4 * things), _MAX_KEEP_BYTES)

    def _rounds(self) -> None:
        shuffle = random.Random(f"{self.bench.protocol.seed}:{self.bench.process}")
        samples: dict[int, list[Sample]] = {index: [] for index in self.visitors}
        gc.collect()
        began = time.perf_counter()
        with _no_garbage_collection():
            for number in itertools.count():
                order = [i for i, visitor in self.visitors.items() if not visitor.done]
                if not order:
                    break
                shuffle.shuffle(order)
                for place, index in enumerate(order):
                    self._guarded(
                        index,
                        "time",
                        lambda i=index, p=place, n=number: samples[i].extend(self._visit(i, n, p)),
                    )
                self.event_reasons |= self.bench.telemetry.event_reasons() or 0
        self.timed_s = time.perf_counter() - began
        for index, visitor in self.visitors.items():
            self.outcomes[index] = self.outcomes[index].model_copy(
                update={
                    "samples": tuple(samples[index]),
                    "clocks": dict(visitor.notes),
                    "sm_clocks_mhz": tuple(self.sm_clocks.get(index, ())),
                }
            )

    def _visit(self, index: int, number: int, place: int) -> list[Sample]:
        case = self.cases[index]
        visitor = self.visitors[index]
        known = self.bench._uncapturable.get((case.backend, case.direction))
        found = visitor.visit(known)
        if (clock := self.bench.telemetry.sm_clock_mhz()) is not None:
            self.sm_clocks.setdefault(index, []).append(clock)
        if visitor.uncapturable:
            self.bench._uncapturable[case.backend, case.direction] = visitor.uncapturable
        return [
            Sample(clock=clock, process=self.bench.process, round=number, order=place, ms=ms)
            for clock, times in found.items()
            for ms in times
        ]


def _first_call(backend: Backend, case: Case, inputs: AnyInputs) -> dict[str, torch.Tensor]:
    """Everything the direction computes, once: compilation and library start-up happen here."""
    with torch.set_grad_enabled(case.direction != "fwd"):
        out = backend.forward(inputs)
    if case.direction == "fwd":
        return {"out": out}
    leaves = inputs.leaves
    grads = torch.autograd.grad(out, tuple(leaves.values()), inputs.dout)
    return {"out": out.detach()} | {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection inside a sample, or inside a graph's capture, would spoil it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _largest(values: Iterator[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return max(known, default=None)


def _short(x: float | None) -> str:
    return "not finite" if x is None else f"{x:.3g}"
