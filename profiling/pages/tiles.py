"""Tiles: which Br x Bc?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from profiling import units
from profiling.analysis.tile_choice import TileChoice, tile_choices
from profiling.analysis.tiles import tile_grids
from profiling.case import TILED_BACKENDS
from profiling.devices import Device
from profiling.figures import tiles as figures
from profiling.pages import filters, point, state, tiles_model, widgets

STAGES = (1, 2, 3, 4)


def render() -> None:
    """Draw the page."""
    head = widgets.open_run(
        "Tiles", "Which tile Br × Bc is fastest, and what limits it?", tiled=True, attention=True
    )
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
    # The model is fitted to the other shapes of the run, so it has to see the whole of it.
    by_shape = {(c.grid.slice, c.grid.seq_len): c for c in _choices(loaded.stamp, backend.value, clock.value)}
    own = [by_shape[grid.slice, grid.seq_len] for grid in grids]
    chosen = own[lengths.index(length.value)]
    st.markdown(tiles_model.sentence(chosen))
    st.markdown(f":small[{tiles_model.certainty(chosen)} {tiles_model.picked(chosen)}]")
    head.finish([backend, *choices, clock, length, _map(chosen, loaded, str(clock.value))])
    _costs(chosen)
    if len(own) > 1:
        _along_n(own, loaded.name)


@st.cache_resource(max_entries=8, show_spinner="Comparing tiles")
def _choices(key: state.Stamp, backend: str, clock: str) -> list[TileChoice]:
    frame = state.load(key.path).frame
    return tile_choices(frame, state.samples(key), backend=backend, clock=clock)


def _map(choice: TileChoice, loaded: state.Loaded, clock: str) -> filters.Choice:
    """The heat map and, beside it, the SRAM bill of one tile; under both the tile that is picked."""
    found = tiles_model.cells(choice)
    pick = None if choice.picked is None else choice.picked.tile
    left, right = st.columns([3, 2], gap="medium")
    below = st.container()
    with left:
        failed = [cell for cell in found if cell.relative is None]
        picked = point.chart(
            figures.figure(figures.TileChart(found, choice.grid.best, choice.grid.default, pick)),
            loaded,
            name="tiles",
            alt="Latency of each tile relative to the best one",
            caption=(
                "Median over the best tile's, lower is better. "
                f"{units.count_text(len(failed))} of {units.count_text(len(found))} tiles did not run"
                f"{' (hatched, the reason on hover)' if failed else ''}."
            ),
            measured=True,
            clock=clock,
            below=below,
        )
    with right:
        _bill(choice, loaded.device)
    widgets.table(tiles_model.cells_table(choice, found), name="tiles", run_id=loaded.name)
    return picked


def _costs(choice: TileChoice) -> None:
    """What other choices cost, beside how near the limits they are, and what these are."""
    st.header("What a choice costs, and how near the limits it is")
    st.dataframe(
        tiles_model.costs_table(choice),
        hide_index=True,
        placeholder=units.UNKNOWN,
        alt="Cost of the best tile, the default and the model's pick",
    )
    st.markdown(
        ":blue-badge[measured] :small[latency: ratio of paired rounds with its 95 % interval.] "
        ":orange-badge[modelled] :small[limits and waves: by formula, for one stage and one block at a time "
        "on each SM.]"
    )
    with st.expander("What limits a tile, in words"):
        st.markdown(tiles_model.WORDS)


def _along_n(choices: list[TileChoice], run_id: str) -> None:
    st.header("Best tile along N")
    line = tiles_model.best_line([c.grid for c in choices])
    if line.points:
        widgets.chart(
            figures.best_line_figure(line),
            name="best-tile",
            alt="The best Br and Bc against sequence length",
            caption="The tile with the lowest median; the table says how sure that is at each N.",
            measured=True,
        )
    widgets.table(tiles_model.along_n(choices), name="best-tile", run_id=run_id)


def _bill(choice: TileChoice, device: Device | None) -> None:
    """What the chosen tile asks of shared memory, piece by piece."""
    grid = choice.grid
    labels = {tiles_model.name((m, n)): (m, n) for m in grid.block_m for n in grid.block_n}
    best = grid.best or next(iter(labels.values()))
    chosen = st.selectbox(
        "Tile",
        list(labels),
        index=list(labels).index(tiles_model.name(best)),
        key="tile",
        bind="query-params",
    )
    stages = filters.choose_in_page(
        "stages",
        "Stages",
        STAGES,
        2,
        hint="tiles that are in flight at once: the pipeline's depth",
    )
    tile = labels.get(chosen or "", best)
    bill = tiles_model.sram_bill(grid.slice, tile, int(stages.value), device)
    limit = bill.sram_bytes
    needs = units.bytes_text(bill.total_bytes)
    if limit is None:
        fits = f"{needs}; this device has no shared memory that is known."
    else:
        verdict = "it fits" if bill.total_bytes <= limit else "**it does not fit**"
        fits = f"{needs} of {units.bytes_text(limit)}: {verdict}."
    widgets.chart(
        figures.bill_figure(bill),
        name="sram",
        alt="Shared memory that the tile needs, piece by piece, against what a block can use",
        caption=(
            f"{fits} Scores and accumulators live in registers; a compiled kernel adds padding and staging "
            "copies."
        ),
        measured=False,
    )
    parts = pd.DataFrame({"part": [p.label for p in bill.parts], "est_bytes": [p.nbytes for p in bill.parts]})
    widgets.table(parts, name="sram", run_id="model")
