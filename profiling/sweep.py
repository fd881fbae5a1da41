"""Run a plan: block after block to whatever measures it, rows to the file, progress to the screen.

What measures, and what a case is expected to cost, are arguments: nothing here knows of torch.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from profiling.agenda import Agenda, Block
from profiling.case import Case, InputError, blocks
from profiling.records import Environment, Measurement, Run
from profiling.store import RunWriter
from profiling.units import duration_text

Measure = Callable[[Block], list[Measurement]]
# Takes the blocks and yields each block's rows as they are done, in any order; rows say their environment.
Executor = Callable[[Iterable[Block]], Iterator[list[Measurement]]]


class Device(Protocol):
    """What measures blocks on one device."""

    @property
    def timed_s(self) -> float | None:
        """For how many seconds calls were timed so far."""

    def measure(self, block: Block) -> list[Measurement]:
        """A row for each case."""
        ...


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

    def execute(plan: Iterable[Block]) -> Iterator[list[Measurement]]:
        for block in plan:
            yield [row.model_copy(update={"environment": environment}) for row in measure(block)]

    return execute


def run(
    plan: Agenda | Sequence[Block],
    *,
    execute: Executor,
    writer: RunWriter,
    progress: RunProgress | None = None,
    timed_s: Callable[[], float | None] = lambda: None,
    began: float | None = None,
) -> Literal["finished", "interrupted", "budget"]:
    """Measure all blocks and write a row for every case, a block at a time.

    Args:
        plan: what to measure, see `remaining`; an `Agenda` decides from block to block, which only an
            executor can follow that asks for a block when it is done with the last, as `in_turn` does.
        execute: measures the blocks, here or elsewhere; see `in_turn`.
        writer: of a run file whose header is written.
        progress: told of every block, and of its rows.
        timed_s: for how long calls were timed, asked at the end.
        began: the reading of `time.monotonic` from which on the run has taken time; by default, now.

    Returns:
        `interrupted` if Ctrl-C (or SIGTERM, where its handler raises KeyboardInterrupt) ended it: what was
        finished is in the file, the block under way is not. `budget` if the agenda has left cases out.

    Raises:
        RuntimeError: a case that was handed out got no row.
    """
    began = time.monotonic() if began is None else began
    agenda = plan if isinstance(plan, Agenda) else Agenda(plan)
    todo: dict[Case, None] = {}

    def handed_out() -> Iterator[Block]:
        for block in agenda:
            todo.update(dict.fromkeys(block))
            if progress is not None:
                progress.expect(block)
            yield block

    def end(status: Literal["finished", "interrupted", "budget"]) -> None:
        spent_s = timed_s()
        with undisturbed():
            writer.end(status, took_s=round(time.monotonic() - began, 3), timed_s=spent_s)

    try:
        for found in execute(handed_out()):
            rows = agenda.learn(found)
            with undisturbed():
                writer.append(rows)
            if progress is not None:
                progress.advance(rows)
            for row in rows:
                todo.pop(row.case, None)
        if todo:
            raise RuntimeError(f"{len(todo)} planned cases got no row, the first is {next(iter(todo)).label}")
    except KeyboardInterrupt:
        end("interrupted")
        return "interrupted"
    status = "budget" if agenda.left_out else "finished"
    end(status)
    return status


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
        self,
        plan: Sequence[Block],
        cost_s: Callable[[Case], float],
        console: Console | None = None,
        deadline_s: float = math.inf,
    ) -> None:
        self._console = console or Console(file=sys.stderr)
        self._cost_of = cost_s
        self._deadline_s = deadline_s
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
        """Seconds left: the guess, corrected by how wrong it was so far; no more than until the deadline."""
        now = time.monotonic()
        wrong_by = (now - self._began) / self._spent_s if self._spent_s else 1.0
        return min(self._left_s * wrong_by, max(self._deadline_s - now, 0.0))

    @property
    def eta_text(self) -> str:
        """`about 2 minutes left`."""
        return f"about {duration_text(self.eta_s)} left" if self._left_s > 1e-9 else ""

    def at(self, case: Case | None, step: str) -> None:
        """Show the case and the step under way."""
        if self._task is not None and self._console.is_terminal:
            self._bar.update(self._task, description=f"{case.label}: {step}" if case else step)

    def expect(self, block: Block) -> None:
        """Count the cases of a block that nobody has planned."""
        new = {case: self._cost_of(case) for case in block if case not in self._cost_s}
        if new:
            self._cost_s |= new
            self._left_s += sum(new.values())
            if self._task is not None:
                self._bar.update(self._task, total=self._spent_s + self._left_s, count=self.count_text)

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
