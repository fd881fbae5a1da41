"""Matmul FLOPs of a case, in the three conventions in use. Softmax and masks are not counted."""

from __future__ import annotations

from collections import Counter

from profiling.case import ATTENTION, Case, InputError
from profiling.model.tiles import executed_pairs, visible_pairs
from profiling.model.traffic import BACKWARD_TILE, DQ_TILE, FORWARD_TILE

CONVENTIONS: tuple[str, ...] = ("paper", "exact", "executed")


def flops(
    case: Case,
    convention: str = "paper",
    *,
    forward_tile: tuple[int, int] = FORWARD_TILE,
    backward_tile: tuple[int, int] = BACKWARD_TILE,
    dq_tile: tuple[int, int] = DQ_TILE,
) -> int:
    """Matmul FLOPs of a case in its direction; a multiply and an add are two.

    `paper`: forward 4·B·H·Nq·Nk·d, halved when causal, backward 2.5 and both 3.5 times that (Dao 2023,
    section 4.1), whatever the code does; as FlashAttention's own benchmark it knows no window, and counts
    the pairs that one hides. `exact`: unmasked pairs only, five matmuls in the backward. `executed`: the
    tiles a split backward really runs (seven matmuls), masked corners and tails included. Each sequence of
    a `varlen` batch counts with its own lengths. An operation over rows has no matmul: 0.

    Raises:
        InputError: unknown convention.
    """
    if convention not in CONVENTIONS:
        raise InputError(f"unknown FLOP convention {convention!r}: must be one of {', '.join(CONVENTIONS)}")
    if case.operation != ATTENTION:
        return 0
    d, dv = case.head_dim, case.head_dim_v
    mask = (case.causal, case.window_left, case.window_right)
    # How many (batch, head) problems there are of each (queries, keys).
    problems = {lengths: case.heads * times for lengths, times in Counter(case.lengths).items()}
    if convention == "paper":
        forward = 2 * (d + dv) * sum(heads * n_q * n_k for (n_q, n_k), heads in problems.items())
        fifths = {"fwd": 2, "bwd": 5, "fwd_bwd": 7}[case.direction]
        return forward * fifths // (4 if case.causal else 2)
    if convention == "exact":
        pairs = sum(heads * visible_pairs(*lengths, *mask) for lengths, heads in problems.items())
        forward, backward = 2 * (d + dv) * pairs, (6 * d + 4 * dv) * pairs
    else:
        ran = [
            sum(heads * executed_pairs(*lengths, *tile, *mask) for lengths, heads in problems.items())
            for tile in (forward_tile, backward_tile, dq_tile)
        ]
        forward = 2 * (d + dv) * ran[0]
        # dK/dV kernel: S, dP, dV, dK; dQ kernel: S, dP, dQ
        backward = (4 * d + 4 * dv) * ran[1] + (4 * d + 2 * dv) * ran[2]
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[case.direction]
