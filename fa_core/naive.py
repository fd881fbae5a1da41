"""Eager attention: the baseline that flash is compared with, and, in fp64, the oracle of every test.

It materialises the score matrix, one kernel per step. The steps differ between code bases, and so do
the bytes they move; `VARIANTS` names the three that are in use, and `profiling.model.traffic` counts
each of them kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, overload

import torch

from fa_core.band import Band, make_band

VARIANTS: tuple[str, ...] = ("add", "fill", "fp32_softmax")
NEG_INF = float("-inf")


@overload
def naive_attention(
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
    variant: str = ...,
    return_lse: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def naive_attention(
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
    variant: str = ...,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def naive_attention(
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
    variant: str = "add",
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(cap(scale · q kᵀ) + alibi + bias + mask) v, materialised; differentiable, twice too.

    Args:
        q: (batch, heads, seq_len_q, head_dim), any floating dtype up to fp64, any device and strides.
        k: (batch, kv_heads, seq_len_k, head_dim); kv_heads divides heads.
        v: (batch, kv_heads, seq_len_k, head_dim_v).
        causal: query i sees key j when j <= i + shift.
        causal_align: `bottom-right`, where shift is seq_len_k - seq_len_q, or `top-left`, where it is 0. It
            places the window and the distances of `alibi_slopes` too.
        window: (left, right): query i sees keys i + shift - left to i + shift + right; None is no limit.
        alibi_slopes: (heads,) or (batch, heads): -slope · |i + shift - j| joins a score. No gradient.
        softcap: scores become softcap · tanh(score / softcap), before anything is added.
        bias: (batch, heads, seq_len_q, seq_len_k) or 1 in any of these places, any floating dtype; a dtype
            wider than q's widens the scores. -inf hides a pair.
        sinks: (heads,), one more score a row whose key has no value.
        scale: factor on the scores; 1/sqrt(head_dim) when None.
        variant: `add` adds a -inf mask, `fill` fills masked scores out of place, `fp32_softmax` adds the
            mask, takes the softmax in fp32 and casts back. Without a mask `add` and `fill` are the same.
        return_lse: also return the log-sum-exp of each row.

    Returns:
        out (batch, heads, seq_len_q, head_dim_v) in q's dtype; a row that sees no key is 0. With
        `return_lse` also lse (batch, heads, seq_len_q), natural log, sink included, fp32 (fp64 for fp64);
        -inf for such a row, or its sink. A NaN in k or v reaches masked rows as well: eager code multiplies
        it by 0 or adds -inf to it.

    Raises:
        ValueError: unknown variant or alignment, or a window of negative length.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    band = make_band(causal, causal_align, window)
    n_q, n_k = q.shape[-2], k.shape[-2]
    if window is not None:
        # Causal alone is masked even where it hides nothing (one query): eager code is, and is counted so.
        band = band.needed(n_q, n_k)
    # Rows known to see no key are left out, so that no softmax runs over nothing but -inf.
    first, end = band.visible_rows(n_q, n_k)
    diagonal = first + band.shift(n_q, n_k)  # the key on the diagonal of the first row that is left
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)

    # Scaling q rather than the scores saves an N² pass, and keeps fp16 scores from overflowing.
    scores = (q[:, :, first:end] * factor) @ k.transpose(-2, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    # What is added to the scores is summed up first: often it is smaller than they are.
    mask = None if alibi_slopes is None else _alibi(alibi_slopes, diagonal, scores)
    if bias is not None:
        rows = bias if bias.shape[2] == 1 else bias[:, :, first:end]
        mask = rows if mask is None else mask + rows
    hidden = None
    if not band.unlimited and first < end:
        hidden = _hidden(band, diagonal, scores)
        if variant != "fill" and mask is None:
            mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, NEG_INF)
        elif variant != "fill" and mask is not None:
            mask = mask.masked_fill(hidden, NEG_INF)
    if mask is not None:
        scores = scores + mask
    if hidden is not None and variant == "fill":
        scores = scores.masked_fill(hidden, NEG_INF)
    if sinks is not None:
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    blind = None
    if bias is not None:
        # Only a bias can hide all keys of a row that is left. NaN is not -inf: such a row stays NaN.
        blind = (scores == NEG_INF).all(dim=-1, keepdim=True)
        scores = scores.masked_fill(blind, 0.0)

    wide = torch.promote_types(scores.dtype, torch.float32)
    if variant == "fp32_softmax":
        probs = torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype)
    else:
        probs = torch.softmax(scores, dim=-1).to(q.dtype)
    if blind is not None:
        probs = probs.masked_fill(blind, 0.0)
    if sinks is not None:
        probs = probs[..., :-1]
    out = probs @ v
    out = _place(out, first, n_q, lambda count: out.new_zeros(*out.shape[:2], count, out.shape[-1]))
    if not return_lse:
        return out
    lse = torch.logsumexp(scores.to(wide), dim=-1)
    if blind is not None:
        lse = lse.masked_fill(blind.squeeze(-1), NEG_INF)
    lse = lse.to(torch.promote_types(q.dtype, torch.float32))
    # A row without keys has its sink alone, if that.
    alone = lse.new_full((q.shape[1],), NEG_INF) if sinks is None else sinks.to(lse.dtype)
    lse = _place(lse, first, n_q, lambda count: alone[:, None].expand(*q.shape[:2], count))
    return out, lse


def _alibi(slopes: torch.Tensor, diagonal: int, scores: torch.Tensor) -> torch.Tensor:
    """ALiBi's term of scores (batch, heads, rows, keys), in their dtype; formed in fp32 or fp64."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    i = torch.arange(scores.shape[-2], device=scores.device)[:, None] + diagonal
    j = torch.arange(scores.shape[-1], device=scores.device)
    return (-slopes.detach().to(wide)[..., None, None] * (i - j).abs()).to(scores.dtype)


def _hidden(band: Band, diagonal: int, scores: torch.Tensor) -> torch.Tensor:
    """The pairs (rows, keys) that a limited band hides, True; `diagonal` is the key on that of row 0."""
    ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    if band.right is None:
        return ones.tril(diagonal=diagonal - (band.left or 0) - 1)
    beyond = ones.triu(diagonal=diagonal + band.right + 1)
    return beyond if band.left is None else beyond | ones.tril(diagonal=diagonal - band.left - 1)


def _place(rows: torch.Tensor, first: int, n_q: int, blank: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Put rows, which begin at query `first` of n_q, between blank ones (dimension 2)."""
    after = n_q - first - rows.shape[2]
    parts = [*([blank(first)] if first else ()), rows, *([blank(after)] if after else ())]
    return torch.cat(parts, dim=2) if len(parts) > 1 else rows
