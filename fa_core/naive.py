"""Eager attention: the baseline that flash is compared with, and, in fp64, the oracle of every test.

It materialises the score matrix, one kernel per step. The steps differ between code bases, and so do
the bytes they move; `VARIANTS` names the three that are in use, and `profiling.model.traffic` counts
each of them kernel by kernel.
"""

from __future__ import annotations

from typing import Literal, overload

import torch

VARIANTS: tuple[str, ...] = ("add", "fill", "fp32_softmax")
Variant = Literal["add", "fill", "fp32_softmax"]


@overload
def naive_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
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
    scale: float | None = None,
    variant: str = "add",
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · q kᵀ + mask) v, materialised; differentiable, twice too.

    Args:
        q: (batch, heads, seq_len_q, head_dim), any floating dtype up to fp64, any device and strides.
        k: (batch, kv_heads, seq_len_k, head_dim); kv_heads divides heads.
        v: (batch, kv_heads, seq_len_k, head_dim_v).
        causal: query i sees key j when j <= i + seq_len_k - seq_len_q (bottom-right alignment).
        scale: factor on the scores; 1/sqrt(head_dim) when None.
        variant: `add` adds a -inf mask, `fill` fills masked scores out of place, `fp32_softmax` adds the
            mask, takes the softmax in fp32 and casts back. Without a mask `add` and `fill` are the same.
        return_lse: also return the log-sum-exp of each row.

    Returns:
        out (batch, heads, seq_len_q, head_dim_v) in q's dtype; a row that sees no key is 0. With
        `return_lse` also lse (batch, heads, seq_len_q), natural log, fp32 (fp64 for fp64), -inf for
        such a row.

    Raises:
        ValueError: unknown variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    n_q, n_k = q.shape[-2], k.shape[-2]
    # Rows known to see no key are left out, so that no softmax runs over nothing but -inf.
    n_empty = n_q if n_k == 0 else max(0, n_q - n_k) if causal else 0
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)

    # Scaling q rather than the scores saves an N² pass, and keeps fp16 scores from overflowing.
    scores = (q[:, :, n_empty:] * factor) @ k.transpose(-2, -1)
    if causal and n_q > n_empty:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        hidden = hidden.triu(diagonal=1 + n_k - (n_q - n_empty))
        if variant == "fill":
            scores = scores.masked_fill(hidden, float("-inf"))
        else:
            mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
            scores = scores + mask.masked_fill_(hidden, float("-inf"))
    if variant == "fp32_softmax":
        wide = torch.promote_types(q.dtype, torch.float32)
        probs = torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype)
    else:
        probs = torch.softmax(scores, dim=-1)
    out = probs @ v
    if n_empty:
        out = torch.cat([out.new_zeros(*out.shape[:2], n_empty, out.shape[-1]), out], dim=2)
    if not return_lse:
        return out
    lse = torch.logsumexp(scores.to(torch.promote_types(q.dtype, torch.float32)), dim=-1)
    if n_empty:
        lse = torch.cat([lse.new_full((*lse.shape[:2], n_empty), float("-inf")), lse], dim=2)
    return out, lse
