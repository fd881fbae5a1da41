"""Does a tile fit on the chip? What it holds at once, as a bar against what one block can have."""

from __future__ import annotations

from typing import Literal

from profiling import units
from profiling.case import DTYPE_BYTES, Case, Dtype
from profiling.devices import Device
from profiling.figures.tiles import Part, SramBill
from profiling.model.tile_limits import ACCUMULATOR_BYTES, tile_limits

SIDES = (16, 32, 64, 128, 256)
HEAD_DIMS = (32, 64, 128, 256)
DTYPES: tuple[Dtype, ...] = ("fp32", "fp16", "bf16")
# The example of the chapter (section 4.4): an A100, whose block can have 163 KiB, not the 192 of its SM.
GPU, TILE, HEAD_DIM, DTYPE = "A100-SXM-80GB", (128, 128), 128, "fp32"


def bill(tile: tuple[int, int], head_dim: int, dtype: Dtype, device: Device) -> SramBill:
    """All that a forward tile touches, in shared memory: Q, K, V in the dtype; S, O, m and l in fp32.

    As the chapter counts (section 4.4), where all is fp32: 321 KiB for 128 x 128 and d = 128.
    """
    block_m, block_n = tile
    own, wide = DTYPE_BYTES[dtype], ACCUMULATOR_BYTES
    parts = (
        Part("Q", block_m * head_dim * own),
        Part("K", block_n * head_dim * own),
        Part("V", block_n * head_dim * own),
        Part("S", block_m * block_n * wide),
        Part("O", block_m * head_dim * wide),
        Part("m and l", 2 * block_m * wide),
    )
    return SramBill(tile, parts, device.sram_bytes, device.name)


def verdict(own: SramBill, head_dim: int, dtype: Dtype, device: Device) -> str:
    """Whether it fits, by how much not, and what kernels do instead (Markdown)."""
    case = _case(head_dim, dtype)
    limits = tile_limits(case, *own.tile, device)
    said = f"**{own.tile[0]} × {own.tile[1]}, d = {head_dim}, {dtype}: {units.bytes_text(own.total_bytes)}**"
    if own.sram_bytes is None:
        return f"{said}; what a block of this device can have is not known."
    share = own.total_bytes / own.sram_bytes
    said += f" against {units.bytes_text(own.sram_bytes)} a block"
    said += (
        ": **it fits**." if share <= 1 else f": **it overflows, {units.ratio_text(share)} of what there is**."
    )
    kernel = f"{units.bytes_text(limits.est_sram_bytes)} of shared memory with one stage of K and V"
    fits = "which fits" if limits.sram_share is not None and limits.sram_share <= 1 else "which does not fit"
    said += f" Kernels keep S, P, O, m and l in registers, so they ask for {kernel}, {fits}"
    if limits.register_share is None:
        return f"{said}."
    registers = f"{units.bytes_text(limits.est_register_bytes)} of registers"
    held = "" if limits.register_share <= 1 else ": more than there are, so values spill to memory"
    return f"{said}, and {registers} ({units.percent_text(limits.register_share)} of an SM's{held})."


def _case(head_dim: int, dtype: Dtype) -> Case:
    direction: Literal["fwd"] = "fwd"
    return Case(
        backend="flash",
        direction=direction,
        dtype=dtype,
        heads=1,
        kv_heads=1,
        seq_len_q=1024,
        seq_len_k=1024,
        head_dim=head_dim,
        head_dim_v=head_dim,
    )
