"""One `flashscope run`: from a sweep to a run file. Wires plan, workers, lock, file and progress.

Part of the command line, and imported by its `run` command alone: it is the way into `measure`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console

from profiling import energy
from profiling import sweep as sweeps
from profiling.agenda import Agenda, Limit
from profiling.case import COMPILED_AHEAD, Case, InputError, blocks, first_problem, split_backend, split_name
from profiling.case import Protocol as MeasuringProtocol
from profiling.energy import Energies
from profiling.fingerprint import kernel_hash
from profiling.grid import Sweep, load_sweep
from profiling.measure.budget import cost_s, planned_clocks
from profiling.measure.client import Client
from profiling.measure.environment import check_device, cpu_count, with_provenance
from profiling.measure.lock import device_lock
from profiling.measure.precompile import Precompiler
from profiling.measure.rehearsal import rehearsal
from profiling.planning import main_clock
from profiling.records import Environment, Run, RunHeader
from profiling.remeasure import cases_again, rows_of
from profiling.store import RunWriter, check_free, load_run, new_run_path, now
from profiling.units import duration_text, percent_text

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
    refine_to: float | None = None  # the width of brackets; None: nothing beyond the sweep
    budget_s: float | None = None
    energy: str | None = None  # one of `energy.CHOICES`
    remeasure: str | None = None  # one of `remeasure.CHOICES`


class Result(NamedTuple):
    """How a run ended: its file, `RunEnd.status`, rows and planned cases, rows by status.

    `took_s` and `timed_s` are those of `RunEnd`; None where nothing was left to measure. `n_left_out` are
    the cases for which the budget left no time.
    """

    path: Path
    status: str
    n_rows: int
    n_planned: int
    n_by_status: dict[str, int]
    took_s: float | None = None
    timed_s: float | None = None
    n_left_out: int = 0


def run(request: Request, console: Console | None = None) -> Result:
    """Measure a sweep, or what is left of it, into a run file.

    Raises:
        InputError: something asked for cannot be; nothing was measured, no file was made or changed.
        WriteError: the run file takes no more rows; what is in it is safe.
        KeyboardInterrupt: Ctrl-C before the first measurement.
    """
    began = time.monotonic()
    console = console or Console(file=sys.stderr)
    if request.resume is not None:
        check_free(request.resume)
    old = None if request.resume is None else load_run(request.resume)
    if old is not None and request.run_id is not None:
        raise InputError("--run-id names a new run and --resume goes on with an old one: give one of them")
    if request.executor not in EXECUTORS:
        raise InputError(f"--executor {request.executor}: must be one of {', '.join(EXECUTORS)}")
    if request.executor != "local" and (request.refine_to is not None or request.budget_s is not None):
        raise InputError(
            f"--executor {request.executor}: hands whole series out at once, so it must go without --refine "
            "and --budget, which decide from block to block"
        )
    if request.remeasure is not None and old is None:
        raise InputError(
            f"--remeasure {request.remeasure}: measures rows again that a run has: name it by --resume"
        )
    sweep = _sweep(request, old)
    cases = _cases(sweep, request.backends)
    device = _device(request, old)
    _check_energy(request, device)
    plan = _plan(request, old, cases)
    path = old.path if old is not None else None
    if path is None:
        remedy = "go on with it by --resume, or choose another --run-id"
        path = new_run_path(request.out, request.run_id, sweep.name, device, remedy)
    for problem in () if old is None else old.problems:
        console.print(f"{path}: {problem}", soft_wrap=True, highlight=False)
    clocks = planned_clocks(sweep.protocol, device)

    def guess_s(case: Case) -> float:
        return cost_s(case, sweep.protocol, clocks, device.partition(":")[0])

    deadline_s = math.inf if request.budget_s is None else began + request.budget_s
    plan_from = functools.partial(
        Agenda,
        plan,
        measured=() if old is None else rows_of(old.measurements, request.backends),
        clock=main_clock(clocks),
        refine_to=request.refine_to,
        limit=None if request.budget_s is None else Limit(guess_s, deadline_s),
    )
    energy_left = (
        old is not None
        and request.energy is not None
        and energy.lacking(old.measurements, request.energy, main_clock(clocks))
    )
    if old is not None and not plan and not plan_from().wide and not energy_left:
        return _nothing_left(old, path)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    with _interruptible(), contextlib.ExitStack() as stack:
        progress = sweeps.RunProgress(plan, guess_s, console, deadline_s)
        say(f"Starting {sweep.protocol.processes} worker process(es) on {device} ...")
        todo = plan_from().likely()  # what is not made ready the worker that meets it does
        place: _Place
        client: Client | None = None
        if request.executor == "ray":
            from profiling.cluster import Cluster

            opener = functools.partial(open_device, device, sweep.protocol, clocks, todo)
            place = stack.enter_context(Cluster(opener, device, cost_s=guess_s))
        else:
            client, environment, load = stack.enter_context(
                open_device(device, sweep.protocol, clocks, todo, say, progress.at)
            )
            load()
            place = _Here(client, environment)
        environments = [with_provenance(x, request.argv, request.git_commit) for x in place.environments]
        writer, numbers = _writer(request, old, path, sweep, cases, clocks, environments)
        stack.enter_context(writer)
        names = ", ".join(dict.fromkeys(environment.device_name for environment in environments))
        took = duration_text(time.monotonic() - began)  # a budget counts it
        say(f"Measuring {sum(map(len, plan))} cases on {names}, rows go to {path} (starting took {took})")
        stack.enter_context(progress)
        agenda = plan_from(environment=numbers[0] if request.executor == "local" else None)
        energies = None if client is None or request.energy is None else Energies(client.energy, writer)
        execute = place.executor(numbers)
        if energies is not None and request.energy == "all":
            execute = energies.after_each(execute)
        status = sweeps.run(
            agenda,
            execute=execute,
            writer=writer,
            progress=progress,
            timed_s=lambda: place.timed_s,
            began=began,
        )
        if energies is not None and request.energy is not None and status == "finished":
            rows = load_run(path).measurements
            wanted = energy.lacking(rows, request.energy, main_clock(clocks), numbers[0])
            say(f"Measuring the energy of {len(wanted)} cases")
            try:
                energies.measure(wanted)
            except KeyboardInterrupt:  # the rows are there, and the file says that the run is finished
                status = "interrupted"
        if energies is not None:
            say(energies.summary)
    if agenda.wide:
        say(f"Brackets wider than {percent_text(request.refine_to)} are left: --resume with --refine goes on")
    return _result(load_run(path), path, status)._replace(n_left_out=agenda.left_out)


def _check_energy(request: Request, device: str) -> None:
    if request.energy is None:
        return
    if device == "cpu":
        raise InputError(
            f"--energy {request.energy}: energy is read from a GPU's counter, so it must go with a GPU, got "
            "--device cpu"
        )
    if request.executor != "local":
        raise InputError(
            f"--energy {request.energy}: must go with --executor local, got {request.executor}: energy is "
            "measured on this machine's device"
        )


def _plan(request: Request, old: Run | None, cases: Sequence[Case]) -> list[list[Case]]:
    """The blocks of the cases without a row, and of those that are measured again."""
    if old is None:
        return sweeps.remaining(cases, ())
    left = sweeps.remaining(cases, [row.case for row in old.measurements])
    if request.remeasure is None:
        return left
    again = cases_again(old.measurements, request.remeasure, request.backends)
    return blocks([*(case for block in left for case in block), *again])


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
    known = {split_backend(name, group.operation) for group in sweep.group for name in group.backends}
    for name in backends or ():
        if split_name(name) not in known:
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


@contextlib.contextmanager
def open_device(
    device: str,
    protocol: MeasuringProtocol,
    clocks: Sequence[str],
    cases: Sequence[Case] = (),
    say: Callable[[str], None] = print,
    notify: Callable[[Case | None, str], None] = lambda case, step: None,
    *,
    compiles: bool = True,
) -> Iterator[tuple[Client, Environment, Callable[[], None]]]:
    """Workers on a device, and the device's lock: what measures blocks, the environment, and the last step.

    On a GPU what `cases` need is made ready first: kernels are compiled on all cores but one, and meanwhile
    every worker loads the libraries of the other backends. The last step, a function to be called before
    anything is measured, has them load the compiled kernels: where several devices of a machine are opened
    at once, one `compiles`, and is open before any loads.

    Raises:
        InputError: this machine cannot measure on the device.
    """
    with contextlib.ExitStack() as stack:
        if device == "cpu":  # starting workers would already disturb another run
            stack.enter_context(device_lock("cpu", say))
            cases = ()  # nothing that a CPU runs can be compiled ahead, and its libraries load at once
        calls = rehearsal(cases)
        compiled = [*cases, *calls] if compiles else []
        ahead = stack.enter_context(Precompiler(compiled, max(cpu_count() - 1, 1)))
        client = stack.enter_context(Client(device, protocol, clocks, kernel_hash=kernel_hash, notify=notify))
        environment = client.start()
        if device != "cpu":
            stack.enter_context(device_lock(environment.device_uuid or device, say))
            if calls:
                say(f"Loading libraries in {protocol.processes} worker process(es) ...")
            with client.rehearsal([case for case in calls if case.backend not in COMPILED_AHEAD]):
                _compile(ahead, environment, say)

        def load() -> None:
            if device != "cpu":
                with client.rehearsal([case for case in calls if case.backend in COMPILED_AHEAD]):
                    pass

        yield client, environment, load


def _compile(ahead: Precompiler, environment: Environment, say: Callable[[str], None]) -> None:
    if not ahead.cases:
        return
    say(f"Compiling kernels for {len(ahead.cases)} kinds of cases, unless the cache has them ...")
    if not ahead.compile(environment):
        say("Not all of them could be compiled ahead: the worker that meets one compiles it")


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
        again = request.remeasure or ""
        writer = RunWriter.resume(path, pid=os.getpid(), since=old, remeasure=again)
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

    @property
    def timed_s(self) -> float | None: ...

    def executor(self, numbers: Sequence[int]) -> sweeps.Executor: ...


class _Here:
    """This machine, one device."""

    def __init__(self, device: sweeps.Device, environment: Environment) -> None:
        self.environments = [environment]
        self._device = device

    @property
    def timed_s(self) -> float | None:
        return self._device.timed_s

    def executor(self, numbers: Sequence[int]) -> sweeps.Executor:
        return sweeps.in_turn(self._device.measure, numbers[0])


def _nothing_left(old: Run, path: Path) -> Result:
    if old.end is None or old.end.status != "finished":
        with RunWriter.resume(path, pid=os.getpid()) as writer:
            writer.end("finished")
    return _result(dataclasses.replace(old, end=None), path, "finished")


def _result(run: Run, path: Path, status: str) -> Result:
    counts = Counter(row.status for row in run.measurements)
    took_s, timed_s = (None, None) if run.end is None else (run.end.took_s, run.end.timed_s)
    n_planned = run.planned_cases
    return Result(path, status, len(run.measurements), n_planned, dict(counts), took_s, timed_s)


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
