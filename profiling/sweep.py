"""Run a plan: block after block to whatever measures it, rows to the file, progress to the screen.

What measures, and what a case is expected to cost, are arguments: nothing here knows of torch.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from profiling.case import Case, InputError, blocks
from profiling.records import Environment, Measurement, Run
from profiling.store import RunWriter
from profiling.units import duration_text

Block = Sequence[Case]
Measure = Callable[[Block], list[Measurement]]
# Takes the blocks and yields each block's rows as they are done, in any order; rows say their environment.
Executor = Callable[[Sequence[Block]], Iterator[list[Measurement]]]

# A run may be resumed where these are the same: otherwise its rows would not belong together.
IDENTITY_FIELDS: tuple[str, ...] = (
    *("device_kind", "device_name", "device_uuid", "driver_version", "cuda_version"),
    *("python_version", "torch_version", "triton_version", "flashscope_version", "git_commit"),
)
_LINE_EVERY_S = 5.0


def remaining(cases: Iterable[Case], done: Collection[Case]) -> list[list[Case]]:
    """The blocks of the cases that have no row yet."""
    finished = set(done)
    return blocks(case for case in cases if case not in finished)


def in_turn(measure: Measure, environment: int = 0) -> Executor:
    """The local executor: one block after another, all in the environment with that number."""

    def execute(plan: Sequence[Block]) -> Iterator[list[Measurement]]:
        for block in plan:
            yield [row.model_copy(update={"environment": environment}) for row in measure(block)]

    return execute


def run(
    plan: Sequence[Block],
    *,
    execute: Executor,
    writer: RunWriter,
    progress: RunProgress | None = None,
) -> Literal["finished", "interrupted"]:
    """Measure all blocks and write a row for every case, a block at a time.

    Args:
        plan: what to measure, see `remaining`.
        execute: measures the blocks, here or elsewhere; see `in_turn`.
        writer: of a run file whose header is written.
        progress: told of every finished block.

    Returns:
        `interrupted` if Ctrl-C (or SIGTERM, where its handler raises KeyboardInterrupt) ended it. What was
        finished is in the file, the block under way is not.

    Raises:
        RuntimeError: a case of the plan got no row.
    """
    try:
        todo = [case for block in plan for case in block]
        for rows in execute(plan):
            with undisturbed():
                writer.append(rows)
            if progress is not None:
                progress.advance(rows)
            todo = _without(todo, [row.case for row in rows])
        if todo:
            raise RuntimeError(f"{len(todo)} planned cases got no row, the first is {todo[0].label}")
    except KeyboardInterrupt:
        with undisturbed():
            writer.end("interrupted")
        return "interrupted"
    writer.end("finished")
    return "finished"


def _without(cases: list[Case], done: Sequence[Case]) -> list[Case]:
    found = set(done)
    return [case for case in cases if case not in found]


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put SIGINT and SIGTERM off until the body is done, so that no line is written by half."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda got, _: arrived.append(got)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in arrived:
            signal.raise_signal(number)


def differences(a: Environment, b: Environment) -> list[str]:
    """What keeps the rows of two environments apart, as `field: a -> b` texts."""
    return [
        f"{name}: {getattr(a, name) or 'unknown'} -> {getattr(b, name) or 'unknown'}"
        for name in IDENTITY_FIELDS
        if getattr(a, name) != getattr(b, name)
    ]


def environment_to_resume(run: Run, environment: Environment, *, force: bool) -> int | None:
    """The number, in a run to be resumed, of the environment at hand; None if it must be added.

    Raises:
        InputError: the run knows no such environment, and `force` is not set.
    """
    for number, known in enumerate(run.environments):
        if not differences(known, environment):
            return number
    if not force:
        raise InputError(
            f"{run.path or run.run_id} cannot be resumed here, since the environment differs "
            f"({'; '.join(differences(run.environments[0], environment))}): start a new run, or give "
            "--force-resume and each row carries its own environment"
        )
    return None


class RunProgress:
    """How far a run is: a bar with ETA on a terminal, a line now and then elsewhere.

    It is redrawn once a second at most: what it draws, it takes from the cores that may be measured.
    """

    def __init__(
        self, plan: Sequence[Block], cost_s: Callable[[Case], float], console: Console | None = None
    ) -> None:
        self._console = console or Console(file=sys.stderr)
        self._cost_s = {case: cost_s(case) for block in plan for case in block}
        self._left_s = sum(self._cost_s.values())
        self._spent_s = 0.0
        self._done = 0
        self._statuses: Counter[str] = Counter()
        self._began = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[eta]}"),
            console=self._console,
            refresh_per_second=1,
            disable=not self._console.is_terminal,
        )
        self._task: Any = None

    def __enter__(self) -> RunProgress:
        self._began = self._last_line = time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task(
            "starting", total=self._left_s or 1.0, count=self.count_text, eta=self.eta_text
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @property
    def count_text(self) -> str:
        """`12/60 cases, 2 oom`."""
        bad = [f"{n} {status}" for status, n in sorted(self._statuses.items()) if status != "ok"]
        return ", ".join([f"{self._done}/{len(self._cost_s)} cases", *bad])

    @property
    def eta_s(self) -> float:
        """Seconds left: the guess, corrected by how wrong it was so far."""
        if not self._spent_s:
            return self._left_s
        return self._left_s * (time.monotonic() - self._began) / self._spent_s

    @property
    def eta_text(self) -> str:
        """`about 2 minutes left`."""
        return f"about {duration_text(self.eta_s)} left" if self._left_s > 1e-9 else ""

    def at(self, case: Case | None, step: str) -> None:
        """Show the case and the step under way."""
        if self._task is not None and self._console.is_terminal:
            self._bar.update(self._task, description=f"{case.label}: {step}" if case else step)

    def advance(self, rows: Sequence[Measurement]) -> None:
        """Count a finished block."""
        self._done += len(rows)
        self._statuses.update(row.status for row in rows)
        cost = sum(self._cost_s.get(row.case, 0.0) for row in rows)
        self._spent_s += cost
        self._left_s = max(self._left_s - cost, 0.0) if self._done < len(self._cost_s) else 0.0
        if self._console.is_terminal and self._task is not None:
            self._bar.update(self._task, advance=cost, count=self.count_text, eta=self.eta_text)
            return
        now = time.monotonic()
        if now - self._last_line >= _LINE_EVERY_S or self._done >= len(self._cost_s):
            self._last_line = now
            self._console.print(
                f"{self.count_text}, at {rows[-1].case.label}" + f", {self.eta_text}" * (self._left_s > 0),
                soft_wrap=True,
                highlight=False,
            )
