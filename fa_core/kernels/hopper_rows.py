"""What goes before and after the fused backward for sm_90: statistics of each query, and dQ from its sum."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["heads", "n_q", "padded"])
def prepare_kernel(
    Out, dOut, dLSE, RowMax, LogSum,  # the forward's; dLSE [batch, heads, n_q] fp32 or None
    LSE,  # [batch * heads, padded] fp32: log2 of the sum of exponents, +inf where P is zero
    Delta,  # the same shape: rowsum(dO · O) - dLSE, 0 beyond n_q
    Sum,  # [batch * heads, padded, D] fp32, set to zero; or None
    stride_o, stride_do, scale_log2, heads, n_q, padded, head_dim,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What the products need of each query, padded to whole tiles, and the sum of dQ at zero.

    Grid: (padded / BLOCK * batch * heads,): a second axis would end at 65 535 heads.
    """
    h = tl.program_id(0).to(tl.int64) // (padded // BLOCK)
    start = (tl.program_id(0) % (padded // BLOCK)) * BLOCK
    rows = start + tl.arange(0, BLOCK)
    cols = tl.arange(0, D)
    inside = rows < n_q
    both = inside[:, None] & (cols < head_dim)[None, :]
    o = Out + (h // heads) * stride_o[0] + (h % heads) * stride_o[1]
    do = dOut + (h // heads) * stride_do[0] + (h % heads) * stride_do[1]
    at = rows.to(tl.int64)[:, None]
    x = tl.load(o + at * stride_o[2] + cols[None, :] * stride_o[3], mask=both, other=0.0).to(tl.float32)
    y = tl.load(do + at * stride_do[2] + cols[None, :] * stride_do[3], mask=both, other=0.0).to(tl.float32)
    delta = tl.sum(x * y, 1)
    if dLSE is not None:
        delta -= tl.load(dLSE + h * n_q + rows, mask=inside, other=0.0)
    row_max = tl.load(RowMax + h * n_q + rows, mask=inside, other=float("-inf"))
    log_sum = tl.load(LogSum + h * n_q + rows, mask=inside, other=0.0)
    lse = tl.where(
        row_max == float("-inf"), float("inf"), row_max * scale_log2 + log_sum * 1.4426950408889634
    )
    tl.store(LSE + h * padded + rows, lse)
    tl.store(Delta + h * padded + rows, delta)
    if Sum is not None:
        zero = tl.zeros([BLOCK, D], tl.float32)
        tl.store(Sum + (h * padded + rows)[:, None] * D + cols[None, :], zero)


@triton.jit(do_not_specialize=["heads", "n_q", "padded"])
def finish_kernel(
    Sum, dQ, stride_dq, scale, heads, n_q, padded, head_dim,
    D: tl.constexpr, HALF: tl.constexpr, FRAGMENTS: tl.constexpr,
):  # fmt: skip
    """dQ = scale · Sum, 64 queries a program; Sum lies as `_fragment` says, or row by row.

    Grid: (padded / 64 * batch * heads,).
    """
    h = tl.program_id(0).to(tl.int64) // (padded // 64)
    start = (tl.program_id(0) % (padded // 64)) * 64
    rows = start + tl.arange(0, 64)
    cols = tl.arange(0, D)[None, :]
    r = tl.arange(0, 64)[:, None]
    if FRAGMENTS:
        c = cols % HALF
        within = (
            ((c // 8) * 128 + (r // 16) * 32 + (r % 8) * 4 + (c % 8) // 2) * 4 + ((r // 8) % 2) * 2 + c % 2
        )
        at = (cols // HALF) * (64 * HALF) + within
    else:
        at = r * D + cols
    x = tl.load(Sum + (h * padded + start) * D + at)
    base = dQ + (h // heads) * stride_dq[0] + (h % heads) * stride_dq[1]
    out = base + rows.to(tl.int64)[:, None] * stride_dq[2] + cols * stride_dq[3]
    tl.store(out, (x * scale).to(dQ.dtype.element_ty), mask=(rows < n_q)[:, None] & (cols < head_dim))
