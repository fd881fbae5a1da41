"""Claims about runs started from the page: which process is ours, how far it is, how it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from synthetic import synthetic_run, write_synthetic

from profiling import store
from profiling.case import InputError
from profiling.grid import load_sweep
from profiling.measure.lock import device_lock, lock_path
from profiling.pages import jobs
from profiling.paths import DATA_DIR


def info(**changes: object) -> store.RunInfo:
    """A run of the list: 3 of 12 cases after 30 seconds."""
    base = store.RunInfo(Path("r.jsonl"), "r", "CPU", "2026-01-01T00:00:00Z", "", 3, {"ok": 3}, 12, None)
    return base._replace(**changes)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("python -m profiling run quick.toml --device cpu --run-id r", True),
        ("/venv/bin/python /venv/bin/flashscope run quick.toml --run-id=r", True),
        ("flashscope run quick.toml --out data/runs", True),
        ("python -m profiling run --resume /my data/runs/r.jsonl --device cpu", True),
        ("python -m profiling run --resume data/runs/other-r.jsonl", False),
        ("python -m profiling run --resume data/runs/r2.jsonl --run-id r", False),
        ("python -m profiling run quick.toml --run-id r2", False),
        ("python -m profiling show r", False),
        ("sleep 100 r", False),
        ("", False),
    ],
)
def test_a_process_is_ours_by_its_command_line(
    line: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pid may have been given to another program since: its command line must be that of this run."""
    monkeypatch.setattr(jobs, "command_line", lambda pid: line)
    assert jobs.is_ours(4242, "r") is ours


def test_no_pid_is_no_process() -> None:
    """A run without a pid, or with a nonsensical one, is not running."""
    assert not jobs.is_ours(None, "r")
    assert not jobs.is_ours(0, "r")
    assert not jobs.cancel(None, "r")


def test_cancel_is_ctrl_c_and_only_for_our_process(tmp_path: Path) -> None:
    """The process of a run gets SIGINT; a stranger with the same pid gets nothing."""
    waits = """
import signal, sys
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    sys.exit(3)
"""
    mine = [sys.executable, "-c", waits, "-m", "profiling", "run", "x.toml", "--run-id", "r"]
    for command, cancelled in ((mine, True), ([sys.executable, "-c", waits], False)):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert jobs.cancel(process.pid, "r") is cancelled
            if not cancelled:
                process.send_signal(signal.SIGINT)
            assert process.wait(30) == 3
            assert not jobs.is_ours(process.pid, "r")


def test_progress_counts_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 of 12 cases are a quarter; without a plan there is no share."""
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: True)
    at = jobs.progress(info(pid=1))
    assert (at.state, at.done, at.planned, at.share) == ("running", 3, 12, 0.25)
    assert jobs.progress(info(pid=1, planned_cases=None)).share == 0.0


@pytest.mark.parametrize(
    ("end", "state"), [("finished", "finished"), ("interrupted", "interrupted"), ("", "killed")]
)
def test_a_run_without_a_process_is_what_its_file_says(end: str, state: str) -> None:
    """The last line says how a run ended; without one, and without its process, it was killed."""
    assert jobs.progress(info(end_status=end)).state == state


def test_start_runs_the_command_detached_with_its_output_in_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has its own session, so that it outlives the app, and never runs under the interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    says = "import os; print(os.getpgid(0) == os.getpid(), os.environ.get('TRITON_INTERPRET'))"
    monkeypatch.setattr(jobs, "command", lambda *a: [sys.executable, "-c", says])
    pid = jobs.start(tmp_path / "x.toml", "cpu", tmp_path / "new" / "runs", "r")
    os.waitpid(pid, 0)
    assert jobs.log_tail(tmp_path / "new" / "runs", "r") == "True None"


def test_start_refuses_an_id_that_exists_or_leaves_the_folder(tmp_path: Path) -> None:
    """Nothing is overwritten, and a run id is never a path."""
    write_synthetic(synthetic_run(run_id="r", seq_lens=(64,)), tmp_path / "r.jsonl")
    with pytest.raises(InputError, match="exists already"):
        jobs.start(tmp_path / "x.toml", "cpu", tmp_path, "r")
    with pytest.raises(InputError, match="run id"):
        jobs.start(tmp_path / "x.toml", "cpu", tmp_path, "../r")


def test_start_says_when_the_folder_cannot_be_written(tmp_path: Path) -> None:
    """A folder that is a file is one sentence, not a traceback."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        jobs.start(tmp_path / "x.toml", "cpu", tmp_path / "runs", "r")


def test_the_log_shows_a_progress_bar_once(tmp_path: Path) -> None:
    """A line rewritten with carriage returns counts as its last state; colours are left out."""
    (tmp_path / "r.log").write_bytes(b"start\n\x1b[32m10 %\x1b[0m\r\x1b[32m90 %\x1b[0m\nend\n")
    assert jobs.log_tail(tmp_path, "r") == "start\n90 %\nend"
    assert jobs.log_tail(tmp_path, "none") == ""


def test_a_broken_sweep_is_a_card_with_its_problem(tmp_path: Path) -> None:
    """One bad file among the presets does not hide the others."""
    good = 'name = "good"\n[[group]]\nbackends = ["naive"]\nseq_len = [64, 128]\n'
    (tmp_path / "a.toml").write_text(good)
    (tmp_path / "b.toml").write_text("name = ")
    found = jobs.presets(tmp_path)
    assert [p.path.name for p in found] == ["a.toml", "b.toml"]
    assert found[0].sweep is not None
    assert len(found[0].sweep.cases()) == 2
    assert found[1].sweep is None
    assert "not valid TOML" in found[1].problem


def test_new_ids_are_valid_file_names() -> None:
    """The id that the page chooses is one that the store takes."""
    assert store.run_path(Path("runs"), jobs.new_run_id("quick")).name.startswith("quick-")


def test_devices_end_with_the_cpu() -> None:
    """There is always a device to choose; GPUs come first."""
    found = jobs.devices()
    assert found[-1] == "cpu"
    assert all(name.startswith("cuda:") for name in found[:-1])


# ------------------------------------------------------------------------------------- starts and waits


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs where every process is the run that its job says it is."""
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: pid == os.getpid())
    return tmp_path


def job(folder: Path, run_id: str, **changes: object) -> jobs.Job:
    """A job as the page leaves it."""
    made = jobs.Job(run_id, os.getpid(), "cpu", "2026-01-01T00:00:00Z")._replace(**changes)
    jobs.job_path(folder, run_id).write_text(json.dumps(made._asdict()))
    return made


def test_everybody_sees_what_was_started_and_lives(folder: Path) -> None:
    """Jobs are read from the folder, oldest first; dead ones, broken files and names that lie are none."""
    late, early = job(folder, "late", at="2026-01-02T00:00:00Z"), job(folder, "early")
    job(folder, "dead", pid=1)
    job(folder, "x")
    (folder / "x.job.json").rename(folder / "y.job.json")
    for name, content in (
        ("a", b""),
        ("b", b"[]"),
        ("c", b'{"pid": 3}'),
        ("d", b"\xff"),
        ("e", b"[" * 99_999),
    ):
        (folder / f"{name}.job.json").write_bytes(content)
    assert jobs.living(folder) == [early, late]
    assert jobs.living(folder / "nowhere") == []


def test_an_own_sweep_is_kept_beside_its_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file holds the very sweep; a name that is taken, or no name, starts nothing."""
    monkeypatch.setattr(jobs, "command", lambda *a: [sys.executable, "-c", "print('flashscope: no')"])
    sweep = load_sweep(DATA_DIR / "sweeps" / "quick.toml")
    pid = jobs.start_text(sweep, "cpu", folder, "own-1", "a label")
    os.waitpid(pid, 0)
    assert load_sweep(folder / "own-1.toml") == sweep
    assert json.loads((folder / "own-1.job.json").read_text())["pid"] == pid
    assert jobs.refusal(folder, "own-1") == "no"
    with pytest.raises(InputError, match="exists already"):
        jobs.start_text(sweep, "cpu", folder, "own-1")
    with pytest.raises(InputError, match="run id"):
        jobs.start_text(sweep, "cpu", folder, "../own")
    jobs.forget(folder, "own-1")
    assert not list(folder.iterdir())


def test_two_that_start_at_once_are_two(folder: Path) -> None:
    """A name whose process has not written yet is taken all the same."""
    job(folder, "r")
    with pytest.raises(InputError, match="exists already"):
        jobs.start(folder / "x.toml", "cpu", folder, "r")


def test_a_run_is_gone_on_with_by_one_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is continued; a second person, or a process that still writes, is refused in a sentence."""
    path = folder / "r.jsonl"
    write_synthetic(synthetic_run(run_id="r", seq_lens=(64,)), path)
    (folder / "r.log").write_text("before\n")
    line = jobs.resume_command(path, "cpu")
    assert line[3:] == ["run", "--resume", str(path), "--device", "cpu"]
    monkeypatch.setattr(jobs, "resume_command", lambda *a: [sys.executable, "-c", "print('after')"])
    os.waitpid(jobs.resume(info(path=path), "cpu"), 0)
    assert jobs.log_tail(folder, "r") == "before\nafter"
    assert json.loads((folder / "r.job.json").read_text())["resumed"] is True
    job(folder, "r")
    with pytest.raises(InputError, match="gone on with it already"):
        jobs.resume(info(path=path), "cpu")
    jobs.forget(folder, "r")  # which is for starts without a file
    assert path.exists()
    with path.open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process writes to it"):
            jobs.resume(info(path=path), "cpu")


def test_who_waits_says_so_in_its_log(folder: Path) -> None:
    """The page knows it by the words of the device's lock, until the process says something else."""
    said: list[str] = []
    with (
        FileLock(lock_path("cpu-of-a-test")),
        contextlib.suppress(LookupError),
        device_lock("cpu-of-a-test", lambda text: said.append(text) or lets_go()),
    ):
        pass
    log = folder / "r.log"
    log.write_text(f"Starting 3 worker process(es) on cpu ...\n{said[0]}\n")
    assert jobs.waits(folder, "r")
    log.write_text(f"{said[0]}\nMeasuring 3 cases\n")
    assert not jobs.waits(folder, "r")
    assert not jobs.waits(folder, "nobody")


def lets_go() -> None:
    """Give the lock up, as Ctrl-C would."""
    raise LookupError
