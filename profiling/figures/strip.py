"""The raw samples of one case on one clock, side by side by process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.figures import theme

MOST = 2000  # dots that can still be told apart
_WIDTH = 0.76  # of a process' strip, whose place is 1 wide
_PER_MS = {"ns": 1e6, "µs": 1e3, "ms": 1.0, "s": 1e-3}


class Dot(NamedTuple):
    """One sample: a call's milliseconds; `order` is the case's place in its shuffled round."""

    process: int
    round: int
    order: int
    ms: float


class StripChart(NamedTuple):
    """The samples in the order they were taken; `name` is the backend, the rest its quantiles."""

    name: str
    clock: str
    dots: tuple[Dot, ...]
    p20_ms: float | None = None
    p50_ms: float | None = None
    p80_ms: float | None = None


def thinned(dots: Sequence[Dot], most: int = MOST) -> list[Dot]:
    """At most `most` of the samples: both ends of the latencies, and of the rest every k-th."""
    if len(dots) <= most:
        return list(dots)
    ranked = sorted(range(len(dots)), key=lambda i: dots[i].ms)
    kept = {ranked[k * (len(ranked) - 1) // (most - 1)] for k in range(most)}
    return [dot for i, dot in enumerate(dots) if i in kept]


def figure(chart: StripChart) -> go.Figure:
    """One strip a process, its samples from left to right as they were taken; p20 to p80 is shaded."""
    dots = thinned(chart.dots)
    processes = sorted({dot.process for dot in dots})
    unit = units.time_text(chart.p50_ms or max(dot.ms for dot in dots)).split(" ")[-1]
    per_ms = _PER_MS[unit]
    style = theme.style_of(chart.name)
    fig = go.Figure(
        go.Scatter(
            x=_places(dots, processes),
            y=[dot.ms * per_ms for dot in dots],
            name=theme.safe(chart.name),
            mode="markers",
            marker={"symbol": style.symbol, "size": 7, "color": style.colour, "opacity": 0.75},
            hovertext=[
                f"process {dot.process}, round {dot.round}, place {dot.order} of its round<br>"
                f"{units.time_text(dot.ms)}"
                for dot in dots
            ],
            hovertemplate="%{hovertext}<br>%{y:,.6~g} " + unit + "<extra></extra>",
            showlegend=False,
        )
    )
    if chart.p20_ms is not None and chart.p80_ms is not None:
        low, high = chart.p20_ms * per_ms, chart.p80_ms * per_ms
        fig.add_hrect(y0=low, y1=high, fillcolor=theme.BRACKET, line_width=0, layer="below")  # pyright: ignore[reportArgumentType]
    if chart.p50_ms is not None:
        fig.add_hline(y=chart.p50_ms * per_ms, line={"dash": "dot", "color": theme.LINE, "width": 1.5})
    fig.update_xaxes(
        tickvals=list(range(len(processes))),
        ticktext=[f"process {process}" for process in processes],
        range=[-0.55, len(processes) - 0.45],
        showgrid=False,
        zeroline=False,
    )
    fig.update_yaxes(
        title={"text": theme.safe(f"Latency, {chart.clock} clock ({unit})")}, tickformat="~g", zeroline=False
    )
    return theme.finish(fig, height=340).update_layout(margin={"t": 16})


def _places(dots: Sequence[Dot], processes: Sequence[int]) -> list[float]:
    """The x of each dot: its process' place, and within it the order in which it was taken."""
    count = {process: sum(dot.process == process for dot in dots) for process in processes}
    seen = dict.fromkeys(processes, 0)
    out = []
    for dot in dots:
        share = (seen[dot.process] + 0.5) / count[dot.process] - 0.5
        out.append(processes.index(dot.process) + _WIDTH * share)
        seen[dot.process] += 1
    return out
