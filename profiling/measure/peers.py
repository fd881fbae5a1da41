"""FlashAttention-2, -3 and -4 as backends where they are installed, as `profiling.measure.peers:fa4`.

Each takes q, k, v (batch, heads, seq_len, head_dim), KV heads fewer or not, and `causal` (aligned at the
bottom right), and returns (batch, heads, seq_len, head_dim_v). Theirs is (batch, seq_len, heads, head_dim):
the tensors are passed as views, nothing is copied, and what a call costs is theirs. A package that is not
there, or not complete, is a NotImplementedError of one sentence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch


def fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """FlashAttention-2: `flash_attn_func` of package `flash-attn`."""
    return _call("FlashAttention-2", "flash_attn", "flash-attn", q, k, v, causal)


def fa3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """FlashAttention-3: `flash_attn_func` of module `flash_attn_interface`, built from folder `hopper`."""
    return _call("FlashAttention-3", "flash_attn_interface", "flash-attn, folder hopper", q, k, v, causal)


def fa4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """FlashAttention-4: `flash_attn_func` of module `flash_attn.cute.interface`, package `flash-attn-4`."""
    return _call("FlashAttention-4", "flash_attn.cute.interface", "flash-attn-4", q, k, v, causal)


def _call(
    name: str, module: str, package: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> torch.Tensor:
    function = _function(name, module, package)
    out = function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal)
    if isinstance(out, tuple):  # some versions return the log-sum-exp beside it
        out = out[0]
    return out.transpose(1, 2)


def _function(name: str, module: str, package: str) -> Callable[..., Any]:
    """`flash_attn_func` of a module. Python keeps what it imported, so that asking again costs a look-up.

    Raises:
        NotImplementedError: it cannot be imported here.
    """
    try:
        return importlib.import_module(module).flash_attn_func
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module == missing or module.startswith(f"{missing}."):
            raise NotImplementedError(f"{name} is not installed (package {package})") from None
        raise NotImplementedError(f"{name} cannot be imported: it lacks module {missing}") from None
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise NotImplementedError(f"{name} cannot be imported: {error}") from None
