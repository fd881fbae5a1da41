"""The evidence for one crossover: both curves, the bracket, N* with its interval, and the ratio."""

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


class CrossoverChart(NamedTuple):
    """`curves` are the baseline's and the candidate's; `ratio` is baseline / candidate with its interval.

    `brackets` are the measured N that enclose a crossing; `interval` is that of `crossover_seq_len`.
    The ratio stays on a log axis, where twice and half are as far from 1×.
    """

    metric: Metric
    curves: tuple[Series, ...]
    ratio: Series
    ratio_label: str
    brackets: tuple[tuple[int, int], ...] = ()
    crossover_seq_len: float | None = None
    interval: tuple[float, float] | None = None
    log: bool = True


def figure(chart: CrossoverChart) -> go.Figure:
    """Two panels that share the N axis; brackets are shaded, N* is a dashed line labelled above."""
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.6, 0.4], vertical_spacing=0.06)
    for s in (s for s in chart.curves if s.points):
        fig.add_trace(trace(s, chart.metric), row=1, col=1)
    fig.add_trace(trace(chart.ratio, Metric("", "", "higher"), legend=False), row=2, col=1)

    log, along = chart.log, along_of((*chart.curves, chart.ratio))
    limits = theme.value_range(values(chart.curves), log=log, room_above=failure_room(chart.curves))
    for cross in failure_traces(chart.curves, limits, log=log):
        fig.add_trace(cross, row=1, col=1)
    for low, high in chart.brackets:
        fig.add_vrect(x0=low, x1=high, fillcolor=theme.BRACKET, line_width=0, layer="below", row="all", col=1)  # pyright: ignore[reportArgumentType]
    if chart.interval is not None:
        low, high = chart.interval
        fig.add_vrect(x0=low, x1=high, fillcolor=theme.BRACKET, line_width=0, layer="below", row="all", col=1)  # pyright: ignore[reportArgumentType]
    if chart.crossover_seq_len is not None:
        label = along.found(units.crossover_text(chart.crossover_seq_len, chart.interval))
        theme.seq_len_line(fig, chart.crossover_seq_len, label, log=log, row=1, col=1)
        theme.seq_len_line(fig, chart.crossover_seq_len, "", log=log, row=2, col=1)
    theme.level_line(fig, 1.0, "", row=2, col=1)

    ns = seq_lens((*chart.curves, chart.ratio))
    fig.update_xaxes(theme.seq_len_axis(ns, log=log, title=""), row=1, col=1)
    fig.update_xaxes(theme.seq_len_axis(ns, log=log, title=along.axis), row=2, col=1)
    if chart.metric.unit == "bytes":
        axis = theme.bytes_axis(limits, f"{chart.metric.label}, lower is better", log=log)
    else:
        axis = theme.value_axis(limits, chart.metric.title, log=log)
    fig.update_yaxes(axis, row=1, col=1)
    fig.update_yaxes(
        theme.ratio_axis(values([chart.ratio]), title=theme.safe(chart.ratio_label)), row=2, col=1
    )
    return theme.finish(fig, height=640, legend="below")  # N* is written over the panel
