"""What `flash` does on sm_90, as far as a model needs it: which calls its kernels there take, their tiles,
and whether they sum dQ in fp32.

`fa_core.hopper` decides; this says the same without torch or Triton, and a test holds the two together. What
its backward moves is not modelled: one kernel forms dK, dV and, at head_dim to 128, sums of dQ that several
thread blocks add to, and where one of those sums is when the next arrives no formula here says.
"""

from __future__ import annotations

import math

from profiling.case import DETERMINISTIC, Case
from profiling.devices import Device

CAPABILITY = "9.0"
KERNEL = "fa_core.flash_hopper"  # what a row that ran on these kernels says
WIDTHS: tuple[int, ...] = (64, 128, 256)  # heads are padded to one of these
_FEW_KEYS = 1024  # up to so many a tile has 64 of them under a mask
_FEW_QUERIES = 64  # up to so many, of all heads that share keys, the keys are divided between programs
_MAX_PACKED_QUERIES = 16  # up to so many, the heads of a group share a tile
# As in `fa_core.hopper`: when narrow heads have a forward tile of 192 rows, whose forward is left to others.
_TALL_MORE, _TALL_MASKED_QUERIES, _MANY_KEYS, _BUSY_SHARE = 1.1, 3072, 2**20, 0.75
_SM_COUNT = 132  # of an H100 SXM or an H200
_BACKWARD_TILES = {64: (128, 128), 128: (64, 128), 256: (64, 64)}


def padded_width(case: Case) -> int | None:
    """The head_dim of the kernel that takes a case; None where its heads are too wide for any."""
    return next((width for width in WIDTHS if max(case.head_dim, case.head_dim_v) <= width), None)


def takes(case: Case) -> bool:
    """Whether the kernels for sm_90 take a case: plain scores in 16 bits, dense, no tile asked for."""
    plain = not (case.bias or case.alibi or case.softcap) and case.tile_m is None
    rows = case.seq_len_q * (case.heads // case.kv_heads if case.seq_len_q <= _MAX_PACKED_QUERIES else 1)
    return (
        plain
        and case.layout == "dense"
        and case.dtype in ("fp16", "bf16")
        and case.head_dim == case.head_dim_v
        and case.head_dim % 8 == 0  # rows of whole 16 bytes
        and padded_width(case) is not None
        and 0 not in (case.batch, case.seq_len_k)
        and rows > _FEW_QUERIES
    )


def _tiles(case: Case, block_m: int) -> int:
    """Tiles of so many queries, of all heads."""
    return case.batch * case.heads * math.ceil(case.seq_len_q / block_m)


def keeps_busy(case: Case, sm_count: int = _SM_COUNT) -> bool:
    """Whether a forward has enough to do for these kernels; else `flash` takes the portable ones.

    A backward always has, and wide heads.
    """
    tile = forward_tile(case, sm_count)
    if case.direction != "fwd" or tile is None or padded_width(case) == 256:
        return True
    return _tiles(case, tile[0]) >= _BUSY_SHARE * sm_count


def as_run(case: Case, device: Device | None) -> Case:
    """`flash` under the name of the kernels by which it goes on a device; every other case as it is.

    A device that is not known is taken for one without kernels of its own. Of both directions the name is
    that of the backward's.
    """
    if case.backend != "flash":
        return case
    if (
        device is not None
        and device.compute_capability == CAPABILITY
        and takes(case)
        and keeps_busy(case, device.sm_count or _SM_COUNT)
    ):
        return case.model_copy(update={"backend": "flash_hopper"})
    return case.model_copy(update={"backend": "flash_portable", "variant": ""})


def as_measured(case: Case, kernel: str | None) -> Case:
    """`flash` under the name of the kernels that a row says it ran on; every other case as it is."""
    if case.backend == "flash" and kernel == KERNEL:
        return case.model_copy(update={"backend": "flash_hopper"})
    return case


def _is_masked(case: Case) -> bool:
    return case.causal or case.hiding_window != (None, None)


def forward_tile(case: Case, sm_count: int = _SM_COUNT) -> tuple[int, int] | None:
    """Queries and keys of the forward's tile; None for a head_dim that it cannot take."""
    width, masked = padded_width(case), _is_masked(case)
    if width is None:
        return None
    if width == 256 or (masked and case.seq_len_k <= _FEW_KEYS):
        return 128, 64
    if width == 64 and (not masked or case.seq_len_q >= _TALL_MASKED_QUERIES):
        more = 1.0 if masked and case.seq_len_k * width < _MANY_KEYS else _TALL_MORE
        tall, short = (math.ceil(_tiles(case, rows) / sm_count) * rows for rows in (192, 128))
        return (192, 128) if tall <= more * short else (128, 128)
    return 128, 128


def backward_tile(case: Case) -> tuple[int, int] | None:
    """Queries of a step and keys of a thread block of the kernel that forms dK and dV; None as above."""
    width = padded_width(case)
    return None if width is None else _BACKWARD_TILES[width]


def sums_dq(case: Case) -> bool:
    """Whether the backward adds dQ up in fp32, in no fixed order; else a kernel of its own forms it."""
    width = padded_width(case)
    return width is not None and width <= 128 and case.variant != DETERMINISTIC
