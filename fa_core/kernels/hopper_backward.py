"""The backward for sm_90, in Gluon: dK and dV of a program's keys, and where they are 128 the sum of dQ.

A program has KEYS keys of one key head: two computing groups, and a warp that copies. What the groups divide
between them is in `hopper_keys` (128 keys, where head_dim is at most 128) and in `hopper_products` (the two
sums of 64 keys).

With SUM_DQ it is one kernel of five matrix products a tile, and dQ is added in fp32, in no fixed order. For
gradients that are the same bit for bit, and for 64 keys, dQ is left to `hopper_dq_kernel`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from fa_core.kernels.hopper_keys import compute_keys
from fa_core.kernels.hopper_products import compute_products
from fa_core.kernels.hopper_walk import copy_queries

LENGTHS = (
    "key_tiles",
    "group_heads",
    "n_heads",
    "kv_heads",
    "group",
    "n_q",
    "n_k",
    "left",
    "right",
    "shift",
    "tiles_q",
)


@gluon.jit(do_not_specialize=LENGTHS)
def hopper_backward_kernel(
    Q,  # descriptors over (batch, heads, rows, head_dim): Q and dOut in blocks of BLOCK_M rows,
    K,  # K and V in blocks of KEYS,
    V,
    dOut,
    LSE,  # [batch * heads * tiles_q, BLOCK_M] fp32, in blocks of one row: see prepare_kernel
    Delta,
    dK,  # dK and dV in blocks of 64
    dV,
    Sum,  # [batch * heads, tiles_q * BLOCK_M, D] fp32: dQ less its scale; zero before
    SumTiles,  # a descriptor of it as rows of D, in blocks of what a group adds (ENGINE)
    scale,
    scale_log2,
    key_tiles,
    group_heads,  # key heads whose tensors share L2
    n_heads,  # batch * kv_heads
    kv_heads,
    group,
    n_q,
    n_k,
    left,
    right,
    shift,
    tiles_q,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    EVEN_N: gl.constexpr,
    ALONE: gl.constexpr,  # a key head has one query head
    D: gl.constexpr,
    KEYS: gl.constexpr,  # of a program: 128 where the groups divide the keys, else 64
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    SUM_DQ: gl.constexpr,
    ENGINE: gl.constexpr,  # dQ is added by the copy engine, else by vector atomics
    COMPUTE_REGISTERS: gl.constexpr,
):
    """dK, dV and, with SUM_DQ, the sum of dQ. Grid: (key tiles * batch * kv_heads,)."""
    k_tile = gl.allocate_shared_memory(K.dtype, [1, 1, KEYS, D], K.layout)
    v_tile = gl.allocate_shared_memory(K.dtype, [1, 1, KEYS, D], K.layout)
    q_ring = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, D], Q.layout)
    do_ring = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, D], dOut.layout)
    lse_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], LSE.layout)
    delta_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], Delta.layout)
    HALF: gl.constexpr = D // 2 if BLOCK_M == 64 else D
    scores: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    if SUM_DQ:
        ds_tiles = gl.allocate_shared_memory(Q.dtype, [2, KEYS, BLOCK_M], scores)
    else:
        ds_tiles = q_ring
    if SUM_DQ and ENGINE:
        dq_tiles = gl.allocate_shared_memory(gl.float32, [2, 64, HALF], SumTiles.layout)
    else:
        dq_tiles = lse_ring
    if KEYS == 64:
        p_tiles = gl.allocate_shared_memory(Q.dtype, [2, KEYS, BLOCK_M], scores)
    else:
        p_tiles = q_ring
    one: gl.constexpr = mbarrier.MBarrierLayout()
    kv_full = gl.allocate_shared_memory(gl.int64, [1], one)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    ds_full = gl.allocate_shared_memory(gl.int64, [2, 1], one)
    ds_empty = gl.allocate_shared_memory(gl.int64, [2, 1], one)
    p_full = gl.allocate_shared_memory(gl.int64, [2, 1], one)
    p_empty = gl.allocate_shared_memory(gl.int64, [2, 1], one)
    mbarrier.init(kv_full, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=2)
    for i in gl.static_range(2):
        mbarrier.init(ds_full.index(i), count=2)
        mbarrier.init(ds_empty.index(i), count=2)
        mbarrier.init(p_full.index(i), count=1)
        mbarrier.init(p_empty.index(i), count=1)
    fence_async_shared()
    shape = (key_tiles, group_heads, n_heads, kv_heads, group, n_q, n_k)
    band = (left, right, shift)
    rings = (q_ring, do_ring, lse_ring, delta_ring)
    turns = (q_full, q_empty, do_full, ds_full, ds_empty, p_full, p_empty)
    computing = (
        (dK, dV), (Sum, SumTiles), (k_tile, v_tile), rings, (kv_full, turns), (ds_tiles, dq_tiles, p_tiles),
        shape, band, tiles_q, scale, scale_log2,
    )  # fmt: skip
    copying = (
        (Q, K, V, dOut, LSE, Delta), (k_tile, v_tile), rings, (kv_full, q_full, q_empty, do_full), shape,
        band, tiles_q,
    )  # fmt: skip
    if KEYS == 128:
        gl.warp_specialize(
            [
                (compute_keys, (computing, 0, D, KEYS, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N, ALONE, SUM_DQ, ENGINE)),
                (compute_keys, (computing, 1, D, KEYS, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N, ALONE, SUM_DQ, ENGINE)),
                (copy_queries, (copying, KEYS, BLOCK_M, STAGES, LEFT, RIGHT)),
            ],
            [4, 1],
            [COMPUTE_REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (compute_products, (computing, 0, D, KEYS, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N, ALONE)),
                (compute_products, (computing, 1, D, KEYS, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N, ALONE)),
                (copy_queries, (copying, KEYS, BLOCK_M, STAGES, LEFT, RIGHT)),
            ],
            [4, 1],
            [COMPUTE_REGISTERS, 24],
        )
