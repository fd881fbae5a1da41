"""The small chart beside a claim: a few curves along N or the classes of a row, log-log."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from profiling.figures import theme
from profiling.figures.series import Metric, Series, along_of, seq_lens, trace, values

HEIGHT = 280
MOST_TICKS = 8


class ClaimChart(NamedTuple):
    """Curves of one quantity; `metric.unit` is `bytes`, `bytes moved`, or empty for a ratio or an error."""

    metric: Metric
    series: tuple[Series, ...]


def figure(chart: ClaimChart) -> go.Figure:
    """Log-log lines; bytes that are held have binary units, bytes that are moved decimal ones."""
    fig = go.Figure([trace(s, chart.metric) for s in chart.series])
    decades = theme.value_range(values(chart.series), log=True)
    if chart.metric.unit:
        axis = theme.bytes_axis(decades, chart.metric.label, log=True, moved=chart.metric.unit != "bytes")
    else:
        axis = theme.value_axis(decades, chart.metric.label, log=True)
    step = 1 + len(axis["tickvals"]) // MOST_TICKS  # errors span many decades
    axis |= {name: axis[name][::step] for name in ("tickvals", "ticktext")}
    along = along_of(chart.series)
    fig.update_xaxes(theme.seq_len_axis(seq_lens(chart.series), title=along.axis, most=7))
    fig.update_yaxes(axis)
    return theme.finish(fig, height=HEIGHT)
