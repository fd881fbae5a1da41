"""PyTorch's scaled_dot_product_attention with features: all that is added to the scores as one dense mask.

SDPA knows a causal mask and one tensor `attn_mask`, so a window, ALiBi and a bias are summed up into the
latter. That is done once and not timed (`with_mask`): the mask is an input, and its gradient the bias'.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import fa_core
from profiling.case import Case
from profiling.measure.inputs import Inputs
from profiling.measure.masks import added_scores

_PINNED = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}


def check(case: Case) -> None:
    """Raise `NotImplementedError`, one sentence, for what SDPA has no argument for."""
    if case.tile_m is not None:
        raise NotImplementedError(f"{case.backend} has no tiles: only tiled and flash do")
    if case.softcap is not None or case.sinks:
        what = "a softcap" if case.softcap is not None else "sinks"
        raise NotImplementedError(f"{case.backend} cannot take {what}: PyTorch's SDPA has no argument for it")
    if case.layout == "varlen":
        raise NotImplementedError(
            f"{case.backend} cannot take packed sequences: PyTorch's SDPA takes dense ones"
        )


def with_mask(case: Case, inputs: Inputs) -> Inputs:
    """The inputs with everything that is added to the scores in `bias`: (1, heads or 1, Nq, Nk).

    A bias' gradient is then that of the mask, whose other terms are constants. A causal mask alone needs
    no tensor, and neither does a case without any.
    """
    if (
        inputs.bias is None
        and inputs.slopes is None
        and case.window_left is None
        and case.window_right is None
    ):
        return inputs
    added = added_scores(case, inputs.slopes, inputs.q, case.seq_len_q, case.seq_len_k)
    if inputs.bias is None or added is None:
        return inputs._replace(bias=added if inputs.bias is None else inputs.bias, slopes=None)
    mask = (inputs.bias.detach() + added).requires_grad_(inputs.bias.requires_grad)
    return inputs._replace(bias=mask, slopes=None)


def attention(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """SDPA on dense tensors; `bias` is what `with_mask` made, the causal mask included.

    Raises:
        NotImplementedError: the pinned backend refuses these tensors.
    """
    if bias is None:
        return fa_core.attention(q, k, v, causal=case.causal, impl=case.backend)
    pinned: Any = contextlib.nullcontext()
    if case.backend in _PINNED:
        pinned = sdpa_kernel(_PINNED[case.backend])
    with pinned:
        try:
            return scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not any(text in str(error) for text in ("No available kernel", "No viable backend")):
                raise
            raise NotImplementedError(
                f"{case.backend} must be given tensors that PyTorch's backend takes, got {q.dtype} "
                f"{tuple(q.shape)}, {tuple(k.shape)} and a mask {tuple(bias.shape)}: "
                "PyTorch has no kernel for them"
            ) from None
