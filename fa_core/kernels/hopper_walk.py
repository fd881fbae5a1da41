"""What both designs of the fused backward for sm_90 share: the way over the query tiles, and the sum of dQ.

dQ of a step is added to a sum in global memory in fp32, in no fixed order; `finish_kernel` makes dQ of it. A
copying warp keeps a ring of query tiles full, with what each query needs of its statistics.
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

from fa_core.kernels.gluon_names import async_add, async_load, barrier
from fa_core.kernels.hopper_tiles import place_keys


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


@gluon.jit
def issue_dq(k_tile, ds_tiles, ds_full, step, GROUP: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr):
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
def send_dq(
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
def times(probs, x):
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
def seen_only(
    probs, start_m, keys, band, n_k, BLOCK_M: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr
):
    """P^T [keys, BLOCK_M] with 0 where a query does not see a key."""
    layout: gl.constexpr = probs.type.layout
    positions = (start_m + band[2] + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, layout)))[None, :]
    rows = keys[:, None]
    seen = rows < n_k
    if RIGHT:
        seen = seen & (rows <= positions + band[1])
    if LEFT:
        seen = seen & (rows >= positions - band[0])
    return gl.where(seen, probs, 0.0)


@gluon.jit
def walk(
    sums, step, base, tiles, fixed, STEP: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr,
    BLOCK_M: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    EVEN_N: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """The query tiles of one head, whose first of all heads' is `base`; STEP takes one of them."""
    begin, cut, uncut, end = tiles
    EDGES: gl.constexpr = RIGHT or not EVEN_N
    row = (base + begin) * BLOCK_M
    sums = STEP(
        sums, step, begin * BLOCK_M, row, row, fixed,
        True, EDGES or LEFT, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
    )  # fmt: skip
    step += 1
    if EDGES:
        for tile in range(begin + 1, cut):
            row = (base + tile) * BLOCK_M
            sums = STEP(
                sums, step, tile * BLOCK_M, row, row - BLOCK_M, fixed,
                False, True, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
            )  # fmt: skip
            step += 1
    for tile in range(gl.maximum(cut, begin + 1), uncut):
        row = (base + tile) * BLOCK_M
        sums = STEP(
            sums, step, tile * BLOCK_M, row, row - BLOCK_M, fixed,
            False, False, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
        )  # fmt: skip
        step += 1
    if LEFT:
        for tile in range(gl.maximum(uncut, begin + 1), end):
            row = (base + tile) * BLOCK_M
            sums = STEP(
                sums, step, tile * BLOCK_M, row, row - BLOCK_M, fixed,
                False, True, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT, SUM_DQ, ENGINE,
            )  # fmt: skip
            step += 1
    if SUM_DQ:
        inner, _rings, bars, buffers, _keys, _band, _n_k, _scale_log2, total = fixed
        dq_token = issue_dq(inner[2], buffers[0], bars[3], step - 1, GROUP, D, BLOCK_M)
        dq = warpgroup_mma_wait(0, [dq_token])
        send_dq(
            total, dq, buffers[1], bars[4], step - 1, (base + end - 1) * BLOCK_M, GROUP, D, BLOCK_M, ENGINE
        )
    return sums, step


@gluon.jit
def walk_heads(
    sums, heads, tiles_q, tiles, fixed, STEP: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr,
    BLOCK_M: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    EVEN_N: gl.constexpr, ALONE: gl.constexpr, SUM_DQ: gl.constexpr, ENGINE: gl.constexpr,
):  # fmt: skip
    """`walk` over each of the heads (first, count) that share the program's key head."""
    first_head, group = heads
    step = 0
    if ALONE:
        sums, step = walk(
            sums, step, first_head * tiles_q, tiles, fixed, STEP, GROUP, D, BLOCK_M, STAGES, LEFT, RIGHT,
            EVEN_N, SUM_DQ, ENGINE,
        )  # fmt: skip
    else:
        for member in range(group):
            sums, step = walk(
                sums, step, (first_head + member) * tiles_q, tiles, fixed, STEP, GROUP, D, BLOCK_M, STAGES,
                LEFT, RIGHT, EVEN_N, SUM_DQ, ENGINE,
            )  # fmt: skip
    return sums, step


@gluon.jit
def copy_queries(
    given, KEYS: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, LEFT: gl.constexpr,
    RIGHT: gl.constexpr
):  # fmt: skip
    """The copying warp: this program's keys and values, then the query tiles with their statistics."""
    read, kv_tiles, rings, bars, shape, band, tiles_q = given
    Q, K, V, dOut, LSE, Delta = read
    q_ring, do_ring, lse_ring, delta_ring = rings
    kv_full, q_full, q_empty, do_full = bars
    batch, kv_head, start_n, begin, _cut, _uncut, end = place_keys(shape, band, KEYS, BLOCK_M, LEFT, RIGHT)
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
