"""The reason bar: what a call's time consists of, by the fitted model, for baseline and candidate."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from profiling import units
from profiling.analysis.explain import Shares
from profiling.figures import theme

# Overheads first, work last: neighbours differ in lightness as well as in hue.
COLOURS: dict[str, str] = {
    "launch": "#8A8A8A",
    "waves": "#E69F00",
    "padding": "#F0C38A",
    "bytes": "#56B4E9",
    "steps": "#CC79A7",
    "arithmetic": "#0072B2",
}


def label(bar: Shares) -> str:
    """Whose call it is, at which N, and how long the model takes it to be."""
    return f"{bar.backend}, N = {units.count_text(bar.seq_len)} ({units.time_text(bar.est_latency_ms)})"


def figure(bars: Sequence[Shares]) -> go.Figure:
    """Horizontal bars of shares that add up to all of a call; reasons in the order of `COLOURS`."""
    fig = go.Figure()
    names = [*COLOURS, *sorted({reason for bar in bars for reason in bar.shares} - set(COLOURS))]
    for reason in names:
        shares = [bar.shares.get(reason, 0.0) for bar in bars]
        if not any(shares):
            continue
        fig.add_trace(
            go.Bar(
                y=[theme.safe(label(bar)) for bar in bars],
                x=shares,
                name=theme.safe(reason),
                orientation="h",
                marker={"color": COLOURS.get(reason, theme.GREY)},
                hovertext=[units.percent_text(share) for share in shares],
                hovertemplate=f"<b>{theme.safe(reason)}</b><br>%{{y}}: %{{hovertext}}<extra></extra>",
            )
        )
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    fig.update_xaxes(
        {
            "range": [0, 1],
            "title": {"text": "Share of the call, modelled"},
            "tickvals": ticks,
            "ticktext": [units.percent_text(tick) for tick in ticks],
        }
    )
    fig.update_yaxes({"autorange": "reversed", "automargin": True})
    fig.update_layout(barmode="stack", bargap=0.35, legend={"traceorder": "normal"})
    return theme.finish(fig, height=200 + 46 * len(bars), legend="below")
