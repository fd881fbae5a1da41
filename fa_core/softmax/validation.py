"""What the doors of the package accept, and which implementation a call gets."""

from __future__ import annotations

import torch

from fa_core.validation import HAS_TRITON, interpreted

IMPLS: tuple[str, ...] = ("auto", "online", "naive")
ONLINE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_K = 64


def check_logits(logits: torch.Tensor) -> None:
    """Check logits (..., classes): floating, with at least one class.

    Raises:
        TypeError, ValueError: otherwise.
    """
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"logits must be a tensor, got {type(logits).__name__}")
    if not logits.dtype.is_floating_point:
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    if logits.ndim < 1 or not logits.shape[-1]:
        raise ValueError(f"logits must be (..., classes) with a class or more, got {tuple(logits.shape)}")


def check_target(target: torch.Tensor, logits: torch.Tensor) -> None:
    """Check target (...) int64 for logits (..., classes), its form alone: values are not read back.

    Raises:
        TypeError, ValueError: otherwise.
    """
    if not isinstance(target, torch.Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    if target.dtype != torch.int64:
        raise TypeError(f"target must be int64, got {target.dtype}")
    if target.shape != logits.shape[:-1]:
        raise ValueError(
            f"target must have the shape of logits without classes {tuple(logits.shape[:-1])}, "
            f"got {tuple(target.shape)}"
        )
    if target.device != logits.device:
        raise ValueError(f"target must be on logits' device {logits.device}, got {target.device}")


def check_k(k: int, logits: torch.Tensor) -> None:
    """Check that k is a whole number from 1 to the classes and to MAX_K.

    Raises:
        TypeError, ValueError: otherwise.
    """
    if isinstance(k, bool) or not isinstance(k, int | torch.SymInt):
        raise TypeError(f"k must be a whole number, got {type(k).__name__}")
    most = min(logits.shape[-1], MAX_K)
    if not 1 <= k <= most:
        raise ValueError(f"k must be from 1 to {most}, the classes and at most {MAX_K}, got {k}")


def why_not_online(logits: torch.Tensor) -> str | None:
    """The reason why the Triton kernels cannot take checked logits, or None when they can."""
    if not HAS_TRITON:
        return "online must have the triton package, which is not installed here (it exists for Linux)"
    if logits.dtype not in ONLINE_DTYPES:
        return f"online must have fp16, bf16 or fp32 logits, got {logits.dtype}"
    if interpreted():
        # As with attention: what Triton's interpreter makes of bf16 is not what a GPU does.
        if logits.dtype == torch.bfloat16:
            return "online must have fp16 or fp32 under Triton's interpreter, got bf16"
        return None
    if logits.device.type not in ("cuda", "meta"):  # of `meta` tensors only the shapes are asked
        return f"online must have logits on a CUDA device, got {logits.device}"
    return None


def resolve_impl(impl: str, logits: torch.Tensor) -> str:
    """The implementation that `impl` stands for: `online` or `naive`.

    Raises:
        ValueError: an unknown one.
        NotImplementedError: `online`, and it cannot take these logits.
    """
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    if impl == "naive":
        return impl
    reason = why_not_online(logits)
    if impl == "online":
        if reason:
            raise NotImplementedError(reason)
        return impl
    return "naive" if reason or interpreted() else "online"


def flat_rows(logits: torch.Tensor) -> torch.Tensor:
    """Logits as (rows, classes) with classes side by side: a view where strides allow it, else a copy."""
    flat = logits.reshape(-1, logits.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()
