"""The kernels for sm_90: which calls they take, with which tile, and their launches.

They are warp-specialised, in Gluon, and read and write through the copy engine's descriptors. What they
cannot take is refused with a reason. Nothing of Gluon is imported before it is needed: Triton's interpreter
does not know it.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton

from fa_core.kernels import tuning
from fa_core.launch import Launch, Problem, Saved, decoding

CAPABILITY = (9, 0)
HAS_GLUON = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)
LOG2E = 1.4426950408889634
MAX_HEAD_DIM = 256
# Keys and values of heads taken together under a mask: what an H100 or H200 keeps of them in its 50 MB of L2.
L2_SHARE_BYTES = 24e6
# From here on the elements of a head's keys make the hardware's own order of tiles the better one under a
# mask: a program a multiprocessor, each with its share fixed, waits for the slowest.
MANY_KEYS = 2**20
# Rows of a tall tile cost a ninth less each, so the busiest multiprocessor may have a tenth more of them; not
# under a mask, where each has its share fixed and tiles differ in length (and short ones are not worth it).
TALL_MORE = 1.1
TALL_MASKED_QUERIES = 3072
# Fewer tiles than keep this share of the multiprocessors busy, and the portable kernels are faster, whose
# tiles have fewer rows: measured with 64 tiles on 132 in 0.74 to 0.99 of the time, with 128 in 0.88 to 1.49.
BUSY_SHARE = 0.75
_DQ_TILES = {64: (128, 64, 2), 128: (128, 64, 2), 256: (128, 32, 2)}  # queries, keys, stages


class ForwardTile(NamedTuple):
    """Rows and keys of a tile, stages of the ring, whether the output has memory of its own, registers."""

    block_m: int = 128
    block_n: int = 128
    stages: int = 2
    own_out: bool = True
    compute_registers: int = 240
    copy_registers: int = 24
    persistent: bool = True  # a program a multiprocessor, copying ahead; else one a tile


class BackwardTile(NamedTuple):
    """Keys of a program, queries of a step, stages, and whether the copy engine adds dQ."""

    keys: int
    block_m: int
    stages: int = 2
    engine: bool = False


_FORWARD_NARROW = ForwardTile(128, 64, 3)  # wastes less on the diagonal
_FORWARD_TALL = ForwardTile(192, 128, 2, True, 160, 32)
_FORWARD_WIDE = ForwardTile(128, 64, 2, False)
# Where every key is seen, and under a band.
_BACKWARD = {
    64: (BackwardTile(128, 128), BackwardTile(128, 128, 2, True)),
    128: (BackwardTile(128, 64, 2, True), BackwardTile(128, 64)),
    256: (BackwardTile(64, 64), BackwardTile(64, 64)),
}


def padded_width(d: int) -> int:
    """The head_dim of the kernel that takes d."""
    return next(width for width in (64, 128, 256) if d <= width)


def _tiles(p: Problem, block_m: int) -> int:
    """Tiles of so many queries, of all heads."""
    return p.q.shape[0] * p.q.shape[1] * math.ceil(p.q.shape[2] / block_m)


def _longest(p: Problem, block_m: int) -> int:
    """Rows of the busiest multiprocessor: its tiles' together."""
    return math.ceil(_tiles(p, block_m) / _processors(p)) * block_m


def forward_tile(p: Problem) -> ForwardTile:
    """The forward's tile, found on an H200 by tests/benchmarks/tune_hopper.py."""
    n_k, width = p.k.shape[2], padded_width(p.q.shape[3])
    persistent = not p.masked or n_k * width < MANY_KEYS
    tile = ForwardTile()
    if width == 256:
        tile = _FORWARD_WIDE
    elif p.masked and n_k <= 1024:
        tile = _FORWARD_NARROW
    elif width == 64 and (not p.masked or p.q.shape[2] >= TALL_MASKED_QUERIES):
        more = 1.0 if p.masked and persistent else TALL_MORE
        tile = _FORWARD_TALL if _longest(p, 192) <= more * _longest(p, 128) else tile
    return tile._replace(persistent=persistent)


def backward_tile(p: Problem) -> BackwardTile:
    """The backward's tile, found like the forward's."""
    return _BACKWARD[padded_width(p.q.shape[3])][p.masked]


# -------------------------------------------------------------------------------------------- what they take


def why_not(p: Problem) -> str:
    """Why the kernels for sm_90 cannot take a call; "" where they can."""
    if reason := _why_not_here(p.q.device):
        return reason
    if p.q.dtype not in (torch.float16, torch.bfloat16):
        return f"dtype must be fp16 or bf16, got {p.q.dtype}"
    d, d_v = p.q.shape[3], p.v.shape[3]
    if d != d_v or d > MAX_HEAD_DIM:
        return f"head_dim and head_dim_v must be the same, at most {MAX_HEAD_DIM}, got {d} and {d_v}"
    if p.modified:
        return "bias, ALiBi and softcap must be absent"
    if p.cu_k is not None or p.cu_q is not None:
        return "sequences must be neither packed nor paged"
    if 0 in p.q.shape or 0 in p.k.shape:
        return "tensors must not be empty"
    if decoding(p):
        return "queries must be more: the keys of so few are divided between programs"
    return next(
        (f"{name} {fault}" for name, x in (("q", p.q), ("k", p.k), ("v", p.v)) if (fault := _fault(x))), ""
    )


def why_rather_not(p: Problem) -> str:
    """Why a forward that they can take is faster by the portable kernels; "" where it is not.

    Of wide heads (d > 128) none is, and no backward.
    """
    if padded_width(p.q.shape[3]) == 256:
        return ""
    found, processors = _tiles(p, forward_tile(p).block_m), _processors(p)
    if found >= BUSY_SHARE * processors:
        return ""
    return f"tiles must keep {BUSY_SHARE:.0%} of the multiprocessors busy, got {found} tiles for {processors}"


def _why_not_here(device: torch.device) -> str:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "Triton must compile: its interpreter knows no Gluon"
    gpu = tuning.gpu(device)
    if gpu is None or gpu.capability != CAPABILITY:
        return "the GPU must have compute capability 9.0 (H100, H200)"
    return "" if HAS_GLUON else f"triton must be 3.6 or newer, got {triton.__version__}"


def _fault(x: torch.Tensor) -> str:
    """What of a tensor (batch, heads, rows, d) the copy engine cannot read; "" if it can."""
    *steps, step = x.stride()
    # A compiler's tensors have no address: their kernels are asked again when they run.
    placed = not (torch.compiler.is_compiling() or x.is_meta)
    if step != 1 or (placed and x.data_ptr() % 16):
        return "must have its head_dim side by side, from a multiple of 16 bytes on"
    for size, step in zip(x.shape, steps, strict=False):
        if size > 1 and (step <= 0 or step % 8):
            return "must have strides that are multiples of 16 bytes"
    return ""


@lru_cache(maxsize=1)
def _kernels() -> Any:
    """The kernels and what their launches need of Gluon, imported when first needed."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from fa_core.kernels.hopper_backward import hopper_backward_kernel
    from fa_core.kernels.hopper_dq import hopper_dq_kernel
    from fa_core.kernels.hopper_forward import hopper_forward_kernel
    from fa_core.kernels.hopper_rows import finish_kernel, prepare_kernel

    return SimpleNamespace(
        gl=gl,
        TensorDescriptor=TensorDescriptor,
        forward=hopper_forward_kernel,
        backward=hopper_backward_kernel,
        dq=hopper_dq_kernel,
        prepare=prepare_kernel,
        finish=finish_kernel,
    )


# ----------------------------------------------------------------------------------------------- descriptors


@lru_cache(maxsize=64)
def _layout(block: tuple[int, ...], dtype: torch.dtype) -> Any:
    gl = _kernels().gl
    names = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}
    return gl.NVMMASharedLayout.get_default_for(list(block), names[dtype])


def _descriptor(x: torch.Tensor, rows: int, width: int) -> Any:
    """Of (batch, heads, rows, d), in blocks of (1, 1, rows, width); beyond the tensor are zeros."""
    block = (1, 1, rows, width)
    # Where there is one of something its stride is never used, but the copy engine checks it.
    strides = [step if size > 1 else 8 for size, step in zip(x.shape[:3], x.stride(), strict=False)]
    return _kernels().TensorDescriptor(x, list(x.shape), [*strides, 1], list(block), _layout(block, x.dtype))


def _rows_descriptor(x: torch.Tensor, rows: int, columns: int) -> Any:
    layout = _layout((rows, columns), x.dtype)
    return _kernels().TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns], layout)


# -------------------------------------------------------------------------------------------------- launches


def _shift(p: Problem) -> int:
    """A query's position less its index."""
    return 0 if p.top_left else p.k.shape[2] - p.q.shape[2]


def _band(p: Problem) -> dict[str, bool]:
    return {"LEFT": p.left is not None, "RIGHT": p.right is not None}


def _group_heads(p: Problem, heads: int, bytes_per_head: int) -> int:
    """Heads taken together: as many as stay in L2 under a mask, where tiles differ in length; else one."""
    return max(1, min(heads, int(L2_SHARE_BYTES // bytes_per_head))) if p.masked else 1


def _processors(p: Problem) -> int:
    gpu = tuning.gpu(p.q.device)
    return 1 if gpu is None else gpu.processors


def forward_launch(
    p: Problem,
    out: torch.Tensor,
    row_max: torch.Tensor | None,
    log_sum: torch.Tensor | None,
    tile: ForwardTile | None = None,
) -> Launch:
    """The forward into out (B, H, Nq, d), row_max and log_sum (B, H, Nq), as the portable one leaves them.

    Both may be None where neither a backward nor a log-sum-exp is to come.
    """
    batch, heads, n_q, d = p.q.shape
    kv_heads, n_k = p.k.shape[1], p.k.shape[2]
    width, tile = padded_width(d), tile or forward_tile(p)
    n_tiles = _tiles(p, tile.block_m)
    tiles_per_head = n_tiles // (batch * heads)
    key_bytes = 2 * n_k * d * p.q.element_size()
    return Launch(
        _kernels().forward,
        (min(n_tiles, _processors(p)) if tile.persistent else n_tiles,),
        (
            _descriptor(p.q, 64, width), _descriptor(p.k, tile.block_n, width),
            _descriptor(p.v, tile.block_n, width), _descriptor(out, 64, width), row_max, log_sum, p.sinks,
            n_tiles, tiles_per_head, _group_heads(p, batch * heads, key_bytes * kv_heads // heads),
            batch * heads, heads, heads // kv_heads, n_q, n_k, p.left or 0, p.right or 0, _shift(p),
            p.scale * LOG2E,
        ),
        {
            **_band(p), "EVEN_N": n_k % tile.block_n == 0, "D": width, "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n, "STAGES": tile.stages, "OWN_OUT": tile.own_out,
            "COMPUTE_REGISTERS": tile.compute_registers, "COPY_REGISTERS": tile.copy_registers,
            "num_warps": 4,
        },
    )  # fmt: skip


def backward_launches(
    p: Problem,
    s: Saved,
    out: torch.Tensor,
    dlse: torch.Tensor | None,
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    deterministic: bool = False,
    tile: BackwardTile | None = None,
) -> list[Launch]:
    """All of the backward into dq, dk, dv, shaped as q, k, v; `s.delta` is not used.

    One kernel forms all and adds dQ in fp32 in no fixed order; with `deterministic`, and where a program has
    64 keys, another forms dQ.
    """
    batch, heads, n_q, d = p.q.shape
    kv_heads, n_k = p.k.shape[1], p.k.shape[2]
    dq, dk, dv = grads
    width, tile = padded_width(d), tile or backward_tile(p)
    divided = deterministic or tile.keys == 64
    dout = s.dout if not _fault(s.dout) else s.dout.contiguous()
    tiles_q = math.ceil(n_q / tile.block_m)
    padded = tiles_q * tile.block_m
    lse, delta = p.q.new_empty((2, batch * heads * tiles_q, tile.block_m), dtype=torch.float32)
    total = None if divided else p.q.new_empty((batch * heads * padded, width), dtype=torch.float32)
    half = width // 2 if tile.block_m == 64 else width
    scale_log2 = p.scale * LOG2E
    rows_grid = (padded // 64 * batch * heads,)
    prepare = Launch(
        _kernels().prepare,
        rows_grid,
        (
            out, dout, dlse, s.row_max, s.log_sum, lse, delta, total, out.stride(), dout.stride(), scale_log2,
            heads, n_q, padded, d,
        ),
        {"D": width, "BLOCK": 64, "num_warps": 4},
    )  # fmt: skip
    key_tiles = math.ceil(n_k / tile.keys)
    head_bytes = (4 * n_k + 2 * n_q * heads // kv_heads) * d * p.q.element_size()
    band = (p.left or 0, p.right or 0, _shift(p))
    main = Launch(
        _kernels().backward,
        (key_tiles * batch * kv_heads,),
        (
            _descriptor(p.q, tile.block_m, width), _descriptor(p.k, tile.keys, width),
            _descriptor(p.v, tile.keys, width), _descriptor(dout, tile.block_m, width),
            _rows_descriptor(lse, 1, tile.block_m), _rows_descriptor(delta, 1, tile.block_m),
            _descriptor(dk, 64, width), _descriptor(dv, 64, width), total,
            _rows_descriptor(total, 64, half) if total is not None and tile.engine else None,
            p.scale, scale_log2, key_tiles, _group_heads(p, batch * kv_heads, head_bytes), batch * kv_heads,
            kv_heads, heads // kv_heads, n_q, n_k, *band, tiles_q,
        ),
        {
            **_band(p), "EVEN_N": n_k % tile.keys == 0, "ALONE": heads == kv_heads, "D": width,
            "KEYS": tile.keys, "BLOCK_M": tile.block_m, "STAGES": tile.stages, "SUM_DQ": not divided,
            "ENGINE": tile.engine and not divided, "COMPUTE_REGISTERS": 240, "num_warps": 4,
        },
    )  # fmt: skip
    if total is None:
        return [prepare, main, _dq_launch(p, dout, lse, delta, padded, dq)]
    finish = Launch(
        _kernels().finish,
        rows_grid,
        (total, dq, dq.stride(), p.scale, heads, n_q, padded, d),
        {"D": width, "HALF": half, "FRAGMENTS": not tile.engine, "num_warps": 4},
    )
    return [prepare, main, finish]


def _dq_launch(
    p: Problem, dout: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor, padded: int, dq: torch.Tensor
) -> Launch:
    """dQ alone, of the statistics that `prepare_kernel` left for `padded` queries a head."""
    batch, heads, n_q, d = p.q.shape
    kv_heads, n_k = p.k.shape[1], p.k.shape[2]
    width = padded_width(d)
    block_m, block_n, stages = _DQ_TILES[width]
    tiles_per_head = math.ceil(n_q / block_m)
    key_bytes = 2 * n_k * d * p.q.element_size()
    return Launch(
        _kernels().dq,
        (tiles_per_head * batch * heads,),
        (
            _descriptor(p.q, 64, width), _descriptor(p.k, block_n, width), _descriptor(p.v, block_n, width),
            _descriptor(dout, 64, width), _descriptor(dq, 64, width), lse, delta, padded, tiles_per_head,
            _group_heads(p, batch * heads, key_bytes * kv_heads // heads), batch * heads, heads,
            heads // kv_heads, n_q, n_k, p.left or 0, p.right or 0, _shift(p), p.scale, p.scale * LOG2E,
        ),
        {
            **_band(p), "EVEN_N": n_k % block_n == 0, "D": width, "BLOCK_M": block_m, "BLOCK_N": block_n,
            "STAGES": stages, "COMPUTE_REGISTERS": 240, "num_warps": 4,
        },
    )  # fmt: skip
