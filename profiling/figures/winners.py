"""Who wins: a map of baseline / candidate over N and a second axis, and where the lead changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.analysis.operations import SEQUENCE, Along
from profiling.analysis.winners import Win
from profiling.figures import theme
from profiling.figures.tiles import hatch

# Diverging, and apart for the colour-blind: orange where the candidate is behind, blue where it is ahead.
SCALE = [[0.0, "#D55E00"], [0.5, "#EDEDED"], [1.0, "#0072B2"]]
MOST_SHOWN = 8.0  # a ratio beyond it has the last colour
LEAST_SHOWN = 2.0  # the scale reaches at least this far, so that noise does not look like a difference
TICKS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class WinnersChart(NamedTuple):
    """The cells; `rows` from bottom to top; titles of the axis down the map and of the colours; what N is."""

    cells: tuple[Win, ...]
    rows: tuple[str, ...]
    row_title: str
    ratio_title: str
    along: Along = SEQUENCE


def cell_text(cell: Win) -> str:
    """A ratio; after `≈` where the samples do not say who is ahead; nothing where there is none."""
    if cell.ratio is None:
        return ""
    return f"{'' if cell.sign else '≈ '}{units.ratio_text(cell.ratio)}"


def figure(chart: WinnersChart) -> go.Figure:
    """N across, the second axis down; hatched where a side did not run; a line where the sign changes."""
    columns = sorted({cell.seq_len for cell in chart.cells})
    by_place = {(cell.row, cell.seq_len): cell for cell in chart.cells}
    grid = [[by_place.get((row, n)) for n in columns] for row in chart.rows]
    ratios = [cell.ratio for cell in chart.cells if cell.ratio is not None]
    reach = max([LEAST_SHOWN, *(max(r, 1 / r) for r in ratios if r > 0)])
    most = math.log2(min(MOST_SHOWN, reach))
    ticks = [tick for tick in TICKS if abs(math.log2(tick)) <= most]
    fig = go.Figure(
        go.Heatmap(
            z=[[math.log2(c.ratio) if c is not None and c.ratio else None for c in line] for line in grid],
            x=[units.count_text(n) for n in columns],
            y=[theme.safe(row) for row in chart.rows],
            text=[["" if c is None else cell_text(c) for c in line] for line in grid],
            customdata=[
                ["" if c is None else theme.safe(_hover(c, chart.along)) for c in line] for line in grid
            ],
            texttemplate="%{text}",
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
            colorscale=SCALE,
            zmin=-most,
            zmax=most,
            xgap=2,
            ygap=2,
            colorbar={
                "title": {"text": theme.safe(chart.ratio_title)},
                "tickvals": [math.log2(tick) for tick in ticks],
                "ticktext": [units.ratio_text(tick) for tick in ticks],
                "thickness": 12,
            },
        )
    )
    for i, line in enumerate(grid):
        for j, cell in enumerate(line):
            if cell is not None and cell.ratio is None:
                hatch(fig, j, i)
    _equal(fig, grid)
    fig.update_xaxes(title={"text": chart.along.axis}, type="category")
    fig.update_yaxes(title={"text": theme.safe(chart.row_title)}, type="category", automargin=True)
    return theme.finish(fig, height=160 + 52 * max(3, len(chart.rows)))


def _hover(cell: Win, along: Along) -> str:
    head = f"{cell.row}, {along.at(cell.seq_len)}: "
    if cell.ratio is None:
        return head + cell.reason
    words = {1: "the candidate is ahead", -1: "the candidate is behind", 0: "neither can be said to be ahead"}
    return head + f"{units.ratio_text(cell.ratio)}, {words[cell.sign]}"


def _equal(fig: go.Figure, grid: Sequence[Sequence[Win | None]]) -> None:
    """A stroke between neighbours of which one side's candidate is ahead and the other's is not."""
    for i, line in enumerate(grid):
        for j, cell in enumerate(line):
            right = line[j + 1] if j + 1 < len(line) else None
            above = grid[i + 1][j] if i + 1 < len(grid) else None
            if _differs(cell, right):
                _stroke(fig, (j + 0.5, j + 0.5), (i - 0.5, i + 0.5))
            if _differs(cell, above):
                _stroke(fig, (j - 0.5, j + 0.5), (i + 0.5, i + 0.5))


def _differs(cell: Win | None, other: Win | None) -> bool:
    if cell is None or other is None or cell.ratio is None or other.ratio is None:
        return False
    return (cell.ratio > 1) is not (other.ratio > 1)


def _stroke(fig: go.Figure, x: tuple[float, float], y: tuple[float, float]) -> None:
    line = {"color": theme.LINE, "width": 3}
    fig.add_shape(type="line", x0=x[0], x1=x[1], y0=y[0], y1=y[1], line=line)
