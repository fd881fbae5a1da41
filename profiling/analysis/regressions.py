"""What a comparison comes to: counts, mean ratios, the worst regressions, and what a limit does not allow."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from profiling.analysis.compare import VERDICTS, Comparison, Row
from profiling.case import ATTENTION, InputError

WORST = 10

_LIMIT = re.compile(r"(slower|faster)(?:=(.+))?|missing|ambiguous")
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


class Group(NamedTuple):
    """One backend's rows of one operation in one direction on one clock.

    Attributes:
        metric: `latency`, `memory` or `energy`.
        backend: with its variant if one was asked for.
        direction: `fwd`, `bwd` or `fwd_bwd`.
        clock: of the latency; empty for the others.
        n_by_verdict: how many rows have each verdict, in the order of `VERDICTS`.
        ratio: geometric mean of B / A over the rows that ran on both sides, once each, and whose latency is
            not within what the clock itself takes; None if there is none.
        n_ratio: how many rows that is.
        operation: one of `case.OPERATIONS`.
    """

    metric: str
    backend: str
    direction: str
    clock: str
    n_by_verdict: dict[str, int]
    ratio: float | None
    n_ratio: int
    operation: str = ATTENTION


class Summary(NamedTuple):
    """A comparison in short.

    Attributes:
        n_by_verdict: rows by metric, then by verdict.
        groups: in order of appearance.
        worst: the rows that are `slower`, the largest ratio first; at most `WORST`.
        lost: the rows that ran on side A and do not on side B.
    """

    n_by_verdict: dict[str, dict[str, int]]
    groups: tuple[Group, ...]
    worst: tuple[Row, ...]
    lost: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "n_by_verdict": self.n_by_verdict,
            "groups": [group._asdict() for group in self.groups],
            "worst": [row.to_dict() for row in self.worst],
            "lost": [row.to_dict() for row in self.lost],
        }


class Limit(NamedTuple):
    """What must not be: rows with this verdict whose ratio is off by `by` or more (relative, 0 for any)."""

    verdict: str
    by: float = 0.0


def summary(comparison: Comparison) -> Summary:
    """Counts, groups, the worst regressions and what no longer runs."""
    by_metric: dict[str, list[Row]] = {}
    by_group: dict[tuple[tuple[str, str, str, str], str], list[Row]] = {}
    for row in comparison.rows:
        name = f"{row.case.backend}/{row.case.variant}" if row.case.variant else row.case.backend
        by_metric.setdefault(row.metric, []).append(row)
        names = (row.metric, name, row.case.direction, row.clock)
        by_group.setdefault((names, row.case.operation), []).append(row)
    slower = [row for row in comparison.rows if row.verdict == "slower"]
    return Summary(
        n_by_verdict={metric: _counts(rows) for metric, rows in by_metric.items()},
        groups=tuple(_group(*key, rows) for key, rows in by_group.items()),
        worst=tuple(sorted(slower, key=_ratio, reverse=True)[:WORST]),
        lost=tuple(row for row in comparison.rows if row.is_lost),
    )


def percent(text: str, option: str) -> float:
    """`5%` as 0.05; `option` is who asks.

    Raises:
        InputError: it is not a number with a per cent sign.
    """
    match = _PERCENT.fullmatch(text)
    if not match:
        raise InputError(f"{option} {text}: must be a number and its per cent sign, such as 5%")
    return float(match[1]) / 100


def limit(text: str) -> Limit:
    """A limit from words: `slower`, `slower=5%`, `faster=5%`, `missing` or `ambiguous`.

    Raises:
        InputError: it is none of these.
    """
    match = _LIMIT.fullmatch(text.strip())
    if not match:
        raise InputError(
            f"--fail-on {text}: must be slower or faster, with a percentage or without, such as slower=5%, "
            "or missing, or ambiguous"
        )
    if match[1] is None:
        return Limit(match[0])
    return Limit(match[1], 0.0 if match[2] is None else percent(match[2], f"--fail-on {match[1]}="))


def broken(comparison: Comparison, limits: Sequence[Limit]) -> list[Row]:
    """The rows that a limit does not allow, in the comparison's order.

    `slower=5%` is broken by a row whose verdict is `slower` and whose ratio is at least 1.05, `faster=5%`
    by one that is `faster` and at most 1 / 1.05. `missing` is broken by what side B has lost; a case that
    A has not, or could not run either, breaks nothing.
    """
    return [row for row in comparison.rows if any(_breaks(row, each) for each in limits)]


def compares_nothing(comparison: Comparison) -> bool:
    """Whether not one case ran on both sides, so that nothing could break a limit on speed."""
    return all(row.verdict == "missing" for row in comparison.rows)


def _breaks(row: Row, each: Limit) -> bool:
    if each.verdict == "missing":
        return row.is_lost
    if row.verdict != each.verdict:
        return False
    # a hair is left for rounding: a ratio of exactly 1.05 breaks 5 %
    return row.ratio is None or abs(math.log(row.ratio)) >= math.log1p(each.by) - 1e-12


def _counts(rows: Iterable[Row]) -> dict[str, int]:
    counted = Counter(row.verdict for row in rows)
    return {verdict: counted[verdict] for verdict in VERDICTS}


def _group(names: tuple[str, str, str, str], operation: str, rows: Sequence[Row]) -> Group:
    logs = [math.log(row.ratio) for row in rows if row.ratio is not None and not row.is_limited]
    mean = math.exp(math.fsum(logs) / len(logs)) if logs else None
    return Group(*names, _counts(rows), mean, len(logs), operation)


def _ratio(row: Row) -> float:
    return math.inf if row.ratio is None else row.ratio
