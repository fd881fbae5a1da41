"""One `flashscope counters`: from a run or a sweep to hardware counters in a run file.

As `runner`, part of the command line and imported by its command alone: it is a way into `measure`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from profiling.case import Case, InputError, Protocol, split_name
from profiling.fingerprint import kernel_hash
from profiling.grid import Sweep, load_sweep
from profiling.measure.client import Client
from profiling.measure.counters import Count, Profiler, count
from profiling.measure.environment import check_device, with_provenance
from profiling.measure.lock import device_lock
from profiling.records import Environment, Measurement, Run, RunHeader
from profiling.store import RunWriter, check_free, load_run, new_run_path, now
from profiling.sweep import undisturbed

# Counters may be added to a row where these are the same, and its kernel's hash.
_IDENTITY_FIELDS = ("device_name", "torch_version", "triton_version", "cuda_version")


class Request(NamedTuple):
    """What was asked for: a sweep, or a run file to complete. `words` choose among its cases."""

    sweep: Path | None
    run: Path | None
    device: str
    out: Path
    backends: tuple[str, ...] = ()
    words: str = ""
    run_id: str | None = None
    label: str = ""
    git_commit: str | None = None
    argv: tuple[str, ...] = ()


class Result(NamedTuple):
    """The run file, and what became of each case."""

    path: Path
    counts: tuple[Count, ...]

    @property
    def failed(self) -> list[Count]:
        """The cases that were not counted; their `reason` says why."""
        return [found for found in self.counts if found.addition is None]


def count_cases(request: Request, console: Console | None = None) -> Result:
    """Count the cases of a sweep into a new run file, or complete the rows of a run.

    Raises:
        InputError: something asked for cannot be, or counters cannot be read here; nothing was written.
        KeyboardInterrupt: Ctrl-C; what was counted until then is in the file.
    """
    console = console or Console(file=sys.stderr)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    device = check_device(request.device)
    if device == "cpu":
        raise InputError("--device cpu: hardware counters are an NVIDIA GPU's: must be cuda:0, cuda:1, ...")
    old = None if request.run is None else load_run(request.run)
    sweep = None if request.sweep is None else load_sweep(request.sweep)
    seed = _seed(sweep, old)
    asked = _chosen(sweep.cases() if sweep is not None else _counted_rows(old), request)
    name = sweep.name if sweep is not None else ""
    path = request.run or new_run_path(request.out, request.run_id, name, device, "choose another --run-id")
    if request.run is not None:
        check_free(path)
    profiler = Profiler.here(device, seed)
    with Client(device, Protocol(processes=1, memory=False), ()) as client:
        say(f"Starting a process on {device} ...")
        environment = client.start()  # says what is wrong with the device before Nsight Compute is asked
    cases, refused = (asked, []) if old is None else _fitting(asked, old, environment)
    with device_lock(environment.device_uuid or device, say):
        say(f"Counting {len(cases)} cases on {environment.device_name} under Nsight Compute; to {path}")
        file = _File(
            path, sweep, old, request, with_provenance(environment, request.argv, request.git_commit)
        )
        counts = list(refused)
        try:
            for found in count(cases, profiler.launch):
                with undisturbed():
                    file.add(found)
                counts += found
                say(f"{len(counts) - len(refused)} of {len(cases)} cases are done")
        except KeyboardInterrupt:
            with undisturbed():
                file.end("interrupted")
            raise
        file.end("finished")
    order = {case: i for i, case in enumerate(asked)}
    return Result(path, tuple(sorted(counts, key=lambda found: order[found.case])))


def _seed(sweep: Sweep | None, old: Run | None) -> int:
    """What the inputs of a case are drawn from: the same as when it was measured."""
    if sweep is not None:
        return sweep.protocol.seed
    protocol = {} if old is None else old.header.sweep.get("protocol", {})
    return int(protocol.get("seed", 0)) if isinstance(protocol, dict) else 0


def _counted_rows(old: Run | None) -> list[Case]:
    """The cases of a run that ran: of the others there is nothing to count."""
    return [m.case for m in (() if old is None else old.measurements) if m.status == "ok"]


def _chosen(cases: Sequence[Case], request: Request) -> list[Case]:
    """The cases of the backends asked for whose names have all words of one of the alternatives.

    Raises:
        InputError: there are none.
    """
    wanted = {split_name(name) for name in request.backends}
    alternatives = [part.split() for part in request.words.split(",") if part.strip()]
    chosen = [
        case
        for case in cases
        if (not wanted or (case.backend, case.variant) in wanted)
        and (not alternatives or any(set(words) <= set(case.label.split()) for words in alternatives))
    ]
    if not chosen:
        among = f", such as {cases[0].label}" if cases else ""
        raise InputError(
            f"no case to count: --backends and --cases must leave some of the {len(cases)} that can be{among}"
        )
    return chosen


def _fitting(asked: Sequence[Case], old: Run, here: Environment) -> tuple[list[Case], list[Count]]:
    """The cases whose rows are of this device, software and kernels, and the others with what differs.

    Raises:
        InputError: there are none of the former.
    """
    rows = {m.case: m for m in old.measurements}
    differing = {case: _difference(rows[case], old, here) for case in asked}
    cases = [case for case in asked if not differing[case]]
    if not cases:
        raise InputError(
            f"{old.path or old.run_id}: its rows cannot be completed here: {differing[asked[0]]}; "
            "name the sweep instead, and the counters become a run of their own"
        )
    refused = [Count(case, "unsupported", why) for case, why in differing.items() if why]
    return cases, refused


def _difference(row: Measurement, old: Run, here: Environment) -> str:
    there = old.environments[row.environment]
    for name in _IDENTITY_FIELDS:
        if (a := getattr(there, name)) != (b := getattr(here, name)):
            return f"{name} was {a or 'unknown'} and is {b or 'unknown'}"
    if row.kernel_hash and row.kernel_hash != kernel_hash(row.case.backend, row.case.operation):
        return f"the kernels of {row.case.backend} have changed since it was measured"
    return ""


class _File:
    """Where the counts go: a new run file, made when there is something to write, or an old one.

    An old one is opened for each write, and its end put back: that it is completed again and again does
    not make it an unfinished run.
    """

    def __init__(
        self, path: Path, sweep: Sweep | None, old: Run | None, request: Request, environment: Environment
    ) -> None:
        self.path = path
        self._sweep = sweep
        self._old = old
        self._request = request
        self._environment = environment
        self._writer: RunWriter | None = None

    def add(self, counts: Sequence[Count]) -> None:
        """Write a process' results."""
        if self._old is None:
            self._new().append(self._row(found) for found in counts)
            return
        additions = [found.addition for found in counts if found.addition is not None]
        if not additions:
            return
        with RunWriter.resume(self.path, pid=os.getpid()) as writer:
            writer.add(additions)
            if (end := self._old.end) is not None:
                writer.end(end.status, end.at, took_s=end.took_s, timed_s=end.timed_s)

    def end(self, status: str) -> None:
        """Say how it ended, where it is a run of its own."""
        if self._writer is not None:
            self._writer.end(status)
            self._writer.close()

    def _new(self) -> RunWriter:
        if self._writer is None:
            sweep = self._sweep
            header = RunHeader(
                run_id=self.path.stem,
                created_at=now(),
                label=self._request.label,
                environment=self._environment,
                sweep={} if sweep is None else sweep.model_dump(mode="json"),
                planned_cases=None if sweep is None else len(_chosen(sweep.cases(), self._request)),
                pid=os.getpid(),
            )
            self._writer = RunWriter.create(self.path, header)
        return self._writer

    def _row(self, found: Count) -> Measurement:
        """A row without a latency: nothing was timed, and nothing compared with the oracle."""
        fields = (
            {} if found.addition is None else found.addition.model_dump(exclude={"case"}, exclude_none=True)
        )
        if (note := found.note) is not None:
            fields |= {"kernel": note.kernel, "block_m": note.block_m, "block_n": note.block_n}
        return Measurement(
            case=found.case,
            status=found.status,
            reason=found.reason,
            kernel_hash=kernel_hash(found.case.backend, found.case.operation),
            measured_at=now(),
            **fields,
        )
