"""The fp64 oracle and the error rule of CONTRIBUTING.md, for every implementation under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from fa_core import naive_attention

TENSORS = ("out", "lse", "dq", "dk", "dv")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Inputs(NamedTuple):
    """q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv), dout (B, H, Nq, dv)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor


def make_inputs(
    n_q: int,
    n_k: int,
    head_dim: int,
    *,
    batch: int = 2,
    heads: int = 3,
    kv_heads: int = 3,
    head_dim_v: int | None = None,
    dtype: str = "fp32",
    seed: int = 0,
) -> Inputs:
    """Normal random inputs on the device at hand."""
    g = torch.Generator(device=DEVICE).manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, device=DEVICE, dtype=torch.float32).to(DTYPES[dtype])

    dv = head_dim if head_dim_v is None else head_dim_v
    return Inputs(
        draw(batch, heads, n_q, head_dim),
        draw(batch, kv_heads, n_k, head_dim),
        draw(batch, kv_heads, n_k, dv),
        draw(batch, heads, n_q, dv),
    )


def run(attend: Callable[..., object], x: Inputs, **options: object) -> dict[str, torch.Tensor]:
    """out, lse and the gradients that dout sends back, of one implementation."""
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in x[:3]]
    out, lse = attend(*leaves, return_lse=True, **options)  # type: ignore[misc]
    grads = torch.autograd.grad(out, leaves, x.dout)
    return dict(zip(TENSORS, (out.detach(), lse.detach(), *grads), strict=True))


def assert_as_good_as_eager(got: dict[str, torch.Tensor], x: Inputs, **options: object) -> int:
    """Hold each tensor to the rule: at most twice eager's largest error, plus what rounding alone may do.

    max|x - ref| <= 2 max|eager - ref| + 2 max|(ref + 0.3 - 0.3) - ref|, the last in the dtype under
    test, ref in fp64 on the same inputs. In fp64 itself the two must agree to ten digits instead. Returns
    how many tensors were compared.
    """
    reference = run(naive_attention, Inputs(*(t.double() for t in x)), **options)
    eager = run(naive_attention, x, **options)
    for name in TENSORS:
        ref, seen, base = reference[name], got[name], eager[name]
        assert seen.shape == ref.shape, f"{name}: shape {tuple(seen.shape)}, expected {tuple(ref.shape)}"
        finite = torch.isfinite(ref)
        assert torch.equal(seen.double()[~finite], ref[~finite]), f"{name}: infinities differ"
        if not finite.any():
            continue
        ref, seen, base = ref[finite], seen.double()[finite], base.double()[finite]
        rounded = (ref.to(x.q.dtype) + 0.3 - 0.3).double()
        allowed = 2 * (base - ref).abs().max() + 2 * (rounded - ref).abs().max()
        if x.q.dtype == torch.float64:
            allowed = 1e-10 * ref.abs().max() + 1e-12
        error = (seen - ref).abs().max()
        assert error <= allowed, f"{name}: max error {error:.3e}, allowed {allowed:.3e}"
    return len(TENSORS)
