"""The pieces that forward and backward share: loading a tile and placing a program in the grid.

Kernels index with 32-bit offsets inside a tile and 64-bit bases outside it; WIDE widens the former
for tensors whose strides are so large that a single tile spans more than 2^31 elements.
"""

import triton
import triton.language as tl


@triton.jit
def tile_offsets(stride_row, stride_col, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """Element offsets of a ROWS x COLS tile from its first element."""
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    return rows[:, None] * stride_row + cols[None, :] * stride_col


@triton.jit
def load_tile(
    base,  # pointer to the tensor's row 0
    offsets,  # of tile_offsets
    start,  # first row of the tile
    stride_row,
    n_rows,  # of the tensor
    n_cols,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    CHECK_COLS: tl.constexpr,
):
    """Rows start.. of a (n_rows, n_cols) tensor; what lies outside reads as 0."""
    pointers = base + tl.cast(start, tl.int64) * stride_row + offsets
    if CHECK_ROWS:
        inside = (start + tl.arange(0, ROWS) < n_rows)[:, None]
        if CHECK_COLS:
            inside = inside & (tl.arange(0, COLS) < n_cols)[None, :]
        return tl.load(pointers, mask=inside, other=0.0)
    if CHECK_COLS:
        return tl.load(pointers, mask=(tl.arange(0, COLS) < n_cols)[None, :], other=0.0)
    return tl.load(pointers)


@triton.jit
def store_tile(
    base,
    offsets,
    start,
    stride_row,
    n_rows,
    n_cols,
    value,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Write a tile in the tensor's dtype, leaving out what lies outside (n_rows, n_cols)."""
    pointers = base + tl.cast(start, tl.int64) * stride_row + offsets
    inside = (start + tl.arange(0, ROWS) < n_rows)[:, None] & (tl.arange(0, COLS) < n_cols)[None, :]
    tl.store(pointers, value.to(base.dtype.element_ty), mask=inside)


@triton.jit
def load_lse2(base, start, n_rows, ROWS: tl.constexpr):
    """The rows' base-2 log-sum-exp, as +inf for rows that see no key or lie outside.

    exp2(score - inf) is 0 for every score, so such rows take no part in any gradient.
    """
    rows = start + tl.arange(0, ROWS)
    lse2 = tl.load(base + rows, mask=rows < n_rows, other=float("inf"))
    return tl.where(lse2 == float("-inf"), float("inf"), lse2)
