"""Whole runs that are killed: whatever died, and when, a resume completes the plan, each case once."""

import signal

import pytest

from profiling.store import load_run


@pytest.mark.parametrize("at", ["2,0", "2,5", "3,9", "4,10", "5,5"])
def test_killed_while_it_writes(bed, at):
    """SIGKILL before, within and after a block's rows, and in the end line (the fifth write)."""
    code, _ = bed.finish(fault=f"die_in_write={at}")
    assert code == -signal.SIGKILL
    assert load_run(bed.path).end is None
    code, _ = bed.finish("--resume", bed.path)
    assert code == 0
    bed.check()


def test_killed_again_and_again(bed):
    """Each resume is killed as well, after the block that it adds: all the same the plan gets done."""
    code, _ = bed.finish(fault="die_in_write=3,5")
    assert code == -signal.SIGKILL
    for _ in range(2):
        code, _ = bed.finish("--resume", bed.path, fault="die_in_write=3,5")
        assert code == -signal.SIGKILL
    code, said = bed.finish("--resume", bed.path)
    assert code == 0, said
    bed.check()


def test_killed_in_its_first_line(bed):
    """A file without a whole header holds nothing: to resume it is refused, in a sentence."""
    code, _ = bed.finish(fault="die_in_write=1,5")
    assert code == -signal.SIGKILL
    code, said = bed.finish("--resume", bed.path)
    assert code == 2
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in said


@pytest.mark.parametrize("step", ["inputs", "prepare", "time"])
def test_killed_while_a_worker_measures(bed, step):
    """The block that was under way is measured by the resumed run, the others are not measured again."""
    code, _ = bed.finish(backend=f"x:{step}_killparent")
    assert code == -signal.SIGKILL
    code, _ = bed.finish("--resume", bed.path, backend=f"x:{step}_killparent")
    assert code == 0
    bed.check()


def test_two_runs_on_one_device(bed):
    """The second says that it waits; when the first is killed the device is free, and so is its file."""
    first = bed.start(backend="x:prepare_hangonce")
    try:
        while "Measuring" not in (line := first.stderr.readline()):
            assert line, "it ended by itself"
        assert bed.path.exists()
        code, said = bed.finish("--resume", bed.path, backend="x:prepare_hangonce")
        assert code == 2
        assert said.strip().endswith("wait until that run has ended, or stop it")

        second = bed.start(backend="x:prepare_hangonce", run_id="second")
        while "Another run is measuring on this device" not in (line := second.stderr.readline()):
            assert line, "it did not wait"
    finally:
        first.kill()
        first.communicate(timeout=60)
    second.communicate(timeout=120)
    assert second.returncode == 0
    bed.check(bed.path.with_name("second.jsonl"))
    code, _ = bed.finish("--resume", bed.path, backend="x:prepare_hangonce")
    assert code == 0
    bed.check()


def test_a_run_in_which_every_case_goes_wrong(bed):
    """Six cases, three of which kill both workers: six rows, exit code 0, and the reasons in them."""
    bed.run("x:time_kill", sweep=bed.sweep("x:time_kill", processes=2))
    run = bed.check(kill="crashed")
    assert all("SIGKILL" in row.reason for row in run.measurements if row.status == "crashed")


def test_no_lock_can_be_made(bed, monkeypatch):
    """Without a temporary folder the run is refused before its file is begun."""
    monkeypatch.setattr("profiling.measure.lock.lock_path", lambda device: bed.folder / "tiny.toml" / "lock")
    with pytest.raises(Exception, match="the device's lock file cannot be written") as caught:
        bed.run()
    assert len(str(caught.value).splitlines()) == 1
    assert not bed.path.exists()
