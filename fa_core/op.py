"""Launches the Triton kernels and gives them their gradient."""

from __future__ import annotations

import contextlib
import math
import struct
from typing import Any

import torch
import triton
from torch.autograd.function import once_differentiable
from triton.runtime.errors import OutOfResources

from fa_core.kernels import tuning
from fa_core.kernels.backward import delta_kernel, dkdv_kernel, dq_kernel
from fa_core.kernels.forward import forward_kernel
from fa_core.kernels.tuning import TileConfig, padded_head_dim

# Typed as Any: what a kernel takes beside its own parameters (num_warps, ...) is Triton's business.
_forward_kernel: Any = forward_kernel
_delta_kernel: Any = delta_kernel
_dkdv_kernel: Any = dkdv_kernel
_dq_kernel: Any = dq_kernel

DELTA_ROWS = 64


def _device_guard(x: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """Triton launches on the current device, which need not be the tensors'."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()  # type: ignore[return-value]


@contextlib.contextmanager
def _refuse_large_tile(config: TileConfig) -> Any:
    try:
        yield
    except OutOfResources as error:
        raise NotImplementedError(
            f"tile {config.block_m} x {config.block_n} must fit the device: {error.name} of "
            f"{error.required} exceeds its {error.limit}"
        ) from None


def _wide(*tensors: torch.Tensor) -> bool:
    """Whether an offset inside one tile (at most 256 rows and columns) can pass 2^31 elements."""
    return any(256 * (abs(x.stride(2)) + abs(x.stride(3))) >= 2**31 for x in tensors)


def _two_floats(scale: float) -> tuple[float, float]:
    """Scale as an fp32 number and the rest, because launch arguments are fp32."""
    (nearest,) = struct.unpack("f", struct.pack("f", scale))
    return nearest, scale - nearest


def _shape_constants(q: torch.Tensor, v: torch.Tensor) -> dict[str, Any]:
    d, dv = q.shape[3], v.shape[3]
    block_d, block_dv = padded_head_dim(d), padded_head_dim(dv)
    return {
        "BLOCK_D": block_d,
        "BLOCK_DV": block_dv,
        "CHECK_D": block_d != d,
        "CHECK_DV": block_dv != dv,
        "EXACT": tuning.exact(q),
    }


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, config: TileConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, n_q, d = q.shape
    kv_heads, n_k, dv = k.shape[1], k.shape[2], v.shape[3]
    out = torch.empty_like(q) if d == dv else q.new_empty(batch, heads, n_q, dv)
    wide = torch.float64 if tuning.exact(q) else torch.float32
    raw_lse = torch.empty(batch, heads, n_q, dtype=wide, device=q.device)
    if out.numel() == 0 or n_k == 0:
        return out.zero_(), raw_lse.fill_(float("-inf"))
    with _device_guard(q), _refuse_large_tile(config):
        _forward_kernel[(triton.cdiv(n_q, config.block_m) * batch * heads,)](
            q, k, v, out, raw_lse, *_two_floats(scale), heads, heads // kv_heads, n_q, n_k, d, dv,
            *q.stride(), *k.stride(), *v.stride(), *out.stride(),
            CAUSAL=causal, EVEN_N=n_k % config.block_n == 0, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
            WIDE=_wide(q, k, v, out), num_warps=config.num_warps, num_stages=config.num_stages,
            **_shape_constants(q, v),
        )  # fmt: skip
    return out, raw_lse


def _delta(out: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None) -> torch.Tensor:
    batch, heads, n_q, dv = out.shape
    exact = tuning.exact(out)
    wide = torch.float64 if exact else torch.float32
    delta = torch.empty(batch, heads, n_q, dtype=wide, device=out.device)
    dlse = None if dlse is None else dlse.to(wide).contiguous()
    _delta_kernel[(triton.cdiv(n_q, DELTA_ROWS) * batch * heads,)](
        out, dout, delta if dlse is None else dlse, delta, heads, n_q, dv, *out.stride(), *dout.stride(),
        HAS_DLSE=dlse is not None, BLOCK_M=DELTA_ROWS, BLOCK_DV=padded_head_dim(dv), WIDE=_wide(out, dout),
        EXACT=exact, num_warps=4,
    )  # fmt: skip
    return delta


def _backward(
    saved: tuple[torch.Tensor, ...],
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    causal: bool,
    scale: float,
    tile: TileConfig | None,
    needs_dq: bool,
    needs_dkdv: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    q, k, v, out, raw_lse = saved
    batch, heads, n_q, d = q.shape
    kv_heads, n_k, dv = k.shape[1], k.shape[2], v.shape[3]
    dq = torch.empty_like(q) if needs_dq else None
    dk, dv_ = (torch.empty_like(k), torch.empty_like(v)) if needs_dkdv else (None, None)
    if out.numel() == 0 or n_k == 0:
        return tuple(x if x is None else x.zero_() for x in (dq, dk, dv_))  # type: ignore[return-value]
    shared = {"CAUSAL": causal, "WIDE": _wide(q, k, v, dout), **_shape_constants(q, v)}
    inputs = (*q.stride(), *k.stride(), *v.stride(), *dout.stride())
    with _device_guard(q):
        delta = _delta(out, dout, dlse)
        if dk is not None and dv_ is not None:
            config = tile or tuning.dkdv_config(max(d, dv), q.dtype, causal)
            with _refuse_large_tile(config):
                _dkdv_kernel[(triton.cdiv(n_k, config.block_n) * batch * kv_heads,)](
                    q, k, v, dout, raw_lse, delta, dk, dv_, *_two_floats(scale),
                    heads, kv_heads, heads // kv_heads, n_q, n_k, d, dv, *inputs, *dk.stride(), *dv_.stride(),
                    EVEN_M=n_q % config.block_m == 0, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
                    num_warps=config.num_warps, num_stages=config.num_stages, **shared,
                )  # fmt: skip
        if dq is not None:
            config = tuning.dq_config(max(d, dv), q.dtype, causal)
            _dq_kernel[(triton.cdiv(n_q, config.block_m) * batch * heads,)](
                q, k, v, dout, raw_lse, delta, dq, *_two_floats(scale),
                heads, heads // kv_heads, n_q, n_k, d, dv, *inputs, *dq.stride(),
                EVEN_N=n_k % config.block_n == 0, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
                num_warps=config.num_warps, num_stages=config.num_stages, **shared,
            )  # fmt: skip
    if n_k == 1 and dlse is None:
        # A softmax over one key is constant: what dO seems to send to its score is rounding.
        for grad in (dq, dk):
            if grad is not None:
                grad.zero_()
    return dq, dk, dv_


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        scale: float,
        tile: tuple[int, int] | None,
        want_lse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        config = tuning.forward_config(max(q.shape[3], v.shape[3]), q.dtype, causal)
        if tile is not None:
            config = tuning.requested_config(*tile, config)
        out, raw_lse = _forward(q, k, v, causal, scale, config)
        ctx.save_for_backward(q, k, v, out, raw_lse)
        ctx.causal, ctx.scale, ctx.tile = causal, scale, tile
        ctx.set_materialize_grads(False)
        return out, (raw_lse * scale).float() if want_lse else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        q, _, v, out, _ = ctx.saved_tensors
        needs_dq, needs_dk, needs_dv = ctx.needs_input_grad[:3]
        if dout is None and dlse is None:
            return (None,) * 7
        dout = torch.zeros_like(out) if dout is None else dout
        tile = None
        if ctx.tile is not None:
            default = tuning.dkdv_config(max(q.shape[3], v.shape[3]), q.dtype, ctx.causal)
            tile = tuning.requested_config(*ctx.tile, default)  # pyright: ignore[reportCallIssue]
        dq, dk, dv = _backward(
            ctx.saved_tensors, dout, dlse, ctx.causal, ctx.scale, tile, needs_dq, needs_dk or needs_dv
        )
        return dq, dk if needs_dk else None, dv if needs_dv else None, None, None, None, None


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    block_m: int | None = None,
    block_n: int | None = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The Triton kernels on checked arguments: (out, lse or None), both differentiable once.

    q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv) in fp16, bf16 or fp32, d and dv at most 256.

    Raises:
        NotImplementedError: a requested tile does not fit the device.
    """
    if not scale > 0 or math.isinf(scale):
        # The kernels take the maximum before they scale, which is right for positive scales only; the
        # sign (or the zero) is as well carried by q.
        q, scale = q * math.copysign(1.0, scale) if scale else q * 0.0, abs(scale) or 1.0
    tile = None if block_m is None or block_n is None else (block_m, block_n)
    apply: Any = _Flash.apply
    return apply(q, k, v, causal, scale, tile, return_lse)
