"""The package's Triton kernels as PyTorch operators: what runs, what a compiler may assume, the gradient.

Everything is (rows, classes) here, checked, with classes side by side. Statistics of a row are its maximum
and the logarithm of its sum; their sum is the log-sum-exp, whose gradient comes back as the logarithm's.
"""

from __future__ import annotations

from typing import Any

import torch

from fa_core.kernels import tuning
from fa_core.launch import Launch, device_guard
from fa_core.softmax import kernels, tiles

_LIBRARY = torch.library.Library("fa_core", "FRAGMENT")
_LIBRARY.define(
    "cross_entropy_forward(Tensor logits, Tensor target, int ignore_index) "
    "-> (Tensor loss, Tensor row_max, Tensor log_sum)"
)
_LIBRARY.define(
    "cross_entropy_backward(Tensor logits, Tensor target, Tensor row_max, Tensor log_sum, Tensor? dloss, "
    "Tensor? dlog_sum, int ignore_index) -> Tensor"
)
_JOINED_ROWS = 4
_LOAD_BYTES = 16  # what a thread reads at once


def _ahead(x: torch.Tensor) -> bool:
    """Whether kernels are to be compiled for a GPU that the tensors stand for; see `fa_core.ahead`."""
    return tuning.elsewhere is not None and x.is_meta


def _programs(n: int, block: int) -> int:
    return -(-n // block)


def forward_launches(
    logits: torch.Tensor,
    target: torch.Tensor,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ignore_index: int,
) -> list[Launch]:
    """Loss, row_max and log_sum, the outputs, all (rows,); few rows are divided, which takes two launches."""
    n_rows, classes = logits.shape
    tile = tiles.choose("cross_entropy", classes, logits.element_size())
    device = tuning.gpu(logits.device)
    parts = tiles.parts(n_rows, classes, 4 if device is None else device.processors)
    part = _programs(_programs(classes, parts), tile.columns) * tile.columns
    parts = _programs(classes, part)
    held = None if parts == 1 else logits.new_empty((2, parts, n_rows), dtype=torch.float32)
    vector = _LOAD_BYTES // logits.element_size()
    shared = (logits, target, *outputs, held, logits.stride(0), n_rows, classes)
    first = Launch(
        kernels.forward_kernel,
        (_programs(n_rows, tile.rows), parts),
        (*shared, part, ignore_index),
        {
            "ROWS": tile.rows,
            "LANES": tile.columns // vector,
            "VECTOR": vector,
            "num_warps": tile.num_warps,
        },
    )
    if held is None:
        return [first]
    second = Launch(
        kernels.join_kernel,
        (_programs(n_rows, _JOINED_ROWS),),
        (*shared, parts, ignore_index),
        {"ROWS": _JOINED_ROWS, "PARTS": tiles.power_of_two(parts), "num_warps": 1},
    )
    return [first, second]


def backward_launch(
    logits: torch.Tensor,
    target: torch.Tensor,
    statistics: tuple[torch.Tensor, torch.Tensor],
    sent: tuple[torch.Tensor | None, torch.Tensor | None],
    dlogits: torch.Tensor,
    ignore_index: int,
) -> Launch:
    """dlogits (rows, classes) from what was sent to the loss and to log_sum."""
    n_rows, classes = logits.shape
    tile = tiles.choose("cross_entropy_backward", classes, logits.element_size())
    sent_strides = (0 if x is None else x.stride(0) for x in sent)
    return Launch(
        kernels.backward_kernel,
        (_programs(n_rows, tile.rows) * _programs(classes, tile.columns),),
        (
            logits, target, *statistics, *sent, dlogits, logits.stride(0), dlogits.stride(0), *sent_strides,
            n_rows, classes, ignore_index,
        ),
        {"ROWS": tile.rows, "COLUMNS": tile.columns, "num_warps": tile.num_warps},
    )  # fmt: skip


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
