"""The k greatest classes of each row with their softmax weights: the door, and the eager baseline."""

from __future__ import annotations

import torch

from fa_core.softmax.validation import check_k, check_logits, flat_rows, resolve_impl


def naive_softmax_top_k(
    logits: torch.Tensor, k: int, *, renormalize: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, indices) of checked arguments by PyTorch's own operators: the baseline, in fp64 the oracle.

    softmax over all classes in fp32 (fp64 of fp64), `torch.topk`, division by the sum of the chosen, and a
    cast, as models write it. `topk` promises no order among equals, so ties may go another way than
    `online`'s.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    weights, indices = torch.topk(torch.softmax(logits, dim=-1, dtype=wide), k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(logits.dtype), indices


def softmax_top_k(
    logits: torch.Tensor, k: int, *, renormalize: bool = True, impl: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k greatest classes of each row and their softmax weights, as a gate or a sampler wants them.

    Args:
        logits: (..., classes), fp16, bf16 or fp32 (fp64 by `naive` alone), strides as in `cross_entropy`.
        k: from 1 to the classes and to 64.
        renormalize: weights of a row sum to 1; else they are probabilities over all classes.
        impl: `online` (Triton), `naive` (PyTorch eager), or `auto`: online where it can run, else naive.

    Returns:
        (weights, indices), both (..., k), weights descending and in the logits' dtype, indices int64. Of
        equal logits `online` takes the lower index first; `naive` takes what `torch.topk` takes. -inf has
        weight 0, and is chosen where there are fewer than k others. Weights of a row with NaN or +inf, or
        with nothing but -inf, are NaN. They are differentiable by the logits.

    Raises:
        TypeError, ValueError: arguments that do not fit together, or an unknown `impl`.
        NotImplementedError: `online` cannot take these logits.
        RuntimeError: a second derivative asked of `online`.
    """
    check_logits(logits)
    check_k(k, logits)
    if resolve_impl(impl, logits) == "naive":
        return naive_softmax_top_k(logits, k, renormalize=renormalize)
    from fa_core.softmax import op

    weights, indices = op.online_top_k(flat_rows(logits), k, renormalize)
    shape = (*logits.shape[:-1], k)
    return weights.reshape(shape), indices.reshape(shape)
