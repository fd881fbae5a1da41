"""The package's Triton kernels as PyTorch operators: what runs, what a compiler may assume, the gradient.

Everything is (rows, classes) here, checked, with classes side by side. Statistics of a row are its maximum
and the logarithm of its sum; their sum is the log-sum-exp, whose gradient comes back as the logarithm's.
"""

from __future__ import annotations

from typing import Any

import torch

from fa_core.kernels import tuning
from fa_core.launch import Launch, device_guard
from fa_core.softmax import kernels, selection, tiles

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
        kernels.cross_entropy_kernel,
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
        kernels.cross_entropy_join_kernel,
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
        kernels.cross_entropy_backward_kernel,
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


# ------------------------------------------------------------------------------------------- top-k


def _statistics(statistics: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(row_max, log_sum) of a top-k: None where weights are renormalised, which asks for neither."""
    return (None, None) if statistics.ndim == 1 else (statistics[0], statistics[1])


def top_k_launches(
    logits: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, statistics: torch.Tensor
) -> list[Launch]:
    """weights and indices (rows, k), statistics (2, rows), or (0,) where weights are renormalised."""
    n_rows, classes = logits.shape
    k, itemsize = weights.shape[1], logits.element_size()
    row_max, log_sum = _statistics(statistics)
    chosen = {"K": k, "SLOTS": tiles.power_of_two(k)}
    outputs = (weights, indices, row_max, log_sum)
    if classes <= tiles.FEW_CLASSES:
        tile = tiles.choose("few_classes", classes, itemsize)
        few = Launch(
            selection.top_k_few_kernel,
            (_programs(n_rows, tile.rows),),
            (logits, *outputs, logits.stride(0), n_rows, classes),
            {
                **chosen,
                "NARROW": itemsize == 2,
                "ROWS": tile.rows,
                "COLUMNS": tile.columns,
                "num_warps": tile.num_warps,
            },
        )
        return [few]
    group = tiles.GROUP_CLASSES
    tile = tiles.choose("groups", classes, itemsize)
    n_groups, chunks = _programs(classes, group), _programs(classes, tile.columns)
    greatest = logits.new_empty((n_rows, n_groups), dtype=torch.int32)
    parts = None if row_max is None else logits.new_empty((2, n_rows, chunks), dtype=torch.float32)
    shared = (greatest, parts, logits.stride(0), n_rows, classes, n_groups)
    read = Launch(
        selection.top_k_groups_kernel,
        (n_rows * chunks,),
        (logits, *shared),
        {"GROUP": group, "GROUPS": tile.columns // group, "num_warps": tile.num_warps},
    )
    tile = tiles.choose("selection", n_groups, greatest.element_size())
    take = Launch(
        selection.top_k_selection_kernel,
        (n_rows,),
        (logits, *outputs, *shared, chunks),
        {
            **chosen,
            "GROUP": group,
            "TILE": tile.columns,
            "CHUNKS": tiles.power_of_two(chunks),
            "num_warps": tile.num_warps,
        },
    )
    return [read, take]


def top_k_backward_launch(
    logits: torch.Tensor,
    indices: torch.Tensor,
    statistics: torch.Tensor,
    dweights: torch.Tensor,
    dlogits: torch.Tensor,
) -> Launch:
    """dlogits (rows, classes) from dweights (rows, k), contiguous."""
    n_rows, classes = logits.shape
    k = indices.shape[1]
    tile = tiles.choose("top_k_backward", classes, logits.element_size())
    return Launch(
        selection.top_k_backward_kernel,
        (_programs(n_rows, tile.rows) * _programs(classes, tile.columns),),
        (
            logits, indices, *_statistics(statistics), dweights, dlogits, logits.stride(0), dlogits.stride(0),
            n_rows, classes,
        ),
        {
            "K": k,
            "SLOTS": tiles.power_of_two(k),
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "num_warps": tile.num_warps,
        },
    )  # fmt: skip


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
