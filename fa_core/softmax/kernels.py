# type: ignore
"""Cross-entropy in Triton: the online normaliser over one read of the logits, and its gradient.

Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867), section 3; m and d,
a maximum and the sum of exponentials relative to it, are the paper's. Each lane keeps a pair of its own over
the columns that it meets, so that the loop exchanges nothing between lanes; they are joined at a row's end.

Maximum and logarithm of the sum stay apart, as in attention: their sum, the log-sum-exp, rounds away what
a large maximum leaves of the other, and with it digits of every probability.

Where a row's length is no multiple of what a lane loads at once, rows start anywhere, and a load of several
classes would have to be made of single ones. SHIFTED tiles start at the last boundary before the row instead,
as far to the left as the row is off it; only tiles that stick out of the row are masked, class by class.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _anchor(m):
    """What is subtracted in exponents: the maximum, or 0 where there is nothing but -inf."""
    return tl.where(m == float("-inf"), 0.0, m)


@triton.jit
def join(m, d, AXIS: tl.constexpr):
    """(m, d) of all that the parts (m, d) along an axis saw."""
    joint = tl.max(m, AXIS)
    return joint, tl.sum(d * tl.math.exp2((m - tl.expand_dims(_anchor(joint), AXIS)) * LOG2E), AXIS)


@triton.jit
def _load_target(Target, rows, n_rows, n_classes, ignore_index):
    """(target, whether ignored, whether a class) of rows; those outside count as ignored."""
    inside = rows < n_rows
    target = tl.load(Target + rows, mask=inside, other=0)
    return target, (target == ignore_index) | ~inside, (target >= 0) & (target < n_classes)


@triton.jit
def _finish(
    m, d, rows, Logits, Target, Loss, RowMax, LogSum, stride, n_rows, n_classes, ignore_index
):  # fmt: skip
    """Write a row's loss, its maximum and the logarithm of its sum."""
    target, ignored, a_class = _load_target(Target, rows, n_rows, n_classes, ignore_index)
    found = a_class & ~ignored
    at = Logits + rows.to(tl.int64) * stride + tl.where(found, target, 0)
    x = tl.load(at, mask=found, other=0.0).to(tl.float32)
    log_sum = tl.log(d)
    loss = tl.where(a_class, (m - x) + log_sum, float("nan"))
    inside = rows < n_rows
    tl.store(Loss + rows, tl.where(ignored, 0.0, loss), mask=inside)
    tl.store(RowMax + rows, m, mask=inside)
    tl.store(LogSum + rows, log_sum, mask=inside)


@triton.jit
def row_start(rows, stride, VECTOR: tl.constexpr, SHIFTED: tl.constexpr):
    """(where rows are read from, how many classes that lies before each): on a boundary if SHIFTED."""
    at = rows.to(tl.int64) * stride
    shift = tl.zeros(rows.shape, tl.int32)
    if SHIFTED:
        shift = (at % VECTOR).to(tl.int32)
        at = tl.multiple_of(at - shift, VECTOR)
    return at, shift


@triton.jit
def sticks_out(start, n_classes, TILE: tl.constexpr, VECTOR: tl.constexpr):
    """Whether a shifted tile from `start` on may hold what is not the row's."""
    return (start < VECTOR) | (start + TILE > n_classes)


@triton.jit(do_not_specialize=["n_rows", "ignore_index"])
def cross_entropy_kernel(
    Logits,  # (n_rows, n_classes), rows `stride` apart
    Target,  # (n_rows,)
    Loss, RowMax, LogSum,  # (n_rows,) fp32
    Parts,  # (2, parts, n_rows) fp32: maxima and sums of each part, or None where a row is one
    stride,
    n_rows,
    n_classes,
    part,  # columns of a part, a multiple of a tile
    ignore_index,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,  # columns that a lane loads at once
    SHIFTED: tl.constexpr,
):  # fmt: skip
    """Loss and statistics of ROWS rows, or (m, d) of a part of each."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (rows < n_rows)[:, None, None]
    at, shift = row_start(rows, stride, VECTOR, SHIFTED)
    row = Logits + at[:, None, None]
    lanes = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    begin = 0
    end = n_classes + (VECTOR - 1 if SHIFTED else 0)
    if Parts is not None:
        begin = tl.program_id(1) * part
        end = tl.minimum(begin + part, end)
    m = tl.full([ROWS, LANES], float("-inf"), tl.float32)
    d = tl.zeros([ROWS, LANES], tl.float32)
    for start in range(begin, end, LANES * VECTOR):
        places = (start + lanes)[None, :, :]
        if SHIFTED:
            if sticks_out(start, n_classes, LANES * VECTOR, VECTOR):
                columns = places - shift[:, None, None]
                there = inside & (columns >= 0) & (columns < n_classes)
                x = tl.load(row + places, mask=there, other=float("-inf")).to(tl.float32)
            else:
                x = tl.load(row + places, mask=inside, other=float("-inf")).to(tl.float32)
        else:
            x = tl.load(row + places, mask=inside & (places < n_classes), other=float("-inf")).to(tl.float32)
        new = tl.maximum(m, tl.max(x, 2))
        anchor = _anchor(new)
        d = d * tl.math.exp2((m - anchor) * LOG2E)
        d += tl.sum(tl.math.exp2((x - anchor[:, :, None]) * LOG2E), 2)
        m = new
    m, d = join(m, d, 1)
    if Parts is None:
        _finish(m, d, rows, Logits, Target, Loss, RowMax, LogSum, stride, n_rows, n_classes, ignore_index)
    else:
        at = tl.program_id(1).to(tl.int64) * n_rows + rows
        tl.store(Parts + at, m, mask=rows < n_rows)
        tl.store(Parts + tl.num_programs(1).to(tl.int64) * n_rows + at, d, mask=rows < n_rows)


@triton.jit(do_not_specialize=["n_rows", "n_parts", "ignore_index"])
def cross_entropy_join_kernel(
    Logits, Target, Loss, RowMax, LogSum, Parts, stride, n_rows, n_classes, n_parts, ignore_index,
    ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The same from the parts of ROWS rows; PARTS is at least n_parts."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    parts = tl.arange(0, PARTS)[None, :]
    at = Parts + parts * n_rows + rows[:, None]
    inside = (rows < n_rows)[:, None] & (parts < n_parts)
    m = tl.load(at, mask=inside, other=float("-inf"))
    d = tl.load(at + n_parts * n_rows, mask=inside, other=0.0)
    m, d = join(m, d, 1)
    _finish(m, d, rows, Logits, Target, Loss, RowMax, LogSum, stride, n_rows, n_classes, ignore_index)


@triton.jit
def _write_gradient(logits, dlogits, columns, rows_there, there, target, m, log_sum, dloss, dlse):
    """Of one tile; `rows_there` (rows, 1) are those with a gradient, `there` what is the rows'.

    At the target what the loss and the lse send cancels, so there they are not added up first.
    """
    x = tl.load(logits, mask=there & rows_there, other=float("-inf")).to(tl.float32)
    p = tl.math.exp2((x - m[:, None]) * LOG2E - (log_sum * LOG2E)[:, None])
    dloss, dlse = dloss[:, None], dlse[:, None]
    dx = tl.where(columns == target[:, None], dloss * (p - 1.0) + dlse * p, (dloss + dlse) * p)
    dx = tl.where(rows_there, dx, 0.0)
    tl.store(dlogits, dx.to(dlogits.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["n_rows", "ignore_index"])
def cross_entropy_backward_kernel(
    Logits,
    Target,
    RowMax, LogSum,
    dLoss, dLogSum,  # (n_rows,) fp32, rows `stride_loss` and `stride_sum` apart; None where there is none
    dLogits,  # as Logits, rows `stride_out` apart
    stride, stride_out, stride_loss, stride_sum,
    n_rows,
    n_classes,
    ignore_index,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    SHIFTED: tl.constexpr,  # then both strides are as far from a boundary
):  # fmt: skip
    """dLogits = (dLoss + dLogSum) p - dLoss [column is the target], a tile of it.

    Rows without a gradient (ignored, most of all) are written without being read.
    """
    chunks = tl.cdiv(n_classes + (VECTOR - 1 if SHIFTED else 0), COLUMNS)
    rows = (tl.program_id(0) // chunks) * ROWS + tl.arange(0, ROWS)
    start = (tl.program_id(0) % chunks) * COLUMNS
    places = (start + tl.arange(0, COLUMNS))[None, :]
    inside = rows < n_rows
    target, ignored, a_class = _load_target(Target, rows, n_rows, n_classes, ignore_index)
    m = tl.load(RowMax + rows, mask=inside, other=0.0)
    log_sum = tl.load(LogSum + rows, mask=inside, other=0.0)
    dloss = tl.zeros([ROWS], tl.float32)
    if dLoss is not None:
        dloss = tl.load(dLoss + rows * stride_loss, mask=inside, other=0.0)
        dloss = tl.where(ignored, 0.0, tl.where(a_class, dloss, float("nan")))
    dlse = tl.zeros([ROWS], tl.float32)
    if dLogSum is not None:
        dlse = tl.load(dLogSum + rows * stride_sum, mask=inside, other=0.0)
    has_gradient = ((dloss != 0.0) | (dlse != 0.0))[:, None]
    at, shift = row_start(rows, stride, VECTOR, SHIFTED)
    at_out, _ = row_start(rows, stride_out, VECTOR, SHIFTED)
    logits = Logits + at[:, None] + places
    dlogits = dLogits + at_out[:, None] + places
    there = inside[:, None]
    if SHIFTED:
        columns = places - shift[:, None]
        if sticks_out(start, n_classes, COLUMNS, VECTOR):
            part = there & (columns >= 0) & (columns < n_classes)
            _write_gradient(logits, dlogits, columns, has_gradient, part, target, m, log_sum, dloss, dlse)
        else:
            whole = there & (places >= 0)
            _write_gradient(logits, dlogits, columns, has_gradient, whole, target, m, log_sum, dloss, dlse)
    else:
        part = there & (places < n_classes)
        _write_gradient(logits, dlogits, places, has_gradient, part, target, m, log_sum, dloss, dlse)
