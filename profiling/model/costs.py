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

from profiling.case import Case
from profiling.devices import Device
from profiling.model.memory import score_matrix_bytes
from profiling.model.naive import naive_passes
from profiling.model.tiles import key_rows, query_rows, visible_pairs
from profiling.model.traffic import default_tile, is_modelled

REASONS: tuple[str, ...] = ("launch", "bytes", "arithmetic", "padding", "waves")
EAGER: tuple[str, ...] = ("naive",)
FUSED: tuple[str, ...] = ("flash", "sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")


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
    if case.seq_len_q != case.seq_len_k or 0 in (case.batch, case.heads, case.seq_len_q):
        return ()  # few queries beside many keys are worked off in another way
    if case.backend in EAGER:
        return _eager(case, device)
    if case.backend in FUSED and device.sm_count is not None:
        return _fused(case, device.sm_count)
    return ()


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


def _fused(case: Case, sm_count: int) -> tuple[Amount, ...]:
    n_q, n_k, heads = case.seq_len_q, case.seq_len_k, case.batch * case.heads
    block_m, block_n = default_tile(case.direction)
    if case.direction == "fwd":
        walked, outer, inner = key_rows(n_q, n_k, block_m, block_n, case.causal), block_m, block_n
    else:
        walked, outer, inner = query_rows(n_q, n_k, block_m, block_n, case.causal), block_n, block_m
    whole = np.ceil(walked / inner) * inner * outer  # pairs of each tile of the outer loop
    executed = heads * float(whole.sum())
    exact = heads * visible_pairs(n_q, n_k, case.causal)
    tiles = heads * len(whole)
    # The busiest SM: its share of whole tiles, and no less than the longest of them.
    busiest = max(math.ceil(tiles / sm_count) * executed / tiles, float(whole.max()))
    reasons = {
        "arithmetic": exact / sm_count,
        "padding": (executed - exact) / sm_count,
        "waves": busiest - executed / sm_count,
    }
    width = (case.head_dim + case.head_dim_v) / 2
    return (
        Amount("launch", "launch", 1.0),
        *(Amount("product", reason, pairs * width / 1e6) for reason, pairs in reasons.items()),
        *(Amount("softmax", reason, pairs / 1e6) for reason, pairs in reasons.items()),
    )
