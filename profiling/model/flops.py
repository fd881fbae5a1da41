"""Matmul FLOPs of a case, in the three conventions in use. Softmax and masks are not counted."""

from __future__ import annotations

from profiling.case import Case, InputError
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
    section 4.1), whatever the code does. `exact`: unmasked pairs only, five matmuls in the backward.
    `executed`: the tiles a split backward really runs (seven matmuls), masked corners and tails included.

    Raises:
        InputError: unknown convention.
    """
    d, dv = case.head_dim, case.head_dim_v
    n_q, n_k, heads = case.seq_len_q, case.seq_len_k, case.batch * case.heads
    if convention == "paper":
        forward = 2 * (d + dv) * heads * n_q * n_k
        fifths = {"fwd": 2, "bwd": 5, "fwd_bwd": 7}[case.direction]
        return forward * fifths // (4 if case.causal else 2)
    if convention == "exact":
        pairs = heads * visible_pairs(n_q, n_k, case.causal)
        forward, backward = 2 * (d + dv) * pairs, (6 * d + 4 * dv) * pairs
    elif convention == "executed":
        ran = [
            heads * executed_pairs(n_q, n_k, *tile, case.causal)
            for tile in (forward_tile, backward_tile, dq_tile)
        ]
        forward = 2 * (d + dv) * ran[0]
        # dK/dV kernel: S, dP, dV, dK; dQ kernel: S, dP, dQ
        backward = (4 * d + 4 * dv) * ran[1] + (4 * d + 2 * dv) * ran[2]
    else:
        raise InputError(f"unknown FLOP convention {convention!r}: must be one of {', '.join(CONVENTIONS)}")
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[case.direction]
