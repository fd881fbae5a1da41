"""What `flash_hopper` does on sm_90, as far as a model needs it: its tiles, and whether it sums dQ in fp32.

`fa_core.hopper` decides; this says the same without torch or Triton, and a test holds the two together. What
its backward moves is not modelled: one kernel forms dK, dV and, at head_dim to 128, sums of dQ that several
thread blocks add to, and where one of those sums is when the next arrives no formula here says.
"""

from __future__ import annotations

from profiling.case import DETERMINISTIC, Case

WIDTHS: tuple[int, ...] = (64, 128, 256)  # heads are padded to one of these
# From so many queries on narrow heads have a forward tile of 192 rows: where all keys are seen, under a mask.
_MANY_QUERIES = 2048, 4096
_FEW_KEYS = 1024  # up to so many a tile has 64 of them under a mask
_BACKWARD_TILES = {64: (128, 128), 128: (64, 128), 256: (64, 64)}


def padded_width(case: Case) -> int | None:
    """The head_dim of the kernel that takes a case; None where its heads are too wide for any."""
    return next((width for width in WIDTHS if max(case.head_dim, case.head_dim_v) <= width), None)


def _is_masked(case: Case) -> bool:
    return case.causal or case.hiding_window != (None, None)


def forward_tile(case: Case) -> tuple[int, int] | None:
    """Queries and keys of the forward's tile; None for a head_dim that it cannot take."""
    width, masked = padded_width(case), _is_masked(case)
    if width is None:
        return None
    if width == 256 or (masked and case.seq_len_k <= _FEW_KEYS):
        return 128, 64
    return (192, 128) if width == 64 and case.seq_len_q >= _MANY_QUERIES[masked] else (128, 128)


def backward_tile(case: Case) -> tuple[int, int] | None:
    """Queries of a step and keys of a thread block of the kernel that forms dK and dV; None as above."""
    width = padded_width(case)
    return None if width is None else _BACKWARD_TILES[width]


def sums_dq(case: Case) -> bool:
    """Whether the backward adds dQ up in fp32, in no fixed order; else a kernel of its own forms it."""
    width = padded_width(case)
    return width is not None and width <= 128 and case.variant != DETERMINISTIC
