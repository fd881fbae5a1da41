"""Peak memory against N: measured lines, the law dashed, the device's capacity, and what did not fit."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

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


class MemoryChart(NamedTuple):
    """Bytes against N, all measured by one method (two are never drawn on one axis).

    `models` hold the dashed laws; `capacity_bytes` is the memory of the device, drawn as a line.
    """

    metric: Metric
    series: tuple[Series, ...]
    models: tuple[Series, ...] = ()
    capacity_bytes: int | None = None
    capacity_label: str = ""
    log: bool = True


def figure(chart: MemoryChart) -> go.Figure:
    """Lines on an axis of binary units, both axes log or both linear."""
    fig = go.Figure()
    for s in (s for s in (*chart.series, *chart.models) if s.points):
        fig.add_trace(trace(s, chart.metric))
    limits = theme.value_range(
        [*values((*chart.series, *chart.models)), chart.capacity_bytes],
        log=chart.log,
        room_above=failure_room(chart.series),
    )
    for cross in failure_traces(chart.series, limits, log=chart.log):
        fig.add_trace(cross)
    if chart.capacity_bytes is not None:
        theme.level_line(fig, chart.capacity_bytes, chart.capacity_label, log=chart.log)
    every = (*chart.series, *chart.models)
    fig.update_xaxes(theme.seq_len_axis(seq_lens(every), log=chart.log, title=along_of(every).axis))
    title = f"{chart.metric.label}, {chart.metric.better} is better"
    fig.update_yaxes(theme.bytes_axis(limits, title, log=chart.log))
    return theme.finish(fig, height=520, legend="below")


def capacity_label(name: str, capacity_bytes: int | None) -> str:
    """The label of the capacity line, such as `NVIDIA H200 has 140 GiB`; empty when unknown."""
    return "" if capacity_bytes is None else f"{name} has {units.bytes_text(capacity_bytes)}"
