"""Which cases tell most about a crossover: those around its sign changes, and between them.

Pure: from measurements to cases. A series is what a curve is made of (`analysis.curves`): cases alike but
for the backend and N, where N is the number of keys, and so is the number of queries unless that stays the
same. The signs here are those of the medians alone, cheap and at once, for a plan; what a crossover claims
takes the samples, in `analysis.crossover`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from profiling.case import SHAPE_FIELDS, Case, blocks
from profiling.records import Measurement

REFERENCES = ("flash", "online")  # what other backends are compared with, the one that a series has
STEPS = (16, 8, 4, 2, 1)  # a new N is a multiple of the first of these that fits between its neighbours
_of_series = operator.attrgetter(*(name for name in SHAPE_FIELDS if name not in ("seq_len_q", "seq_len_k")))

Pair = tuple[str, str]  # of names such as `naive/fill`


class Bracket(NamedTuple):
    """Neighbouring N of a series, between which one of two backends overtakes the other.

    `low` and `high` are the pair's cases at either end.
    """

    low: tuple[Case, Case]
    high: tuple[Case, Case]

    @property
    def seq_lens(self) -> tuple[int, int]:
        """N at the two ends."""
        return self.low[0].seq_len_k, self.high[0].seq_len_k

    @property
    def width(self) -> float:
        """The upper end over the lower, less 1: 0.125 is a bracket of 12.5 %."""
        low, high = self.seq_lens
        return high / low - 1


def backend_name(case: Case) -> str:
    """`backend`, or `backend/variant`."""
    return f"{case.backend}/{case.variant}" if case.variant else case.backend


def series_key(case: Case) -> tuple[Any, ...]:
    """What the cases of a series share: the shape without N, and Nq where it is not N."""
    alone = None if case.is_square else case.seq_len_q
    return (*_of_series(case), alone)


def pairs_of(names: Sequence[str]) -> list[Pair]:
    """Every other backend with that of `REFERENCES`, or with the first where there is none of these."""
    reference = next((name for name in (*REFERENCES, *names) if name in names), "")
    return [(name, reference) for name in names if name != reference]


def main_clock(clocks: Sequence[str]) -> str:
    """The clock that a crossover is read on unless another is asked for: `device` where there is one."""
    return "device" if "device" in clocks else clocks[0]


class SignedPoint(NamedTuple):
    """An N of a series at which one of a pair is ahead: 1 where the first takes longer, else -1."""

    cases: tuple[Case, Case]
    sign: int

    @property
    def seq_len(self) -> int:
        """N."""
        return self.cases[0].seq_len_k


def signed_points(
    measurements: Iterable[Measurement], clock: str, pairs: Sequence[Pair] | None = None
) -> Iterator[tuple[Any, Pair, list[SignedPoint]]]:
    """The key of each series, a pair, and the N that have a sign, ascending; see `sign_changes`."""
    for (series, _), tracks in _tracks(measurements, clock).items():
        for pair in pairs if pairs is not None else pairs_of(list(tracks)):
            a, b = (tracks.get(name, {}) for name in pair)
            found = [(n, _sign(a[n], b[n])) for n in sorted(a.keys() & b.keys())]
            yield series, pair, [SignedPoint((a[n].case, b[n].case), sign) for n, sign in found if sign]


def sign_changes(
    measurements: Iterable[Measurement], clock: str, pairs: Sequence[Pair] | None = None
) -> list[Bracket]:
    """The brackets of every series, in the order of the series and ascending in N.

    Rows count that are `ok` with a median on `clock` and not `timer_limited` there, whose tile was left to
    the backend; rows of different environments are never compared. Where the medians of a pair differ by
    no more than the clock's resolution, the point has no sign and its neighbours stand beside each other.

    Args:
        measurements: rows of one run.
        clock: whose medians are compared.
        pairs: which backends are compared; by default `pairs_of` those of the series.
    """
    return [
        Bracket(low.cases, high.cases)
        for _, _, points in signed_points(measurements, clock, pairs)
        for low, high in itertools.pairwise(points)
        if low.sign != high.sign
    ]


def bracket_cases(
    measurements: Iterable[Measurement], clock: str, pairs: Sequence[Pair] | None = None
) -> list[Case]:
    """The cases at either side of every sign change, each once; arguments as of `sign_changes`."""
    found = sign_changes(measurements, clock, pairs)
    return list(dict.fromkeys(case for bracket in found for case in (*bracket.low, *bracket.high)))


def refinement(
    measurements: Iterable[Measurement], clock: str, to: float, taken: Collection[Case]
) -> list[list[Case]]:
    """New blocks that halve each bracket wider than `to`: the pair at a new N, the ends' geometric middle.

    A bracket is left alone where no whole number lies between its ends, and where its middle is taken for
    both: it was measured and made no sign, since a case failed or the clock cannot tell the two apart.
    Ask again with the rows of these blocks until there are none.

    Args:
        measurements: the rows whose sign changes are looked at.
        clock: on which clock.
        to: the width, see `Bracket.width`, that is narrow enough.
        taken: cases that are not asked for again, whatever became of them.
    """
    new: dict[Case, None] = {}
    for bracket in sign_changes(measurements, clock):
        if bracket.width > to:
            new |= dict.fromkeys(_middle(bracket, taken))
    return blocks(new)


def _middle(bracket: Bracket, taken: Collection[Case]) -> tuple[Case, ...]:
    """The pair in the middle of a bracket; nothing where there is no place for it."""
    for seq_len in _between(*bracket.seq_lens):
        pair = tuple(_at(case, seq_len) for case in bracket.low)
        known = sum(case in taken for case in pair)
        if known == len(pair):
            return ()
        if not known:  # where one of them is known, they would not be measured in turns
            return pair
    return ()


def _between(low: int, high: int) -> Iterator[int]:
    """Whole numbers between two: multiples of a round step, of one step those near the middle first."""
    middle = math.sqrt(low * high)
    for step in STEPS:
        nearest = round(middle / step) * step
        around = sorted((nearest + i * step for i in range(-2, 3)), key=lambda n: abs(n - middle))
        yield from (n for n in around if low < n < high)


def _at(case: Case, seq_len: int) -> Case:
    """The case of the same series at another N."""
    queries = seq_len if case.is_square else case.seq_len_q
    return case.model_copy(update={"seq_len_k": seq_len, "seq_len_q": queries})


class _Point(NamedTuple):
    case: Case
    ms: float
    resolution_ms: float


_Track = dict[int, _Point]  # a backend's points by N


def _tracks(measurements: Iterable[Measurement], clock: str) -> dict[Any, dict[str, _Track]]:
    """What each backend of each series (and environment) took, by name and N."""
    found: dict[Any, dict[str, _Track]] = {}
    for row in measurements:
        case = row.case
        if row.status != "ok" or case.tile_m is not None or not case.seq_len_k:
            continue
        own = next((c for c in row.clocks if c.clock == clock), None)
        if own is None or own.status != "ok" or not own.latency_p50_ms or "timer_limited" in own.flags:
            continue
        series = found.setdefault((series_key(case), row.environment), {})
        point = _Point(case, own.latency_p50_ms, own.resolution_ms or 0.0)
        series.setdefault(backend_name(case), {})[case.seq_len_k] = point
    return found


def _sign(a: _Point, b: _Point) -> int:
    difference = a.ms - b.ms
    if abs(difference) <= max(a.resolution_ms, b.resolution_ms):
        return 0
    return int(math.copysign(1, difference))
