"""Speed-up against N as small multiples: one panel per direction and head dim, a line per mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from profiling.figures import theme
from profiling.figures.series import (
    Metric,
    Series,
    along_of,
    failure_room,
    failure_traces,
    seq_lens,
    trace,
    values,
)

SPEED_UP = Metric("Speed-up", "", "higher")
PANEL_HEIGHT = 250
TITLE_BELOW = 48  # pixels: on a phone the ticks above it stand upright


class Panel(NamedTuple):
    """One cell of the grid; each series is one mask, and its failures say where a side did not run."""

    row: str
    column: str
    series: tuple[Series, ...]


class SpeedupChart(NamedTuple):
    """Panels in any order; `ratio_label` names both sides, such as `naive / flash`."""

    panels: tuple[Panel, ...]
    ratio_label: str


def figure(chart: SpeedupChart) -> go.Figure:
    """All panels on one y range, so that they compare; below 1×, shaded, the candidate loses."""
    rows = list(dict.fromkeys(panel.row for panel in chart.panels))
    columns = list(dict.fromkeys(panel.column for panel in chart.panels))
    by_place = {(panel.row, panel.column): panel for panel in chart.panels}
    everything = [s for panel in chart.panels for s in panel.series]
    title = along_of(everything).axis
    titles = [
        theme.safe(f"{row} · {column}") if (row, column) in by_place else ""
        for row in rows
        for column in columns
    ]
    fig = make_subplots(
        rows=max(1, len(rows)),
        cols=max(1, len(columns)),
        subplot_titles=titles or None,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        x_title=title,  # once: three in a row would overlap on a phone
        vertical_spacing=0.16 if len(rows) > 1 else 0.1,
    )
    fig.update_annotations(font={"size": 13})
    fig.update_annotations(selector={"text": title}, yshift=-TITLE_BELOW)
    axis = theme.ratio_axis(values(everything), title="")
    room = max((failure_room(panel.series) for panel in chart.panels), default=0.0)
    axis["range"][1] += room * (axis["range"][1] - axis["range"][0])
    most = max(4, 14 // max(1, len(columns)))  # narrow panels have room for few labels
    named: set[str] = set()
    for (row, column), panel in by_place.items():
        place: dict[str, Any] = {"row": rows.index(row) + 1, "col": columns.index(column) + 1}
        for s in (s for s in panel.series if s.points):
            fig.add_trace(_named_once(trace(s, SPEED_UP), named), **place)
        for cross in failure_traces(panel.series, axis["range"]):
            cross.showlegend = False
            fig.add_trace(cross, **place)
        # after the traces: plotly leaves shapes out of a panel that has none yet
        fig.add_hrect(
            y0=10 ** axis["range"][0], y1=1.0, fillcolor=theme.LOSS, line_width=0, layer="below", **place
        )
        theme.level_line(fig, 1.0, "", **place)
        fig.update_xaxes(theme.seq_len_axis(seq_lens(panel.series), title="", most=most), **place)
        fig.update_yaxes(axis, **place)
        if place["col"] == 1:
            fig.update_yaxes(title={"text": theme.safe(chart.ratio_label)}, **place)
    return theme.finish(fig, height=PANEL_HEIGHT * max(1, len(rows)) + 90, legend="below")


def _named_once(line: go.Scatter, named: set[str]) -> go.Scatter:
    """The same line in several panels has one legend entry, which switches all of them."""
    name = str(line.name)
    line.legendgroup = name
    line.showlegend = name not in named
    named.add(name)
    return line
