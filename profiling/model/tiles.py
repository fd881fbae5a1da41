"""Which tiles a block algorithm runs: exact counts under a bottom-right causal mask, with tails.

Query i of `n_q` sees key j of `n_k` when j <= i + n_k - n_q. All lengths in tokens; plain integers and
small NumPy arrays, one element per tile of the outer loop.
"""

from __future__ import annotations

import numpy as np

from profiling.case import InputError


def check_tile(block_m: int, block_n: int) -> None:
    """Raise `InputError` unless both sides of a tile are at least 1."""
    if block_m < 1 or block_n < 1:
        raise InputError(f"block_m and block_n must be at least 1, got {block_m} x {block_n}")


def visible_pairs(n_q: int, n_k: int, causal: bool) -> int:
    """Unmasked (query, key) pairs of one head."""
    if not causal:
        return n_q * n_k
    full = max(0, n_k - n_q)  # keys that even the first query sees, less its own
    rows = min(n_q, n_k)  # queries that see a key at all
    return rows * full + rows * (rows + 1) // 2


def key_tiles(n_q: int, n_k: int, block_m: int, block_n: int, causal: bool) -> np.ndarray:
    """Key tiles that each query tile walks (int64, one element per query tile, first tile first)."""
    check_tile(block_m, block_n)
    ends = np.minimum(np.arange(1, -(-n_q // block_m) + 1, dtype=np.int64) * block_m, n_q)
    seen = np.clip(ends + (n_k - n_q), 0, n_k) if causal else np.full_like(ends, n_k)
    return -(-seen // block_n)


def query_tiles(n_q: int, n_k: int, block_m: int, block_n: int, causal: bool) -> np.ndarray:
    """Query tiles that each key tile walks (int64, one element per key tile): `key_tiles` transposed."""
    check_tile(block_m, block_n)
    starts = np.arange(-(-n_k // block_n), dtype=np.int64) * block_n
    first = np.maximum(starts - (n_k - n_q), 0) // block_m if causal else np.zeros_like(starts)
    return np.maximum(-(-n_q // block_m) - first, 0)


def key_rows(n_q: int, n_k: int, block_m: int, block_n: int, causal: bool) -> np.ndarray:
    """Keys that each query tile loads: whole tiles, but of a ragged last one only what exists.

    A masked lane issues no memory transaction, so padding of a tail moves no bytes.
    """
    return np.minimum(key_tiles(n_q, n_k, block_m, block_n, causal) * block_n, n_k)


def query_rows(n_q: int, n_k: int, block_m: int, block_n: int, causal: bool) -> np.ndarray:
    """Queries that each key tile loads, counted as in `key_rows`."""
    walked = query_tiles(n_q, n_k, block_m, block_n, causal)
    first = (-(-n_q // block_m) - walked) * block_m
    return np.maximum(n_q - first, 0)


def executed_pairs(n_q: int, n_k: int, block_m: int, block_n: int, causal: bool) -> int:
    """(query, key) pairs of one head that are computed: whole tiles, padding and masked corners included."""
    return int(key_tiles(n_q, n_k, block_m, block_n, causal).sum()) * block_m * block_n
