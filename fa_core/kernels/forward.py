"""The fused forward: one program per (query tile, head), online softmax over the key tiles."""

import triton
import triton.language as tl

from fa_core.kernels.primitives import (
    LENGTHS,
    LOG2E,
    accumulator,
    dot,
    load_scale,
    load_tile,
    store_tile,
    tile_offsets,
)


@triton.jit
def _attend(
    acc,  # [BLOCK_M, BLOCK_DV], unnormalised output
    row_max,  # [BLOCK_M], of the scores before scaling
    row_sum,  # [BLOCK_M]
    q,  # [BLOCK_M, BLOCK_D]
    k_base,
    v_base,
    k_offsets,
    v_offsets,
    stride_kn,
    stride_vn,
    begin,
    end,  # keys begin..end, begin a multiple of BLOCK_N
    last_key,  # [BLOCK_M], the last key each row sees
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
    """Fold the key tiles from begin to end into the running state."""
    for start in tl.range(begin, end, BLOCK_N, num_stages=1 if MASKED else None):
        k = load_tile(
            k_base, k_offsets, start, stride_kn, n_k, head_dim, BLOCK_N, BLOCK_D, MASKED, CHECK_D, EXACT
        )
        # [BLOCK_M, BLOCK_N]
        scores = dot(q, tl.trans(k), accumulator(BLOCK_M, BLOCK_N, EXACT))
        if MASKED:
            keys = start + tl.arange(0, BLOCK_N)
            scores = tl.where(keys[None, :] <= last_key[:, None], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        # A row that has seen no key yet keeps -inf; the pivot is for the exponents alone.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        # Subtracted before scaling: a fused `scores * scale - max` would leave the rounding of a huge
        # maximum in the exponent, and overflow.
        probs = tl.math.exp2((scores - pivot[:, None]) * scale_log2)
        rescale = tl.math.exp2((row_max - pivot) * scale_log2)
        row_sum = row_sum * rescale + tl.sum(probs, 1)
        acc = acc * rescale[:, None]
        v = load_tile(
            v_base, v_offsets, start, stride_vn, n_k, head_dim_v, BLOCK_N, BLOCK_DV, MASKED, CHECK_DV, EXACT
        )
        acc = dot(probs.to(v.dtype), v, acc)
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    Q,
    K,
    V,
    Out,
    RawLse,  # [batch, heads, n_q] contiguous, fp32 (fp64 if EXACT): the natural log-sum-exp over scale
    scale,  # > 0
    scale_rest,  # what fp32 cuts off scale
    heads,
    group,  # query heads per key head
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
    stride_ob,
    stride_oh,
    stride_on,
    stride_od,
    CAUSAL: tl.constexpr,
    EVEN_N: tl.constexpr,  # n_k is a multiple of BLOCK_N
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    CHECK_D: tl.constexpr,
    CHECK_DV: tl.constexpr,
    WIDE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """out = softmax(scale q kT) v and its row log-sum-exp. Grid: (query tiles * batch * heads,)."""
    n_tiles = tl.cdiv(n_q, BLOCK_M)
    tile = tl.program_id(0) % n_tiles
    head_index = tl.program_id(0) // n_tiles
    if CAUSAL:
        # The last tiles see the most keys: starting them first leaves short ones to fill the last wave.
        tile = n_tiles - 1 - tile
    b = (head_index // heads).to(tl.int64)
    h = (head_index % heads).to(tl.int64)
    start_m = tile * BLOCK_M
    rows = start_m + tl.arange(0, BLOCK_M)

    q_base = Q + b * stride_qb + h * stride_qh
    k_base = K + b * stride_kb + (h // group) * stride_kh
    v_base = V + b * stride_vb + (h // group) * stride_vh
    q_offsets = tile_offsets(stride_qn, stride_qd, BLOCK_M, BLOCK_D, WIDE)
    k_offsets = tile_offsets(stride_kn, stride_kd, BLOCK_N, BLOCK_D, WIDE)
    v_offsets = tile_offsets(stride_vn, stride_vd, BLOCK_N, BLOCK_DV, WIDE)
    q = load_tile(
        q_base, q_offsets, start_m, stride_qn, n_q, head_dim, BLOCK_M, BLOCK_D, True, CHECK_D, EXACT
    )

    # Keys [0, full) are seen by every row of the tile, keys [full, end) by some.
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
    acc = accumulator(BLOCK_M, BLOCK_DV, EXACT)
    row_sum = tl.zeros([BLOCK_M], acc.dtype)
    row_max = row_sum + float("-inf")
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, k_base, v_base, k_offsets, v_offsets, stride_kn, stride_vn,
        0, full, last_key, scale_log2, n_k, head_dim, head_dim_v,
        False, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
    )  # fmt: skip
    if CAUSAL or not EVEN_N:
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, k_base, v_base, k_offsets, v_offsets, stride_kn, stride_vn,
            full, end, last_key, scale_log2, n_k, head_dim, head_dim_v,
            True, CHECK_D, CHECK_DV, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, EXACT,
        )  # fmt: skip

    seen = row_sum != 0.0
    row_sum = tl.where(seen, row_sum, 1.0)
    acc = acc / row_sum[:, None]
    raw_lse = tl.where(seen, row_max + tl.log(row_sum) / scale, float("-inf"))
    o_base = Out + b * stride_ob + h * stride_oh
    o_offsets = tile_offsets(stride_on, stride_od, BLOCK_M, BLOCK_DV, WIDE)
    store_tile(o_base, o_offsets, start_m, stride_on, n_q, head_dim_v, acc, BLOCK_M, BLOCK_DV)
    tl.store(RawLse + head_index.to(tl.int64) * n_q + rows, raw_lse, mask=rows < n_q)
