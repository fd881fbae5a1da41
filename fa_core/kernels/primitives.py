"""The pieces that the kernels share: a program's place in the grid, tiles, scores, and the band's ranges.

Kernels index with 32-bit offsets inside a tile and 64-bit bases outside it; WIDE widens the former
for tensors whose strides are so large that a single tile spans more than 2^31 elements.

Names: CuQ and CuK are the cumulative lengths of a packed batch, Table the block table of a paged cache,
each None where there is none. Strides come as tuples (batch, head, row, column). A pointer that is None
is a constant to the compiler, so what depends on it costs nothing where it is absent.

EXACT is for fp32 operands: everything is computed in fp64 and rounded once, at the end. Where fp64 has
matrix instructions that is no slower than fp32 on the CUDA cores (see tuning.exact).
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

# Arguments that Triton is not to compile anew for: a length of 1 as a constant made ptxas crash
# (13.0, sm_90, causal, BLOCK_D 16), and a multiple of 16 tells a kernel nothing that EVEN_N does not.
LENGTHS = ["batch", "n_q", "n_k", "left", "right", "n_splits"]

# How many sequences of a packed batch are looked at together.
SEQUENCES = tl.constexpr(64)


@triton.jit
def _find_tile(slot, Cu, batch, BLOCK: tl.constexpr):
    """(sequence, tile) of a slot, where sequence b owns the slots from Cu[b] // BLOCK + b on.

    That leaves each sequence at least as many slots as it has tiles, whatever its neighbours' lengths.
    """
    b = -1
    for first in range(0, batch, SEQUENCES):
        i = first + tl.arange(0, SEQUENCES)
        starts = tl.load(Cu + i, mask=i < batch, other=0) // BLOCK + i
        b += tl.sum(((i < batch) & (starts <= slot)).to(tl.int32), 0)
    return b, slot - (tl.load(Cu + b) // BLOCK + b)


@triton.jit
def place(n_rows, batch, heads, Cu, BLOCK: tl.constexpr, REVERSED: tl.constexpr):
    """Where a program works: (sequence, head, first row of its tile, first row and rows of the sequence).

    Dense: `n_rows` a sequence, programs tile by tile, head by head. Packed: `n_rows` in all, and some
    programs get a tile past their sequence's end. REVERSED takes the last tiles first.
    """
    n_tiles = tl.cdiv(n_rows, BLOCK) if Cu is None else n_rows // BLOCK + batch
    tile = tl.program_id(0) % n_tiles
    index = tl.program_id(0) // n_tiles
    if REVERSED:
        tile = n_tiles - 1 - tile
    if Cu is None:
        sequence = index // heads
        head = index % heads
        first = 0
    else:
        head = index
        sequence, tile = _find_tile(tile, Cu, batch, BLOCK)
        first, n_rows = span(Cu, sequence, n_rows)
    return sequence.to(tl.int64), head.to(tl.int64), tile * BLOCK, tl.cast(first, tl.int64), n_rows


@triton.jit
def span(Cu, sequence, n_rows):
    """(first row, rows) of a sequence: all rows where nothing is packed."""
    if Cu is None:
        first = 0
    else:
        first = tl.load(Cu + sequence)
        n_rows = tl.load(Cu + sequence + 1) - first
    return first, n_rows


@triton.jit
def tile_offsets(stride, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """Element offsets of a ROWS x COLS tile from its first element."""
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    return rows[:, None] * stride[2] + cols[None, :] * stride[3]


@triton.jit
def load_pointers(
    pointers, rows, n_rows, n_cols,
    COLS: tl.constexpr, CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Load a tile; what lies outside (n_rows, n_cols) reads as 0. In fp64 if EXACT."""
    if CHECK_ROWS:
        inside = (rows < n_rows)[:, None]
        if CHECK_COLS:
            inside = inside & (tl.arange(0, COLS) < n_cols)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0)
    elif CHECK_COLS:
        tile = tl.load(pointers, mask=(tl.arange(0, COLS) < n_cols)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile.to(tl.float64) if EXACT else tile


@triton.jit
def load_tile(
    view,  # (pointer to row 0, offsets of tile_offsets, stride of rows)
    start,  # first row of the tile
    n_rows,  # of the tensor
    n_cols,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    CHECK_COLS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Rows start.. of a (n_rows, n_cols) tensor."""
    pointers = view[0] + tl.cast(start, tl.int64) * view[2] + view[1]
    rows = start + tl.arange(0, ROWS)
    return load_pointers(pointers, rows, n_rows, n_cols, COLS, CHECK_ROWS, CHECK_COLS, EXACT)


@triton.jit
def load_keys(
    view,
    Table,  # the sequence's pages, or None
    stride_page,
    start,
    n_rows,
    n_cols,
    PAGE: tl.constexpr,  # rows of a page
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    CHECK_COLS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """As load_tile, but through the block table where the rows lie in pages."""
    if Table is None:
        tile = load_tile(view, start, n_rows, n_cols, ROWS, COLS, CHECK_ROWS, CHECK_COLS, EXACT)
    else:
        lanes = tl.arange(0, ROWS)
        rows = start + lanes
        pages = tl.load(Table + rows // PAGE, mask=rows < n_rows, other=0).to(tl.int64)
        moved = pages * stride_page + (rows % PAGE - lanes) * view[2]
        pointers = view[0] + moved[:, None] + view[1]
        tile = load_pointers(pointers, rows, n_rows, n_cols, COLS, CHECK_ROWS, CHECK_COLS, EXACT)
    return tile


@triton.jit
def store_tile(view, start, n_rows, n_cols, value, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Write a tile in the tensor's dtype, leaving out what lies outside (n_rows, n_cols)."""
    pointers = view[0] + tl.cast(start, tl.int64) * view[2] + view[1]
    inside = (start + tl.arange(0, ROWS) < n_rows)[:, None] & (tl.arange(0, COLS) < n_cols)[None, :]
    tl.store(pointers, value.to(view[0].dtype.element_ty), mask=inside)


@triton.jit
def accumulator(ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr):
    """Zeros to sum a tile in: fp32, or fp64 if EXACT."""
    return tl.zeros([ROWS, COLS], tl.float64 if EXACT else tl.float32)


@triton.jit
def dot(a, b, acc):
    """acc + a b, the products and sums in acc's dtype (fp32 operands are not rounded to TF32)."""
    return tl.dot(a, b, acc, input_precision="ieee", out_dtype=acc.dtype)


@triton.jit
def load_scale(scale, EXACT: tl.constexpr):
    """The factor on the scores, > 0. Launch arguments are fp32, so an exact one comes in two parts."""
    return tl.cast(scale[0], tl.float64) + tl.cast(scale[1], tl.float64) if EXACT else scale[0]


@triton.jit
def modify(scores, score, distance, bias, SOFTCAP: tl.constexpr):
    """Scaled scores with softcap, ALiBi and bias, and the softcap's derivative there.

    score: (scale, slope or None, bias pointer or None, ...); distance and bias in the scores' shape.

    tanh is taken as 1 - 2 / (exp(2x) + 1), which is ±1 where exp overflows or vanishes.
    """
    scores = scores * score[0]
    steepness = 1.0
    if SOFTCAP > 0:
        bent = 1.0 - 2.0 / (tl.math.exp2(scores * (2.0 * LOG2E / SOFTCAP)) + 1.0)
        scores = bent * SOFTCAP
        steepness = 1.0 - bent * bent
    if score[1] is not None:
        scores -= score[1] * distance
    if score[2] is not None:
        scores += bias.to(scores.dtype)
    return scores, steepness


@triton.jit
def load_bias(base, stride, queries, keys, n_q, n_k):
    """The bias of a tile, queries and keys broadcasting to its shape; 0 outside."""
    pointers = base + queries.to(tl.int64) * stride[2] + keys.to(tl.int64) * stride[3]
    return tl.load(pointers, mask=(queries < n_q) & (keys < n_k), other=0.0)


@triton.jit
def load_slope(Slopes, stride, sequence, head, EXACT: tl.constexpr):
    """The ALiBi slope of a head (or of each row's head)."""
    slope = tl.load(Slopes + sequence * stride + head)
    return slope.to(tl.float64) if EXACT else slope


@triton.jit
def key_range(
    first_query, last_query, n_k, shift, left, right,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Which keys queries first..last see: (begin, edge, full, end).

    Some of the queries see keys [begin, end), all of them keys [edge, full), a range of whole tiles.
    """
    begin = 0
    edge = 0
    full = n_k // BLOCK_N * BLOCK_N
    end = n_k
    if RIGHT:
        end = tl.maximum(0, tl.minimum(n_k, last_query + shift + right + 1))
        full = tl.minimum(full, tl.maximum(0, first_query + shift + right + 1) // BLOCK_N * BLOCK_N)
    if LEFT:
        begin = tl.minimum(end, tl.maximum(0, first_query + shift - left)) // BLOCK_N * BLOCK_N
        edge = tl.cdiv(tl.minimum(end, tl.maximum(0, last_query + shift - left)), BLOCK_N) * BLOCK_N
        full = tl.maximum(full, edge)
    return begin, edge, full, end


@triton.jit
def query_range(
    first_key, last_key, n_q, shift, left, right,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Which queries see keys first..last: (begin, edge, full, end), as in key_range."""
    begin = 0
    edge = 0
    full = n_q // BLOCK_M * BLOCK_M
    end = n_q
    if LEFT:
        end = tl.maximum(0, tl.minimum(n_q, last_key - shift + left + 1))
        full = tl.minimum(full, tl.maximum(0, first_key - shift + left + 1) // BLOCK_M * BLOCK_M)
    if RIGHT:
        begin = tl.minimum(end, tl.maximum(0, first_key - shift - right)) // BLOCK_M * BLOCK_M
        edge = tl.cdiv(tl.minimum(end, tl.maximum(0, last_key - shift - right)), BLOCK_M) * BLOCK_M
        full = tl.maximum(full, edge)
    return begin, edge, full, end


@triton.jit
def visible(positions, keys, n_k, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Whether a query whose diagonal stands at `positions` sees `keys`; the two broadcast."""
    seen = keys < n_k
    if RIGHT:
        seen = seen & (keys <= positions + right)
    if LEFT:
        seen = seen & (keys >= positions - left)
    return seen


@triton.jit
def load_row(RowMax, LogSum, start, n_rows, ROWS: tl.constexpr):
    """(row_max, log_sum in units of log 2) of rows, see forward_kernel; row_max +inf for rows without a key.

    exp2((score - inf) * scale) is 0 for every score, so such rows, and those outside, have no part in any
    gradient.
    """
    rows = start + tl.arange(0, ROWS)
    row_max = tl.load(RowMax + rows, mask=rows < n_rows, other=float("inf"))
    log_sum = tl.load(LogSum + rows, mask=rows < n_rows, other=0.0)
    return tl.where(row_max == float("-inf"), float("inf"), row_max), log_sum * LOG2E


@triton.jit
def probabilities(scores, row_max, log_sum, factor_log2):
    """The forward's probabilities again, from its scores and what it left of each row.

    Maximum and sum are apart because their sum, the log-sum-exp, rounds away what a huge maximum leaves of
    the other: at 1e5 a percent of each probability, at the least finite number the number of keys.
    """
    return tl.math.exp2((scores - row_max) * factor_log2 - log_sum)
