"""Memory by tensor as stacked bars, one a way to run it, with the memories of GPUs as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.figures import theme

BEYOND = 1.15  # how far the axis reaches over the longest bar
LABEL_SHARE = 0.05  # of the axis that a label of a line takes at least
# Large and frequent tensors first: neighbours in a bar differ in lightness as well as in hue.
COLOURS = (
    *("#0072B2", "#56B4E9", "#D55E00", "#F0A860", "#B3128E", "#E39BD3", "#6C6CFF", "#5B8E00"),
    *("#009E73", "#7FD6B8", "#8A8A8A", "#A0522D", "#C9A227", "#CC79A7", "#8A6FDF", "#555555"),
)


class Bar(NamedTuple):
    """One way to run it: its name and bytes by kind of tensor."""

    name: str
    tensors: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(self.tensors.values())


class CapacityChart(NamedTuple):
    """Bars from top to bottom, `kinds` in the order of the stack, and a line's bytes for each memory size."""

    bars: tuple[Bar, ...]
    kinds: tuple[str, ...]
    memories: tuple[int, ...]


def figure(chart: CapacityChart) -> go.Figure:
    """Horizontal stacked bars on a linear axis of bytes; a line that lies beyond the axis is left out."""
    fig = go.Figure()
    reach = BEYOND * max(bar.total for bar in chart.bars)
    for place, kind in enumerate(chart.kinds):
        held = [bar.tensors.get(kind, 0) for bar in chart.bars]
        if not any(held):
            continue
        fig.add_trace(
            go.Bar(
                y=[theme.safe(bar.name) for bar in chart.bars],
                x=held,
                name=theme.safe(kind),
                orientation="h",
                marker={"color": COLOURS[place % len(COLOURS)]},
                hovertext=[units.bytes_text(nbytes) for nbytes in held],
                hovertemplate=f"<b>{theme.safe(kind)}</b><br>%{{y}}: %{{hovertext}}<extra></extra>",
            )
        )
    within = sorted({nbytes for nbytes in chart.memories if nbytes <= reach})
    _lines(fig, within, reach)
    ticks = ticks_to(reach)
    fig.update_xaxes(
        {
            "range": [0, reach],
            "title": {"text": "Memory, lower is better"},
            "tickvals": ticks,
            "ticktext": [units.bytes_text(tick) for tick in ticks],
            "zeroline": False,
        }
    )
    fig.update_yaxes({"autorange": "reversed", "automargin": True})
    fig.update_layout(barmode="stack", bargap=0.35)
    theme.finish(fig, height=250 + 70 * len(chart.bars), legend="below")
    return fig.update_layout(margin={"t": 64 if within else 24}, legend={"traceorder": "normal"})


def _lines(fig: go.Figure, memories: Sequence[int], reach: float) -> None:
    """A dotted line at each memory; labels that would overlap are left out."""
    last = -math.inf
    for nbytes in memories:
        fig.add_vline(x=nbytes, line={"dash": "dot", "color": theme.LINE, "width": 1.5})
        if nbytes - last < LABEL_SHARE * reach:
            continue
        last = nbytes
        fig.add_annotation(
            x=nbytes,
            y=1,
            yref="y domain",
            yanchor="bottom",
            textangle=-90,  # side by side they would overlap on a phone
            text=theme.safe(units.bytes_text(nbytes)),
            showarrow=False,
            font={"size": 12},
        )


def ticks_to(reach: float) -> list[int]:
    """Up to six ticks from 0 to `reach` bytes, a power of two apart: round numbers of binary units."""
    step = 1
    while step < reach / 5:
        step *= 2
    return list(range(0, int(reach) + 1, step))
