"""How rounding grows with the size of the logits: eager attention and the tile algorithm against fp64.

A sweep draws q, k and v from a standard normal, so that its logits q·k/√d have a standard deviation of 1.
Here q is multiplied by a scale s, and so are the logits: a large s makes the softmax nearly a choice of one
key, and a logit of a hundred, rounded to eight bits, is off by a quarter, which the exponential turns into a
quarter of the probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from fa_core import tiled_attention
from profiling.case import Case, Dtype, InputError
from profiling.measure import oracle
from profiling.measure.inputs import Inputs, make_inputs
from profiling.records import TensorError

DTYPES: tuple[Dtype, ...] = ("fp16", "bf16", "fp32")
SEQ_LEN, HEAD_DIM, HEADS = 128, 64, oracle.MAX_PAIRS
LARGEST = 1024.0  # beyond, fp16 inputs themselves overflow


class ScaleError(NamedTuple):
    """The tile algorithm's error of one tensor at one scale; `error.eager_rel_error` is eager's own."""

    dtype: str
    scale: float
    tensor: str
    error: TensorError


def scale_errors(
    scales: Sequence[float],
    *,
    dtypes: Sequence[Dtype] = DTYPES,
    seq_len: int = SEQ_LEN,
    head_dim: int = HEAD_DIM,
    seed: int = 0,
) -> list[ScaleError]:
    """Errors of `tiled_attention`, forward and backward, beside those of eager attention, on the CPU.

    Args:
        scales: standard deviations of the logits, each above 0 and at most `LARGEST`.
        dtypes: of the inputs; the reference is fp64 on the inputs as they were rounded to the dtype.
        seq_len: N, of queries and keys.
        head_dim: d.
        seed: of the inputs, which are the same for every scale but for the factor.

    Returns:
        By dtype, then scale, then tensor: out, lse, dq, dk, dv, over all `HEADS` heads of one sequence.

    Raises:
        InputError: a scale is not one.
    """
    for scale in scales:
        if not math.isfinite(scale) or not 0 < scale <= LARGEST:
            raise InputError(f"a scale of the logits must be above 0 and at most {LARGEST:g}, got {scale:g}")
    found = []
    for dtype in dtypes:
        case = Case(
            backend="tiled",
            direction="bwd",
            dtype=dtype,
            heads=HEADS,
            kv_heads=HEADS,
            seq_len_q=seq_len,
            seq_len_k=seq_len,
            head_dim=head_dim,
            head_dim_v=head_dim,
        )
        drawn = make_inputs(case, torch.device("cpu"), seed)
        for scale in scales:
            inputs = drawn._replace(q=(drawn.q.detach() * scale).requires_grad_())
            compared = oracle.compare(case, _tiled(inputs), oracle.reference(case, inputs, seed))
            found += [ScaleError(dtype, scale, tensor, error) for tensor, error, _ in compared]
    return found


def _tiled(inputs: Inputs) -> oracle.Tensors:
    leaves = (inputs.q, inputs.k, inputs.v)
    out, lse = tiled_attention(*leaves, return_lse=True)
    gradients = torch.autograd.grad(out, leaves, inputs.dout)
    names = ("dq", "dk", "dv")
    return {"out": out.detach(), "lse": lse.detach()} | dict(zip(names, gradients, strict=True))
