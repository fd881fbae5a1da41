"""Latency (or a rate made of it) against N, with the ratio to the baseline under it."""

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

RATIO = Metric("Speed-up", "", "higher")


class LatencyChart(NamedTuple):
    """`series` in the unit of `metric`; `ratios` are baseline / backend, so above 1 is faster.

    `peak` is the device's limit in the unit of `metric`, drawn as a line where there is one. `published` are
    results of others in the same unit, laid over; they have no ratio.
    """

    metric: Metric
    series: tuple[Series, ...]
    ratios: tuple[Series, ...]
    baseline: str
    peak: float | None = None
    peak_label: str = ""
    log: bool = True
    published: tuple[Series, ...] = ()


def figure(chart: LatencyChart) -> go.Figure:
    """Two panels that share the N axis: the metric with p20-p80 whiskers, and the ratio with a 1× line."""
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.66, 0.34], vertical_spacing=0.06)
    for s in (s for s in (*chart.series, *chart.published) if s.points):
        fig.add_trace(trace(s, chart.metric), row=1, col=1)
    for s in (s for s in chart.ratios if s.points):
        fig.add_trace(trace(s, RATIO, legend=False), row=2, col=1)

    upper = theme.value_range(
        [*values((*chart.series, *chart.published)), chart.peak],
        log=chart.log,
        room_above=failure_room(chart.series),
    )
    for cross in failure_traces(chart.series, upper, log=chart.log):
        fig.add_trace(cross, row=1, col=1)
    if chart.peak is not None:
        theme.level_line(fig, chart.peak, chart.peak_label, log=chart.log, row=1, col=1)
    theme.level_line(fig, 1.0, "", row=2, col=1)

    theirs = seq_lens(chart.published)
    ns = [*seq_lens((*chart.series, *chart.ratios)), *theirs[:1], *theirs[-1:]]  # ticks stay ours
    title = along_of(chart.series).axis
    fig.update_xaxes(theme.seq_len_axis(ns, log=chart.log, title=""), row=1, col=1)
    fig.update_xaxes(theme.seq_len_axis(ns, log=chart.log, title=title), row=2, col=1)
    fig.update_yaxes(theme.value_axis(upper, chart.metric.title, log=chart.log), row=1, col=1)
    ratio = theme.ratio_axis(values(chart.ratios), title=f"Speed-up over {theme.safe(chart.baseline)}")
    fig.update_yaxes(ratio, row=2, col=1)
    return theme.finish(fig, height=620 + 28 * len(chart.published))  # on a phone each is a row of the legend


def caption_of_peak(peak: float | None, device: str, dtype: str) -> str:
    """The label of the peak line, such as `H200 bf16 peak 989 TFLOP/s`; empty without a peak."""
    return "" if peak is None else f"{device} {dtype} peak {units.tflops_text(peak)}"
