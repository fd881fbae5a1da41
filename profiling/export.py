"""What leaves the program: tables as CSV and Markdown, a run as JSON. Everything is returned as text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from profiling.analysis.policy import Policy
from profiling.case import InputError
from profiling.records import Run, RunHeader
from profiling.units import count_text, number_text

# A spreadsheet runs a text cell that starts with one of these as a formula.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_GUARDED = re.compile(r"'+[=+\-@\t\r]")
_MARKDOWN = re.compile(r"([\\`*\[\]<>|])")


def to_csv(frame: pd.DataFrame) -> str:
    """The table as CSV: UTF-8 text with a header, commas and LF, empty cells for what is unknown.

    Numbers have every digit (`repr`), so that importing gives the same ones. A text cell that a
    spreadsheet would run gets a leading apostrophe (`guard`), which the importer takes off again.
    """
    columns = [_cells(frame[name]) for name in frame.columns]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([guard(str(name)) for name in frame.columns])
    for row in zip(*columns, strict=True):
        # csv.writer leaves a carriage return unquoted before Python 3.13, and its reader would split there
        if any("\r" in cell for cell in row):
            out.write(",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) + "\n")
        else:
            writer.writerow(row)
    return out.getvalue()


def guard(text: str) -> str:
    """`=1+1` -> `'=1+1`, and `'=1+1` -> `''=1+1`, so that `unguard` can tell them apart."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguard(text: str) -> str:
    """The inverse of `guard`; text that `guard` leaves alone is left alone."""
    return text[1:] if _GUARDED.match(text) else text


def to_json(run: Run) -> str:
    """The whole run as one JSON object: header, environments, measurements with samples, problems, end."""
    return json.dumps(
        {
            "header": run.header.model_dump(mode="json"),
            "environments": [environment.model_dump(mode="json") for environment in run.environments],
            # through JSON's own encoder, where NaN is null: json.dumps would write what JSON does not know
            "measurements": [json.loads(measurement.model_dump_json()) for measurement in run.measurements],
            "problems": list(run.problems),
            "end": None if run.end is None else run.end.model_dump(mode="json"),
        },
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )


def to_policy(policy: Policy) -> str:
    """Rules as JSON, as `fa_core.load_policy` reads them."""
    return json.dumps(
        {
            "format": "flashscope policy",
            "version": 1,
            "device_kind": policy.device_kind,
            "device_name": policy.device_name,
            "runs": list(policy.run_ids),
            "clock": policy.clock,
            "rules": [rule._asdict() for rule in policy.rules],
        },
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )


def provenance(header: RunHeader) -> list[tuple[str, str]]:
    """Where a run's numbers come from, as terms and texts: device, versions, run, commit, command."""
    e = header.environment
    named = (("torch", e.torch_version), ("triton", e.triton_version), ("driver", e.driver_version))
    versions = ", ".join(f"{name} {version}" for name, version in named if version)
    dirty = ", uncommitted changes" if e.git_clean is False else ""
    return [
        ("Device", e.device_name),
        ("Versions", versions or "unknown"),
        ("Run", ", ".join(filter(None, [header.run_id, header.created_at, header.label, header.source]))),
        ("Commit", f"{e.git_commit}{dirty}" if e.git_commit else "unknown"),
        ("Measured with", " ".join(e.argv) or "unknown"),
    ]


def to_markdown(frame: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    """The table in Markdown, for people: three significant digits, units in the column names.

    Args:
        frame: any table.
        columns: which of its columns, in this order; all by default.

    Raises:
        InputError: the table has no such column.
    """
    columns = list(frame.columns) if columns is None else list(columns)
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise InputError(f"no column {', '.join(absent)}: must be among {', '.join(map(str, frame.columns))}")
    texts = [_people(frame[name]) for name in columns]
    types = [frame[name].dtype for name in columns]
    numeric = [pd.api.types.is_numeric_dtype(t) and not pd.api.types.is_bool_dtype(t) for t in types]
    return tabulate(
        list(zip(*texts, strict=True)),
        headers=[escaped(str(name)) for name in columns],
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["right" if number else "left" for number in numeric] if len(frame) else None,
    )


def _cells(column: pd.Series) -> list[str]:
    """One column's cells as a CSV has them."""
    known = column.notna()
    values = column.astype(object).tolist()
    if pd.api.types.is_bool_dtype(column.dtype):
        return [("true" if value else "false") if ok else "" for value, ok in zip(values, known, strict=True)]
    if pd.api.types.is_integer_dtype(column.dtype):
        return [str(int(value)) if ok else "" for value, ok in zip(values, known, strict=True)]
    if pd.api.types.is_float_dtype(column.dtype):
        return [repr(float(value)) if ok else "" for value, ok in zip(values, known, strict=True)]
    return [guard(str(value)) if ok else "" for value, ok in zip(values, known, strict=True)]


def _people(column: pd.Series) -> list[str]:
    """One column's cells as people read them."""
    dtype = column.dtype
    if pd.api.types.is_bool_dtype(dtype):
        return ["" if pd.isna(value) else "yes" if value else "no" for value in column]
    if pd.api.types.is_integer_dtype(dtype):
        return [count_text(value) for value in column]
    if pd.api.types.is_float_dtype(dtype):
        return [number_text(value) for value in column]
    return ["" if _absent(value) else escaped(str(value)) for value in column]


def _absent(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def escaped(text: str) -> str:
    """Text that stays text: a name from a file must not become a link, an image or a new cell."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
