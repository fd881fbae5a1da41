"""The tile algorithm with one safeguard left out, against fp64: what each of them is for.

The two loops here are those of `fa_core.tiled`, written out a second time so that the code which others call
has no unsafe switch; a test holds them to its bits when nothing is left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fa_core import naive_attention
from fa_core.band import make_band
from fa_core.scores import NEG_INF, ScoreRule
from profiling.case import Dtype, InputError

DTYPES: dict[Dtype, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
# What can be left out: maximum subtraction; the factor on O's earlier part; sums in fp32 rather than in the
# dtype; true fp32 products rather than TF32; delta = rowsum(dO · O) rather than the sum over one tile of
# P · dP; the guard for rows that have seen no key.
SAFEGUARDS = ("maximum", "rescaling", "accumulator", "products", "delta", "guard")
INPUTS = ("random", "large", "long", "outliers", "masked")
BLOCK = 64
TENSORS = ("out", "dq", "dk", "dv")
_TF32_LOW_BITS = 13  # of fp32's 23 mantissa bits TF32 keeps 10


class Inputs(NamedTuple):
    """q and dout (1, heads, n_q, d), k and v (1, heads, n_k, d), in fp64; and whether a causal mask is on."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    causal: bool = False


class Error(NamedTuple):
    """The error of one tensor; `left_out` is a safeguard, `none`, or `eager` for eager attention.

    `rel_error` is ‖x - ref‖ / ‖ref‖ and `rmse` the root of the mean squared difference, both None where
    `not_finite` of its `numbers` are infinite or NaN.
    """

    dtype: str
    left_out: str
    tensor: str
    rel_error: float | None
    rmse: float | None
    not_finite: int
    numbers: int


def draw(name: str, seed: int) -> Inputs:
    """Inputs of one kind, in fp64.

    `random`: standard normal, N = 256. `large`: the same with logits 32 times as large. `long`: 16 queries
    and 8192 keys with logits near 0, so that all keys weigh alike. `outliers`: N(0, 1), and with probability
    0.001 N(0, 100) on top, as in FlashAttention-3 (arXiv:2407.08608, table 3). `masked`: 96 queries and 40
    keys under a causal mask, of which 56 queries see no key. d = 64, two heads.

    Raises:
        InputError: there is no such kind.
    """
    if name not in INPUTS:
        raise InputError(f"inputs must be one of {', '.join(INPUTS)}, got {name!r}")
    generator = torch.Generator().manual_seed(seed)
    n_q, n_k = {"long": (16, 8192), "masked": (96, 40)}.get(name, (256, 256))

    def normal(n: int) -> torch.Tensor:
        x = torch.randn((1, 2, n, 64), generator=generator, dtype=torch.float64)
        if name == "outliers":
            rare = torch.rand(x.shape, generator=generator, dtype=torch.float64) < 0.001
            x = x + 10 * rare * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return x

    q, k, v, dout = normal(n_q), normal(n_k), normal(n_k), normal(n_q)
    return Inputs(q * {"large": 32, "long": 0.05}.get(name, 1.0), k, v, dout, name == "masked")


def errors(name: str, *, seed: int = 0, dtypes: tuple[Dtype, ...] = tuple(DTYPES)) -> list[Error]:
    """Errors on one kind of inputs: eager attention, the tile algorithm, and it without each safeguard.

    The reference is eager attention in fp64 on the inputs as they were rounded to the dtype.

    Raises:
        InputError: there is no such kind of inputs.
    """
    drawn, found = draw(name, seed), []
    for dtype in dtypes:
        inputs = _in_dtype(drawn, DTYPES[dtype])
        right = eager(_in_dtype(inputs, torch.float64))
        found += _errors(dtype, "eager", eager(inputs), right)
        for left_out in ("none", *SAFEGUARDS):
            found += _errors(dtype, left_out, tiles(inputs, left_out), right)
    return found


def rounded_twice(seed: int = 0, n: int = 1024, head_dim: int = 128) -> dict[str, dict[str, float]]:
    """RMSE of fp16 outputs on inputs with outliers, beside which FlashAttention-3 prints its own (table 3).

    Returns:
        By `eager` and `tiles`: `algorithm`, against fp64 on the inputs as rounded to fp16, and `total`,
        against fp64 on the inputs as drawn, which counts that rounding too. One head.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 1, 1, n, head_dim)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    rare = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.001
    drawn = drawn + 10 * rare * torch.randn(shape, generator=generator, dtype=torch.float64)
    inputs = _in_dtype(Inputs(*drawn, dout=drawn[0]), torch.float16)
    found: dict[str, dict[str, float]] = {}
    references = {"algorithm": _in_dtype(inputs, torch.float64), "total": Inputs(*drawn, dout=drawn[0])}
    right = {name: naive_attention(x.q, x.k, x.v) for name, x in references.items()}
    outs = {"eager": naive_attention(inputs.q, inputs.k, inputs.v), "tiles": _forward(inputs, "none")[0]}
    for way, out in outs.items():
        found[way] = {n: float((out.double() - ref).square().mean().sqrt()) for n, ref in right.items()}
    return found


def eager(inputs: Inputs) -> dict[str, torch.Tensor]:
    """Output and gradients of eager attention in the inputs' dtype."""
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out = naive_attention(*leaves, causal=inputs.causal)
    grads = torch.autograd.grad(out, leaves, inputs.dout)
    return {"out": out.detach()} | dict(zip(TENSORS[1:], grads, strict=True))


def tiles(inputs: Inputs, left_out: str) -> dict[str, torch.Tensor]:
    """Output and gradients of the tile algorithm without one safeguard; `none` leaves all in."""
    out, row_max, row_log_sum = _forward(inputs, left_out)
    grads = _backward(inputs, out, row_max, row_log_sum, left_out)
    return {"out": out} | dict(zip(TENSORS[1:], grads, strict=True))


def tf32(x: torch.Tensor) -> torch.Tensor:
    """fp32 numbers rounded to TF32, nearest with ties to even; numbers of other dtypes as they are.

    Done on the bits: a CPU has no TF32. What a tensor core does beyond rounding its operands (it adds in
    fp32) is not imitated.
    """
    if x.dtype != torch.float32:
        return x
    bits = x.contiguous().view(torch.int32)
    odd = (bits >> _TF32_LOW_BITS) & 1
    half = (1 << (_TF32_LOW_BITS - 1)) - 1
    kept = ((bits + half + odd) >> _TF32_LOW_BITS) << _TF32_LOW_BITS
    return torch.where(x.isfinite(), kept.view(torch.float32), x)


def _in_dtype(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return inputs._replace(**{name: getattr(inputs, name).to(dtype) for name in ("q", "k", "v", "dout")})


def _errors(
    dtype: str, left_out: str, found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]
) -> list[Error]:
    out = []
    for tensor in TENSORS:
        x, ref = found[tensor].double(), right[tensor]
        bad = int((~x.isfinite()).sum())
        error = None if bad else float((x - ref).norm() / ref.norm())
        rmse = None if bad else float((x - ref).square().mean().sqrt())
        out.append(Error(dtype, left_out, tensor, error, rmse, bad, x.numel()))
    return out


def _rule(inputs: Inputs) -> ScoreRule:
    n_q, n_k = inputs.q.shape[2], inputs.k.shape[2]
    band = make_band(inputs.causal, "bottom-right", None).needed(n_q, n_k)
    return ScoreRule(n_q=n_q, n_k=n_k, scale=inputs.q.shape[-1] ** -0.5, band=band)


def _wide(dtype: torch.dtype, left_out: str) -> torch.dtype:
    return dtype if left_out == "accumulator" else torch.promote_types(dtype, torch.float32)


def _product(a: torch.Tensor, b: torch.Tensor, left_out: str) -> torch.Tensor:
    return tf32(a) @ tf32(b) if left_out == "products" else a @ b


def _pivot(row_max: torch.Tensor, left_out: str) -> torch.Tensor:
    """A row that has seen no key keeps m = -inf, and -inf - (-inf) is no number: any finite pivot will do."""
    return row_max if left_out == "guard" else torch.where(row_max == NEG_INF, 0.0, row_max)


def _spans(length: int, first: int, end: int) -> list[slice]:
    """The tiles of `length` that meet [first, end)."""
    starts = range(first // BLOCK * BLOCK, end, BLOCK) if first < end else ()
    return [slice(start, min(start + BLOCK, length)) for start in starts]


def _forward(inputs: Inputs, left_out: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, and the rows' maxima and logarithms of their sums."""
    q, k, v, rule = *inputs[:3], _rule(inputs)
    wide = _wide(q.dtype, left_out)
    k, v = k.to(wide), v.to(wide)
    out = torch.zeros_like(q)
    row_max = torch.full(q.shape[:3], NEG_INF, dtype=wide)
    row_log_sum = torch.zeros_like(row_max)
    for rows in _spans(rule.n_q, 0, rule.n_q):
        q_tile = q[:, :, rows].to(wide)
        m = torch.full_like(row_max[:, :, rows], 0.0 if left_out == "maximum" else NEG_INF)
        row_sum = torch.zeros_like(m)
        acc = torch.zeros_like(q_tile)
        for cols in _spans(rule.n_k, *rule.keys_seen_by(rows)):
            products = _product(q_tile, k[:, :, cols].transpose(-2, -1), left_out)
            scores = rule.tile(products, rows, cols).final
            m_new = m if left_out == "maximum" else torch.maximum(m, scores.amax(dim=-1))
            probs = torch.exp(scores - _pivot(m_new, left_out)[..., None])
            rescale = torch.exp(m - _pivot(m_new, left_out))
            row_sum = row_sum * rescale + probs.sum(dim=-1)
            of_acc = torch.ones_like(rescale) if left_out == "rescaling" else rescale
            acc = acc * of_acc[..., None] + _product(probs, v[:, :, cols], left_out)
            m = m_new
        if left_out != "guard":
            row_sum = torch.where(row_sum == 0, 1.0, row_sum)
        out[:, :, rows] = (acc / row_sum[..., None]).to(q.dtype)
        row_max[:, :, rows], row_log_sum[:, :, rows] = m, torch.log(row_sum)
    return out, row_max, row_log_sum


def _backward(
    inputs: Inputs, out: torch.Tensor, row_max: torch.Tensor, row_log_sum: torch.Tensor, left_out: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK, dV."""
    q, k, v, rule = *inputs[:3], _rule(inputs)
    wide = row_max.dtype
    dout = inputs.dout.to(wide)
    q_wide, k_wide, v_wide = q.to(wide), k.to(wide), v.to(wide)
    delta = (dout * out.to(wide)).sum(dim=-1)
    row_max = _pivot(row_max, left_out)
    constant = rule.see_one_key(q.device)
    dq, dk, dv = torch.zeros_like(q_wide), torch.zeros_like(k_wide), torch.zeros_like(v_wide)

    def product(a: torch.Tensor, b: torch.Tensor) -> Any:
        return _product(a, b, left_out)

    for cols in _spans(rule.n_k, 0, rule.n_k):
        for rows in _spans(rule.n_q, *rule.queries_that_see(cols)):
            products = product(q_wide[:, :, rows], k_wide[:, :, cols].transpose(-2, -1))
            capped, scores = rule.tile(products, rows, cols)
            probs = torch.exp((scores - row_max[:, :, rows, None]) - row_log_sum[:, :, rows, None])
            dprobs = product(dout[:, :, rows], v_wide[:, :, cols].transpose(-2, -1))
            of_row = delta[:, :, rows, None]
            if left_out == "delta":
                of_row = (probs * dprobs).sum(dim=-1, keepdim=True)
            dscores = probs * (dprobs - torch.where(constant[rows, None], dprobs, of_row))
            dproducts = rule.dproducts(dscores, capped)
            dv[:, :, cols] += product(probs.transpose(-2, -1), dout[:, :, rows])
            dk[:, :, cols] += product(dproducts.transpose(-2, -1), q_wide[:, :, rows])
            dq[:, :, rows] += product(dproducts, k_wide[:, :, cols])
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)
