"""Hardware counters of cases: runs them under Nsight Compute, many in one process. No torch.

The process that is profiled (`profiling.measure.counted`) makes one call of each case between
cudaProfilerStart and cudaProfilerStop, led by a kernel that only waits: in the report, the kernels between
two such marks are one call. It notes in a file what it is at, so that a death can be blamed on a case, and
the others are counted in a new process.

Every call starts on cold caches, and its kernels find what those before them left. Where a call is one
kernel, `--cache-control all` says the same, and holds for every pass that the kernel is run in; else it is
`none`, and the process empties the L2 itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from profiling.case import COMPILED_AHEAD, Case, InputError
from profiling.measure import ncu
from profiling.measure.children import child_environment
from profiling.measure.ncu import Kernel, Report
from profiling.records import Addition, Status

MARK = "spin_kernel"  # the kernel of torch.cuda._sleep
CACHES = ("all", "none")
MAX_CASES = 64  # in one process: a death costs at most this many
START_TIMEOUT_S = 300.0
CASE_TIMEOUT_S = 180.0
_LOOK_EVERY_S = 0.5
_COMMAND = (sys.executable, "-m", "profiling.measure.counted")
# Whose forward is one kernel, as a rule; where it turns out to be several, the case is counted again.
_FUSED = (*COMPILED_AHEAD, "sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex")


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CountRequest(_Message):
    """What a process is to call, in order. It ends when `parent` is no more."""

    device: str
    seed: int
    cases: tuple[Case, ...]
    parent: int


class Note(_Message):
    """What it says of case `index`: it turns to it, profiles its call, or is done with it."""

    index: int
    what: Literal["begin", "call", "done"]
    status: Status = "ok"
    reason: str = ""
    kernel: str = ""
    block_m: int | None = None
    block_n: int | None = None


class Ended(NamedTuple):
    """How a profiled process ended: its notes, Nsight Compute's report, and its last words if it failed."""

    notes: tuple[Note, ...]
    report: Report
    words: str = ""
    timed_out: bool = False


class Count(NamedTuple):
    """What became of a case. Where it was counted, `addition` has the sums over the call's kernels."""

    case: Case
    status: Status = "ok"
    reason: str = ""
    addition: Addition | None = None
    note: Note | None = None
    n_kernels: int = 0
    caches: str = ""
    n_passes: int | None = None


Launch = Callable[[Sequence[Case], str], Ended]


def count(cases: Iterable[Case], launch: Launch) -> Iterator[list[Count]]:
    """Count cases: yields each process' results as they are there, each case once, in no order.

    Args:
        cases: what to count.
        launch: runs cases under Nsight Compute with a cache control; see `Profiler`.

    Raises:
        InputError: counters cannot be read here at all; a sentence that says why, and what to do.
    """
    queues: dict[str, list[Case]] = {caches: [] for caches in CACHES}
    some = False  # once one was counted, the machine can: what goes wrong then is a case's own
    for case in cases:
        fused = case.backend in _FUSED and case.direction == "fwd"
        queues["all" if fused else "none"].append(case)
    for caches in CACHES:
        while queues[caches]:
            batch, rest = queues[caches][:MAX_CASES], queues[caches][MAX_CASES:]
            ended = launch(batch, caches)
            if not some:
                _check(ended)
            counts, again = _sorted_out(batch, ended, caches)
            some = some or any(x.addition for x in counts)
            several = [x.case for x in counts if caches == "all" and x.addition and x.n_kernels > 1]
            queues["none"] += several
            queues[caches] = again + rest
            yield [x for x in counts if x.case not in several]


def _check(ended: Ended) -> None:
    """Refuse a process that tells of nothing but Nsight Compute's own failure."""
    if why := ncu.blocked(ended.report.errors):
        raise InputError(f"hardware counters cannot be read: {why}")
    if not ended.notes:
        words = next(iter(ended.report.errors), "") or ended.words or "it wrote nothing"
        raise InputError(f"the process to be profiled could not start under Nsight Compute: {words}")
    if not ended.report.kernels and ended.report.errors:
        raise InputError(f"Nsight Compute counted nothing: {ended.report.errors[-1]}")


def _sorted_out(batch: Sequence[Case], ended: Ended, caches: str) -> tuple[list[Count], list[Case]]:
    """What became of the cases of a batch, and those that have to be counted again.

    The latter are innocent of the end of their process; there are never as many as before.
    """
    done = {note.index: note for note in ended.notes if note.what == "done"}
    called = [note.index for note in ended.notes if note.what == "call"]
    begun = [note.index for note in ended.notes if note.what == "begin"]
    guilty = next((index for index in reversed(begun) if index not in done), None)
    calls, problem = _calls(ended.report, called, died=bool(ended.words))
    counts: list[Count] = []
    again: list[Case] = []
    for index, case in enumerate(batch):
        if index in done and done[index].status != "ok":
            counts.append(Count(case, done[index].status, done[index].reason))
        elif index in done and index in calls:
            counts.append(_counted(case, done[index], calls[index], caches, ended.report.n_passes))
        elif index == guilty:
            counts.append(_death(case, ended))
        else:
            again.append(case)
    if len(again) == len(batch) or (again and guilty is None):  # nobody to blame, and no hope in more
        said = (problem, *ended.report.errors[-1:], ended.words, "Nsight Compute reported nothing of it")
        reason = next(filter(None, said))
        counts += [Count(case, "crashed", f"not counted: {reason}") for case in again]
        again = []
    return counts, again


def _calls(report: Report, called: Sequence[int], *, died: bool) -> tuple[dict[int, list[Kernel]], str]:
    """The kernels of each case's call, and what is wrong with the report (then nothing of it counts).

    Only of a process that `died` may the last calls be missing.
    """
    if not report.complete:
        lost = report.n_announced - len(report.kernels)
        return {}, f"{lost} of {report.n_announced} kernels are missing in Nsight Compute's report"
    groups: list[list[Kernel]] = []
    for kernel in report.kernels:
        if MARK in kernel.name:
            groups.append([])
        elif groups:
            groups[-1].append(kernel)
        else:
            return {}, "Nsight Compute's report does not begin with a mark"
    if len(groups) > len(called) or (len(groups) < len(called) and not died):
        return {}, f"Nsight Compute's report has {len(groups)} marks for {len(called)} calls"
    return {index: group for index, group in zip(called, groups, strict=False) if group}, ""


def _counted(case: Case, note: Note, kernels: Sequence[Kernel], caches: str, passes: int | None) -> Count:
    addition = summed(case, kernels)
    unknown = (addition.dram_read_bytes, addition.dram_write_bytes, addition.l2_bytes) == (None,) * 3
    if unknown and addition.tensor_pipe_pct is None:
        return Count(case, "crashed", "not counted: this GPU has none of the counters that are asked for")
    return Count(case, "ok", "", addition, note, len(kernels), caches, passes)


def _death(case: Case, ended: Ended) -> Count:
    status: Status = "timeout" if ended.timed_out else "crashed"
    return Count(case, status, f"under Nsight Compute: {ended.words or 'its process ended'}")


def summed(case: Case, kernels: Sequence[Kernel]) -> Addition:
    """The counters of a call: bytes summed over its kernels, tensor-pipe use weighted by their time.

    What one of the kernels lacks is unknown for the call.
    """

    def total(field: str) -> int | None:
        values = [kernel.values.get(field) for kernel in kernels]
        known = [value for value in values if value is not None]
        return round(sum(known)) if known and len(known) == len(values) else None

    pairs = [(kernel.values.get("tensor_pipe_pct"), kernel.values.get("duration_ns")) for kernel in kernels]
    known = [(share, ns) for share, ns in pairs if share is not None and ns is not None]
    time_ns = sum(ns for _, ns in known)
    whole = len(known) == len(pairs) and time_ns > 0
    return Addition(
        case=case,
        dram_read_bytes=total("dram_read_bytes"),
        dram_write_bytes=total("dram_write_bytes"),
        l2_bytes=total("l2_bytes"),
        tensor_pipe_pct=round(sum(share * ns for share, ns in known) / time_ns, 3) if whole else None,
    )


class Profiler:
    """Nsight Compute on this machine: `launch` runs cases under it."""

    def __init__(self, device: str, seed: int, tool: str, command: Sequence[str] = _COMMAND) -> None:
        self.device = device
        self.seed = seed
        self.tool = tool
        self.metrics = ncu.choose_metrics(tool)
        self._command = tuple(command)

    @classmethod
    def here(cls, device: str, seed: int) -> Profiler:
        """The one that is installed.

        Raises:
            InputError: there is none.
        """
        tool = ncu.find()
        if tool is None:
            raise InputError(
                f"hardware counters need Nsight Compute, and there is no ncu on PATH: {ncu.INSTALL}"
            )
        return cls(device, seed, tool)

    def launch(self, cases: Sequence[Case], caches: str) -> Ended:
        """Run the cases' calls under Nsight Compute, and read what it wrote.

        Raises:
            InputError: it cannot be started.
        """
        with tempfile.TemporaryDirectory(prefix="flashscope-") as folder, tempfile.TemporaryFile() as output:
            request, notes, log = (Path(folder) / name for name in ("request.json", "notes.jsonl", "ncu.csv"))
            asked = CountRequest(device=self.device, seed=self.seed, cases=tuple(cases), parent=os.getpid())
            request.write_text(asked.model_dump_json(), encoding="utf-8")
            notes.touch()
            child = [*self._command, str(request), str(notes)]
            line = ncu.command(self.tool, metrics=self.metrics, caches=caches, log=log, child=child)
            words, timed_out = self._run(line, notes, output)
            output.seek(0)
            printed = output.read().decode("utf-8", "replace")
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            report = ncu.read_report(text)
            # What it refuses before it opens its log (an unknown option) it says on its output.
            report = report._replace(errors=(*report.errors, *ncu.read_report(printed).errors))
            last = [x.strip() for x in printed.splitlines() if x.strip() and not x.startswith("==")]
            if words and last and not timed_out:
                words = f"{words}: {last[-1][:200]}"
            return Ended(_read_notes(notes), report, words, timed_out)

    def _run(self, line: Sequence[str], notes: Path, output: IO[bytes]) -> tuple[str, bool]:
        """Run to the end, or until nothing is noted for too long; how it failed, and whether by that."""
        try:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=ncu.plain(child_environment()),
                start_new_session=True,  # a terminal's Ctrl-C is for this process alone
            )
        except OSError as error:
            raise InputError(f"{line[0]}: cannot be run: {error.strerror}") from None
        try:
            seen, silent_s = 0, 0.0
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=_LOOK_EVERY_S)
                    return ("" if code == 0 else f"it ended with exit code {code}"), False
                size = notes.stat().st_size
                silent_s = 0.0 if size != seen else silent_s + _LOOK_EVERY_S
                seen = size
                limit_s = CASE_TIMEOUT_S if seen else START_TIMEOUT_S
                if silent_s >= limit_s:
                    return f"took more than {limit_s:g} s", True
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it profiles, too
                process.wait()


def _read_notes(path: Path) -> tuple[Note, ...]:
    """The whole lines; a process that is killed may leave half of one."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValidationError):
            found.append(Note.model_validate_json(line))
    return tuple(found)
