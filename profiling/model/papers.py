"""What the FlashAttention paper's own numbers count: its peak memory and the HBM bytes of its Fig. 2.

These are laws of the implementations of 2022, not of ours (`profiling.model.memory`, `.traffic`): they show
what a published number holds, so that it may be compared with a measured one. They reproduce the paper's
figures, which is no proof that the authors counted so: the paper states neither method nor block size.
Bytes of 16-bit elements unless `e` says otherwise. Source: Dao et al. 2022, arXiv:2205.14135, Table 21 and
Fig. 2; the repository's code and benchmark of May and June 2022.
"""

from __future__ import annotations


def eager_training_peak_bytes(batch: int, heads: int, n: int, d: int, e: int = 2) -> int:
    """PyTorch's eager attention, forward and backward, without mask and dropout: 4 N² and 10 N·d.

    Four score matrices live at once (scores, probabilities, and the gradients of both), and q, k, v, their
    gradients, the output, its gradient and two gradients in flight.
    """
    return batch * heads * e * (4 * n * n + 10 * n * d)


def flash1_training_peak_bytes(batch: int, heads: int, n: int, d: int, e: int = 2) -> int:
    """FlashAttention (1), forward and backward: 13 N·d and two fp32 rows; 11 N·d with all keys in one block.

    q, k, v, the leaves' gradients, dq, dk, dv, output and its gradient are 11; the fp32 sum of dQ counts
    for 2, and is not needed when all keys are one block of 256.
    """
    tensors = 11 if n <= 256 else 13
    return batch * heads * (tensors * n * d * e + 2 * 4 * n)


def eager_training_hbm_bytes(
    batch: int, heads: int, n: int, d: int, *, score_passes: int, token_passes: int, e: int = 2
) -> int:
    """Eager forward and backward: so many passes over the scores and over tensors of N·d.

    11 and 12 are algorithms 0 and 3 of the paper, word by word. 18 and 12 add a mask written once and
    dropout with a mask of one byte, forward and backward. 15 and 23 are a masked fill and copies of layout,
    without dropout.
    """
    return batch * heads * e * (score_passes * n * n + token_passes * n * d)


def flash1_training_hbm_bytes(batch: int, heads: int, n: int, d: int, *, block_n: int, e: int = 2) -> int:
    """FlashAttention (1), forward and backward, keys in the outer loop, partial sums in the dtype of q.

    With T key blocks: forward 2 + T + (2T - 2) + 1 passes over N·d, backward 4 + 2T + 1 + (2T - 2) + 1. The
    output is read in the backward's first pass only, and sums are not read in the first pass of either.
    """
    blocks = -(-n // block_n)
    forward = 2 + blocks + (2 * blocks - 2) + 1
    backward = 4 + 2 * blocks + 1 + (2 * blocks - 2) + 1
    return batch * heads * (forward + backward) * n * d * e
