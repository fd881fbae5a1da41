"""In which order blocks are measured: as the sweep lists them, or what tells most first; then new ones.

Pure but for the clock, which is an argument. The order under a time limit: of every series first the two
ends of N; then the middle of a gap in which a sign changes, then of one whose ends say too little, then of
one whose ends agree. Of equals the series with the fewest blocks comes first, then the cheaper block.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profiling.case import Case, InputError
from profiling.planning import Pair, backend_name, pairs_of, refinement, series_key, signed_points
from profiling.records import Measurement

Block = Sequence[Case]

# Guesses are trusted as if they had been right for this long: the first block compiles, the others do not.
_TRUST_S = 10.0
_WIDTH = 0.125
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
# How urgent a block is, by the gap between measured N that it lies in.
_ENDS, _CHANGES, _UNKNOWN, _REFINES, _AGREES = range(5)


def seconds(text: str) -> float:
    """A duration such as `90s`, `10m` or `1.5h` in seconds.

    Raises:
        InputError: it is none, or not above 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", text)
    if not match or not float(match[1]):
        raise InputError(
            f"--budget {text}: must be a number above 0 and its unit s, m or h, such as 90s, 10m or 1.5h"
        )
    return float(match[1]) * _UNITS[match[2]]


def width(number: float | None) -> float:
    """How wide a refined bracket may stay: `number`, or an eighth.

    Raises:
        InputError: it is not between 0.01 and 1.
    """
    if number is None:
        return _WIDTH
    if not 0.01 <= number <= 1:
        raise InputError(f"--refine-to {number:g}: must be from 0.01 to 1, such as 0.125 for 12.5 %")
    return number


class Limit(NamedTuple):
    """A time limit: what a case is guessed to cost, in seconds, and the clock's reading when time is up."""

    cost_s: Callable[[Case], float]
    deadline_s: float


class Agenda:
    """The blocks of a run, one after another: iterate, and `learn` the rows of each before the next.

    Args:
        plan: the blocks that were asked for.
        measured: the rows that the run has already.
        clock: whose sign changes decide.
        refine_to: the width down to which brackets are halved by new blocks; None: no new blocks.
        limit: when to stop; None: all blocks, in their order.
        environment: the number of the one that new rows will carry; None: any.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        plan: Sequence[Block],
        *,
        measured: Sequence[Measurement] = (),
        clock: str = "",
        refine_to: float | None = None,
        limit: Limit | None = None,
        environment: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waiting: list[Block] = list(plan)
        self._rows = {row.case: row for row in measured}
        self._new = dict.fromkeys(row.case for row in measured if row.refined)
        self._clock = clock
        self._refine_to = refine_to
        self._limit = limit
        self._environment = environment
        self._now = now
        self._guessed_s = self._spent_s = 0.0
        self._began_s = 0.0
        self._under_way: Block = ()

    def __iter__(self) -> Iterator[Block]:
        while block := self._next():
            self._under_way, self._began_s = block, self._now()
            yield block

    def learn(self, rows: Sequence[Measurement]) -> list[Measurement]:
        """Take note of new rows; the rows, those that refine marked as such."""
        marked = [row.model_copy(update={"refined": True}) if row.case in self._new else row for row in rows]
        self._rows |= {row.case: row for row in marked}
        if self._limit is not None:
            self._guessed_s += sum(map(self._limit.cost_s, self._under_way))
            self._spent_s += self._now() - self._began_s
        return marked

    def likely(self) -> list[Case]:
        """The cases of the plan that are likely to be handed out, in its order, before any is measured.

        Without a limit these are all. Under one another agenda is walked, on a clock that goes on by the
        guesses, for the time that is left, of which the start will take some; its rows have no signs, so it
        is the order of a run that knows no more than now. Nothing changes in this one, and N beyond the plan
        play no part.
        """
        waiting = [case for block in self._waiting for case in block]
        if self._limit is None:
            return waiting
        left_s = self._limit.deadline_s - self._now()
        costs = {case: self._limit.cost_s(case) for case in waiting}
        if sum(costs.values()) <= left_s:
            return waiting
        walked_s = 0.0
        walk = Agenda(
            self._waiting,
            measured=list(self._rows.values()),
            clock=self._clock,
            limit=Limit(costs.__getitem__, left_s),
            environment=self._environment,
            now=lambda: walked_s,
        )
        found: set[Case] = set()
        for block in walk:
            walked_s += sum(costs[case] for case in block)
            found.update(block)
            walk.learn([Measurement(case=case, status="missing") for case in block])
        return [case for case in waiting if case in found]

    @property
    def left_out(self) -> int:
        """Cases that were asked for and not handed out."""
        return sum(map(len, self._waiting))

    @property
    def wide(self) -> int:
        """Blocks that would still have to be measured to refine every bracket a step further."""
        return len(self._refining())

    def _here(self) -> list[Measurement]:
        """The rows that new ones may be compared with."""
        return [row for row in self._rows.values() if self._environment in (None, row.environment)]

    def _refining(self) -> list[list[Case]]:
        if self._refine_to is None:
            return []
        # a planned case that waits is not new: it keeps its block and its place in the count
        taken = set(self._rows).union(*self._waiting)
        found = refinement(self._here(), self._clock, self._refine_to, taken)
        return [block for block in found if not any(case in self._new for case in block)]

    def _next(self) -> Block | None:
        if self._limit is not None:
            block = self._most_telling(self._limit)
        elif self._waiting:
            block = self._waiting[0]
        else:
            block = next(iter(self._refining()), None)
        if block is None:
            return None
        if any(block is each for each in self._waiting):
            self._waiting = [each for each in self._waiting if each is not block]
        else:
            self._new |= dict.fromkeys(block)
        return block

    def _most_telling(self, limit: Limit) -> Block | None:
        """The most informative block of those that are expected to fit; None if none does."""
        left_s = limit.deadline_s - self._now()
        wrong_by = (self._spent_s + _TRUST_S) / (self._guessed_s + _TRUST_S)

        def cost_s(block: Block) -> float:
            return sum(map(limit.cost_s, block)) * wrong_by

        known = self._series()
        nearest: dict[Any, tuple[float, Block]] = {}  # to the middle of each gap
        for block in self._waiting:
            if cost_s(block) <= left_s:
                series = series_key(block[0])
                gap = known[series].gap(block[0].seq_len_k)
                off = _off(block[0].seq_len_k, gap)
                if (series, gap) not in nearest or off < nearest[series, gap][0]:
                    nearest[series, gap] = off, block
        ranked = [
            ((known[series].urgency(gap), known[series].so_far, cost_s(block)), block)
            for (series, gap), (_, block) in nearest.items()
        ]
        best = min(ranked, key=lambda each: each[0], default=None)
        if best is None or best[0][0] > _REFINES:
            new = [block for block in self._refining() if cost_s(block) <= left_s]
            if new:
                return min(new, key=cost_s)
        return None if best is None else best[1]

    def _series(self) -> dict[Any, _Series]:
        """What is known of each series."""
        found: dict[Any, _Series] = {}
        for case in (*self._rows, *(case for block in self._waiting for case in block)):
            series = found.setdefault(series_key(case), _Series())
            series.lengths.add(case.seq_len_k)
            if case in self._rows:
                series.measured.add(case.seq_len_k)
            if case.tile_m is None:
                series.names[backend_name(case)] = None
        for key, pair, points in signed_points(self._here(), self._clock):
            found[key].signs[pair] = {point.seq_len: point.sign for point in points}
        return found


Gap = tuple[int, int] | None  # between N that were measured, or are the series' ends; None: at an end


@dataclass(slots=True)
class _Series:
    """A series under way: all its N, those with rows, its backends in order, each pair's signs by N."""

    lengths: set[int] = field(default_factory=set[int])
    measured: set[int] = field(default_factory=set[int])
    names: dict[str, None] = field(default_factory=dict[str, None])
    signs: dict[Pair, dict[int, int]] = field(default_factory=dict[Pair, dict[int, int]])

    @property
    def so_far(self) -> int:
        """How many N have rows."""
        return len(self.measured)

    def gap(self, seq_len: int) -> Gap:
        """The gap that an N lies in; None at an end of the series, and for what is left of a block."""
        low, high = min(self.lengths), max(self.lengths)
        if seq_len in (low, high) or seq_len in self.measured:
            return None
        below = max((n for n in self.measured if n < seq_len), default=low)
        return below, min((n for n in self.measured if n > seq_len), default=high)

    def urgency(self, gap: Gap) -> int:
        """How soon a block in a gap should be measured, smallest first."""
        if gap is None:
            return _ENDS
        found = [self.signs.get(pair, {}) for pair in pairs_of(list(self.names))]
        ends = [at.get(gap[0], 0) * at.get(gap[1], 0) for at in found]
        if any(product < 0 for product in ends):
            return _CHANGES
        return _AGREES if ends and all(product > 0 for product in ends) else _UNKNOWN


def _off(seq_len: int, gap: Gap) -> float:
    """How far an N is from the geometric middle of its gap; of two ends the lower comes first."""
    if gap is None:
        return seq_len
    low, high = gap
    # rounded, lest the last bit decide between two that are as far
    return round(abs(math.log(seq_len / math.sqrt(max(low, 1) * high))), 6)
