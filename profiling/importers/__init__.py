"""Other people's files, and our own, as runs: one module a family."""

from __future__ import annotations

from pathlib import Path

from profiling.case import InputError
from profiling.importers import comparison
from profiling.records import Run
from profiling.store import load_run


def import_runs(path: Path) -> list[Run]:
    """All runs in a file: a run file (JSON Lines), or a comparison CSV, which may hold several.

    Raises:
        InputError: the file cannot be read or belongs to no known family.
    """
    try:
        with path.open("rb") as handle:
            start = handle.read(64)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return [load_run(path)]
    return comparison.import_runs(path)


def import_file(path: Path) -> Run:
    """The run in a file.

    Raises:
        InputError: as `import_runs`, or the file holds several runs.
    """
    return comparison.only(import_runs(path), str(path))
