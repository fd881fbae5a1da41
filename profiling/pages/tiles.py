"""Tiles: which Br x Bc?"""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from profiling import units
from profiling.analysis.curves import Slice
from profiling.analysis.tiles import TileGrid, tile_grids
from profiling.case import TILED_BACKENDS, Case
from profiling.devices import Device
from profiling.figures import tiles as figures
from profiling.model.memory import forward_sram_bytes
from profiling.pages import filters, state, widgets

STAGES = (1, 2, 3, 4)


def render() -> None:
    """Draw the page."""
    head = widgets.open_run("Tiles", "Which tile Br × Bc is fastest, and what limits it?", tiled=True)
    loaded = head.loaded
    if loaded is None:
        return
    asked = loaded.frame[loaded.frame["tile_m"].notna()]
    present = [name for name in TILED_BACKENDS if (asked["backend"] == name).any()]
    usual = "flash" if "flash" in present else present[0]
    backend = filters.choose("tiled_backend", "Backend", present, usual)
    _, choices = filters.choose_slice(asked[asked["backend"] == backend.value])
    frame = loaded.frame[loaded.frame["backend"] == backend.value]
    for choice in choices:
        frame = frame[frame[filters.AXES[choice.key].column] == choice.value]
    clock = filters.choose_clock(frame[frame["tile_m"].notna()])
    grids = tile_grids(frame, backend=backend.value, clock=clock.value)
    if not grids:
        head.finish([backend, *choices, clock])
        st.info("No tile was asked for on this slice; choose another one in the sidebar.")
        return
    lengths = [grid.seq_len for grid in grids]
    length = filters.choose_in_page("at", "Sequence length N", lengths, lengths[-1])
    head.finish([backend, *choices, clock, length])
    grid = grids[lengths.index(length.value)]
    st.markdown(sentence(grid))
    _map(grid, loaded)
    if len(grids) > 1:
        st.header("Best tile along N")
        points = [(g.seq_len, *g.best, g.default_relative) for g in grids if g.best is not None]
        if points:
            widgets.chart(
                figures.best_line_figure(figures.BestLine(tuple(points))),
                name="best-tile",
                alt="The best Br and Bc against sequence length",
                caption="The tile with the lowest median; its neighbours may be as good within the noise.",
                measured=True,
            )
            best = pd.DataFrame(points, columns=["seq_len", "tile_m", "tile_n", "default_over_best"])
            widgets.table(best, name="best-tile", run_id=loaded.name)


def sentence(grid: TileGrid) -> str:
    """The answer in words: the best tile and what the default costs beside it."""
    n = units.count_text(grid.seq_len)
    if grid.best is None:
        return f"At N = {n} no tile that was asked for ran."
    best = f"At N = {n} **{grid.best[0]}×{grid.best[1]}** is the fastest tile measured"
    if grid.default_relative is None:
        return f"{best}; the default was not measured."
    if grid.default == grid.best:
        return f"{best}, and the backend's own choice."
    took = "" if grid.default is None else f", {grid.default[0]}×{grid.default[1]},"
    if grid.default_relative <= 1:
        return f"{best}; the backend's own choice{took} is as fast."
    return f"{best}; the backend's own choice{took} takes {units.ratio_text(grid.default_relative)} its time."


def cells(grid: TileGrid) -> tuple[figures.Cell, ...]:
    """Every tile that was asked for, with its latency or the reason why it has none."""
    out = []
    for i, m in enumerate(grid.block_m):
        for j, n in enumerate(grid.block_n):
            ms, relative = grid.latency_ms[i][j], grid.relative[i][j]
            if ms is not None:
                out.append(figures.Cell(m, n, relative, ms))
            elif (m, n) in grid.infeasible:
                status, _, reason = grid.infeasible[m, n].partition(": ")
                out.append(figures.Cell(m, n, None, None, status, reason))
    return tuple(out)


def _map(grid: TileGrid, loaded: state.Loaded) -> None:
    """The heat map and, beside it, the SRAM bill of one tile."""
    found = cells(grid)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        failed = [cell for cell in found if cell.relative is None]
        widgets.chart(
            figures.figure(figures.TileChart(found, grid.best, grid.default)),
            name="tiles",
            alt="Latency of each tile relative to the best one",
            caption=(
                "Median over the best tile's, lower is better. "
                f"{units.count_text(len(failed))} of {units.count_text(len(found))} tiles did not run"
                f"{' (hatched, the reason on hover)' if failed else ''}."
            ),
            measured=True,
        )
    with right:
        _bill(grid, loaded.device)
    widgets.table(_table(found), name="tiles", run_id=loaded.name)


def _bill(grid: TileGrid, device: Device | None) -> None:
    """What the chosen tile asks of shared memory, piece by piece."""
    labels = {f"{m}×{n}": (m, n) for m in grid.block_m for n in grid.block_n}
    best = grid.best or next(iter(labels.values()))
    chosen = st.selectbox(
        "Tile",
        list(labels),
        index=list(labels).index(f"{best[0]}×{best[1]}"),
        key="tile",
        bind="query-params",
    )
    stages = filters.choose_in_page(
        "stages",
        "Stages",
        STAGES,
        2,
        hint="tiles of K and V that are in flight at once: the pipeline's depth",
    )
    if grid.slice.direction != "fwd":
        st.info("The SRAM of a tile is modelled for the forward only.")
        return
    tile = labels.get(chosen or "", best)
    bill = sram_bill(grid.slice, tile, int(stages.value), device)
    limit = bill.sram_bytes
    fits = "" if limit is None else ": it fits." if bill.total_bytes <= limit else ": **it does not fit.**"
    widgets.chart(
        figures.bill_figure(bill),
        name="sram",
        alt="Shared memory that the tile needs, piece by piece, against what a block can use",
        caption=(
            f"{units.bytes_text(bill.total_bytes)} of {units.bytes_text(limit)}{fits} Scores and "
            "accumulators live in registers; a compiled kernel adds padding and staging copies."
        ),
        measured=False,
    )
    parts = pd.DataFrame({"part": [p.label for p in bill.parts], "est_bytes": [p.nbytes for p in bill.parts]})
    widgets.table(parts, name="sram", run_id="model")


def sram_bill(where: Slice, tile: tuple[int, int], stages: int, device: Device | None) -> figures.SramBill:
    """The forward's shared memory for a tile, as `model.memory.forward_sram_bytes` adds it up."""
    shape: dict[str, Any] = {"dtype": where.dtype, "head_dim": where.head_dim, "head_dim_v": where.head_dim_v}
    case = Case(backend="flash", seq_len_q=1, seq_len_k=1, **shape)
    bare = forward_sram_bytes(case, *tile, stages=0)
    stage = forward_sram_bytes(case, *tile, stages=1) - bare
    parts = [figures.Part("Q (then O)", bare)]
    parts += [figures.Part(f"K and V, stage {i}", stage) for i in range(1, stages + 1)]
    name = device.name if device is not None else "unknown device"
    return figures.SramBill(tile, tuple(parts), device.sram_bytes if device is not None else None, name)


def _table(found: tuple[figures.Cell, ...]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "tile_m": cell.block_m,
                "tile_n": cell.block_n,
                "latency_p50_ms": cell.latency_ms,
                "relative": cell.relative,
                "status": cell.status,
                "reason": cell.reason,
            }
            for cell in found
        ]
    )
