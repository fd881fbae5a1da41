"""Which tile each kernel takes: a table found on an H200 by tests/benchmarks/tune_tiles.py, pruned to the
shared memory of the device at hand, or what was found there (see `finder`).

No triton here, so that a tile can be named without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

KERNELS: tuple[str, ...] = ("forward", "dkdv", "dq", "dbias")
SMALLEST_BLOCK = 16  # rows or keys: what a matrix instruction takes
FAST_FP64: tuple[tuple[int, int], ...] = ((8, 0), (9, 0), (10, 0))  # compute capabilities


class TileConfig(NamedTuple):
    """A tile in rows and keys, and how Triton is to schedule it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# Knows better tiles than the table, or answers None; it gets choose's arguments, on a GPU only. `fa_core.op`
# puts autotuning here, which rests on the kernels and so cannot be imported by them.
finder: Callable[[str, int, torch.dtype, bool, torch.device, int], TileConfig | None] | None = None


class Gpu(NamedTuple):
    """What of a GPU decides which tiles run there, and between how many programs keys are divided."""

    shared_bytes: int  # shared memory that one program may take
    capability: tuple[int, int]
    processors: int = 1


# What `meta` tensors stand for while kernels are compiled ahead (see `fa_core.ahead`).
elsewhere: Gpu | None = None


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
    if x.is_meta and elsewhere is not None:
        return elsewhere.capability in FAST_FP64
    return not x.is_cuda or torch.cuda.get_device_capability(x.device) in FAST_FP64


class _Pair(NamedTuple):
    """Tiles of one kernel and head: where every key is seen, and under a causal mask or a window."""

    full: TileConfig
    masked: TileConfig


def _both(*tile: int) -> _Pair:
    return _Pair(TileConfig(*tile), TileConfig(*tile))


# By kernel and padded head; 64 stands for every smaller head too. In dkdv block_n keys stay on chip while
# block_m queries pass by; in forward and dq it is the other way round; in dbias both pass by.
_HALF: dict[str, dict[int, _Pair]] = {
    "forward": {
        64: _both(64, 64, 4, 3),
        128: _both(64, 64, 4, 3),
        256: _both(128, 64, 8, 2),
    },
    "dkdv": {
        64: _both(128, 64, 4, 2),
        128: _Pair(TileConfig(32, 64, 4, 3), TileConfig(32, 128, 8, 3)),
        256: _Pair(TileConfig(64, 64, 8, 2), TileConfig(32, 32, 4, 3)),
    },
    "dq": {
        64: _Pair(TileConfig(128, 64, 4, 3), TileConfig(64, 64, 4, 3)),
        128: _both(128, 64, 8, 3),
        256: _both(128, 32, 8, 3),
    },
    # Not measured: the largest of no more than 64 x 64 that does not spill.
    "dbias": {
        64: _both(64, 64, 4, 2),
        128: _both(64, 64, 8, 2),
        256: _both(64, 32, 8, 1),
    },
}
_SINGLE: dict[str, dict[int, _Pair]] = {
    "forward": {64: _both(32, 32, 4, 1), 128: _both(32, 32, 4, 1), 256: _both(32, 32, 4, 1)},
    "dkdv": {64: _both(32, 32, 4, 1), 128: _both(16, 16, 4, 1), 256: _both(32, 32, 8, 1)},
    "dq": {64: _both(32, 32, 4, 1), 128: _both(16, 16, 4, 1), 256: _both(32, 32, 4, 1)},
    "dbias": {64: _both(16, 16, 4, 1), 128: _both(16, 16, 8, 1), 256: _both(16, 16, 8, 1)},
}


# Where the H200's tile spills registers on another generation (major compute capability): the largest found
# that does not, or does so least, by compiling with tests/fa_core/aot.py. Not measured: none of these GPUs
# was at hand.
_HALF_ELSEWHERE: dict[int, dict[tuple[str, int], _Pair]] = {
    8: {
        ("forward", 128): _Pair(TileConfig(128, 64, 8, 3), TileConfig(64, 64, 4, 3)),
        ("dkdv", 64): _both(32, 64, 4, 2),
        ("dkdv", 128): _both(64, 64, 8, 2),
        ("dkdv", 256): _both(64, 32, 8, 2),
        ("dq", 64): _both(64, 64, 4, 3),
        ("dq", 128): _both(64, 64, 8, 3),
        ("dq", 256): _both(64, 64, 8, 2),
        ("dbias", 64): _both(64, 64, 8, 2),
        ("dbias", 128): _both(64, 32, 4, 2),
        ("dbias", 256): _both(16, 16, 4, 1),
    },
    10: {
        ("forward", 256): _both(64, 64, 8, 2),
        ("dkdv", 64): _both(64, 64, 8, 2),
        ("dkdv", 128): _both(64, 32, 8, 2),
        ("dkdv", 256): _both(64, 32, 8, 1),
    },
}
# Blackwell multiplies fp64 without matrix instructions: each thread holds whole rows.
_SINGLE_ELSEWHERE: dict[int, dict[tuple[str, int], _Pair]] = {
    8: {
        ("forward", 256): _both(32, 16, 4, 1),
        ("dkdv", 256): _both(16, 16, 8, 1),
        ("dq", 256): _both(16, 16, 8, 1),
    },
    10: {
        ("forward", 64): _both(16, 16, 4, 1),
        ("forward", 128): _both(16, 16, 4, 1),
        ("forward", 256): _both(16, 16, 8, 1),
        ("dkdv", 64): _both(16, 16, 4, 1),
        ("dkdv", 256): _both(16, 16, 8, 1),
        ("dq", 64): _both(32, 16, 4, 1),
        ("dq", 256): _both(16, 16, 4, 1),
    },
}


def seeded_config(
    kernel: str, head_dim: int, dtype: torch.dtype, masked: bool, target: Gpu | None = None
) -> TileConfig:
    """The table's tile for one of KERNELS, for `target`'s generation; the H200's where none is given."""
    single = dtype == torch.float32
    d = max(64, padded_head_dim(head_dim))
    pair = (_SINGLE if single else _HALF)[kernel][d]
    if target is not None:
        elsewhere = _SINGLE_ELSEWHERE if single else _HALF_ELSEWHERE
        pair = elsewhere.get(target.capability[0], {}).get((kernel, d), pair)
    return pair.masked if masked else pair.full


def gpu(device: torch.device) -> Gpu | None:
    """The GPU behind a device; None where there is none (then no tile is too large)."""
    return elsewhere if device.type == "meta" else _gpu(device)


@lru_cache(maxsize=64)
def _gpu(device: torch.device) -> Gpu | None:
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(device)
    capability = (found.major, found.minor)
    return Gpu(found.shared_memory_per_block_optin, capability, found.multi_processor_count)


def choose(
    kernel: str,
    head_dim: int,
    dtype: torch.dtype,
    masked: bool,
    device: torch.device,
    n: int,
    *,
    bias_bytes: int = 0,
    asked: tuple[int, int] | None = None,
) -> TileConfig:
    """The tile that `kernel` takes on `device`: an autotuned one where there is one, else the table's.

    Args:
        kernel: one of KERNELS.
        head_dim: the larger of head_dim and head_dim_v.
        dtype: of q.
        masked: whether the keys are limited by a causal mask or a window.
        device: that of q; the tile is pruned to its shared memory.
        n: the length that a program walks (keys; queries in dkdv). Only autotuned tiles depend on it.
        bias_bytes: of one element of the bias, 0 without a bias.
        asked: (block_m, block_n) that the caller wants: kept as it is, with as many stages as fit.
    """
    target = gpu(device)
    found = None
    if target is not None and asked is None and finder is not None:
        found = finder(kernel, head_dim, dtype, masked, device, n)
    return _fitted(kernel, head_dim, dtype, masked, target, bias_bytes, asked, found)


@lru_cache(maxsize=1024)
def _fitted(
    kernel: str,
    head_dim: int,
    dtype: torch.dtype,
    masked: bool,
    target: Gpu | None,
    bias_bytes: int,
    asked: tuple[int, int] | None,
    found: TileConfig | None,
) -> TileConfig:
    """The tile found, or asked for, or the table's, made to fit. Cached: every launch asks."""
    config = found or seeded_config(kernel, head_dim, dtype, masked, target)
    if asked is not None:
        config = requested_config(*asked, config)
    if target is None:
        return config
    return fit(config, kernel, head_dim, dtype, target, bias_bytes=bias_bytes, keep_blocks=asked is not None)


def shared_bytes(
    config: TileConfig, kernel: str, head_dim: int, dtype: torch.dtype, target: Gpu, *, bias_bytes: int = 0
) -> int:
    """An upper bound on the shared memory that Triton takes for one program of `kernel`.

    Operands that stay on chip lie there once, those that pass by once a stage, more or less: how much
    more or less is fitted to what Triton allocates, and tests/fa_core/test_aot.py holds it against that.
    Hopper's matrix instructions read 16-bit operands from shared memory, and Blackwell's, in the backward,
    a second copy of what is read both ways up. All others read registers; there a stage less is kept, but
    operands and scores pass through shared memory from one layout of registers to another.
    """
    size = _element_bytes(dtype, target)
    d_bytes = padded_head_dim(head_dim) * size
    m, n, stages = config.block_m, config.block_n, config.num_stages
    kept, passing = {
        "forward": (m, 2 * n),
        "dkdv": (2 * n, 2 * m),
        "dq": (2 * m, 2 * n),
        "dbias": (0, 2 * m + 2 * n),
    }[kernel]
    kept, passing, scores = kept * d_bytes, passing * d_bytes, m * n * size
    generation = target.capability[0]
    forward = kernel == "forward"
    if dtype == torch.float32:
        # Where there are no matrix instructions for it, the backward's operands lie there together.
        together = not forward and target.capability not in ((8, 0), (9, 0))
        moving = passing * (together + 1) // 2 + scores + (passing * stages if stages > 1 else 0)
    elif generation == 9 or (generation == 10 and forward):
        moving = passing * stages
    elif generation == 10:
        moving = passing * (stages + 1)
    elif forward:
        moving = max(passing * (stages - 1), passing // 2) + scores
    else:
        moving = max(passing * (stages - 1) + scores, passing * 3 // 2)
    rows = 12 * stages * m if kernel == "dkdv" else 0
    return kept + moving + m * n * bias_bytes + rows + 1024


def _element_bytes(dtype: torch.dtype, target: Gpu) -> int:
    """Bytes of an operand's element on chip."""
    if dtype != torch.float32:
        return 2
    return 8 if target.capability in FAST_FP64 else 4


def fit(
    config: TileConfig,
    kernel: str,
    head_dim: int,
    dtype: torch.dtype,
    target: Gpu,
    *,
    bias_bytes: int = 0,
    keep_blocks: bool = False,
) -> TileConfig:
    """The first that fits `target`: `config`, or it with fewer stages, or fewer keys, or fewer rows.

    The smallest where nothing fits. With `keep_blocks` only stages are given up.
    """

    def too_large(c: TileConfig) -> bool:
        return shared_bytes(c, kernel, head_dim, dtype, target, bias_bytes=bias_bytes) > target.shared_bytes

    while too_large(config) and config.num_stages > 1:
        config = config._replace(num_stages=config.num_stages - 1)
    if keep_blocks:
        return config
    blocks = config[:2]
    while too_large(config) and config.block_n > SMALLEST_BLOCK:
        config = config._replace(block_n=config.block_n // 2)
    while too_large(config) and config.block_m > SMALLEST_BLOCK:
        config = config._replace(block_m=config.block_m // 2)
    if config[:2] != blocks:
        # In a smaller tile each warp keeps 256 scores or more.
        most = max(4, config.block_m * config.block_n // 256)
        config = config._replace(num_warps=min(config.num_warps, most))
    return config


def requested_config(block_m: int, block_n: int, default: TileConfig) -> TileConfig:
    """A tile that the caller asked for, with a schedule that suits its size; the default's is its own.

    Eight warps share tiles of at least 128 x 128 elements or those whose default has eight and whose
    side is 128 or more; smaller tiles keep four, so that each warp still owns 16 rows.
    """
    if (block_m, block_n) == default[:2]:
        return default
    large = block_m * block_n >= 128 * 128 or (default.num_warps == 8 and max(block_m, block_n) >= 128)
    return TileConfig(block_m, block_n, 8 if large else 4, default.num_stages)
