"""The fused forward: one program per (query tile, head), online softmax over the key tiles.

For short queries (decoding) there are too few such programs to fill a GPU, and the tile is mostly
padding. There the query heads that share a key head lie in one tile (PACK), the keys are divided
between programs (n_splits), and `combine_kernel` joins their parts.
"""

import triton
import triton.language as tl

from fa_core.kernels.primitives import (
    LENGTHS,
    LOG2E,
    accumulator,
    dot,
    key_range,
    load_bias,
    load_keys,
    load_pointers,
    load_scale,
    load_slope,
    modify,
    place,
    span,
    store_tile,
    tile_offsets,
    visible,
)


@triton.jit
def _attend(
    acc,  # [BLOCK_M, BLOCK_DV], unnormalised output
    row_max,  # [BLOCK_M]
    row_sum,  # [BLOCK_M]
    q,  # [BLOCK_M, BLOCK_D]
    keys_view,
    values_view,
    pages,  # (the sequence's block table or None, page strides of K and V)
    begin,
    end,  # keys begin..end, begin a multiple of BLOCK_N
    band,  # (positions [BLOCK_M], left, right)
    score,  # (scale, slope, bias pointer, its strides, queries [BLOCK_M])
    factor_log2,
    n_q,
    n_k,
    widths,  # (head_dim, head_dim_v)
    MASKED: tl.constexpr,
    MODIFIED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Fold the key tiles from begin to end into the running state."""
    for start in tl.range(begin, end, BLOCK_N, num_stages=1 if MASKED else None):
        k = load_keys(
            keys_view,
            pages[0],
            pages[1],
            start,
            n_k,
            widths[0],
            PAGE,
            BLOCK_N,
            BLOCK_D,
            MASKED,
            CHECK_D,
            EXACT,
        )
        keys = (start + tl.arange(0, BLOCK_N))[None, :]
        positions = band[0][:, None]
        # [BLOCK_M, BLOCK_N]
        scores = dot(q, tl.trans(k), accumulator(BLOCK_M, BLOCK_N, EXACT))
        if MODIFIED:
            bias = (
                0.0 if score[2] is None else load_bias(score[2], score[3], score[4][:, None], keys, n_q, n_k)
            )
            scores, _steepness = modify(scores, score, tl.abs(positions - keys), bias, SOFTCAP)
        if MASKED:
            seen = visible(positions, keys, n_k, band[1], band[2], LEFT, RIGHT)
            scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        # A row that has seen no key yet keeps -inf; the pivot is for the exponents alone.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        # Subtracted before scaling: a fused `scores * scale - max` would leave the rounding of a huge
        # maximum in the exponent, and overflow.
        probs = tl.math.exp2((scores - pivot[:, None]) * factor_log2)
        rescale = tl.math.exp2((row_max - pivot) * factor_log2)
        row_sum = row_sum * rescale + tl.sum(probs, 1)
        acc = acc * rescale[:, None]
        v = load_keys(
            values_view, pages[0], pages[2], start, n_k, widths[1], PAGE, BLOCK_N, BLOCK_DV, MASKED, CHECK_DV, EXACT
        )  # fmt: skip
        acc = dot(probs.to(v.dtype), v, acc)
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def _finish(acc, row_max, row_sum, Sinks, heads_of_rows, factor, factor_log2):
    """Normalise: (out, row_max, log_sum) of rows whose state is complete but for the sink."""
    if Sinks is not None:
        # In the units of the scores, of which `factor` makes natural ones.
        sink = tl.load(Sinks + heads_of_rows).to(acc.dtype) / factor
        new_max = tl.maximum(row_max, sink)
        rescale = tl.math.exp2((row_max - new_max) * factor_log2)
        row_sum = row_sum * rescale + tl.math.exp2((sink - new_max) * factor_log2)
        acc = acc * rescale[:, None]
        row_max = new_max
    seen = row_sum != 0.0
    row_sum = tl.where(seen, row_sum, 1.0)
    acc = acc / row_sum[:, None]
    return acc, tl.where(seen, row_max, float("-inf")), tl.log(row_sum)


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    Q,
    K,
    V,
    Out,
    RowMax,  # [batch, heads, n_q] contiguous, fp32 (fp64 if EXACT): see below
    LogSum,  # the same
    Bias,  # [batch, heads, n_q, n_k] by its strides, or None
    Slopes,  # [heads] fp32 (stride_slopes 0) or [batch, heads], or None
    Sinks,  # [heads], or None
    CuQ,
    CuK,  # cumulative lengths; with a Table the lengths themselves
    Table,
    Parts,  # (out, max, sum) of each split, [n_splits, batch, heads, n_q (, head_dim_v)], or None
    stride_q,
    stride_k,
    stride_v,
    stride_o,
    stride_bias,
    stride_slopes,
    stride_table,
    scale,  # > 0, as fp32 and what fp32 cuts off
    batch,
    heads,
    group,  # query heads per key head
    n_q,
    n_k,
    widths,  # (head_dim, head_dim_v)
    left,
    right,
    n_splits,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TOP_LEFT: tl.constexpr,
    MODIFIED: tl.constexpr,  # softcap, ALiBi or bias
    SOFTCAP: tl.constexpr,  # 0: none
    EVEN_N: tl.constexpr,  # n_k is a multiple of BLOCK_N
    PACK: tl.constexpr,  # query heads that share a tile: 1 or group
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """out = softmax(scores) v, and what the backward needs to find a row's probabilities again.

    That is RowMax, the largest score of a row (-inf where it sees no key), and LogSum, the natural logarithm
    of its sum of exp(score - maximum). Plain scores stay unscaled, and so does RowMax; modified ones are
    natural.

    Grid: (query tiles * batch * heads / PACK, n_splits).
    """
    rows_per_head = n_q
    sequence, tile_head, start_m, q_first, n_q = place(
        n_q * PACK, batch, heads // PACK, CuQ, BLOCK_M, RIGHT and not LEFT
    )
    if CuQ is not None and start_m >= n_q:
        return
    n_q = n_q // PACK
    if Table is None:
        k_first, n_k = span(CuK, sequence, n_k)
        pages = (None, 0, 0)
    else:
        k_first = 0
        n_k = tl.load(CuK + sequence)
        pages = (Table + sequence * stride_table, stride_k[0], stride_v[0])
    # A packed batch is one batch to the strides: its sequences follow each other along the rows.
    b = sequence if CuQ is None else sequence * 0
    b_k = b if Table is None else b * 0
    if PACK == 1:
        queries = start_m + tl.arange(0, BLOCK_M)
        h = tile_head
        h_k = tile_head // group
        q_base = Q + b * stride_q[0] + h * stride_q[1] + (q_first + start_m) * stride_q[2]
        q_pointers = q_base + tile_offsets(stride_q, BLOCK_M, BLOCK_D, WIDE)
    else:
        rows = start_m + tl.arange(0, BLOCK_M)
        queries = rows // PACK
        h_k = tile_head
        h = h_k * PACK + rows % PACK
        q_rows = Q + b * stride_q[0] + h * stride_q[1] + queries.to(tl.int64) * stride_q[2]
        q_pointers = q_rows[:, None] + tl.arange(0, BLOCK_D)[None, :] * stride_q[3]
    q = load_pointers(q_pointers, queries, n_q, widths[0], BLOCK_D, True, CHECK_D, EXACT)
    k_base = K + b_k * stride_k[0] + h_k * stride_k[1] + k_first * stride_k[2]
    v_base = V + b_k * stride_v[0] + h_k * stride_v[1] + k_first * stride_v[2]
    keys_view = (k_base, tile_offsets(stride_k, BLOCK_N, BLOCK_D, WIDE), stride_k[2])
    values_view = (v_base, tile_offsets(stride_v, BLOCK_N, BLOCK_DV, WIDE), stride_v[2])

    shift = 0 if TOP_LEFT else n_k - n_q
    begin, edge, full, end = key_range(
        start_m // PACK, (start_m + BLOCK_M - 1) // PACK, n_k, shift, left, right, LEFT, RIGHT, BLOCK_N
    )
    if Parts is not None:
        share = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), n_splits) * BLOCK_N
        begin = begin + tl.program_id(1) * share
        end = tl.minimum(end, begin + share)
        edge = tl.minimum(tl.maximum(edge, begin), tl.maximum(end, begin))
        full = tl.minimum(tl.maximum(full, edge), tl.maximum(end, edge))

    scale = load_scale(scale, EXACT)
    factor = 1.0 if MODIFIED else scale
    factor_log2 = factor * LOG2E
    if Slopes is None:
        slope = 0.0
    elif PACK == 1:
        slope = load_slope(Slopes, stride_slopes, sequence, h, EXACT)
    else:
        slope = load_slope(Slopes, stride_slopes, sequence, h, EXACT)[:, None]
    if Bias is None:
        bias_base = 0
    elif PACK == 1:
        bias_base = Bias + b * stride_bias[0] + h * stride_bias[1]
    else:
        bias_base = (Bias + b * stride_bias[0] + h * stride_bias[1])[:, None]
    score = (
        scale,
        None if Slopes is None else slope,
        None if Bias is None else bias_base,
        stride_bias,
        queries,
    )
    band = (queries + shift, left, right)
    acc = accumulator(BLOCK_M, BLOCK_DV, EXACT)
    row_sum = tl.zeros([BLOCK_M], acc.dtype)
    row_max = row_sum + float("-inf")
    if LEFT:
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, keys_view, values_view, pages, begin, edge, band, score, factor_log2, n_q, n_k, widths,
            True, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, PAGE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, keys_view, values_view, pages, edge, full, band, score, factor_log2, n_q, n_k, widths,
        False, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, PAGE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
    )  # fmt: skip
    if RIGHT or not EVEN_N:
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, keys_view, values_view, pages, full, end, band, score, factor_log2, n_q, n_k, widths,
            True, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, PAGE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip

    # Where each row stands in the statistics.
    index = (b * heads + h) * rows_per_head + q_first + queries
    inside = queries < n_q
    if Parts is None:
        out, row_max, log_sum = _finish(acc, row_max, row_sum, Sinks, h, factor, factor_log2)
        if PACK == 1:
            o_base = Out + b * stride_o[0] + h * stride_o[1] + (q_first + start_m) * stride_o[2]
            o_pointers = o_base + tile_offsets(stride_o, BLOCK_M, BLOCK_DV, WIDE)
        else:
            o_rows = Out + b * stride_o[0] + h * stride_o[1] + queries.to(tl.int64) * stride_o[2]
            o_pointers = o_rows[:, None] + tl.arange(0, BLOCK_DV)[None, :] * stride_o[3]
        columns = (tl.arange(0, BLOCK_DV) < widths[1])[None, :]
        tl.store(o_pointers, out.to(Out.dtype.element_ty), mask=inside[:, None] & columns)
        tl.store(RowMax + index, row_max, mask=inside)
        tl.store(LogSum + index, log_sum, mask=inside)
    else:
        index += tl.program_id(1).to(tl.int64) * batch * heads * rows_per_head
        cols = tl.arange(0, BLOCK_DV)[None, :]
        part = Parts[0] + index[:, None] * widths[1] + cols
        tl.store(part, acc, mask=inside[:, None] & (cols < widths[1]))
        tl.store(Parts[1] + index, row_max, mask=inside)
        tl.store(Parts[2] + index, row_sum, mask=inside)


@triton.jit(do_not_specialize=LENGTHS)
def combine_kernel(
    Out,
    RowMax,
    LogSum,
    Sinks,
    Parts,
    stride_o,
    scale,
    batch,
    heads,
    n_q,
    head_dim_v,
    n_splits,
    MODIFIED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Join the splits' parts in their order. Grid: (query tiles * batch * heads,)."""
    b, h, start, _, _ = place(n_q, batch, heads, None, BLOCK_M, False)
    queries = start + tl.arange(0, BLOCK_M)
    inside = queries < n_q
    cols = tl.arange(0, BLOCK_DV)[None, :]
    scale = load_scale(scale, EXACT)
    factor = 1.0 if MODIFIED else scale
    factor_log2 = factor * LOG2E
    acc = accumulator(BLOCK_M, BLOCK_DV, EXACT)
    row_sum = tl.zeros([BLOCK_M], acc.dtype)
    row_max = row_sum + float("-inf")
    index = (b * heads + h) * n_q + queries
    for split in range(n_splits):
        at = tl.cast(split, tl.int64) * batch * heads * n_q + index
        part_max = tl.load(Parts[1] + at, mask=inside, other=float("-inf"))
        part_sum = tl.load(Parts[2] + at, mask=inside, other=0.0)
        part = tl.load(
            Parts[0] + at[:, None] * head_dim_v + cols, mask=inside[:, None] & (cols < head_dim_v), other=0.0
        )
        new_max = tl.maximum(row_max, part_max)
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = tl.math.exp2((row_max - pivot) * factor_log2)
        weight = tl.math.exp2((part_max - pivot) * factor_log2)
        row_sum = row_sum * rescale + part_sum * weight
        acc = acc * rescale[:, None] + part * weight[:, None]
        row_max = new_max
    out, row_max, log_sum = _finish(acc, row_max, row_sum, Sinks, h, factor, factor_log2)
    view = (
        Out + b * stride_o[0] + h * stride_o[1],
        tile_offsets(stride_o, BLOCK_M, BLOCK_DV, WIDE),
        stride_o[2],
    )
    store_tile(view, start, n_q, head_dim_v, out, BLOCK_M, BLOCK_DV)
    tl.store(RowMax + index, row_max, mask=inside)
    tl.store(LogSum + index, log_sum, mask=inside)
