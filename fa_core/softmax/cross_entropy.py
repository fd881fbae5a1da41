"""Cross-entropy over a large vocabulary: the door, and the eager baseline."""

from __future__ import annotations

from typing import Literal, overload

import torch

from fa_core.softmax.validation import check_logits, check_target, flat_rows, resolve_impl

REDUCTIONS: tuple[str, ...] = ("none", "sum", "mean")


def naive_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(loss, lse or None) of checked arguments by PyTorch's own operators: the baseline, in fp64 the oracle.

    The loss is `torch.nn.functional.cross_entropy` in the logits' dtype, widened to fp32 at its end; the
    log-sum-exp is PyTorch's of logits widened to fp32 before, as a z-loss has it.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    rows = logits.reshape(-1, logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(
        rows, target.reshape(-1), ignore_index=ignore_index, reduction=reduction
    )
    lse = torch.logsumexp(logits.to(wide), dim=-1) if return_lse else None
    return (loss.reshape(target.shape) if reduction == "none" else loss).to(wide), lse


@overload
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = ...,
    reduction: str = ...,
    impl: str = ...,
    return_lse: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = ...,
    reduction: str = ...,
    impl: str = ...,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    impl: str = "auto",
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """-log softmax(logits)[target] of each row, differentiable by the logits.

    `online` reads each logit once forward, and once more backward, and keeps 8 bytes a row (its maximum and
    the logarithm of its sum) where eager keeps the log-probabilities of all classes.

    Args:
        logits: (..., classes), fp16, bf16 or fp32 (fp64 by `naive` alone). -inf is probability 0. Rows may
            lie apart; where classes do not lie side by side, or leading dims do not flatten into rows,
            they are copied.
        target: (...) int64, from 0 to classes - 1 or `ignore_index`.
        ignore_index: rows with this target have loss 0, and no gradient comes from it; `mean` leaves them
            out.
        reduction: `none`, `sum`, or `mean` over the targets that are not ignored (NaN where all are).
        impl: `online` (Triton), `naive` (PyTorch eager), or `auto`: online where it can run, else naive.
        return_lse: also return the natural log-sum-exp of each row, ignored or not; z-loss is its square.

    Returns:
        The loss, fp32 (fp64 of fp64), of shape (...) or (); with `return_lse`, and the lse (...), in the
        same dtype and differentiable too. A row of -inf alone has loss NaN and lse -inf; a row with NaN
        or +inf has NaN for both. Of a target that is neither a class nor ignored, `online` makes loss NaN
        and gradient NaN, without a look outside the row; `naive` does what PyTorch does, which raises an
        IndexError on a CPU, and on a GPU stops the process by an assertion.

    Raises:
        TypeError, ValueError: arguments that do not fit together, an unknown `reduction` or `impl`.
        NotImplementedError: `online` cannot take these logits.
        RuntimeError: a second derivative asked of `online`.
    """
    check_logits(logits)
    check_target(target, logits)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if resolve_impl(impl, logits) == "naive":
        loss, lse = naive_cross_entropy(
            logits, target, ignore_index=ignore_index, reduction=reduction, return_lse=return_lse
        )
        return (loss, lse) if lse is not None else loss
    from fa_core.softmax import op

    loss, lse = op.online_cross_entropy(
        flat_rows(logits), target.reshape(-1).contiguous(), ignore_index, return_lse
    )
    if reduction == "none":
        loss = loss.reshape(target.shape)
    else:
        loss = loss.sum()
        if reduction == "mean":
            loss = loss / (target != ignore_index).sum()
    return (loss, lse.reshape(target.shape)) if lse is not None else loss
