"""Points of a chart that stand for a case, which each of them carries as `customdata`; a ring around one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from profiling.figures import theme


def carried(keys: Sequence[str]) -> list[str] | None:
    """What a trace carries of its points' cases; None where no point has one, as in a model."""
    return list(keys) if any(keys) else None


def keys_of(fig: go.Figure) -> list[str]:
    """The cases of a chart's points, each once, in the order of the traces."""
    return list(dict.fromkeys(key for _, keys in _carrying(fig) for key in keys if key))


def ring(fig: go.Figure, key: str) -> None:
    """Add a ring around every point of that case, in each panel that has it."""
    for trace, keys in _carrying(fig):
        places = [i for i, each in enumerate(keys) if each == key]
        if places:
            fig.add_trace(
                go.Scatter(
                    x=[trace.x[i] for i in places],
                    y=[trace.y[i] for i in places],
                    xaxis=trace.xaxis,
                    yaxis=trace.yaxis,
                    mode="markers",
                    marker={"symbol": "circle-open", "size": 18, "color": theme.LINE, "line": {"width": 3}},
                    hoverinfo="skip",
                    showlegend=False,
                    cliponaxis=False,
                )
            )


def _carrying(fig: go.Figure) -> list[tuple[Any, list[str]]]:
    """The traces that carry cases, and these."""
    traces: Any = fig.data
    return [
        (trace, [str(key) for key in trace.customdata]) for trace in traces if trace.customdata is not None
    ]
