"""Which implementation to take from which N on: the rules that a run's measurements support.

For each shape the fastest implementation at each N measured, but a change only where it pays: what is in
use stays until another is more than `margin` faster. A change lies where the two curves cross, log-linear in
N between the two lengths measured. Rules are given for what was measured: N from the shortest to the longest,
batch · heads from the smallest to the largest, and between two series the nearer one, by ratio.

An implementation is chosen in the forward and keeps its own backward, so the directions are `fwd` and
`fwd_bwd`; where the latter was not measured it is the sum of forward and backward.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from profiling.analysis.curves import ORIGIN_FIELDS
from profiling.case import ATTENTION, InputError

SDPA: tuple[str, ...] = ("sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math")
# What `fa_core.attention` can be asked for by name.
IMPLS: tuple[str, ...] = ("flash", "flash_portable", "flash_hopper", "tiled", "naive", *SDPA)
MARGIN = 0.02
_ORIGIN = list(ORIGIN_FIELDS)
_KIND = ["dtype", "head_dim", "causal", "group"]
_SHAPE = [*_KIND, "batch", "heads"]


class Option(NamedTuple):
    """An implementation and the tile asked of it, None for its own."""

    impl: str
    tile: tuple[int, int] | None


class PolicyRule(NamedTuple):
    """For N from `seq_len[0]` to `seq_len[1]`, batch · heads from `batch_heads[0]` to `[1]`: `impl`.

    `group` is query heads per KV head. `evidence` has `run_id`, `clock`, the lengths `seq_len` at which this
    rule holds with their `latency_ms` and `peak_mem_bytes` (None where not measured; of fwd_bwd the
    backward's, which counts both), the `runner_up` (the fastest other implementation at the most of
    them, "" if none ran) with `runner_up_ratio` (its latency over this one's, where it ran), the `bracket`
    of N between which the change lies (None for a first rule), and `summed` where fwd_bwd is a sum.
    """

    dtype: str
    head_dim: int
    causal: bool
    direction: str
    group: int
    batch_heads: tuple[int, int]
    seq_len: tuple[int, int]
    impl: str
    tile: tuple[int, int] | None
    evidence: dict[str, Any]


class Policy(NamedTuple):
    """Rules of one device. `left_out` says how many rows are about something else, by what."""

    device_kind: str
    device_name: str
    run_ids: tuple[str, ...]
    clock: str
    rules: tuple[PolicyRule, ...]
    left_out: dict[str, int]


Values = dict[Option, dict[int, float]]  # by N


class _Curve(NamedTuple):
    """One shape and direction: latencies and peak memory, and whether the former are sums."""

    run_id: str
    ms: Values
    peak_bytes: Values
    summed: bool


def make_policy(frame: pd.DataFrame, *, clock: str = "device", margin: float = MARGIN) -> Policy:
    """The rules of one run, or of several of one device and software.

    Args:
        frame: the comparison table.
        clock: whose latencies decide.
        margin: how much faster another implementation must be to take over, relative.

    Raises:
        InputError: rows of several devices or versions, or none that a rule could be about.
    """
    rows = frame[frame["clock"] == clock]
    if rows.empty:
        raise InputError(f"no rows on clock {clock!r}: must be one of those measured")
    origins = rows[_ORIGIN[1:]].drop_duplicates()
    if len(origins) > 1:
        raise InputError(
            f"a policy must come from one device and software, got {len(origins)}: "
            + "; ".join(sorted(" ".join(filter(None, map(str, x))) for x in origins.to_numpy()))
        )
    rows, left_out = _usable(rows)
    kinds = rows.groupby(_KIND, sort=True)
    rules = [rule for kind, own in kinds for rule in _rules(kind, own, clock, margin)]
    if not rules:
        raise InputError(
            "no rule can be made: needs dense rows with as many queries as keys, without window, softcap, "
            "bias, sinks and ALiBi, of an implementation that fa_core.attention has"
        )
    first = origins.iloc[0]
    run_ids = tuple(dict.fromkeys(map(str, rows["run_id"])))
    return Policy(
        str(first["device_kind"]), str(first["device_name"]), run_ids, clock, tuple(rules), left_out
    )


def _usable(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows that a rule can rest on, with `group`; and how many others there are, by the first reason."""
    limits = rows[["window_left", "window_right", "softcap"]].notna().any(axis=1)
    added = rows[["bias", "sinks", "alibi"]].astype(bool).any(axis=1)
    reasons = {
        "another operation than attention": rows["operation"] != ATTENTION,
        "not ok": rows["status"] != "ok",
        "another backend": ~rows["backend"].isin(IMPLS) | (rows["variant"] != ""),
        "packed or paged": rows["layout"] != "dense",
        "unequal lengths": rows["seq_len_q"] != rows["seq_len_k"],
        "unequal head dims": rows["head_dim"] != rows["head_dim_v"],
        "a window, softcap, bias, sinks or ALiBi": limits | added,
    }
    left = pd.Series(False, index=rows.index)
    counts = {}
    for reason, mask in reasons.items():
        fresh = mask.astype(bool) & ~left
        if fresh.any():
            counts[reason] = int(fresh.sum())
        left |= fresh
    kept = rows[~left]
    return kept.assign(group=(kept["heads"] // kept["kv_heads"]).astype(int)), counts


def _rules(kind: Any, rows: pd.DataFrame, clock: str, margin: float) -> list[PolicyRule]:
    """The rules of one dtype, head_dim, mask and group: every direction and range of batch · heads."""
    dtype, head_dim, causal, group = kind
    rules = []
    for direction in ("fwd", "fwd_bwd"):
        by_size = _by_batch_heads(rows, direction)
        ranges = _ranges(sorted(by_size))
        for size, curve in sorted(by_size.items()):
            for seq_len, option, evidence in _changes(curve, clock, margin):
                rules.append(
                    PolicyRule(
                        str(dtype), int(head_dim), bool(causal), direction, int(group), ranges[size], seq_len,
                        option.impl, option.tile, evidence,
                    )
                )  # fmt: skip
    return rules


def _by_batch_heads(rows: pd.DataFrame, direction: str) -> dict[int, _Curve]:
    """One curve for each batch · heads: of series with the same product the one with the most points."""
    found: dict[int, _Curve] = {}
    for key, own in rows.groupby(["run_id", "batch", "heads"], sort=True):
        run_id, batch, heads = cast("tuple[str, int, int]", key)
        rows_of = {name: own[own["direction"] == name] for name in ("fwd", "bwd", "fwd_bwd")}
        ms = _values(rows_of[direction], "latency_p50_ms")
        peaks = _values(rows_of[direction], "peak_mem_bytes")
        summed = direction == "fwd_bwd" and not ms
        if summed:
            ms = _sums(*(_values(rows_of[part], "latency_p50_ms") for part in ("fwd", "bwd")))
            peaks = _values(rows_of["bwd"], "peak_mem_bytes")
        size = int(batch) * int(heads)
        if ms and (size not in found or _points(ms) > _points(found[size].ms)):
            found[size] = _Curve(str(run_id), ms, peaks, summed)
    return found


def _points(ms: Values) -> int:
    return sum(map(len, ms.values()))


def _values(rows: pd.DataFrame, column: str) -> Values:
    found: Values = {}
    columns = ("backend", "tile_m", "tile_n", "seq_len_k", column)
    for backend, tile_m, tile_n, n, value in zip(*(rows[name] for name in columns), strict=True):
        if pd.notna(value) and value > 0:
            tile = None if pd.isna(tile_m) or pd.isna(tile_n) else (int(tile_m), int(tile_n))
            found.setdefault(Option(str(backend), tile), {})[int(n)] = float(value)
    return found


def _sums(forward: Values, backward: Values) -> Values:
    """Forward and backward together, where both ran."""
    sums = {
        option: {n: ms + backward[option][n] for n, ms in own.items() if n in backward[option]}
        for option, own in forward.items()
        if option in backward
    }
    return {option: own for option, own in sums.items() if own}


def _ranges(sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The range of batch · heads that each measured one stands for: no gaps, and nothing beyond."""
    edges = [math.isqrt(a * b - 1) + 1 for a, b in itertools.pairwise(sizes)]
    starts = [*sizes[:1], *edges]
    ends = [*(edge - 1 for edge in edges), *sizes[-1:]]
    return dict(zip(sizes, zip(starts, ends, strict=True), strict=True))


def stretches(ms: Values, margin: float) -> list[tuple[Option, list[int]]]:
    """The measured lengths in order, in stretches with one option each."""
    found: list[tuple[Option, list[int]]] = []
    for n in sorted({n for own in ms.values() for n in own}):
        here = {option: own[n] for option, own in ms.items() if n in own}
        level = (1 + margin) * min(here.values())
        fast = [option for option, value in here.items() if value <= level]
        if found and found[-1][0] in fast:
            found[-1][1].append(n)
        else:  # a tile of its own only where it pays, too: the best of many is best by luck
            fast.sort(key=lambda option: (option.tile is not None, here[option], option.impl))
            found.append((fast[0], [n]))
    return found


def _changes(
    curve: _Curve, clock: str, margin: float
) -> list[tuple[tuple[int, int], Option, dict[str, Any]]]:
    """((from N, to N), option, evidence), one after another without gaps."""
    parts = stretches(curve.ms, margin)
    starts = [parts[0][1][0]]
    for (old, before), (new, after) in itertools.pairwise(parts):
        starts.append(takeover(curve.ms[old], before[-1], curve.ms[new], after[0]))
    ends = [*(start - 1 for start in starts[1:]), parts[-1][1][-1]]
    brackets = [None, *([before[-1], after[0]] for (_, before), (_, after) in itertools.pairwise(parts))]
    return [
        ((start, end), option, _evidence(curve, option, lengths, bracket, clock))
        for start, end, (option, lengths), bracket in zip(starts, ends, parts, brackets, strict=True)
    ]


def takeover(old: dict[int, float], last: int, new: dict[int, float], first: int) -> int:
    """From where on `new` is taken: after `last`, where `old` still was, and no later than `first`."""
    if first not in old:  # it stops in between
        return last + 1
    if last not in new:
        return first
    before, after = math.log(old[last] / new[last]), math.log(old[first] / new[first])
    if before >= 0:  # ahead already, by less than the margin
        return last + 1
    share = before / (before - after)
    return max(last + 1, min(first, math.ceil(last * (first / last) ** share)))


def _evidence(
    curve: _Curve, option: Option, lengths: list[int], bracket: list[int] | None, clock: str
) -> dict[str, Any]:
    own, peaks = curve.ms[option], curve.peak_bytes.get(option, {})
    others = {other: ms for other, ms in curve.ms.items() if other.impl != option.impl}
    wins: dict[str, int] = {}
    for n in lengths:
        here = {other: ms[n] for other, ms in others.items() if n in ms}
        if here:
            name = min(here, key=lambda other: here[other]).impl
            wins[name] = wins.get(name, 0) + 1
    runner_up = max(wins, key=lambda name: wins[name]) if wins else ""
    best = {
        n: min(ms[n] for other, ms in others.items() if other.impl == runner_up and n in ms)
        for n in lengths
        if any(other.impl == runner_up and n in ms for other, ms in others.items())
    }
    return {
        "run_id": curve.run_id,
        "clock": clock,
        "seq_len": lengths,
        "latency_ms": [own[n] for n in lengths],
        "peak_mem_bytes": [None if n not in peaks else int(peaks[n]) for n in lengths],
        "runner_up": runner_up,
        "runner_up_ratio": [float(np.round(best[n] / own[n], 4)) for n in best],
        "bracket": bracket,
        "summed": curve.summed,
    }
