"""The package's Triton kernels as PyTorch operators: what runs, what a compiler may assume, the gradient.

Everything is (rows, classes) here, checked, with classes side by side. Statistics of a row are its maximum
and the logarithm of its sum; their sum is the log-sum-exp, whose gradient comes back as the logarithm's.
"""

from __future__ import annotations

from typing import Any

import torch

from fa_core.kernels import tuning
from fa_core.launch import device_guard
from fa_core.softmax.launches import (
    backward_launch,
    forward_launches,
    top_k_backward_launch,
    top_k_launches,
)

_LIBRARY = torch.library.Library("fa_core", "FRAGMENT")
_LIBRARY.define(
    "cross_entropy_forward(Tensor logits, Tensor target, int ignore_index) "
    "-> (Tensor loss, Tensor row_max, Tensor log_sum)"
)
_LIBRARY.define(
    "cross_entropy_backward(Tensor logits, Tensor target, Tensor row_max, Tensor log_sum, Tensor? dloss, "
    "Tensor? dlog_sum, int ignore_index) -> Tensor"
)
_LIBRARY.define(
    "top_k_forward(Tensor logits, int k, bool renormalize) "
    "-> (Tensor weights, Tensor indices, Tensor statistics)"
)
_LIBRARY.define(
    "top_k_backward(Tensor logits, Tensor indices, Tensor statistics, Tensor dweights, bool renormalize) "
    "-> Tensor"
)


def _ahead(x: torch.Tensor) -> bool:
    """Whether kernels are to be compiled for a GPU that the tensors stand for; see `fa_core.ahead`."""
    return tuning.elsewhere is not None and x.is_meta


def _row_outputs(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = logits.shape[0]
    loss, row_max, log_sum = (logits.new_empty(rows, dtype=torch.float32) for _ in range(3))
    return loss, row_max, log_sum


def _cross_entropy_forward(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    outputs = _row_outputs(logits)
    with device_guard(logits):
        for step in forward_launches(logits, target, outputs, ignore_index):
            step.run()
    return outputs


def _fake_cross_entropy_forward(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if _ahead(logits):
        return _cross_entropy_forward(logits, target, ignore_index)
    return _row_outputs(logits)


def _cross_entropy_backward(
    logits: torch.Tensor,
    target: torch.Tensor,
    row_max: torch.Tensor,
    log_sum: torch.Tensor,
    dloss: torch.Tensor | None,
    dlog_sum: torch.Tensor | None,
    ignore_index: int,
) -> torch.Tensor:
    dlogits = logits.new_empty(logits.shape)
    with device_guard(logits):
        backward_launch(logits, target, (row_max, log_sum), (dloss, dlog_sum), dlogits, ignore_index).run()
    return dlogits


def _fake_cross_entropy_backward(logits: torch.Tensor, *args: Any) -> torch.Tensor:
    if _ahead(logits):
        return _cross_entropy_backward(logits, *args)
    return logits.new_empty(logits.shape)


def _setup_cross_entropy(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    logits, target, ctx.ignore_index = inputs
    _, row_max, log_sum = output
    ctx.save_for_backward(logits, target, row_max, log_sum)
    ctx.set_materialize_grads(False)


def _cross_entropy_gradient(
    ctx: Any, dloss: torch.Tensor | None, drow_max: torch.Tensor | None, dlog_sum: torch.Tensor | None
) -> tuple[torch.Tensor | None, None, None]:
    if dloss is None and dlog_sum is None:
        return None, None, None
    dlogits = torch.ops.fa_core.cross_entropy_backward.default(
        *ctx.saved_tensors, dloss, dlog_sum, ctx.ignore_index
    )
    return dlogits, None, None


# ------------------------------------------------------------------------------------------- top-k


def _top_k_outputs(
    logits: torch.Tensor, k: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = logits.shape[0]
    kept = (0,) if renormalize else (2, rows)
    return (
        logits.new_empty((rows, k)),
        logits.new_empty((rows, k), dtype=torch.int64),
        logits.new_empty(kept, dtype=torch.float32),
    )


def _top_k_forward(
    logits: torch.Tensor, k: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    outputs = _top_k_outputs(logits, k, renormalize)
    with device_guard(logits):
        for step in top_k_launches(logits, *outputs):
            step.run()
    return outputs


def _fake_top_k_forward(
    logits: torch.Tensor, k: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if _ahead(logits):
        return _top_k_forward(logits, k, renormalize)
    return _top_k_outputs(logits, k, renormalize)


def _top_k_backward(
    logits: torch.Tensor,
    indices: torch.Tensor,
    statistics: torch.Tensor,
    dweights: torch.Tensor,
    renormalize: bool,
) -> torch.Tensor:
    dlogits = logits.new_empty(logits.shape)
    with device_guard(logits):
        top_k_backward_launch(logits, indices, statistics, dweights.contiguous(), dlogits).run()
    return dlogits


def _fake_top_k_backward(logits: torch.Tensor, *args: Any) -> torch.Tensor:
    if _ahead(logits):
        return _top_k_backward(logits, *args)
    return logits.new_empty(logits.shape)


def _setup_top_k(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    logits, _, ctx.renormalize = inputs
    _, indices, statistics = output
    ctx.save_for_backward(logits, indices, statistics)
    ctx.set_materialize_grads(False)


def _top_k_gradient(
    ctx: Any, dweights: torch.Tensor | None, dindices: None, dstatistics: None
) -> tuple[torch.Tensor | None, None, None]:
    if dweights is None:
        return None, None, None
    dlogits = torch.ops.fa_core.top_k_backward.default(*ctx.saved_tensors, dweights, ctx.renormalize)
    return dlogits, None, None


# --------------------------------------------------------------------------------------- registration


def _no_second_gradient(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "an online softmax can be differentiated once, not twice: impl='naive' has both derivatives"
    )


def _setup_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _register(name: str, forward: Any, fake: Any, gradient: Any, setup: Any) -> None:
    _LIBRARY.impl(name, forward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fa_core::{name}", fake, lib=_LIBRARY)
    torch.library.register_autograd(f"fa_core::{name}", gradient, setup_context=setup, lib=_LIBRARY)


_register(
    "cross_entropy_forward",
    _cross_entropy_forward,
    _fake_cross_entropy_forward,
    _cross_entropy_gradient,
    _setup_cross_entropy,
)
_register(
    "cross_entropy_backward",
    _cross_entropy_backward,
    _fake_cross_entropy_backward,
    _no_second_gradient,
    _setup_nothing,
)


_register("top_k_forward", _top_k_forward, _fake_top_k_forward, _top_k_gradient, _setup_top_k)
_register("top_k_backward", _top_k_backward, _fake_top_k_backward, _no_second_gradient, _setup_nothing)


def online_cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, return_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(loss, lse or None) of each row, fp32 (rows,), both differentiable once.

    Args:
        logits: (rows, classes) with classes side by side; fp16, bf16 or fp32.
        target: (rows,) int64, contiguous.
        ignore_index: the target whose rows have loss 0.
        return_lse: whether the log-sum-exp is wanted.
    """
    loss, row_max, log_sum = torch.ops.fa_core.cross_entropy_forward.default(logits, target, ignore_index)
    return loss, (row_max.detach() + log_sum if return_lse else None)


def online_top_k(logits: torch.Tensor, k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, indices), (rows, k), of logits (rows, classes) with classes side by side.

    Weights are in the logits' dtype, descending, and differentiable once; indices are int64.
    """
    weights, indices, _ = torch.ops.fa_core.top_k_forward.default(logits, k, renormalize)
    return weights, indices
