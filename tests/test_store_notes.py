"""Claims about notes on runs and about deleting one: no run file is rewritten, and nothing else goes."""

import fcntl
import json
from pathlib import Path

import pytest
from synthetic import synthetic_run, write_synthetic

from profiling.case import InputError
from profiling.store import Note, list_runs, read_notes, remove_run, write_note


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a sample and two runs of one's own."""
    for place in ("samples/theirs", "runs/mine", "runs/other"):
        path = tmp_path / f"{place}.jsonl"
        write_synthetic(synthetic_run(run_id=path.stem, seq_lens=(64,)), path)
    return tmp_path


@pytest.mark.parametrize("place", ["samples/theirs", "runs/mine"])
def test_a_note_labels_and_archives_without_touching_the_file(place: str, data: Path) -> None:
    """The list has the note's label and says what is archived; an empty note gives the run's own back."""
    path = data / f"{place}.jsonl"
    before = path.read_bytes()
    own = next(info.label for info in list_runs(data) if info.path == path)
    write_note(path, Note("  best\n of  three =1+1 <b> ", archived=True))
    found = {info.path: info for info in list_runs(data)}
    assert found[path].label == "best of three =1+1 <b>"
    assert [info.path for info in found.values() if info.archived] == [path]
    write_note(path, Note(archived=True))
    assert [(i.label, i.archived) for i in list_runs(data) if i.path == path] == [(own, True)]
    write_note(path, Note())
    assert read_notes(data) == {}
    assert not list((data / "notes").iterdir())
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b"{", b"\xff\xfe", b'{"label": {"a": 1}, "archived": "yes"}', b"[" * 100_000],
)
def test_a_broken_note_hides_no_run(content: bytes, data: Path) -> None:
    """What cannot be read says nothing: the run is listed, and is not archived."""
    (data / "notes").mkdir()
    (data / "notes" / "mine.json").write_bytes(content)
    found = {info.path.stem: info for info in list_runs(data)}
    assert set(found) == {"theirs", "mine", "other"}
    assert not found["mine"].archived


def test_a_note_that_cannot_be_written_is_refused(data: Path) -> None:
    """Too long, half a character, no place for it: a sentence, and the old note stays."""
    path = data / "runs" / "mine.jsonl"
    write_note(path, Note("old"))
    with pytest.raises(InputError, match="at most 200"):
        write_note(path, Note("x" * 201))
    with pytest.raises(InputError, match="cannot be written"):
        write_note(path, Note("\ud800"))
    assert read_notes(data) == {"mine": Note("old")}
    assert [p.name for p in (data / "notes").iterdir()] == ["mine.json"]
    (data / "notes" / "mine.json").unlink()
    (data / "notes").rmdir()
    (data / "notes").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_note(path, Note("new"))


def test_deleting_takes_the_run_and_what_lies_beside_it(data: Path) -> None:
    """File, log, sweep, job and note go; the other run, whose name begins alike, keeps everything."""
    path = data / "runs" / "mine.jsonl"
    beside = [path.with_suffix(suffix) for suffix in (".log", ".toml", ".job.json")]
    others = [data / "runs" / name for name in ("mine-2.log", "other.log")]
    for each in (*beside, *others):
        each.write_text(json.dumps({}))
    write_note(path, Note("label"))
    write_note(data / "runs" / "other.jsonl", Note("kept"))
    remove_run(path)
    assert not path.exists()
    assert not any(each.exists() for each in beside)
    assert all(each.exists() for each in others)
    assert read_notes(data) == {"other": Note("kept")}
    assert {info.path.stem for info in list_runs(data)} == {"theirs", "other"}


def test_what_must_not_be_deleted_stays(data: Path) -> None:
    """A committed sample, a run that is being written, a link to elsewhere, a file that is no run."""
    sample, mine = data / "samples" / "theirs.jsonl", data / "runs" / "mine.jsonl"
    link, other = data / "runs" / "link.jsonl", data / "runs" / "other.toml"
    link.symlink_to(sample)
    other.write_text("")
    for path in (sample, link, other):
        with pytest.raises(InputError, match="only runs of your own"):
            remove_run(path)
    with mine.open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process writes to it"):
            remove_run(mine)
    assert all(path.exists() for path in (sample, link, other, mine))
    with pytest.raises(InputError, match="no such run file"):
        remove_run(data / "runs" / "nobody.jsonl")
