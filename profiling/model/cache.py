"""What a last-level cache leaves for DRAM: the tile model seen through an L2 of the device's size.

Thread blocks that walk the same tensor do so side by side, so a generation of them (as many as run at once)
fetches it from DRAM once. The next generation finds of it what survived, and that is decided by how many
bytes went by between the two visits to a line: the rest of what the first generation walks, which is more
than one head where a generation reaches into the next; what the second has walked so far; and what each
block holds for itself, its own rows and its output. A cache that throws out what was used longest ago keeps
a line while less than its capacity went by. Blocks are not exactly in step and sets fill unevenly, so the
step between kept and lost is smooth (`missed_share`).

Two numbers are fitted to hardware counters of an H200: the capacity, `Device.l2_usable_fraction`, a little
over half of the L2, as where each of its two partitions holds a copy of what all SMs read; and the sharpness
of the step, `SHARPNESS`. CONTRIBUTING.md, "The model of DRAM bytes", says what else was tried.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Fitted with the share of an H200's L2 (0.56): tests/benchmarks/fit_cache.py.
SHARPNESS = 12
# A generation's visits are looked at in so many places along its walk.
_PLACES = (np.arange(8) + 0.5) / 8
# Of longer calls the first so many generations stand for all: where heads begin in them has a short period,
# or so long a one that these have met every place.
_MOST_GENERATIONS = 4096


def missed_share(between_bytes: np.ndarray, capacity_bytes: float) -> np.ndarray:
    """Share of the visits that find their line gone, in [0, 1]: 1 / (1 + (capacity / between)^SHARPNESS).

    Half of them where as many bytes went by as the cache holds; 1 in 100 at 0.68 of that, 99 at 1.47.

    Args:
        between_bytes: float64, any shape, >= 0: bytes that went by since the last visit.
        capacity_bytes: > 0.
    """
    ratio = np.minimum(between_bytes / capacity_bytes, 1e6) ** SHARPNESS
    return ratio / (1 + ratio)


class Walk(NamedTuple):
    """Thread blocks that walk the tensors of `streams` heads, one head's after another's.

    Attributes:
        rows: int64, rows that each of a member's blocks walks from the tensor's start or to its end, the
            longest walk first: that is how blocks are started under a mask.
        row_bytes: bytes of a row.
        streams: heads whose tensors are walked.
        own_bytes: of a block: the rows that it holds, and what it writes in the end.
        members: query heads that walk the same tensor, one after the other.
    """

    rows: np.ndarray
    row_bytes: int
    streams: int
    own_bytes: int = 0
    members: int = 1


def streamed_bytes(walk: Walk, blocks: int, capacity_bytes: int) -> int:
    """DRAM bytes of the tensors that thread blocks walk.

    Args:
        walk: who walks what.
        blocks: thread blocks that run at once.
        capacity_bytes: usable cache.
    """
    each = len(walk.rows)
    count = each * walk.members
    total = count * walk.streams
    if not total:
        return 0
    # The longest walk reads all of a head's tensor that is needed, for the first time.
    once = walk.streams * int(walk.rows.max()) * walk.row_bytes
    generations = -(-total // blocks)
    if generations == 1:
        return once
    rows = np.sort(walk.rows)[::-1]
    looked_at = min(generations, _MOST_GENERATIONS)
    begin = np.arange(looked_at, dtype=np.int64) * blocks
    last = np.minimum(begin + blocks, total) - 1
    place = begin % count
    # The longest walk of a generation in the head that it begins in: its first block's, unless it reaches
    # a further member's first.
    own = np.minimum(count - place, last - begin + 1)
    at = place % each
    longest = np.where(at + own > each, rows[0], rows[at]) * walk.row_bytes
    walked = longest + (last // count - begin // count) * int(rows[0]) * walk.row_bytes
    again = np.flatnonzero(place[1:]) + 1  # generations that go on with a head
    before, after = walked[again - 1, None], walked[again, None]
    between = before * (1 - _PLACES) + after * _PLACES + blocks * walk.own_bytes
    missed = missed_share(between, capacity_bytes).mean(axis=1)
    reread = float((longest[again] * missed).sum())
    if looked_at < generations:
        reread *= (generations - 1) / (looked_at - 1)
    return min(once + round(reread), walk.streams * walk.members * int(rows.sum()) * walk.row_bytes)
