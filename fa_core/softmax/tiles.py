"""Which tile each kernel of the package takes. No Triton here, so that a tile can be named without it.

Tables are in bytes of a tile's logits, not in their number: what a tile has to hide is the way to memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

KERNELS: tuple[str, ...] = (
    "cross_entropy", "cross_entropy_backward", "few_classes", "groups", "selection", "top_k_backward",
)  # fmt: skip
# Up to so many classes a row lies in registers while its best are taken out; beyond, groups come first.
FEW_CLASSES = 1024
# Classes that are known by their greatest alone, where classes are many.
GROUP_CLASSES = 64
# A part of a row that is shorter than this costs more to join than it saves.
MIN_PART_CLASSES = 8192
MAX_PARTS = 64
# What a thread loads at once of 16-bit logits.
_LEAST_COLUMNS = 8


class Tile(NamedTuple):
    """Rows and columns of logits that a program holds at once, and the warps that share them."""

    rows: int
    columns: int
    num_warps: int


class _Sizes(NamedTuple):
    """Bytes of a row that a program holds at once, of all its rows together, and warps where both fill."""

    row_bytes: int
    tile_bytes: int
    num_warps: int


# Found on an H200 by tests/benchmarks/tune_softmax.py, but for the backward of top-k, which is a first guess.
_TABLE: dict[str, _Sizes] = {
    "cross_entropy": _Sizes(8192, 8192, 8),
    "cross_entropy_backward": _Sizes(4096, 4096, 4),
    "few_classes": _Sizes(4096, 4096, 4),
    "groups": _Sizes(8192, 8192, 4),
    # Of groups, at four bytes each, then of the classes of those that were chosen.
    "selection": _Sizes(8192, 8192, 4),
    "top_k_backward": _Sizes(8192, 8192, 4),
}


def power_of_two(n: int) -> int:
    """The least that is not below n."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


@lru_cache(maxsize=1024)
def choose(kernel: str, classes: int, itemsize: int) -> Tile:
    """The tile of one of KERNELS for rows of `classes` logits of `itemsize` bytes: powers of two.

    Few classes leave room for many rows. A row in `few_classes` is held whole, however long.
    """
    sizes = _TABLE[kernel]
    whole = max(_LEAST_COLUMNS, power_of_two(classes))
    columns = whole if kernel == "few_classes" else min(whole, sizes.row_bytes // itemsize)
    # Of so few classes the rounds that take out the best are short, and half the rows a program are enough.
    tile_bytes = sizes.tile_bytes // 2 if kernel == "few_classes" and whole <= 64 else sizes.tile_bytes
    rows = 1 if kernel in ("groups", "selection") else max(1, tile_bytes // itemsize // columns)
    return Tile(rows, columns, sizes.num_warps if rows * columns >= 1024 else 1)


def parts(rows: int, classes: int, processors: int) -> int:
    """Between how many programs a row is divided: 1, unless rows are too few for the device."""
    if not rows:
        return 1
    return max(1, min(2 * processors // rows, classes // MIN_PART_CLASSES, MAX_PARTS))
