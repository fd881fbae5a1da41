"""A file as a table of texts: delimiter, BOM, torn rows, doubled headers, Markdown. Nothing is converted.

Each row keeps the line of the file that it starts on. What is no row of the table is set aside with a
reason, never dropped.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from profiling.case import InputError
from profiling.export import unguard

DELIMITERS: tuple[str, ...] = (",", ";", "\t", "|")
# More than any sweep has; a file of 20 MB may hold ten million of either.
MOST_ROWS, MOST_COLUMNS = 200_000, 1000
_AVERAGES = ("average", "avg", "mean", "geomean")
_RULE = re.compile(r"\|?(\s*:?-+:?\s*\|)+\s*(:?-+:?\s*)?")  # |---|:--:|
_OPEN, _CLOSE = "([{", ")]}"


class Row(NamedTuple):
    """The texts of one row and the line it starts on, from 1."""

    line: int
    cells: tuple[str, ...]


class Aside(NamedTuple):
    """A row that is not used.

    `why` is what was expected, alike for rows with the same fault; `got` what was there instead.
    """

    file: str
    line: int
    why: str
    got: str
    cells: tuple[str, ...]

    @property
    def text(self) -> str:
        """One sentence with the place."""
        return f"{self.file}, line {self.line}: {self.why}" + (f", got {self.got}" if self.got else "")


class Table(NamedTuple):
    """Column names, each once; rows as wide as the header; what was set aside; sentences about the file."""

    name: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    delimiter: str
    aside: tuple[Aside, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def n_read(self) -> int:
        """All rows of the file, also those set aside."""
        return len(self.rows) + len(self.aside)


def read_bytes(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def text_of(data: bytes, name: str) -> str:
    """UTF-8 text, without a BOM.

    Raises:
        InputError: it is in another encoding.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: is not UTF-8 text (byte {error.start}); save it as 'CSV UTF-8' and try again"
        ) from None


def read_table(text: str, name: str, delimiter: str | None = None) -> Table:
    """The table in a text: Markdown, or separated by one of `DELIMITERS`.

    The delimiter is the one by which rows are as wide as the header and brackets stay whole.

    Raises:
        InputError: it is empty or too long, quotes are torn, or no delimiter fits; the message says which
            are allowed.
    """
    lines = text.splitlines()
    if len(lines) > MOST_ROWS:
        raise InputError(f"{name}: must have at most {MOST_ROWS} lines, got {len(lines)}: split it")
    piped = sum(line.strip().startswith("|") and line.strip().endswith("|") for line in lines)
    if delimiter in (None, "|") and (any(_RULE.fullmatch(line.strip()) for line in lines) or piped >= 2):
        return _markdown(lines, name)
    delimiter = delimiter or _sniff(text, name)
    rows = _split(text, delimiter, name)
    if not rows:
        raise InputError(f"{name}: is empty; expected a header and rows below it")
    return _checked(rows[0].cells, rows[1:], delimiter, name)


def shown(cell: str) -> str:
    """A cell in quotes, cut where it is long."""
    return repr(cell if len(cell) <= 40 else f"{cell[:37]}...")


# ------------------------------------------------------------------------------------------------ delimited


def _split(text: str, delimiter: str, name: str) -> list[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    line = 1
    try:
        for record in reader:
            start, line = line, reader.line_num + 1
            if any(cell.strip() for cell in record):
                rows.append(Row(start, tuple(unguard(cell.strip()) for cell in record)))
    except csv.Error as error:
        raise InputError(f"{name}, line {line}: not well-formed CSV: {error}") from None
    return rows


def _sniff(text: str, name: str) -> str:
    """The delimiter by consistency with the header; `csv.Sniffer` takes letters and spaces for one."""
    ranks: dict[str, tuple[float, float, int]] = {}
    faults: list[InputError] = []
    for delimiter in DELIMITERS:
        try:
            rows = _split(text, delimiter, name)
        except InputError as error:
            faults.append(error)
            continue
        width = len(rows[0].cells) if rows else 0
        if width > 1:
            alike = sum(len(row.cells) == width for row in rows) / len(rows)
            torn = sum(any(map(_torn, row.cells)) for row in rows) / len(rows)
            ranks[delimiter] = (-torn, alike, width)
    if not ranks:
        if not text.strip():
            raise InputError(f"{name}: is empty; expected a header and rows below it")
        if faults:
            raise faults[0]
        raise InputError(f"{name}, line 1: one column only; expected columns separated by , ; tab or |")
    best = max(ranks.values())
    found = [delimiter for delimiter, rank in ranks.items() if rank == best]
    if len(found) > 1:
        raise InputError(f"{name}: its columns may be separated by {' or '.join(map(repr, found))}: "
                         "say which with --delimiter")  # fmt: skip
    return found[0]


def _torn(cell: str) -> bool:
    """Whether brackets open in this cell and close in another."""
    return any(cell.count(a) != cell.count(b) for a, b in zip(_OPEN, _CLOSE, strict=True))


# ------------------------------------------------------------------------------------------------- Markdown


def _markdown(lines: Sequence[str], name: str) -> Table:
    """All tables of the text that have the first one's header; text around them is counted."""
    header: tuple[str, ...] = ()
    here: tuple[str, ...] = ()  # of the table that the line is in
    rows: list[Row] = []
    aside: list[Aside] = []
    others = 0
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        following = lines[number].strip() if number < len(lines) else ""
        if not stripped.startswith("|"):
            others += bool(stripped)
            here = ()
        elif _RULE.fullmatch(stripped):
            continue
        else:
            inner = stripped[1:].removesuffix("|")
            cells = tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner))
            if not here or _RULE.fullmatch(following):
                here = cells
                header = header or here
                if here != header:
                    others += 1
            elif here == header:
                rows.append(Row(number, cells))
            else:
                aside.append(Aside(name, number, "another table, with other columns", "", cells))
    if not header:
        raise InputError(f"{name}: no table in it; expected a header and rows below it")
    table = _checked(header, rows, "|", name)
    said = f"{name}: {others} lines of text around the table are not read"
    return table._replace(aside=(*table.aside, *aside), notes=(*table.notes, *([said] if others else [])))


# --------------------------------------------------------------------------------------------------- checks


def _checked(header: Sequence[str], rows: Sequence[Row], delimiter: str, name: str) -> Table:
    if len(header) > MOST_COLUMNS:
        raise InputError(f"{name}: must have at most {MOST_COLUMNS} columns, got {len(header)}")
    names, notes = _unique(header, name)
    kept: list[Row] = []
    aside: list[Aside] = []
    for row in rows:
        first = next((cell for cell in row.cells if cell), "").lower()
        if row.cells == tuple(header):
            aside.append(Aside(name, row.line, "the header again", "", row.cells))
        elif first in _AVERAGES:
            aside.append(Aside(name, row.line, f"a row of `{first}`, not of a measurement", "", row.cells))
        elif len(row.cells) != len(names):
            why = f"must have {len(names)} fields as the header"
            aside.append(Aside(name, row.line, why, str(len(row.cells)), row.cells))
        else:
            kept.append(row)
    if not rows:
        raise InputError(f"{name}: has a header but no rows")
    return Table(name, names, tuple(kept), delimiter, tuple(aside), notes)


def _unique(header: Sequence[str], name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Each name once: a second `Noise` is `Noise#2`, a column without a name `column 3`."""
    taken = Counter(header)
    names: list[str] = []
    doubled: dict[str, list[str]] = {}
    for place, given in enumerate(header, start=1):
        plain = given or f"column {place}"
        new, number = plain, 1
        while new in names or (number > 1 and taken[new]):
            number += 1
            new = f"{plain}#{number}"
        names.append(new)
        if number > 1:
            doubled.setdefault(plain, [plain]).append(new)
    notes = [
        f"{name}: column {shown(plain)} is there {len(found)} times: called {', '.join(found)}"
        for plain, found in doubled.items()
    ]
    return tuple(names), tuple(notes)
