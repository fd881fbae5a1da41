"""Errors against N, with the ratio to eager's under them; and against the size of the logits."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from profiling import units
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

REL_ERROR = Metric("Relative error", "of ‖ref‖", "lower", ",.3~g")
SHARE = Metric("Largest error", "of what is allowed", "lower", ",.3~g")
RATIO = Metric("Error over eager's", "", "lower", ",.3~g")
SHADES = (1.0, 0.7, 0.5)  # opacity of a backend's first, second and further dtypes
SYMBOLS = ("", "triangle-right", "triangle-left")


class NumericsChart(NamedTuple):
    """`series` in the unit of `metric`; `ratios` are error over eager's, so below 1 is better than eager.

    `levels` are horizontal lines of the upper panel: where, and what is written there.
    """

    metric: Metric
    series: tuple[Series, ...]
    ratios: tuple[Series, ...]
    levels: tuple[tuple[float, str], ...] = ()
    log: bool = True


class ScaleLine(NamedTuple):
    """Error against the scale of the logits: (scale, relative error) of `backend` in one dtype."""

    backend: str
    dtype: str
    points: tuple[tuple[float, float], ...]


def dtype_style(backend: str, number: int) -> theme.Style:
    """The style of a backend in a chart's first dtype; paler, with a marker of its own, in further ones."""
    style = theme.style_of(backend)
    if number == 0:
        return style
    k = min(number, len(SHADES) - 1)
    red, green, blue = (int(style.colour[i : i + 2], 16) for i in (1, 3, 5))
    return theme.Style(f"rgba({red}, {green}, {blue}, {SHADES[k]})", SYMBOLS[k])


def figure(chart: NumericsChart) -> go.Figure:
    """Two panels that share the N axis: the error, and under it (always log) its ratio to eager's."""
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.62, 0.38], vertical_spacing=0.06)
    for s in (s for s in chart.series if s.points):
        fig.add_trace(trace(s, chart.metric), row=1, col=1)
    for s in (s for s in chart.ratios if s.points):
        fig.add_trace(trace(s, RATIO, legend=False), row=2, col=1)
    upper = theme.value_range(
        [*values(chart.series), *(y for y, _ in chart.levels)],
        log=chart.log,
        room_above=failure_room(chart.series),
    )
    for cross in failure_traces(chart.series, upper, log=chart.log):
        fig.add_trace(cross, row=1, col=1)
    for y, text in chart.levels:
        theme.level_line(fig, y, text, log=chart.log, row=1, col=1)
    theme.level_line(fig, 1.0, "as good as eager", row=2, col=1)
    ns = seq_lens((*chart.series, *chart.ratios))
    title = along_of(chart.series).axis
    fig.update_xaxes(theme.seq_len_axis(ns, log=chart.log, title=""), row=1, col=1)
    fig.update_xaxes(theme.seq_len_axis(ns, log=chart.log, title=title), row=2, col=1)
    fig.update_yaxes(theme.value_axis(upper, chart.metric.title, log=chart.log), row=1, col=1)
    fig.update_yaxes(theme.ratio_axis(values(chart.ratios), title="Error over eager's"), row=2, col=1)
    return theme.finish(fig, height=640)


def scale_figure(lines: tuple[ScaleLine, ...], *, log: bool = True) -> go.Figure:
    """Relative error against the standard deviation of the logits, both log or both linear."""
    fig = go.Figure()
    dtypes = list(dict.fromkeys(line.dtype for line in lines))
    for line in lines:
        style = dtype_style(line.backend, dtypes.index(line.dtype))
        label = f"{'eager' if line.backend == 'naive' else line.backend} {line.dtype}"
        fig.add_trace(
            go.Scatter(
                x=[x for x, _ in line.points],
                y=[y for _, y in line.points],
                name=theme.safe(label),
                mode="lines+markers",
                line={"color": style.colour, "width": 2},
                marker={"symbol": style.symbol, "size": 8, "color": style.colour},
                hovertemplate=f"<b>{theme.safe(label)}</b><br>logits of %{{x:~g}}<br>%{{y:,.3~g}} of ‖ref‖"
                "<extra></extra>",
            )
        )
    scales = sorted({x for line in lines for x, _ in line.points})
    axis = theme.value_axis(theme.value_range(scales, log=log), "Standard deviation of the logits", log=log)
    fig.update_xaxes(axis, tickvals=scales, ticktext=[units.number_text(x) for x in scales])
    limits = theme.value_range([y for line in lines for _, y in line.points], log=log)
    fig.update_yaxes(theme.value_axis(limits, REL_ERROR.title, log=log))
    return theme.finish(fig, height=420, legend="below")
