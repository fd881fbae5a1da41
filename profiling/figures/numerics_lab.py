"""Errors by what was left out of the algorithm, and sums of ones against how many there are."""

from __future__ import annotations

import math
from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.figures import theme

# By dtype, the narrowest first; marks differ as well as colours.
STYLES = {
    "fp16": theme.Style("#0072B2", "circle"),
    "bf16": theme.Style("#D55E00", "square"),
    "fp32": theme.Style("#009E73", "diamond"),
    "fp64": theme.Style(theme.GREY, "triangle-up"),
}
DASHES = ("solid", "dash", "dot")


class Mark(NamedTuple):
    """The error of one dtype with `label` left out; None where numbers are not finite, as `note` says."""

    label: str
    dtype: str
    rel_error: float | None
    note: str


class SumLine(NamedTuple):
    """Sums of ones in a dtype and order: (terms, sum), as far as they are finite."""

    dtype: str
    order: str
    points: tuple[tuple[int, float], ...]


def errors_figure(marks: tuple[Mark, ...]) -> go.Figure:
    """A row for each thing left out, the error on a log axis; what is not finite is a cross at its end."""
    fig = go.Figure()
    labels = list(dict.fromkeys(mark.label for mark in marks))
    drawn = [mark.rel_error for mark in marks if mark.rel_error]
    low, high = theme.log_range(drawn)
    end = 10 ** (high + 0.06 * (high - low))
    for dtype in dict.fromkeys(mark.dtype for mark in marks):
        own = [mark for mark in marks if mark.dtype == dtype and mark.rel_error != 0]
        style = STYLES[dtype]
        fig.add_trace(
            go.Scatter(
                x=[end if mark.rel_error is None else mark.rel_error for mark in own],
                y=[theme.safe(mark.label) for mark in own],
                name=dtype,
                mode="markers",
                orientation="h",
                marker={
                    "color": style.colour,
                    "size": 10,
                    "symbol": ["x" if mark.rel_error is None else style.symbol for mark in own],
                },
                customdata=[theme.safe(mark.note) for mark in own],
                hovertemplate=f"<b>%{{y}}</b><br>{dtype}: %{{customdata}}<extra></extra>",
            )
        )
    powers = range(math.ceil(low), math.floor(high) + 1)
    step = max(1, math.ceil(len(powers) / 6))
    fig.update_xaxes(
        type="log",
        range=[low, high + 0.12 * (high - low)],
        tickvals=[10.0**p for p in powers if p % step == 0],
        ticktext=[f"1e{p}" for p in powers if p % step == 0],
        title={"text": "Relative error (lower is better)"},
        zeroline=False,
    )
    fig.update_layout(scattermode="group", scattergap=0.5)  # dtypes below one another within a row
    fig.update_yaxes(
        categoryorder="array",
        categoryarray=[theme.safe(label) for label in reversed(labels)],
        automargin=True,
    )
    return theme.finish(fig, height=90 + 44 * len(labels))


def sums_figure(lines: tuple[SumLine, ...]) -> go.Figure:
    """Sum against the number of ones, both log; the diagonal is right."""
    fig = go.Figure()
    orders = list(dict.fromkeys(line.order for line in lines))
    for line in lines:
        style, label = STYLES[line.dtype], f"{line.dtype}, {line.order}"
        fig.add_trace(
            go.Scatter(
                x=[n for n, _ in line.points],
                y=[y for _, y in line.points],
                name=theme.safe(label),
                mode="lines+markers",
                line={"color": style.colour, "width": 2, "dash": DASHES[orders.index(line.order)]},
                marker={"symbol": style.symbol, "size": 6, "color": style.colour},
                hovertemplate=f"<b>{theme.safe(label)}</b><br>%{{x}} ones: %{{y}}<extra></extra>",
            )
        )
    ends = [n for line in lines for n, _ in line.points]
    ticks = [16**p for p in range(5) if not ends or 16**p <= max(ends)]
    axis = {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [units.count_text(tick) for tick in ticks],
        "zeroline": False,
    }
    fig.update_xaxes(axis, title={"text": "Ones added"})
    fig.update_yaxes(axis, title={"text": "Their sum"})
    return theme.finish(fig, height=420, legend="below")
