"""What a name on the command line stands for: the data folder, and the runs in it or in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from profiling.records import Run

DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with runs/ and samples/.  [default: the checkout's data/]"),
]


def data_dir(data: Path | None) -> Path:
    """The data folder: the one that was named, or the checkout's.

    Raises:
        InputError: there is no such folder.
    """
    from profiling.paths import DATA_DIR

    if data is not None and not data.is_dir():
        reject(f"--data {data}: no such folder")
    return data or DATA_DIR


def load_one(name: str, data: Path | None) -> Run:
    """The one run that a name stands for, see `load_all`.

    Raises:
        InputError: as `load_all`, or there are several.
    """
    found = load_all(name, data)
    if len(found) > 1:
        reject(f"{name}: holds {len(found)} runs where one is expected: import it, and name one by its id")
    return found[0]


def run_file(name: str, data: Path | None) -> Path:
    """The run file that a name stands for, to be written to.

    Raises:
        InputError: as `load_one`, or it is a CSV.
    """
    path = load_one(name, data).path
    if path is None or path.suffix != ".jsonl":
        reject(f"{name}: counters are added to a run file (.jsonl): import the CSV first")
    return path


def load_all(name: str, data: Path | None) -> list[Run]:
    """The runs of a run file or a comparison CSV, or the one with that id below the data folder.

    Problems of a file are told on stderr.

    Raises:
        InputError: there is no such file or run, or it cannot be read.
    """
    from profiling.store import RUN_FOLDERS, load_run

    path = Path(name)
    if not path.exists() and path.suffix not in (".jsonl", ".csv"):
        places = [data_dir(data) / folder / f"{name}.jsonl" for folder in RUN_FOLDERS]
        path = next((place for place in places if place.exists()), None)
        if path is None:
            reject(f"{name}: no such file, and no run of that id below {data_dir(data)}")
    if path.suffix == ".jsonl":
        found = [load_run(path)]
    else:
        from profiling.importers import import_runs

        found = import_runs(path)
    for problem in (problem for run in found for problem in run.problems):
        print(f"{path}: {problem}", file=sys.stderr)
    return found


def reject(message: str) -> NoReturn:
    """Raise the `InputError` that ends in exit status 2."""
    from profiling.case import InputError

    raise InputError(message)
