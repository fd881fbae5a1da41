"""Which measured rows fit a model, as one series a batch and number of heads: latencies and ratios by N.

Training is forward plus backward: `fwd_bwd` where it was measured, else the sum of the two. The bounds of a
sum's ratio are those of its parts taken together, which is wider than a joint interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import pandas as pd

from profiling.analysis.crossover import Crossover, Point, crossovers
from profiling.analysis.curves import ORIGIN_FIELDS, untiled
from profiling.analysis.deployment import INFERENCE, Question, Shape
from profiling.analysis.operations import attention_rows
from profiling.analysis.policy import IMPLS, MARGIN, Option
from profiling.case import InputError

Pair = tuple[str, str]  # the other, and the one whose advantage is in question


class Ratio(NamedTuple):
    """At one N: the other's latency over the candidate's, above 1 where the candidate is faster.

    `low` and `high` bound it at 95 %, None without samples; `sign` is 0 where neither is ahead for sure.
    """

    seq_len: int
    ratio: float
    low: float | None
    high: float | None
    sign: int

    @property
    def alike(self) -> bool:
        """Whether the two are the same within the margin, and that is sure."""
        if self.low is None or self.high is None:
            return False
        return self.low >= 1 / (1 + MARGIN) and self.high <= 1 + MARGIN


class Series(NamedTuple):
    """One measured (batch, heads): latencies by backend and N, comparisons by pair of backends, its rows.

    `limited` are lengths that are left out of the latencies, because the clock cannot tell them.
    """

    size: tuple[int, int]
    ms: dict[Option, dict[int, float]]
    ratios: dict[Pair, dict[int, Ratio]]
    found: dict[Pair, Crossover]
    rows: pd.DataFrame
    limited: tuple[int, ...]


def fitting(frame: pd.DataFrame, shape: Shape, question: Question) -> pd.DataFrame:
    """The rows on the clock that are about this shape, of any batch, heads, length and direction."""
    rows = untiled(attention_rows(frame))
    rows = rows[(rows["clock"] == question.clock) & (rows["dtype"] == question.dtype)]
    rows = rows[(rows["layout"] == "dense") & (rows["seq_len_q"] == rows["seq_len_k"])]
    rows = rows[(rows["variant"] == "") & rows["backend"].isin([*IMPLS, question.candidate])]
    rows = rows[rows["heads"] == rows["kv_heads"] * shape.group]
    for name in ("head_dim", "head_dim_v", "causal", "sinks"):
        rows = rows[rows[name] == getattr(shape, name)]
    for name in ("window_left", "softcap"):
        value = getattr(shape, name)
        rows = rows[rows[name].isna() if value is None else (rows[name] == value).fillna(False)]
    rows = rows[rows["window_right"].isna() & ~rows["bias"].astype(bool) & ~rows["alibi"].astype(bool)]
    if question.workload == INFERENCE:
        rows = rows[rows["direction"] == "fwd"]
    origins = rows[list(ORIGIN_FIELDS)].drop_duplicates()
    if len(origins) > 1:
        raise InputError(
            f"{shape.name}: the rows that fit are of {len(origins)} runs, devices or versions: must be of one"
        )
    return rows


def all_series(
    rows: pd.DataFrame, samples: pd.DataFrame | None, question: Question, replicates: int
) -> list[Series]:
    """The measured sizes, by batch · heads."""
    if rows.empty:
        return []
    parts = [(key, own, *latencies(own, question.workload)) for key, own in rows.groupby(["batch", "heads"])]
    pairs = _pairs([ms for _, _, ms, _ in parts], set(rows["backend"]), question.candidate)
    found: dict[Pair, dict[tuple[int, int, str], Crossover]] = {
        (other, name): {
            (each.slice.batch, each.slice.heads, each.slice.direction): each
            for each in crossovers(
                rows, samples, baseline=other, candidate=name, clock=question.clock, replicates=replicates
            )
        }
        for other, name in pairs
    }
    out = []
    for key, own, ms, direction in parts:
        batch, heads = (int(value) for value in cast("tuple[int, int]", key))
        single: dict[Pair, Crossover] = {}
        ratios: dict[Pair, dict[int, Ratio]] = {}
        for pair, by in found.items():
            if direction != "sum" and (batch, heads, direction) in by:
                single[pair] = by[batch, heads, direction]
                ratios[pair] = {p.seq_len: _ratio(p) for p in single[pair].points if p.ratio}
            elif direction == "sum" and {(batch, heads, "fwd"), (batch, heads, "bwd")} <= set(by):
                ratios[pair] = _summed(*(by[batch, heads, d].points for d in ("fwd", "bwd")))
        out.append(Series((batch, heads), ms, ratios, single, own, _limited(own[own["status"] == "ok"])))
    return [each for each in out if each.ms]


def _pairs(found: Sequence[dict[Option, dict[int, float]]], present: set[str], candidate: str) -> list[Pair]:
    """What to compare: everything with the candidate, and with what may be used at any N."""
    fast: set[str] = set()
    for ms in found:
        for n in {n for own in ms.values() for n in own}:
            here = {option.impl: own[n] for option, own in ms.items() if n in own}
            fast |= {name for name, value in here.items() if value <= (1 + MARGIN) * min(here.values())}
    names = ([candidate] if candidate in present else []) + sorted(fast - {candidate})
    pairs: list[Pair] = []
    for name in names:
        pairs += [(o, name) for o in sorted(present - {name}) if (name, o) not in pairs]
    return pairs


def latencies(rows: pd.DataFrame, workload: str) -> tuple[dict[Option, dict[int, float]], str]:
    """Milliseconds by backend and N, and the direction they are of: `fwd`, `fwd_bwd`, or `sum`."""
    usable = rows[(rows["status"] == "ok") & (rows["latency_p50_ms"] > 0)]
    usable = usable[~usable["seq_len_k"].isin(_limited(usable))]
    by: dict[str, dict[Option, dict[int, float]]] = {"fwd": {}, "bwd": {}, "fwd_bwd": {}}
    columns = (usable[name] for name in ("direction", "backend", "seq_len_k", "latency_p50_ms"))
    for direction, backend, n, ms in zip(*columns, strict=True):
        by[direction].setdefault(Option(str(backend), None), {})[int(n)] = float(ms)
    if workload == INFERENCE:
        return by["fwd"], "fwd"
    if by["fwd_bwd"]:
        return by["fwd_bwd"], "fwd_bwd"
    sums = {
        option: {n: ms + by["bwd"][option][n] for n, ms in own.items() if n in by["bwd"][option]}
        for option, own in by["fwd"].items()
        if option in by["bwd"]
    }
    return {option: own for option, own in sums.items() if own}, "sum"


def _limited(rows: pd.DataFrame) -> tuple[int, ...]:
    """The N at which a latency is within what the clock itself takes: nobody is ranked there."""
    shy = rows["flags"].str.contains("timer_limited", regex=False).fillna(False).astype(bool)
    return tuple(sorted({int(n) for n in rows.loc[shy, "seq_len_k"]}))


def _ratio(point: Point) -> Ratio:
    return Ratio(point.seq_len, point.ratio or math.nan, point.ratio_lo, point.ratio_hi, point.sign)


def _summed(forward: Sequence[Point], backward: Sequence[Point]) -> dict[int, Ratio]:
    """The ratios of forward plus backward, where both ran."""
    other = {point.seq_len: point for point in backward if point.ratio}
    return {p.seq_len: _sum(p, other[p.seq_len]) for p in forward if p.ratio and p.seq_len in other}


def _sum(f: Point, b: Point) -> Ratio:
    """One ratio of sums: the other's time is known, the candidate's is that over each part's ratio."""

    def joint(first: float | None, second: float | None) -> float | None:
        if not first or not second:
            return None
        total = f.baseline_value + b.baseline_value
        return total / (f.baseline_value / first + b.baseline_value / second)

    ratio = joint(f.ratio, b.ratio) or math.nan
    low, high = joint(f.ratio_lo, b.ratio_lo), joint(f.ratio_hi, b.ratio_hi)
    if low is None or high is None:
        return Ratio(f.seq_len, ratio, None, None, int(ratio > 1) - int(ratio < 1))
    return Ratio(f.seq_len, ratio, low, high, int(low > 1) - int(high < 1))
