"""The backward for sm_90, the products divided: dK and dV for head_dim up to 256.

There dK and dV of 64 keys fill the registers of a computing group each. So a program has 64 keys, and each
of its two groups has one of the two sums. They walk over the query tiles of every query head of the group:

    the first has S^T = K Q^T, P^T = exp2(S^T - LSE), which goes to shared memory, and dV += P^T dO;
    the second has dP^T = V dO^T, dS^T = P^T (dP^T - delta), and dK += dS^T Q.

P has two buffers, so the first group can be a step ahead: its exponentials run while the tensor cores work
for the second. dQ is left to `hopper_dq_kernel`: adding it here, too, was slower (1.25 against 1.32 of cuDNN's
speed without a mask), because a program of 64 keys would add twice as often as one of 128.
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
from fa_core.kernels.hopper_walk import seen_only, times, walk_heads


@gluon.jit
def _values_step(
    sums, step, start_m, row, before, fixed,
    FIRST: gl.constexpr, MASKED: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """One query tile of the first group: P^T and dV."""
    operands, rings, bars, buffers, keys, band, n_k, scale_log2, _total = fixed
    k = operands[0]
    q_ring, do_ring, lse_ring, _delta_ring = rings
    q_full, q_empty, do_full, _ds_full, _ds_empty, p_full, p_empty = bars
    p_tiles = buffers[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sums.type.layout, 2)
    stage, phase = step % STAGES, (step // STAGES) & 1
    buffer = step % 2
    q = q_ring.index(stage).reshape([BLOCK_M, D])
    do = do_ring.index(stage).reshape([BLOCK_M, D])
    zeros = gl.zeros([ROWS, BLOCK_M], gl.float32, layout)
    mbarrier.wait(q_full.index(stage), phase)
    scores = warpgroup_mma_wait(0, [warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)])
    lse = lse_ring.index(stage).load(layout)  # [1, BLOCK_M]; after the product, which it would hold up
    probs = gl.exp2(scores * scale_log2 - lse)
    if MASKED:
        probs = seen_only(probs, start_m, keys, band, n_k, BLOCK_M, LEFT, RIGHT)
    probs = probs.to(q_ring.dtype)
    mbarrier.wait(p_empty.index(buffer), ((step // 2) & 1) ^ 1)
    p_tiles.index(buffer).store(probs)
    mbarrier.arrive(p_full.index(buffer), count=1)
    mbarrier.wait(do_full.index(stage), phase)
    token = warpgroup_mma(gl.convert_layout(probs, operand), do, sums, is_async=True)
    sums = warpgroup_mma_wait(0, [token])
    mbarrier.arrive(q_empty.index(stage), count=1)
    return sums


@gluon.jit
def _keys_step(
    sums, step, start_m, row, before, fixed,
    FIRST: gl.constexpr, MASKED: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """One query tile of the second group: dS^T and dK."""
    operands, rings, bars, buffers, _keys, _band, _n_k, _scale_log2, _total = fixed
    v = operands[1]
    q_ring, do_ring, _lse_ring, delta_ring = rings
    q_full, q_empty, do_full, _ds_full, _ds_empty, p_full, p_empty = bars
    p_tiles = buffers[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sums.type.layout, 2)
    stage, phase = step % STAGES, (step // STAGES) & 1
    buffer, buffer_phase = step % 2, (step // 2) & 1
    q = q_ring.index(stage).reshape([BLOCK_M, D])
    do = do_ring.index(stage).reshape([BLOCK_M, D])
    zeros = gl.zeros([ROWS, BLOCK_M], gl.float32, layout)
    mbarrier.wait(do_full.index(stage), phase)
    dp = warpgroup_mma_wait(0, [warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)])
    delta = delta_ring.index(stage).load(layout)
    mbarrier.wait(p_full.index(buffer), buffer_phase)
    probs = p_tiles.index(buffer).load(layout)
    mbarrier.arrive(p_empty.index(buffer), count=1)
    ds = times(probs, dp - delta)
    mbarrier.wait(q_full.index(stage), phase)
    token = warpgroup_mma(gl.convert_layout(ds, operand), q, sums, is_async=True)
    sums = warpgroup_mma_wait(0, [token])
    mbarrier.arrive(q_empty.index(stage), count=1)
    return sums


@gluon.jit
def compute_products(
    given, GROUP: gl.constexpr, D: gl.constexpr, KEYS: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, EVEN_N: gl.constexpr,
    ALONE: gl.constexpr,
):  # fmt: skip
    """One computing group: dV of the program's keys, or dK."""
    written, total, kv_tiles, rings, bars, buffers, shape, band, tiles_q, scale, scale_log2 = given
    dK, dV = written
    k_all, v_all = kv_tiles
    kv_full, turns = bars
    p_empty = turns[6]
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    batch, kv_head, start_n, begin, cut, uncut, end = place_keys(shape, band, KEYS, BLOCK_M, LEFT, RIGHT)
    kv_heads, group, n_k = shape[3], shape[4], shape[6]
    k_tile = k_all.reshape([KEYS, D])
    v_tile = v_all.reshape([KEYS, D])
    sums = gl.zeros([ROWS, D], gl.float32, acc_layout)
    keys = start_n + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    heads = ((batch * kv_heads + kv_head) * group, group)
    tiles = (begin, cut, uncut, end)
    fixed = ((k_tile, v_tile, k_tile), rings, turns, buffers, keys, band, n_k, scale_log2, total)
    mbarrier.wait(kv_full, 0)
    if GROUP == 0:
        sums, step = walk_heads(
            sums, heads, tiles_q, tiles, fixed, _values_step, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N,
            ALONE, False, False,
        )  # fmt: skip
        # The other group has read the last P, and so has done with V, whose room this takes.
        mbarrier.wait(p_empty.index((step - 1) % 2), ((step - 1) // 2) & 1)
        barrier()
        v_tile.store(sums.to(k_all.dtype))
        fence_async_shared()
        barrier()
        async_store(dV, [batch, kv_head, start_n, 0], v_all)
    else:
        sums, step = walk_heads(
            sums, heads, tiles_q, tiles, fixed, _keys_step, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N,
            ALONE, False, False,
        )  # fmt: skip
        # The other group has done with K: its last P was made of it.
        k_tile.store((sums * scale).to(k_all.dtype))
        fence_async_shared()
        barrier()
        async_store(dK, [batch, kv_head, start_n, 0], k_all)
    tma.store_wait(0)
