"""The backward by rows, without atomics: delta, then dQ of one query tile, and dBias of one score tile.

Each kernel recomputes the probabilities of a tile from what the forward left of each row (Dao 2023,
algorithm 2, split so that every gradient has one owner and a fixed order of summation; dK and dV are
next door, in `dkdv`).
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
    load_row,
    load_scale,
    load_slope,
    load_tile,
    modify,
    place,
    probabilities,
    span,
    store_tile,
    tile_offsets,
    visible,
)


@triton.jit(do_not_specialize=LENGTHS)
def delta_kernel(
    Out,
    DOut,
    DLse,  # [batch, heads, n_q] contiguous, or None
    Delta,  # [batch, heads, n_q] contiguous, fp32 (fp64 if EXACT)
    stride_o,
    stride_do,
    heads,
    n_q,
    head_dim_v,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """delta = rowsum(dO * O) - dLSE, the term that the softmax's derivative sums over all keys."""
    b, h, start, _, _ = place(n_q, 1, heads, None, BLOCK_M, False)
    rows = start + tl.arange(0, BLOCK_M)
    out_view = (
        Out + b * stride_o[0] + h * stride_o[1],
        tile_offsets(stride_o, BLOCK_M, BLOCK_DV, WIDE),
        stride_o[2],
    )
    dout_view = (DOut + b * stride_do[0] + h * stride_do[1], tile_offsets(stride_do, BLOCK_M, BLOCK_DV, WIDE), stride_do[2])  # fmt: skip
    out = load_tile(out_view, start, n_q, head_dim_v, BLOCK_M, BLOCK_DV, True, True, EXACT)
    dout = load_tile(dout_view, start, n_q, head_dim_v, BLOCK_M, BLOCK_DV, True, True, EXACT)
    wide: tl.constexpr = Delta.dtype.element_ty
    delta = tl.sum(out.to(wide) * dout.to(wide), 1)
    index = (b * heads + h) * n_q + rows
    if DLse is not None:
        delta -= tl.load(DLse + index, mask=rows < n_q, other=0.0)
    tl.store(Delta + index, delta, mask=rows < n_q)


@triton.jit
def _dscores(
    q,  # [BLOCK_M, BLOCK_D]
    k,  # [BLOCK_N, BLOCK_D]
    v,  # [BLOCK_N, BLOCK_DV]
    dout,  # [BLOCK_M, BLOCK_DV]
    row,  # [BLOCK_M] each: (row_max, log_sum, delta)
    keys,  # [1, BLOCK_N]
    band,  # (positions [BLOCK_M], left, right)
    score,  # (scale, slope, bias pointer, its strides, queries [BLOCK_M])
    factor_log2,
    n_q,
    n_k,
    MASKED: tl.constexpr,
    MODIFIED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Of a tile, [BLOCK_M, BLOCK_N] each: (dscores of the modified scores, softcap's derivative, probs · dprobs)."""
    positions = band[0][:, None]
    scores = dot(q, tl.trans(k), accumulator(BLOCK_M, BLOCK_N, EXACT))
    steepness = 1.0
    if MODIFIED:
        bias = 0.0 if score[2] is None else load_bias(score[2], score[3], score[4][:, None], keys, n_q, n_k)
        scores, steepness = modify(scores, score, tl.abs(positions - keys), bias, SOFTCAP)
    probs = probabilities(scores, row[0][:, None], row[1][:, None], factor_log2)
    if MASKED:
        # A key outside the tensor scores 0, and exp2(0 - row_max) may be inf: inf * 0 would reach every row.
        probs = tl.where(visible(positions, keys, n_k, band[1], band[2], LEFT, RIGHT), probs, 0.0)
    dprobs = dot(dout, tl.trans(v), accumulator(BLOCK_M, BLOCK_N, EXACT))
    return probs * (dprobs - row[2][:, None]), steepness, probs * dprobs


@triton.jit
def _gather_dq(
    dq,  # [BLOCK_M, BLOCK_D]
    row_dot,  # [BLOCK_M], the sum of probs · dprobs
    q,
    dout,
    row,
    keys_view,
    values_view,
    begin,
    end,
    band,
    score,
    factor_log2,
    n_q,
    n_k,
    widths,
    DOT: tl.constexpr,
    MASKED: tl.constexpr,
    MODIFIED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Add the key tiles from begin to end to the query tile's gradient, and if DOT to its row_dot."""
    for start in tl.range(begin, end, BLOCK_N, num_stages=1 if MASKED else None):
        k = load_tile(keys_view, start, n_k, widths[0], BLOCK_N, BLOCK_D, MASKED, CHECK_D, EXACT)
        v = load_tile(values_view, start, n_k, widths[1], BLOCK_N, BLOCK_DV, MASKED, CHECK_DV, EXACT)
        keys = (start + tl.arange(0, BLOCK_N))[None, :]
        dscores, steepness, products = _dscores(
            q, k, v, dout, row, keys, band, score, factor_log2, n_q, n_k,
            MASKED, MODIFIED, SOFTCAP, LEFT, RIGHT, BLOCK_M, BLOCK_N, EXACT,
        )  # fmt: skip
        if MODIFIED and SOFTCAP > 0:
            dscores *= steepness
        if DOT:
            row_dot += tl.sum(products, 1)
        dq = dot(dscores.to(k.dtype), k, dq)
    return dq, row_dot


@triton.jit(do_not_specialize=LENGTHS)
def dq_kernel(
    Q,
    K,
    V,
    DOut,
    RowMax,
    LogSum,
    Delta,
    DQ,
    RowDot,  # [batch, heads, n_q] contiguous, or None: the delta of unrounded outputs, which dSinks needs
    Bias,
    Slopes,
    CuQ,
    CuK,
    stride_q,
    stride_k,
    stride_v,
    stride_do,
    stride_dq,
    stride_bias,
    stride_slopes,
    scale,
    batch,
    heads,
    group,
    n_q,
    n_k,
    widths,
    left,
    right,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TOP_LEFT: tl.constexpr,
    MODIFIED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    EVEN_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """dQ of one query tile. Grid: (query tiles * batch * heads,)."""
    rows_per_head = n_q
    sequence, h, start_m, q_first, n_q = place(n_q, batch, heads, CuQ, BLOCK_M, RIGHT and not LEFT)
    if CuQ is not None and start_m >= n_q:
        return
    k_first, n_k = span(CuK, sequence, n_k)
    b = sequence if CuQ is None else sequence * 0
    queries = start_m + tl.arange(0, BLOCK_M)
    q_view = (
        Q + b * stride_q[0] + h * stride_q[1] + q_first * stride_q[2],
        tile_offsets(stride_q, BLOCK_M, BLOCK_D, WIDE),
        stride_q[2],
    )
    dout_view = (
        DOut + b * stride_do[0] + h * stride_do[1] + q_first * stride_do[2],
        tile_offsets(stride_do, BLOCK_M, BLOCK_DV, WIDE),
        stride_do[2],
    )
    q = load_tile(q_view, start_m, n_q, widths[0], BLOCK_M, BLOCK_D, True, CHECK_D, EXACT)
    dout = load_tile(dout_view, start_m, n_q, widths[1], BLOCK_M, BLOCK_DV, True, CHECK_DV, EXACT)
    index = (b * heads + h) * rows_per_head + q_first
    row_max, log_sum = load_row(RowMax + index, LogSum + index, start_m, n_q, BLOCK_M)
    row = (row_max, log_sum, tl.load(Delta + index + queries, mask=queries < n_q, other=0.0))
    keys_view = (
        K + b * stride_k[0] + (h // group) * stride_k[1] + k_first * stride_k[2],
        tile_offsets(stride_k, BLOCK_N, BLOCK_D, WIDE),
        stride_k[2],
    )
    values_view = (
        V + b * stride_v[0] + (h // group) * stride_v[1] + k_first * stride_v[2],
        tile_offsets(stride_v, BLOCK_N, BLOCK_DV, WIDE),
        stride_v[2],
    )

    shift = 0 if TOP_LEFT else n_k - n_q
    begin, edge, full, end = key_range(
        start_m, start_m + BLOCK_M - 1, n_k, shift, left, right, LEFT, RIGHT, BLOCK_N
    )
    scale = load_scale(scale, EXACT)
    factor_log2 = LOG2E if MODIFIED else scale * LOG2E
    slope = 0.0 if Slopes is None else load_slope(Slopes, stride_slopes, sequence, h, EXACT)
    bias_base = 0 if Bias is None else Bias + b * stride_bias[0] + h * stride_bias[1]
    score = (
        scale,
        None if Slopes is None else slope,
        None if Bias is None else bias_base,
        stride_bias,
        queries,
    )
    band = (queries + shift, left, right)
    dq = accumulator(BLOCK_M, BLOCK_D, EXACT)
    row_dot = tl.zeros([BLOCK_M], dq.dtype)
    if LEFT:
        dq, row_dot = _gather_dq(
            dq, row_dot, q, dout, row, keys_view, values_view, begin, edge, band, score, factor_log2, n_q, n_k, widths,
            RowDot is not None, True, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip
    dq, row_dot = _gather_dq(
        dq, row_dot, q, dout, row, keys_view, values_view, edge, full, band, score, factor_log2, n_q, n_k, widths,
        RowDot is not None, False, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
    )  # fmt: skip
    if RIGHT or not EVEN_N:
        dq, row_dot = _gather_dq(
            dq, row_dot, q, dout, row, keys_view, values_view, full, end, band, score, factor_log2, n_q, n_k, widths,
            RowDot is not None, True, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip
    if RowDot is not None:
        tl.store(RowDot + index + queries, row_dot, mask=queries < n_q)
    dq_view = (
        DQ + b * stride_dq[0] + h * stride_dq[1] + q_first * stride_dq[2],
        tile_offsets(stride_dq, BLOCK_M, BLOCK_D, WIDE),
        stride_dq[2],
    )
    store_tile(dq_view, start_m, n_q, widths[0], dq * scale, BLOCK_M, BLOCK_D)


@triton.jit(do_not_specialize=LENGTHS)
def dbias_kernel(
    Q,
    K,
    V,
    DOut,
    RowMax,
    LogSum,
    Delta,
    DBias,
    Bias,
    Slopes,
    stride_q,
    stride_k,
    stride_v,
    stride_do,
    stride_dbias,
    stride_bias,
    stride_slopes,
    scale,
    batch,  # over which each bias is summed: 1, or the batch where the bias has none
    heads_shared,  # likewise of the heads
    heads,
    group,
    n_q,
    n_k,
    widths,
    left,
    right,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TOP_LEFT: tl.constexpr,
    MODIFIED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """One tile of the bias's gradient, summed over the (batch, head) pairs that share it, in their order.

    Grid: (query tiles * key tiles * biases,); biases are numbered batch by batch, head by head.
    """
    n_tiles = tl.cdiv(n_k, BLOCK_N)
    start_n = tl.program_id(0) % n_tiles * BLOCK_N
    heads_apart = heads // heads_shared
    start_m = tl.program_id(0) // n_tiles % tl.cdiv(n_q, BLOCK_M) * BLOCK_M
    shared = (tl.program_id(0) // n_tiles // tl.cdiv(n_q, BLOCK_M)).to(tl.int64)
    b_first = shared // heads_apart
    h_first = shared % heads_apart
    queries = start_m + tl.arange(0, BLOCK_M)
    keys = (start_n + tl.arange(0, BLOCK_N))[None, :]
    shift = 0 if TOP_LEFT else n_k - n_q
    band = (queries + shift, left, right)
    scale = load_scale(scale, EXACT)
    total = accumulator(BLOCK_M, BLOCK_N, EXACT)
    dbias_base = DBias + b_first * stride_dbias[0] + h_first * stride_dbias[1]

    begin, _edge, _full, end = key_range(
        start_m, start_m + BLOCK_M - 1, n_k, shift, left, right, LEFT, RIGHT, BLOCK_N
    )
    members = tl.where((start_n + BLOCK_N > begin) & (start_n < end), batch * heads_shared, 0)
    q_offsets = tile_offsets(stride_q, BLOCK_M, BLOCK_D, WIDE)
    k_offsets = tile_offsets(stride_k, BLOCK_N, BLOCK_D, WIDE)
    v_offsets = tile_offsets(stride_v, BLOCK_N, BLOCK_DV, WIDE)
    dout_offsets = tile_offsets(stride_do, BLOCK_M, BLOCK_DV, WIDE)
    for member in range(members):
        b = b_first + member // heads_shared
        h = h_first + member % heads_shared
        h_k = h // group
        q_view = (Q + b * stride_q[0] + h * stride_q[1], q_offsets, stride_q[2])
        k_view = (K + b * stride_k[0] + h_k * stride_k[1], k_offsets, stride_k[2])
        v_view = (V + b * stride_v[0] + h_k * stride_v[1], v_offsets, stride_v[2])
        dout_view = (DOut + b * stride_do[0] + h * stride_do[1], dout_offsets, stride_do[2])
        index = (b * heads + h) * n_q
        row_max, log_sum = load_row(RowMax + index, LogSum + index, start_m, n_q, BLOCK_M)
        row = (row_max, log_sum, tl.load(Delta + index + queries, mask=queries < n_q, other=0.0))
        slope = 0.0 if Slopes is None else load_slope(Slopes, stride_slopes, b, h, EXACT)
        score = (
            scale,
            None if Slopes is None else slope,
            Bias + b * stride_bias[0] + h * stride_bias[1],
            stride_bias,
            queries,
        )
        dscores, _steepness, _products = _dscores(
            load_tile(q_view, start_m, n_q, widths[0], BLOCK_M, BLOCK_D, True, CHECK_D, EXACT),
            load_tile(k_view, start_n, n_k, widths[0], BLOCK_N, BLOCK_D, True, CHECK_D, EXACT),
            load_tile(v_view, start_n, n_k, widths[1], BLOCK_N, BLOCK_DV, True, CHECK_DV, EXACT),
            load_tile(dout_view, start_m, n_q, widths[1], BLOCK_M, BLOCK_DV, True, CHECK_DV, EXACT),
            row, keys, band, score, LOG2E, n_q, n_k,
            True, MODIFIED, SOFTCAP, LEFT, RIGHT, BLOCK_M, BLOCK_N, EXACT,
        )  # fmt: skip
        total += dscores
    inside = (queries < n_q)[:, None] & (keys < n_k)
    pointers = (
        dbias_base + queries.to(tl.int64)[:, None] * stride_dbias[2] + keys.to(tl.int64) * stride_dbias[3]
    )
    tl.store(pointers, total.to(DBias.dtype.element_ty), mask=inside)
