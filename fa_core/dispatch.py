"""By which kernels a call of `flash` runs: those for sm_90 (`fa_core.hopper`) or the portable ones.

Those for sm_90 run what they can take, and the portable ones the rest, and these too a forward whose tiles
there would leave much of the GPU idle.
"""

from __future__ import annotations

import torch

from fa_core import hopper, launch
from fa_core.band import Band
from fa_core.launch import Launch, Problem

# What an operator's `kernels` says, and "" to let the call decide.
PORTABLE, HOPPER = "portable", "hopper"


def is_for_hopper(p: Problem, asked: tuple[int, int] | None, kernels: str, *, backward: bool = False) -> bool:
    """Whether the kernels for sm_90 take a call; `asked` is a tile that was asked for.

    Raises:
        NotImplementedError: they cannot, and no others are allowed.
    """
    if kernels == PORTABLE or (asked and not kernels):
        return False
    if kernels == HOPPER:
        if reason := hopper.why_not(p):
            raise NotImplementedError(f"the kernels for sm_90 cannot take this call: {reason}")
        return True
    return not hopper.why_not(p) and (backward or not hopper.why_rather_not(p))


def forward(
    p: Problem,
    out: torch.Tensor,
    row_max: torch.Tensor,
    log_sum: torch.Tensor,
    asked: tuple[int, int] | None,
    kernels: str,
    n_splits: int | None = None,
    *,
    statistics: bool = True,
) -> list[Launch]:
    """The forward into out (B, H, Nq, dv), row_max and log_sum (B, H, Nq), by the kernels that take it.

    Nothing where out is empty. `n_splits` is that of `launch.portable_forward`. Without `statistics` row_max
    and log_sum stay unwritten where the kernels need not write them.

    Raises:
        NotImplementedError: as `is_for_hopper`.
    """
    for_hopper = is_for_hopper(p, asked, kernels)
    if out.numel() == 0:
        return []
    if for_hopper:
        return [hopper.forward_launch(p, out, *((row_max, log_sum) if statistics else (None, None)))]
    return launch.portable_forward(p, out, row_max, log_sum, asked, n_splits)


def why_not_hopper(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    band: Band,
    *,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    tile: tuple[int, int] | None = None,
    by_choice: bool = False,
) -> str:
    """Why the kernels for sm_90 do not take a dense call of checked arguments; "" where they do.

    That is that they cannot; or, where there is a choice, that a forward is faster by the portable ones.
    """
    if tile is not None:
        return "no tile must be asked for: they have their own"
    tensors = (q, k, v, bias, alibi_slopes, None, None, None, None)
    p = Problem(*tensors, 1.0, *band, softcap or 0.0).needed()
    return hopper.why_not(p) or (hopper.why_rather_not(p) if by_choice else "")
