"""Which tile is fastest: one grid of Br x Bc for each shape a tile sweep visited."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from profiling.analysis.curves import Slice, slice_codes
from profiling.analysis.operations import attention_rows

Tile = tuple[int, int]


class TileGrid(NamedTuple):
    """The tiles asked for on one shape, `latency_ms[m][n]` in the order of `block_m` and `block_n`.

    Attributes:
        slice: what all tiles have in common.
        backend: whose tiles.
        seq_len: N, of queries and keys; of keys alone where `slice.seq_len_q` is set.
        block_m: the requested Br, ascending.
        block_n: the requested Bc, ascending.
        latency_ms: p50; None where the tile did not run or was never asked for.
        relative: latency over that of the best tile; 1 is best, None as above.
        infeasible: why a tile that was asked for did not run, by (Br, Bc).
        best: the fastest tile; None if none ran.
        default: the tile the backend takes by itself, from the row without a requested tile.
        default_relative: what it costs: its own latency over that of the best tile.
    """

    slice: Slice
    backend: str
    seq_len: int
    block_m: tuple[int, ...]
    block_n: tuple[int, ...]
    latency_ms: tuple[tuple[float | None, ...], ...]
    relative: tuple[tuple[float | None, ...], ...]
    infeasible: dict[Tile, str]
    best: Tile | None
    default: Tile | None
    default_relative: float | None


def tile_grids(frame: pd.DataFrame, *, backend: str = "flash", clock: str = "device") -> list[TileGrid]:
    """One grid for each shape and N for which tiles were requested, in order of slice, then N.

    Args:
        frame: the comparison table.
        backend: `flash` or `tiled`.
        clock: whose latencies are compared.
    """
    grids = []
    for shape in tile_rows(frame, backend=backend, clock=clock):
        asked = shape.rows[is_asked(shape.rows)]
        free = shape.rows.drop(index=asked.index)
        grids.append(_grid(shape.slice, backend, shape.seq_len, asked, free))
    return grids


class TileRows(NamedTuple):
    """The rows of one shape and N on one clock: those with a requested tile, and those without."""

    slice: Slice
    seq_len: int
    rows: pd.DataFrame


def tile_rows(frame: pd.DataFrame, *, backend: str = "flash", clock: str = "device") -> list[TileRows]:
    """The rows behind each of `tile_grids`, in the same order, with the index of `frame`."""
    rows = attention_rows(frame)
    rows = rows[(rows["backend"] == backend) & (rows["clock"] == clock)]
    keys = rows.assign(seq_len=rows["seq_len_k"].astype("int64"), mem_method="")
    keys["seq_len_q"] = keys["seq_len_q"].where(keys["seq_len_q"] != keys["seq_len_k"])
    codes, slices = slice_codes(keys)
    found = []
    for key, own in rows.groupby([codes, keys["seq_len"].to_numpy()], sort=True):
        code, seq_len = cast("tuple[int, int]", key)
        if is_asked(own).any():
            found.append(TileRows(slices[code], int(seq_len), own))
    return found


def is_asked(rows: pd.DataFrame) -> pd.Series:
    """Whether each row has a requested tile."""
    return rows["tile_m"].notna() & rows["tile_n"].notna()


def _grid(each: Slice, backend: str, seq_len: int, asked: pd.DataFrame, free: pd.DataFrame) -> TileGrid:
    tiles: list[Tile] = list(
        zip(asked["tile_m"].astype(int).tolist(), asked["tile_n"].astype(int).tolist(), strict=True)
    )
    ms: dict[Tile, float] = {}
    infeasible: dict[Tile, str] = {}
    for tile, status, reason, latency in zip(
        tiles, asked["status"], asked["reason"], asked["latency_p50_ms"], strict=True
    ):
        if status == "ok" and latency > 0:
            ms[tile] = float(latency)
            infeasible.pop(tile, None)
        elif tile not in ms:
            infeasible[tile] = f"{status}: {reason}" if reason else str(status)
    best = min(ms, key=lambda tile: (ms[tile], tile)) if ms else None
    block_m = tuple(sorted({m for m, _ in tiles}))
    block_n = tuple(sorted({n for _, n in tiles}))
    latency = tuple(tuple(ms.get((m, n)) for n in block_n) for m in block_m)
    fastest = ms[best] if best is not None else np.nan
    relative = tuple(tuple(None if x is None else x / fastest for x in line) for line in latency)
    default, default_relative = None, None
    for block, status, own_ms in zip(
        zip(free["block_m"], free["block_n"], strict=True),
        free["status"],
        free["latency_p50_ms"],
        strict=True,
    ):
        if status == "ok":
            default = None if pd.isna(block[0]) or pd.isna(block[1]) else (int(block[0]), int(block[1]))
            default_relative = float(own_ms) / fastest if best is not None and own_ms > 0 else None
    return TileGrid(
        slice=each,
        backend=backend,
        seq_len=seq_len,
        block_m=block_m,
        block_n=block_n,
        latency_ms=latency,
        relative=relative,
        infeasible=infeasible,
        best=best,
        default=default,
        default_relative=default_relative,
    )
