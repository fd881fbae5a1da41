"""A run file and its disk: what is written is safe, and what cannot be written is one sentence."""

import errno
import os

import pytest

from profiling.case import InputError
from profiling.store import RunWriter, WriteError, list_runs, load_run


def test_nothing_goes_wrong(bed):
    """The bed itself is sound: a run, and another that finds nothing left."""
    assert bed.run().status == "finished"
    bed.check()
    before = bed.path.read_bytes()
    assert bed.run(resume=bed.path).status == "finished"
    assert bed.path.read_bytes() == before


def test_a_disk_that_is_full(bed):
    """The run ends with one sentence, the file with its last whole line; with room again it goes on."""
    bed.finish(run_id="whole")  # as long as the file will be
    limit = (bed.folder / "runs" / "whole.jsonl").stat().st_size * 7 // 10
    code, said = bed.finish(fault=f"max_bytes={limit}")
    assert code == 2
    assert said.splitlines()[-1] == (
        f"flashscope: {bed.path}: File too large: the run ends here, the rows written before are safe, and "
        "--resume goes on with them"
    )
    assert "Traceback" not in said
    assert bed.path.read_bytes().endswith(b"}\n")
    run = load_run(bed.path)
    assert run.problems == ()
    assert run.end is None
    assert 0 < len(run.measurements) < 6
    code, _ = bed.finish("--resume", bed.path)
    assert code == 0
    bed.check()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", [1, 2, 3, 5])
def test_a_sync_that_fails(bed, monkeypatch, number, call):
    """What is not known to be on the disk is cut off again; where it is the header, there is no file."""
    whole, count = os.fsync, 0

    def fail(descriptor):
        nonlocal count
        count += 1
        if count >= call:
            raise OSError(number, os.strerror(number))
        whole(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=os.strerror(number)) as caught:
        bed.run()
    monkeypatch.undo()
    assert len(str(caught.value).splitlines()) == 1
    if call == 1:
        assert not isinstance(caught.value, WriteError)
        assert not bed.path.exists()
        return
    assert load_run(bed.path).problems == ()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_takes_no_file(bed, monkeypatch, number):
    """On a read-only or full disk the run is refused in a sentence, and nothing is left there."""
    whole = type(bed.path).open

    def refuse(path, mode="r", *words, **options):
        if "x" in mode:
            raise OSError(number, os.strerror(number))
        return whole(path, mode, *words, **options)

    monkeypatch.setattr(type(bed.path), "open", refuse)
    with pytest.raises(InputError, match=rf"r\.jsonl: cannot be written: {os.strerror(number)}"):
        bed.run()
    assert not bed.path.exists()


def test_a_file_in_the_place_of_a_folder(bed):
    """The folder of run files cannot be made below a file."""
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        bed.run(out=bed.folder / "tiny.toml" / "runs", run_id="r")


def test_a_file_that_is_read_only(bed, monkeypatch):
    """A run on a read-only disk is refused before anything starts."""
    bed.run()
    whole = type(bed.path).open

    def read_only(path, mode="r", *words, **options):
        if "+" in mode or "w" in mode:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return whole(path, mode, *words, **options)

    monkeypatch.setattr(type(bed.path), "open", read_only)
    with pytest.raises(InputError, match=r"r\.jsonl: cannot be written: Read-only file system"):
        RunWriter.resume(bed.path)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("delete", "was deleted or replaced while this run wrote to it: the run ends here, and its rows"),
        ("replace", "was deleted or replaced while this run wrote to it: the run ends here, and its rows"),
        ("truncate", "was changed by another program while this run wrote to it: the run ends here, and"),
        ("append", "was changed by another program while this run wrote to it: the run ends here, and"),
    ],
)
def test_somebody_meddles_with_the_file(bed, what, sentence):
    """The run notices at its next block and says so, instead of writing into nothing or over something."""
    with pytest.raises(WriteError, match=sentence):
        bed.run(f"x:time_{what}")
    if what == "replace":
        assert bed.path.read_text() == "something else\n"
    if what == "append":
        assert len(load_run(bed.path).problems) == 1
        assert bed.run(f"x:time_{what}", resume=bed.path).n_rows == 6


def test_two_write_the_same_file(bed):
    """While one run has the file, another is refused in a sentence; the file is as it was."""
    bed.run()
    before = bed.path.read_bytes()
    with RunWriter.resume(bed.path):
        during = bed.path.read_bytes()
        with pytest.raises(InputError, match="another process writes to it: wait until that run has ended"):
            bed.run(resume=bed.path)
        assert bed.path.read_bytes() == during
    assert during.startswith(before)
    assert bed.run(resume=bed.path).status == "finished"


def test_somebody_was_faster(bed):
    """A run that was resumed elsewhere, between reading it and taking hold of it, is not measured twice."""
    bed.run()
    before = load_run(bed.path)
    again = before.measurements[0].model_copy(update={"reason": "another"})
    with RunWriter.resume(bed.path) as writer:
        writer.append([again])
    with pytest.raises(InputError, match="another run has added to it meanwhile"):
        RunWriter.resume(bed.path, since=before)


def test_the_clock_is_set_back(bed, monkeypatch):
    """Times in rows may go back; the run takes no negative time, and lists and resumes as ever."""
    times = iter(f"2026-01-{day:02}T00:00:00Z" for day in range(31, 0, -1))
    monkeypatch.setattr("profiling.store.runfile.now", lambda: next(times))
    monkeypatch.setattr("profiling.runner.now", lambda: next(times))
    monkeypatch.setattr("time.time", lambda: -1e9)
    result = bed.run()
    assert result.took_s is not None
    assert result.took_s >= 0
    run = bed.check()
    assert run.end.at < run.header.created_at
    assert bed.run(resume=bed.path).status == "finished"
    (info,) = list_runs(bed.folder)
    assert (info.n_cases, info.end_status) == (6, "finished")
