"""Tile counts against a count of every (query, key) pair of a small mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import InputError
from profiling.model.tiles import (
    executed_pairs,
    key_rows,
    key_tiles,
    query_rows,
    query_tiles,
    visible_pairs,
)

LENGTHS = st.integers(min_value=0, max_value=70)
BLOCKS = st.integers(min_value=1, max_value=80)


SIDES = st.none() | st.integers(min_value=0, max_value=90)


def mask(n_q: int, n_k: int, causal: bool, left: int | None, right: int | None) -> np.ndarray:
    """True where query i sees key j, straight from the definition."""
    i, j = np.indices((n_q, n_k))
    place = i + n_k - n_q
    seen = (j <= place) if causal else np.ones((n_q, n_k), dtype=bool)
    if left is not None:
        seen &= j >= place - left
    if right is not None:
        seen &= j <= place + right
    return seen


@given(
    n_q=LENGTHS, n_k=LENGTHS, block_m=BLOCKS, block_n=BLOCKS, causal=st.booleans(), left=SIDES, right=SIDES
)
def test_counts_are_those_of_the_mask(
    n_q: int, n_k: int, block_m: int, block_n: int, causal: bool, left: int | None, right: int | None
) -> None:
    """A tile runs if and only if some pair in it is visible; tails load only what exists."""
    seen = mask(n_q, n_k, causal, left, right)
    runs = np.array(
        [
            [seen[i : i + block_m, j : j + block_n].any() for j in range(0, n_k, block_n)]
            for i in range(0, n_q, block_m)
        ]
    ).reshape(-(-n_q // block_m), -(-n_k // block_n))
    keys = [min(block_n, n_k - j) for j in range(0, n_k, block_n)]
    queries = [min(block_m, n_q - i) for i in range(0, n_q, block_m)]
    shape = (n_q, n_k, block_m, block_n, causal, left, right)
    assert visible_pairs(n_q, n_k, causal, left, right) == seen.sum()
    assert key_tiles(*shape).tolist() == runs.sum(axis=1).tolist()
    assert query_tiles(*shape).tolist() == runs.sum(axis=0).tolist()
    assert key_rows(*shape).tolist() == (runs @ np.array(keys, dtype=int)).tolist()
    assert query_rows(*shape).tolist() == (np.array(queries, dtype=int) @ runs).tolist()
    assert executed_pairs(*shape) == runs.sum() * block_m * block_n


@pytest.mark.parametrize(
    ("block_m", "block_n", "share"),
    [(64, 64, 0.508), (128, 64, 0.516), (128, 128, 0.516), (128, 256, 0.531)],
)
def test_causal_share_at_4096(block_m: int, block_n: int, share: float) -> None:
    """A causal mask leaves a little over half of the tiles, more with larger ones."""
    run = executed_pairs(4096, 4096, block_m, block_n, causal=True)
    assert run / 4096**2 == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize("tile", [(0, 64), (64, 0), (-1, 64)])
def test_a_tile_has_two_sides(tile: tuple[int, int]) -> None:
    """A side below 1 is refused by name."""
    with pytest.raises(InputError, match="must be at least 1"):
        key_tiles(8, 8, *tile, False)
