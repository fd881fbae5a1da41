# type: ignore
"""The k greatest logits of each row in Triton, with their softmax weights, and the gradient.

Milakov and Gimelshein (arXiv 1805.02867), section 4, fuse the choice into the read that the softmax makes
anyway. Where a row is short it lies in registers, and k times its greatest is taken out. Where it is long,
the one read leaves of every group of GROUP classes the greatest: the k greatest classes lie in the k groups
whose greatest are greatest, and only these are looked at again. So the work does not depend on the order in
which logits come.

A class is a whole number here, its key: the logit's bits in the logits' order, then its column, the lower
the greater. Keys differ, so that equal logits go by column, and taking one out is one comparison. They have
32 bits (NARROW) where logits have 16 and columns fewer, else 64.
"""

import triton
import triton.language as tl

from fa_core.softmax.kernels import LOG2E, join

# Below every order and every key: what is not there.
NOTHING = tl.constexpr(-0x80000000)
NOTHING_WIDE = tl.constexpr(-0x8000000000000000)


@triton.jit
def _order_of(x):
    """Whole numbers in the order of floats, 0 for both zeros, and NaN, of either sign, above all."""
    if x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        is_nan = magnitude > 0x7F800000
        greatest = 0x7FFFFFFF
    else:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32)
        magnitude = bits & 0x7FFF
        if x.dtype == tl.bfloat16:
            is_nan = magnitude > 0x7F80
        else:
            is_nan = magnitude > 0x7C00
        greatest = 0x7FFF
    return tl.where(is_nan, greatest, tl.where(bits < 0, -magnitude, magnitude))


@triton.jit
def _logit_of(order, LIKE: tl.constexpr):
    """The logit of type LIKE with this place in the order, in fp32."""
    if tl.float32 == LIKE:
        bits = tl.where(order < 0, -order | NOTHING, order)
        x = bits.to(tl.float32, bitcast=True)
    else:
        bits = tl.where(order < 0, -order | -0x8000, order).to(tl.int16)
        x = bits.to(LIKE, bitcast=True).to(tl.float32)
    return x


@triton.jit
def _key_of(order, column, there, NARROW: tl.constexpr):
    """The key of what is there; of what is not, one below all."""
    if NARROW:
        key = tl.where(there, (order << 16) | (0xFFFF - column), NOTHING)
    else:
        key = (order.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)
        key = tl.where(there, key, NOTHING_WIDE)
    return key


@triton.jit
def _parts_of(key, NARROW: tl.constexpr):
    """(order, column) of a key."""
    if NARROW:
        order = key >> 16
        column = 0xFFFF - (key & 0xFFFF)
    else:
        order = (key >> 32).to(tl.int32)
        column = 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
    return order, column


@triton.jit
def _greatest(keys, held, K: tl.constexpr, SLOTS: tl.constexpr):
    """The K greatest of keys (rows, columns) and held (rows, SLOTS, or None), descending, (rows, SLOTS)."""
    slots = tl.arange(0, SLOTS)[None, :]
    nothing: tl.constexpr = NOTHING if keys.dtype == tl.int32 else NOTHING_WIDE
    found = tl.full([keys.shape[0], SLOTS], nothing, keys.dtype)
    for i in range(K):
        top = tl.max(keys, 1)
        if held is not None:
            top = tl.maximum(top, tl.max(held, 1))
            held = tl.where(held == top[:, None], nothing, held)
        keys = tl.where(keys == top[:, None], nothing, keys)
        found = tl.where(slots == i, top[:, None], found)
    return found


@triton.jit
def _write(x, column, m, d, Weights, Indices, rows, n_rows, K: tl.constexpr, SLOTS: tl.constexpr):
    """Write weights exp(x - m) / d and columns of the classes found (rows, SLOTS)."""
    slots = tl.arange(0, SLOTS)[None, :]
    weights = tl.math.exp2((x - m[:, None]) * LOG2E) / d[:, None]
    at = rows.to(tl.int64)[:, None] * K + slots
    there = (rows < n_rows)[:, None] & (slots < K)
    tl.store(Weights + at, weights.to(Weights.dtype.element_ty), mask=there)
    tl.store(Indices + at, column.to(tl.int64), mask=there)


@triton.jit
def _chosen(found, LIKE: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr, NARROW: tl.constexpr):
    """Of the keys found: their logits and columns, the greatest logit m, the sum d over the K of them."""
    slots = tl.arange(0, SLOTS)[None, :]
    order, column = _parts_of(found, NARROW)
    x = tl.where(slots < K, _logit_of(order, LIKE), float("-inf"))
    m = tl.sum(tl.where(slots == 0, x, 0.0), 1)
    return x, column, m, tl.sum(tl.where(slots < K, tl.math.exp2((x - m[:, None]) * LOG2E), 0.0), 1)


@triton.jit(do_not_specialize=["n_rows"])
def top_k_few_kernel(
    Logits,  # (n_rows, n_classes), rows `stride` apart
    Weights, Indices,  # (n_rows, K)
    RowMax, LogSum,  # (n_rows,) fp32, or None: then weights are renormalised
    stride,
    n_rows,
    n_classes,
    K: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, at least K; so is COLUMNS to n_classes
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The choice for ROWS rows, each held whole."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)[None, :]
    there = (rows < n_rows)[:, None] & (columns < n_classes)
    x = tl.load(Logits + rows.to(tl.int64)[:, None] * stride + columns, mask=there, other=float("-inf"))
    keys = _key_of(_order_of(x), columns, columns < n_classes, NARROW)
    found = _greatest(keys, None, K, SLOTS)
    best, column, m, d = _chosen(found, Logits.dtype.element_ty, K, SLOTS, NARROW)
    if RowMax is not None:
        d = tl.sum(tl.math.exp2((x.to(tl.float32) - m[:, None]) * LOG2E), 1)
        tl.store(RowMax + rows, m, mask=rows < n_rows)
        tl.store(LogSum + rows, tl.log(d), mask=rows < n_rows)
    _write(best, column, m, d, Weights, Indices, rows, n_rows, K, SLOTS)


@triton.jit
def top_k_groups_kernel(
    Logits,
    Greatest,  # (n_rows, n_groups) int32: the order of each group's greatest logit
    Parts,  # (2, n_rows, chunks) fp32: maximum and normaliser of each chunk of a row, or None
    stride,
    n_rows,
    n_classes,
    n_groups,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,  # of a chunk
):
    """What the choice needs of one chunk of a row: the one read of all logits."""
    chunks = tl.cdiv(n_groups, GROUPS)
    row = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    groups = chunk * GROUPS + tl.arange(0, GROUPS)
    columns = chunk * (GROUPS * GROUP) + (
        tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    )
    x = tl.load(Logits + row * stride + columns, mask=columns < n_classes, other=float("-inf"))
    order = tl.where(columns < n_classes, _order_of(x), NOTHING)
    tl.store(Greatest + row * n_groups + groups, tl.max(order, 1), mask=groups < n_groups)
    if Parts is not None:
        x = x.to(tl.float32)
        m = tl.max(tl.max(x, 1), 0)
        anchor = tl.where(m == float("-inf"), 0.0, m)
        d = tl.sum(tl.sum(tl.math.exp2((x - anchor) * LOG2E), 1), 0)
        tl.store(Parts + row * chunks + chunk, m)
        tl.store(Parts + (n_rows + row) * chunks + chunk, d)


@triton.jit(do_not_specialize=["n_rows"])
def top_k_selection_kernel(
    Logits,
    Weights, Indices, RowMax, LogSum,  # as in top_k_few_kernel
    Greatest, Parts,  # as in top_k_groups_kernel
    stride,
    n_rows,
    n_classes,
    n_groups,
    chunks,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,  # groups looked at together
    CHUNKS: tl.constexpr,  # a power of two, at least chunks
):  # fmt: skip
    """The choice for one row: K groups by their greatest, then K classes out of these."""
    rows = tl.program_id(0) + tl.arange(0, 1)
    row = tl.program_id(0).to(tl.int64)
    held = tl.full([1, SLOTS], NOTHING_WIDE, tl.int64)
    for start in range(0, n_groups, TILE):
        groups = start + tl.arange(0, TILE)[None, :]
        order = tl.load(Greatest + row * n_groups + groups, mask=groups < n_groups, other=0)
        held = _greatest(_key_of(order, groups, groups < n_groups, False), held, K, SLOTS)
    _, group = _parts_of(held, False)
    group = tl.reshape(tl.where(held == NOTHING_WIDE, 0x7FFFFFFF // GROUP, group), [SLOTS])
    columns = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    there = columns < n_classes
    x = tl.load(Logits + row * stride + columns, mask=there, other=float("-inf"))
    keys = tl.reshape(_key_of(_order_of(x), columns, there, False), [1, SLOTS * GROUP])
    found = _greatest(keys, None, K, SLOTS)
    best, column, m, d = _chosen(found, Logits.dtype.element_ty, K, SLOTS, False)
    if RowMax is not None:
        at = tl.arange(0, CHUNKS)[None, :]
        parts = Parts + row * chunks + at
        part_m = tl.load(parts, mask=at < chunks, other=float("-inf"))
        part_d = tl.load(parts + n_rows.to(tl.int64) * chunks, mask=at < chunks, other=0.0)
        m, d = join(part_m, part_d, 1)
        tl.store(RowMax + rows, m)
        tl.store(LogSum + rows, tl.log(d))
    _write(best, column, m, d, Weights, Indices, rows, n_rows, K, SLOTS)


@triton.jit(do_not_specialize=["n_rows"])
def top_k_backward_kernel(
    Logits,
    Indices,
    RowMax, LogSum,  # None where weights are renormalised
    dWeights,  # (n_rows, K)
    dLogits,  # (n_rows, n_classes), rows `stride_out` apart
    stride, stride_out,
    n_rows,
    n_classes,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """dLogits = w (dW - sum of w dW): w are the weights, or over all classes the probabilities. A tile of it.

    Weights are made again from the logits chosen, unrounded. A class that was not chosen has dW 0, and, where
    weights are renormalised, w 0.
    """
    chunks = tl.cdiv(n_classes, COLUMNS)
    rows = (tl.program_id(0) // chunks) * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(0) % chunks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    slots = tl.arange(0, SLOTS)[None, :]
    inside = (rows < n_rows)[:, None]
    chosen = inside & (slots < K)
    at = rows.to(tl.int64)[:, None] * K + slots
    index = tl.load(Indices + at, mask=chosen, other=-1)
    row = Logits + rows.to(tl.int64)[:, None] * stride
    x = tl.load(row + index, mask=chosen, other=float("-inf")).to(tl.float32)
    dw = tl.load(dWeights + at, mask=chosen, other=0.0).to(tl.float32)
    there = inside & (columns < n_classes)
    if RowMax is None:
        m = tl.max(x, 1)[:, None]
        w = tl.math.exp2((x - m) * LOG2E)
        w = tl.where(chosen, w / tl.sum(w, 1)[:, None], 0.0)
        mean = tl.sum(w * dw, 1)[:, None]
        # 0, but NaN in a row that is NaN.
        dx = tl.zeros([ROWS, COLUMNS], tl.float32) + mean * 0.0
    else:
        m = tl.load(RowMax + rows, mask=rows < n_rows, other=0.0)[:, None]
        log_sum = tl.load(LogSum + rows, mask=rows < n_rows, other=0.0)[:, None] * LOG2E
        w = tl.where(chosen, tl.math.exp2((x - m) * LOG2E - log_sum), 0.0)
        mean = tl.sum(w * dw, 1)[:, None]
        p = tl.load(row + columns, mask=there, other=float("-inf")).to(tl.float32)
        dx = -mean * tl.math.exp2((p - m) * LOG2E - log_sum)
    d = w * (dw - mean)
    first = (tl.program_id(0) % chunks) * COLUMNS
    here = (index >= first) & (index < first + COLUMNS)
    if tl.max(tl.max(here.to(tl.int32), 1), 0) > 0:
        for i in range(K):
            column = tl.sum(tl.where(slots == i, index, 0), 1)[:, None]
            dx = tl.where(columns == column, tl.sum(tl.where(slots == i, d, 0.0), 1)[:, None], dx)
    out = dLogits + rows.to(tl.int64)[:, None] * stride_out + columns
    tl.store(out, dx.to(dLogits.dtype.element_ty), mask=there)
