"""The executor for several GPUs: ray actors, each with a device and workers of its own.

A whole series (all N of one shape) goes to one actor, because a crossover in N must not mix devices. Every
row carries the environment of the actor that made it. Needs the extra `cluster`, and this checkout on
every machine of the cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple

from profiling.case import SHAPE_FIELDS, Case, InputError
from profiling.records import Environment, Measurement
from profiling.sweep import Block, Executor, Measure

# Opens a device where it is called: what measures a block there, and the environment.
OpenDevice = Callable[[], AbstractContextManager[tuple[Measure, Environment]]]
_SERIES_FIELDS = [name for name in SHAPE_FIELDS if name not in ("seq_len_q", "seq_len_k")]


def series(plan: Sequence[Block]) -> list[list[Block]]:
    """Blocks that differ in N alone, together and in their order."""
    grouped: dict[tuple[Any, ...], list[Block]] = {}
    for block in plan:
        grouped.setdefault(tuple(getattr(block[0], name) for name in _SERIES_FIELDS), []).append(block)
    return list(grouped.values())


class _Seat:
    """What runs inside an actor: one device, open for as long as the actor lives."""

    def __init__(self, open_device: OpenDevice) -> None:
        self._device = open_device()
        self._measure: Measure | None = None

    def start(self) -> Environment:
        self._measure, environment = self._device.__enter__()
        return environment

    def measure(self, block: Block) -> list[Measurement]:
        assert self._measure is not None
        return self._measure(block)

    def stop(self) -> None:
        self._device.__exit__(None, None, None)


class _Task(NamedTuple):
    seat: int
    block: Block
    rest: list[Block]  # of the same series


class Cluster:
    """Actors on the devices of a ray cluster, or of this machine if ray runs nowhere yet.

    One actor a GPU; of a CPU there is one actor, since two would measure each other.
    """

    def __init__(self, open_device: OpenDevice, device: str, seats: int | None = None) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError(
                "--executor ray needs ray, which is not installed: pip install -e '.[cluster]'"
            ) from None
        self._ray: Any = ray
        self._open_device = open_device
        self._gpu = device != "cpu"
        self._count = seats
        self._seats: list[Any] = []
        self.environments: list[Environment] = []

    def __enter__(self) -> Cluster:
        self._ray.init(
            ignore_reinit_error=True, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def _open(self) -> None:
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        if self._gpu and not gpus:
            raise InputError("--executor ray: the ray cluster has no GPU; --device cpu measures a CPU")
        actor = self._ray.remote(num_cpus=1, num_gpus=1 if self._gpu else 0)(_Seat)
        count = self._count or (gpus if self._gpu else 1)
        self._seats = [actor.remote(self._open_device) for _ in range(count)]
        try:
            self.environments = self._ray.get([seat.start.remote() for seat in self._seats])
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            stopped = [seat.stop.remote() for seat in self._seats]
            self._ray.wait(stopped, num_returns=len(stopped), timeout=10)
        self._close()

    def _close(self) -> None:
        for seat in self._seats:
            self._ray.kill(seat)
        self._ray.shutdown()

    def executor(self, numbers: Sequence[int]) -> Executor:
        """The executor; `numbers` are those of `environments` in the run file, an actor each."""

        def execute(plan: Sequence[Block]) -> Iterator[list[Measurement]]:
            for seat, rows in self._rows(deque(series(plan))):
                number = 0 if seat is None else numbers[seat]
                yield [row.model_copy(update={"environment": number}) for row in rows]

        return execute

    def _rows(self, waiting: deque[list[Block]]) -> Iterator[tuple[int | None, list[Measurement]]]:
        """Rows of each block with the seat that made them (None: no seat was left)."""
        running: dict[Any, _Task] = {}
        free = list(range(len(self._seats)))
        while waiting or running:
            while free and waiting:
                self._give(running, free.pop(), waiting.popleft())
            if not running:  # every actor has died
                for block in waiting.popleft():
                    yield None, _lost(block)
                continue
            (ref,), _ = self._ray.wait(list(running), num_returns=1)
            task = running.pop(ref)
            try:
                rows = self._ray.get(ref)
            except self._ray.exceptions.RayError:
                if task.rest:
                    waiting.appendleft(task.rest)
                yield task.seat, _lost(task.block)
                continue
            if task.rest:
                self._give(running, task.seat, task.rest)
            else:
                free.append(task.seat)
            yield task.seat, rows

    def _give(self, running: dict[Any, _Task], seat: int, blocks: list[Block]) -> None:
        block, *rest = blocks
        running[self._seats[seat].measure.remote(block)] = _Task(seat, block, rest)


def _lost(block: Sequence[Case]) -> list[Measurement]:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reason = "the ray actor that should measure it was lost"
    return [Measurement(case=case, status="crashed", reason=reason, measured_at=at) for case in block]
