"""The fused backward for sm_90, in Gluon: five matrix products a tile, dQ summed in global memory.

A program has 128 keys of one key head: two computing groups of 64 keys, and a warp that copies. They walk
over the query tiles of every query head of the group:

    S^T = K Q^T and dP^T = V dO^T are issued together;
    P^T = exp2(S^T - LSE) while dP^T runs, then dV += P^T dO;
    dS^T = P^T (dP^T - delta) goes to shared memory, where both groups' halves meet, and dK += dS^T Q;
    dQ += dS K of the step before, so that no group waits for the other's half.

dQ is added in fp32, in no fixed order. For gradients that are the same bit for bit there is SUM_DQ=False,
which leaves dQ to `hopper_dq_kernel`.

S is kept transposed, keys along the rows: then P^T and dS^T are left operands as they lie in registers, and
the statistics of a query are a row vector that the copy engine brings.
"""

from gluon_names import async_add, async_load, async_store, barrier
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS: gl.constexpr = gl.constexpr(64)
KEYS: gl.constexpr = gl.constexpr(128)  # of a program
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


# ----------------------------------------------------------------------------------------------- placing


@gluon.jit
def _place(shape, band, BLOCK_M: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """This program's (batch, key head, first key) and query tiles: begin, cut up to, uncut up to, end.

    Heads in groups whose tensors stay in L2; within a group the first keys first: under a causal mask the
    most queries see them.
    """
    key_tiles, group_heads, n_heads, kv_heads, _group, n_q, n_k = shape
    left, right, shift = band
    t = gl.program_id(0)
    first_head = t // (group_heads * key_tiles) * group_heads
    in_group = t - first_head * key_tiles
    here = gl.minimum(group_heads, n_heads - first_head)
    key_tile = in_group // here
    head_of_all = first_head + in_group % here
    batch = head_of_all // kv_heads
    start_n = key_tile * KEYS
    tiles = (n_q + BLOCK_M - 1) // BLOCK_M
    begin = 0
    end = tiles
    if RIGHT:  # the first query that sees the first key
        begin = gl.maximum(start_n - shift - right, 0) // BLOCK_M
    if LEFT:  # the last one that sees the last key
        last = gl.minimum(start_n + KEYS, n_k) + left - shift
        end = gl.minimum(end, gl.maximum(last + BLOCK_M - 1, 0) // BLOCK_M)
    # Keys that no query sees take one tile of queries, and hide it.
    begin = gl.maximum(gl.minimum(begin, end - 1), 0)
    end = gl.maximum(end, begin + 1)
    cut = begin
    if RIGHT:  # the first query that sees the last key, too
        whole = gl.maximum(start_n + KEYS - 1 - shift - right, 0)
        cut = gl.minimum((whole + BLOCK_M - 1) // BLOCK_M, end)
    if start_n + KEYS > n_k:  # beyond the last key all is hidden
        cut = end
    cut = gl.maximum(cut, begin)
    uncut = end
    if LEFT:  # the last query that sees the first key, too
        inside = gl.maximum(start_n + left - shift + 1, 0) // BLOCK_M
        uncut = gl.maximum(gl.minimum(inside, end), cut)
    return batch, head_of_all - batch * kv_heads, start_n, begin, cut, uncut, end


@gluon.jit
def _fragment(HALF: gl.constexpr, layout: gl.constexpr):
    """Where the values of a [64, HALF] accumulator go, so that four of a thread's are four in a row.

    The order of a wgmma accumulator (PTX ISA, register fragments of wgmma.m64nNk16): of each eight columns a
    thread holds two, in rows r and r + 8.
    """
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))[:, None]
    c = gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))[None, :]
    return ((c // 8) * 128 + (r // 16) * 32 + (r % 8) * 4 + (c % 8) // 2) * 4 + ((r // 8) % 2) * 2 + c % 2


@gluon.jit
def _four(x, HALF: gl.constexpr):
    """A [64, HALF] accumulator as the four tensors whose elements lie side by side by `_fragment`."""
    y = x.reshape([4, 2, 8, HALF // 2, 2]).permute([0, 2, 3, 1, 4])
    even, odd = y.split()
    a, c = even.split()
    b, d = odd.split()
    return a, b, c, d


@gluon.jit
def _add(Sum, offset, dq, HALF: gl.constexpr, layout: gl.constexpr):
    """Add a [64, HALF] tile to Sum at `offset`, four values an instruction (PTX ISA 8.1, red.v4.f32)."""
    at, _b, _c, _d = _four((Sum + offset + _fragment(HALF, layout)).to(gl.int64), HALF)
    a, b, c, d = _four(dq, HALF)
    gl.inline_asm_elementwise(
        "red.relaxed.gpu.global.add.v4.f32 [$1], {$2,$3,$4,$5}; mov.u32 $0, 0;",
        "=r,l,f,f,f,f",
        [at, a, b, c, d],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


# ------------------------------------------------------------------------------------------------- steps


@gluon.jit
def _issue_dq(k_tile, ds_tiles, ds_full, step, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr):
    """Start this group's share of dQ of a step: half its columns, or half of the queries."""
    buffer = step % 2
    mbarrier.wait(ds_full.index(buffer), (step // 2) & 1)
    ds = ds_tiles.index(buffer)
    HALF: gl.constexpr = D // 2 if BLOCK_M == 64 else D
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    zeros = gl.zeros([64, HALF], gl.float32, layout)
    if BLOCK_M == 64:
        right = k_tile.slice(GROUP * HALF, HALF, dim=1)
        return warpgroup_mma(ds.permute((1, 0)), right, zeros, use_acc=False, is_async=True)
    else:
        queries = ds.slice(GROUP * 64, 64, dim=1)
        return warpgroup_mma(queries.permute((1, 0)), k_tile, zeros, use_acc=False, is_async=True)


@gluon.jit
def _send_dq(
    sums, dq, dq_tiles, ds_empty, step, row, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    ENGINE: gl.constexpr
):  # fmt: skip
    """Add a step's share of dQ to the sum; `row` is its first query among those of all heads, padded."""
    HALF: gl.constexpr = D // 2 if BLOCK_M == 64 else D
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    Sum, SumTiles = sums
    if ENGINE:
        tma.store_wait(0)
        mbarrier.arrive(ds_empty.index(step % 2), count=1)  # all threads meet here, too
        dq_tiles.index(GROUP).store(dq)
        fence_async_shared()
        barrier()
        if BLOCK_M == 64:
            async_add(SumTiles, [row, GROUP * HALF], dq_tiles.index(GROUP))
        else:
            async_add(SumTiles, [row + GROUP * 64, 0], dq_tiles.index(GROUP))
    else:
        mbarrier.arrive(ds_empty.index(step % 2), count=1)
        _add(Sum, row.to(gl.int64) * D + GROUP * (64 * HALF), dq, HALF, layout)


@gluon.jit
def _times(probs, x):
    """probs · x, both rounded to the dtype of probs before: so probs need not be kept in fp32, too."""
    if probs.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; mul.rn.bf16x2 $0, $1, t; }",
            "=r,r,f,f",
            [probs, x],
            dtype=gl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        return probs * x.to(probs.dtype)


@gluon.jit
def _step(
    dk, dv, step, start_m, row, before, rings, bars, buffers, keys, band, n_k, scale_log2, sums,
    FIRST: gl.constexpr, MASKED: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """One query tile: dK and dV of it, and dQ of the one before it (`before` is that one's row)."""
    k, v, k_tile, q_ring, do_ring, lse_ring, delta_ring = rings
    q_full, q_empty, do_full, ds_full, ds_empty = bars
    ds_tiles, dq_tiles = buffers
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
        positions = (start_m + band[2] + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, layout)))[None, :]
        rows = keys[:, None]
        seen = rows < n_k
        if RIGHT:
            seen = seen & (rows <= positions + band[1])
        if LEFT:
            seen = seen & (rows >= positions - band[0])
        probs = gl.where(seen, probs, 0.0)
    probs = probs.to(q_ring.dtype)
    dv_token = warpgroup_mma(gl.convert_layout(probs, operand), do, dv, is_async=True)
    dp = warpgroup_mma_wait(1, [dp_token])
    delta = delta_ring.index(stage).load(layout)
    ds = _times(probs, dp - delta)
    if SUM_DQ:
        buffer = step % 2
        mbarrier.wait(ds_empty.index(buffer), ((step // 2) & 1) ^ 1)
        ds_tiles.index(buffer).slice(GROUP * ROWS, ROWS, dim=0).store(ds)
        fence_async_shared()
        mbarrier.arrive(ds_full.index(buffer), count=1)
    dk_token = warpgroup_mma(gl.convert_layout(ds, operand), q, dk, is_async=True)
    if SUM_DQ and not FIRST:
        dq_token = _issue_dq(k_tile, ds_tiles, ds_full, step - 1, GROUP, D, BLOCK_M)
        dv, dk = warpgroup_mma_wait(1, [dv_token, dk_token])
        mbarrier.arrive(q_empty.index(stage), count=1)
        dq = warpgroup_mma_wait(0, [dq_token])
        _send_dq(sums, dq, dq_tiles, ds_empty, step - 1, before, GROUP, D, BLOCK_M, ENGINE)
    else:
        dv, dk = warpgroup_mma_wait(0, [dv_token, dk_token])
        mbarrier.arrive(q_empty.index(stage), count=1)
    return dk, dv


@gluon.jit
def _walk(
    dk, dv, step, base, tiles, fixed, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, EVEN_N: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """The query tiles of one head, whose first of all heads' is `base`."""
    begin, cut, uncut, end = tiles
    inner, turns, buffers, keys, band, n_k, scale_log2, sums = fixed
    EDGES: gl.constexpr = RIGHT or not EVEN_N
    row = (base + begin) * BLOCK_M
    dk, dv = _step(
        dk, dv, step, begin * BLOCK_M, row, row, inner, turns, buffers, keys, band, n_k, scale_log2, sums,
        True, EDGES or LEFT, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
    )  # fmt: skip
    step += 1
    if EDGES:
        for tile in range(begin + 1, cut):
            row = (base + tile) * BLOCK_M
            dk, dv = _step(
                dk, dv, step, tile * BLOCK_M, row, row - BLOCK_M, inner, turns, buffers, keys, band, n_k,
                scale_log2, sums,
                False, True, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
            )  # fmt: skip
            step += 1
    for tile in range(gl.maximum(cut, begin + 1), uncut):
        row = (base + tile) * BLOCK_M
        dk, dv = _step(
            dk, dv, step, tile * BLOCK_M, row, row - BLOCK_M, inner, turns, buffers, keys, band, n_k,
            scale_log2, sums,
            False, False, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
        )  # fmt: skip
        step += 1
    if LEFT:
        for tile in range(gl.maximum(uncut, begin + 1), end):
            row = (base + tile) * BLOCK_M
            dk, dv = _step(
                dk, dv, step, tile * BLOCK_M, row, row - BLOCK_M, inner, turns, buffers, keys, band, n_k,
                scale_log2, sums,
                False, True, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
            )  # fmt: skip
            step += 1
    if SUM_DQ:
        dq_token = _issue_dq(inner[2], buffers[0], turns[3], step - 1, GROUP, D, BLOCK_M)
        dq = warpgroup_mma_wait(0, [dq_token])
        _send_dq(
            sums, dq, buffers[1], turns[4], step - 1, (base + end - 1) * BLOCK_M, GROUP, D, BLOCK_M, ENGINE
        )
    return dk, dv, step


@gluon.jit
def _compute(
    given, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, EVEN_N: gl.constexpr, ALONE: gl.constexpr,
    SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """One computing group: the keys GROUP · 64 and on of the program's 128."""
    written, sums, kv_tiles, rings, bars, buffers, shape, band, tiles_q, scale, scale_log2 = given
    dK, dV = written
    k_all, v_all = kv_tiles
    q_ring, do_ring, lse_ring, delta_ring = rings
    kv_full, q_full, q_empty, do_full, ds_full, ds_empty = bars
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    batch, kv_head, start_n, begin, cut, uncut, end = _place(shape, band, BLOCK_M, LEFT, RIGHT)
    kv_heads, group, n_k = shape[3], shape[4], shape[6]
    k_tile = k_all.reshape([KEYS, D])
    v_tile = v_all.reshape([KEYS, D])
    k = k_tile.slice(GROUP * ROWS, ROWS, dim=0)
    v = v_tile.slice(GROUP * ROWS, ROWS, dim=0)
    dk = gl.zeros([ROWS, D], gl.float32, acc_layout)
    dv = gl.zeros([ROWS, D], gl.float32, acc_layout)
    keys = start_n + GROUP * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    inner = (k, v, k_tile, q_ring, do_ring, lse_ring, delta_ring)
    turns = (q_full, q_empty, do_full, ds_full, ds_empty)
    mbarrier.wait(kv_full, 0)
    step = 0
    first_head = (batch * kv_heads + kv_head) * group
    tiles = (begin, cut, uncut, end)
    fixed = (inner, turns, buffers, keys, band, n_k, scale_log2, sums)
    if ALONE:
        dk, dv, step = _walk(
            dk, dv, step, first_head * tiles_q, tiles, fixed, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT,
            EVEN_N, SUM_DQ, ENGINE
        )  # fmt: skip
    else:
        for member in range(group):
            dk, dv, step = _walk(
                dk, dv, step, (first_head + member) * tiles_q, tiles, fixed, GROUP, D, BLOCK_M, STAGES,
                LEFT, RIGHT, EVEN_N,
                SUM_DQ, ENGINE,
            )  # fmt: skip
    if SUM_DQ:
        # The other group may still read K for its share of the last dQ.
        mbarrier.wait(ds_empty.index((step - 1) % 2), ((step - 1) // 2) & 1)
        barrier()
    v.store(dv.to(q_ring.dtype))
    k.store((dk * scale).to(q_ring.dtype))
    fence_async_shared()
    barrier()
    async_store(dV, [batch, kv_head, start_n + GROUP * ROWS, 0], v_all.slice(GROUP * ROWS, ROWS, dim=2))
    async_store(dK, [batch, kv_head, start_n + GROUP * ROWS, 0], k_all.slice(GROUP * ROWS, ROWS, dim=2))
    tma.store_wait(0)


@gluon.jit
def _copy(
    given, D: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr,
    RIGHT: gl.constexpr
):  # fmt: skip
    """The copying warp: this program's keys and values, then the query tiles with their statistics."""
    read, kv_tiles, rings, bars, shape, band, tiles_q = given
    Q, K, V, dOut, LSE, Delta = read
    q_ring, do_ring, lse_ring, delta_ring = rings
    kv_full, q_full, q_empty, do_full = bars
    batch, kv_head, start_n, begin, _cut, _uncut, end = _place(shape, band, BLOCK_M, LEFT, RIGHT)
    kv_heads, group = shape[3], shape[4]
    mbarrier.expect(kv_full, K.block_type.nbytes + V.block_type.nbytes)
    async_load(K, [batch, kv_head, start_n, 0], kv_full, kv_tiles[0])
    async_load(V, [batch, kv_head, start_n, 0], kv_full, kv_tiles[1])
    step = 0
    for member in range(group):
        head = kv_head * group + member
        base = (batch * kv_heads * group + head) * tiles_q
        for tile in range(begin, end):
            stage, free = step % STAGES, ((step // STAGES) & 1) ^ 1
            mbarrier.wait(q_empty.index(stage), free)
            mbarrier.expect(q_full.index(stage), Q.block_type.nbytes + BLOCK_M * 4)
            async_load(Q, [batch, head, tile * BLOCK_M, 0], q_full.index(stage), q_ring.index(stage))
            async_load(LSE, [base + tile, 0], q_full.index(stage), lse_ring.index(stage))
            mbarrier.expect(do_full.index(stage), dOut.block_type.nbytes + BLOCK_M * 4)
            async_load(dOut, [batch, head, tile * BLOCK_M, 0], do_full.index(stage), do_ring.index(stage))
            async_load(Delta, [base + tile, 0], do_full.index(stage), delta_ring.index(stage))
            step += 1


@gluon.jit(do_not_specialize=LENGTHS)
def hopper_backward_kernel(
    Q,  # descriptors over (batch, heads, rows, head_dim): Q and dOut in blocks of BLOCK_M rows,
    K,  # K and V in blocks of 128,
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
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    SUM_DQ: gl.constexpr,
    ENGINE: gl.constexpr,  # dQ is added by the copy engine, else by vector atomics
    COMPUTE_REGISTERS: gl.constexpr,
):
    """dK, dV and the sum of dQ. Grid: (key tiles * batch * kv_heads,)."""
    k_tile = gl.allocate_shared_memory(K.dtype, [1, 1, KEYS, D], K.layout)
    v_tile = gl.allocate_shared_memory(K.dtype, [1, 1, KEYS, D], K.layout)
    q_ring = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, D], Q.layout)
    do_ring = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, BLOCK_M, D], dOut.layout)
    lse_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], LSE.layout)
    delta_ring = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], Delta.layout)
    HALF: gl.constexpr = D // 2 if BLOCK_M == 64 else D
    if SUM_DQ:
        ds_tiles = gl.allocate_shared_memory(
            Q.dtype, [2, KEYS, BLOCK_M], gl.NVMMASharedLayout(128, 16, rank=2)
        )
    else:
        ds_tiles = q_ring
    if SUM_DQ and ENGINE:
        dq_tiles = gl.allocate_shared_memory(gl.float32, [2, 64, HALF], SumTiles.layout)
    else:
        dq_tiles = lse_ring
    one: gl.constexpr = mbarrier.MBarrierLayout()
    kv_full = gl.allocate_shared_memory(gl.int64, [1], one)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    ds_full = gl.allocate_shared_memory(gl.int64, [2, 1], one)
    ds_empty = gl.allocate_shared_memory(gl.int64, [2, 1], one)
    mbarrier.init(kv_full, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=2)
    for i in gl.static_range(2):
        mbarrier.init(ds_full.index(i), count=2)
        mbarrier.init(ds_empty.index(i), count=2)
    fence_async_shared()
    shape = (key_tiles, group_heads, n_heads, kv_heads, group, n_q, n_k)
    band = (left, right, shift)
    rings = (q_ring, do_ring, lse_ring, delta_ring)
    computing = (
        (dK, dV), (Sum, SumTiles), (k_tile, v_tile), rings, (kv_full, q_full, q_empty, do_full, ds_full,
        ds_empty),
        (ds_tiles, dq_tiles), shape, band, tiles_q, scale, scale_log2,
    )  # fmt: skip
    copying = (
        (Q, K, V, dOut, LSE, Delta), (k_tile, v_tile), rings, (kv_full, q_full, q_empty, do_full), shape,
        band, tiles_q,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_compute, (computing, 0, D, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N, ALONE, SUM_DQ, ENGINE)),
            (_compute, (computing, 1, D, BLOCK_M, STAGES, LEFT, RIGHT, EVEN_N, ALONE, SUM_DQ, ENGINE)),
            (_copy, (copying, D, BLOCK_M, STAGES, LEFT, RIGHT)),
        ],
        [4, 1],
        [COMPUTE_REGISTERS, 24],
    )
