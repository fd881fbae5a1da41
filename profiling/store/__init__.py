"""The only reader and writer of run files (`runfile`, `journal`), and the tables made of them (`tables`)."""

from profiling.store.journal import WriteError
from profiling.store.notes import MOST_LETTERS, Note, note_paths, read_notes, remove_run, write_note
from profiling.store.runfile import (
    RUN_FOLDERS,
    RunInfo,
    RunWriter,
    check_free,
    list_runs,
    load_run,
    new_run_path,
    now,
    run_path,
    save_run,
)
from profiling.store.tables import DTYPES, FLAG_SEPARATOR, SAMPLE_COLUMNS, frame, samples_frame, typed

__all__ = [
    "DTYPES",
    "FLAG_SEPARATOR",
    "MOST_LETTERS",
    "RUN_FOLDERS",
    "SAMPLE_COLUMNS",
    "Note",
    "RunInfo",
    "RunWriter",
    "WriteError",
    "check_free",
    "frame",
    "list_runs",
    "load_run",
    "new_run_path",
    "note_paths",
    "now",
    "read_notes",
    "remove_run",
    "run_path",
    "samples_frame",
    "save_run",
    "typed",
    "write_note",
]
