"""Claims about runs started from the page: which process is ours, how far it is, how it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from synthetic import synthetic_run, write_synthetic

from profiling import store
from profiling.case import InputError
from profiling.pages import jobs


def info(**changes: object) -> store.RunInfo:
    """A run of the list: 3 of 12 cases after 30 seconds."""
    base = store.RunInfo(Path("r.jsonl"), "r", "CPU", "2026-01-01T00:00:00Z", "", 3, {"ok": 3}, 12, None)
    return base._replace(**changes)


NOW = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("python -m profiling run quick.toml --device cpu --run-id r", True),
        ("/venv/bin/python /venv/bin/flashscope run quick.toml --run-id=r", True),
        ("flashscope run quick.toml --out data/runs", True),
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


def test_progress_counts_and_estimates_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 of 12 cases in 30 s leave 90 s; without a plan there is no estimate."""
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: True)
    at = jobs.progress(info(pid=1), NOW)
    assert (at.state, at.done, at.planned, at.elapsed_s, at.left_s) == ("running", 3, 12, 30.0, 90.0)
    assert at.share == 0.25
    at = jobs.progress(info(pid=1, planned_cases=None), NOW)
    assert (at.left_s, at.share) == (None, 0.0)
    assert jobs.progress(info(pid=1, n_cases=0), NOW).left_s is None
    assert jobs.progress(info(pid=1, created_at="nonsense"), NOW).elapsed_s is None


@pytest.mark.parametrize(
    ("end", "state"), [("finished", "finished"), ("interrupted", "interrupted"), ("", "killed")]
)
def test_a_run_without_a_process_is_what_its_file_says(end: str, state: str) -> None:
    """The last line says how a run ended; without one, and without its process, it was killed."""
    assert jobs.progress(info(end_status=end), NOW).state == state


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
