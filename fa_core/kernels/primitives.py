"""The pieces that forward and backward share: loading a tile and placing a program in the grid.

Kernels index with 32-bit offsets inside a tile and 64-bit bases outside it; WIDE widens the former
for tensors whose strides are so large that a single tile spans more than 2^31 elements.

EXACT is for fp32 operands: everything is computed in fp64 and rounded once, at the end. Where fp64 has
matrix instructions that is no slower than fp32 on the CUDA cores (see tuning.exact).
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

# Arguments that Triton is not to compile anew for: a length of 1 as a constant made ptxas crash
# (13.0, sm_90, causal, BLOCK_D 16), and a multiple of 16 tells a kernel nothing that EVEN_N does not.
LENGTHS = ["n_q", "n_k"]


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
    EXACT: tl.constexpr,
):
    """Rows start.. of a (n_rows, n_cols) tensor; what lies outside reads as 0. In fp64 if EXACT."""
    pointers = base + tl.cast(start, tl.int64) * stride_row + offsets
    if CHECK_ROWS:
        inside = (start + tl.arange(0, ROWS) < n_rows)[:, None]
        if CHECK_COLS:
            inside = inside & (tl.arange(0, COLS) < n_cols)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0)
    elif CHECK_COLS:
        tile = tl.load(pointers, mask=(tl.arange(0, COLS) < n_cols)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile.to(tl.float64) if EXACT else tile


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
def accumulator(ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr):
    """Zeros to sum a tile in: fp32, or fp64 if EXACT."""
    return tl.zeros([ROWS, COLS], tl.float64 if EXACT else tl.float32)


@triton.jit
def dot(a, b, acc):
    """acc + a b, the products and sums in acc's dtype (fp32 operands are not rounded to TF32)."""
    return tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)


@triton.jit
def load_scale(scale, scale_rest, EXACT: tl.constexpr):
    """The factor on the scores, > 0. Launch arguments are fp32, so an exact one comes in two parts."""
    return tl.cast(scale, tl.float64) + tl.cast(scale_rest, tl.float64) if EXACT else scale


@triton.jit
def load_raw_lse(base, start, n_rows, ROWS: tl.constexpr):
    """The rows' log-sum-exp over scale, as +inf for rows that see no key or lie outside.

    exp2((score - inf) * scale) is 0 for every score, so such rows take no part in any gradient.
    """
    rows = start + tl.arange(0, ROWS)
    raw_lse = tl.load(base + rows, mask=rows < n_rows, other=float("inf"))
    return tl.where(raw_lse == float("-inf"), float("inf"), raw_lse)
