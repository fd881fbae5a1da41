"""From which N on is one backend ahead of another, and how sure is that?

For each slice (`curves.Slice`) and each N at which both backends ran, the log-ratio of their latencies is
taken round by round, in rounds where both were measured. A point whose interval holds zero, or whose
difference is no larger than the timer's step, has no sign of its own. Brackets are neighbouring points
with opposite signs of their own; N* is where a smooth curve through the points, in log2 N, crosses
zero. How sure the signs are is told by bootstrap replicates (`resample`); the interval of N* holds the spread
between processes and what may lie between the points (`interpolation`). All sign changes are kept, nothing
is extrapolated, and what has no samples gets brackets and no interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profiling.analysis import interpolation, resample, wording
from profiling.analysis.cost import Prices, check_prices, costs, millisecond_costs
from profiling.analysis.curves import (
    METRICS,
    ORIGIN_FIELDS,
    Slice,
    backend_names,
    curve_rows,
    slice_codes,
    untiled,
)
from profiling.analysis.operations import along
from profiling.analysis.pairing import Pairs, pair
from profiling.case import CLOCKS, KEY_FIELDS, InputError, split_name

COST = "cost"
METRIC_NAMES: tuple[str, ...] = (*METRICS, COST)

# At least this share of the replicates must show the same signs, else the verdict is `ambiguous`.
AGREEMENT = 0.95

VERDICTS: tuple[str, ...] = ("clear", "several", "ambiguous", "always", "never", "censored")


class Point(NamedTuple):
    """One N at which both backends ran.

    `ratio` is baseline / candidate: above 1 the candidate is ahead. With samples it is the mean over
    processes of the median paired ratio (geometric), and `ratio_lo`, `ratio_hi` bound it at 95 %; without,
    the ratio of the two values. None where a value is 0. Values are in ms, bytes or mJ, or for a cost in
    thousandths of the currency per million tokens. `sign` is 1 where the candidate is ahead, -1 where it is
    behind, 0 where neither can be said.
    """

    seq_len: int
    ratio: float | None
    ratio_lo: float | None
    ratio_hi: float | None
    baseline_value: float
    candidate_value: float
    sign: int


class Crossover(NamedTuple):
    """The answer for one slice.

    Attributes:
        slice: what the points have in common.
        baseline: the backend compared against, with its variant if one was asked for.
        candidate: the backend whose advantage is in question.
        metric: one of `METRIC_NAMES`.
        clock: the clock of the latency or cost; empty otherwise.
        verdict: one of `VERDICTS`.
        brackets: each (low, high) holds one change of sign between two measured N.
        crossings: N* of each bracket, by a cubic spline through the points in log2 N.
        ahead: on which side of a single bracket the candidate is ahead: `above`, `below`, or empty.
        crossover_seq_len: N* if the verdict is `clear`.
        interval: its 95 % interval; None without samples.
        calibrated: whether `interval` rests on enough processes (`resample.MIN_PROCESSES`) for its 95 % to
            hold; with fewer it is too narrow, as a rule. None without an interval.
        share: of replicates that show exactly these signs; None without samples.
        points: the N at which both ran, ascending.
        limited: the N at which both ran, but a latency is within what the clock itself takes: not ranked.
        baseline_oom_from: the N from which on the baseline ran out of memory every time.
        candidate_oom_from: the same for the candidate.
        bracket_only: the points have no paired samples, so there can be no interval.
        processes: the smallest number of worker processes behind a point; None without samples.
        why: one sentence: what was seen.
        next: one sentence: what to measure to know more.
    """

    slice: Slice
    baseline: str
    candidate: str
    metric: str
    clock: str
    verdict: str
    brackets: tuple[tuple[int, int], ...]
    crossings: tuple[float, ...]
    ahead: str
    crossover_seq_len: float | None
    interval: tuple[float, float] | None
    calibrated: bool | None
    share: float | None
    points: tuple[Point, ...]
    limited: tuple[int, ...]
    baseline_oom_from: int | None
    candidate_oom_from: int | None
    bracket_only: bool
    processes: int | None
    why: str
    next: str

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON: tuples of two become lists, slice and points objects."""
        out = self._asdict()
        out["slice"] = self.slice.to_dict()
        out["brackets"] = [list(bracket) for bracket in self.brackets]
        out["crossings"] = list(self.crossings)
        out["interval"] = None if self.interval is None else list(self.interval)
        out["limited"] = list(self.limited)
        out["points"] = [point._asdict() for point in self.points]
        return out


class _Track(NamedTuple):
    """One backend on one slice: its rows, ascending in N. `per_ms` is what a millisecond adds to `value`."""

    seq_len: np.ndarray
    status: np.ndarray
    value: np.ndarray
    limited: np.ndarray
    per_ms: np.ndarray

    @property
    def ran(self) -> np.ndarray:
        """The N at which there is a value to compare. N = 0 has no place on a logarithmic axis."""
        return self.seq_len[(self.status == "ok") & ~np.isnan(self.value) & (self.seq_len > 0)]

    def oom_from(self) -> int | None:
        """The first N after the last success at which it ran out of memory."""
        ran = self.ran
        beyond = self.seq_len > (ran[-1] if len(ran) else -1)
        oom = self.seq_len[beyond & (self.status == "oom")]
        return int(oom[0]) if len(oom) else None


class _Ask(NamedTuple):
    """What was asked for, the same for every slice."""

    baseline: str
    candidate: str
    metric: str
    clock: str
    of_energy: bool
    seed: int
    replicates: int


def crossovers(
    frame: pd.DataFrame,
    samples: pd.DataFrame | None = None,
    *,
    baseline: str = "naive",
    candidate: str = "flash",
    metric: str = "latency",
    clock: str = "device",
    price_per_hour: float | None = None,
    price_per_kwh: float | None = None,
    seed: int = 0,
    replicates: int = 1000,
) -> list[Crossover]:
    """One `Crossover` for each slice in which both backends have rows, in order of appearance.

    Args:
        frame: the comparison table (`store.frame`).
        samples: the raw samples (`store.samples_frame`); without them, brackets only.
        baseline: `backend` or `backend/variant`.
        candidate: likewise.
        metric: `latency`; `memory` (peak bytes: exact, so without interval); `energy` (one value a case, so
            brackets only); `cost`, of a token (`cost.costs`).
        clock: which clock's latencies; memory and energy have none.
        price_per_hour: of the device, for `cost`.
        price_per_kwh: of electricity, for `cost`; its share has no samples, so there are brackets only.
        seed: of the replicates; each slice starts from it, so a filter changes no number.
        replicates: how many.

    Raises:
        InputError: an unknown backend, metric or clock, twice the same backend, a cost without a price, or a
            price without a cost.
    """
    timed, prices = metric in ("latency", COST), Prices(price_per_hour, price_per_kwh)
    if metric not in METRIC_NAMES:
        raise InputError(f"unknown metric {metric!r}: must be one of {', '.join(METRIC_NAMES)}")
    if metric == COST:
        check_prices(prices)
    elif prices != Prices():
        raise InputError(f"a price is for metric {COST}, got metric {metric}")
    first, second = ("/".join(filter(None, split_name(name))) for name in (baseline, candidate))
    if first == second:
        raise InputError(f"baseline and candidate must differ, got {first!r} twice")
    if timed and clock not in CLOCKS:
        raise InputError(f"unknown clock {clock!r}: must be one of {', '.join(CLOCKS)}")
    of_energy = metric == "energy" or price_per_kwh is not None
    ask = _Ask(first, second, metric, clock if timed else "", of_energy, seed, replicates)

    needed = [*KEY_FIELDS, *ORIGIN_FIELDS, "clock", "mem_method", "status", "flags", *METRICS.values()]
    frame = untiled(frame[needed]).reset_index(drop=True)
    wanted = backend_names(frame).isin([first, second])
    if timed:
        wanted &= frame["clock"] == clock
    rows = curve_rows(frame[wanted], "latency" if timed else metric)
    # the same case twice in a run (a table put together by hand): the later row counts
    rows = rows.drop_duplicates([*KEY_FIELDS, "run_id"], keep="last")
    slice_of, slices = slice_codes(rows)
    seq_len = rows["seq_len"].to_numpy(dtype=np.int64)
    is_candidate = (rows["name"] == second).to_numpy(dtype=bool)
    points = pd.DataFrame({"slice": slice_of, "seq_len": seq_len}).groupby(["slice", "seq_len"]).ngroup()
    pairs = Pairs({}, {})
    if timed and samples is not None and not of_energy:
        keys = frame.loc[rows.index, [*KEY_FIELDS, "run_id"]]  # with every seq_len_q, as samples have it
        keys = keys.assign(point=points.to_numpy(), slice=slice_of, candidate=is_candidate)
        pairs = pair(keys, samples, clock)

    status = rows["status"].to_numpy(dtype=object)
    limited = np.zeros(len(rows), dtype=bool)
    if timed:
        limited = rows["flags"].str.contains("timer_limited", regex=False).fillna(False).to_numpy(dtype=bool)
    if metric == COST:
        lengths = rows.assign(seq_len_q=rows["seq_len_q"].fillna(rows["seq_len"]))
        value, per_ms = costs(lengths, prices), millisecond_costs(lengths, prices)
    else:
        value = rows[METRICS[metric]].to_numpy(dtype=np.float64, na_value=np.nan)
        per_ms = np.ones(len(rows))
    order = np.lexsort((seq_len, is_candidate, slice_of))
    bounds = np.searchsorted((slice_of * 2 + is_candidate)[order], np.arange(2 * len(slices) + 1))
    found = []
    for number, each in enumerate(slices):
        own = [order[bounds[track] : bounds[track + 1]] for track in (2 * number, 2 * number + 1)]
        if not all(len(at) for at in own):
            continue
        tracks = [_Track(seq_len[at], status[at], value[at], limited[at], per_ms[at]) for at in own]
        point_of = dict(zip(seq_len[own[0]].tolist(), points.to_numpy()[own[0]].tolist(), strict=True))
        log_ratios = {n: pairs.log_ratios[at] for n, at in point_of.items() if at in pairs.log_ratios}
        found.append(_judge(ask, each, tracks[0], tracks[1], log_ratios, pairs.timer_steps.get(number, 0.0)))
    return found


def _judge(
    ask: _Ask,
    each: Slice,
    baseline: _Track,
    candidate: _Track,
    log_ratios: dict[int, np.ndarray],
    timer_step: float,
) -> Crossover:
    """The verdict for one slice. `log_ratios` maps N to paired log-ratios [processes, rounds]."""
    ran = (baseline.ran, candidate.ran)
    both = np.intersect1d(*ran, assume_unique=True)
    shy = np.isin(both, [n for track in (baseline, candidate) for n in track.seq_len[track.limited]])
    seq_lens = both[~shy]
    values = [track.value[np.searchsorted(track.seq_len, seq_lens)] for track in (baseline, candidate)]
    steps = timer_step * baseline.per_ms[np.searchsorted(baseline.seq_len, seq_lens)]
    exact = ask.metric == "memory"
    sampled = bool(len(seq_lens)) and all(int(n) in log_ratios for n in seq_lens)
    rng = np.random.default_rng(ask.seed)
    draws = None
    if sampled:
        draws = resample.replicates([log_ratios[int(n)] for n in seq_lens], ask.replicates, rng)
    bounds = np.full((2, len(seq_lens)), np.nan) if draws is None else resample.interval(draws)
    points = [
        _point(int(n), b, c, log_ratios.get(int(n)), low_high, step)
        for n, b, c, low_high, step in zip(seq_lens, *values, bounds.T.tolist(), steps, strict=True)
    ]
    sign = np.array([point.sign for point in points], dtype=np.int64)
    own = np.flatnonzero(sign)
    turns = [(int(a), int(b)) for a, b in itertools.pairwise(own) if sign[a] != sign[b]]
    undecided = [
        point.seq_len
        for k, point in enumerate(points)
        if point.sign == 0 and not any(a < k < b for a, b in turns)
    ]
    agree = None if draws is None else np.all((draws[:, own] > 0) == (sign[own] > 0), axis=1)
    share = None if agree is None or exact else float(agree.mean())
    stop = int(ran[0][-1]) if len(ran[0]) and len(ran[1]) and ran[1][-1] > ran[0][-1] else None

    if not points or not len(own) or (undecided and not exact) or (share is not None and share < AGREEMENT):
        verdict = "ambiguous" if points or shy.any() else "censored"
    elif not turns:
        verdict = "always" if sign[own[0]] > 0 else "never" if stop is None else "censored"
    else:
        verdict = "clear" if len(turns) == 1 else "several"

    crossings = _crossings(points, turns)
    processes = min(len(log_ratios[int(n)]) for n in seq_lens) if sampled else None
    interval, noise_share = None, None
    if verdict == "clear" and draws is not None:
        noise = resample.noise([log_ratios[int(n)] for n in seq_lens], rng)
        found = interpolation.zero_interval(np.log2(seq_lens), noise, *turns[0], math.log2(crossings[0]))
        interval, noise_share = (2**found.low, 2**found.high), found.noise_share
    brackets = tuple((points[a].seq_len, points[b].seq_len) for a, b in turns)
    ahead = ("above" if sign[turns[0][1]] > 0 else "below") if len(turns) == 1 else ""
    bracket_only = bool(points) and not exact and not sampled
    facts = wording.Facts(
        along=along([each.operation]),
        baseline=ask.baseline,
        candidate=ask.candidate,
        metric=ask.metric,
        of_energy=ask.of_energy,
        verdict=verdict,
        seq_lens=tuple(seq_lens.tolist()),
        limited=tuple(both[shy].tolist()),
        brackets=brackets,
        ahead=ahead,
        undecided=tuple(undecided),
        share=share,
        bracket_only=bracket_only,
        processes=processes,
        noise_share=noise_share,
        baseline_oom_from=baseline.oom_from(),
        candidate_oom_from=candidate.oom_from(),
        stop=stop,
    )
    return Crossover(
        slice=each,
        baseline=ask.baseline,
        candidate=ask.candidate,
        metric=ask.metric,
        clock=ask.clock,
        verdict=verdict,
        brackets=brackets,
        crossings=tuple(crossings),
        ahead=ahead,
        crossover_seq_len=crossings[0] if verdict == "clear" else None,
        interval=interval,
        calibrated=None if interval is None else (processes or 0) >= resample.MIN_PROCESSES,
        share=share,
        points=tuple(points),
        limited=facts.limited,
        baseline_oom_from=facts.baseline_oom_from,
        candidate_oom_from=facts.candidate_oom_from,
        bracket_only=bracket_only,
        processes=processes,
        why=wording.why(facts),
        next=wording.what_next(facts),
    )


def _point(
    seq_len: int,
    baseline_value: float,
    candidate_value: float,
    log_ratios: np.ndarray | None,
    bounds: Sequence[float],
    timer_step: float,
) -> Point:
    """A point with its interval (`bounds`, NaN without samples) and its sign (0 within noise or step)."""
    values = (float(baseline_value), float(candidate_value))
    if min(values) <= 0:
        return Point(seq_len, None, None, None, *values, 0)
    if log_ratios is None:
        return Point(seq_len, values[0] / values[1], None, None, *values, int(np.sign(values[0] - values[1])))
    log_ratio = resample.estimate(log_ratios)
    low, high = bounds
    if math.isnan(low):
        return Point(seq_len, math.exp(log_ratio), None, None, *values, int(np.sign(log_ratio)))
    unclear = low <= 0 <= high or abs(values[0] - values[1]) <= timer_step * 1.001  # steps are inexact
    sign = 0 if unclear else int(np.sign(log_ratio))
    return Point(seq_len, math.exp(log_ratio), math.exp(low), math.exp(high), *values, sign)


def _crossings(points: Sequence[Point], turns: Sequence[tuple[int, int]]) -> list[float]:
    """N* of each turn: a pair of points whose signs differ, with none of its own between them."""
    if not turns:
        return []
    known = [k for k, point in enumerate(points) if point.ratio is not None]
    x = np.log2([points[k].seq_len for k in known])
    y = np.log(np.array([points[k].ratio for k in known], dtype=np.float64))
    return [2 ** interpolation.zero(x, y, known.index(a), known.index(b)) for a, b in turns]
