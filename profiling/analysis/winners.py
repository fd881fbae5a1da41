"""Who wins over N and a second axis: a cell for each N of each curve, from its crossover and its rows."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from profiling.analysis.crossover import Crossover


class Win(NamedTuple):
    """One N of one row of the map.

    `ratio` is baseline / candidate, above 1 where the candidate is ahead, and `sign` 1, -1, or 0 where
    neither can be said to be (`crossover.Point`). A ratio of None has a `reason`: who did not run, and why,
    or that a latency is within what the clock itself takes.
    """

    row: str
    seq_len: int
    ratio: float | None
    sign: int = 0
    reason: str = ""


def wins(row: str, found: Crossover, rows: pd.DataFrame) -> tuple[Win, ...]:
    """The cells of one curve, ascending in N.

    Args:
        row: what the row of the map is called.
        found: the comparison.
        rows: those of both backends, with `name`, `seq_len` and `status`.
    """
    points = {p.seq_len: p for p in found.points}
    out = []
    for n in sorted({int(n) for n in rows["seq_len"]}):
        if (point := points.get(n)) is not None and point.ratio is not None:
            out.append(Win(row, n, point.ratio, point.sign))
        else:
            out.append(Win(row, n, None, reason=_reason(found, rows[rows["seq_len"] == n], n)))
    return tuple(out)


def _reason(found: Crossover, rows: pd.DataFrame, n: int) -> str:
    if n in found.limited:
        return "a latency is hardly more than an empty kernel's"
    status = dict(zip(rows["name"], rows["status"], strict=True))
    lacking = [
        f"{name}: {status.get(name, 'not measured')}"
        for name in (found.baseline, found.candidate)
        if status.get(name) != "ok"
    ]
    return ", ".join(lacking) or "not compared"
