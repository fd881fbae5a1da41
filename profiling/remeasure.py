"""Which cases of a run deserve another row: those whose numbers are in doubt, or that have none.

The new row takes the old one's place, and with it what was measured beside it later (energy, counters).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from profiling.case import Case, split_name
from profiling.fingerprint import kernel_hash
from profiling.records import Measurement

CHOICES = ("flagged", "failed")
_FAILED = ("oom", "timeout", "crashed", "incorrect")  # `unsupported` would be that again


def cases_again(
    rows: Sequence[Measurement], which: str, backends: Collection[str] | None = None
) -> list[Case]:
    """The cases to be measured again, in the order of their rows.

    `flagged`: those with a flag, on whichever clock, or whose kernel's sources have changed since
    (`stale_kernel`). The other cases of their blocks that are `ok` come along: a comparison holds within a
    block that was measured interleaved, and a case alone could not be seen to drift. `failed`: those that
    are `oom`, `timeout`, `crashed` or `incorrect`, alone.

    Args:
        rows: of a run.
        which: one of `CHOICES`.
        backends: only these, such as `naive/fill`; None: all.
    """
    rows = rows_of(rows, backends)
    if which == "failed":
        return [row.case for row in rows if row.status in _FAILED]
    shapes = {row.case.shape_key for row in rows if _flagged(row)}
    return [
        row.case for row in rows if row.case.shape_key in shapes and (row.status == "ok" or _flagged(row))
    ]


def rows_of(rows: Sequence[Measurement], backends: Collection[str] | None) -> list[Measurement]:
    """The rows of some backends, such as `naive/fill`; None: all."""
    wanted = None if backends is None else {split_name(name) for name in backends}
    return [row for row in rows if wanted is None or (row.case.backend, row.case.variant) in wanted]


def _flagged(row: Measurement) -> bool:
    return bool(row.flags) or any(clock.flags for clock in row.clocks) or is_stale(row)


def is_stale(row: Measurement) -> bool:
    """Whether a row was made with other kernel sources than those at hand; unknown sources are not."""
    at_hand = kernel_hash(row.case.backend, row.case.operation)
    return bool(row.kernel_hash and at_hand) and row.kernel_hash != at_hand
