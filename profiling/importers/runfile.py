"""A run file as an import: its cases, and each line that is no part of the run, with the reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profiling.case import Case
from profiling.importers.assembly import Imported
from profiling.importers.tables import Aside
from profiling.store import load_run

_LOST = re.compile(r"line (\d+) could not be read and is left out: (.*)|.*\(line (\d+)\) is torn.*", re.S)
_AGAIN = "the same case stands again further down, and the last line counts"


def recognises(content: bytes) -> bool:
    """Whether it starts as JSON Lines do."""
    return content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def import_counted(path: Path, content: bytes, name: str) -> Imported:
    """The run of a run file; a row is a line that holds a case, or that could not be read.

    Raises:
        InputError: as `store.load_run`.
    """
    run = load_run(path)
    lines = content.split(b"\n")
    aside: list[Aside] = []
    for problem in run.problems:
        if found := _LOST.fullmatch(problem):
            number = int(found[1] or found[3])
            text = lines[number - 1].decode("utf-8", "replace")
            aside.append(Aside(name, number, "could not be read", found[2] or "a torn line", (text,)))
    lost = {each.line for each in aside}
    last: dict[Case, int] = {}
    for number, line in enumerate(lines, start=1):
        case = None if number in lost else _case(line)
        if case is None:
            continue
        if case in last:
            before = last[case]
            aside.append(Aside(name, before, _AGAIN, "", (lines[before - 1].decode("utf-8", "replace"),)))
        last[case] = number
    aside.sort(key=lambda each: each.line)
    return Imported((run,), len(run.measurements) + len(aside), tuple(aside), ("text",))


def _case(line: bytes) -> Case | None:
    """The case of a line that holds one."""
    try:
        row: Any = json.loads(line)
        return Case.model_validate(row["case"]) if row["kind"] == "case" else None
    except (ValueError, TypeError, KeyError, RecursionError, ValidationError):
        return None
