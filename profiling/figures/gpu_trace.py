"""What a GPU did during a run: clock, power and temperature as they were after each case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from profiling.figures import theme

MOST = 400  # moments that can still be told apart
PANELS: tuple[tuple[str, str, str], ...] = (
    ("sm_clock_mhz", "SM clock (MHz)", "#0072B2"),
    ("power_w", "Power (W)", "#D55E00"),
    ("temperature_c", "Temperature (°C)", "#009E73"),
)


class Moment(NamedTuple):
    """The GPU's state after a case; `minute` is since the run's first row. None: not known."""

    minute: float
    case: str
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


def thinned(moments: Sequence[Moment], most: int = MOST) -> list[Moment]:
    """At most `most` of them, evenly, the last one always."""
    step = -(-len(moments) // most)
    return list(moments[::-1][:: max(1, step)][::-1])


def figure(moments: Sequence[Moment]) -> go.Figure:
    """A panel a quantity that is known, side by side, over minutes."""
    panels = [panel for panel in PANELS if any(getattr(m, panel[0]) is not None for m in moments)]
    fig = make_subplots(
        rows=1, cols=max(1, len(panels)), subplot_titles=[title for _, title, _ in panels] or None
    )
    kept = thinned(moments)
    for column, (name, _, colour) in enumerate(panels, 1):
        own = [m for m in kept if getattr(m, name) is not None]
        fig.add_trace(
            go.Scatter(
                x=[m.minute for m in own],
                y=[getattr(m, name) for m in own],
                mode="lines+markers",
                line={"color": colour, "width": 1.5},
                marker={"size": 4, "color": colour},
                hovertext=[theme.safe(m.case) for m in own],
                hovertemplate="%{hovertext}<br>%{y:,.6~g} after %{x:.1f} min<extra></extra>",
            ),
            row=1,
            col=column,
        )
    fig.update_annotations(font={"size": 12})
    fig.update_xaxes(title={"text": "minutes"}, zeroline=False, rangemode="tozero")
    fig.update_yaxes(zeroline=False)
    theme.finish(fig, height=210)
    return fig.update_layout(showlegend=False, margin={"t": 28})
