"""The fused forward for sm_90, in Gluon: a warp that copies, and two or three groups of warps that compute.

The copying warp keeps a ring of key and value tiles full through the copy engine (TMA). Each computing group
has 64 query rows of the program's tile; it issues S = Q K^T of a key tile before it waits for O += P V of the
one before, so that one tile's softmax runs while the tensor cores work on the other. P stays in registers.
Keys are visited from the last tile to the first, so that those on the diagonal come first.

Every mbarrier is a pair: `full` is met by the copy engine's bytes, `empty` by one arrival of each group.
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
from fa_core.kernels.hopper_tiles import ROWS, cuts, hide, key_tiles_of, pass_by, place_queries

LN2: gl.constexpr = gl.constexpr(0.6931471805599453)
LENGTHS = (
    "n_tiles",
    "tiles_per_head",
    "group_heads",
    "n_heads",
    "heads",
    "group",
    "n_q",
    "n_k",
    "left",
    "right",
    "shift",
)


@gluon.jit
def _turns(n_tiles):
    """How many tiles this program takes."""
    programs = gl.num_programs(0)
    whole = n_tiles // programs
    return whole + (_tile_of(whole) < n_tiles).to(gl.int32)


@gluon.jit
def _tile_of(turn):
    """Which tile this program takes in a turn: there and back, so that each gets as many heavy ones."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    back = turn % 2
    return turn * programs + program + back * (programs - 1 - 2 * program)


@gluon.jit
def _softmax(scores, pivot, row_sum, scale_log2):
    """(probabilities relative to the new pivot, the new pivot, the new sum, what rescales older sums).

    The pivot is the running maximum in the exponents' own units, rounded: any number serves, as long as
    all of a row's exponents are taken from the same, and so its rounding is no error. -inf before any key.
    """
    new_pivot = gl.maximum(pivot, gl.max(scores, 1) * scale_log2)
    base = gl.where(new_pivot == -float("inf"), 0.0, new_pivot)
    probs = gl.exp2(scores * scale_log2 - base[:, None])
    rescale = gl.exp2(pivot - base)
    return probs, new_pivot, row_sum * rescale + gl.sum(probs, 1), rescale


@gluon.jit
def _fold(
    state, step, first, last, end, q, k_ring, v_ring, bars, positions, n_k, band, scale_log2,
    MASKED: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
):  # fmt: skip
    """Fold in key tiles end - 1 - first, ..., end - last (downwards), the product with V one tile behind."""
    acc, pivot, row_sum, probs = state
    k_full, k_empty, v_full, v_empty = bars
    D: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    operand: gl.constexpr = probs.type.layout
    acc_layout: gl.constexpr = acc.type.layout
    for visited in range(first, last):
        before, stage_before = (step // STAGES) & 1, step % STAGES
        step += 1
        stage = step % STAGES
        zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
        token = warpgroup_mma(
            q, k_ring.index(stage).reshape([BLOCK_N, D]).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        mbarrier.wait(v_full.index(stage_before), before)
        acc_token = warpgroup_mma(probs, v_ring.index(stage_before).reshape([BLOCK_N, D]), acc, is_async=True)
        scores = warpgroup_mma_wait(1, [token])
        mbarrier.arrive(k_empty.index(stage), count=1)
        if MASKED:
            scores = hide(scores, positions, end - 1 - visited, n_k, band, BLOCK_N, LEFT, RIGHT)
        new_probs, pivot, row_sum, rescale = _softmax(scores, pivot, row_sum, scale_log2)
        acc = warpgroup_mma_wait(0, [acc_token])
        mbarrier.arrive(v_empty.index(stage_before), count=1)
        acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, acc_layout))[:, None]
        probs = gl.convert_layout(new_probs.to(k_ring.dtype), operand)
    return (acc, pivot, row_sum, probs), step


@gluon.jit
def _compute(
    given, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, EVEN_N: gl.constexpr, OWN_OUT: gl.constexpr,
):  # fmt: skip
    """One computing group: the rows GROUP · 64 and on of each of the program's tiles."""
    tensors, q_tiles, out_tiles, k_ring, v_ring, q_bars, bars, shape, band, n_tiles, scale_log2 = given
    Out, RowMax, LogSum, Sinks = tensors
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    rows_layout: gl.constexpr = gl.SliceLayout(1, layout)
    MASKED: gl.constexpr = RIGHT or not EVEN_N
    PASSING: gl.constexpr = (LEFT or RIGHT) and BLOCK_N < BLOCK_M
    q_full, q_empty = q_bars
    k_full, k_empty, v_full, v_empty = bars
    n_q, n_k = shape[5], shape[6]
    left, right, shift = band
    q = q_tiles.index(GROUP).reshape([ROWS, D])
    step = 0
    for turn in range(_turns(n_tiles)):
        batch, head, _key_head, start_m, begin, end = place_queries(
            _tile_of(turn), shape, band, BLOCK_M, BLOCK_N, LEFT, RIGHT
        )
        queries = start_m + GROUP * ROWS + gl.arange(0, ROWS, layout=rows_layout)
        positions = queries + shift
        # Of the program's key tiles this group passes by those that none of its queries sees.
        mine = start_m + GROUP * ROWS
        first_tile = begin
        end_tile = end
        if PASSING:
            first_tile, end_tile = key_tiles_of(mine, ROWS, begin, end, band, BLOCK_N, LEFT, RIGHT)
            step = pass_by(step, end - end_tile, bars, STAGES)
        right_cut, left_cut = cuts(mine, first_tile, end_tile, n_q, n_k, band, BLOCK_N, LEFT, RIGHT, EVEN_N)
        count = end_tile - first_tile

        pivot = gl.full([ROWS], -float("inf"), gl.float32, rows_layout)
        row_sum = gl.zeros([ROWS], gl.float32, rows_layout)
        acc = gl.zeros([ROWS, D], gl.float32, acc_layout)
        stage = step % STAGES
        zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        mbarrier.wait(q_full.index(GROUP), turn & 1)
        mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
        token = warpgroup_mma(
            q, k_ring.index(stage).reshape([BLOCK_N, D]).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        scores = warpgroup_mma_wait(0, [token])
        mbarrier.arrive(k_empty.index(stage), count=1)
        if MASKED or LEFT:
            scores = hide(scores, positions, end_tile - 1, n_k, (left, right), BLOCK_N, LEFT, RIGHT)
        new_probs, pivot, row_sum, _rescale = _softmax(scores, pivot, row_sum, scale_log2)
        state = (acc, pivot, row_sum, gl.convert_layout(new_probs.to(k_ring.dtype), operand))
        if MASKED:
            state, step = _fold(
                state, step, 1, right_cut, end_tile, q, k_ring, v_ring, bars, positions, n_k, (left, right),
                scale_log2, True, BLOCK_N, STAGES, LEFT, RIGHT,
            )  # fmt: skip
        state, step = _fold(
            state, step, gl.maximum(right_cut, 1), left_cut, end_tile, q, k_ring, v_ring, bars, positions,
            n_k, (left, right), scale_log2, False, BLOCK_N, STAGES, LEFT, RIGHT,
        )  # fmt: skip
        if LEFT:
            state, step = _fold(
                state, step, gl.maximum(left_cut, 1), count, end_tile, q, k_ring, v_ring, bars, positions,
                n_k, (left, right), scale_log2, True, BLOCK_N, STAGES, LEFT, RIGHT,
            )  # fmt: skip
        acc, pivot, row_sum, probs = state
        if OWN_OUT:  # the next tile's queries may come
            mbarrier.arrive(q_empty.index(GROUP), count=1)
        stage = step % STAGES
        mbarrier.wait(v_full.index(stage), (step // STAGES) & 1)
        acc_token = warpgroup_mma(probs, v_ring.index(stage).reshape([BLOCK_N, D]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc_token])
        mbarrier.arrive(v_empty.index(stage), count=1)
        step += 1
        if PASSING and LEFT:
            step = pass_by(step, first_tile - begin, bars, STAGES)

        if Sinks is not None:
            sink = gl.load(Sinks + head).to(gl.float32) * (1.0 / LN2)
            new_pivot = gl.maximum(pivot, sink)
            rescale = gl.where(new_pivot == -float("inf"), 0.0, gl.exp2(pivot - new_pivot))
            row_sum = row_sum * rescale + gl.where(new_pivot == -float("inf"), 0.0, gl.exp2(sink - new_pivot))
            acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, acc_layout))[:, None]
            pivot = new_pivot
        seen = row_sum != 0.0
        row_sum = gl.where(seen, row_sum, 1.0)
        acc = acc * (1.0 / gl.convert_layout(row_sum, gl.SliceLayout(1, acc_layout)))[:, None]
        tma.store_wait(0)
        barrier()
        out_tile = out_tiles.index(GROUP).reshape([ROWS, D])
        out_tile.store(acc.to(k_ring.dtype))
        fence_async_shared()
        barrier()
        async_store(Out, [batch, head, start_m + GROUP * ROWS, 0], out_tiles.index(GROUP))
        if RowMax is not None:
            # The maximum in the scores' own units; what its rounding leaves goes to the logarithm of the sum.
            row_max = pivot / scale_log2
            rest = gl.where(
                seen, gl.fma(-row_max, gl.full([ROWS], 0.0, gl.float32, rows_layout) + scale_log2, pivot), 0.0
            )
            log_sum = (gl.log2(row_sum) + rest) * LN2
            index = (batch * shape[3] + head).to(gl.int64) * n_q + queries
            gl.store(RowMax + index, gl.where(seen, row_max, -float("inf")), mask=queries < n_q)
            gl.store(LogSum + index, log_sum, mask=queries < n_q)
        if not OWN_OUT:
            tma.store_wait(0)
            barrier()
            mbarrier.arrive(q_empty.index(GROUP), count=1)
    tma.store_wait(0)


@gluon.jit
def _copy(
    given, D: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    """The copying warp: each tile's queries, then its keys and values, as far ahead as the ring lets it."""
    tensors, q_tiles, k_ring, v_ring, q_bars, bars, shape, band, n_tiles = given
    Q, K, V = tensors
    q_full, q_empty = q_bars
    k_full, k_empty, v_full, v_empty = bars
    step = 0
    for turn in range(_turns(n_tiles)):
        batch, head, key_head, start_m, begin, end = place_queries(
            _tile_of(turn), shape, band, BLOCK_M, BLOCK_N, LEFT, RIGHT
        )
        for part in gl.static_range(BLOCK_M // ROWS):
            mbarrier.wait(q_empty.index(part), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(part), Q.block_type.nbytes)
            async_load(Q, [batch, head, start_m + part * ROWS, 0], q_full.index(part), q_tiles.index(part))
        for visited in range(end - begin):
            start_n = (end - 1 - visited) * BLOCK_N
            stage, free = step % STAGES, ((step // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), free)
            mbarrier.expect(k_full.index(stage), K.block_type.nbytes)
            async_load(K, [batch, key_head, start_n, 0], k_full.index(stage), k_ring.index(stage))
            mbarrier.wait(v_empty.index(stage), free)
            mbarrier.expect(v_full.index(stage), V.block_type.nbytes)
            async_load(V, [batch, key_head, start_n, 0], v_full.index(stage), v_ring.index(stage))
            step += 1


@gluon.jit(do_not_specialize=LENGTHS)
def hopper_forward_kernel(
    Q,  # descriptor over (batch, heads, n_q, head_dim), block (1, 1, 64, D)
    K,  # over (batch, kv_heads, n_k, head_dim), block (1, 1, BLOCK_N, D)
    V,  # the same of the values
    Out,  # as Q
    RowMax,  # [batch, heads, n_q] contiguous, fp32: as the portable forward leaves them; or None
    LogSum,  # the same
    Sinks,  # [heads], or None
    n_tiles,  # over all heads
    tiles_per_head,
    group_heads,  # heads whose keys share L2
    n_heads,  # batch * heads
    heads,
    group,  # query heads per key head
    n_q,
    n_k,
    left,
    right,
    shift,  # a query's position less its index
    scale_log2,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    EVEN_N: gl.constexpr,  # n_k is a multiple of BLOCK_N
    D: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    OWN_OUT: gl.constexpr,  # the output has shared memory of its own, not the queries'
    COMPUTE_REGISTERS: gl.constexpr,
    COPY_REGISTERS: gl.constexpr,
):
    """out = softmax(scores) v and the row statistics of `forward.forward_kernel`, for plain scores.

    Grid: (programs,), each taking every programs-th tile: one a multiprocessor, or as many as tiles, which
    leaves their order to the hardware.
    """
    GROUPS: gl.constexpr = BLOCK_M // ROWS
    q_tiles = gl.allocate_shared_memory(Q.dtype, [GROUPS, 1, 1, ROWS, D], Q.layout)
    if OWN_OUT:
        out_tiles = gl.allocate_shared_memory(Q.dtype, [GROUPS, 1, 1, ROWS, D], Q.layout)
    else:
        out_tiles = q_tiles
    k_ring = gl.allocate_shared_memory(K.dtype, [STAGES, 1, 1, BLOCK_N, D], K.layout)
    v_ring = gl.allocate_shared_memory(V.dtype, [STAGES, 1, 1, BLOCK_N, D], V.layout)
    one: gl.constexpr = mbarrier.MBarrierLayout()
    q_bars = (
        gl.allocate_shared_memory(gl.int64, [GROUPS, 1], one),
        gl.allocate_shared_memory(gl.int64, [GROUPS, 1], one),
    )
    bars = (
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], one),
    )
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_bars[0].index(i), count=1)
        mbarrier.init(q_bars[1].index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(bars[0].index(i), count=1)
        mbarrier.init(bars[1].index(i), count=GROUPS)
        mbarrier.init(bars[2].index(i), count=1)
        mbarrier.init(bars[3].index(i), count=GROUPS)
    fence_async_shared()
    shape = (tiles_per_head, group_heads, n_heads, heads, group, n_q, n_k)
    band = (left, right, shift)
    written = (Out, RowMax, LogSum, Sinks)
    computing = (written, q_tiles, out_tiles, k_ring, v_ring, q_bars, bars, shape, band, n_tiles, scale_log2)
    copying = ((Q, K, V), q_tiles, k_ring, v_ring, q_bars, bars, shape, band, n_tiles)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT, EVEN_N, OWN_OUT)),
                (_compute, (computing, 1, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT, EVEN_N, OWN_OUT)),
                (_copy, (copying, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT)),
            ],
            [4, 1],
            [COMPUTE_REGISTERS, COPY_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT, EVEN_N, OWN_OUT)),
                (_compute, (computing, 1, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT, EVEN_N, OWN_OUT)),
                (_compute, (computing, 2, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT, EVEN_N, OWN_OUT)),
                (_copy, (copying, D, BLOCK_M, BLOCK_N, STAGES, LEFT, RIGHT)),
            ],
            [4, 4, 1],
            [COMPUTE_REGISTERS, COMPUTE_REGISTERS, COPY_REGISTERS],
        )
