"""What people say of runs afterwards: a label, that one is archived, that one is to be deleted.

A run file is never rewritten, and a committed sample never changed, so a note lies beside them:
`<data>/notes/<file's name>.json`. One that cannot be read counts as none.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from profiling.case import InputError
from profiling.store.journal import Journal

FOLDER = "notes"  # below the data folder
MOST_LETTERS = 200  # of a label
# What a run started from the page leaves beside its file.
_BESIDE = (".log", ".toml", ".job.json")


class Note(NamedTuple):
    """`label` takes the place of the run's own where it is not empty; what is `archived` is not offered."""

    label: str = ""
    archived: bool = False


def note_paths(data_dir: Path) -> list[Path]:
    """The files of all notes of a data folder."""
    return sorted((data_dir / FOLDER).glob("*.json"))


def read_notes(data_dir: Path) -> dict[str, Note]:
    """The notes of a data folder by the names of their run files, without `.jsonl`."""
    found = {}
    for path in note_paths(data_dir):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            note = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(note, dict):
                found[path.stem] = Note(str(note.get("label", "")), note.get("archived") is True)
    return found


def write_note(run: Path, note: Note) -> None:
    """Say this of the run in that file from now on; an empty note is taken away.

    Args:
        run: a file in `samples` or `runs` of a data folder.
        note: its label loses spaces at its ends and line ends within.

    Raises:
        InputError: the label is too long, or the note cannot be written.
    """
    note = note._replace(label=" ".join(note.label.split()))
    if len(note.label) > MOST_LETTERS:
        raise InputError(f"a label must have at most {MOST_LETTERS} letters, got {len(note.label)}")
    path = _path(run)
    try:
        if note == Note():
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".note-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(note._asdict(), out, ensure_ascii=False)
            os.replace(name, path)  # whoever reads meanwhile sees the old one or the new one
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or "it holds half a character"
        raise InputError(f"{path}: the note cannot be written: {why}") from None


def remove_run(run: Path) -> None:
    """Delete a run's file, and with it its note and what a start from the page has left beside it.

    Raises:
        InputError: it is a committed sample, is being written, is not there, or cannot be deleted.
    """
    if run.parent.name != "runs" or run.suffix != ".jsonl" or run.is_symlink():
        raise InputError(f"{run.name}: only runs of your own, in the data folder's runs, can be deleted")
    journal = Journal.open(run)  # held while it goes, so that nobody can begin to write to it
    try:
        run.unlink()
        for path in (*(run.with_suffix(suffix) for suffix in _BESIDE), _path(run)):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{run}: cannot be deleted: {error.strerror}") from None
    finally:
        journal.close()


def _path(run: Path) -> Path:
    return run.parent.parent / FOLDER / f"{run.stem}.json"
