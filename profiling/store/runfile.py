"""Run files: the only reader and writer.

A run file is JSON Lines. Each line is one object whose `kind` says what it holds: `header` (the first
line), `case` (a `Measurement`), `addition` (what was measured of a case later), `environment` (a further
environment, numbered from 1), `resumed` (a new process went on with the run) and `end`. Lines are only ever
appended.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from profiling.case import ATTENTION, Case, InputError, first_problem
from profiling.records import (
    SCHEMA_VERSION,
    Addition,
    Environment,
    Measurement,
    Run,
    RunEnd,
    RunHeader,
)
from profiling.store.collector import paused
from profiling.store.journal import Journal, WriteError
from profiling.store.notes import Note, read_notes

RUN_FOLDERS = ("samples", "runs")  # below the data folder, in the order they are listed
LONGEST_MS = 1e100  # what lies beyond is no latency, and overflows a ratio
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunInfo(NamedTuple):
    """One run file as a list shows it. `problem` is a sentence if the file could not be read, else empty."""

    path: Path
    run_id: str
    device_name: str
    created_at: str
    label: str
    n_cases: int
    n_by_status: dict[str, int]
    planned_cases: int | None = None
    pid: int | None = None
    end_status: str = ""  # "finished", "interrupted", "budget", or empty: still running, or killed
    problem: str = ""
    n_tiled: int = 0  # cases with a requested tile
    n_counted: int = 0  # cases with hardware counters
    operations: tuple[str, ...] = ()  # of its cases, sorted
    archived: bool = False  # see `store.notes`
    began_at: str = ""  # when the process that wrote last began to write


def now() -> str:
    """The current time as run files write it: UTC, ISO 8601, whole seconds, ending in Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run_path(folder: Path, run_id: str) -> Path:
    """`<folder>/<run_id>.jsonl`.

    Raises:
        InputError: the id could leave the folder or is no plain file name.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise InputError(
            f"run id {run_id!r} cannot name a file: must be 1 to 100 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )
    return folder / f"{run_id}.jsonl"


def new_run_path(folder: Path, run_id: str | None, name: str, device: str, remedy: str) -> Path:
    """Where a new run goes: under its id, else under the time, the sweep's `name` and the device's kind.

    Raises:
        InputError: a run of this id is there (`remedy` says what else to do), or the folder is a file.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = run_path(folder, run_id or f"{stamp}-{name}-{device.partition(':')[0]}")
    if path.exists():
        raise InputError(f"{path}: exists already: {remedy}")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: must be a folder")
    return path


# ---------------------------------------------------------------------------------------------- writing


class RunWriter:
    """Appends to one run file. Whatever `append` has returned from is on the disk.

    Make one with `RunWriter.create` or `RunWriter.resume`; it is a context manager. While it is open, no
    other process can have one of the same file. What it writes may raise `WriteError`, see `Journal`.
    """

    def __init__(self, journal: Journal, n_environments: int) -> None:
        self.path = journal.path
        self._journal = journal
        self._n_environments = n_environments

    @classmethod
    def create(cls, path: Path, header: RunHeader) -> RunWriter:
        """Start a new run file with its header.

        Raises:
            InputError: the file exists already, or its folder cannot be written to.
        """
        return cls(Journal.create(path, _line("header", header)), n_environments=1)

    @classmethod
    def resume(
        cls, path: Path, *, pid: int | None = None, since: Run | None = None, remeasure: str = ""
    ) -> RunWriter:
        """Go on with an existing run file; a torn last line is cut off first.

        Args:
            path: the run file.
            pid: of the process that writes from now on; `load_run` puts it into `header.pid`.
            since: the run as it was read when it was decided what is left to measure.
            remeasure: which cases that have a row will get another, such as `flagged`.

        Raises:
            InputError: as `load_run`, the file cannot be written to, another process writes to it, or has
                added rows to it `since`.
        """
        journal = Journal.open(path)
        try:
            run = load_run(path)
            if since is not None and run.measurements != since.measurements:
                raise InputError(f"{path}: another run has added to it meanwhile: give the command again")
            journal.cut_torn_tail()
            writer = cls(journal, n_environments=len(run.environments))
            line = {"kind": "resumed", "at": now(), "pid": pid}
            writer._write([json.dumps(line | ({"remeasure": remeasure} if remeasure else {}))])
        except BaseException:
            journal.close()
            raise
        return writer

    def append(self, measurements: Iterable[Measurement]) -> None:
        """Add measurements in one write, flushed and synced to disk.

        Raises:
            ValueError: a sample is not a finite number, or its environment was never added.
        """
        lines = []
        for measurement in measurements:
            if not 0 <= measurement.environment < self._n_environments:
                raise ValueError(f"environment {measurement.environment} was never added to {self.path}")
            if any(not math.isfinite(sample.ms) for sample in measurement.samples):
                raise ValueError(f"a sample of {measurement.case.label} is not a finite number")
            lines.append(_line("case", measurement))
        if lines:
            self._write(lines)

    def add(self, additions: Iterable[Addition]) -> None:
        """Say what was measured of cases that have their row, in one write, synced to disk."""
        if lines := [_line("addition", addition) for addition in additions]:
            self._write(lines)

    def append_environment(self, environment: Environment) -> int:
        """Add an environment and return its number, for `Measurement.environment`."""
        self._write([_line("environment", environment)])
        self._n_environments += 1
        return self._n_environments - 1

    def end(
        self, status: str, at: str | None = None, *, took_s: float | None = None, timed_s: float | None = None
    ) -> None:
        """Say that the run ended by itself, now or at `at`; see `RunEnd`."""
        end = {"status": status, "at": at or now(), "took_s": took_s, "timed_s": timed_s}
        self._write([_line("end", RunEnd.model_validate(end))])

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        self._journal.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, lines: Sequence[str]) -> None:
        self._journal.write(lines)


def save_run(run: Run, folder: Path) -> Path:
    """Write a run that is in memory, such as an import, to `<folder>/<run_id>.jsonl`.

    Raises:
        InputError: the file exists already, cannot be written whole, or the id cannot name a file.
    """
    path = run_path(folder, run.run_id)
    with RunWriter.create(path, run.header) as writer:
        try:
            for environment in run.environments[1:]:
                writer.append_environment(environment)
            writer.append(run.measurements)
            end = run.end or RunEnd(status="finished", at=now())
            writer.end(end.status, end.at, took_s=end.took_s, timed_s=end.timed_s)
        except WriteError as error:  # half of an import is worth nothing
            path.unlink(missing_ok=True)
            raise InputError(f"{path}: cannot be written: {error.why}") from None
    return path


def check_free(path: Path) -> None:
    """See that no process writes to a run file.

    Raises:
        InputError: one does, or the file is not there or cannot be written.
    """
    Journal.open(path).close()


def _line(kind: str, record: BaseModel) -> str:
    """A record as one line. NaN and infinities become null: JSON has neither, and null means unknown."""
    return f'{{"kind":"{kind}",{record.model_dump_json().removeprefix("{")}'


# ---------------------------------------------------------------------------------------------- reading


@paused()
def load_run(path: Path) -> Run:
    """Read a run file. Everything whole is loaded; `Run.problems` says what is not.

    Of a case that is there twice, the later line counts; it is a problem unless the file says that cases were
    measured again on purpose. `header.pid` is that of the last process that wrote to the file, and `end` is
    None while (or since) something was appended after an end.

    Raises:
        InputError: no such file, not a run file, or one of a newer schema.
    """
    lines = _read(path).split(b"\n")
    torn = lines.pop()  # what follows the last newline: nothing, unless the writer was killed
    if torn and (_parse(torn) is not None or not lines):
        lines.append(torn)
        torn = b""
    header = _header(path, lines[0] if lines else b"")
    environments = [header.environment]
    cases: dict[Case, Measurement] = {}
    problems: list[str] = []
    repeated: dict[Case, None] = {}
    again: set[Case] = set()  # may have another row
    end: RunEnd | None = None
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        row = _parse(line)
        kind = row.pop("kind", None) if row is not None else None
        try:
            if row is None:
                raise ValueError("it is not a JSON object")
            if kind == "case":
                measurement = _timed(Measurement.model_validate(row))
                if not 0 <= measurement.environment < len(environments):
                    raise ValueError(f"environment {measurement.environment} is not in the file")
                if cases.pop(measurement.case, None) is not None and measurement.case not in again:
                    repeated[measurement.case] = None
                again.discard(measurement.case)
                cases[measurement.case] = measurement
                end = None
            elif kind == "addition":
                addition = Addition.model_validate(row)
                if addition.case not in cases:
                    raise ValueError(f"{addition.case.label} has no row before it")
                cases[addition.case] = _with(cases[addition.case], addition)
            elif kind == "environment":
                environments.append(Environment.model_validate(row))
            elif kind == "resumed":
                header = header.model_copy(update={"pid": _pid(row)})
                again = set(cases) if row.get("remeasure") else set()
                end = None
            elif kind == "end":
                end = RunEnd.model_validate(row)
            else:
                raise ValueError(f"its kind is {kind!r}, which this version does not know")
        except ValidationError as error:
            problems.append(f"line {number} could not be read and is left out: {first_problem(error)}")
        except ValueError as error:
            problems.append(f"line {number} could not be read and is left out: {error}")
    if torn:
        problems.append(f"the last line (line {len(lines) + 1}) is torn and is left out")
    if repeated:
        problems.append(
            f"{len(repeated)} case(s) are in the file more than once, the last line counts: "
            f"{next(iter(repeated)).label}" + (", ..." if len(repeated) > 1 else "")
        )
    return Run(
        header=header,
        measurements=tuple(cases.values()),
        environments=tuple(environments),
        problems=tuple(problems),
        end=end,
        path=path,
    )


def _timed(measurement: Measurement) -> Measurement:
    """The measurement, if its latencies are times; logarithms are taken of them.

    Raises:
        ValueError: one is not.
    """
    times = [sample.ms for sample in measurement.samples]
    for clock in measurement.clocks:
        quantiles = (clock.latency_p20_ms, clock.latency_p50_ms, clock.latency_p80_ms)
        times += [ms for ms in quantiles if ms is not None]
    for ms in times:
        if not 0 < ms <= LONGEST_MS:
            raise ValueError(f"a latency must be above 0 and at most {LONGEST_MS:g} ms, got {ms:g}")
    return measurement


def _with(measurement: Measurement, addition: Addition) -> Measurement:
    fields = addition.model_dump(exclude={"case", "source"}, exclude_none=True)
    return measurement.model_copy(update=fields)


def list_runs(data_dir: Path) -> list[RunInfo]:
    """The run files below `<data_dir>/samples` and `<data_dir>/runs`, each folder's newest first.

    A file that cannot be read is in the list too, with its `problem`; one with a note has that note's label.
    """
    notes = read_notes(data_dir)
    found = []
    for folder in RUN_FOLDERS:
        paths = sorted((data_dir / folder).glob("*.jsonl"))
        infos = [_noted(_info(path), notes.get(path.stem, Note())) for path in paths]
        found += sorted(infos, key=lambda info: info.created_at, reverse=True)
    return found


def _noted(info: RunInfo, note: Note) -> RunInfo:
    return info._replace(label=note.label or info.label, archived=note.archived)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such run file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None. Half a surrogate pair, which no page can show, becomes `?`."""
    try:
        row = json.loads(line)
        if b"\\ud" in line or b"\\uD" in line:
            row = json.loads(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _pid(row: dict[str, Any]) -> int | None:
    pid = row.get("pid")
    return pid if isinstance(pid, int) else None


def _header(path: Path, line: bytes) -> RunHeader:
    row = _parse(line)
    if row is None or row.pop("kind", None) != "header":
        raise InputError(f"{path}: not a run file: its first line must be a header")
    version = row.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: written by a newer FlashScope (schema {version}; this one reads up to "
            f"{SCHEMA_VERSION}): upgrade flashscope to read it"
        )
    try:
        return RunHeader.model_validate(row)
    except ValidationError as error:
        raise InputError(f"{path}: not a run file: its header is wrong at {first_problem(error)}") from None


def _planned(planned: int | None, n_refined: int, n_cases: int) -> int | None:
    """See `Run.planned_cases`; None for an import, which says nothing of a plan."""
    return None if planned is None else max(planned + n_refined, n_cases)


def _info(path: Path) -> RunInfo:
    """What a list shows, without validating each line: 500 cases take some 20 ms instead of 200."""
    try:
        lines = _read(path).split(b"\n")
        header = _header(path, lines[0])
    except InputError as error:
        return RunInfo(path, path.stem, "", "", "", 0, {}, problem=str(error))
    statuses: dict[str, str] = {}
    tiled: set[str] = set()
    refined: set[str] = set()
    counted: set[str] = set()
    operations: set[str] = set()
    pid, end_status, began_at = header.pid, "", header.created_at
    for line in lines[1:]:
        row = _parse(line) or {}
        kind = row.get("kind")
        if kind == "case":
            case = row.get("case")
            key = json.dumps(case)
            statuses[key] = str(row.get("status"))
            if isinstance(case, dict):
                operations.add(str(case.get("operation", ATTENTION)))
                if case.get("tile_m") is not None:
                    tiled.add(key)
            if row.get("refined"):
                refined.add(key)
            if row.get("dram_read_bytes") is not None:
                counted.add(key)
            end_status = ""
        elif kind == "resumed":
            pid, end_status, began_at = _pid(row), "", str(row.get("at") or began_at)
        elif kind == "end":
            end_status = str(row.get("status"))
    return RunInfo(
        path=path,
        run_id=header.run_id,
        device_name=header.environment.device_name,
        created_at=header.created_at,
        label=header.label,
        n_cases=len(statuses),
        n_by_status=dict(Counter(statuses.values())),
        planned_cases=_planned(header.planned_cases, len(refined), len(statuses)),
        pid=pid,
        end_status=end_status,
        n_tiled=len(tiled),
        n_counted=len(counted),
        operations=tuple(sorted(operations)),
        began_at=began_at,
    )
