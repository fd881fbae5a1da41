"""What the time of a call is made of: amounts that a fitted rate turns into milliseconds.

Eager attention is a row of kernels, each with a launch, bytes (through DRAM, or found in the cache where the
scores are small) and FLOPs. A fused kernel is one launch, and tiles that its SMs work off in turns: what
counts is the SM with the most to do. A tile costs its matrix products, which grow with d, and its softmax,
which does not; both grow with its (query, key) pairs. Of those on the busiest SM, some are wanted
(`arithmetic`), some are there because they share a tile with such (`padding`: tails, and corners that the
mask hides), and some because tiles do not divide evenly between SMs (`waves`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from profiling.case import FLASH_BACKENDS, Case
from profiling.devices import Device
from profiling.model import hopper
from profiling.model.memory import score_matrix_bytes
from profiling.model.naive import naive_passes
from profiling.model.tiles import key_rows, query_rows, visible_pairs
from profiling.model.traffic import default_tile, is_modelled, traffic

REASONS: tuple[str, ...] = ("launch", "bytes", "arithmetic", "padding", "waves")
EAGER: tuple[str, ...] = ("naive",)
FUSED: tuple[str, ...] = (*FLASH_BACKENDS, "sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")


class Amount(NamedTuple):
    """So much of what one rate is about, for one of `REASONS`."""

    rate: str
    reason: str
    amount: float


def amounts(case: Case, device: Device) -> tuple[Amount, ...]:
    """What a call consists of, or nothing where these formulas do not hold or the device is not known.

    Rates are a millisecond each of: `launch` (a kernel), `dram` and `cache` (10⁹ bytes), `flops` (10¹²);
    `product` (10⁶ pairs · head dim, on one SM) and `softmax` (10⁶ pairs, on one SM).
    """
    if not is_modelled(case) or case.direction == "fwd_bwd" or case.tile_m is not None:
        return ()
    case = hopper.as_run(case, device)
    if case.seq_len_q != case.seq_len_k or 0 in (case.batch, case.heads, case.seq_len_q):
        return ()  # few queries beside many keys are worked off in another way
    if case.backend in EAGER:
        return _eager(case, device)
    if case.backend in FUSED and device.sm_count is not None:
        tile = _assumed_tile(case, device.sm_count)
        return () if tile is None else _fused(case, device.sm_count, tile)
    return ()


def tile_amounts(case: Case, device: Device) -> tuple[Amount, ...]:
    """What a fused call with a requested tile consists of, or nothing where `amounts` has nothing either.

    Beside the rates of a fused call two on which tiles differ most: `step` (10³ inner tiles on the busiest
    SM: each loads, waits and starts its products anew) and `cache` (10⁹ bytes that all tiles ask of L2).
    """
    if case.tile_m is None or case.tile_n is None or device.sm_count is None or not is_modelled(case):
        return ()
    if case.direction == "fwd_bwd" or case.seq_len_q != case.seq_len_k:
        return ()
    if 0 in (case.batch, case.heads, case.seq_len_q):
        return ()
    whole, inner = _walk(case, (case.tile_m, case.tile_n))
    steps = whole / inner
    busiest = _busiest(steps, case.batch * case.heads, device.sm_count)
    asked = traffic(case, device).tile_bytes
    return (
        *_fused(case, device.sm_count, (case.tile_m, case.tile_n)),
        Amount("step", "steps", busiest / 1e3),
        Amount("cache", "bytes", asked / 1e9),
    )


def _assumed_tile(case: Case, sm_count: int) -> tuple[int, int] | None:
    """The tile that a fused backend is taken to have; that of `flash_hopper` is known."""
    if case.backend == "flash_hopper":
        return hopper.forward_tile(case, sm_count) if case.direction == "fwd" else hopper.backward_tile(case)
    return default_tile(case.direction)


def _eager(case: Case, device: Device) -> tuple[Amount, ...]:
    if device.cache_bytes is None:
        return ()
    steps = naive_passes(case, case.variant or None)
    moved = sum(step.read_bytes + step.write_bytes for step in steps)
    # One pass's output is the next one's input: both in the cache while they are well below its size.
    scores = 2 * score_matrix_bytes(case).all_heads
    cached = 1 / (1 + (scores / device.cache_bytes) ** 2)
    return (
        Amount("launch", "launch", len(steps)),
        Amount("dram", "bytes", moved * (1 - cached) / 1e9),
        Amount("cache", "bytes", moved * cached / 1e9),
        Amount("flops", "arithmetic", sum(step.flops for step in steps) / 1e12),
    )


def _walk(case: Case, tile: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Pairs that each tile of the outer loop computes, whole inner tiles, and the pairs of one of those."""
    block_m, block_n = tile
    walk, inner = (key_rows, block_n) if case.direction == "fwd" else (query_rows, block_m)
    walked = walk(case.seq_len_q, case.seq_len_k, block_m, block_n, case.causal)
    return np.ceil(walked / inner) * block_m * block_n, block_m * block_n


def _busiest(of_each: np.ndarray, heads: int, sm_count: int) -> float:
    """What the busiest SM has: its share of whole outer tiles, and no less than the longest of them."""
    tiles = heads * len(of_each)
    return max(math.ceil(tiles / sm_count) * float(of_each.mean()), float(of_each.max()))


def _fused(case: Case, sm_count: int, tile: tuple[int, int]) -> tuple[Amount, ...]:
    n_q, n_k, heads = case.seq_len_q, case.seq_len_k, case.batch * case.heads
    whole, _ = _walk(case, tile)
    executed = heads * float(whole.sum())
    exact = heads * visible_pairs(n_q, n_k, case.causal)
    reasons = {
        "arithmetic": exact / sm_count,
        "padding": (executed - exact) / sm_count,
        "waves": _busiest(whole, heads, sm_count) - executed / sm_count,
    }
    width = (case.head_dim + case.head_dim_v) / 2
    return (
        Amount("launch", "launch", 1.0),
        *(Amount("product", reason, pairs * width / 1e6) for reason, pairs in reasons.items()),
        *(Amount("softmax", reason, pairs / 1e6) for reason, pairs in reasons.items()),
    )
