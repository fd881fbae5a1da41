"""The fused backward, without atomics: delta, then one kernel for dK and dV, one for dQ.

Each recomputes the probabilities of a tile from the stored log-sum-exp (Dao 2023, algorithm 2, split
in two so that every gradient has one owner and a fixed order of summation). No result of a dot is
ever transposed before the next dot: Triton 3.4 to 3.7.0 can miscompile that on Hopper (see
CONTRIBUTING.md), so the dK/dV kernel works on transposed scores throughout.
"""

import triton
import triton.language as tl

from fa_core.kernels.primitives import (
    LENGTHS,
    LOG2E,
    accumulator,
    dot,
    load_raw_lse,
    load_scale,
    load_tile,
    store_tile,
    tile_offsets,
)


@triton.jit(do_not_specialize=["n_q"])
def delta_kernel(
    Out,
    DOut,
    DLse,  # [batch, heads, n_q] fp32 contiguous
    Delta,  # [batch, heads, n_q] contiguous, fp32 (fp64 if EXACT)
    heads,
    n_q,
    head_dim_v,
    stride_ob,
    stride_oh,
    stride_on,
    stride_od,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_gd,
    HAS_DLSE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """delta = rowsum(dO * O) - dLSE, the term that the softmax's derivative sums over all keys."""
    n_tiles = tl.cdiv(n_q, BLOCK_M)
    tile = tl.program_id(0) % n_tiles
    head_index = (tl.program_id(0) // n_tiles).to(tl.int64)
    b = head_index // heads
    h = head_index % heads
    start = tile * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    o_offsets = tile_offsets(stride_on, stride_od, BLOCK_M, BLOCK_DV, WIDE)
    g_offsets = tile_offsets(stride_gn, stride_gd, BLOCK_M, BLOCK_DV, WIDE)
    out = load_tile(
        Out + b * stride_ob + h * stride_oh, o_offsets, start, stride_on, n_q, head_dim_v, BLOCK_M, BLOCK_DV, True, True, EXACT
    )  # fmt: skip
    dout = load_tile(
        DOut + b * stride_gb + h * stride_gh, g_offsets, start, stride_gn, n_q, head_dim_v, BLOCK_M, BLOCK_DV, True, True, EXACT
    )  # fmt: skip
    wide: tl.constexpr = Delta.dtype.element_ty
    delta = tl.sum(out.to(wide) * dout.to(wide), 1)
    if HAS_DLSE:
        delta -= tl.load(DLse + head_index * n_q + rows, mask=rows < n_q, other=0.0)
    tl.store(Delta + head_index * n_q + rows, delta, mask=rows < n_q)


@triton.jit
def _gather_dkdv(
    dk,  # [BLOCK_N, BLOCK_D]
    dv,  # [BLOCK_N, BLOCK_DV]
    k,  # [BLOCK_N, BLOCK_D]
    v,  # [BLOCK_N, BLOCK_DV]
    q_base,
    g_base,
    raw_lse_base,
    delta_base,
    q_offsets,
    g_offsets,
    stride_qn,
    stride_gn,
    begin,
    end,  # queries begin..end, begin a multiple of BLOCK_M
    first_row,  # [BLOCK_N], the first query that sees each key
    scale_log2,
    n_q,
    head_dim,
    head_dim_v,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
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
        q = load_tile(
            q_base, q_offsets, start, stride_qn, n_q, head_dim, BLOCK_M, BLOCK_D, MASKED, CHECK_D, EXACT
        )
        raw_lse = load_raw_lse(raw_lse_base, start, n_q, BLOCK_M)
        # [BLOCK_N, BLOCK_M]
        scores_t = dot(k, tl.trans(q), accumulator(BLOCK_N, BLOCK_M, EXACT))
        probs_t = tl.math.exp2((scores_t - raw_lse[None, :]) * scale_log2)
        if MASKED and CAUSAL:
            rows = start + tl.arange(0, BLOCK_M)
            probs_t = tl.where(rows[None, :] >= first_row[:, None], probs_t, 0.0)
        dout = load_tile(
            g_base, g_offsets, start, stride_gn, n_q, head_dim_v, BLOCK_M, BLOCK_DV, MASKED, CHECK_DV, EXACT
        )
        dv = dot(probs_t.to(dout.dtype), dout, dv)
        rows = start + tl.arange(0, BLOCK_M)
        delta = tl.load(delta_base + rows, mask=rows < n_q, other=0.0)
        dprobs_t = dot(v, tl.trans(dout), accumulator(BLOCK_N, BLOCK_M, EXACT))
        dscores_t = probs_t * (dprobs_t - delta[None, :])
        dk = dot(dscores_t.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=LENGTHS)
def dkdv_kernel(
    Q,
    K,
    V,
    DOut,
    RawLse,
    Delta,
    DK,
    DV,
    scale,
    scale_rest,
    heads,
    kv_heads,
    group,
    n_q,
    n_k,
    head_dim,
    head_dim_v,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_vd,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_gd,
    stride_dkb,
    stride_dkh,
    stride_dkn,
    stride_dkd,
    stride_dvb,
    stride_dvh,
    stride_dvn,
    stride_dvd,
    CAUSAL: tl.constexpr,
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
    which are never stored; queries outside have lse = +inf and so no weight.
    """
    n_tiles = tl.cdiv(n_k, BLOCK_N)
    tile = tl.program_id(0) % n_tiles
    head_index = tl.program_id(0) // n_tiles
    b = (head_index // kv_heads).to(tl.int64)
    h_kv = (head_index % kv_heads).to(tl.int64)
    start_n = tile * BLOCK_N

    k_offsets = tile_offsets(stride_kn, stride_kd, BLOCK_N, BLOCK_D, WIDE)
    v_offsets = tile_offsets(stride_vn, stride_vd, BLOCK_N, BLOCK_DV, WIDE)
    q_offsets = tile_offsets(stride_qn, stride_qd, BLOCK_M, BLOCK_D, WIDE)
    g_offsets = tile_offsets(stride_gn, stride_gd, BLOCK_M, BLOCK_DV, WIDE)
    k = load_tile(
        K + b * stride_kb + h_kv * stride_kh, k_offsets, start_n, stride_kn, n_k, head_dim, BLOCK_N, BLOCK_D, True, CHECK_D, EXACT
    )  # fmt: skip
    v = load_tile(
        V + b * stride_vb + h_kv * stride_vh, v_offsets, start_n, stride_vn, n_k, head_dim_v, BLOCK_N, BLOCK_DV, True, CHECK_DV, EXACT
    )  # fmt: skip

    # Queries [begin, edge) see some keys of the tile, [edge, full) all of them, [full, n_q) are a ragged tail.
    offset = n_k - n_q
    begin = 0
    edge = 0
    full = n_q // BLOCK_M * BLOCK_M
    first_row = start_n + tl.arange(0, BLOCK_N) - offset
    if CAUSAL:
        begin = tl.maximum(0, start_n - offset) // BLOCK_M * BLOCK_M
        edge = tl.cdiv(tl.maximum(0, start_n + BLOCK_N - 1 - offset), BLOCK_M) * BLOCK_M
        edge = tl.maximum(begin, tl.minimum(edge, full))
        full = tl.maximum(edge, full)

    scale = load_scale(scale, scale_rest, EXACT)
    scale_log2 = scale * LOG2E
    dk = accumulator(BLOCK_N, BLOCK_D, EXACT)
    dv = accumulator(BLOCK_N, BLOCK_DV, EXACT)
    for member in range(group):
        h = h_kv * group + member
        row = (b * heads + h) * n_q
        q_base = Q + b * stride_qb + h * stride_qh
        g_base = DOut + b * stride_gb + h * stride_gh
        if CAUSAL:
            dk, dv = _gather_dkdv(
                dk, dv, k, v, q_base, g_base, RawLse + row, Delta + row, q_offsets, g_offsets, stride_qn, stride_gn,
                begin, edge, first_row, scale_log2, n_q, head_dim, head_dim_v,
                True, CAUSAL, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
            )  # fmt: skip
        dk, dv = _gather_dkdv(
            dk, dv, k, v, q_base, g_base, RawLse + row, Delta + row, q_offsets, g_offsets, stride_qn, stride_gn,
            edge, full, first_row, scale_log2, n_q, head_dim, head_dim_v,
            False, CAUSAL, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip
        if not EVEN_M:
            dk, dv = _gather_dkdv(
                dk, dv, k, v, q_base, g_base, RawLse + row, Delta + row, q_offsets, g_offsets, stride_qn, stride_gn,
                full, n_q, first_row, scale_log2, n_q, head_dim, head_dim_v,
                True, CAUSAL, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
            )  # fmt: skip

    dk_base = DK + b * stride_dkb + h_kv * stride_dkh
    dv_base = DV + b * stride_dvb + h_kv * stride_dvh
    dk_offsets = tile_offsets(stride_dkn, stride_dkd, BLOCK_N, BLOCK_D, WIDE)
    dv_offsets = tile_offsets(stride_dvn, stride_dvd, BLOCK_N, BLOCK_DV, WIDE)
    store_tile(dk_base, dk_offsets, start_n, stride_dkn, n_k, head_dim, dk * scale, BLOCK_N, BLOCK_D)
    store_tile(dv_base, dv_offsets, start_n, stride_dvn, n_k, head_dim_v, dv, BLOCK_N, BLOCK_DV)


@triton.jit
def _gather_dq(
    dq,  # [BLOCK_M, BLOCK_D]
    q,  # [BLOCK_M, BLOCK_D]
    dout,  # [BLOCK_M, BLOCK_DV]
    raw_lse,  # [BLOCK_M]
    delta,  # [BLOCK_M]
    k_base,
    v_base,
    k_offsets,
    v_offsets,
    stride_kn,
    stride_vn,
    begin,
    end,
    last_key,
    scale_log2,
    n_k,
    head_dim,
    head_dim_v,
    MASKED: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Add the key tiles from begin to end to the query tile's gradient."""
    for start in tl.range(begin, end, BLOCK_N, num_stages=1 if MASKED else None):
        k = load_tile(
            k_base, k_offsets, start, stride_kn, n_k, head_dim, BLOCK_N, BLOCK_D, MASKED, CHECK_D, EXACT
        )
        v = load_tile(
            v_base, v_offsets, start, stride_vn, n_k, head_dim_v, BLOCK_N, BLOCK_DV, MASKED, CHECK_DV, EXACT
        )
        scores = dot(q, tl.trans(k), accumulator(BLOCK_M, BLOCK_N, EXACT))
        probs = tl.math.exp2((scores - raw_lse[:, None]) * scale_log2)
        if MASKED:
            # A key outside the tensor scores 0, and exp2(0 - lse) may be inf: inf * 0 would reach every row.
            keys = start + tl.arange(0, BLOCK_N)
            probs = tl.where(keys[None, :] <= last_key[:, None], probs, 0.0)
        dprobs = dot(dout, tl.trans(v), accumulator(BLOCK_M, BLOCK_N, EXACT))
        dscores = probs * (dprobs - delta[:, None])
        dq = dot(dscores.to(k.dtype), k, dq)
    return dq


@triton.jit(do_not_specialize=LENGTHS)
def dq_kernel(
    Q,
    K,
    V,
    DOut,
    RawLse,
    Delta,
    DQ,
    scale,
    scale_rest,
    heads,
    group,
    n_q,
    n_k,
    head_dim,
    head_dim_v,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_vd,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_gd,
    stride_dqb,
    stride_dqh,
    stride_dqn,
    stride_dqd,
    CAUSAL: tl.constexpr,
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
    n_tiles = tl.cdiv(n_q, BLOCK_M)
    tile = tl.program_id(0) % n_tiles
    head_index = tl.program_id(0) // n_tiles
    if CAUSAL:
        tile = n_tiles - 1 - tile
    b = (head_index // heads).to(tl.int64)
    h = (head_index % heads).to(tl.int64)
    start_m = tile * BLOCK_M
    rows = start_m + tl.arange(0, BLOCK_M)

    q_offsets = tile_offsets(stride_qn, stride_qd, BLOCK_M, BLOCK_D, WIDE)
    g_offsets = tile_offsets(stride_gn, stride_gd, BLOCK_M, BLOCK_DV, WIDE)
    k_offsets = tile_offsets(stride_kn, stride_kd, BLOCK_N, BLOCK_D, WIDE)
    v_offsets = tile_offsets(stride_vn, stride_vd, BLOCK_N, BLOCK_DV, WIDE)
    q = load_tile(
        Q + b * stride_qb + h * stride_qh, q_offsets, start_m, stride_qn, n_q, head_dim, BLOCK_M, BLOCK_D, True, CHECK_D, EXACT
    )  # fmt: skip
    dout = load_tile(
        DOut + b * stride_gb + h * stride_gh, g_offsets, start_m, stride_gn, n_q, head_dim_v, BLOCK_M, BLOCK_DV, True, CHECK_DV, EXACT
    )  # fmt: skip
    row = head_index.to(tl.int64) * n_q
    raw_lse = load_raw_lse(RawLse + row, start_m, n_q, BLOCK_M)
    delta = tl.load(Delta + row + rows, mask=rows < n_q, other=0.0)
    k_base = K + b * stride_kb + (h // group) * stride_kh
    v_base = V + b * stride_vb + (h // group) * stride_vh

    end = n_k
    full = n_k // BLOCK_N * BLOCK_N
    last_key = tl.zeros([BLOCK_M], tl.int32) + (n_k - 1)
    if CAUSAL:
        offset = n_k - n_q
        end = tl.maximum(0, tl.minimum(n_k, start_m + BLOCK_M + offset))
        full = tl.minimum(full, tl.maximum(0, start_m + offset + 1) // BLOCK_N * BLOCK_N)
        last_key = tl.minimum(last_key, rows + offset)

    scale = load_scale(scale, scale_rest, EXACT)
    scale_log2 = scale * LOG2E
    dq = accumulator(BLOCK_M, BLOCK_D, EXACT)
    dq = _gather_dq(
        dq, q, dout, raw_lse, delta, k_base, v_base, k_offsets, v_offsets, stride_kn, stride_vn,
        0, full, last_key, scale_log2, n_k, head_dim, head_dim_v,
        False, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
    )  # fmt: skip
    if CAUSAL or not EVEN_N:
        dq = _gather_dq(
            dq, q, dout, raw_lse, delta, k_base, v_base, k_offsets, v_offsets, stride_kn, stride_vn,
            full, end, last_key, scale_log2, n_k, head_dim, head_dim_v,
            True, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip
    dq_base = DQ + b * stride_dqb + h * stride_dqh
    dq_offsets = tile_offsets(stride_dqn, stride_dqd, BLOCK_M, BLOCK_D, WIDE)
    store_tile(dq_base, dq_offsets, start_m, stride_dqn, n_q, head_dim, dq * scale, BLOCK_M, BLOCK_D)
