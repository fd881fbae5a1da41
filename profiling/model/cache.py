"""What a last-level cache leaves for DRAM: the tile model seen through an L2 of the device's size.

Thread blocks that walk the same tensor do so side by side, so a generation of them (as many as run at once)
fetches it from DRAM once. The next generation finds of it what survived, and the room to survive in is
shared: while the last blocks of one head are at work, the first of the next are, too. So the bytes between
two visits to a line are those of one stream, and of the share of another that a generation reaches into.

Hardware counters of an H200 (data/samples/h200-counters.jsonl, data/counters_h200.csv) show it: with d = 128
K and V of a head are 8.4 MB at N = 16384 and 16.8 MB at 32768, and are read 1.02, 1.07, 1.17, 1.42 and 1.86
times at N = 16k, 20k, 24k, 28k and 32k; with d = 64 the 16.8 MB of a head of N = 65536 are read once, because
its four times as many tiles seldom share the cache with the next head's. A cache with random replacement
behaves so, and its capacity is then the one fitted number (`Device.l2_usable_fraction`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


def missed_share(stream_bytes: float, capacity_bytes: float) -> float:
    """Share of a cyclic stream that misses in a cache with random replacement, in [0, 1].

    Between two visits to a line, m·F of the F streamed bytes missed, and each evicted a random one of C
    cached bytes: the line survives with probability exp(-m·F/C), so m = 1 - exp(-m·F/C). For F <= C the
    only solution is 0.

    Args:
        stream_bytes: F, bytes between two visits to the same line.
        capacity_bytes: C, > 0.
    """
    x = stream_bytes / capacity_bytes
    if x <= 1:
        return 0.0
    m = 1.0
    for _ in range(50):  # Newton from above on a concave function: monotone, quadratic
        survive = math.exp(-m * x)
        step = (m - 1 + survive) / (1 - x * survive)
        m -= step
        if abs(step) < 1e-12:
            break
    return min(1.0, max(0.0, m))


class Walk(NamedTuple):
    """Thread blocks that walk the tensors of `streams` heads, one head's after another's.

    Attributes:
        rows: rows that each of a head's blocks walks, from the tensor's start or to its end.
        row_bytes: bytes of a row.
        tiles: blocks of a head, not rounded up: rows of the outer loop over those of a tile.
        streams: heads.
    """

    rows: np.ndarray
    row_bytes: int
    tiles: float
    streams: int


def streamed_bytes(walk: Walk, blocks: int, capacity_bytes: int) -> int:
    """DRAM bytes of the tensors that thread blocks walk.

    Args:
        walk: who walks what.
        blocks: thread blocks that run at once.
        capacity_bytes: usable cache.
    """
    count, streams = len(walk.rows), walk.streams
    if not count or not streams:
        return 0
    longest = int(walk.rows.max())
    first = longest * walk.row_bytes
    # Of each head: the longest walk reads everything for the first time, the others what was there before.
    others = (int(walk.rows.sum()) - longest) * walk.row_bytes
    # Generations of blocks over all heads; of those that touch a head, all but one find it used before.
    generations = math.ceil(count * streams / blocks)
    again = min(1.0, (generations - 1) / streams / (count - 1)) if count > 1 else 0.0
    between = first * (1 + min(1.0, blocks / walk.tiles, streams - 1))
    return streams * (first + round(others * again * missed_share(between, capacity_bytes)))
