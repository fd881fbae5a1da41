"""Which tile each kernel takes, by head_dim, dtype and mask; found on an H200 by
tests/benchmarks/tune_tiles.py.

No triton here, so that a tile can be named without a compiler.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class TileConfig(NamedTuple):
    """A tile in rows and keys, and how Triton is to schedule it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def padded_head_dim(head_dim: int) -> int:
    """The power of two, at least 16, in which a head of `head_dim` is held on chip."""
    return max(16, 1 << (head_dim - 1).bit_length())


def exact(x: torch.Tensor) -> bool:
    """Whether a tensor is computed on in fp64 and rounded once at the end: fp32 where fp64 is fast.

    Data-centre GPUs multiply fp64 matrices at the rate at which their CUDA cores do fp32, so that true
    fp32 results cost nothing more there. GPUs for graphics have 1/64 of that, and compute in fp32.
    """
    if x.dtype != torch.float32:
        return False
    return not x.is_cuda or torch.cuda.get_device_capability(x.device) in ((8, 0), (9, 0), (10, 0))


def forward_config(head_dim: int, dtype: torch.dtype, causal: bool) -> TileConfig:
    """The forward's tile."""
    d = padded_head_dim(head_dim)
    if dtype == torch.float32:
        return TileConfig(32, 32, 4, 1) if d <= 128 else TileConfig(32, 16, 4, 1)
    if d <= 64:
        return TileConfig(64, 64, 4, 3)
    if d <= 128:
        # Under a causal mask small tiles waste less work on the diagonal.
        return TileConfig(64, 64, 4, 3) if causal else TileConfig(128, 128, 8, 3)
    return TileConfig(128, 64, 8, 2)


def dkdv_config(head_dim: int, dtype: torch.dtype, causal: bool) -> TileConfig:
    """The tile of the kernel that forms dK and dV: block_n keys stay on chip, block_m queries pass by."""
    d = padded_head_dim(head_dim)
    if dtype == torch.float32:
        return TileConfig(32, 32, 4, 1) if d <= 64 else TileConfig(16, 16, 4, 1)
    if d <= 64:
        return TileConfig(128, 64, 4, 2)
    if d <= 128:
        return TileConfig(64, 128, 8, 3) if causal else TileConfig(64, 64, 4, 2)
    return TileConfig(64, 64, 8, 2)


def dq_config(head_dim: int, dtype: torch.dtype, causal: bool) -> TileConfig:
    """The tile of the kernel that forms dQ: block_m queries stay on chip, block_n keys pass by."""
    d = padded_head_dim(head_dim)
    if dtype == torch.float32:
        return TileConfig(32, 32, 4, 1) if d <= 64 else TileConfig(16, 16, 4, 1)
    if d <= 64:
        return TileConfig(64, 64, 4, 3) if causal else TileConfig(128, 64, 4, 3)
    if d <= 128:
        return TileConfig(128, 64, 8, 3)
    return TileConfig(128, 32, 8, 3)


def requested_config(block_m: int, block_n: int, default: TileConfig) -> TileConfig:
    """A tile that the caller asked for, with a schedule that suits its size.

    Eight warps share tiles of at least 128 x 128 elements or those whose default has eight and whose
    side is 128 or more; smaller tiles keep four, so that each warp still owns 16 rows.
    """
    large = block_m * block_n >= 128 * 128 or (default.num_warps == 8 and max(block_m, block_n) >= 128)
    return TileConfig(block_m, block_n, 8 if large else 4, default.num_stages)
