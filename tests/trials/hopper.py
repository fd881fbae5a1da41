"""The trial's host side: what the kernels of this folder take, which tile, and their launches."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from hopper_backward import KEYS, hopper_backward_kernel
from hopper_dq import hopper_dq_kernel
from hopper_forward import hopper_forward_kernel
from hopper_rows import finish_kernel, prepare_kernel
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LOG2E = 1.4426950408889634
_GLUON = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}
L2_SHARE_BYTES = 24e6


class Mask(NamedTuple):
    """A query sees keys from `left` before to `right` after its position, index + shift; None: no limit."""

    left: int | None = None
    right: int | None = None
    shift: int = 0


NO_MASK = Mask()


class ForwardTile(NamedTuple):
    """Rows and keys of a tile, stages of the ring, whether the output has memory of its own, registers."""

    block_m: int = 128
    block_n: int = 128
    stages: int = 2
    own_out: bool = True
    compute_registers: int = 240
    copy_registers: int = 24
    persistent: bool = True  # a program a multiprocessor, copying ahead; else one a tile


FORWARD = {
    64: ForwardTile(192, 128, 2, True, 160, 32),
    128: ForwardTile(),
    256: ForwardTile(128, 64, 2, False),
}


class BackwardTile(NamedTuple):
    """Queries of a step, stages, and whether the copy engine adds dQ."""

    block_m: int
    stages: int = 2
    engine: bool = False


BACKWARD = {64: BackwardTile(128, 2, True), 128: BackwardTile(64)}


def padded_width(d: int) -> int:
    """The head dim of the kernel that takes d."""
    return next(width for width in (64, 128, 256) if d <= width)


def descriptor(x: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    """Of (batch, heads, rows, d), in blocks of (1, 1, rows, width); beyond the tensor are zeros."""
    block = [1, 1, rows, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, _GLUON[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)


def _rows(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float32)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns], layout)


def reason(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    """Why these kernels cannot take the tensors; "" where they can."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"dtype must be fp16 or bf16, got {q.dtype}"
    if q.shape[3] != v.shape[3]:
        return "head_dim and head_dim_v must be the same"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if 0 in x.shape:
            return f"{name} must not be empty"
        if x.stride(3) != 1 or x.data_ptr() % 16:
            return f"{name} must have its head_dim side by side, from a multiple of 16 bytes on"
        if any(
            size > 1 and (step <= 0 or step % 8)
            for size, step in zip(x.shape[:3], x.stride()[:3], strict=True)
        ):
            return f"{name} must have strides of a multiple of 16 bytes"
    return ""


def _band(mask: Mask) -> dict[str, bool]:
    return {"LEFT": mask.left is not None, "RIGHT": mask.right is not None}


def _group_heads(mask: Mask, heads: int, bytes_per_head: int) -> int:
    """Heads taken together: as many as stay in L2 under a mask, where tiles differ in length; else one."""
    if mask.left is None and mask.right is None:
        return 1
    return max(1, min(heads, int(L2_SHARE_BYTES // bytes_per_head)))


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask = NO_MASK, tile: ForwardTile | None = None,
    scale: float | None = None, sinks: torch.Tensor | None = None, warmup: bool = False,
) -> Any:  # fmt: skip
    """(out, row_max, log_sum), or the compiled kernel with `warmup`."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1], k.shape[2]
    width = padded_width(d)
    tile = tile or FORWARD[width]
    scale = d**-0.5 if scale is None else scale
    out = torch.empty_like(q)
    statistics = q.new_empty((2, batch, heads, n_q), dtype=torch.float32)
    tiles_per_head = math.ceil(n_q / tile.block_m)
    n_tiles = tiles_per_head * batch * heads
    group_heads = _group_heads(mask, batch * heads, 2 * n_k * d * q.element_size() * kv_heads // heads)
    programs = n_tiles
    if tile.persistent:
        programs = min(
            n_tiles, torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 132
        )
    args = (
        descriptor(q, 64, width), descriptor(k, tile.block_n, width), descriptor(v, tile.block_n, width),
        descriptor(out, 64, width), statistics[0], statistics[1], sinks, n_tiles, tiles_per_head, group_heads,
        batch * heads, heads, heads // kv_heads, n_q, n_k, mask.left or 0, mask.right or 0, mask.shift,
        scale * LOG2E,
    )  # fmt: skip
    constants = {
        **_band(mask), "EVEN_N": n_k % tile.block_n == 0, "D": width, "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n, "STAGES": tile.stages, "OWN_OUT": tile.own_out,
        "COMPUTE_REGISTERS": tile.compute_registers, "COPY_REGISTERS": tile.copy_registers, "num_warps": 4,
    }  # fmt: skip
    if warmup:
        return hopper_forward_kernel.warmup(*args, grid=(programs,), **constants)
    hopper_forward_kernel[(programs,)](*args, **constants)
    return out, statistics[0], statistics[1]


def backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, row_max: torch.Tensor,
    log_sum: torch.Tensor,
    dout: torch.Tensor, mask: Mask = NO_MASK, tile: BackwardTile | None = None, deterministic: bool = False,
    scale: float | None = None, warmup: bool = False,
) -> Any:  # fmt: skip
    """(dq, dk, dv), or the compiled kernels with `warmup`."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1], k.shape[2]
    width = padded_width(d)
    tile = tile or BACKWARD[width]
    scale = d**-0.5 if scale is None else scale
    tiles_q = math.ceil(n_q / tile.block_m)
    padded = tiles_q * tile.block_m
    lse, delta = q.new_empty((2, batch * heads * tiles_q, tile.block_m), dtype=torch.float32)
    total = None if deterministic else q.new_empty((batch * heads * padded, width), dtype=torch.float32)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    half = width // 2 if tile.block_m == 64 else width
    prepare = (
        out, dout, None, row_max, log_sum, lse, delta, total, out.stride(), dout.stride(), scale * LOG2E,
        heads, n_q, padded, d,
    )  # fmt: skip
    key_tiles = math.ceil(n_k / int(KEYS.value))
    bytes_per_head = (4 * n_k + 2 * n_q * heads // kv_heads) * d * q.element_size()
    main = (
        descriptor(q, tile.block_m, width), descriptor(k, 128, width), descriptor(v, 128, width),
        descriptor(dout, tile.block_m, width), _rows(lse, 1, tile.block_m), _rows(delta, 1, tile.block_m),
        descriptor(dk, 64, width), descriptor(dv, 64, width), total,
        None if total is None or not tile.engine else _rows(total, 64, half),
        scale, scale * LOG2E, key_tiles, _group_heads(mask, batch * kv_heads, bytes_per_head),
        batch * kv_heads, kv_heads,
        heads // kv_heads, n_q, n_k, mask.left or 0, mask.right or 0, mask.shift, tiles_q,
    )  # fmt: skip
    constants = {
        **_band(mask), "EVEN_N": n_k % 128 == 0, "ALONE": heads == kv_heads, "D": width,
        "BLOCK_M": tile.block_m,
        "STAGES": tile.stages, "SUM_DQ": not deterministic, "ENGINE": tile.engine,
        "COMPUTE_REGISTERS": 240, "num_warps": 4,
    }  # fmt: skip
    block_n, block_m = 64, 128
    tiles_per_head = math.ceil(n_q / block_m)
    split = (
        descriptor(q, 64, width), descriptor(k, block_n, width), descriptor(v, block_n, width),
        descriptor(dout, 64, width),
        descriptor(dq, 64, width), lse, delta, padded, tiles_per_head,
        _group_heads(mask, batch * heads, 2 * n_k * d * q.element_size() * kv_heads // heads),
        batch * heads, heads,
        heads // kv_heads, n_q, n_k, mask.left or 0, mask.right or 0, mask.shift, scale, scale * LOG2E,
    )  # fmt: skip
    split_constants = {
        **_band(mask), "EVEN_N": n_k % block_n == 0, "D": width, "BLOCK_M": block_m, "BLOCK_N": block_n,
        "STAGES": 2,
        "COMPUTE_REGISTERS": 240, "num_warps": 4,
    }  # fmt: skip
    grid = (key_tiles * batch * kv_heads,)
    split_grid = (tiles_per_head * batch * heads,)
    if warmup:
        found = [hopper_backward_kernel.warmup(*main, grid=grid, **constants)]
        return (
            [*found, hopper_dq_kernel.warmup(*split, grid=split_grid, **split_constants)]
            if deterministic
            else found
        )
    prepare_kernel[(padded // 64, batch * heads)](*prepare, D=width, BLOCK=64, num_warps=4)
    hopper_backward_kernel[grid](*main, **constants)
    if deterministic:
        hopper_dq_kernel[split_grid](*split, **split_constants)
    else:
        finish_kernel[(padded // 64, batch * heads)](
            total,
            dq,
            dq.stride(),
            scale,
            heads,
            n_q,
            padded,
            d,
            D=width,
            HALF=half,
            FRAGMENTS=not tile.engine,
            num_warps=4,
        )
    return dq, dk, dv
