"""The fused backward for sm_90, the keys divided: for head_dim up to 128.

A program has 128 keys of one key head: two computing groups of 64 keys, and a warp that copies. They walk
over the query tiles of every query head of the group:

    S^T = K Q^T and dP^T = V dO^T are issued together;
    P^T = exp2(S^T - LSE) while dP^T runs, then dV += P^T dO;
    dS^T = P^T (dP^T - delta) goes to shared memory, where both groups' halves meet, and dK += dS^T Q;
    dQ += dS K of the step before, so that no group waits for the other's half.

S is kept transposed, keys along the rows: then P^T and dS^T are left operands as they lie in registers, and
the statistics of a query are a row vector that the copy engine brings.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fa_core.kernels.gluon_names import async_store, barrier
from fa_core.kernels.hopper_tiles import ROWS, place_keys
from fa_core.kernels.hopper_walk import issue_dq, seen_only, send_dq, times, walk_heads


@gluon.jit
def _step(
    sums, step, start_m, row, before, fixed,
    FIRST: gl.constexpr, MASKED: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """One query tile: dK and dV of it, and dQ of the one before it (`before` is that one's row)."""
    dk, dv = sums
    operands, rings, bars, buffers, keys, band, n_k, scale_log2, total = fixed
    k, v, k_tile = operands
    q_ring, do_ring, lse_ring, delta_ring = rings
    q_full, q_empty, do_full, ds_full, ds_empty, _p_full, _p_empty = bars
    ds_tiles, dq_tiles, _p_tiles = buffers
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    stage, phase = step % STAGES, (step // STAGES) & 1
    q = q_ring.index(stage).reshape([BLOCK_M, D])
    do = do_ring.index(stage).reshape([BLOCK_M, D])
    zeros = gl.zeros([ROWS, BLOCK_M], gl.float32, layout)
    mbarrier.wait(q_full.index(stage), phase)
    s_token = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(do_full.index(stage), phase)
    dp_token = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(1, [s_token])
    lse = lse_ring.index(stage).load(layout)  # [1, BLOCK_M]; after the product, which it would hold up
    probs = gl.exp2(scores * scale_log2 - lse)
    if MASKED:
        probs = seen_only(probs, start_m, keys, band, n_k, BLOCK_M, LEFT, RIGHT)
    probs = probs.to(q_ring.dtype)
    dv_token = warpgroup_mma(gl.convert_layout(probs, operand), do, dv, is_async=True)
    dp = warpgroup_mma_wait(1, [dp_token])
    delta = delta_ring.index(stage).load(layout)
    ds = times(probs, dp - delta)
    if SUM_DQ:
        buffer = step % 2
        mbarrier.wait(ds_empty.index(buffer), ((step // 2) & 1) ^ 1)
        ds_tiles.index(buffer).slice(GROUP * ROWS, ROWS, dim=0).store(ds)
        fence_async_shared()
        mbarrier.arrive(ds_full.index(buffer), count=1)
    dk_token = warpgroup_mma(gl.convert_layout(ds, operand), q, dk, is_async=True)
    if SUM_DQ and not FIRST:
        dq_token = issue_dq(k_tile, ds_tiles, ds_full, step - 1, GROUP, D, BLOCK_M)
        dv, dk = warpgroup_mma_wait(1, [dv_token, dk_token])
        mbarrier.arrive(q_empty.index(stage), count=1)
        dq = warpgroup_mma_wait(0, [dq_token])
        send_dq(total, dq, dq_tiles, ds_empty, step - 1, before, GROUP, D, BLOCK_M, ENGINE)
    else:
        dv, dk = warpgroup_mma_wait(0, [dv_token, dk_token])
        mbarrier.arrive(q_empty.index(stage), count=1)
    return (dk, dv)


@gluon.jit
def compute_keys(
    given, GROUP: gl.constexpr, D: gl.constexpr, KEYS: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, EVEN_N: gl.constexpr,
    ALONE: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """One computing group: the keys GROUP · 64 and on of the program's 128."""
    written, total, kv_tiles, rings, bars, buffers, shape, band, tiles_q, scale, scale_log2 = given
    dK, dV = written
    k_all, v_all = kv_tiles
    kv_full, turns = bars
    ds_empty = turns[4]
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    batch, kv_head, start_n, begin, cut, uncut, end = place_keys(shape, band, KEYS, BLOCK_M, LEFT, RIGHT)
    kv_heads, group, n_k = shape[3], shape[4], shape[6]
    k_tile = k_all.reshape([KEYS, D])
    v_tile = v_all.reshape([KEYS, D])
    k = k_tile.slice(GROUP * ROWS, ROWS, dim=0)
    v = v_tile.slice(GROUP * ROWS, ROWS, dim=0)
    dk = gl.zeros([ROWS, D], gl.float32, acc_layout)
    dv = gl.zeros([ROWS, D], gl.float32, acc_layout)
    keys = start_n + GROUP * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    mbarrier.wait(kv_full, 0)
    fixed = ((k, v, k_tile), rings, turns, buffers, keys, band, n_k, scale_log2, total)
    heads = ((batch * kv_heads + kv_head) * group, group)
    sums, step = walk_heads(
        (dk, dv), heads, tiles_q, (begin, cut, uncut, end), fixed, _step, GROUP, D, BLOCK_M, STAGES, LEFT,
        RIGHT, EVEN_N, ALONE, SUM_DQ, ENGINE,
    )  # fmt: skip
    dk, dv = sums
    if SUM_DQ:
        # The other group may still read K for its share of the last dQ.
        mbarrier.wait(ds_empty.index((step - 1) % 2), ((step - 1) // 2) & 1)
        barrier()
    v.store(dv.to(k_all.dtype))
    k.store((dk * scale).to(k_all.dtype))
    fence_async_shared()
    barrier()
    async_store(dV, [batch, kv_head, start_n + GROUP * ROWS, 0], v_all.slice(GROUP * ROWS, ROWS, dim=2))
    async_store(dK, [batch, kv_head, start_n + GROUP * ROWS, 0], k_all.slice(GROUP * ROWS, ROWS, dim=2))
    tma.store_wait(0)
