"""Ratios of two runs with their intervals, one row a case, the largest on top: what got slower or faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import plotly.graph_objects as go

from profiling import units
from profiling.figures import theme

LABELLED = 24  # rows up to which each has its label; more only tell on hover
MOST = 400  # points that can still be told apart on one chart
ROW_HEIGHT = 34
HEIGHT = 560
# Ticks above 1×, their inverses stand below; the first set that shows enough is taken.
TICKS: tuple[tuple[float, ...], ...] = (
    (10.0, 100.0, 1000.0),
    (2.0, 5.0, 10.0),
    (1.25, 1.5, 2.0),
    (1.1, 1.2),
    (1.01, 1.02, 1.04),
)

# Colour and symbol: shapes differ, for eyes that see no hue.
STYLES: dict[str, tuple[str, str]] = {
    "slower": ("#D55E00", "triangle-right"),
    "ambiguous": ("#CC79A7", "diamond"),
    "same": (theme.GREY, "circle"),
    "faster": ("#0072B2", "triangle-left"),
}


class _HasRatio(Protocol):
    @property
    def ratio(self) -> float | None: ...


_Rated = TypeVar("_Rated", bound=_HasRatio)


class Ratio(NamedTuple):
    """One row: B / A, its interval if there is one, the verdict; `details` are plain lines for the hover.

    A `summary` (a side without samples) is hollow.
    """

    label: str
    ratio: float
    interval: tuple[float, float] | None
    verdict: str
    details: tuple[str, ...] = ()
    summary: bool = False


class RatioChart(NamedTuple):
    """Rows in any order. Within `margin` (relative) two values are the same; `title` is of the ratio axis."""

    rows: tuple[Ratio, ...]
    margin: float
    title: str


def thinned(rows: Sequence[_Rated], most: int = MOST) -> list[_Rated]:
    """The rows by falling ratio, at most `most`: both ends whole, and every k-th of what lies between.

    Anything with a `ratio` will do, so that nothing is made of what is not drawn; one without is left out.
    """
    rated = [row for row in rows if row.ratio is not None]
    ranked = sorted(rated, key=lambda row: row.ratio or 0.0, reverse=True)
    if len(ranked) <= most:
        return ranked
    end = most // 4
    middle, room = ranked[end:-end], most - 2 * end
    kept = [middle[k * len(middle) // room] for k in range(room)]
    return [*ranked[:end], *kept, *ranked[-end:]]


def figure(chart: RatioChart) -> go.Figure:
    """Points on a log axis of ratios, the margin shaded, 1× a line; few rows have their names above them."""
    rows = thinned(chart.rows)
    named = len(rows) <= LABELLED
    fig = go.Figure()
    for verdict, (colour, symbol) in STYLES.items():
        places = [place for place, row in enumerate(rows) if row.verdict == verdict]
        if places:
            fig.add_trace(_trace(verdict, colour, symbol, [(place, rows[place]) for place in places], named))
    low, high = 1 / (1 + chart.margin), 1 + chart.margin
    fig.add_vrect(x0=low, x1=high, fillcolor=theme.BRACKET, line_width=0, layer="below")  # pyright: ignore[reportArgumentType]
    fig.add_vline(x=1.0, line={"dash": "dot", "color": theme.LINE, "width": 1.5})
    ends = [end for row in rows for end in (row.ratio, *(row.interval or ()))]
    fig.update_xaxes(axis([low, high, *ends], title=theme.safe(chart.title)))
    fig.update_yaxes(
        range=[len(rows) - 0.4, -0.9 if named else -0.6],
        showticklabels=False,
        showgrid=False,
        zeroline=False,
        title={"text": "" if named else "Cases, by falling ratio"},
    )
    if named:
        for place, row in enumerate(rows):
            fig.add_annotation(
                x=0, xref="x domain", xanchor="left", y=place, yanchor="bottom", yshift=3,
                text=theme.safe(row.label), showarrow=False, font={"size": 12},
            )  # fmt: skip
    return theme.finish(fig, height=140 + ROW_HEIGHT * len(rows) if named else HEIGHT)


def axis(values: Sequence[float], *, title: str) -> dict[str, Any]:
    """A log axis of ratios around 1×: ticks close to 1 where all values are, far ones where they spread."""
    decades = theme.log_range([1.0, *values])
    ticks: list[float] = []
    for near in TICKS:  # from the coarsest to the finest, until there are enough
        ticks = sorted({1.0, *near, *(1 / tick for tick in near)})
        ticks = [tick for tick in ticks if decades[0] <= math.log10(tick) <= decades[1]]
        if len(ticks) >= 4:
            break
    return theme.ratio_ticks(decades, ticks, title=title)


def _trace(
    verdict: str, colour: str, symbol: str, rows: Sequence[tuple[int, Ratio]], named: bool
) -> go.Scatter:
    return go.Scatter(
        x=[row.ratio for _, row in rows],
        y=[place for place, _ in rows],
        name=verdict,
        mode="markers",
        marker={
            "symbol": [f"{symbol}-open" if row.summary else symbol for _, row in rows],
            "size": 9 if named else 6,
            "color": colour,
            "line": {"width": 1.5, "color": colour},
        },
        error_x=_whiskers([row for _, row in rows], colour, 3 if named else 0),
        hovertext=[
            "<br>".join(
                theme.safe(line)
                for line in (
                    row.label,
                    f"{units.ratio_interval_text(row.ratio, row.interval)}, {verdict}",
                    *row.details,
                )
            )
            for _, row in rows
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _whiskers(rows: Sequence[Ratio], colour: str, width: int) -> dict[str, Any] | None:
    """From the interval's ends; a row without one has none."""
    if all(row.interval is None for row in rows):
        return None
    ends = [row.interval or (row.ratio, row.ratio) for row in rows]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - row.ratio) for row, (_, high) in zip(rows, ends, strict=True)],
        "arrayminus": [max(0.0, row.ratio - low) for row, (low, _) in zip(rows, ends, strict=True)],
        "color": colour,
        "thickness": 1.2,
        "width": width,
    }
