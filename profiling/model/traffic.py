"""Bytes moved: four models that must never be mixed up, forward and backward.

- `naive`: the eager baseline, kernel by kernel, no cache between kernels (`profiling.model.naive`).
- `tile`: what the block algorithm asks of the L2, the N²d²/M story. Outer query tiles, inner key tiles.
- `dram`: the tile model seen through an L2 of the device's size (`profiling.model.cache`). It speaks of
  kernels that start a thread block a tile, as those of `flash_portable`, whose counters it is held to; not of
  persistent ones, as `flash` takes on an H100 or H200.
- `compulsory`: each input read once, each output written once.

The backward is the split design of `fa_core`: delta, a dK/dV kernel (outer key tiles), a dQ kernel
(outer query tiles); `fwd_bwd` is the sum of both directions. The forward's log-sum-exp, one fp32 a row,
is an output of the forward and an input of the backward.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from profiling.case import ATTENTION, DTYPE_BYTES, Case, InputError
from profiling.devices import Device
from profiling.model.cache import Walk, streamed_bytes
from profiling.model.naive import Pass, naive_passes
from profiling.model.tiles import check_tile, key_rows, query_rows

__all__ = [
    "BACKWARD_TILE",
    "DQ_TILE",
    "FORWARD_TILE",
    "Bytes",
    "Pass",
    "Traffic",
    "default_tile",
    "is_modelled",
    "kv_fits_l2_until",
    "naive_passes",
    "traffic",
]

# The tiles a model assumes where none is known: query x key rows, the common choice for 16-bit heads of
# 64 and 128 (FlashAttention-2, and `flash`). Those of the backward are of the dK/dV and the dQ kernel.
FORWARD_TILE = (128, 64)
BACKWARD_TILE = (64, 128)
DQ_TILE = (128, 64)


class Bytes(NamedTuple):
    """Bytes read and written."""

    read: int
    write: int

    @property
    def total(self) -> int:
        """Read and written together."""
        return self.read + self.write

    def plus(self, other: Bytes) -> Bytes:
        """Both, one after the other."""
        return Bytes(self.read + other.read, self.write + other.write)


class Traffic(NamedTuple):
    """The four series for one case, each split into bytes read and written.

    `dram` is None where the device, its SM count or its cache is unknown.
    """

    naive: Bytes
    tile: Bytes
    dram: Bytes | None
    compulsory: Bytes

    @property
    def naive_bytes(self) -> int:
        """The eager baseline, read and written."""
        return self.naive.total

    @property
    def tile_bytes(self) -> int:
        """What the block algorithm asks of the L2, read and written."""
        return self.tile.total

    @property
    def dram_bytes(self) -> int | None:
        """What of it reaches DRAM, read and written."""
        return None if self.dram is None else self.dram.total

    @property
    def compulsory_bytes(self) -> int:
        """Each input and output once."""
        return self.compulsory.total


def default_tile(direction: str) -> tuple[int, int]:
    """The tile assumed where none is known: the forward's, or in `bwd` that of the dK/dV kernel."""
    return BACKWARD_TILE if direction == "bwd" else FORWARD_TILE


def is_modelled(case: Case) -> bool:
    """Whether these formulas hold for a case: dense attention, full or causal, nothing added to scores."""
    return (
        case.operation == ATTENTION
        and case.layout == "dense"
        and case.window_left is None
        and case.window_right is None
        and case.softcap is None
        and not (case.bias or case.sinks or case.alibi)
    )


def traffic(
    case: Case,
    device: Device | None,
    *,
    block_m: int | None = None,
    block_n: int | None = None,
    dq_tile: tuple[int, int] = DQ_TILE,
    variant: str | None = None,
    blocks_per_sm: int | None = None,
) -> Traffic:
    """The four series for a case, in its direction.

    Args:
        case: the shape; its backend plays no part, so that one call gives what each algorithm would move.
        device: whose cache `dram` is seen through; None gives no `dram`.
        block_m: query rows of a tile: of the forward in `fwd` and `fwd_bwd`, of the dK/dV kernel in `bwd`.
            The case's requested tile, else `default_tile`, when None.
        block_n: key rows of that tile.
        dq_tile: query x key tile of the dQ kernel.
        variant: of the naive baseline; the case's own, or `add`, when None.
        blocks_per_sm: thread blocks of an SM that walk in step; None takes what counters of `flash_portable`
            speak for (`_in_step`).

    Raises:
        InputError: half a tile was given, or a side below 1; the case is not dense, or has a window, bias,
            softcap, sinks or ALiBi, which are not modelled.
    """
    if not is_modelled(case):
        raise InputError(
            "traffic is modelled for dense attention, causal or not; "
            "windows, biases, soft caps, sinks, ALiBi and packed layouts are not"
        )
    if (block_m is None) != (block_n is None):
        raise InputError(f"block_m and block_n must be given together, got {block_m} and {block_n}")
    tile = default_tile(case.direction)
    if block_m is not None and block_n is not None:
        tile = (block_m, block_n)
    elif case.tile_m is not None and case.tile_n is not None:
        tile = (case.tile_m, case.tile_n)
    # A requested tile holds for both directions; one that the backend chose is the forward's alone.
    backward_tile = tile if case.direction == "bwd" or case.tile_m is not None else BACKWARD_TILE
    check_tile(*tile)
    check_tile(*dq_tile)
    if blocks_per_sm is not None and blocks_per_sm < 1:
        raise InputError(f"blocks_per_sm must be at least 1, got {blocks_per_sm}")

    passes = naive_passes(case, variant)
    naive = Bytes(sum(p.read_bytes for p in passes), sum(p.write_bytes for p in passes))
    tiled, compulsory = Bytes(0, 0), Bytes(0, 0)
    dram: Bytes | None = Bytes(0, 0)
    shape = _Shape.of(case)
    for direction in ("fwd", "bwd"):
        if case.direction not in (direction, "fwd_bwd"):
            continue
        if direction == "fwd":
            one = _forward(shape, tile, _cache(device, blocks_per_sm))
        else:
            one = _backward(shape, backward_tile, dq_tile, _cache(device, blocks_per_sm))
        tiled, compulsory = tiled.plus(one.tile), compulsory.plus(one.compulsory)
        dram = dram.plus(one.dram) if dram is not None and one.dram is not None else None
    return Traffic(naive, tiled, dram, compulsory)


class _Cache(NamedTuple):
    capacity_bytes: int
    sm_count: int
    blocks_per_sm: int | None


def _cache(device: Device | None, blocks_per_sm: int | None) -> _Cache | None:
    if device is None or device.usable_cache_bytes is None or device.sm_count is None:
        return None
    return _Cache(max(1, device.usable_cache_bytes), device.sm_count, blocks_per_sm)


# Widths of heads, over the first and up to the second, at which two thread blocks of an SM walk in step;
# else one does. Chosen by the counters of `flash_portable`: all that an SM runs do, as compiled for sm_90
# (tests/fa_core/aot.py), but in the forward at d = 64. Of that an SM runs three, and reads as if they walked
# one after the other. Of a forward with a larger tile an SM runs one at d = 128.
_TWO_IN_STEP = {"forward": (64, 128), "dkdv": (0, 128), "dq": (0, 64)}
_TWO_FORWARD_BLOCKS_UNTIL = 64  # rows of either side of the tile


def _in_step(cache: _Cache, kernel: str, width: int, tile: tuple[int, int]) -> int:
    """Thread blocks of a generation: those that walk a tensor side by side."""
    if cache.blocks_per_sm is not None:
        return cache.sm_count * cache.blocks_per_sm
    over, until = _TWO_IN_STEP[kernel]
    two = over < width <= until and (kernel != "forward" or max(tile) <= _TWO_FORWARD_BLOCKS_UNTIL)
    return cache.sm_count * (2 if two else 1)


class _Shape(NamedTuple):
    """A case's numbers alone: the key of the cache below."""

    e: int
    heads: int  # batch * heads
    kv_heads: int  # batch * kv_heads
    n_q: int
    n_k: int
    d: int
    dv: int
    causal: bool

    @classmethod
    def of(cls, case: Case) -> _Shape:
        return cls(
            e=DTYPE_BYTES[case.dtype],
            heads=case.batch * case.heads,
            kv_heads=case.batch * case.kv_heads,
            n_q=case.seq_len_q,
            n_k=case.seq_len_k,
            d=case.head_dim,
            dv=case.head_dim_v,
            causal=case.causal,
        )

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads if self.kv_heads else 1

    @property
    def is_empty(self) -> bool:
        """No query ever meets a key: kernels only fill their outputs."""
        return not (self.heads and self.n_q and self.n_k)

    @property
    def q(self) -> int:
        return self.heads * self.n_q * self.d * self.e

    @property
    def out(self) -> int:
        return self.heads * self.n_q * self.dv * self.e

    @property
    def kv(self) -> int:
        return self.kv_heads * self.n_k * self.kv_row

    @property
    def kv_row(self) -> int:
        """Bytes of one key and its value."""
        return (self.d + self.dv) * self.e

    @property
    def width(self) -> int:
        """The wider of a head's two sides."""
        return max(self.d, self.dv)

    @property
    def row(self) -> int:
        """Bytes of one fp32 number for every query."""
        return 4 * self.heads * self.n_q


class _OneWay(NamedTuple):
    tile: Bytes
    dram: Bytes | None
    compulsory: Bytes


@lru_cache(maxsize=4096)
def _forward(s: _Shape, tile: tuple[int, int], cache: _Cache | None) -> _OneWay:
    written = s.out + s.row
    if s.is_empty:
        only = Bytes(0, written)
        return _OneWay(only, None if cache is None else only, only)
    keys = key_rows(s.n_q, s.n_k, *tile, s.causal)
    tiled = Bytes(s.q + s.heads * int(keys.sum()) * s.kv_row, written)
    dram = None
    if cache is not None:
        own = min(tile[0], s.n_q) * s.kv_row  # q and the output
        dram = Bytes(s.q + _kv_from_dram(s, keys, own, cache, "forward", tile), written)
    return _OneWay(tiled, dram, Bytes(s.q + s.kv, written))


def _kv_from_dram(
    s: _Shape, keys: np.ndarray, own: int, cache: _Cache, kernel: str, tile: tuple[int, int]
) -> int:
    """K and V as the forward and the dQ kernel read them: outer query tiles, a group's heads in turn."""
    walk = Walk(keys, s.kv_row, s.kv_heads, own, members=s.group)
    return streamed_bytes(walk, _in_step(cache, kernel, s.width, tile), cache.capacity_bytes)


@lru_cache(maxsize=4096)
def _backward(s: _Shape, tile: tuple[int, int], dq_tile: tuple[int, int], cache: _Cache | None) -> _OneWay:
    gradients = s.q + s.kv
    if s.is_empty:
        only = Bytes(0, gradients)
        return _OneWay(only, None if cache is None else only, only)
    compulsory = Bytes(s.q + s.kv + 2 * s.out + s.row, gradients)
    delta = Bytes(2 * s.out, s.row)
    # One query row as the dK/dV kernel streams it: q, dO, log-sum-exp, delta.
    query_row = s.kv_row + 8
    queries = query_rows(s.n_q, s.n_k, *tile, s.causal)
    keys = key_rows(s.n_q, s.n_k, *dq_tile, s.causal)
    dkdv = Bytes(s.kv + s.heads * int(queries.sum()) * query_row, s.kv)
    dq = Bytes(s.q + s.out + 2 * s.row + s.heads * int(keys.sum()) * s.kv_row, s.q)
    dram = None
    if cache is not None and compulsory.total + s.row <= cache.capacity_bytes:
        dram = compulsory  # all of it stays in the cache from one kernel to the next
    elif cache is not None:
        # A thread block of the dK/dV kernel walks its group's heads one after the other.
        own = 2 * min(tile[1], s.n_k) * s.kv_row  # K, V and their gradients
        walk = Walk(queries, s.group * query_row, s.kv_heads, own)
        streamed = streamed_bytes(walk, _in_step(cache, "dkdv", s.width, tile), cache.capacity_bytes)
        own = min(dq_tile[0], s.n_q) * (2 * s.d + s.dv) * s.e  # q, dO and dQ
        again = _kv_from_dram(s, keys, own, cache, "dq", dq_tile)
        dram = delta.plus(Bytes(s.kv + streamed, s.kv)).plus(Bytes(s.q + s.out + 2 * s.row + again, s.q))
    return _OneWay(delta.plus(dkdv).plus(dq), dram, compulsory)


def kv_fits_l2_until(device: Device, head_dim: int, dtype: str, head_dim_v: int | None = None) -> int | None:
    """The largest number of keys of which one head's K and V, alone, still fit the usable last-level cache.

    Beyond it each generation of query tiles finds less than half of K and V in the cache, and DRAM delivers
    the rest again; it begins earlier, with q, the output and the next head's keys in the cache beside them:
    at about a third of it where each generation reaches into the next head. None where the device's cache is
    unknown.
    """
    usable = device.usable_cache_bytes
    if usable is None:
        return None
    return usable // ((head_dim + (head_dim_v or head_dim)) * DTYPE_BYTES[dtype])
