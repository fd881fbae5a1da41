"""The overview: does it pay off, from which N on, how sure, and what stands behind the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from profiling.analysis.crossover import Crossover, crossovers
from profiling.analysis.curves import ORIGIN_FIELDS, Slice, curve_rows, slice_codes
from profiling.analysis.operations import along, named
from profiling.case import ATTENTION, CLOCKS, KEY_FIELDS, OPERATIONS
from profiling.units import count_text

SPEEDUP_AT = (1024, 4096, 16384)  # of attention; a vocabulary and a router have lengths of their own
# The clock that answers where none is chosen: the kernel's own time before the caller's.
CLOCK_ORDER = ("device", "wall", "graph", "pipelined", "graph_hot")
PASSES = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "forward plus backward"}


class Speedup(NamedTuple):
    """Baseline over candidate at one N: above 1 the candidate is faster.

    `ratio` is None where one of the two has no `ok` row; `reason` then says whose and why, as in
    `naive: oom`, and is empty where N was not measured at all.
    """

    seq_len: int
    ratio: float | None
    reason: str


class OverviewRow(NamedTuple):
    """One shape. `slice` has neither clock nor memory method.

    Attributes:
        slice: what its curves have in common.
        by_clock: the crossover in latency on each clock that was measured.
        memory: the crossover in peak memory; None if it was not measured for both.
        speedups: on the overview's clock, at `SPEEDUP_AT`; of an operation over rows at the fewest classes
            measured, at the most, and at the middle one of them.
        largest: the longest N that ran, by backend; 0 where none did.
    """

    slice: Slice
    by_clock: dict[str, Crossover]
    memory: Crossover | None
    speedups: tuple[Speedup, ...]
    largest: dict[str, int]


class Overview(NamedTuple):
    """All rows, and what they rest on.

    Attributes:
        baseline: the backend compared against.
        candidate: the backend whose advantage is in question.
        clock: the clock of the speed-ups and of the headline; empty if there is no latency at all.
        clocks: all clocks in the table, in the order of `case.CLOCKS`.
        rows: in order of appearance.
        n_cases: how many cases the table holds, of all backends, with and without a requested tile.
        n_by_status: of these; a case counts as its worst clock.
        n_by_flag: how many cases carry each flag.
        headline: one or two sentences that answer the question.
    """

    baseline: str
    candidate: str
    clock: str
    clocks: tuple[str, ...]
    rows: tuple[OverviewRow, ...]
    n_cases: int
    n_by_status: dict[str, int]
    n_by_flag: dict[str, int]
    headline: str


def overview(
    frame: pd.DataFrame,
    samples: pd.DataFrame | None = None,
    *,
    baseline: str = "naive",
    candidate: str = "flash",
    clock: str | None = None,
    replicates: int = 1000,
) -> Overview:
    """What the Overview page shows.

    Args:
        frame: the comparison table.
        samples: raw samples, for intervals.
        baseline: `backend` or `backend/variant`.
        candidate: likewise.
        clock: of the speed-ups and the headline; by default the first of `CLOCK_ORDER` that is there.
        replicates: of each interval.

    Raises:
        InputError: as `crossovers`.
    """
    present = set(frame["clock"].unique())
    clocks = tuple(name for name in CLOCKS if name in present)
    clock = clock or next((name for name in CLOCK_ORDER if name in present), "")
    ask = {"baseline": baseline, "candidate": candidate, "replicates": replicates}
    by_clock = {name: crossovers(frame, samples, clock=name, **ask) for name in clocks}
    memory = crossovers(frame, metric="memory", **ask)
    memory_of = {_bare(found.slice): found for found in memory if found.points}
    grouped: dict[Slice, dict[str, Crossover]] = {}
    for name, found in by_clock.items():
        for each in found:
            grouped.setdefault(_bare(each.slice), {})[name] = each
    for each in memory_of:
        grouped.setdefault(each, {})
    states = _states(frame, (baseline, candidate), clock)
    at = _speedup_at(states)
    rows = tuple(
        OverviewRow(
            slice=each,
            by_clock=found,
            memory=memory_of.get(each),
            speedups=_speedups(
                found.get(clock),
                states.get(each, {}),
                (baseline, candidate),
                at.get(each.operation, SPEEDUP_AT),
            ),
            largest={
                name: max(
                    (
                        n
                        for (who, n), status in states.get(each, {}).items()
                        if who == name and status == "ok"
                    ),
                    default=0,
                )
                for name in (baseline, candidate)
            },
        )
        for each, found in grouped.items()
    )
    statuses, flags, n_cases = counts(frame)
    return Overview(
        baseline=baseline,
        candidate=candidate,
        clock=clock,
        clocks=clocks,
        rows=rows,
        n_cases=n_cases,
        n_by_status=statuses,
        n_by_flag=flags,
        headline=headline(by_clock.get(clock, []), memory, baseline, candidate, clock),
    )


def _bare(each: Slice) -> Slice:
    return each._replace(clock="", mem_method="")


def _states(frame: pd.DataFrame, names: Sequence[str], clock: str) -> dict[Slice, dict[tuple[str, int], str]]:
    """The status of each (backend, N) of a shape, on one clock."""
    needed = [*KEY_FIELDS, *ORIGIN_FIELDS, "clock", "mem_method", "status"]
    rows = curve_rows(frame.loc[frame["clock"] == clock, needed])
    rows = rows[rows["name"].isin(names)]
    codes, slices = slice_codes(rows)
    out: dict[Slice, dict[tuple[str, int], str]] = {_bare(each): {} for each in slices}
    for code, name, seq_len, status in zip(codes, rows["name"], rows["seq_len"], rows["status"], strict=True):
        out[_bare(slices[code])][name, int(seq_len)] = str(status)
    return out


def _speedup_at(states: dict[Slice, dict[tuple[str, int], str]]) -> dict[str, tuple[int, ...]]:
    """By operation over rows, at which numbers of classes to tell a speed-up."""
    seen: dict[str, set[int]] = {}
    for each, own in states.items():
        if each.operation != ATTENTION:
            seen.setdefault(each.operation, set()).update(n for _, n in own)
    ordered = {operation: sorted(ns) for operation, ns in seen.items() if ns}
    return {
        operation: tuple(dict.fromkeys((ns[0], ns[len(ns) // 2], ns[-1])))
        for operation, ns in ordered.items()
    }


def _speedups(
    found: Crossover | None, states: dict[tuple[str, int], str], names: Sequence[str], at: Sequence[int]
) -> tuple[Speedup, ...]:
    ratios = {} if found is None else {point.seq_len: point.ratio for point in found.points}
    out = []
    for n in at:
        failed = [f"{name}: {states[name, n]}" for name in names if states.get((name, n), "ok") != "ok"]
        out.append(Speedup(n, ratios.get(n), "" if n in ratios else ", ".join(failed)))
    return tuple(out)


def counts(frame: pd.DataFrame) -> tuple[dict[str, int], dict[str, int], int]:
    """Cases by status, cases by flag, and how many cases there are.

    A case whose clocks differ counts by the first that is not `ok`, and with every flag of any of them.
    """
    if frame.empty:
        return {}, {}, 0
    case = frame.groupby([*KEY_FIELDS, "run_id"], dropna=False, sort=False).ngroup()
    marked = frame[["status", "flags"]].assign(case=case, bad=frame["status"] != "ok")
    cases = marked.sort_values("bad", ascending=False, kind="stable").drop_duplicates("case")
    statuses = Counter(cases["status"].tolist())
    carried = {
        (number, flag)
        for number, text in zip(marked["case"], marked["flags"], strict=True)
        for flag in str(text).split(";")
        if flag
    }
    flags = Counter(flag for _, flag in sorted(carried))
    return dict(statuses), dict(flags), len(cases)


def headline(
    latency: Sequence[Crossover], memory: Sequence[Crossover], baseline: str, candidate: str, clock: str
) -> str:
    """The answer in words: a sentence for time, one for memory; passes with the same answer share it.

    Of a table with several operations each has its own.
    """
    every = (*latency, *memory)
    present = {found.slice.operation for found in every if found.points}
    if not present:
        each = along(found.slice.operation for found in every).each
        return f"No {each} has both {baseline} and {candidate}, so there is nothing to compare."
    told = []
    for operation in (name for name in OPERATIONS if name in present):
        timed, held = (
            [found for found in group if found.slice.operation == operation] for group in (latency, memory)
        )
        text = _sentences(timed, held, baseline, candidate, clock)
        told.append(text if len(present) == 1 else f"{named(operation).capitalize()}: {text}")
    return " ".join(told)


def _sentences(
    latency: Sequence[Crossover], memory: Sequence[Crossover], baseline: str, candidate: str, clock: str
) -> str:
    """`headline` of one operation."""
    sentences = []
    by_pass: dict[str, list[str]] = {}
    for direction, name in PASSES.items():
        found = [each for each in latency if each.slice.direction == direction and each.points]
        if found:
            by_pass.setdefault(_answer(found), []).append(name)
    if by_pass:
        parts = [f"{' and '.join(names)} {answer}" for answer, names in by_pass.items()]
        sentences.append(f"On the {clock} clock, {candidate} against {baseline}: {'; '.join(parts)}.")
    held = [each for each in memory if each.points]
    if held:
        sentences.append(f"In peak memory it is {_answer(held)}.")
    return " ".join(sentences)


def _answer(found: Sequence[Crossover]) -> str:
    """What the shapes of one pass have in common, and in how many of them."""
    n, words = len(found), along(each.slice.operation for each in found)
    seq_lens = [point.seq_len for each in found for point in each.points]
    span = f"({count_text(min(seq_lens))} to {count_text(max(seq_lens))})"
    groups = {
        f"ahead at every {words.each} {span}": [x for x in found if x.verdict == "always"],
        f"ahead from {words.found(_range(found, 'above'))} on": _clear(found, "above"),
        f"ahead only up to {words.found(_range(found, 'below'))}": _clear(found, "below"),
        "crossing several times": [x for x in found if x.verdict == "several"],
        f"behind at every {words.each} {span}": [x for x in found if x.verdict == "never"],
        f"behind as far as {found[0].baseline} ran": [x for x in found if x.verdict == "censored"],
        "undecided": [x for x in found if x.verdict == "ambiguous"],
    }
    kept = {text: members for text, members in groups.items() if members}
    if len(kept) == 1:
        (text,) = kept
        return text if n == 1 else f"{text} in {'both' if n == 2 else f'all {n}'} shapes"
    return ", ".join(f"{text} in {len(members)} of {n} shapes" for text, members in kept.items())


def _clear(found: Iterable[Crossover], ahead: str) -> list[Crossover]:
    return [each for each in found if each.verdict == "clear" and each.ahead == ahead]


def _range(found: Iterable[Crossover], ahead: str) -> str:
    """`790 [764, 800]` for one crossing, `457 to 1 389` for several."""
    clear = _clear(found, ahead)
    if len(clear) == 1 and clear[0].interval is not None:
        low, high = (count_text(round(n)) for n in clear[0].interval)
        return f"{count_text(round(clear[0].crossover_seq_len or 0))} [{low}, {high}]"
    at = sorted({round(each.crossover_seq_len or 0) for each in clear})
    return " to ".join(count_text(n) for n in (at if len(at) < 2 else (at[0], at[-1])))
