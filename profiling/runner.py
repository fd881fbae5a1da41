"""One `flashscope run`: from a sweep to a run file. Wires plan, workers, lock, file and progress.

Part of the command line, and imported by its `run` command alone: it is the way into `measure`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console

from profiling import sweep as sweeps
from profiling.case import Case, InputError, Sweep, first_problem, load_sweep, split_backend
from profiling.case import Protocol as MeasuringProtocol
from profiling.fingerprint import kernel_hash
from profiling.measure.budget import cost_s, planned_clocks
from profiling.measure.client import Client
from profiling.measure.environment import check_device, with_provenance
from profiling.measure.lock import device_lock
from profiling.records import Environment, Run, RunHeader
from profiling.store import RunWriter, load_run, now, run_path

EXECUTORS = ("local", "ray")


class Request(NamedTuple):
    """What was asked for on the command line."""

    sweep: Path | None
    device: str | None
    out: Path
    backends: tuple[str, ...] | None = None
    resume: Path | None = None
    force_resume: bool = False
    git_commit: str | None = None
    run_id: str | None = None
    label: str = ""
    executor: str = "local"
    argv: tuple[str, ...] = ()


class Result(NamedTuple):
    """How a run ended: its file, `finished` or `interrupted`, rows and planned cases, rows by status."""

    path: Path
    status: str
    n_rows: int
    n_planned: int
    n_by_status: dict[str, int]


def run(request: Request, console: Console | None = None) -> Result:
    """Measure a sweep, or what is left of it, into a run file.

    Raises:
        InputError: something asked for cannot be; nothing was measured, no file was made or changed.
        KeyboardInterrupt: Ctrl-C before the first measurement.
    """
    console = console or Console(file=sys.stderr)
    old = None if request.resume is None else load_run(request.resume)
    if old is not None and request.run_id is not None:
        raise InputError("--run-id names a new run and --resume goes on with an old one: give one of them")
    if request.executor not in EXECUTORS:
        raise InputError(f"--executor {request.executor}: must be one of {', '.join(EXECUTORS)}")
    sweep = _sweep(request, old)
    cases = _cases(sweep, request.backends)
    device = _device(request, old)
    plan = sweeps.remaining(cases, () if old is None else [m.case for m in old.measurements])
    path = old.path if old is not None and old.path is not None else _new_path(request, sweep, device)
    for problem in () if old is None else old.problems:
        console.print(f"{path}: {problem}", soft_wrap=True, highlight=False)
    if old is not None and not plan:
        return _nothing_left(old, path)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    clocks = planned_clocks(sweep.protocol, device)
    with _interruptible(), contextlib.ExitStack() as stack:
        progress = sweeps.RunProgress(
            plan, lambda case: cost_s(case, sweep.protocol, clocks, device.partition(":")[0]), console
        )
        say(f"Starting {sweep.protocol.processes} worker process(es) on {device} ...")
        opener = functools.partial(open_device, device, sweep.protocol, clocks)
        place: _Place
        if request.executor == "ray":
            from profiling.cluster import Cluster

            place = stack.enter_context(Cluster(opener, device))
        else:
            place = _Here(*stack.enter_context(opener(say, progress.at)))
        environments = [with_provenance(x, request.argv, request.git_commit) for x in place.environments]
        writer, numbers = _writer(request, old, path, sweep, cases, clocks, environments)
        stack.enter_context(writer)
        names = ", ".join(dict.fromkeys(environment.device_name for environment in environments))
        say(f"Measuring {sum(map(len, plan))} cases on {names}, rows go to {path}")
        stack.enter_context(progress)
        status = sweeps.run(plan, execute=place.executor(numbers), writer=writer, progress=progress)
    return _result(load_run(path), path, status)


def _sweep(request: Request, old: Run | None) -> Sweep:
    if request.sweep is not None:
        return load_sweep(request.sweep)
    if old is None:
        raise InputError("no sweep: name a TOML file such as data/sweeps/quick.toml, or a run with --resume")
    from pydantic import ValidationError

    try:
        return Sweep.model_validate(old.header.sweep)
    except ValidationError as error:
        raise InputError(
            f"{old.path}: its header holds no sweep to go on with ({first_problem(error)}): name the file"
        ) from None


def _cases(sweep: Sweep, backends: Sequence[str] | None) -> list[Case]:
    known = {split_backend(name) for group in sweep.group for name in group.backends}
    for name in backends or ():
        if split_backend(name) not in known:
            names = sorted("/".join(filter(None, pair)) for pair in known)
            raise InputError(f"--backends: {name} is not in sweep {sweep.name}, which has {', '.join(names)}")
    cases = sweep.cases(backends)
    if not cases:
        raise InputError(f"sweep {sweep.name} has no cases to measure: an axis is empty")
    return cases


def _device(request: Request, old: Run | None) -> str:
    if request.device is not None:
        return check_device(request.device)
    if old is not None and old.header.environment.device_kind == "cpu":
        return "cpu"
    return "cuda:0"


def _new_path(request: Request, sweep: Sweep, device: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    run_id = request.run_id or f"{stamp}-{sweep.name}-{device.partition(':')[0]}"
    path = run_path(request.out, run_id)
    if path.exists():
        raise InputError(f"{path}: exists already; go on with it by --resume, or choose another --run-id")
    if request.out.exists() and not request.out.is_dir():
        raise InputError(f"--out {request.out}: must be a folder")
    return path


@contextlib.contextmanager
def open_device(
    device: str,
    protocol: MeasuringProtocol,
    clocks: Sequence[str],
    say: Callable[[str], None] = print,
    notify: Callable[[Case | None, str], None] = lambda case, step: None,
) -> Iterator[tuple[sweeps.Measure, Environment]]:
    """Workers on a device, and the device's lock: what measures a block, and the environment.

    Raises:
        InputError: this machine cannot measure on the device.
    """
    with contextlib.ExitStack() as stack:
        if device == "cpu":  # starting workers would already disturb another run
            stack.enter_context(device_lock("cpu", say))
        client = stack.enter_context(Client(device, protocol, clocks, kernel_hash=kernel_hash, notify=notify))
        environment = client.start()
        if device != "cpu":
            stack.enter_context(device_lock(environment.device_uuid or device, say))
        yield client.measure, environment


def _writer(
    request: Request,
    old: Run | None,
    path: Path,
    sweep: Sweep,
    cases: Sequence[Case],
    clocks: Sequence[str],
    environments: Sequence[Environment],
) -> tuple[RunWriter, list[int]]:
    """A writer on the run's file, and the number that each environment has in it."""
    if old is not None:
        known = [
            sweeps.environment_to_resume(old, environment, force=request.force_resume)
            for environment in environments
        ]
        writer = RunWriter.resume(path, pid=os.getpid())
        return writer, _numbered(writer, environments, known)
    header = RunHeader(
        run_id=path.stem,
        created_at=now(),
        label=request.label,
        environment=environments[0],
        sweep=sweep.model_dump(mode="json"),
        clocks=tuple(clocks),
        planned_cases=len(cases),
        pid=os.getpid(),
    )
    writer = RunWriter.create(path, header)
    return writer, _numbered(writer, environments, [0, *(None for _ in environments[1:])])


def _numbered(
    writer: RunWriter, environments: Sequence[Environment], known: Sequence[int | None]
) -> list[int]:
    """The environments' numbers; those that are not known to the file are added."""
    return [
        writer.append_environment(environment) if number is None else number
        for environment, number in zip(environments, known, strict=True)
    ]


class _Place(Protocol):
    """Where blocks are measured: its environments, and the executor once they have their numbers."""

    environments: list[Environment]

    def executor(self, numbers: Sequence[int]) -> sweeps.Executor: ...


class _Here:
    """This machine, one device."""

    def __init__(self, measure: sweeps.Measure, environment: Environment) -> None:
        self.environments = [environment]
        self._measure = measure

    def executor(self, numbers: Sequence[int]) -> sweeps.Executor:
        return sweeps.in_turn(self._measure, numbers[0])


def _nothing_left(old: Run, path: Path) -> Result:
    if old.end is None or old.end.status != "finished":
        with RunWriter.resume(path, pid=os.getpid()) as writer:
            writer.end("finished")
    return _result(old, path, "finished")


def _result(run: Run, path: Path, status: str) -> Result:
    counts = Counter(row.status for row in run.measurements)
    planned = run.header.planned_cases or len(run.measurements)
    return Result(path, status, len(run.measurements), planned, dict(counts))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM both raise KeyboardInterrupt, even where a shell had SIGINT ignored."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
