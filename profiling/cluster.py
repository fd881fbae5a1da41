"""The executor for several GPUs: ray actors, each with a device and workers of its own.

A whole series (all N of one shape) goes to one actor, because a crossover in N must not mix devices; the
longest go first, so that what is left to the end is short and the actors end together. Every row carries the
environment of the actor that made it. Where an actor is lost, with its machine or alone, its series goes on
at another, beginning with the block that was under way, and the lost one is opened again if the cluster can.
Needs the extra `cluster`, and this checkout on every machine of the cluster.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from profiling.case import SHAPE_FIELDS, Case, InputError
from profiling.records import Environment, Measurement
from profiling.sweep import Block, Device, Executor, differences

_SERIES_FIELDS = [name for name in SHAPE_FIELDS if name not in ("seq_len_q", "seq_len_k")]
_MAX_TRIES = 3  # of a block whose actor is lost
_OPEN_TIMEOUT_S = 300.0
_REOPEN_TIMEOUT_S = 60.0  # of an actor whose machine may be gone for good
_STORE_BYTES = 2**27  # of ray's shared memory, if it is started here: rows are small
_PROCESSES = 8  # that ray starts in advance, if it is started here: one an actor, not one a core
_UNWANTED = re.compile(r"\x1b\[[0-9;]*m|\s*\(pid=[^)]*\)|\bip[=:]\s*[0-9a-f.:]+,?\s*")  # colours, addresses
_RAISED = re.compile(r"[\w.]*(Error|Exception): ")  # the last line of a traceback
_THREADS = "OMP_NUM_THREADS"  # ray gives its actors a value of its own


class OpenDevice(Protocol):
    """Opens a device where it is called: what measures blocks there, the environment, and the last step."""

    def __call__(
        self, *, compiles: bool
    ) -> AbstractContextManager[tuple[Device, Environment, Callable[[], None]]]:
        """One on each machine `compiles`; where it is open, each takes the last step, and may measure."""
        ...


def series(plan: Iterable[Block]) -> list[list[Block]]:
    """Blocks that differ in N alone, together and in their order."""
    grouped: dict[tuple[Any, ...], list[Block]] = {}
    for block in plan:
        grouped.setdefault(tuple(getattr(block[0], name) for name in _SERIES_FIELDS), []).append(block)
    return list(grouped.values())


def longest_first(plan: Iterable[Block], cost_s: Callable[[Case], float]) -> list[list[Block]]:
    """The series of a plan by what they are guessed to cost; of equals the first comes first."""
    return sorted(
        series(plan),
        key=lambda one: sum(cost_s(case) for block in one for case in block),
        reverse=True,
    )


class _Actor:
    """What runs inside an actor: one device, open for as long as the actor lives."""

    def __init__(self, open_device: OpenDevice, threads: str | None) -> None:
        os.environ.pop(_THREADS, None)
        if threads is not None:
            os.environ[_THREADS] = threads
        self._open_device = open_device
        self._opened = contextlib.ExitStack()
        self._device: Device | None = None
        self._load: Callable[[], None] | None = None

    def machine(self) -> str:
        """Which machine of the cluster it is on."""
        import ray  # pyright: ignore[reportMissingImports]

        return ray.get_runtime_context().get_node_id()

    def start(self, compiles: bool) -> Environment:
        opened = self._open_device(compiles=compiles)
        self._device, environment, self._load = self._opened.enter_context(opened)
        return environment

    def load(self) -> None:
        """The last step, once all have started."""
        assert self._load is not None
        self._load()

    def start_again(self) -> Environment:
        """In the place of one that was lost: what that one needed is compiled, and others measure."""
        environment = self.start(compiles=False)
        self.load()
        return environment

    def measure(self, block: Block) -> tuple[list[Measurement], float | None]:
        """The block's rows, and for how long calls were timed since the actor started."""
        assert self._device is not None
        return self._device.measure(block), self._device.timed_s

    def stop(self) -> None:
        self._opened.close()


class _Seat:
    """The place of one actor: the actor that has it now, if any, and the number of its environment."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.environment = 0
        self.before_s = 0.0  # timed by the actors that were lost
        self.timed_s = 0.0  # by the present one


class _Task(NamedTuple):
    """What a seat is at: a block and those that follow it; none while it is opened again."""

    seat: _Seat
    blocks: list[Block]


class Cluster:
    """Actors on the devices of a ray cluster, or of this machine if ray runs nowhere yet.

    One actor a GPU; of a CPU there is one actor, since two would measure each other (`seats` is for tests).
    `cost_s` guesses how long a case takes.
    """

    def __init__(
        self,
        open_device: OpenDevice,
        device: str,
        seats: int | None = None,
        cost_s: Callable[[Case], float] = lambda case: 1.0,
    ) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError(
                "--executor ray needs ray, which is not installed: pip install -e '.[cluster]'"
            ) from None
        if device not in ("cpu", "cuda:0"):
            raise InputError(
                f"--executor ray takes every GPU of the cluster: --device must be cuda:0 or cpu, got {device}"
            )
        self._ray: Any = ray
        self._open_device = open_device
        self._gpu = device != "cpu"
        self._count = seats
        self._cost_s = cost_s
        self._seats: list[_Seat] = []
        self._class: Any = None
        self._started_ray = False
        self._trouble = ""  # what was said of the last seat that could not be kept
        self.environments: list[Environment] = []

    @property
    def timed_s(self) -> float | None:
        """For how long calls were timed, of a seat: those of all, divided by their number."""
        if not self._seats:
            return None
        return sum(seat.before_s + seat.timed_s for seat in self._seats) / len(self._seats)

    # --------------------------------------------------------------------------------- opening and closing

    def __enter__(self) -> Cluster:
        self._connect()
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def _connect(self) -> None:
        ray = self._ray
        if ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        small = {"num_cpus": _PROCESSES, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        try:
            try:
                ray.init(address="auto", **quiet)
            except ConnectionError:
                if os.environ.get("RAY_ADDRESS"):
                    raise
                ray.init(address="local", **small, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise InputError(f"--executor ray: ray does not start: {_line(error)}") from None
        self._started_ray = True

    def _open(self) -> None:
        ray = self._ray
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if self._gpu and not gpus:
            raise InputError("--executor ray: the ray cluster has no GPU; --device cpu measures a CPU")
        # Its GPU is all that an actor needs of ray's resources: it waits while its workers measure.
        self._class = ray.remote(num_cpus=0, num_gpus=1 if self._gpu else 0)(_Actor)
        self._seats = [_Seat(self._new_actor()) for _ in range(self._count or (gpus if self._gpu else 1))]
        machines = self._answers([seat.actor.machine.remote() for seat in self._seats])
        # The first of each machine compiles, on all cores, what all there need; meanwhile the others start.
        compile_on = [machine not in machines[:number] for number, machine in enumerate(machines)]
        self.environments = self._answers(
            [seat.actor.start.remote(first) for seat, first in zip(self._seats, compile_on, strict=True)]
        )
        self._answers([seat.actor.load.remote() for seat in self._seats])
        for number, seat in enumerate(self._seats):
            seat.environment = number

    def _answers(self, asked: list[Any]) -> list[Any]:
        """What all actors answer as they are opened.

        Raises:
            InputError: one does not, or refuses.
        """
        ray = self._ray
        _, late = ray.wait(asked, num_returns=len(asked), timeout=_OPEN_TIMEOUT_S)
        if late:
            raise InputError(
                f"--executor ray: {len(late)} of {len(asked)} actors had not started after "
                f"{_OPEN_TIMEOUT_S:g} s: does another job hold their GPUs?"
            )
        try:
            return ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            refused = isinstance(error.cause, InputError)
            why = str(error.cause) if refused else f"--executor ray: an actor failed: {_line(error.cause)}"
            raise InputError(why) from None
        except ray.exceptions.RayError as error:
            raise InputError(f"--executor ray: an actor was lost as it started: {_line(error)}") from None

    def _new_actor(self) -> Any:
        return self._class.remote(self._open_device, os.environ.get(_THREADS))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            stopped = [seat.actor.stop.remote() for seat in self._seats if seat.actor is not None]
            if stopped:
                self._ray.wait(stopped, num_returns=len(stopped), timeout=10)
        self._close()

    def _close(self) -> None:
        for seat in self._seats:
            self._leave(seat)
        if self._started_ray:
            self._ray.shutdown()

    def _leave(self, seat: _Seat) -> None:
        """End a seat's actor at once; its workers end with it."""
        if seat.actor is not None:
            self._ray.kill(seat.actor)
            seat.actor = None

    # ------------------------------------------------------------------------------------------- measuring

    def executor(self, numbers: Sequence[int]) -> Executor:
        """The executor; `numbers` are those of `environments` in the run file, an actor each."""

        def execute(plan: Iterable[Block]) -> Iterator[list[Measurement]]:
            for environment, rows in self._rows(deque(longest_first(plan, self._cost_s))):
                yield [row.model_copy(update={"environment": numbers[environment]}) for row in rows]

        return execute

    def _rows(self, waiting: deque[list[Block]]) -> Iterator[tuple[int, list[Measurement]]]:
        """Rows of each block as it is done, with the place of their environment in `environments`."""
        running: dict[Any, _Task] = {}
        free = [seat for seat in self._seats if seat.actor is not None]
        tries: Counter[Case] = Counter()
        try:
            while waiting or any(task.blocks for task in running.values()):
                while free and waiting:
                    self._give(running, free.pop(), waiting.popleft())
                if not running:
                    for block in waiting.popleft():
                        yield 0, _lost(block, f"no ray actor was left to measure it: {self._trouble}")
                    continue
                measured = any(task.blocks for task in running.values())
                done, _ = self._ray.wait(
                    list(running), num_returns=1, timeout=None if measured else _REOPEN_TIMEOUT_S
                )
                if not done:
                    for seat, _ in running.values():
                        self._leave(seat)
                    running.clear()
                    continue
                seat, blocks = running.pop(done[0])
                try:
                    answer = self._ray.get(done[0])
                except self._ray.exceptions.RayError as error:
                    if self._is_alive_after(error) and blocks:
                        free.append(seat)
                    elif blocks:
                        self._reopen(running, seat)
                    else:
                        self._leave(seat)
                        continue
                    tries[blocks[0][0]] += 1
                    if tries[blocks[0][0]] == _MAX_TRIES:
                        why = f"its ray actor was lost {_MAX_TRIES} times: {self._trouble}"
                        yield seat.environment, _lost(blocks[0], why)
                        blocks = blocks[1:]
                    if blocks:
                        waiting.appendleft(blocks)
                    continue
                if not blocks:
                    if self._recognise(seat, answer):
                        free.append(seat)
                    continue
                rows, timed_s = answer
                seat.timed_s = timed_s or 0.0
                if blocks[1:]:
                    self._give(running, seat, blocks[1:])
                else:
                    free.append(seat)
                yield seat.environment, rows
        finally:
            for seat, _ in running.values():  # interrupted, or still being opened when all is done
                self._leave(seat)

    def _give(self, running: dict[Any, _Task], seat: _Seat, blocks: list[Block]) -> None:
        running[seat.actor.measure.remote(blocks[0])] = _Task(seat, blocks)

    def _is_alive_after(self, error: Any) -> bool:
        """Whether an actor still lives; keeps what it had to say, or what ray says of its end."""
        alive = isinstance(error, self._ray.exceptions.RayTaskError)
        self._trouble = _line(error.cause if alive else error)
        return alive

    def _reopen(self, running: dict[Any, _Task], seat: _Seat) -> None:
        """Give a seat a new actor, where the cluster has room for one."""
        self._leave(seat)  # one that is only out of reach would keep its GPU
        seat.before_s, seat.timed_s = seat.before_s + seat.timed_s, 0.0
        seat.actor = self._new_actor()
        running[seat.actor.start_again.remote()] = _Task(seat, [])

    def _recognise(self, seat: _Seat, environment: Environment) -> bool:
        """Find a new actor's environment among those of the run; one on a strange device is sent away."""
        for number, known in enumerate(self.environments):
            if not differences(known, environment):
                seat.environment = number
                return True
        self._trouble = "it came back on another device or with other versions"
        self._leave(seat)
        return False


def _line(error: BaseException) -> str:
    """One line of what an error says: of a remote traceback the last, else the first. It names no machine."""
    lines = [_UNWANTED.sub("", line).strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    return (lines[-1] if _RAISED.match(lines[-1]) else lines[0])[:200]


def _lost(block: Sequence[Case], reason: str) -> list[Measurement]:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [Measurement(case=case, status="crashed", reason=reason, measured_at=at) for case in block]
