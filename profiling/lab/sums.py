"""Sums in narrow formats: where they stall, and what the order of their terms does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
TILE = 64
MOST_ONES = 2**16
ROW = 8192  # terms of one row of a softmax


class Ones(NamedTuple):
    """The sum of `terms` ones in a dtype and order; None where it is infinite."""

    dtype: str
    order: str
    terms: int
    sum: float | None


class Order(NamedTuple):
    """The error of a softmax row's sum in a dtype and order, over the sum in fp64."""

    dtype: str
    order: str
    rel_error: float


def partial_sums(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The sum of a vector after each of its terms, rounded to its dtype every time."""
    total = torch.zeros((), dtype=x.dtype)
    for term in x.unbind():
        total = total + term
        yield total


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """The last of the partial sums."""
    *_, last = partial_sums(x)
    return last


def pairwise(x: torch.Tensor) -> torch.Tensor:
    """The sum of a vector by halves, each rounded to its dtype: as deep as the logarithm of its length."""
    while len(x) > 1:
        if len(x) % 2:
            x = torch.cat([x, torch.zeros(1, dtype=x.dtype)])
        x = x[0::2] + x[1::2]
    return x[0] if len(x) else torch.zeros((), dtype=x.dtype)


def by_tiles(x: torch.Tensor) -> torch.Tensor:
    """Tiles of `TILE` terms pairwise, and these one by one: as the tile algorithm forms l."""
    return one_by_one(torch.stack([pairwise(tile) for tile in x.split(TILE)]))


ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one by one": one_by_one,
    "by tiles": by_tiles,
    "pairwise": pairwise,
}


def ones(most: int = MOST_ONES) -> list[Ones]:
    """Sums of 1, 2, 4, ... up to `most` ones: what l is where all keys weigh alike.

    One by one, fp16 (11 significant bits) stops at 2048 and bf16 (8 bits) at 256: from there on the next
    one is less than half a step. Beyond 65504 there is no fp16 number at all.
    """
    counts = [2**p for p in range(most.bit_length())]
    found = []
    for dtype, kind in DTYPES.items():
        all_of_them = torch.ones(most, dtype=kind)
        # The shorter sums one by one are what the longest passes through.
        passed = {n: total for n, total in enumerate(partial_sums(all_of_them), 1) if n in counts}
        for order, total in ORDERS.items():
            for n in counts:
                value = float(passed[n] if total is one_by_one else total(all_of_them[:n]))
                found.append(Ones(dtype, order, n, value if value < float("inf") else None))
    return found


def orders(seed: int = 0, terms: int = ROW) -> list[Order]:
    """The sum of exp(s - max s), s standard normal, in several orders; the terms are rounded once before."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(terms, generator=generator, dtype=torch.float64)
    drawn = torch.exp(scores - scores.max())
    ascending = drawn.sort().values
    ways = {name: (total, drawn) for name, total in ORDERS.items()}
    ways |= {"smallest first": (one_by_one, ascending), "largest first": (one_by_one, ascending.flip(0))}
    found = []
    for dtype, kind in DTYPES.items():
        for name, (total, x) in ways.items():
            narrow = x.to(kind)
            right = narrow.double().sum()
            found.append(Order(dtype, name, float((total(narrow).double() - right).abs() / right)))
    return found
