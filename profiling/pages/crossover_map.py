"""Crossover, as a map: who wins over N and head dim or batch · heads, with the rest of the slice held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from profiling.analysis.crossover import Crossover
from profiling.analysis.curves import untiled
from profiling.analysis.operations import CLASSES, SEQUENCE
from profiling.analysis.winners import Win, wins
from profiling.figures import winners as figures
from profiling.pages import filters, state, widgets

AXES = {"head dim": "d", "batch · heads": "series"}  # what may go down the map, of `filters.AXES`
AXES_OF_ROWS = {"rows": "series", "classes kept": "other"}
WORDS = {1: "ahead", -1: "behind", 0: "neither"}
Find = Callable[[state.Stamp, list[filters.Choice]], list[Crossover]]


def choose_rows(frame: pd.DataFrame) -> filters.Choice:
    """Which axis goes down the map of these rows, in the page."""
    axes = AXES_OF_ROWS if filters.is_over_rows(frame) else AXES
    return filters.choose_in_page("down", "Down the map", tuple(axes), next(iter(axes)))


def cells(
    loaded: state.Loaded, choices: Sequence[filters.Choice], down: str, find: Find
) -> tuple[tuple[Win, ...], tuple[str, ...]]:
    """The cells, and the names of the rows from bottom to top; the slice is as chosen but for `down`."""
    chosen = filters.values_of(choices)
    frame = untiled(loaded.frame)
    for key in filters.SLICE:
        if key in chosen and key != down:
            frame = frame[frame[filters.AXES[key].column] == chosen[key]]
    column = filters.AXES[down].column
    found: list[Win] = []
    names = []
    for value in filters.options(frame, filters.AXES[down]):
        moved = [choice._replace(value=value) if choice.key == down else choice for choice in choices]
        for each in find(loaded.stamp, moved)[:1]:
            rows = frame[(frame[column] == value) & frame["name"].isin([each.baseline, each.candidate])]
            rows = rows[rows["clock"] == each.clock] if each.clock else rows
            names.append(f"d = {value}" if down == "d" else str(value))
            found += wins(names[-1], each, rows)
    return tuple(found), tuple(names)


def render(loaded: state.Loaded, choices: Sequence[filters.Choice], rows: str, find: Find) -> None:
    """Draw the map and its table; `rows` is what `choose_rows` gave."""
    down = (AXES | AXES_OF_ROWS)[rows]
    chosen = filters.values_of(choices)
    found, names = cells(loaded, choices, down, find)
    if not found:
        st.info("Nothing to compare here: both backends need rows on this slice.")
        return
    ratio = f"{chosen['baseline']} / {chosen['candidate']}"
    over_rows = rows in AXES_OF_ROWS
    label = filters.AXES[down].over_rows if over_rows else filters.AXES[down].label
    words = CLASSES if over_rows else SEQUENCE
    chart = figures.WinnersChart(found, names, label, ratio, words)
    widgets.chart(
        figures.figure(chart),
        name="crossover-map",
        alt=f"{ratio} by {words.noun} and {label}",
        caption="Ratio in each cell, blue where the candidate is ahead; ≈: the samples do not say who is. "
        "The thick line runs where the lead changes. Hatched: a side did not run, or a latency is hardly "
        "more than an empty kernel's.",
        measured=True,
    )
    table = pd.DataFrame(
        [
            {
                filters.AXES[down].column: cell.row,
                "seq_len": cell.seq_len,
                "ratio": cell.ratio,
                "candidate": "" if cell.ratio is None else WORDS[cell.sign],
                "reason": cell.reason,
            }
            for cell in found
        ]
    )
    widgets.table(table, name="crossover-map", run_id=loaded.name)
