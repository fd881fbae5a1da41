"""What operations are called, what their curves run along, and which rows are of attention.

A curve of attention runs along N, its sequence length; one of an operation over rows along the classes of a
row. Sentences, axes and tables take their words for it from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from profiling.case import ATTENTION, OPERATIONS, ROW_OPERATIONS
from profiling.units import count_text


class Along(NamedTuple):
    """What a curve runs along, in words.

    Attributes:
        axis: the title of a chart's axis.
        noun: as in `latency against ...`.
        each: as in `at every ...`, `the largest ...`.
        column: what heads a column of its values.
        crossover: where the candidate overtakes, as a heading.
        before: what stands before its values, as `N = ` in `N = 512`.
        after: what stands behind them, as ` classes` in `512 classes`.
        item: what a call is divided by: a query token, or a row.
    """

    axis: str
    noun: str
    each: str
    column: str
    crossover: str
    before: str
    after: str
    item: str

    def at(self, *values: float) -> str:
        """One value or several, such as `N = 512 and 1 024` or `512 and 1 024 classes`."""
        if self.after and values == (1,):
            return "1 class"
        return self.of(joined([count_text(round(value)) for value in values]))

    def of(self, text: str) -> str:
        """The same of a text that stands for a number or a range of them."""
        return f"{self.before}{text}{self.after}"

    def found(self, text: str) -> str:
        """A crossover's place: `N* = 790 [764, 800]`, `790 [764, 800] classes`."""
        return f"N* = {text}" if self.before else self.of(text)


SEQUENCE = Along(
    axis="Sequence length N (tokens)",
    noun="sequence length",
    each="N",
    column="N",
    crossover="N*",
    before="N = ",
    after="",
    item="token",
)
CLASSES = Along(
    axis="Classes of a row",
    noun="classes of a row",
    each="number of classes",
    column="classes",
    crossover="crossover",
    before="",
    after=" classes",
    item="row",
)
# Of a table that holds both.
EITHER = Along(
    axis="N, or classes of a row",
    noun="N or classes of a row",
    each="N or number of classes",
    column="N or classes",
    crossover="N*",
    before="N = ",
    after="",
    item="token or row",
)


def named(operation: str) -> str:
    """An operation as people call it: `attention`, `cross-entropy`, `softmax top-k`."""
    return ROW_OPERATIONS.get(operation, operation)


def listed(operations: Iterable[str]) -> str:
    """Several, in the order of `case.OPERATIONS`: `cross-entropy and softmax top-k`."""
    present = set(operations)
    return joined([named(each) for each in OPERATIONS if each in present])


def beyond_attention(operations: Iterable[str]) -> bool:
    """Whether any of these is another operation than attention."""
    return any(each != ATTENTION for each in operations)


def along(operations: Iterable[str]) -> Along:
    """What curves of these operations run along; of none it is the sequence length."""
    over_rows = {each != ATTENTION for each in operations}
    return EITHER if len(over_rows) > 1 else CLASSES if True in over_rows else SEQUENCE


def along_of(frame: pd.DataFrame) -> Along:
    """What the curves of a table's rows run along."""
    return along(frame["operation"].unique())


def attention_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of attention; the table itself where there are no others."""
    own = (frame["operation"] == ATTENTION).fillna(False)
    return frame if own.all() else frame[own]


def joined(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; nothing of none."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
