"""Our own comparison CSV, as `export.to_csv` writes it: one row per case and clock.

What comes in has summaries but no samples. Estimates and the `stale_kernel` flag are not taken over but
derived again; where the file says otherwise, the run's `problems` tell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import ValidationError

from profiling.case import (
    CLOCKS,
    DIRECTIONS,
    DTYPE_BYTES,
    KEY_FIELDS,
    OPERATIONS,
    Case,
    InputError,
    check_backend,
    first_problem,
)
from profiling.export import unguard
from profiling.importers.assembly import Imported
from profiling.importers.tables import Aside, read_bytes, text_of
from profiling.records import (
    ADDED_FIELDS,
    ADDED_KEY_FIELDS,
    CLOCK_COLUMNS,
    COLUMNS,
    DERIVED_FIELDS,
    ENVIRONMENT_COLUMNS,
    MEASUREMENT_COLUMNS,
    STATUSES,
    ClockResult,
    Environment,
    Measurement,
    Run,
    RunHeader,
)
from profiling.store import DTYPES, FLAG_SEPARATOR, frame, typed

_INTEGER = re.compile(r"[+-]?\d{1,19}(\.0*)?")
_LARGEST = 2**63 - 1  # of a column
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_ENOUGH = 3  # how many of several faults a message names


class _Table(NamedTuple):
    """The typed rows, and for each the line of the file it starts on and its cells."""

    rows: pd.DataFrame
    lines: list[int]
    name: str
    cells: list[list[str]]


def import_csv(source: str | bytes | Path) -> Run:
    """The run in a comparison CSV.

    Args:
        source: the text, its bytes, or the path of the file.

    Raises:
        InputError: it is not a comparison CSV (the message says where and why), or holds several runs.
    """
    return only(import_runs(source), _name(source))


def import_runs(source: str | bytes | Path) -> list[Run]:
    """All runs in a comparison CSV, one for each `run_id`, in order of appearance.

    Raises:
        InputError: it is not a comparison CSV; the message says where and why.
    """
    return list(import_counted(source).runs)


def import_counted(source: str | bytes | Path, name: str | None = None) -> Imported:
    """As `import_runs`, with the rows that were read and set aside.

    Args:
        source: the text, its bytes, or the path of the file.
        name: what messages call it.

    Raises:
        InputError: as `import_runs`.
    """
    table, header = _read(source, name or _name(source))
    n_read = len(table.lines)
    _validate(table)
    table, copies, aside = _deduplicated(_one_spelling(table))
    runs = []
    for run_id in table.rows["run_id"].unique():
        own = _some(table, np.flatnonzero(table.rows["run_id"] == run_id))
        run = _run(str(run_id), own)
        runs.append(replace(run, problems=(*copies, *_differences(run, own))))
    return Imported(tuple(runs), n_read, aside, tuple(header))


def _some(table: _Table, at: Sequence[int] | np.ndarray) -> _Table:
    rows = table.rows.iloc[list(at)].reset_index(drop=True)
    return _Table(rows, [table.lines[k] for k in at], table.name, [table.cells[k] for k in at])


def only(runs: Sequence[Run], name: str) -> Run:
    """The one run of a file.

    Raises:
        InputError: there are several.
    """
    if len(runs) > 1:
        names = ", ".join(run.run_id for run in runs[:_ENOUGH])
        raise InputError(f"{name}: holds {len(runs)} runs ({names}{_more(runs)}) where one is expected")
    return runs[0]


# ---------------------------------------------------------------------------------------------- reading


def _name(source: str | bytes | Path) -> str:
    return source.name if isinstance(source, Path) else "the CSV"


def _read(source: str | bytes | Path, name: str) -> tuple[_Table, list[str]]:
    """Check the file's shape before anything else reads it: pandas would shift or rename silently."""
    header, lines, records = _shape(_text(source, name), name)
    columns: dict[str, list[Any]] = {}
    for place, column in enumerate(header):
        parse = _PARSERS[DTYPES[column]]
        values = []
        for line, record in zip(lines, records, strict=True):
            try:
                values.append(parse(record[place]))
            except ValueError as error:
                raise InputError(
                    f"{name}, line {line}, column {column}: {error}, got {_shown(record[place])}"
                ) from None
        columns[column] = values
    return _Table(typed(columns), lines, name, records), header


def _text(source: str | bytes | Path, name: str) -> str:
    if isinstance(source, str):
        return source.removeprefix("\ufeff")
    return text_of(read_bytes(source) if isinstance(source, Path) else source, name)


def _shape(text: str, name: str) -> tuple[list[str], list[int], list[list[str]]]:
    """Header, line numbers and records; each record has as many fields as the header."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    lines: list[int] = []
    records: list[list[str]] = []
    line = 1
    try:
        for record in reader:
            start, line = line, reader.line_num + 1
            if not record or record == [""]:
                continue
            if not header:
                header = [unguard(cell.strip()) for cell in record]
                _check_header(header, name)
            elif len(record) != len(header):
                raise InputError(
                    f"{name}, line {start}: has {len(record)} fields where the header has {len(header)}"
                )
            else:
                lines.append(start)
                records.append(record)
    except csv.Error as error:
        raise InputError(f"{name}, line {line}: not well-formed CSV: {error}") from None
    if not header:
        raise InputError(
            f"{name}: is empty; expected a comparison CSV that starts with {', '.join(COLUMNS[:3])}"
        )
    if not records:
        raise InputError(f"{name}: has a header but no rows")
    return header, lines, records


def _check_header(header: list[str], name: str) -> None:
    doubled = sorted({column for column in header if header.count(column) > 1})
    optional = (*DERIVED_FIELDS, *ADDED_FIELDS, *ADDED_KEY_FIELDS)
    missing = [column for column in COLUMNS if column not in header and column not in optional]
    unknown = [column for column in header if column not in COLUMNS]
    if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in header[0]), None)):
        raise InputError(f"{name}: its columns are separated by {other!r}; expected commas")
    if missing:
        raise InputError(
            f"{name}: not a comparison CSV of FlashScope: column(s) {', '.join(missing)} missing"
            + (f", column(s) {', '.join(map(_shown, unknown))} unknown" if unknown else "")
        )
    if unknown:
        raise InputError(f"{name}: column(s) {', '.join(map(_shown, unknown))} unknown; the rest is ours")
    if doubled:
        raise InputError(f"{name}: column(s) {', '.join(doubled)} there more than once")


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else f"{cell[:37]}...")


def _more(faults: Sequence[Any]) -> str:
    return f", and {len(faults) - _ENOUGH} more" if len(faults) > _ENOUGH else ""


def _integer(cell: str) -> int | None:
    cell = cell.strip()
    if not cell:
        return None
    value = int(cell.partition(".")[0]) if _INTEGER.fullmatch(cell) else None
    if value is None or abs(value) > _LARGEST:
        raise ValueError("must be a whole number of at most 19 digits, or empty")
    return value


def _float(cell: str) -> float | None:
    cell = cell.strip()
    if not cell:
        return None
    value = float(cell) if _NUMBER.fullmatch(cell) else float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError("must be a finite number with a decimal point, or empty")
    return value


def _boolean(cell: str) -> bool:
    words = {"true": True, "false": False}
    if (word := cell.strip().lower()) not in words:
        raise ValueError("must be true or false")
    return words[word]


_PARSERS: dict[str, Callable[[str], Any]] = {
    "Int64": _integer,
    "float64": _float,
    "boolean": _boolean,
    "string": unguard,
}


# ------------------------------------------------------------------------------------------- validation


def _validate(table: _Table) -> None:
    """Check every cell's range at once; the message names the first few by line and column."""
    import pandera.errors
    import pandera.pandas as pa

    def one_of(words: Sequence[str]) -> pa.Check:
        shown = ", ".join(word or "empty" for word in words)
        return pa.Check.isin(words, error=f"must be one of {shown}")

    def column(name: str, *checks: pa.Check) -> pa.Column:
        return pa.Column(DTYPES[name], list(checks), nullable=DTYPES[name] != "string", coerce=False)

    known = [
        name for name in KEY_FIELDS if DTYPES[name] == "Int64" and not name.startswith(("window", "tile"))
    ]
    positive = pa.Check.gt(0, error="must be above 0, or empty")
    not_negative = pa.Check.ge(0, error="must not be negative")
    schema = {
        "direction": column("direction", one_of(DIRECTIONS)),
        "dtype": column("dtype", one_of(tuple(DTYPE_BYTES))),
        "operation": column("operation", one_of(OPERATIONS)),
        "clock": column("clock", one_of((*CLOCKS, ""))),
        "status": column("status", one_of(STATUSES)),
        "device_kind": column("device_kind", one_of(("cuda", "cpu"))),
        "run_id": column("run_id", pa.Check.str_length(min_value=1, error="must not be empty")),
    }
    for name, dtype in DTYPES.items():
        if name in known:
            schema[name] = pa.Column(
                dtype, [pa.Check.ge(0, error="must not be negative")], nullable=False, coerce=False
            )
        elif dtype == "Int64":
            schema[name] = column(name, not_negative)
        elif name.startswith("latency_") or name == "softcap":
            schema[name] = column(name, positive)
        elif dtype == "float64":
            schema[name] = column(name, not_negative)
    try:
        pa.DataFrameSchema(schema).validate(table.rows, lazy=True)
    except pandera.errors.SchemaErrors as errors:
        faults = _faults(errors.failure_cases, table)
        raise InputError(f"{table.name}, {'; '.join(faults[:_ENOUGH])}{_more(faults)}") from None


def _faults(failures: pd.DataFrame, table: _Table) -> list[str]:
    """pandera's failure cases in words, each once, in the order of the file."""
    found: dict[tuple[int, str], str] = {}
    for failure in failures.to_dict("records"):
        row, column = failure["index"], str(failure["column"])
        if pd.isna(row):
            found.setdefault((0, column), f"column {column}: {failure['check']}")
            continue
        line = table.lines[int(row)]
        said = "must not be empty" if failure["check"] == "not_nullable" else str(failure["check"])
        got = "" if said == "must not be empty" else f", got {_shown(str(failure['failure_case']))}"
        found.setdefault((line, column), f"line {line}, column {column}: {said}{got}")
    return [found[place] for place in sorted(found)]


def _one_spelling(table: _Table) -> _Table:
    """A window that ends at the query's own place written as `Case` writes it: causal."""
    ends_here = (table.rows["window_right"] == 0).fillna(False)
    causal = table.rows["causal"].mask(ends_here, True)
    right = table.rows["window_right"].mask(ends_here, pd.NA)
    return table._replace(rows=table.rows.assign(causal=causal, window_right=right))


def _deduplicated(table: _Table) -> tuple[_Table, tuple[str, ...], tuple[Aside, ...]]:
    """Without rows that repeat an earlier one exactly; these, and a sentence about them.

    Raises:
        InputError: two rows of the same run, case and clock differ.
    """
    rows = table.rows
    repeated = rows.duplicated([*KEY_FIELDS, "run_id", "clock"])
    copy = rows.duplicated()
    if (clash := np.flatnonzero(repeated & ~copy)).size:
        line = table.lines[clash[0]]
        raise InputError(
            f"{table.name}, line {line}: the same run, case and clock as an earlier row, other values"
        )
    if not copy.any():
        return table, (), ()
    lines = [table.lines[k] for k in np.flatnonzero(copy)]
    said = f"{len(rows)} rows read, {len(rows) - len(lines)} used, {len(lines)} set aside as exact copies of "
    said += f"earlier rows (line {', '.join(map(str, lines[:_ENOUGH]))}{_more(lines)})"
    aside = tuple(
        Aside(table.name, table.lines[k], "an exact copy of an earlier row", "", tuple(table.cells[k]))
        for k in np.flatnonzero(copy)
    )
    return _some(table, np.flatnonzero(~copy)), (said,), aside


# ------------------------------------------------------------------------------------------------- runs


def _run(run_id: str, table: _Table) -> Run:
    records = table.rows.astype(object).where(table.rows.notna(), None).to_dict("records")
    environments: dict[tuple[str, ...], int] = {}
    cases: dict[tuple[Any, ...], list[int]] = {}
    for number, record in enumerate(records):
        environments.setdefault(tuple(record[name] for name in ENVIRONMENT_COLUMNS), len(environments))
        cases.setdefault(tuple(record[name] for name in KEY_FIELDS), []).append(number)
    measurements = tuple(_measurement(records, numbers, environments, table) for numbers in cases.values())
    known = tuple(
        Environment.model_validate(dict(zip(ENVIRONMENT_COLUMNS, values, strict=True)))
        for values in environments
    )
    return Run(
        header=RunHeader(
            run_id=run_id,
            created_at=min((m.measured_at for m in measurements if m.measured_at), default=""),
            source=table.name,
            environment=known[0],
        ),
        measurements=measurements,
        environments=known,
    )


def _measurement(
    records: list[dict[Any, Any]],
    numbers: list[int],
    environments: dict[tuple[str, ...], int],
    table: _Table,
) -> Measurement:
    """The case whose rows, one a clock, are `numbers`."""
    rows = [records[number] for number in numbers]
    first = rows[0]
    where = f"{table.name}, line {table.lines[numbers[0]]}"
    for number, row in zip(numbers, rows, strict=True):
        for name in (*MEASUREMENT_COLUMNS, *ENVIRONMENT_COLUMNS):
            if row[name] != first[name]:
                raise InputError(
                    f"{where} and line {table.lines[number]}: the same case, yet {name} differs: "
                    f"{_shown(str(first[name]))} and {_shown(str(row[name]))}"
                )
    try:
        check_backend(first["backend"])
        case = Case(**{name: first[name] for name in KEY_FIELDS})
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error)}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    # a case failed as a whole if all its rows say the same; else each clock keeps its own status
    outcomes = {(row["status"], row["reason"]) for row in rows}
    status, reason = next(iter(outcomes)) if len(outcomes) == 1 and first["status"] != "ok" else ("ok", "")
    clocks = tuple(
        ClockResult(
            clock=row["clock"],
            status=row["status"],
            reason=row["reason"],
            flags=tuple(x for x in row["flags"].split(FLAG_SEPARATOR) if x and x != "stale_kernel"),
            **{name: row[name] for name in CLOCK_COLUMNS},
        )
        for row in rows
    )
    return Measurement(
        case=case,
        status=status,
        reason=reason,
        clocks=clocks,
        environment=environments[tuple(first[name] for name in ENVIRONMENT_COLUMNS)],
        **{name: first[name] for name in MEASUREMENT_COLUMNS},
    )


def _differences(run: Run, table: _Table) -> list[str]:
    """Where the file's estimates are not what this version computes: both are said, ours are shown."""
    ours = frame(run)
    order = {row: number for number, row in enumerate(_identity(ours))}
    place = np.array([order[row] for row in _identity(table.rows)])
    said = []
    for name in DERIVED_FIELDS:
        theirs = table.rows[name].astype("float64").to_numpy(na_value=np.nan)
        computed = ours[name].astype("float64").to_numpy(na_value=np.nan)[place]
        known = ~np.isnan(theirs)
        apart = np.flatnonzero(known & ~np.isclose(theirs, computed, rtol=1e-9, atol=0, equal_nan=True))
        if len(apart):
            first = apart[0]
            here = "unknown" if np.isnan(computed[first]) else f"{computed[first]:.6g}"
            said.append(
                f"{name} is not taken over: in {len(apart)} of {len(theirs)} rows it differs from what this "
                f"version computes (line {table.lines[first]}: {theirs[first]:.6g} in the file, {here} here)"
            )
    return said


def _identity(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    names = [*KEY_FIELDS, "clock"]
    plain = rows[names].astype(object)
    return list(plain.where(plain.notna(), None).itertuples(index=False, name=None))
