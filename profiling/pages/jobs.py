"""Runs started from the page: a detached process each. Their state is in the run file alone.

Nothing here measures or imports torch; the process is `python -m profiling run ...` and outlives the
browser tab as well as the app.
"""

from __future__ import annotations

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
from profiling.case import InputError, Sweep, load_sweep

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL_BYTES = 8192
_RUN_COMMAND = re.compile(r"(-m profiling|flashscope(\.exe)?) run\b")


class Preset(NamedTuple):
    """A sweep file as a card shows it; `problem` is a sentence when it cannot be read."""

    path: Path
    sweep: Sweep | None
    problem: str = ""


class Progress(NamedTuple):
    """How far a run is; None where a time is unknown.

    `state`: running, finished, interrupted, out of time (its budget's end) or killed.
    """

    state: str
    done: int
    planned: int | None
    elapsed_s: float | None
    left_s: float | None

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


def command(sweep: Path, device: str, folder: Path, run_id: str) -> list[str]:
    """The command that measures a sweep, as the page runs it."""
    line = [sys.executable, "-m", "profiling", "run", str(sweep), "--device", device]
    return [*line, "--out", str(folder), "--run-id", run_id]


def log_path(folder: Path, run_id: str) -> Path:
    """Where a run started from the page writes what it prints."""
    return store.run_path(folder, run_id).with_suffix(".log")


def start(sweep: Path, device: str, folder: Path, run_id: str) -> int:
    """Start a run as a process of its own session; returns its pid.

    Raises:
        InputError: the folder cannot be written to, or the run exists already.
    """
    if store.run_path(folder, run_id).exists():
        raise InputError(f"run {run_id} exists already: choose another id")
    # The interpreter is for tests: a run measured under it would be worthless.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with log_path(folder, run_id).open("wb") as log:
            process = subprocess.Popen(
                command(sweep, device, folder, run_id),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise InputError(f"{folder}: a run cannot be written there: {error.strerror}") from None
    return process.pid


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


def progress(info: store.RunInfo, now: datetime | None = None) -> Progress:
    """How far a run of the list is, from its file alone (and whether its process still lives)."""
    ended = "out of time" if info.end_status == "budget" else info.end_status
    state = ended or ("running" if is_ours(info.pid, info.run_id) else "killed")
    elapsed = left = None
    if state == "running":
        try:
            began = datetime.fromisoformat(info.created_at.replace("Z", "+00:00"))
            elapsed = max(0.0, ((now or datetime.now(UTC)) - began).total_seconds())
        except (ValueError, TypeError):
            elapsed = None
        if elapsed is not None and info.n_cases and info.planned_cases:
            left = elapsed / info.n_cases * max(0, info.planned_cases - info.n_cases)
    return Progress(state, info.n_cases, info.planned_cases, elapsed, left)


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
