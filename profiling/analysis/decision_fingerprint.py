"""A fingerprint of what a decision rests on, so that a signature can tell when its evidence has changed.

It holds the question, the answer and every measured row behind it, with the software and kernels it was
measured with; not the order of rows, and not what is only modelled. Nor does it hold the operation, which is
attention in every row that a decision rests on: tables had no such column when the first decisions were
signed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiling.analysis.decision import Decision, DecisionRow
from profiling.analysis.deployment import Question

# Columns that say which operation a row is of.
_OPERATION = ("operation", "operation_name")
DIGITS = 16  # of a digest in hexadecimal: 64 bits, and short enough to be read out


def question_text(question: Question) -> str:
    """The question as JSON: the same question has the same text, in whatever order its models stand."""
    shapes = sorted((shape._asdict() for shape in question.shapes), key=lambda fields: str(fields["name"]))
    return _json(question._asdict() | {"shapes": shapes})


def question_digest(question: Question) -> str:
    """What signatures of one question have in common."""
    return _digest(question_text(question))


def parts(decision: Decision, frame: pd.DataFrame) -> dict[str, str]:
    """A digest for each row of the decision, by its name (`row_name`).

    Args:
        decision: the answer.
        frame: the comparison table that it was made from.
    """
    columns = [name for name in frame.columns if name not in _OPERATION and not str(name).startswith("est_")]
    return {
        row_name(row): _digest(_answer(row) + _evidence(frame.loc[list(row.rows), columns]))
        for row in decision.rows
    }


def row_name(row: DecisionRow) -> str:
    """A row of the table in words: model and batch."""
    return f"{row.shape.name}, batch {row.batch}"


def fingerprint(question: Question, found: Mapping[str, str]) -> str:
    """One digest of the question and all `parts`."""
    return _digest(question_text(question) + _json(dict(found)))


def changes(signed: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the rows whose evidence is another than when it was signed, or is new, or is gone."""
    names = [*now, *(name for name in signed if name not in now)]
    return tuple(name for name in names if signed.get(name) != now.get(name))


def _answer(row: DecisionRow) -> str:
    """What the row says, without the figures, which are the evidence's own."""
    compared = [each and (each.other, each.verdict) for each in (row.naive, row.sdpa)]
    return _json([row.shape._asdict(), row.batch, row.verdict, row.uses, compared])


def _evidence(rows: pd.DataFrame) -> str:
    lines = (
        _json([None if pd.isna(value) else value for value in values])
        for values in rows.astype(object).itertuples(index=False, name=None)
    )
    return _json(list(rows.columns)) + "\n".join(sorted(lines))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
