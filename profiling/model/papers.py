"""What the FlashAttention paper's own numbers count: its peak memory, and the HBM bytes of its Fig. 2.

These are laws of the implementations of 2022, not of ours (`profiling.model.memory`, `.traffic`): they show
what a published number holds, so that it may be compared with a measured one. They reproduce the paper's
figures, which is no proof that the authors counted so: the paper states neither method nor block size.
Source: Dao et al. 2022, arXiv:2205.14135, table 21 and Fig. 2; the repository's code of May and June 2022.
"""

from __future__ import annotations

from profiling.case import DTYPE_BYTES, Case, InputError
from profiling.model.memory import score_matrix_bytes


def eager_training_bytes(case: Case) -> int:
    """Forward and backward of eager attention, inputs and gradients included: 4·S·e + 10·N·d·e.

    Reproduces the PyTorch column of FlashAttention's table 21 (arXiv 2205.14135).

    Raises:
        InputError: Nq and Nk, d and dv, or heads and KV heads differ: the law does not say more.
    """
    score, token = _square(case)
    return 4 * score + 10 * token


def fa1_training_bytes(case: Case) -> int:
    """The same of FlashAttention 1: 13·N·d·e and two fp32 rows; 11·N·d·e where one key tile holds all keys.

    q, k, v, their gradients and those of the packed qkv (9), out and dout (2), and beyond one key tile
    (256 keys) an fp32 dQ (2). Reproduces the FlashAttention column of the same table.

    Raises:
        InputError: as `eager_training_bytes`.
    """
    _, token = _square(case)
    rows = 2 * 4 * case.batch * case.heads * case.seq_len_q
    return (11 if case.seq_len_k <= 256 else 13) * token + rows


def _square(case: Case) -> tuple[int, int]:
    """Bytes of all scores, and of one tensor such as q."""
    if (case.seq_len_q, case.head_dim, case.heads) != (case.seq_len_k, case.head_dim_v, case.kv_heads):
        raise InputError("this law holds for Nq = Nk, d = dv and as many KV heads as heads only")
    token = case.batch * case.heads * case.seq_len_q * case.head_dim * DTYPE_BYTES[case.dtype]
    return score_matrix_bytes(case).all_heads, token


def eager_training_hbm_bytes(case: Case, *, score_passes: int, token_passes: int) -> int:
    """Eager forward and backward: so many passes over the scores, and over tensors of N·d.

    11 and 12 are algorithms 0 and 3 of the paper, word by word. 18 and 12 add a mask written once and
    dropout with a mask of one byte, forward and backward. 15 and 23 are a masked fill and copies of layout,
    without dropout.

    Raises:
        InputError: as `eager_training_bytes`.
    """
    score, token = _square(case)
    return score_passes * score + token_passes * token


def fa1_training_hbm_bytes(case: Case, *, block_n: int) -> int:
    """FlashAttention 1, forward and backward: keys in the outer loop, partial sums in the dtype of q.

    With T key blocks: forward 2 + T + (2T - 2) + 1 passes over N·d, backward 4 + 2T + 1 + (2T - 2) + 1. The
    output is read in the backward's first pass only, and sums are not read in the first pass of either.

    Raises:
        InputError: as `eager_training_bytes`.
    """
    _, token = _square(case)
    blocks = -(-case.seq_len_k // block_n)
    forward = 2 + blocks + (2 * blocks - 2) + 1
    backward = 4 + 2 * blocks + 1 + (2 * blocks - 2) + 1
    return (forward + backward) * token
