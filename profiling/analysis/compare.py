"""Two runs, GPUs or versions side by side: is B as fast as A, case by case?

Rows are joined on the key of the case and the clock, outer: what either side has appears once. A ratio is
B / A, so above 1 B takes longer (or more memory, or more energy). Each row has one verdict:

- `missing`: a side has no value, because the case failed there, or is not in it. Never a speed-up.
- `same`: the interval of the ratio lies within the margin, from 1 / (1 + margin) to 1 + margin.
- `faster`, `slower`: the interval lies beyond the margin altogether. Of memory and energy: less, more.
- `ambiguous`: anything else, also a case that a side has several times (shown, never averaged), a latency
  within what the clock itself takes (`timer_limited`), and a difference within one step of the clock.

What the interval rests on (`basis`):

- `processes`: with samples of at least three processes on both sides, Student's t on the processes'
  medians, see `spread`. The runs are not interleaved, so only processes are independent of each other.
- `rounds`: with fewer, the spread between processes is unknown. The interval is then all that the runs
  show: from B's least over A's greatest to the reverse, over the rounds' medians and the 20th and 80th
  percentiles of the samples. It is never `same`, and `faster` or `slower` only if it excludes the
  `threshold`, which stands in for what is not known. With fewer than three rounds it is `ambiguous`.
- `summary`: without samples on a side there is no interval. The ratio of the two medians is `same` within
  the margin; `faster` or `slower` beyond the threshold, if the ranges from the 20th to the 80th percentile,
  where they are known, do not overlap.
- `exact`: the peak of CUDA's allocator is the same in every process: the ratio itself is held against the
  margin. The resident size of a CPU process and energy scatter: these are judged as `summary`.

A verdict holds at 95 % for its row. Among many rows that are truly alike some fall outside by chance: at
most one in forty on each side, and far fewer where the noise is smaller than the margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profiling.analysis.differences import Difference, differences
from profiling.analysis.resample import MIN_PROCESSES
from profiling.analysis.spread import ROW_FIELDS, Spread, half_width, spreads
from profiling.case import KEY_FIELDS, Case, InputError

METRICS: dict[str, str] = {"latency": "latency_p50_ms", "memory": "peak_mem_bytes", "energy": "energy_mj"}
VERDICTS: tuple[str, ...] = ("same", "faster", "slower", "ambiguous", "missing")
MARGIN = 0.02
THRESHOLD = 0.05
CLOCK_DRIFT = 0.03  # as of the flag `clock_drift`, which is about one side alone
MIN_ROUNDS = 3  # of a side with too few processes: fewer show no noise at all

# What a side's rows are read from, beside the value.
_TEXTS = ("run_id", "status", "reason", "flags", "mem_method")
_NUMBERS = ("latency_p20_ms", "latency_p80_ms", "resolution_ms", "sm_clock_min_mhz", "sm_clock_max_mhz")
_SEPARATOR = ";"  # between flags, as the comparison table has them


class Side(NamedTuple):
    """One row of a case on one side.

    Attributes:
        run_id: where it comes from; empty where the case is not in this side.
        status: as in the run; `missing` where there is no row or no value.
        reason: why, where the status is not `ok`.
        value: median latency in ms, peak memory in bytes or energy of a call in mJ; None unless `ok`.
        flags: of the row.
        processes: how many worker processes its samples come from; None without samples.
        sm_clock_mhz: of the GPU, the middle of what was seen over the visits of the case; None if unknown.
    """

    run_id: str
    status: str
    reason: str
    value: float | None
    flags: tuple[str, ...] = ()
    processes: int | None = None
    sm_clock_mhz: float | None = None


class Row(NamedTuple):
    """One case on one clock, on both sides.

    Attributes:
        case: the key.
        metric: `latency`, `memory` or `energy`.
        clock: the latency's; empty for the others.
        a: the rows of side A: one, or several of a case that it has several times.
        b: the same of side B.
        verdict: one of `VERDICTS`.
        ratio: B / A, by the processes' medians where the basis is `processes`, else of the values. None
            where a value is missing or 0, or one of several.
        interval: of the ratio; None for the bases `summary` and `exact`, and with too few rounds.
        basis: `processes`, `rounds`, `summary` or `exact`; empty where nothing was compared.
        why: what kept the row from a clearer verdict; empty if nothing did.
    """

    case: Case
    metric: str
    clock: str
    a: tuple[Side, ...]
    b: tuple[Side, ...]
    verdict: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    basis: str = ""
    why: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether it ran on side A, and does not on side B."""
        return _ran(self.a) and not _ran(self.b)

    @property
    def is_limited(self) -> bool:
        """Whether a latency is within what the clock itself takes, so that its ratio says little."""
        return _is_limited((*self.a, *self.b))

    @property
    def sm_clocks_apart_mhz(self) -> tuple[float, float] | None:
        """The SM clocks of A and B if they differ by more than `CLOCK_DRIFT`: a ratio is of both, then."""
        first, second = self.a[0].sm_clock_mhz, self.b[0].sm_clock_mhz
        if not first or not second or max(first, second) <= (1 + CLOCK_DRIFT) * min(first, second):
            return None
        return first, second

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        out = self._asdict()
        out["case"] = self.case.model_dump(mode="json")
        out["label"] = self.case.label
        out["a"] = [side._asdict() for side in self.a]
        out["b"] = [side._asdict() for side in self.b]
        out["interval"] = None if self.interval is None else list(self.interval)
        return out


class Comparison(NamedTuple):
    """All rows, in the order of A and then of what B alone has, and where A and B come from elsewhere."""

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    margin: float
    threshold: float


class _Rule(NamedTuple):
    """The two limits on the logarithm of a ratio."""

    margin: float
    threshold: float


class _Finding(NamedTuple):
    """What a row is found to be: its last fields."""

    verdict: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    basis: str = ""
    why: str = ""


class _Seen(NamedTuple):
    """What is known of a side's row beyond `Side`: percentiles and step in ms, the memory's method."""

    side: Side
    low: float | None
    high: float | None
    step: float
    mem_method: str
    spread: Spread | None = None


def compare(
    a: pd.DataFrame,
    b: pd.DataFrame,
    samples_a: pd.DataFrame | None = None,
    samples_b: pd.DataFrame | None = None,
    *,
    metrics: Sequence[str] = tuple(METRICS),
    clocks: Sequence[str] = (),
    margin: float = MARGIN,
    threshold: float = THRESHOLD,
) -> Comparison:
    """Every case of A and B, side by side.

    Args:
        a: the comparison table (`store.frame`) of what is compared against.
        b: the one of what is in question.
        samples_a: raw samples (`store.samples_frame`) of A; without them, `summary`.
        samples_b: the same of B.
        metrics: of `METRICS`. Memory and energy have a row a case, where either side has a value.
        clocks: latencies of these clocks; all by default.
        margin: relative difference up to which two values are the same.
        threshold: relative difference from which on summaries, or too few processes, tell a difference.

    Raises:
        InputError: an unknown metric; a margin that is not above 0, or above the threshold; a side without
            rows, or neither side with what was asked for.
    """
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        raise InputError(f"unknown metric {unknown[0]!r}: must be one of {', '.join(METRICS)}")
    if not 0 < margin <= threshold < math.inf:
        raise InputError(
            "the margin must be above 0 and at most the threshold, "
            f"got {100 * margin:g} % and {100 * threshold:g} %"
        )
    for name, table in (("A", a), ("B", b)):
        if table.empty:
            raise InputError(f"{name} has no rows: there must be at least one case on each side")
    rule = _Rule(math.log1p(margin), math.log1p(threshold))
    rows: list[Row] = []
    for metric in metrics:
        if metric == "latency":
            tables = [table[table["clock"].isin(clocks)] if clocks else table for table in (a, b)]
            rows = _rows(tables, metric, [samples_a, samples_b], rule) + rows
        else:
            rows += _rows([_by_case(table, metric) for table in (a, b)], metric, [None, None], rule)
    if not rows or (clocks and "latency" in metrics and rows[0].metric != "latency"):
        asked = ", ".join(metrics) if not clocks else f"latencies on clock {', '.join(clocks)}"
        raise InputError(f"neither A nor B has {asked}: nothing to compare")
    return Comparison(tuple(rows), differences(a, b), margin, threshold)


def _by_case(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row for each time a run has a case, whatever the number of its clocks; with a value if one has."""
    names = [*KEY_FIELDS, "run_id"]
    time = table.groupby([*names, "clock"], dropna=False, sort=False).cumcount()
    rows = table.assign(time=time, empty=(table["status"] != "ok") | table[METRICS[metric]].isna())
    kept = rows.sort_values("empty", kind="stable").drop_duplicates([*names, "time"]).sort_index()
    return kept.assign(clock=pd.array([""] * len(kept), dtype="string"))


def _rows(
    tables: Sequence[pd.DataFrame], metric: str, samples: Sequence[pd.DataFrame | None], rule: _Rule
) -> list[Row]:
    """The outer join of one metric, judged."""
    keys = pd.concat([table[list(ROW_FIELDS)] for table in tables], ignore_index=True)
    if keys.empty:
        return []
    number = keys.groupby(list(ROW_FIELDS), dropna=False, sort=False).ngroup().to_numpy()
    _, first = np.unique(number, return_index=True)
    heads = keys.iloc[first].assign(number=np.arange(len(first)))
    bounds = (0, len(tables[0]), len(keys))
    sides: list[list[list[_Seen]]] = []
    for k, (table, raw) in enumerate(zip(tables, samples, strict=True)):
        known = {} if raw is None else spreads(raw, heads)
        own: list[list[_Seen]] = [[] for _ in first]
        numbers = number[bounds[k] : bounds[k + 1]].tolist()
        for at, seen in zip(numbers, _seen(table, metric, [known.get(at) for at in numbers]), strict=True):
            own[at].append(seen)
        sides.append(own)
    plain = heads[list(ROW_FIELDS)].astype(object)
    plain = plain.where(plain.notna(), None)
    out, cases = [], dict[tuple[Any, ...], Case]()  # a case is made once for all of its clocks
    for (*key, clock), seen_a, seen_b in zip(plain.itertuples(index=False, name=None), *sides, strict=True):
        if metric != "latency" and not any(seen.side.value is not None for seen in (*seen_a, *seen_b)):
            continue  # measured on neither side
        case = cases.get(tuple(key)) or Case(**dict(zip(KEY_FIELDS, key, strict=True)))
        cases[tuple(key)] = case
        own_a, own_b = _sides(seen_a, "A"), _sides(seen_b, "B")
        if _ran(own_a) and _ran(own_b):
            finding = _judged(metric, seen_a, seen_b, rule)
        else:
            finding = _Finding("missing", why=_absence(own_a, own_b))
        out.append(Row(case, metric, clock, own_a, own_b, *finding))
    return out


def _seen(table: pd.DataFrame, metric: str, known: Sequence[Spread | None]) -> list[_Seen]:
    """What the rows of a side say, in their order; `known` are their samples' spreads."""
    texts = [table[name].fillna("").tolist() for name in _TEXTS]
    column = table[METRICS[metric]].to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = [table[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in _NUMBERS]
    lows, highs, steps, slowest, fastest = (
        [None if math.isnan(x) else x for x in each.tolist()] for each in numbers
    )
    out = []
    timed = metric == "latency"
    mhz = [None if a is None or b is None else (a + b) / 2 for a, b in zip(slowest, fastest, strict=True)]
    for run_id, status, reason, flags, method, value, low, high, step, spread, clock in zip(
        *texts, column.tolist(), lows, highs, steps, known, mhz, strict=True
    ):
        there = status == "ok" and not math.isnan(value)
        if status == "ok" and not there:
            status, reason = "missing", f"no {metric} was measured"
        words = tuple(flags.split(_SEPARATOR)) if flags else ()
        processes = None if spread is None else spread.processes
        side = Side(run_id, status, reason, value if there else None, words, processes, clock)
        out.append(_Seen(side, low if timed else None, high if timed else None, step or 0.0, method, spread))
    return out


def _sides(seen: Sequence[_Seen], name: str) -> tuple[Side, ...]:
    if not seen:
        return (Side("", "missing", f"not in {name}", None),)
    return tuple(each.side for each in seen)


def _ran(sides: Sequence[Side]) -> bool:
    return sides[0].value is not None or any(side.value is not None for side in sides[1:])


def _absence(a: Sequence[Side], b: Sequence[Side]) -> str:
    """The status and the reason of each side that has no value."""
    lacking = [(name, sides[0]) for name, sides in (("A", a), ("B", b)) if not _ran(sides)]
    return "; ".join(
        f"{name}: {side.status}" + (f", {side.reason}" if side.reason else "") for name, side in lacking
    )


def _judged(metric: str, seen_a: Sequence[_Seen], seen_b: Sequence[_Seen], rule: _Rule) -> _Finding:
    """The verdict on a row that ran on both sides."""
    if len(seen_a) > 1 or len(seen_b) > 1:
        counts = [
            f"{len(each)} rows in {name}" for name, each in (("A", seen_a), ("B", seen_b)) if len(each) > 1
        ]
        return _Finding("ambiguous", why=f"{' and '.join(counts)}, not averaged")
    a, b = seen_a[0], seen_b[0]
    if metric == "memory" and a.mem_method != b.mem_method:
        methods = " and ".join(each.mem_method or "an unknown method" for each in (a, b))
        return _Finding("ambiguous", why=f"measured by {methods}, which do not compare")
    first, second = a.side.value or 0.0, b.side.value or 0.0
    if not first or not second:
        if first == second:
            return _Finding("same", basis="exact")
        return _Finding("slower" if second else "faster", basis="exact", why="a value is 0")
    found = _weighed(metric, a, b, math.log(second / first), rule)
    if _is_limited((a.side, b.side)):
        return found._replace(verdict="ambiguous", why="a latency is hardly more than an empty call's")
    step = max(a.step, b.step) if metric == "latency" else 0.0
    if found.verdict in ("faster", "slower") and abs(first - second) <= step:
        return found._replace(verdict="ambiguous", why="the difference is within one step of the clock")
    return found


def _weighed(metric: str, a: _Seen, b: _Seen, log_ratio: float, rule: _Rule) -> _Finding:
    """The verdict by what the two values rest on."""
    if a.spread is None or b.spread is None:
        return _by_summary(a, b, log_ratio, metric == "memory" and a.mem_method == "cuda_allocator", rule)
    both = (a.spread, b.spread)
    if min(each.processes for each in both) >= MIN_PROCESSES:
        return _by_processes(*both, rule)
    counts = f"{a.spread.processes} in A, {b.spread.processes} in B"
    if min(each.rounds for each in both) >= MIN_ROUNDS:
        return _by_rounds(log_ratio, _extent(a, a.spread), _extent(b, b.spread), counts, rule)
    why = f"too few rounds, and too few processes: {counts}"
    return _Finding("ambiguous", math.exp(log_ratio), None, "rounds", why)


def _by_summary(a: _Seen, b: _Seen, log_ratio: float, exact: bool, rule: _Rule) -> _Finding:
    """The verdict by the two values alone, and their percentiles where they have some."""
    verdict, why = _beyond(log_ratio), ""
    low, high = (a, b) if log_ratio > 0 else (b, a)
    if abs(log_ratio) <= rule.margin:
        verdict = "same"
    elif not exact and abs(log_ratio) <= rule.threshold:
        verdict, why = "ambiguous", "without samples, the difference is within the threshold"
    elif low.high is not None and high.low is not None and low.high >= high.low:
        verdict, why = "ambiguous", "without samples, and the percentiles overlap"
    return _Finding(verdict, math.exp(log_ratio), None, "exact" if exact else "summary", why)


def _by_processes(a: Spread, b: Spread, rule: _Rule) -> _Finding:
    """The verdict by the spread between processes, of which both sides have enough."""
    middle, half = b.estimate - a.estimate, half_width(a, b)
    low, high = middle - half, middle + half
    verdict, why = "ambiguous", "the interval reaches across the margin"
    if low > rule.margin or high < -rule.margin:
        verdict, why = _beyond(middle), ""
    elif max(abs(low), abs(high)) <= rule.margin:
        verdict, why = "same", ""
    return _Finding(verdict, math.exp(middle), (math.exp(low), math.exp(high)), "processes", why)


def _by_rounds(
    log_ratio: float, a: tuple[float, float], b: tuple[float, float], counts: str, rule: _Rule
) -> _Finding:
    """The verdict by all that two sides show, each from (least, greatest) in log ms."""
    low, high = b[0] - a[1], b[1] - a[0]
    verdict, why = "ambiguous", f"too few processes to know their noise: {counts}"
    if low > rule.threshold or high < -rule.threshold:
        verdict, why = _beyond(low), ""
    return _Finding(verdict, math.exp(log_ratio), (math.exp(low), math.exp(high)), "rounds", why)


def _extent(seen: _Seen, spread: Spread) -> tuple[float, float]:
    """From the least to the greatest that the row shows, in log ms."""
    lows = [spread.low, *([math.log(seen.low)] if seen.low else [])]
    highs = [spread.high, *([math.log(seen.high)] if seen.high else [])]
    return min(lows), max(highs)


def _is_limited(sides: Iterable[Side]) -> bool:
    return any("timer_limited" in side.flags for side in sides)


def _beyond(log_ratio: float) -> str:
    return "slower" if log_ratio > 0 else "faster"
