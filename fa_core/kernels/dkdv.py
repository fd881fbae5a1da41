"""The backward for keys and values: dK and dV of one key tile, without atomics.

It works on transposed scores throughout: no result of a dot is ever transposed before the next one,
which Triton 3.4 to 3.7.0 can miscompile on Hopper (see CONTRIBUTING.md).
"""

import triton
import triton.language as tl

from fa_core.kernels.primitives import (
    LENGTHS,
    LOG2E,
    accumulator,
    dot,
    load_bias,
    load_row,
    load_scale,
    load_slope,
    load_tile,
    modify,
    place,
    probabilities,
    query_range,
    span,
    store_tile,
    tile_offsets,
)


@triton.jit
def _gather_dkdv(
    dk,  # [BLOCK_N, BLOCK_D]
    dv,  # [BLOCK_N, BLOCK_DV]
    k,  # [BLOCK_N, BLOCK_D]
    v,  # [BLOCK_N, BLOCK_DV]
    queries_view,
    dout_view,
    rows_of,  # pointers to the head's (row_max, log_sum, delta)
    begin,
    end,  # queries begin..end, begin a multiple of BLOCK_M
    band,  # (queries on whose diagonal the keys stand [BLOCK_N], left, right)
    score,  # (scale, slope, bias pointer, its strides, keys [BLOCK_N])
    factor_log2,
    n_q,
    n_k,
    widths,
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
    """Add the query tiles from begin to end to the key tile's gradients."""
    for start in tl.range(begin, end, BLOCK_M, num_stages=1 if MASKED else None):
        q = load_tile(queries_view, start, n_q, widths[0], BLOCK_M, BLOCK_D, MASKED, CHECK_D, EXACT)
        row_max, log_sum = load_row(rows_of[0], rows_of[1], start, n_q, BLOCK_M)
        queries = (start + tl.arange(0, BLOCK_M))[None, :]
        diagonal = band[0][:, None]
        # [BLOCK_N, BLOCK_M]
        scores_t = dot(k, tl.trans(q), accumulator(BLOCK_N, BLOCK_M, EXACT))
        if MODIFIED:
            bias = (
                0.0
                if score[2] is None
                else load_bias(score[2], score[3], queries, score[4][:, None], n_q, n_k)
            )
            scores_t, steepness = modify(scores_t, score, tl.abs(queries - diagonal), bias, SOFTCAP)
        probs_t = probabilities(scores_t, row_max[None, :], log_sum[None, :], factor_log2)
        if MASKED and RIGHT:
            probs_t = tl.where(queries >= diagonal - band[2], probs_t, 0.0)
        if MASKED and LEFT:
            probs_t = tl.where(queries <= diagonal + band[1], probs_t, 0.0)
        dout = load_tile(dout_view, start, n_q, widths[1], BLOCK_M, BLOCK_DV, MASKED, CHECK_DV, EXACT)
        dv = dot(probs_t.to(dout.dtype), dout, dv)
        rows = start + tl.arange(0, BLOCK_M)
        delta = tl.load(rows_of[2] + rows, mask=rows < n_q, other=0.0)
        dprobs_t = dot(v, tl.trans(dout), accumulator(BLOCK_N, BLOCK_M, EXACT))
        dscores_t = probs_t * (dprobs_t - delta[None, :])
        if MODIFIED and SOFTCAP > 0:
            dscores_t *= steepness
        dk = dot(dscores_t.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=LENGTHS)
def dkdv_kernel(
    Q,
    K,
    V,
    DOut,
    RowMax,
    LogSum,
    Delta,
    DK,
    DV,
    Bias,
    Slopes,
    CuQ,
    CuK,
    stride_q,
    stride_k,
    stride_v,
    stride_do,
    stride_dk,
    stride_dv,
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
    EVEN_M: tl.constexpr,  # n_q is a multiple of BLOCK_M
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """dK and dV of one key tile, summed over the query heads of its group in a fixed order.

    Grid: (key tiles * batch * kv_heads,). Keys outside the tensor give garbage in rows of their own,
    which are never stored; queries outside have a row_max of +inf and so no weight.
    """
    rows_per_head = n_q
    sequence, h_k, start_n, k_first, n_k = place(n_k, batch, heads // group, CuK, BLOCK_N, False)
    if CuK is not None and start_n >= n_k:
        return
    q_first, n_q = span(CuQ, sequence, n_q)
    b = sequence if CuK is None else sequence * 0
    k_view = (
        K + b * stride_k[0] + h_k * stride_k[1] + k_first * stride_k[2],
        tile_offsets(stride_k, BLOCK_N, BLOCK_D, WIDE),
        stride_k[2],
    )
    v_view = (
        V + b * stride_v[0] + h_k * stride_v[1] + k_first * stride_v[2],
        tile_offsets(stride_v, BLOCK_N, BLOCK_DV, WIDE),
        stride_v[2],
    )
    k = load_tile(k_view, start_n, n_k, widths[0], BLOCK_N, BLOCK_D, True, CHECK_D, EXACT)
    v = load_tile(v_view, start_n, n_k, widths[1], BLOCK_N, BLOCK_DV, True, CHECK_DV, EXACT)
    q_offsets = tile_offsets(stride_q, BLOCK_M, BLOCK_D, WIDE)
    dout_offsets = tile_offsets(stride_do, BLOCK_M, BLOCK_DV, WIDE)

    shift = 0 if TOP_LEFT else n_k - n_q
    begin, edge, full, end = query_range(
        start_n, start_n + BLOCK_N - 1, n_q, shift, left, right, LEFT, RIGHT, BLOCK_M
    )
    keys = start_n + tl.arange(0, BLOCK_N)
    band = (keys - shift, left, right)
    scale = load_scale(scale, EXACT)
    factor_log2 = LOG2E if MODIFIED else scale * LOG2E
    dk = accumulator(BLOCK_N, BLOCK_D, EXACT)
    dv = accumulator(BLOCK_N, BLOCK_DV, EXACT)
    for member in range(group):
        h = h_k * group + member
        index = (b * heads + h) * rows_per_head + q_first
        q_view = (Q + b * stride_q[0] + h * stride_q[1] + q_first * stride_q[2], q_offsets, stride_q[2])
        dout_view = (DOut + b * stride_do[0] + h * stride_do[1] + q_first * stride_do[2], dout_offsets, stride_do[2])  # fmt: skip
        rows_of = (RowMax + index, LogSum + index, Delta + index)
        bias_base = 0 if Bias is None else Bias + b * stride_bias[0] + h * stride_bias[1]
        slope = 0.0 if Slopes is None else load_slope(Slopes, stride_slopes, sequence, h, EXACT)
        score = (
            scale,
            None if Slopes is None else slope,
            None if Bias is None else bias_base,
            stride_bias,
            keys,
        )
        if RIGHT:
            dk, dv = _gather_dkdv(
                dk, dv, k, v, q_view, dout_view, rows_of, begin, edge, band, score, factor_log2, n_q, n_k, widths,
                True, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
            )  # fmt: skip
        dk, dv = _gather_dkdv(
            dk, dv, k, v, q_view, dout_view, rows_of, edge, full, band, score, factor_log2, n_q, n_k, widths,
            False, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip
        if LEFT or not EVEN_M:
            dk, dv = _gather_dkdv(
                dk, dv, k, v, q_view, dout_view, rows_of, full, end, band, score, factor_log2, n_q, n_k, widths,
                True, MODIFIED, SOFTCAP, LEFT, RIGHT, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
            )  # fmt: skip

    dk_view = (
        DK + b * stride_dk[0] + h_k * stride_dk[1] + k_first * stride_dk[2],
        tile_offsets(stride_dk, BLOCK_N, BLOCK_D, WIDE),
        stride_dk[2],
    )
    dv_view = (
        DV + b * stride_dv[0] + h_k * stride_dv[1] + k_first * stride_dv[2],
        tile_offsets(stride_dv, BLOCK_N, BLOCK_DV, WIDE),
        stride_dv[2],
    )
    store_tile(dk_view, start_n, n_k, widths[0], dk * scale, BLOCK_N, BLOCK_D)
    store_tile(dv_view, start_n, n_k, widths[1], dv, BLOCK_N, BLOCK_DV)
