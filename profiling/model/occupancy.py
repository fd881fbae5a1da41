"""Occupancy: how many thread blocks of a compiled kernel an SM holds at once, and what sets the limit.

The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h` of the CUDA toolkit): registers are
given to a warp in units of 256, warps to the four partitions of an SM, shared memory to a block in units of
128 bytes on top of what the system keeps for itself.
"""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import InputError
from profiling.devices import Device

WARP_THREADS = 32
REGISTER_BYTES = 4
MAX_THREAD_REGISTERS = 255
MAX_BLOCK_THREADS = 1024
TENSOR_MEMORY_COLUMNS = 512  # of an SM of compute capability 10.0, 128 lanes of 32 bits each
_WARP_REGISTERS_UNIT = 256
_PARTITIONS = 4
_SHARED_UNIT_BYTES = 128
_KIB = 1024


class SmLimits(NamedTuple):
    """What an SM of a compute capability holds at most, and what it keeps of a block's shared memory."""

    warps: int
    blocks: int
    reserved_bytes: int


# CUDA C++ Programming Guide, technical specifications per compute capability; the kibibyte that each block
# loses from 8.0 on stands in the tuning guides (Ampere, Hopper, Blackwell: "1 KB per thread block").
SM_LIMITS: dict[str, SmLimits] = {
    "7.0": SmLimits(64, 32, 0),
    "7.5": SmLimits(32, 16, 0),
    "8.0": SmLimits(64, 32, _KIB),
    "8.6": SmLimits(48, 16, _KIB),
    "8.9": SmLimits(48, 24, _KIB),
    "9.0": SmLimits(64, 32, _KIB),
    "10.0": SmLimits(64, 32, _KIB),
    "12.0": SmLimits(48, 24, _KIB),
}


class Occupancy(NamedTuple):
    """Blocks of a kernel that share an SM.

    Attributes:
        blocks: as many as the scarcest resource allows; 0 where a single block does not fit.
        warps: of these blocks together.
        max_warps: that an SM can hold.
        by_limit: blocks that each resource alone would allow: `warps`, `blocks` (how many an SM counts),
            `registers`, `shared memory`, and `tensor memory` where the kernel uses some.
    """

    blocks: int
    warps: int
    max_warps: int
    by_limit: dict[str, int]

    @property
    def share(self) -> float:
        """Warps over what an SM can hold."""
        return self.warps / self.max_warps

    @property
    def limits(self) -> tuple[str, ...]:
        """The scarcest resources, in the order of `by_limit`."""
        return tuple(name for name, blocks in self.by_limit.items() if blocks == self.blocks)


def occupancy(
    device: Device, *, threads: int, registers: int, shared_bytes: int, tensor_memory_columns: int = 0
) -> Occupancy:
    """How many blocks of a kernel an SM of `device` holds.

    Args:
        device: its compute capability, register file and shared memory a block count.
        threads: of a block.
        registers: of a thread, at launch.
        shared_bytes: of a block, static and dynamic, without what the system reserves.
        tensor_memory_columns: of a block, on compute capability 10.0.

    Raises:
        InputError: the device's limits are not known, or a number is below what a kernel has.
    """
    limits = SM_LIMITS.get(device.compute_capability)
    if limits is None or device.sram_bytes is None or device.registers_bytes is None:
        raise InputError(
            f"{device.name}: occupancy needs a compute capability of {', '.join(SM_LIMITS)}, a register "
            "file and the shared memory of a block"
        )
    if threads < 1 or registers < 1 or shared_bytes < 0:
        raise InputError(
            f"a kernel has at least one thread and one register, got {threads} threads, {registers} "
            f"registers and {shared_bytes} bytes of shared memory"
        )
    warps = -(-threads // WARP_THREADS)
    by_limit = {
        "warps": limits.warps // warps if threads <= MAX_BLOCK_THREADS else 0,
        "blocks": limits.blocks,
        "registers": _by_registers(warps, registers, device.registers_bytes // REGISTER_BYTES),
        "shared memory": _by_shared(shared_bytes, device.sram_bytes, limits.reserved_bytes),
    }
    if tensor_memory_columns:
        by_limit["tensor memory"] = TENSOR_MEMORY_COLUMNS // tensor_memory_columns
    blocks = min(by_limit.values())
    return Occupancy(blocks, blocks * warps, limits.warps, by_limit)


def _by_registers(warps: int, registers: int, file: int) -> int:
    """Blocks by registers: whole warps a partition, a warp's registers rounded up to the unit."""
    if registers > MAX_THREAD_REGISTERS:
        return 0
    of_warp = _rounded_up(registers * WARP_THREADS, _WARP_REGISTERS_UNIT)
    return file // _PARTITIONS // of_warp * _PARTITIONS // warps


def _by_shared(shared_bytes: int, of_block: int, reserved_bytes: int) -> int:
    """Blocks by shared memory. An SM has what its largest block may take, and what is reserved for that."""
    if shared_bytes > of_block:
        return 0
    taken = _rounded_up(max(shared_bytes + reserved_bytes, 1), _SHARED_UNIT_BYTES)
    return (of_block + reserved_bytes) // taken


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
