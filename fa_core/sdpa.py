"""PyTorch's own scaled_dot_product_attention with our semantics, whole or pinned to one backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

_BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}


@contextlib.contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if wanted:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)


def sdpa_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    impl: str = "sdpa",
    deterministic: bool = False,
) -> torch.Tensor:
    """SDPA on (batch, heads, seq_len, head_dim), grouped KV heads allowed, causal aligned bottom-right.

    `deterministic` holds for the forward; a backward run later follows PyTorch's flag at that time.

    Raises:
        NotImplementedError: the pinned backend refuses these tensors; PyTorch's reason is in the message.
    """
    n_q, n_k = q.shape[2], k.shape[2]
    # is_causal is aligned top-left in PyTorch; the bias object names the other corner without a mask.
    mask = causal_lower_right(n_q, n_k) if causal and n_q != n_k else None
    pinned = sdpa_kernel(_BACKENDS[impl]) if impl in _BACKENDS else contextlib.nullcontext()
    with pinned, _deterministic(deterministic):
        try:
            return scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,  # type: ignore[arg-type]
                is_causal=causal and mask is None,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not any(text in str(error) for text in ("No available kernel", "No viable backend")):
                raise
            raise NotImplementedError(
                f"{impl} must be given tensors that PyTorch's backend takes, got {q.dtype} "
                f"{tuple(q.shape)} and {tuple(k.shape)}: PyTorch has no kernel for them"
            ) from None
