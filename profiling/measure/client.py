"""The parent's side of the workers: starts them, restarts them, and turns their ends into rows. No torch.

A block goes to each of the protocol's processes in turn. A worker that dies or hangs has said which case
it was at: that case becomes a row, the worker is replaced, and the other cases of the block are measured
again in the fresh one.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any

from profiling.case import Case, InputError, Protocol
from profiling.measure.merge import Attempt, merge
from profiling.measure.messages import (
    FROM_WORKER,
    BlockRequest,
    BlockResult,
    Hello,
    Outcome,
    Refused,
    Stage,
    Start,
    Unclean,
)
from profiling.records import Environment, Measurement

_COMMAND = (sys.executable, "-m", "profiling.measure.worker")
START_TIMEOUT_S = 300.0
# Steps that belong to no single case (inputs, reference) may take this many times a case's limit.
_SHARED_SHARE = 5
_MAX_ORPHAN_DEATHS = 2  # deaths in a block that no case is to blame for
# Triton's interpreter is no measurement, and an autotuned tile would not be the one that a row names.
_NOT_FOR_WORKERS = ("TRITON_INTERPRET", "FLASHSCOPE_AUTOTUNE")


class WorkerDiedError(Exception):
    """A worker ended by itself or had to be killed, at `index` (None: at no case), in step `step`."""

    def __init__(self, index: int | None, step: str, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.index = index
        self.step = step
        self.outcome = outcome


class Worker:
    """One worker process and the pipes to it; `command` is what it runs, the pipes' numbers are added."""

    def __init__(
        self, device: str, process: int, protocol: Protocol, command: Sequence[str] = _COMMAND
    ) -> None:
        self.protocol = protocol
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        environment = {name: x for name, x in os.environ.items() if name not in _NOT_FOR_WORKERS}
        # Compiling in a pool would leave idle processes beside what is measured.
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs_in), str(theirs_out)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs_in, theirs_out),
                env=environment,
                start_new_session=True,  # a terminal's Ctrl-C is for the parent alone
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        os.set_blocking(self._in, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        self._buffer = b""
        self._busy = False
        self._environment: Environment | None = None
        self._send(Start(device=device, process=process, protocol=protocol))

    def hello(self) -> Environment:
        """Wait until the worker is ready; its environment.

        Raises:
            InputError: it cannot measure on this device; a sentence that says why.
        """
        if self._environment is None:
            try:
                message = self._receive(START_TIMEOUT_S)
            except (_SilentError, _EndedError) as error:
                words = self._last_words(ended=isinstance(error, _EndedError))
                self.kill()
                raise InputError(f"a worker process could not start: {words}") from None
            if isinstance(message, Refused):
                self.kill()
                raise InputError(message.message)
            assert isinstance(message, Hello)
            self._environment = message.environment
        return self._environment

    def measure(self, request: BlockRequest, notify: Callable[[int | None, str], None]) -> BlockResult:
        """Measure a block; `notify` hears each step's case and name.

        Raises:
            WorkerDiedError: the process ended, was poisoned, or a case exceeded the protocol's time limit.
        """
        index: int | None = None
        step = "start"
        spent_s: dict[int | None, float] = {}
        limit_s = self.protocol.timeout_s * _SHARED_SHARE
        try:
            self._send(request)
        except BrokenPipeError:
            raise self._died(None, step) from None
        self._busy = True
        began = time.monotonic()
        while True:
            try:
                message = self._receive(max(limit_s - spent_s.get(index, 0.0), 0.0))
            except _SilentError:
                self.kill()
                limit = self.protocol.timeout_s * (1 if index is not None else _SHARED_SHARE)
                reason = f"took more than {limit:g} s, at the step {step!r}"
                raise WorkerDiedError(index, step, Outcome(status="timeout", reason=reason)) from None
            except _EndedError:
                raise self._died(index, step) from None
            now = time.monotonic()
            spent_s[index] = spent_s.get(index, 0.0) + now - began
            began = now
            if isinstance(message, BlockResult):
                self._busy = False
                return message
            if isinstance(message, Unclean):
                self.kill()
                raise WorkerDiedError(message.index, step, message.outcome)
            assert isinstance(message, Stage)
            index, step = message.index, message.name
            limit_s = self.protocol.timeout_s * (1 if index is not None else _SHARED_SHARE)
            notify(index, step)

    def close(self) -> None:
        """Let an idle worker end by itself; kill one that does not, or is at work."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1
        if not self._busy:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
        self.kill()

    def kill(self) -> None:
        """End the worker now, whatever it does, and let go of its pipes."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its children too
            self._process.wait()
        self._selector.close()
        for descriptor in (self._in, self._out):
            if descriptor >= 0:
                os.close(descriptor)
        self._in = self._out = -1
        self._log.close()

    def _died(self, index: int | None, step: str) -> WorkerDiedError:
        words = self._last_words(ended=True)
        self.kill()
        reason = f"{words}, at the step {step!r}"
        return WorkerDiedError(index, step, Outcome(status="crashed", reason=reason))

    def _last_words(self, *, ended: bool) -> str:
        """How the process ended, and the last line that it or a library wrote.

        `ended`: its pipe is closed, so that its exit code is to be had in a moment.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10 if ended else 0)
        code = self._process.poll()
        if code is None:
            how = "the worker stopped answering"
        elif code < 0:
            how = f"the worker was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (the kernel does that when memory runs out)"
        else:
            how = f"the worker ended with exit code {code}"
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        # A fault handler's dump names the fault first and then every frame.
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        last = (fatal or [line for line in lines if line.strip()] or [""])[-1].strip()
        return f"{how}: {last[:200]}" if last else how

    def _send(self, message: Any) -> None:
        data = memoryview((message.model_dump_json() + "\n").encode())
        while data:
            data = data[os.write(self._out, data) :]

    def _receive(self, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not self._selector.select(max(deadline - time.monotonic(), 0.0)):
                raise _SilentError
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise _EndedError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return FROM_WORKER.validate_json(line)


class _SilentError(Exception):
    """No answer in time."""


class _EndedError(Exception):
    """The worker closed its pipe."""


class Client:
    """The workers of one run on one device. `measure` never fails: what goes wrong is a row."""

    def __init__(
        self,
        device: str,
        protocol: Protocol,
        clocks: Sequence[str],
        *,
        spawn: Callable[[str, int, Protocol], Worker] = Worker,
        kernel_hash: Callable[[str], str] = lambda backend: "",
        notify: Callable[[Case | None, str], None] = lambda case, step: None,
    ) -> None:
        self.device = device
        self.protocol = protocol
        self.clocks = tuple(clocks)
        self._spawn = spawn
        self._kernel_hash = kernel_hash
        self._notify = notify
        self._workers: dict[int, Worker] = {}

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

    def measure(self, block: Sequence[Case]) -> list[Measurement]:
        """Measure cases of one shape in every process in turn: one measurement each, in their order."""
        attempts: list[Attempt] = []
        alive = list(range(len(block)))
        for process in range(self.protocol.processes):
            if alive:
                attempt = self._attempt(process, block, alive)
                attempts.append(attempt)
                alive = [i for i in alive if attempt.outcomes[i].status == "ok"]
        hashes = {case.backend: self._kernel_hash(case.backend) for case in block}
        return merge(block, attempts, self.clocks, hashes)

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
            except WorkerDiedError as death:
                self._workers.pop(process, None)
                if death.index is not None:
                    found[left.pop(death.index)] = death.outcome
                    continue
                orphans += 1
                check = check and death.step != "reference"
                if orphans > _MAX_ORPHAN_DEATHS:
                    found |= dict.fromkeys(left, death.outcome)
                    left = []
                continue
            found |= dict(zip(left, result.outcomes, strict=True))
            break
        return Attempt(process, found, result)

    def _worker(self, process: int) -> Worker:
        """The worker of a process, started if there is none."""
        if process not in self._workers:
            self._workers[process] = self._spawn(self.device, process, self.protocol)
        try:
            self._workers[process].hello()
        except InputError as error:  # it was there before: the device must have gone
            raise WorkerDiedError(None, "start", Outcome(status="crashed", reason=str(error))) from None
        return self._workers[process]
