"""dQ alone, for sm_90, in Gluon: for gradients that are the same bit for bit; see `hopper_backward`.

As the forward: a warp that copies K and V through a ring, and groups of four warps with 64 queries each.
S = Q K^T and dP = dO V^T are issued together, dQ += dS K follows.
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

from fa_core.kernels.gluon_names import async_load, async_store, barrier
from fa_core.kernels.hopper_forward import LENGTHS
from fa_core.kernels.hopper_tiles import ROWS, cuts, hide, key_tiles_of, pass_by, place_queries


@gluon.jit
def _fold(
    dq, step, first, last, end, q, do, k_ring, v_ring, bars, positions, n_k, band, lse, delta, scale_log2,
    MASKED: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
):  # fmt: skip
    """dQ of the key tiles end - 1 - first, ..., end - last (downwards)."""
    k_full, k_empty, v_full, v_empty = bars
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, dq.type.layout, 2)
    for visited in range(first, last):
        stage, phase = step % STAGES, (step // STAGES) & 1
        k = k_ring.index(stage).reshape([BLOCK_N, D])
        v = v_ring.index(stage).reshape([BLOCK_N, D])
        zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        mbarrier.wait(k_full.index(stage), phase)
        s_token = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(stage), phase)
        dp_token = warpgroup_mma(do, v.permute((1, 0)), zeros, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(1, [s_token])
        if MASKED:
            scores = hide(scores, positions, end - 1 - visited, n_k, band, BLOCK_N, LEFT, RIGHT)
        probs = gl.exp2(scores * scale_log2 - lse[:, None])
        dp = warpgroup_mma_wait(0, [dp_token])
        mbarrier.arrive(v_empty.index(stage), count=1)
        ds = gl.convert_layout((probs * (dp - delta[:, None])).to(k_ring.dtype), operand)
        dq = warpgroup_mma_wait(0, [warpgroup_mma(ds, k, dq, is_async=True)])
        mbarrier.arrive(k_empty.index(stage), count=1)
        step += 1
    return dq, step


@gluon.jit
def _compute(
    given, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, EVEN_N: gl.constexpr,
):  # fmt: skip
    """One computing group: the rows GROUP · 64 and on of the program's queries."""
    dQ, statistics, q_tiles, do_tiles, k_ring, v_ring, q_full, bars, shape, band, scale, scale_log2 = given
    LSE, Delta, padded = statistics
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    PASSING: gl.constexpr = (LEFT or RIGHT) and BLOCK_N < BLOCK_M
    batch, head, _key_head, start_m, begin, end = place_queries(
        gl.program_id(0), shape, band, BLOCK_M, BLOCK_N, LEFT, RIGHT
    )
    n_q, n_k = shape[5], shape[6]
    left, right, shift = band
    queries = start_m + GROUP * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    # Of the program's key tiles this group passes by those that none of its queries sees.
    mine = start_m + GROUP * ROWS
    step = 0
    first_tile = begin
    end_tile = end
    if PASSING:
        first_tile, end_tile = key_tiles_of(mine, ROWS, begin, end, band, BLOCK_N, LEFT, RIGHT)
        step = pass_by(step, end - end_tile, bars, STAGES)
    cut, uncut = cuts(mine, first_tile, end_tile, n_q, n_k, band, BLOCK_N, LEFT, RIGHT, EVEN_N)
    count = end_tile - first_tile
    at = (batch * shape[3] + head).to(gl.int64) * padded + queries
    lse = gl.load(LSE + at, mask=queries < n_q, other=float("inf"))
    delta = gl.load(Delta + at, mask=queries < n_q, other=0.0)
    q = q_tiles.index(GROUP).reshape([ROWS, D])
    do = do_tiles.index(GROUP).reshape([ROWS, D])
    dq = gl.zeros([ROWS, D], gl.float32, acc_layout)
    mbarrier.wait(q_full.index(GROUP), 0)
    if RIGHT or not EVEN_N:
        dq, step = _fold(
            dq, step, 0, cut, end_tile, q, do, k_ring, v_ring, bars, queries + shift, n_k, (left, right), lse,
            delta, scale_log2, True, BLOCK_N, D, STAGES, LEFT, RIGHT,
        )  # fmt: skip
    dq, step = _fold(
        dq, step, cut, uncut, end_tile, q, do, k_ring, v_ring, bars, queries + shift, n_k, (left, right), lse,
        delta, scale_log2, False, BLOCK_N, D, STAGES, LEFT, RIGHT,
    )  # fmt: skip
    if LEFT:
        dq, step = _fold(
            dq, step, uncut, count, end_tile, q, do, k_ring, v_ring, bars, queries + shift, n_k, (left, right),
            lse, delta, scale_log2, True, BLOCK_N, D, STAGES, LEFT, RIGHT,
        )  # fmt: skip
    if PASSING and LEFT:
        step = pass_by(step, first_tile - begin, bars, STAGES)
    q.store((dq * scale).to(k_ring.dtype))
    fence_async_shared()
    barrier()
    async_store(dQ, [batch, head, start_m + GROUP * ROWS, 0], q_tiles.index(GROUP))
    tma.store_wait(0)


@gluon.jit
def _copy(
    given, D: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    """The copying warp: Q and dO once, then keys and values."""
    read, q_tiles, do_tiles, k_ring, v_ring, q_full, bars, shape, band = given
    Q, K, V, dOut = read
    k_full, k_empty, v_full, v_empty = bars
    batch, head, key_head, start_m, begin, end = place_queries(
        gl.program_id(0), shape, band, BLOCK_M, BLOCK_N, LEFT, RIGHT
    )
    for part in gl.static_range(BLOCK_M // ROWS):
        mbarrier.expect(q_full.index(part), Q.block_type.nbytes + dOut.block_type.nbytes)
        async_load(Q, [batch, head, start_m + part * ROWS, 0], q_full.index(part), q_tiles.index(part))
        async_load(dOut, [batch, head, start_m + part * ROWS, 0], q_full.index(part), do_tiles.index(part))
    for step in range(end - begin):
        start_n = (end - 1 - step) * BLOCK_N
        stage, free = step % STAGES, ((step // STAGES) & 1) ^ 1
        mbarrier.wait(k_empty.index(stage), free)
        mbarrier.expect(k_full.index(stage), K.block_type.nbytes)
        async_load(K, [batch, key_head, start_n, 0], k_full.index(stage), k_ring.index(stage))
        mbarrier.wait(v_empty.index(stage), free)
        mbarrier.expect(v_full.index(stage), V.block_type.nbytes)
        async_load(V, [batch, key_head, start_n, 0], v_full.index(stage), v_ring.index(stage))


@gluon.jit(do_not_specialize=(*LENGTHS, "padded"))
def hopper_dq_kernel(
    Q,  # descriptors over (batch, heads, rows, head_dim): Q, dOut and dQ in blocks of 64, K and V of BLOCK_N
    K,
    V,
    dOut,
    dQ,
    LSE,  # [batch * heads, padded] fp32, of `prepare_kernel`
    Delta,
    padded,
    tiles_per_head,
    group_heads,
    n_heads,
    heads,
    group,
    n_q,
    n_k,
    left,
    right,
    shift,
    scale,
    scale_log2,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    EVEN_N: gl.constexpr,
    D: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    COMPUTE_REGISTERS: gl.constexpr,
):
    """dQ. Grid: (tiles of BLOCK_M queries * batch * heads,)."""
    GROUPS: gl.constexpr = BLOCK_M // ROWS
    q_tiles = gl.allocate_shared_memory(Q.dtype, [GROUPS, 1, 1, ROWS, D], Q.layout)
    do_tiles = gl.allocate_shared_memory(Q.dtype, [GROUPS, 1, 1, ROWS, D], Q.layout)
    k_ring = gl.allocate_shared_memory(K.dtype, [STAGES, 1, 1, BLOCK_N, D], K.layout)
    v_ring = gl.allocate_shared_memory(V.dtype, [STAGES, 1, 1, BLOCK_N, D], V.layout)
    one: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], one)
    bars = (
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
    )
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(bars[0].index(i), count=1)
        mbarrier.init(bars[1].index(i), count=GROUPS)
        mbarrier.init(bars[2].index(i), count=1)
        mbarrier.init(bars[3].index(i), count=GROUPS)
    fence_async_shared()
    shape = (tiles_per_head, group_heads, n_heads, heads, group, n_q, n_k)
    band = (left, right, shift)
    computing = (
        dQ, (LSE, Delta, padded), q_tiles, do_tiles, k_ring, v_ring, q_full, bars, shape, band, scale,
        scale_log2,
    )  # fmt: skip
    copying = ((Q, K, V, dOut), q_tiles, do_tiles, k_ring, v_ring, q_full, bars, shape, band)
    gl.warp_specialize(
        [
            (_compute, (computing, 0, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT, EVEN_N)),
            (_compute, (computing, 1, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT, EVEN_N)),
            (_copy, (copying, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT)),
        ],
        [4, 1],
        [COMPUTE_REGISTERS, 24],
    )
