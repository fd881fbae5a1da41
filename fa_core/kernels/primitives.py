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


@triton.jit
def dot(a, b, acc, EXACT: tl.constexpr):
    """acc + a b in fp32. EXACT, for fp32 operands, sums the inner axis in chunks of 32.

    A single chain of additions over head_dim and then over all keys would lose two to three times as
    much to rounding as the libraries' blocked sums do (Higham 1993: the error grows with the length of
    the chain). Tensor cores sum 16-bit products in their own order, so there the plain form stays.
    """
    if EXACT:
        M: tl.constexpr = a.shape[0]
        K: tl.constexpr = a.shape[1]
        N: tl.constexpr = b.shape[1]
        if K > 32:
            chunks_a = tl.permute(tl.reshape(a, [M, K // 32, 32]), (1, 0, 2))
            chunks_b = tl.reshape(b, [K // 32, 32, N])
            product = tl.sum(tl.dot(chunks_a, chunks_b, input_precision="ieee"), 0)
        else:
            product = tl.dot(a, b, input_precision="ieee")
        # Written as a fused multiply-add so that Triton does not fold the sum into the dot's chain.
        return tl.fma(product, 1.0, acc)
    return tl.dot(a, b, acc)
