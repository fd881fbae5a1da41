"""Bytes moved: the modelled series (dashed) and hardware counters (points), and K/V against the L2."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.analysis.operations import SEQUENCE, Along
from profiling.figures import theme
from profiling.figures.series import TRAFFIC, Point

# The modelled series by role, as the legend calls them; the column of a role is `est_<role>_bytes`.
LABELS = {
    "naive": "naive, kernel by kernel",
    "tile": "tiles, asked of the L2",
    "dram": "tiles, as DRAM sees them",
    "compulsory": "compulsory, each tensor once",
}


class Modelled(NamedTuple):
    """One of the modelled series. `role` is naive, tile, dram or compulsory; bytes read and written at N."""

    role: str
    label: str
    points: tuple[tuple[int, float], ...]


class Counted(NamedTuple):
    """Points read from hardware counters; `level` says where: `DRAM` or `L2`. `name` is the backend."""

    name: str
    label: str
    level: str
    points: tuple[Point, ...]


class TrafficChart(NamedTuple):
    """`at` is the N the sentence above the chart speaks of, marked by a line.

    With `per_head` all bytes are divided by batch·heads. `along` is what N is.
    """

    models: tuple[Modelled, ...]
    counters: tuple[Counted, ...] = ()
    at: int | None = None
    per_head: bool = False
    log: bool = True
    along: Along = SEQUENCE


class CacheChart(NamedTuple):
    """Bytes of the K and V that heads in flight read again and again, against what the L2 can hold.

    `usable_bytes` is the part of `l2_bytes` that such re-reads can count on.
    """

    points: tuple[tuple[int, int], ...]
    label: str
    l2_bytes: int
    usable_bytes: int
    device: str
    outgrown_from: int | None = None
    at: int | None = None
    log: bool = True


def figure(chart: TrafficChart) -> go.Figure:
    """Log-log the slope is the message (2 for the tile model, 1 for what must move anyway)."""
    fig = go.Figure()
    for model in chart.models:
        fig.add_trace(_model_trace(model, chart.along))
    for counted in chart.counters:
        fig.add_trace(_counter_trace(counted, chart.along))
    ns = [n for m in chart.models for n, _ in m.points] + [
        p.seq_len for c in chart.counters for p in c.points
    ]
    values = [b for m in chart.models for _, b in m.points] + [
        p.value for c in chart.counters for p in c.points
    ]
    limits = theme.value_range(values, log=chart.log)
    if chart.at is not None:
        theme.seq_len_line(fig, chart.at, f"N = {units.count_text(chart.at)}", log=chart.log)
    title = f"Bytes read and written{' per head' if chart.per_head else ''}, lower is better"
    fig.update_xaxes(theme.seq_len_axis(ns, log=chart.log, title=chart.along.axis))
    fig.update_yaxes(theme.bytes_axis(limits, title, log=chart.log, moved=True))
    return theme.finish(fig, height=540, legend="below")


def cache_figure(chart: CacheChart) -> go.Figure:
    """The working set against N, with the L2 and its usable part as lines, and where the set outgrows it."""
    fig = go.Figure()
    colour, dash = theme.MODEL_STYLES["dram"]
    fig.add_trace(
        go.Scatter(
            x=[n for n, _ in chart.points],
            y=[b for _, b in chart.points],
            name=theme.safe(f"{chart.label} (modelled)"),
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate="N = %{x:,d}<br>%{y:,d} bytes<extra></extra>",
        )
    )
    log = chart.log
    limits = theme.value_range([*(b for _, b in chart.points), chart.l2_bytes, chart.usable_bytes], log=log)
    whole, usable = units.bytes_text(chart.l2_bytes), units.bytes_text(chart.usable_bytes)
    theme.level_line(fig, chart.l2_bytes, f"L2 of {chart.device}: {whole}", log=log)
    theme.level_line(fig, chart.usable_bytes, f"usable for re-reads: {usable}", log=log)
    if chart.outgrown_from is not None:
        fig.add_vrect(
            x0=chart.outgrown_from,
            x1=max(n for n, _ in chart.points),
            fillcolor=theme.LOSS,
            line_width=0,
            layer="below",
        )
    if chart.at is not None:
        theme.seq_len_line(fig, chart.at, f"N = {units.count_text(chart.at)}", log=log)
    fig.update_xaxes(theme.seq_len_axis((n for n, _ in chart.points), log=log))
    fig.update_yaxes(theme.bytes_axis(limits, "Bytes", log=log))
    return theme.finish(fig, height=380, legend="below")


def _model_trace(model: Modelled, along: Along) -> go.Scatter:
    colour, dash = theme.MODEL_STYLES[model.role]
    name = theme.safe(f"{model.label} (modelled)")
    return go.Scatter(
        x=[n for n, _ in model.points],
        y=[b for _, b in model.points],
        name=name,
        mode="lines",
        line={"color": colour, "dash": dash, "width": 2.5},
        hovertemplate=(
            f"<b>{name}</b><br>{along.of('%{x:,d}')}<br>%{{y:{TRAFFIC.digits}}} bytes<extra></extra>"
        ),
    )


def _counter_trace(counted: Counted, along: Along) -> go.Scatter:
    role = "naive" if counted.name.startswith("naive") else "dram" if counted.level == "DRAM" else "tile"
    name = theme.safe(f"{counted.label}, {counted.level} counters (measured)")
    return go.Scatter(
        x=[p.seq_len for p in counted.points],
        y=[p.value for p in counted.points],
        name=name,
        mode="markers",
        marker={
            "color": theme.MODEL_STYLES[role][0],  # that of the model it is to be compared with
            "symbol": theme.style_of(counted.name).symbol,
            "size": 11,
            "line": {"width": 1, "color": "#FFFFFF"},
        },
        hovertext=["".join(f"<br>{theme.safe(line)}" for line in p.details) for p in counted.points],
        hovertemplate=(
            f"<b>{name}</b><br>{along.of('%{x:,d}')}<br>%{{y:{TRAFFIC.digits}}} bytes%{{hovertext}}"
            "<extra></extra>"
        ),
    )
