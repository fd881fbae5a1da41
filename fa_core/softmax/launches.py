"""From checked logits (rows, classes), classes side by side, to kernel launches: grid, arguments, tile.

Nothing is launched before `Launch.run`, so that a launch can be compiled on a machine without a GPU.
"""

from __future__ import annotations

import torch

from fa_core.kernels import tuning
from fa_core.launch import Launch
from fa_core.softmax import kernels, selection, tiles

_JOINED_ROWS = 4
_LOAD_BYTES = 16  # what a thread reads at once


def _programs(n: int, block: int) -> int:
    return -(-n // block)


def _shifted(*matrices: torch.Tensor) -> bool:
    """Whether rows start off the boundaries of what a thread loads at once, all by the same."""
    vector = _LOAD_BYTES // matrices[0].element_size()
    off = {x.stride(0) % vector for x in matrices}
    return len(off) == 1 and off != {0} and matrices[0].shape[1] > vector


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
    vector, shifted = _LOAD_BYTES // logits.element_size(), _shifted(logits)
    places = classes + (vector - 1 if shifted else 0)
    part = _programs(_programs(places, parts), tile.columns) * tile.columns
    parts = _programs(places, part)
    held = None if parts == 1 else logits.new_empty((2, parts, n_rows), dtype=torch.float32)
    shared = (logits, target, *outputs, held, logits.stride(0), n_rows, classes)
    first = Launch(
        kernels.cross_entropy_kernel,
        (_programs(n_rows, tile.rows), parts),
        (*shared, part, ignore_index),
        {
            "ROWS": tile.rows,
            "LANES": tile.columns // vector,
            "VECTOR": vector,
            "SHIFTED": shifted,
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
    vector, shifted = _LOAD_BYTES // logits.element_size(), _shifted(logits, dlogits)
    places = classes + (vector - 1 if shifted else 0)
    sent_strides = (0 if x is None else x.stride(0) for x in sent)
    return Launch(
        kernels.cross_entropy_backward_kernel,
        (_programs(n_rows, tile.rows) * _programs(places, tile.columns),),
        (
            logits, target, *statistics, *sent, dlogits, logits.stride(0), dlogits.stride(0), *sent_strides,
            n_rows, classes, ignore_index,
        ),
        {
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "VECTOR": vector,
            "SHIFTED": shifted,
            "num_warps": tile.num_warps,
        },
    )  # fmt: skip


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
