"""Runs started from the page: a detached process each. Their state is in files alone.

Nothing here measures or imports torch; the process is `python -m profiling run ...` and outlives the
browser tab as well as the app. A run's file says how far it is. Until there is one, or while a run that is
gone on with waits for its device, `<run>.job.json` beside it says which process that will be.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from profiling import store
from profiling.case import InputError
from profiling.grid import Sweep, load_sweep
from profiling.sweep_text import sweep_toml

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL_BYTES = 8192
_RUN_COMMAND = re.compile(r"(-m profiling|flashscope(\.exe)?) run\b")


class Preset(NamedTuple):
    """A sweep file as a card shows it; `problem` is a sentence when it cannot be read."""

    path: Path
    sweep: Sweep | None
    problem: str = ""


class Job(NamedTuple):
    """A process that was started for a run; `resumed` if the run was there before. `at` is in UTC."""

    run_id: str
    pid: int
    device: str
    at: str
    resumed: bool = False


class Progress(NamedTuple):
    """How far a run is.

    `state`: running, finished, interrupted, out of time (its budget's end) or killed.
    """

    state: str
    done: int
    planned: int | None

    @property
    def share(self) -> float:
        """Done over planned, in [0, 1]; 0 where nothing is planned."""
        return min(1.0, self.done / self.planned) if self.planned else 0.0


def missing() -> str:
    """What this machine lacks to measure, as one sentence; empty if nothing."""
    absent = [name for name in ("torch",) if find_spec(name) is None]
    if not absent:
        return ""
    return f"{' and '.join(absent)} is not installed, so this machine can show runs but not measure."


def devices() -> list[str]:
    """The devices to offer: each NVIDIA device node of this machine, then the CPU."""
    nodes = sorted(
        int(match[1])
        for path in Path("/dev").glob("nvidia[0-9]*")
        if (match := re.fullmatch(r"nvidia(\d+)", path.name))
    )
    return [f"cuda:{i}" for i in range(len(nodes))] + ["cpu"]


def presets(folder: Path) -> list[Preset]:
    """The sweeps of a folder by name; one that cannot be read is in the list with its problem."""
    out = []
    for path in sorted(folder.glob("*.toml")):
        try:
            out.append(Preset(path, load_sweep(path)))
        except InputError as error:
            out.append(Preset(path, None, str(error)))
    return out


def new_run_id(name: str) -> str:
    """An id for a run of that sweep: its name and the time in UTC, to the second."""
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def command(sweep: Path, device: str, folder: Path, run_id: str, label: str = "") -> list[str]:
    """The command that measures a sweep, as the page runs it."""
    line = [sys.executable, "-m", "profiling", "run", str(sweep), "--device", device]
    return [*line, "--out", str(folder), "--run-id", run_id, *(["--label", label] if label else [])]


def resume_command(run: Path, device: str) -> list[str]:
    """The command that goes on with a run, as the page runs it."""
    return [sys.executable, "-m", "profiling", "run", "--resume", str(run), "--device", device]


def log_path(folder: Path, run_id: str) -> Path:
    """Where a run started from the page writes what it prints."""
    return store.run_path(folder, run_id).with_suffix(".log")


def job_path(folder: Path, run_id: str) -> Path:
    """Where it stands which process was started for a run."""
    return store.run_path(folder, run_id).with_suffix(".job.json")


def start(sweep: Path, device: str, folder: Path, run_id: str, label: str = "") -> int:
    """Start a run as a process of its own session; returns its pid.

    Raises:
        InputError: the folder cannot be written to, or the run exists already.
    """
    if store.run_path(folder, run_id).exists():
        raise InputError(f"run {run_id} exists already: choose another id")
    return _launch(command(sweep, device, folder, run_id, label), device, folder, run_id, resumed=False)


def start_text(sweep: Sweep, device: str, folder: Path, run_id: str, label: str = "") -> int:
    """As `start`, for a sweep that is no file yet: it is kept as one beside the run.

    Raises:
        InputError: as `start`.
    """
    path = store.run_path(folder, run_id).with_suffix(".toml")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as out:
            out.write(sweep_toml(sweep))
    except FileExistsError:
        raise InputError(f"run {run_id} exists already: choose another id") from None
    except OSError as error:
        raise InputError(f"{folder}: a sweep cannot be written there: {error.strerror}") from None
    return start(path, device, folder, run_id, label)


def resume(info: store.RunInfo, device: str) -> int:
    """Go on with a run that has ended early, as a process of its own; returns its pid.

    Raises:
        InputError: a process for it is there already, it is written to, or the folder cannot be written to.
    """
    store.check_free(info.path)
    folder = info.path.parent
    if any(job.run_id == info.path.stem for job in living(folder)):
        raise InputError(f"{info.path.name}: somebody has gone on with it already")
    return _launch(resume_command(info.path, device), device, folder, info.path.stem, resumed=True)


def _launch(line: list[str], device: str, folder: Path, run_id: str, *, resumed: bool) -> int:
    # The interpreter is for tests: a run measured under it would be worthless.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not resumed:
            _take_name(folder, run_id)
        with log_path(folder, run_id).open("ab" if resumed else "wb") as log:
            process = subprocess.Popen(
                line,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        job = Job(run_id, process.pid, device, store.now(), resumed)
        job_path(folder, run_id).write_text(json.dumps(job._asdict()), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: a run cannot be written there: {error.strerror}") from None
    return process.pid


def _take_name(folder: Path, run_id: str) -> None:
    """Of two that start at once, one has the name."""
    try:
        job_path(folder, run_id).touch(exist_ok=False)
    except FileExistsError:
        raise InputError(f"run {run_id} exists already: choose another id") from None


def living(folder: Path) -> list[Job]:
    """The processes that were started from the page for runs of this folder and live, oldest first."""
    found = []
    for path in folder.glob("*.job.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            job = Job(**json.loads(path.read_text(encoding="utf-8")))
            if path == job_path(folder, job.run_id) and is_ours(job.pid, job.run_id):
                found.append(job)
    return sorted(found, key=lambda job: job.at)


def waits(folder: Path, run_id: str) -> bool:
    """Whether the last thing a run printed is that it waits for its device (see `measure.lock`)."""
    return "waiting for it to end" in log_tail(folder, run_id).rpartition("\n")[2]


def refusal(folder: Path, run_id: str) -> str:
    """Why the last process of a run would not measure, in its own words; empty if it did, or says nothing."""
    last = log_tail(folder, run_id).rpartition("\n")[2]
    return last.removeprefix("flashscope: ") if last.startswith("flashscope: ") else ""


def forget(folder: Path, run_id: str) -> None:
    """Take away what a start that never came to a run file has left."""
    if not store.run_path(folder, run_id).exists():
        for path in (job_path(folder, run_id), log_path(folder, run_id)):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            store.run_path(folder, run_id).with_suffix(".toml").unlink()


def command_line(pid: int) -> str:
    """The command line of a living process; empty for a dead one, a zombie, or one that cannot be read."""
    proc = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self/cmdline").exists():
        try:
            return proc.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            return ""
    shown = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()


def is_ours(pid: int | None, run_id: str) -> bool:
    """Whether that process lives and is the one that measures this run (pids are used again by others)."""
    if pid is None or pid <= 0:
        return False
    line = command_line(pid)
    if not _RUN_COMMAND.search(line):
        return False
    named = re.search(r"--run-id[= ](\S+)", line)
    if "--resume" in line:
        return bool(re.search(rf"[\s/=]{re.escape(run_id)}\.jsonl(\s|$)", line))
    return named is None or named[1] == run_id


def cancel(pid: int | None, run_id: str) -> bool:
    """Ask a run to stop as Ctrl-C does, keeping every row. False: it is not running (any more)."""
    if pid is None or not is_ours(pid, run_id):
        return False
    try:
        os.kill(pid, signal.SIGINT)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def progress(info: store.RunInfo) -> Progress:
    """How far a run of the list is, from its file alone (and whether its process still lives)."""
    ended = "out of time" if info.end_status == "budget" else info.end_status
    state = ended or ("running" if is_ours(info.pid, info.run_id) else "killed")
    return Progress(state, info.n_cases, info.planned_cases)


def log_tail(folder: Path, run_id: str) -> str:
    """The last lines a run printed; a progress bar's rewritten line counts once. Empty without a log."""
    try:
        with log_path(folder, run_id).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
    except (OSError, InputError):
        return ""
    lines = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "\n".join(lines[-40:])).strip()
