"""The decision table of a review: what to use for which model and batch, from which N on, and how sure.

A row rests on measured rows that fit alone: the same query heads per KV head, head dims, dtype, mask and
features, dense, Nq = Nk, no tile requested, the direction of the workload, and batch · heads within what
was measured. Between two measured sizes the nearer one's figures are shown, and both must choose alike.
What was measured beyond the asked contexts plays no part, but for the next length on either side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from profiling.analysis.deployment import INFERENCE, Question, Shape
from profiling.analysis.fitting import Pair, Ratio, Series, all_series, fitting
from profiling.analysis.policy import MARGIN, SDPA, Option, stretches, takeover
from profiling.devices import Device
from profiling.model.hopper import as_run
from profiling.model.memory import input_bytes, largest_seq_len, peak_bytes

DECIDED, UNDECIDED, PARTLY, NOT_MEASURED = "decided", "undecided", "partly measured", "not measured"
VERDICTS: tuple[str, ...] = (DECIDED, UNDECIDED, PARTLY, NOT_MEASURED)


class Comparison(NamedTuple):
    """The candidate against one other backend, over the lengths that matter.

    `verdict` is `always`, `never`, `crosses` or `undecided`. `crossover_seq_len` is N* with its `interval`
    where the curve crosses once; `ahead` then says on which side of it the candidate is: `above` or `below`.
    """

    candidate: str
    other: str
    verdict: str
    crossover_seq_len: float | None
    interval: tuple[float, float] | None
    ahead: str
    ratios: tuple[Ratio, ...]


class Use(NamedTuple):
    """For N from `seq_lens[0]` to `[1]` take `backend`."""

    backend: str
    seq_lens: tuple[int, int]


class Memory(NamedTuple):
    """Of one attention call at the row's batch and the longest context asked for, in bytes.

    `peak_mem_bytes` is above `input_bytes`; it was measured, or `est_peak_mem_bytes` is by the formula of
    `profiling.model.memory`; each None where it is not known. `headroom_bytes` is what the device has beyond
    both, for weights and everything else. `est_naive_largest` is the N at which eager attention alone fills
    the device.
    """

    backend: str
    seq_len: int
    input_bytes: int
    peak_mem_bytes: int | None
    est_peak_mem_bytes: int | None
    device_bytes: int | None
    est_naive_largest: int | None

    @property
    def headroom_bytes(self) -> int | None:
        """Device memory less inputs and peak; below 0 it does not fit."""
        peak = self.est_peak_mem_bytes if self.peak_mem_bytes is None else self.peak_mem_bytes
        return (
            None if peak is None or self.device_bytes is None else self.device_bytes - peak - self.input_bytes
        )


class DecisionRow(NamedTuple):
    """One model and batch.

    Attributes:
        shape: the model.
        batch: sequences at a time.
        verdict: one of `VERDICTS`.
        reason: why, in one or more sentences.
        uses: what to take, by N; empty if nothing was measured.
        naive: the candidate against eager attention.
        sdpa: the candidate against PyTorch's own attention: its own choice, else the fastest pinned one.
        memory: what it holds.
        measured: (batch, heads) of the series that the figures are of.
        seq_lens: the measured lengths that the row rests on.
        rows: positions in the table of all rows it rests on.
        flags: how many of these carry each flag.
    """

    shape: Shape
    batch: int
    verdict: str
    reason: str
    uses: tuple[Use, ...] = ()
    naive: Comparison | None = None
    sdpa: Comparison | None = None
    memory: Memory | None = None
    measured: tuple[int, int] | None = None
    seq_lens: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    flags: tuple[tuple[str, int], ...] = ()


class Decision(NamedTuple):
    """The answer to a question: a row for each model and batch."""

    question: Question
    rows: tuple[DecisionRow, ...]


class _Answer(NamedTuple):
    """What one series says over the asked contexts."""

    by_length: dict[int, str]
    uses: tuple[Use, ...]
    naive: Comparison | None
    sdpa: Comparison | None
    gaps: tuple[str, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    rows: pd.DataFrame


def decide(
    frame: pd.DataFrame,
    samples: pd.DataFrame | None,
    question: Question,
    device: Device | None,
    *,
    replicates: int = 1000,
) -> Decision:
    """Answer a question from the rows of one run.

    Args:
        frame: the comparison table.
        samples: its raw samples, for intervals.
        question: what is asked.
        device: the run's, for the head-room; None if unknown.
        replicates: of each interval.

    Raises:
        InputError: as `Question.checked`; or the rows that fit are of several devices or versions.
    """
    question.checked()
    rows = []
    for shape in question.shapes:
        series = all_series(fitting(frame, shape, question), samples, question, replicates)
        rows += [_row(shape, batch, series, question, device) for batch in question.doubled_batches()]
    return Decision(question, tuple(rows))


def _row(
    shape: Shape, batch: int, series: Sequence[Series], question: Question, device: Device | None
) -> DecisionRow:
    """The row of one model and batch: of the series of its size, or of the two around it."""
    near = _nearest(series, (batch, shape.heads))
    if not near:
        return DecisionRow(shape, batch, NOT_MEASURED, _why_not(series, batch * shape.heads))
    answers = [answer for each in near if (answer := _answer(each, shape, question))]
    if len(answers) < len(near):
        low, high = min(_lengths(near[0])), max(_lengths(near[0]))
        return DecisionRow(shape, batch, NOT_MEASURED, f"Measured for N = {_range(low, high)} only.")
    first = answers[0]
    doubts, partly, notes = list(first.doubts), list(first.gaps), list(first.notes)
    if len(near) == 2:
        sizes = sorted(math.prod(each.size) for each in near)
        other = answers[1].by_length
        apart = [n for n, backend in first.by_length.items() if other.get(n, backend) != backend]
        said = f"Batch · heads {batch * shape.heads} lies between {sizes[0]} and {sizes[1]}"
        if apart:
            doubts.append(f"{said}, which choose differently at N = {_list(apart)}.")
        else:
            notes.append(f"{said}, which choose alike.")
    rows = pd.concat([answer.rows for answer in answers])
    flags: dict[str, int] = {}
    for text in rows["flags"].fillna(""):
        for flag in filter(None, str(text).split(";")):
            flags[flag] = flags.get(flag, 0) + 1
    verdict = UNDECIDED if doubts else PARTLY if partly else DECIDED
    if verdict == DECIDED:
        notes.insert(0, "Every comparison is decided at every N measured.")
    reason = " ".join([*doubts, *partly, *notes])
    return DecisionRow(
        shape=shape,
        batch=batch,
        verdict=verdict,
        reason=reason,
        uses=first.uses,
        naive=first.naive,
        sdpa=first.sdpa,
        memory=_memory(shape, batch, near[0], first.uses[-1].backend, question, device),
        measured=near[0].size,
        seq_lens=tuple(first.by_length),
        rows=tuple(int(i) for i in rows.index),
        flags=tuple(sorted(flags.items())),
    )


def _nearest(series: Sequence[Series], wanted: tuple[int, int]) -> list[Series]:
    """The series of that size, its own batch first; else the two around it, the nearer one first."""
    size = math.prod(wanted)
    same = [each for each in series if math.prod(each.size) == size]
    if same:
        return [max(same, key=lambda each: (each.size == wanted, len(each.rows)))]
    below = [each for each in series if math.prod(each.size) < size]
    above = [each for each in series if math.prod(each.size) > size]
    if not below or not above:
        return []
    around = [
        max(below, key=lambda each: (math.prod(each.size), len(each.rows))),
        max(above, key=lambda each: (-math.prod(each.size), len(each.rows))),
    ]
    return sorted(around, key=lambda each: abs(math.log(math.prod(each.size) / size)))


def _why_not(series: Sequence[Series], size: int) -> str:
    if not series:
        return "This run has no such heads, head_dim, mask and dtype on this clock."
    sizes = [math.prod(each.size) for each in series]
    return f"Batch · heads {size} lies outside what was measured, {min(sizes)} to {max(sizes)}."


def _lengths(series: Series) -> list[int]:
    return sorted({n for own in series.ms.values() for n in own})


def _answer(series: Series, shape: Shape, question: Question) -> _Answer | None:
    """What a series says over the asked contexts; None if it has no length that bears on them."""
    low, high = question.seq_lens
    lengths = _lengths(series)
    if low > lengths[-1] or high < lengths[0]:
        return None
    start = max((n for n in lengths if n <= low), default=lengths[0])
    stop = min((n for n in lengths if n >= high), default=lengths[-1])
    kept = [n for n in lengths if start <= n <= stop]
    ms = {o: {n: own[n] for n in kept if n in own} for o, own in series.ms.items()}
    ms = {option: own for option, own in ms.items() if own}
    parts = stretches(ms, MARGIN)
    by_length = {n: option.impl for option, part in parts for n in part}
    uses = _uses(parts, ms, (max(low, kept[0]), min(high, kept[-1])))
    rows = series.rows[series.rows["seq_len_k"].isin(kept)]

    naive = _compare(series, question.candidate, "naive", kept)
    rivals = [_compare(series, question.candidate, name, kept) for name in SDPA]
    rivals = [each for each in rivals if each]
    own = [each for each in rivals if each.other == "sdpa"]
    sdpa = min(own or rivals, key=_advantage) if rivals else None

    gaps, notes = [], []
    limited = [n for n in series.limited if n <= high]
    if low < min([kept[0], *limited]) or high > kept[-1]:
        gaps.append(f"Measured for N = {_range(kept[0], kept[-1])} only.")
    for name, found in (("naive", naive), ("SDPA", sdpa)):
        if found is None:
            more = _missing(rows, name, shape, question.candidate)
            gaps, notes = gaps + more[0], notes + more[1]
    if naive is not None and naive.ratios[-1].seq_len < kept[-1]:
        text = f"naive ran to N = {naive.ratios[-1].seq_len} only"
        if ((rows["backend"] == "naive") & (rows["status"] == "oom")).any():
            notes.append(f"{text}, then out of memory.")  # nothing that more measuring would fill
        else:
            gaps.append(f"{text}.")
    doubts = _doubts(by_length, series)
    unranked = [n for n in limited if n >= low]
    if unranked:
        doubts.append(f"At N = {_list(unranked)} a latency is within what the clock itself takes.")
    doubts += _stale(rows, {*by_length.values(), question.candidate})
    return _Answer(by_length, uses, naive, sdpa, tuple(gaps), tuple(doubts), tuple(notes), rows)


def _missing(rows: pd.DataFrame, name: str, shape: Shape, candidate: str) -> tuple[list[str], list[str]]:
    """Why there is no comparison with eager attention or PyTorch's own: gaps to measure, other reasons."""
    names = SDPA if name == "SDPA" else ("naive",)
    if candidate in names:
        return [], []
    if candidate not in set(rows["backend"]):
        return ([f"{candidate} was not measured."] if name == "naive" else []), []
    if name == "SDPA" and (shape.softcap is not None or shape.sinks):
        return [], ["SDPA has no softcap and no sinks."]
    tried = rows[rows["backend"].isin(names)]
    if len(tried):
        status = ", ".join(sorted(set(tried.loc[tried["status"] != "ok", "status"]))) or "no N in common"
        return [f"{name} gave no comparison: {status}."], []
    return [f"{name} was not measured."], []


def _uses(
    parts: Sequence[tuple[Option, list[int]]],
    ms: Mapping[Option, Mapping[int, float]],
    asked: tuple[int, int],
) -> tuple[Use, ...]:
    """The stretches, from where each takes over, cut to the asked contexts."""
    starts = [asked[0]]
    for (old, before), (new, after) in itertools.pairwise(parts):
        starts.append(takeover(dict(ms[old]), before[-1], dict(ms[new]), after[0]))
    ends = [*(start - 1 for start in starts[1:]), asked[1]]
    cut = [
        Use(option.impl, (max(start, asked[0]), min(end, asked[1])))
        for (option, _), start, end in zip(parts, starts, ends, strict=True)
    ]
    return tuple(use for use in cut if use.seq_lens[0] <= use.seq_lens[1])


def _compare(series: Series, candidate: str, other: str, lengths: Sequence[int]) -> Comparison | None:
    """The candidate against one other backend at these lengths; None if they share none."""
    by_length = series.ratios.get((other, candidate), {})
    ratios = tuple(by_length[n] for n in lengths if n in by_length)
    if not ratios:
        return None
    signs = [each.sign for each in ratios]
    verdict = (
        "undecided"
        if 0 in signs
        else "always"
        if min(signs) > 0
        else "never"
        if max(signs) < 0
        else "crosses"
    )
    at, interval, ahead = None, None, ""
    found = series.found.get((other, candidate))
    if verdict == "crosses" and found is not None and found.verdict == "clear":
        at, interval, ahead = found.crossover_seq_len, found.interval, found.ahead
    return Comparison(candidate, other, verdict, at, interval, ahead, ratios)


def _advantage(found: Comparison) -> float:
    """The candidate's mean advantage (log), by which the hardest rival is found."""
    return sum(math.log(each.ratio) for each in found.ratios) / len(found.ratios)


def _doubts(by_length: Mapping[int, str], series: Series) -> list[str]:
    """Where the samples do not decide between what is to be used and another."""
    unsure: dict[Pair, list[int]] = {}
    for (other, name), ratios in series.ratios.items():
        for n, used in by_length.items():
            if used in (other, name) and n in ratios and ratios[n].sign == 0 and not ratios[n].alike:
                unsure.setdefault((name, other), []).append(n)
    return [
        f"At N = {_list(lengths)} the samples do not decide between {name} and {other}."
        for (name, other), lengths in unsure.items()
    ]


def _stale(rows: pd.DataFrame, names: set[str]) -> list[str]:
    """Which of these backends were measured with other kernels than those at hand."""
    stale = rows["flags"].str.contains("stale_kernel", regex=False).fillna(False)
    old = sorted(names & set(rows.loc[stale.astype(bool), "backend"]))
    return [f"Measured with other kernel sources than these: {', '.join(old)}."] if old else []


def _memory(
    shape: Shape, batch: int, series: Series, backend: str, question: Question, device: Device | None
) -> Memory:
    """The peak at the longest context asked for: measured at exactly that size and N, else modelled."""
    n = question.seq_lens[1]
    direction = "fwd" if question.workload == INFERENCE else "bwd"  # a backward's peak counts both
    peak = None
    if math.prod(series.size) == batch * shape.heads:
        rows = series.rows
        rows = rows[
            (rows["backend"] == backend) & (rows["seq_len_k"] == n) & (rows["direction"] == direction)
        ]
        rows = rows[(rows["status"] == "ok") & rows["peak_mem_bytes"].notna()]
        peak = int(rows["peak_mem_bytes"].iloc[0]) if len(rows) else None
    case = shape.case(backend, direction, batch, n, question.dtype)
    size = None if device is None else device.memory_bytes
    naive = case.model_copy(update={"backend": "naive", "variant": ""})
    return Memory(
        backend=backend,
        seq_len=n,
        input_bytes=input_bytes(case),
        peak_mem_bytes=peak,
        est_peak_mem_bytes=None if peak is not None else peak_bytes(as_run(case, device)),
        device_bytes=size,
        est_naive_largest=None if size is None else largest_seq_len(naive, size),
    )


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(n) for n in numbers)


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
