"""FlashAttention's algorithm in plain PyTorch, tile by tile, forward and backward.

The forward walks query tiles outside and key tiles inside, keeping a running maximum m, a running sum
l and an unnormalised output per row (online softmax; Milakov & Gimelshein 2018, Dao 2023 algorithm 1).
The backward recomputes the probabilities of each tile from what the forward stored of its row (Dao 2023,
algorithm 2). Both yield their state after every tile, so that what is shown elsewhere is this very
computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, overload

import torch
from torch.autograd.function import once_differentiable

from fa_core.band import make_band
from fa_core.scores import NEG_INF, ScoreRule


class ForwardTile(NamedTuple):
    """The forward's state after one (query tile, key tile); B = batch, H = heads.

    Row statistics are (B, H, rows), scores (B, H, rows, cols), outputs (B, H, rows, head_dim_v), all in
    the accumulator's dtype (fp32; fp64 for fp64 inputs).
    """

    rows: slice  # of the queries
    cols: slice  # of the keys
    scores: torch.Tensor  # as the softmax is given them, -inf where hidden
    row_max_before: torch.Tensor
    row_max: torch.Tensor
    row_sum_before: torch.Tensor
    row_sum: torch.Tensor
    rescale: torch.Tensor  # what the rows' earlier output and sum were multiplied by
    out_before: torch.Tensor  # unnormalised
    out: torch.Tensor


class BackwardTile(NamedTuple):
    """The backward's state after one (key tile, query tile): this tile's p, dp, ds and the running sums."""

    rows: slice
    cols: slice
    probs: torch.Tensor  # (B, H, rows, cols)
    dprobs: torch.Tensor
    dscores: torch.Tensor  # of the scores as the softmax was given them
    dq: torch.Tensor  # (B, H, rows, head_dim), summed so far
    dk: torch.Tensor  # (B, H, cols, head_dim), summed so far
    dv: torch.Tensor  # (B, H, cols, head_dim_v), summed so far


class Forward(NamedTuple):
    """What the forward leaves: out (B, H, Nq, dv) in q's dtype, and the row statistics, sinks included.

    row_max and row_log_sum are (B, H, Nq) in the accumulator's dtype. Their sum is the log-sum-exp; apart,
    the logarithm survives beside a maximum of -1e38.
    """

    out: torch.Tensor
    row_max: torch.Tensor  # -inf where a row sees no key
    row_log_sum: torch.Tensor  # log of the sum of exp(score - row_max), 0 where a row sees no key


def _spans(length: int, block: int, first: int, end: int) -> Iterator[slice]:
    """The tiles of `length` that meet [first, end)."""
    if first < end:
        for start in range(first // block * block, end, block):
            yield slice(start, min(start + block, length))


def _accumulator(q: torch.Tensor, bias: torch.Tensor | None) -> torch.dtype:
    wide = torch.promote_types(q.dtype, torch.float32)
    return wide if bias is None else torch.promote_types(wide, bias.dtype)


def _expand_heads(x: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).repeat_interleave(heads // x.shape[1], dim=1)


def _pivot(row_max: torch.Tensor) -> torch.Tensor:
    """A row that has seen no key keeps m = -inf; any finite pivot then gives exp(-inf) = 0."""
    return torch.where(row_max == NEG_INF, 0.0, row_max)


def forward_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rule: ScoreRule,
    *,
    sinks: torch.Tensor | None = None,
    block_m: int,
    block_n: int,
) -> Iterator[ForwardTile]:
    """Run the forward, yielding after each tile; the generator's return value is a `Forward`.

    Shapes as in `tiled_attention`. Tiles that the band empties are skipped, not computed. The sinks join a
    row's sum after its last tile.
    """
    heads, n_q, n_k = q.shape[1], q.shape[2], k.shape[2]
    wide = _accumulator(q, rule.bias)
    k, v = _expand_heads(k, heads, wide), _expand_heads(v, heads, wide)
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
    row_max = torch.full(q.shape[:3], NEG_INF, dtype=wide, device=q.device)
    row_log_sum = torch.zeros_like(row_max)
    for rows in _spans(n_q, block_m, 0, n_q):
        q_tile = q[:, :, rows].to(wide)
        m = torch.full_like(row_max[:, :, rows], NEG_INF)
        row_sum = torch.zeros_like(m)
        acc = torch.zeros(*m.shape, v.shape[-1], dtype=wide, device=q.device)
        for cols in _spans(n_k, block_n, *rule.keys_seen_by(rows)):
            scores = rule.tile(q_tile @ k[:, :, cols].transpose(-2, -1), rows, cols).final
            m_new = torch.maximum(m, scores.amax(dim=-1))
            probs = torch.exp(scores - _pivot(m_new)[..., None])
            rescale = torch.exp(m - _pivot(m_new))
            new_sum = row_sum * rescale + probs.sum(dim=-1)
            acc_new = acc * rescale[..., None] + probs @ v[:, :, cols]
            yield ForwardTile(rows, cols, scores, m, m_new, row_sum, new_sum, rescale, acc, acc_new)
            m, row_sum, acc = m_new, new_sum, acc_new
        if sinks is not None:
            sink = sinks.to(wide)[:, None]
            m_new = torch.maximum(m, sink)
            rescale = torch.exp(m - _pivot(m_new))
            row_sum = row_sum * rescale + torch.exp(sink - _pivot(m_new))
            m, acc = m_new, acc * rescale[..., None]
        row_sum = torch.where(row_sum == 0, 1.0, row_sum)
        out[:, :, rows] = (acc / row_sum[..., None]).to(q.dtype)
        row_max[:, :, rows], row_log_sum[:, :, rows] = m, torch.log(row_sum)
    return Forward(out, row_max, row_log_sum)


class Gradients(NamedTuple):
    """Each in the shape and dtype of its input; None without such an input."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dbias: torch.Tensor | None
    dsinks: torch.Tensor | None


def backward_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    forward: Forward,
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    rule: ScoreRule,
    *,
    sinks: torch.Tensor | None = None,
    block_m: int,
    block_n: int,
) -> Iterator[BackwardTile]:
    """Run the backward, yielding after each tile; the generator's return value is `Gradients`.

    Shapes as in `tiled_attention`; dout as out, dlse as lse. The row sum over *all* keys that the
    softmax's derivative needs is delta = rowsum(dout · out), which no single tile could form from p · dp.
    """
    heads, kv_heads, n_q, n_k = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    wide = forward.row_max.dtype
    k_wide, v_wide = _expand_heads(k, heads, wide), _expand_heads(v, heads, wide)
    q_wide, dout = q.to(wide), dout.to(wide)
    delta = (dout * forward.out.to(wide)).sum(dim=-1)
    if dlse is not None:
        delta = delta - dlse
    row_max, row_log_sum = _pivot(forward.row_max), forward.row_log_sum
    # A softmax over one key is constant: what dout seems to send to its score is rounding.
    constant = rule.see_one_key(q.device) & (sinks is None and dlse is None)
    dq, dk, dv = torch.zeros_like(q_wide), torch.zeros_like(k_wide), torch.zeros_like(v_wide)
    dbias = None if rule.bias is None else torch.zeros_like(rule.bias, dtype=wide)
    for cols in _spans(n_k, block_n, 0, n_k):
        for rows in _spans(n_q, block_m, *rule.queries_that_see(cols)):
            products = q_wide[:, :, rows] @ k_wide[:, :, cols].transpose(-2, -1)
            capped, scores = rule.tile(products, rows, cols)
            probs = torch.exp((scores - row_max[:, :, rows, None]) - row_log_sum[:, :, rows, None])
            dprobs = dout[:, :, rows] @ v_wide[:, :, cols].transpose(-2, -1)
            mean = torch.where(constant[rows, None], dprobs, delta[:, :, rows, None])
            dscores = probs * (dprobs - mean)
            if dbias is not None:
                part = rule.of_bias(dbias, rows, cols)
                part += dscores.sum_to_size(part.shape)
            dproducts = rule.dproducts(dscores, capped)
            dv[:, :, cols] += probs.transpose(-2, -1) @ dout[:, :, rows]
            dk[:, :, cols] += dproducts.transpose(-2, -1) @ q_wide[:, :, rows]
            dq[:, :, rows] += dproducts @ k_wide[:, :, cols]
            yield BackwardTile(
                rows, cols, probs, dprobs, dscores, dq[:, :, rows], dk[:, :, cols], dv[:, :, cols]
            )
    group = (kv_heads, heads // kv_heads)
    dk = dk.unflatten(1, group).sum(dim=2)
    dv = dv.unflatten(1, group).sum(dim=2)
    dsinks = None
    if sinks is not None:
        # A sink has no value, so of p · (dp - delta) only -p · delta is left.
        probs = torch.exp((sinks.to(wide)[:, None] - row_max) - row_log_sum)
        dsinks = -(probs * delta).sum(dim=(0, 2)).to(sinks.dtype)
    if rule.bias is not None and dbias is not None:
        dbias = dbias.to(rule.bias.dtype)
    return Gradients(dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dbias, dsinks)


def _finish(tiles: Iterator[Any]) -> Any:
    while True:
        try:
            next(tiles)
        except StopIteration as end:
            return end.value


class _Tiled(torch.autograd.Function):
    """Both loops as one function of autograd; `rule` comes without its bias, which has a gradient."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        sinks: torch.Tensor | None,
        rule: ScoreRule,
        tile: dict[str, int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        left = _finish(forward_tiles(q, k, v, rule._replace(bias=bias), sinks=sinks, **tile))
        ctx.save_for_backward(q, k, v, bias, sinks, *left)
        ctx.rule, ctx.tile = rule, tile
        ctx.set_materialize_grads(False)
        lse = (left.row_max + left.row_log_sum).to(torch.promote_types(q.dtype, torch.float32))
        return left.out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        q, k, v, bias, sinks, *left = ctx.saved_tensors
        forward = Forward(*left)
        if dout is None and dlse is None:
            return (None,) * 7
        if dout is None:
            dout = torch.zeros_like(forward.out)
        rule = ctx.rule._replace(bias=bias)
        grads = _finish(backward_tiles(q, k, v, forward, dout, dlse, rule, sinks=sinks, **ctx.tile))
        wanted = [grad if need else None for grad, need in zip(grads, ctx.needs_input_grad, strict=False)]
        return *wanted, None, None


@overload
def tiled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    causal_align: str = ...,
    window: tuple[int | None, int | None] | None = ...,
    alibi_slopes: torch.Tensor | None = ...,
    softcap: float | None = ...,
    bias: torch.Tensor | None = ...,
    sinks: torch.Tensor | None = ...,
    scale: float | None = ...,
    block_m: int = ...,
    block_n: int = ...,
    return_lse: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def tiled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    causal_align: str = ...,
    window: tuple[int | None, int | None] | None = ...,
    alibi_slopes: torch.Tensor | None = ...,
    softcap: float | None = ...,
    bias: torch.Tensor | None = ...,
    sinks: torch.Tensor | None = ...,
    scale: float | None = ...,
    block_m: int = ...,
    block_n: int = ...,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def tiled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    block_m: int = 64,
    block_n: int = 64,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention, one block_m x block_n tile at a time; never holds a score matrix.

    It can be differentiated once; `naive_attention` can twice.

    Args:
        q: (batch, heads, seq_len_q, head_dim), any floating dtype, any device and strides.
        k: (batch, kv_heads, seq_len_k, head_dim); kv_heads divides heads.
        v: (batch, kv_heads, seq_len_k, head_dim_v).
        causal: query i sees key j when j <= i + shift.
        causal_align: `bottom-right`, where shift is seq_len_k - seq_len_q, or `top-left`, where it is 0. It
            places the window and the distances of `alibi_slopes` too.
        window: (left, right): query i sees keys i + shift - left to i + shift + right; None is no limit.
        alibi_slopes: (heads,) or (batch, heads): -slope · |i + shift - j| joins a score. No gradient.
        softcap: scores become softcap · tanh(score / softcap), before anything is added.
        bias: (batch, heads, seq_len_q, seq_len_k) or 1 in any of these places, added to the scores; -inf
            hides a pair. Differentiable.
        sinks: (heads,), one more score a row whose key has no value. Differentiable.
        scale: factor on the scores; 1/sqrt(head_dim) when None.
        block_m: query rows of a tile, >= 1.
        block_n: keys of a tile, >= 1.
        return_lse: also return lse (batch, heads, seq_len_q), natural log, sink included, differentiable.

    Returns:
        out (batch, heads, seq_len_q, head_dim_v) in q's dtype, 0 for rows that see no key (lse -inf, or
        the sink); lse in fp32 (fp64 for fp64).

    Raises:
        ValueError: unknown alignment, or a window of negative length.
    """
    n_q, n_k = q.shape[2], k.shape[2]
    rule = ScoreRule(
        n_q=n_q,
        n_k=n_k,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        band=make_band(causal, causal_align, window).needed(n_q, n_k),
        alibi_slopes=None if alibi_slopes is None else alibi_slopes.detach(),
        softcap=softcap,
    )
    apply: Any = _Tiled.apply
    out, lse = apply(q, k, v, bias, sinks, rule, {"block_m": block_m, "block_n": block_n})
    return (out, lse) if return_lse else out
