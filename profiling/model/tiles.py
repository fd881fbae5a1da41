"""Which tiles a block algorithm runs: exact counts under a causal mask, a window or both, with tails.

With p = i + n_k - n_q the place of query i of `n_q` among the keys (bottom-right alignment), it sees the
keys p - left <= j <= p + right of `n_k`; None is no limit, and `causal` makes `right` 0. All lengths in
tokens; plain integers and small NumPy arrays, one element per tile of the outer loop.
"""

from __future__ import annotations

import numpy as np

from profiling.case import InputError


def check_tile(block_m: int, block_n: int) -> None:
    """Raise `InputError` unless both sides of a tile are at least 1."""
    if block_m < 1 or block_n < 1:
        raise InputError(f"block_m and block_n must be at least 1, got {block_m} x {block_n}")


def visible_pairs(n_q: int, n_k: int, causal: bool, left: int | None = None, right: int | None = None) -> int:
    """Unmasked (query, key) pairs of one head."""
    right, shift = 0 if causal else right, n_k - n_q
    up_to = n_q * n_k if right is None else _clipped_sum(shift + right + 1, n_q, n_k)
    return up_to - (0 if left is None else _clipped_sum(shift - left, n_q, n_k))


def _clipped_sum(start: int, count: int, top: int) -> int:
    """The sum of min(max(start + i, 0), top) over i in 0, ..., count - 1."""
    first = min(count, max(0, -start))  # i from which on a term is above 0
    last = max(first, min(count, top - start))  # i from which on it is `top`
    return (last - first) * start + (first + last - 1) * (last - first) // 2 + (count - last) * top


def _walked(
    n_outer: int, n_inner: int, block_outer: int, before: int | None, after: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The inner positions [begin, end) that each outer tile meets; one element per outer tile, int64.

    Outer position i meets i - before to i + after; None is no limit. An outer tile that meets none has
    begin = end.
    """
    starts = np.arange(-(-n_outer // block_outer), dtype=np.int64) * block_outer
    ends = np.minimum(starts + block_outer, n_outer)
    begin = np.zeros_like(starts) if before is None else np.clip(starts - before, 0, n_inner)
    end = np.full_like(ends, n_inner) if after is None else np.clip(ends + after, 0, n_inner)
    return np.minimum(begin, end), end


def _keys(
    n_q: int, n_k: int, block_m: int, causal: bool, left: int | None, right: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The keys [begin, end) that each query tile sees."""
    right, shift = 0 if causal else right, n_k - n_q
    before = None if left is None else left - shift
    return _walked(n_q, n_k, block_m, before, None if right is None else right + shift)


def _queries(
    n_q: int, n_k: int, block_n: int, causal: bool, left: int | None, right: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The queries [begin, end) that see each key tile: the band of `_keys` read the other way round."""
    right, shift = 0 if causal else right, n_k - n_q
    before = None if right is None else right + shift
    return _walked(n_k, n_q, block_n, before, None if left is None else left - shift)


def _tiles(begin: np.ndarray, end: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The tiles [first, last) of side `block` that hold [begin, end); none where that is empty."""
    last = -(-end // block)
    return np.where(begin < end, begin // block, last), last


def key_tiles(
    n_q: int,
    n_k: int,
    block_m: int,
    block_n: int,
    causal: bool,
    left: int | None = None,
    right: int | None = None,
) -> np.ndarray:
    """Key tiles that each query tile walks (int64, one element per query tile, first tile first)."""
    check_tile(block_m, block_n)
    first, last = _tiles(*_keys(n_q, n_k, block_m, causal, left, right), block_n)
    return last - first


def query_tiles(
    n_q: int,
    n_k: int,
    block_m: int,
    block_n: int,
    causal: bool,
    left: int | None = None,
    right: int | None = None,
) -> np.ndarray:
    """Query tiles that each key tile walks (int64, one element per key tile): `key_tiles` transposed."""
    check_tile(block_m, block_n)
    first, last = _tiles(*_queries(n_q, n_k, block_n, causal, left, right), block_m)
    return last - first


def key_rows(
    n_q: int,
    n_k: int,
    block_m: int,
    block_n: int,
    causal: bool,
    left: int | None = None,
    right: int | None = None,
) -> np.ndarray:
    """Keys that each query tile loads: whole tiles, but of a ragged last one only what exists.

    A masked lane issues no memory transaction, so padding of a tail moves no bytes.
    """
    check_tile(block_m, block_n)
    first, last = _tiles(*_keys(n_q, n_k, block_m, causal, left, right), block_n)
    return np.minimum(last * block_n, n_k) - np.minimum(first * block_n, n_k)


def query_rows(
    n_q: int,
    n_k: int,
    block_m: int,
    block_n: int,
    causal: bool,
    left: int | None = None,
    right: int | None = None,
) -> np.ndarray:
    """Queries that each key tile loads, counted as in `key_rows`."""
    check_tile(block_m, block_n)
    first, last = _tiles(*_queries(n_q, n_k, block_n, causal, left, right), block_m)
    return np.minimum(last * block_m, n_q) - np.minimum(first * block_m, n_q)


def executed_pairs(
    n_q: int,
    n_k: int,
    block_m: int,
    block_n: int,
    causal: bool,
    left: int | None = None,
    right: int | None = None,
) -> int:
    """(query, key) pairs of one head that are computed: whole tiles, padding and masked corners included."""
    return int(key_tiles(n_q, n_k, block_m, block_n, causal, left, right).sum()) * block_m * block_n
