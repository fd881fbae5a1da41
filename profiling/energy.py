"""When a run measures energy: after each block, or at the end around the changes of sign.

What measures it is an argument; how that is done is said in `measure.energy`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from profiling.agenda import Block
from profiling.case import Case, blocks
from profiling.planning import bracket_cases
from profiling.records import Addition, Measurement
from profiling.remeasure import is_stale
from profiling.store import RunWriter
from profiling.sweep import Executor, undisturbed

CHOICES = ("all", "brackets")


def lacking(
    rows: Sequence[Measurement], which: str, clock: str, environment: int | None = None
) -> list[Case]:
    """The cases whose energy is wanted and not known.

    Only rows that are `ok` count, made with the kernels at hand: their energy would belong to other code.

    Args:
        rows: of a run.
        which: `all`, or `brackets`: the two cases at either side of each change of sign.
        clock: whose medians say where signs change.
        environment: the number of the one at hand, which rows must have been made in; None: any.
    """
    good = [
        row
        for row in rows
        if row.status == "ok" and environment in (None, row.environment) and not is_stale(row)
    ]
    unknown = dict.fromkeys(row.case for row in good if row.energy_mj is None)
    chosen = bracket_cases(good, clock) if which == "brackets" else [row.case for row in good]
    return [case for case in chosen if case in unknown]


class Energies:
    """The energies of one run: measured, written to its file, counted. Nothing is tried twice.

    Args:
        measure: what measures, on the device of the run.
        writer: of the run's file.
    """

    def __init__(self, measure: Callable[[Sequence[Case]], list[Addition]], writer: RunWriter) -> None:
        self._measure = measure
        self._writer = writer
        self._tried: dict[Case, Addition] = {}

    def after_each(self, execute: Executor) -> Executor:
        """An executor that measures the energy of a block's cases once its rows are written."""

        def with_energy(plan: Iterable[Block]) -> Iterator[list[Measurement]]:
            for rows in execute(plan):
                yield rows  # whoever asks for the next has written these
                self.measure([row.case for row in rows if row.status == "ok"])

        return with_energy

    def measure(self, cases: Iterable[Case]) -> None:
        """Measure the energy of those that were not tried yet."""
        for block in blocks([case for case in cases if case not in self._tried]):
            found = self._measure(block)
            with undisturbed():  # each took seconds: what is found is safe before the next
                self._writer.add(found)
            self._tried |= {addition.case: addition for addition in found}

    @property
    def summary(self) -> str:
        """How many energies were measured, and why others are unknown."""
        if not self._tried:
            return "No energy was measured"
        reasons = Counter(x.energy_reason or "" for x in self._tried.values() if x.energy_mj is None)
        known = len(self._tried) - reasons.total()
        text = f"Energy of {known} of {len(self._tried)} cases measured"
        unknown = [f"{count} unknown, {reason}" for reason, count in reasons.most_common(3)]
        return "; ".join([text, *unknown, *["..."] * (len(reasons) > 3)])
