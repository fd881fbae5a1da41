"""Backends for real workers: any name works (`faulty_worker` kills by it), two fail as a GPU does."""

from __future__ import annotations

import torch

from fa_core import naive_attention


def _plain(q, k, v, causal):
    return naive_attention(q, k, v, causal=causal)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _plain


def illegal(q, k, v, causal):
    """Reads where it must not, as PyTorch says it."""
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def no_memory_for_blas(q, k, v, causal):
    """What cuBLAS says when nothing is left for its handle."""
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
