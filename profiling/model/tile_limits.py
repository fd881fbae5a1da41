"""How near a tile is to what a device allows: shared memory, registers, and whole waves of blocks.

One block (a thread block, Triton's program) owns an outer tile: `block_m` queries in the forward, `block_n`
keys in the backward's dK/dV kernel. It is taken to have a multiprocessor (SM) to itself, so that a wave is
one block on each. Small blocks may share one; how many do is the compiler's affair and not modelled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from profiling.case import DTYPE_BYTES, Case
from profiling.devices import Device
from profiling.model.memory import (
    DIVIDED_KEYS,
    FEW_QUERIES,
    backward_sram_bytes,
    forward_sram_bytes,
)
from profiling.model.tiles import check_tile

ACCUMULATOR_BYTES = 4  # fp32


class TileLimits(NamedTuple):
    """What a tile asks for, by formula, and its share of what there is; None where the device is not known.

    Attributes:
        est_sram_bytes: shared memory of one block with one stage, the least pipeline.
        sram_share: that over what a block can use; above 1 it does not fit.
        est_register_bytes: accumulators and scores that live at once.
        register_share: that over the register file of one SM; above 1 values spill to memory.
        blocks: outer tiles of all heads; None where the kernel divides its work in another way.
        waves: blocks over SMs.
        last_wave_idle: the share of SMs that have no block in the last wave.
    """

    est_sram_bytes: int
    sram_share: float | None
    est_register_bytes: int
    register_share: float | None
    blocks: int | None
    waves: float | None
    last_wave_idle: float | None

    @property
    def idle(self) -> float | None:
        """The share of all waves, taken as equally long, in which an SM has no block."""
        if self.waves is None or self.last_wave_idle is None:
            return None
        return self.last_wave_idle / math.ceil(self.waves) if self.waves else 0.0

    @property
    def fits(self) -> bool:
        """Whether neither memory is known to be too small."""
        return (self.sram_share or 0.0) <= 1.0 and (self.register_share or 0.0) <= 1.0


def tile_limits(case: Case, block_m: int, block_n: int, device: Device | None) -> TileLimits:
    """The limits of a tile of `block_m` queries and `block_n` keys for a case in its direction.

    `fwd_bwd` has the larger need of its two directions, and the waves of the forward.

    Raises:
        InputError: a side of the tile is below 1.
    """
    check_tile(block_m, block_n)
    sram = sram_bytes(case, block_m, block_n)
    registers = register_bytes(case, block_m, block_n)
    blocks = _blocks(case, block_m, block_n)
    sm_count = None if device is None else device.sm_count
    waves = None if blocks is None or sm_count is None else blocks / sm_count
    return TileLimits(
        sram,
        _share(sram, None if device is None else device.sram_bytes),
        registers,
        _share(registers, None if device is None else device.registers_bytes),
        blocks,
        waves,
        None if waves is None else math.ceil(waves) - waves,
    )


def sram_bytes(case: Case, block_m: int, block_n: int, stages: int = 1) -> int:
    """Shared memory of a tile, of the direction that needs more of it."""
    forward = forward_sram_bytes(case, block_m, block_n, stages)
    backward = backward_sram_bytes(case, block_m, block_n, stages)
    return {"fwd": forward, "bwd": backward, "fwd_bwd": max(forward, backward)}[case.direction]


def register_bytes(case: Case, block_m: int, block_n: int) -> int:
    """An estimate of the registers of a block: the tiles that its inner loop cannot do without.

    Forward: the output's accumulator (`block_m` x dv) and the scores in fp32, and the probabilities in the
    case's dtype. Backward: the accumulators of dK and dV, and the probabilities and their gradient in fp32.
    Addresses, statistics of rows and operands on their way come on top; a thread can have 255 registers of
    4 bytes, so that four warps hold 127.5 KiB at most, and eight a whole file of 256 KiB.
    """
    scores = block_m * block_n
    forward = ACCUMULATOR_BYTES * (block_m * case.head_dim_v + scores) + DTYPE_BYTES[case.dtype] * scores
    backward = ACCUMULATOR_BYTES * (block_n * (case.head_dim + case.head_dim_v) + 2 * scores)
    return {"fwd": forward, "bwd": backward, "fwd_bwd": max(forward, backward)}[case.direction]


def _share(needed: int, there: int | None) -> float | None:
    return None if there is None else needed / there


def _blocks(case: Case, block_m: int, block_n: int) -> int | None:
    if case.direction == "bwd":
        return case.kv_heads * sum(-(-n_k // block_n) for _, n_k in case.lengths)
    if case.seq_len_q <= FEW_QUERIES and case.seq_len_k >= DIVIDED_KEYS:
        return None  # the keys are divided between blocks, and heads share a tile
    return case.heads * sum(-(-n_q // block_m) for n_q, _ in case.lengths)
