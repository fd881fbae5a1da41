"""What `attention` accepts. Each refusal is one sentence: the argument, what it must be, what it was."""

from __future__ import annotations

import math

import torch

MAX_HEAD_DIM = 256
FLASH_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Check ranks, devices, dtypes and shapes of q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv).

    Raises:
        TypeError: not a tensor, or dtypes that differ or are not floating.
        ValueError: anything else that does not fit together.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != 4:
            raise ValueError(
                f"{name} must be (batch, heads, seq_len, head_dim), got {x.ndim} dimensions {tuple(x.shape)}"
            )
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.dtype.is_floating_point:
        raise TypeError(f"q must be floating point, got {q.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device}, {v.device}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"k and v must agree in batch, heads and seq_len, got {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have one batch size, got {q.shape[0]} and {k.shape[0]}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must have one head_dim, got {q.shape[3]} and {k.shape[3]}")
    if not q.shape[3] or not v.shape[3]:
        raise ValueError(f"head_dim must be at least 1, got {q.shape[3]} and {v.shape[3]} (v)")
    if not q.shape[1] or not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"heads of q must be a multiple of the heads of k and v, got {q.shape[1]} and {k.shape[1]}"
        )


def check_scale(scale: float | None, head_dim: int) -> float:
    """Return the score factor as a float: 1/sqrt(head_dim) when None.

    Raises:
        ValueError: not finite.
    """
    value = head_dim**-0.5 if scale is None else float(scale)
    if not math.isfinite(value):
        raise ValueError(f"scale must be finite, got {value}")
    return value


def check_tile(block_m: int | None, block_n: int | None) -> None:
    """Check a requested tile: both or neither, powers of two from 16 to 256.

    Raises:
        ValueError: otherwise.
    """
    if (block_m is None) != (block_n is None):
        raise ValueError(f"block_m and block_n must be given together, got {block_m} and {block_n}")
    for name, block in (("block_m", block_m), ("block_n", block_n)):
        if block is not None and block not in (16, 32, 64, 128, 256):
            raise ValueError(f"{name} must be 16, 32, 64, 128 or 256, got {block}")


def why_not_flash(q: torch.Tensor, v: torch.Tensor, *, interpreted: bool) -> str | None:
    """The reason why the Triton kernels cannot take these tensors, or None when they can."""
    if q.dtype not in FLASH_DTYPES:
        return f"flash must have fp16, bf16 or fp32 tensors, got {q.dtype}"
    if max(q.shape[3], v.shape[3]) > MAX_HEAD_DIM:
        return f"flash must have head_dim of at most {MAX_HEAD_DIM}, got {q.shape[3]} and {v.shape[3]} (v)"
    if interpreted:
        # Triton's interpreter multiplies bf16 bit patterns in tl.dot, silently (triton issue 11584).
        return (
            "flash must have fp16 or fp32 under Triton's interpreter, got bf16" * (q.dtype == torch.bfloat16)
            or None
        )
    if q.device.type != "cuda":
        return f"flash must have tensors on a CUDA device, got {q.device}"
    return None
