"""Which tiles a program of the sm_90 kernels takes, which of them a band or the last key cuts, and the cutting.

Queries stand at `shift` from their index; a query sees keys from `left` before to `right` after its position.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

ROWS: gl.constexpr = gl.constexpr(64)  # of a computing group: what one wgmma of four warps takes


@gluon.jit
def place_queries(
    t, shape, band, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr
):
    """Of the t-th tile of queries: (batch, head, key head, first query, first key tile, end of key tiles).

    Tiles are taken head by head in groups of `group_heads` heads, whose keys stay in L2; within a group
    the last queries first, because under a causal mask they see the most keys.
    """
    tiles_per_head, group_heads, n_heads, heads, group, n_q, n_k = shape
    first_head = t // (group_heads * tiles_per_head) * group_heads
    in_group = t - first_head * tiles_per_head
    here = gl.minimum(group_heads, n_heads - first_head)
    start_m = (tiles_per_head - 1 - in_group // here) * BLOCK_M
    head_of_all = first_head + in_group % here
    batch = head_of_all // heads
    head = head_of_all - batch * heads
    rows = gl.minimum(BLOCK_M, n_q - start_m)
    begin, end = key_tiles_of(start_m, rows, 0, (n_k + BLOCK_N - 1) // BLOCK_N, band, BLOCK_N, LEFT, RIGHT)
    return batch, head, head // group, start_m, begin, end


@gluon.jit
def key_tiles_of(
    first, rows, begin, end, band, BLOCK_N: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr
):
    """(first, end) of the key tiles among begin, ..., end - 1 that queries first, ..., first + rows - 1 see.

    At least one: queries that see no key take a tile and hide it.
    """
    left, right, shift = band
    if RIGHT:  # the keys up to the last query's right end
        last = first + rows + shift + right
        end = gl.minimum(end, gl.maximum(last + BLOCK_N - 1, 0) // BLOCK_N)
    end = gl.maximum(end, begin + 1)
    if LEFT:
        begin = gl.maximum(begin, gl.maximum(first + shift - left, 0) // BLOCK_N)
        begin = gl.minimum(begin, end - 1)
    return begin, end


@gluon.jit
def cuts(
    first, begin, end, n_q, n_k, band, BLOCK_N: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    EVEN_N: gl.constexpr,
):  # fmt: skip
    """Of the key tiles end - 1, ..., begin of 64 queries, in this order: those seen whole, as (first, end).

    Those before are cut by the right edge or the last key, those after by the left edge.
    """
    left, right, shift = band
    count = end - begin
    right_cut = 0
    if RIGHT:
        whole = gl.maximum(first + shift + right + 1, 0)
        right_cut = end - gl.minimum(whole // BLOCK_N, end)
    if not EVEN_N:
        right_cut = gl.maximum(right_cut, end - gl.minimum(n_k // BLOCK_N, end))
    right_cut = gl.minimum(right_cut, count)
    left_cut = count
    if LEFT:
        inside = gl.maximum(gl.minimum(first + ROWS, n_q) - 1 + shift - left, 0)
        left_cut = end - (inside + BLOCK_N - 1) // BLOCK_N
        left_cut = gl.maximum(gl.minimum(left_cut, count), right_cut)
    return right_cut, left_cut


@gluon.jit
def place_keys(
    shape, band, KEYS: gl.constexpr, BLOCK_M: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr
):
    """Of a program of KEYS keys: (batch, key head, first key), and query tiles: begin, cut up to, uncut up to, end.

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
def hide(scores, positions, tile, n_k, band, BLOCK_N: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """-inf where a query does not see a key of the tile."""
    layout: gl.constexpr = scores.type.layout
    keys = (tile * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout)))[None, :]
    rows = positions[:, None]
    seen = keys < n_k
    if RIGHT:
        seen = seen & (keys <= rows + band[1])
    if LEFT:
        seen = seen & (keys >= rows - band[0])
    return gl.where(seen, scores, -float("inf"))


@gluon.jit
def pass_by(step, tiles, bars, STAGES: gl.constexpr):
    """Give back `tiles` tiles of the ring unread: other groups of the program see them, this one does not.

    Each is waited for first, lest a stage be given back twice before it is filled again.
    """
    k_full, k_empty, v_full, v_empty = bars
    for _ in range(tiles):
        stage, phase = step % STAGES, (step // STAGES) & 1
        mbarrier.wait(k_full.index(stage), phase)
        mbarrier.arrive(k_empty.index(stage), count=1)
        mbarrier.wait(v_full.index(stage), phase)
        mbarrier.arrive(v_empty.index(stage), count=1)
        step += 1
    return step
