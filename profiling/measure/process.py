"""One worker process as its parent sees it: started, spoken to through two pipes, and ended. No torch.

A worker that ends, hangs or talks nonsense is a `WorkerDiedError` that says at which case and step.
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
from typing import IO, Any, TypeVar

from profiling.case import InputError, Protocol
from profiling.measure.children import child_environment
from profiling.measure.messages import (
    FROM_WORKER,
    BlockRequest,
    BlockResult,
    EnergyRequest,
    EnergyResult,
    Hello,
    Outcome,
    Refused,
    RehearsalRequest,
    Rehearsed,
    Stage,
    Start,
    Unclean,
)
from profiling.records import Environment

_COMMAND = (sys.executable, "-m", "profiling.measure.worker")
START_TIMEOUT_S = 300.0
# Steps that belong to no single case (inputs, reference) may take this many times a case's limit.
_SHARED_SHARE = 5
_END_WAIT_S = 10.0  # for a worker that has closed its pipe to end, with its last words
_SEND_WAIT_S = 60.0
_MAX_LINE_BYTES = 2**28  # of one answer; what is longer is none
_MAX_LOG_BYTES = 2**20  # of what it printed, where its last words are looked for

_Result = TypeVar("_Result", BlockResult, EnergyResult)


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
        self._buffer = b""
        self._busy = False
        self._environment: Environment | None = None
        try:
            self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        except OSError as error:
            raise InputError(
                f"a worker process needs a temporary folder that it can write to ({error.strerror}): "
                "make room in it, or set TMPDIR to another"
            ) from None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs_in), str(theirs_out)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs_in, theirs_out),
                env=child_environment(),
                start_new_session=True,  # a terminal's Ctrl-C is for the parent alone
            )
        except OSError as error:  # no memory or process number left
            for descriptor in (ours_in, ours_out):
                os.close(descriptor)
            raise InputError(f"a worker process could not start: {error.strerror}") from None
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        with contextlib.suppress(_SilentError, _EndedError):  # `hello` finds out, and says why
            self._send(Start(device=device, process=process, protocol=protocol))

    def hello(self) -> Environment:
        """Wait until the worker is ready; its environment.

        Raises:
            InputError: it cannot measure on this device; a sentence that says why.
        """
        if self._environment is None:
            try:
                message = self._receive(START_TIMEOUT_S)
            except (_SilentError, _EndedError, _GarbageError) as error:
                words = self._last_words(error)
                self.kill()
                raise InputError(f"a worker process could not start: {words}") from None
            if isinstance(message, Refused):
                self.kill()
                raise InputError(message.message)
            if not isinstance(message, Hello):
                self.kill()
                raise InputError(f"a worker process could not start: it said {message.kind!r} first")
            self._environment = message.environment
        return self._environment

    def measure(self, request: BlockRequest, notify: Callable[[int | None, str], None]) -> BlockResult:
        """Measure a block; `notify` hears each step's case and name.

        Raises:
            WorkerDiedError: the process ended, was poisoned, or a case exceeded the protocol's time limit.
        """
        return self._ask(request, BlockResult, notify)

    def energy(self, request: EnergyRequest, notify: Callable[[int | None, str], None]) -> EnergyResult:
        """Measure the energy of a block's cases; as `measure`."""
        return self._ask(request, EnergyResult, notify)

    def rehearse(self, request: RehearsalRequest) -> None:
        """Have cases called once; comes back at once, `rehearsed` waits for the end."""
        self._busy = True
        with contextlib.suppress(_SilentError, _EndedError):  # `rehearsed` finds out
            self._send(request)

    def rehearsed(self, until: float) -> bool:
        """Wait for the end of a rehearsal; a worker that has not ended it well is killed: False.

        `until` is the reading of `time.monotonic` at which time is up.
        """
        try:
            message = self._receive(max(until - time.monotonic(), 0.0))
        except (_SilentError, _EndedError, _GarbageError):
            message = None
        if not isinstance(message, Rehearsed):
            self.kill()
            return False
        self._busy = False
        return True

    def _ask(self, request: Any, wanted: type[_Result], notify: Callable[[int | None, str], None]) -> _Result:
        index: int | None = None
        step = "start"
        spent_s: dict[int | None, float] = {}
        limit_s = self.protocol.timeout_s * _SHARED_SHARE
        self._busy = True
        began = time.monotonic()
        try:
            self._send(request)
        except (_SilentError, _EndedError) as error:
            raise self._died(None, step, error) from None
        while True:
            try:
                message = self._receive(max(limit_s - spent_s.get(index, 0.0), 0.0))
                _check(message, wanted, len(request.cases))
            except _SilentError:
                self.kill()
                limit = self.protocol.timeout_s * (1 if index is not None else _SHARED_SHARE)
                reason = f"took more than {limit:g} s, at the step {step!r}"
                raise WorkerDiedError(index, step, Outcome(status="timeout", reason=reason)) from None
            except (_EndedError, _GarbageError) as error:
                raise self._died(index, step, error) from None
            now = time.monotonic()
            spent_s[index] = spent_s.get(index, 0.0) + now - began
            began = now
            if isinstance(message, wanted):
                self._busy = False
                return message
            if isinstance(message, Unclean):
                self.kill()
                raise WorkerDiedError(message.index, step, message.outcome)
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
        if self._process.poll() is None or self._busy:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its children too, if it has just died itself
            self._process.wait()
        self._busy = False
        self._selector.close()
        for descriptor in (self._in, self._out):
            if descriptor >= 0:
                os.close(descriptor)
        self._in = self._out = -1
        self._log.close()

    def _died(self, index: int | None, step: str, error: Exception) -> WorkerDiedError:
        words = self._last_words(error)
        self.kill()
        reason = f"{words}, at the step {step!r}"
        return WorkerDiedError(index, step, Outcome(status="crashed", reason=reason))

    def _last_words(self, error: Exception) -> str:
        """What went wrong with the process, and the last line that it or a library wrote.

        `error` is what was noticed. Where its pipe is closed, its exit code is to be had in a moment.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_WAIT_S if isinstance(error, _EndedError) else 0)
        code = self._process.poll()
        if isinstance(error, _GarbageError):
            return f"the worker sent what is no answer, {str(error)!r}"
        if code is None:
            closed = isinstance(error, _EndedError)
            how = "the worker closed its pipe and went on" if closed else "the worker stopped answering"
        elif code < 0:
            how = f"the worker was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (the kernel does that when memory runs out)"
        else:
            how = f"the worker ended with exit code {code}"
        if self._log.closed:
            return how
        self._log.seek(max(self._log.seek(0, os.SEEK_END) - _MAX_LOG_BYTES, 0))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        # A fault handler's dump names the fault first and then every frame.
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        last = (fatal or [line for line in lines if line.strip()] or [""])[-1].strip()
        return f"{how}: {last[:200]}" if last else how

    def _send(self, message: Any) -> None:
        """Write to the worker; one that does not read in time raises `_SilentError`."""
        data = memoryview((message.model_dump_json() + "\n").encode())
        deadline = time.monotonic() + _SEND_WAIT_S
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:  # its pipe is full
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise _SilentError from None
                with selectors.DefaultSelector() as room:
                    room.register(self._out, selectors.EVENT_WRITE)
                    room.select(left_s)
            except OSError:
                raise _EndedError from None

    def _receive(self, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise _GarbageError(_excerpt(self._buffer))
            if not self._selector.select(max(deadline - time.monotonic(), 0.0)):
                raise _SilentError
            chunk = os.read(self._in, 1 << 16)
            if not chunk:
                raise _EndedError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return FROM_WORKER.validate_json(line)
        except ValueError:
            raise _GarbageError(_excerpt(line)) from None


def _check(message: Any, wanted: type[BlockResult] | type[EnergyResult], n_cases: int) -> None:
    """See that an answer can belong to a request of so many cases, which wants such a result."""
    if isinstance(message, wanted):
        found = message.outcomes if isinstance(message, BlockResult) else message.energies
        fits = len(found) == n_cases
    elif isinstance(message, Stage | Unclean):
        fits = message.index is None or 0 <= message.index < n_cases
    else:
        fits = False
    if not fits:
        raise _GarbageError(_excerpt(message.model_dump_json().encode()))


def _excerpt(line: bytes) -> str:
    return line[:80].decode("utf-8", "replace")


class _SilentError(Exception):
    """No answer in time."""


class _EndedError(Exception):
    """The worker closed its pipe."""


class _GarbageError(Exception):
    """What the worker sent is no answer; its beginning."""
