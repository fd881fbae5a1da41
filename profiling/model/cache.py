"""What a last-level cache leaves for DRAM: the tile model seen through an L2 of the device's size.

Thread blocks that stream the same tensor run roughly in lockstep, so within one wave of blocks DRAM
delivers it once. The next wave reads it again, and finds of it what survived. Hardware counters of an
H200 (data/counters_h200.csv) show a gradual loss, neither all nor nothing: one K/V head of 8.4 MB is
read 1.0 times, of 16.8 MB 1.75 times in two waves, of 67 MB 8.0 times in eight. A cache with random
replacement behaves so, and its capacity is then the one fitted number (`Device.l2_usable_fraction`).
"""

from __future__ import annotations

import math

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


def streamed_bytes(stream_rows: np.ndarray, row_bytes: int, blocks: int, capacity_bytes: int) -> int:
    """DRAM bytes of one tensor that thread blocks stream over, wave by wave.

    Args:
        stream_rows: rows each thread block streams from the tensor's start (or to its end), in launch
            order; the blocks of one wave share what they read.
        row_bytes: bytes of a row.
        blocks: thread blocks that run at once.
        capacity_bytes: usable cache.
    """
    if not len(stream_rows):
        return 0
    waves = np.maximum.reduceat(stream_rows, np.arange(0, len(stream_rows), blocks))
    # The longest wave reads everything for the first time; what the others read was there before.
    rereads = np.sort(waves)[:-1]
    total = int(waves.max()) * row_bytes
    for rows, count in zip(*np.unique(rereads, return_counts=True), strict=True):
        stream = int(rows) * row_bytes
        total += round(int(count) * stream * missed_share(stream, capacity_bytes))
    return total
