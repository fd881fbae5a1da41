"""The public door: validate, choose an implementation, call it. Kernels are imported when first needed."""

from __future__ import annotations

import importlib.util
import os
from typing import Literal, overload

import torch

from fa_core.naive import naive_attention
from fa_core.tiled import tiled_attention
from fa_core.validation import check_scale, check_tensors, check_tile, why_not_flash

SDPA_IMPLS: tuple[str, ...] = ("sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math")
IMPLS: tuple[str, ...] = ("auto", "flash", "tiled", "naive", *SDPA_IMPLS)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _why_not_flash(q: torch.Tensor, v: torch.Tensor) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "flash must have the triton package, which is not installed here (it exists for Linux)"
    return why_not_flash(q, v, interpreted=_interpreted())


def flash_tile(
    head_dim: int, dtype: torch.dtype, direction: str = "fwd", causal: bool = False
) -> tuple[int, int]:
    """The (block_m, block_n) that `flash` takes when none is asked for.

    `direction` is `fwd`, or `bwd` for the query x key tile of the kernel that forms dK and dV.
    """
    from fa_core.kernels import tuning

    choose = tuning.forward_config if direction == "fwd" else tuning.dkdv_config
    config = choose(head_dim, dtype, causal)
    return config.block_m, config.block_n


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    impl: str = ...,
    block_m: int | None = ...,
    block_n: int | None = ...,
    deterministic: bool = ...,
    return_lse: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    impl: str = ...,
    block_m: int | None = ...,
    block_n: int | None = ...,
    deterministic: bool = ...,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    impl: str = "auto",
    block_m: int | None = None,
    block_n: int | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention, softmax(scale · q kᵀ + mask) v, by the implementation named.

    Args:
        q: (batch, heads, seq_len_q, head_dim), any strides.
        k: (batch, kv_heads, seq_len_k, head_dim); kv_heads divides heads.
        v: (batch, kv_heads, seq_len_k, head_dim_v).
        causal: query i sees key j when j <= i + seq_len_k - seq_len_q (bottom-right alignment).
        scale: factor on the scores; 1/sqrt(head_dim) when None.
        impl: `flash` (Triton; fp16, bf16, fp32; head_dim to 256), `tiled` (the same algorithm in plain
            PyTorch), `naive` (eager, any dtype), `sdpa` (PyTorch's own choice) or a pinned
            `sdpa_flash`, `sdpa_cudnn`, `sdpa_efficient`, `sdpa_math`. `auto` is `flash` where it can run
            and `naive` elsewhere.
        block_m: query rows of the tile of `flash` or `tiled`; with block_n, 16, 32, 64, 128 or 256.
        block_n: keys of the tile. In the backward the tile is that of the kernel that forms dK and dV.
        deterministic: ask for bitwise equal results on every run. All paths of `flash`, `tiled` and
            `naive` are; for SDPA it switches PyTorch's own flag for the length of the call.
        return_lse: also return the natural log-sum-exp of each row (batch, heads, seq_len_q).

    Returns:
        out (batch, heads, seq_len_q, head_dim_v) in q's dtype; a row that sees no key is 0, its lse -inf.

    Raises:
        TypeError, ValueError: arguments that do not fit together, an unknown `impl`, or a tile asked of
            an implementation that has none.
        NotImplementedError: the named implementation cannot take these tensors, or return an lse.
    """
    check_tensors(q, k, v)
    scale = check_scale(scale, q.shape[3])
    check_tile(block_m, block_n)
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    if impl == "auto":
        impl = "naive" if _interpreted() or _why_not_flash(q, v) else "flash"
    if block_m is not None and impl not in ("flash", "tiled"):
        raise ValueError(
            f"block_m and block_n must be left out for impl {impl!r}: only flash and tiled have tiles"
        )

    if impl == "naive":
        return naive_attention(q, k, v, causal=causal, scale=scale, return_lse=return_lse)  # type: ignore[call-overload]
    if impl == "tiled":
        tile = {} if block_m is None or block_n is None else {"block_m": block_m, "block_n": block_n}
        return tiled_attention(q, k, v, causal=causal, scale=scale, return_lse=return_lse, **tile)  # type: ignore[call-overload]
    if impl == "flash":
        if reason := _why_not_flash(q, v):
            raise NotImplementedError(reason)
        from fa_core.op import flash_attention

        out, lse = flash_attention(
            q, k, v, causal=causal, scale=scale, block_m=block_m, block_n=block_n, return_lse=return_lse
        )
        return (out, lse) if lse is not None else out
    if return_lse:
        raise NotImplementedError(
            f"impl {impl!r} must be called without return_lse: PyTorch's SDPA returns none"
        )
    from fa_core.sdpa import sdpa_attention

    return sdpa_attention(q, k, v, causal=causal, scale=scale, impl=impl, deterministic=deterministic)
