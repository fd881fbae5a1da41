"""The workers of a run: started, restarted, and their ends turned into rows. No torch.

A block goes to each of the protocol's processes in turn. A worker that dies or hangs has said which case
it was at: that case becomes a row, the worker is replaced, and the other cases of the block are measured
again in the fresh one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from profiling.case import Case, InputError, Protocol, blocks
from profiling.measure.merge import Attempt, merge
from profiling.measure.messages import (
    BlockRequest,
    BlockResult,
    CaseEnergy,
    EnergyRequest,
    Outcome,
    RehearsalRequest,
)
from profiling.measure.process import Worker, WorkerDiedError
from profiling.records import Addition, Environment, Measurement

_MAX_ORPHAN_DEATHS = 2  # deaths in a block that no case is to blame for
# Blocks in a row for which no worker could be started; the device is gone, and the rest need not wait for it.
_MAX_REFUSED_BLOCKS = 3
_REHEARSAL_S = 20.0  # after which a worker begins no further call in a rehearsal
_STARTING = "start a worker"  # the step at which the parent itself is


class Client:
    """The workers of one run on one device. `measure` never fails: what goes wrong is a row."""

    def __init__(
        self,
        device: str,
        protocol: Protocol,
        clocks: Sequence[str],
        *,
        spawn: Callable[[str, int, Protocol], Worker] = Worker,
        kernel_hash: Callable[[str, str], str] = lambda backend, operation: "",
        notify: Callable[[Case | None, str], None] = lambda case, step: None,
    ) -> None:
        self.device = device
        self.protocol = protocol
        self.clocks = tuple(clocks)
        self.timed_s = 0.0  # for how long calls were timed, of all blocks
        self._spawn = spawn
        self._kernel_hash = kernel_hash
        self._notify = notify
        self._workers: dict[int, Worker] = {}
        self._refused_blocks = 0  # in a row
        self._refusal = ""

    def start(self) -> Environment:
        """Start all workers at once, and wait for all, lest one start while another measures.

        Returns the environment as the first sees it.

        Raises:
            InputError: this machine cannot measure on the device.
        """
        for process in range(self.protocol.processes):
            self._workers[process] = self._spawn(self.device, process, self.protocol)
        environments = [worker.hello() for worker in self._workers.values()]
        return environments[0]

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.kill() if kind is not None else worker.close()

    @contextlib.contextmanager
    def rehearsal(self, cases: Sequence[Case]) -> Iterator[None]:
        """While the body runs, every worker calls each of `cases` once; waits for them.

        Otherwise each would load its libraries as its turn comes, and the others wait; and in the first,
        whose first calls go into rows, that would be part of whichever row came first. A worker that fails
        costs nothing but its start, since `measure` starts another.
        """
        limit_s = min(self.protocol.timeout_s, _REHEARSAL_S)
        request = RehearsalRequest(cases=tuple(cases), limit_s=limit_s)
        asked = dict(self._workers) if cases else {}
        for worker in asked.values():
            worker.rehearse(request)
        until = time.monotonic() + limit_s + self.protocol.timeout_s  # of the last call that it began
        yield
        for process, worker in asked.items():
            if not worker.rehearsed(until):
                self._workers.pop(process)

    def measure(self, block: Sequence[Case]) -> list[Measurement]:
        """Measure cases of one shape in every process in turn: one measurement each, in their order."""
        attempts: list[Attempt] = []
        alive = list(range(len(block)))
        for process in range(self.protocol.processes):
            if alive:
                attempt = self._attempt(process, block, alive)
                attempts.append(attempt)
                alive = [i for i in alive if attempt.outcomes[i].status == "ok"]
        hashes = {case.backend: self._kernel_hash(case.backend, case.operation) for case in block}
        return merge(block, attempts, self.clocks, hashes)

    def energy(self, cases: Sequence[Case]) -> list[Addition]:
        """Energy of a call of each case, measured in the first process; what is unknown says why.

        Nothing is tried twice: the rows are there, and energy is more.
        """
        return [addition for block in blocks(cases) for addition in self._energy_of_block(block)]

    def _energy_of_block(self, block: Sequence[Case]) -> list[Addition]:
        known: dict[int, CaseEnergy] = {}
        while left := [i for i in range(len(block)) if i not in known]:

            def notify(index: int | None, step: str, left: Sequence[int] = tuple(left)) -> None:
                self._notify(None if index is None else block[left[index]], step)

            request = EnergyRequest(cases=tuple(block[i] for i in left))
            try:
                known |= dict(zip(left, self._worker(0).energy(request, notify).energies, strict=True))
            except WorkerDiedError as death:
                self._workers.pop(0, None)
                self._refused_blocks += death.step == _STARTING
                guilty = left if death.index is None else [left[death.index]]
                why = f"{death.outcome.status}: {death.outcome.reason}"
                known |= dict.fromkeys(guilty, CaseEnergy(reason=why))
        return [
            Addition(
                case=case,
                energy_mj=known[i].energy_mj,
                energy_window_s=known[i].energy_window_s,
                energy_reason=known[i].reason,
            )
            for i, case in enumerate(block)
        ]

    def _attempt(self, process: int, block: Sequence[Case], alive: Sequence[int]) -> Attempt:
        """The outcomes of the cases `alive` in one process, restarted as often as cases end it."""
        found: dict[int, Outcome] = {}
        left = list(alive)
        check, orphans = True, 0
        result: BlockResult | None = None
        while left:
            request = BlockRequest(
                cases=tuple(block[i] for i in left),
                clocks=self.clocks,
                first=process == 0,
                check=check,
            )

            def notify(index: int | None, step: str, left: Sequence[int] = tuple(left)) -> None:
                self._notify(None if index is None else block[left[index]], step)

            try:
                result = self._worker(process).measure(request, notify)
                self.timed_s += result.timed_s
            except WorkerDiedError as death:
                self._workers.pop(process, None)
                if death.index is not None:
                    found[left.pop(death.index)] = death.outcome
                    continue
                orphans += 1
                check = check and death.step != "reference"
                if orphans > _MAX_ORPHAN_DEATHS or self._refused_blocks:
                    self._refused_blocks += death.step == _STARTING
                    found |= dict.fromkeys(left, death.outcome)
                    left = []
                continue
            found |= dict(zip(left, result.outcomes, strict=True))
            break
        return Attempt(process, found, result)

    def _worker(self, process: int) -> Worker:
        """The worker of a process, started if there is none.

        Raises:
            WorkerDiedError: it cannot be started again; the device must have gone.
        """
        if process in self._workers:
            return self._workers[process]
        if self._refused_blocks >= _MAX_REFUSED_BLOCKS:
            raise WorkerDiedError(None, _STARTING, Outcome(status="crashed", reason=self._refusal))
        try:
            worker = self._spawn(self.device, process, self.protocol)
            worker.hello()
        except InputError as error:
            self._refusal = f"no worker could be started any more: {error}"
            raise WorkerDiedError(None, _STARTING, Outcome(status="crashed", reason=self._refusal)) from None
        self._refused_blocks = 0
        self._workers[process] = worker
        return worker
