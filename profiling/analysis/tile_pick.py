"""Which tile a latency model would have picked for a shape of which it has seen no tile.

The rates of `profiling.model.costs.tile_amounts` are fitted to the tiles of the same backend, direction and
dtype at other head dims; where a run has one head dim, at other shapes and N. The tile that these rates make
the fastest, among those that were asked for and that the formulas say fit the device, is the pick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from profiling.analysis.curves import cases
from profiling.analysis.latency_fit import FEWEST, priced_ms, rates_of
from profiling.analysis.tiles import Tile, TileRows, is_asked
from profiling.case import Case
from profiling.devices import Device, known_device
from profiling.model.costs import Amount, tile_amounts
from profiling.model.tile_limits import tile_limits


class Pick(NamedTuple):
    """The model's choice for one shape and N.

    Attributes:
        tile: (Br, Bc).
        est_latency_ms: what the model says of it.
        fitted_to: what the model was fitted to, in words: `other head dims` or `other shapes`.
        points: how many tiles that were.
        error: the median of |predicted / measured - 1| over the tiles of this shape that fit and ran.
    """

    tile: Tile
    est_latency_ms: float
    fitted_to: str
    points: int
    error: float | None


class _Known(NamedTuple):
    shape: int
    kind: tuple[str, str, str]  # device, direction, dtype
    case: Case
    tile: Tile
    found: tuple[Amount, ...]
    ms: float | None


def picks(shapes: Sequence[TileRows]) -> list[Pick | None]:
    """The pick for each of `tile_rows`; None where the model says nothing or has too little to be fitted to.

    Args:
        shapes: of one backend and clock. Shapes of other devices, directions and dtypes are kept apart.
    """
    known = [one for i, shape in enumerate(shapes) for one in _known(i, shape)]
    return [_pick(i, known) for i in range(len(shapes))]


def _known(number: int, shape: TileRows) -> list[_Known]:
    """The tiles of a shape that fit the device by formula."""
    device = known_device(shape.slice.device_name)
    if device is None:
        return []
    asked = shape.rows[is_asked(shape.rows)]
    kind = (shape.slice.device_name, shape.slice.direction, shape.slice.dtype)
    found = []
    for case, status, ms in zip(cases(asked), asked["status"], asked["latency_p50_ms"], strict=True):
        amounts = _amounts(case, device)
        if amounts and case.tile_m is not None and case.tile_n is not None:
            ran = float(ms) if status == "ok" and ms > 0 else None
            found.append(_Known(number, kind, case, (case.tile_m, case.tile_n), amounts, ran))
    return found


def _amounts(case: Case, device: Device) -> tuple[Amount, ...]:
    if case.tile_m is None or case.tile_n is None:
        return ()
    fits = tile_limits(case, case.tile_m, case.tile_n, device).fits
    return tile_amounts(case, device) if fits else ()


def _pick(number: int, known: Sequence[_Known]) -> Pick | None:
    own = [one for one in known if one.shape == number]
    if not own:
        return None
    others = [one for one in known if one.shape != number and one.kind == own[0].kind and one.ms is not None]
    apart = [one for one in others if one.case.head_dim != own[0].case.head_dim]
    used, words = (apart, "other head dims") if len(apart) >= FEWEST else (others, "other shapes")
    if len(used) < FEWEST:
        return None
    rates = rates_of([(one.found, one.ms) for one in used if one.ms is not None])
    predicted = [priced_ms(one.found, rates) for one in own]
    errors = [abs(ms / one.ms - 1) for ms, one in zip(predicted, own, strict=True) if one.ms is not None]
    ms, tile = min(zip(predicted, (one.tile for one in own), strict=True))
    return Pick(tile, ms, words, len(used), float(np.median(errors)) if errors else None)
