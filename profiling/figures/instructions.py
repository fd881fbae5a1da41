"""Instructions of compiled kernels by kind, as bars."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.figures import theme

COLOURS = ("#0072B2", "#D55E00")  # of the first kernel and the second


class Mix(NamedTuple):
    """One kernel: its label, and a count for each of the chart's kinds."""

    label: str
    counts: tuple[int, ...]


class MixChart(NamedTuple):
    """Kinds from top to bottom, what belongs to each, and one kernel's counts or two."""

    kinds: tuple[str, ...]
    what: tuple[str, ...]
    mixes: tuple[Mix, ...]


def figure(chart: MixChart) -> go.Figure:
    """Horizontal bars, a group a kind; each carries its number."""
    fig = go.Figure()
    for mix, colour in zip(chart.mixes, COLOURS, strict=False):
        fig.add_trace(
            go.Bar(
                y=chart.kinds,
                x=mix.counts,
                name=theme.safe(mix.label),
                orientation="h",
                marker={"color": colour},
                text=[units.count_text(n) for n in mix.counts],
                textposition="outside",
                cliponaxis=False,
                customdata=chart.what,
                hovertemplate="<b>%{y}</b>: %{text}<br>%{customdata}<extra></extra>",
            )
        )
    fig.update_layout(barmode="group", bargap=0.25)
    fig.update_xaxes(title={"text": "Instructions"}, rangemode="tozero", automargin=True)
    fig.update_yaxes(autorange="reversed", automargin=True, type="category")
    return theme.finish(fig, height=120 + (14 + 16 * len(chart.mixes)) * max(3, len(chart.kinds)))
