"""PyTorch's own scaled_dot_product_attention with our semantics, whole or pinned to one backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.nn.functional import scaled_dot_product_attention

from fa_core.band import Band

_BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


def _dense_mask(
    q: torch.Tensor, n_k: int, band: Band, alibi_slopes: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """What is added to the scores, in q's dtype, broadcasting to (batch, heads, seq_len_q, seq_len_k)."""
    n_q = q.shape[2]
    positions = torch.arange(n_q, device=q.device)[:, None] + band.shift(n_q, n_k)
    keys = torch.arange(n_k, device=q.device)
    mask = torch.zeros(1, 1, n_q, n_k, dtype=q.dtype, device=q.device)
    if alibi_slopes is not None:
        mask = (mask - alibi_slopes.reshape(-1, q.shape[1], 1, 1) * (positions - keys).abs()).to(q.dtype)
    if bias is not None:
        mask = mask + bias.to(q.dtype)
    if band.left is not None:
        mask = mask.masked_fill(keys < positions - band.left, float("-inf"))
    if band.right is not None:
        mask = mask.masked_fill(keys > positions + band.right, float("-inf"))
    return mask


def _lower_right(n_q: int, n_k: int) -> CausalBias:
    """PyTorch's name for a causal mask of the bottom-right corner, which no mask has to be built for.

    What `causal_lower_right` returns, made in another way: its constructor asks for a tensor of 2 x n_q x n_k
    floats that nobody reads, and it fails in torch.compile and under a TorchDispatchMode (torch 2.11, 2.13).
    """
    corner = torch.empty(0).as_subclass(CausalBias)
    corner.variant, corner.seq_len_q, corner.seq_len_kv = CausalVariant.LOWER_RIGHT, n_q, n_k
    return corner


def sdpa_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    band: Band,
    scale: float,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    impl: str = "sdpa",
    deterministic: bool = False,
) -> torch.Tensor:
    """SDPA on (batch, heads, seq_len, head_dim), grouped KV heads allowed.

    A causal mask is SDPA's own; windows, ALiBi and a bias become one dense mask, built at each call.
    `deterministic` holds for the forward; a backward run later follows PyTorch's flag at that time.

    Raises:
        NotImplementedError: a softcap or sinks, or the pinned backend refuses these tensors.
    """
    for name, value in (("softcap", softcap), ("sinks", sinks)):
        if value is not None:
            raise NotImplementedError(f"impl {impl!r} must be called without {name}: PyTorch's SDPA has none")
    n_q, n_k = q.shape[2], k.shape[2]
    plain = alibi_slopes is None and bias is None and band.left is None and band.right in (None, 0)
    causal = plain and band.right == 0
    if not plain:
        mask = _dense_mask(q, n_k, band, alibi_slopes, bias)
    else:
        # is_causal is aligned top-left in PyTorch; the bias object names the other corner without a mask.
        lower_right = causal and n_q != n_k and not band.top_left
        mask = _lower_right(n_q, n_k) if lower_right else None
    pinned = sdpa_kernel(_BACKENDS[impl]) if impl in _BACKENDS else contextlib.nullcontext()
    with pinned, _deterministic() if deterministic else contextlib.nullcontext():
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
