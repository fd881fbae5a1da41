"""Which tile: a heat map of latency relative to the best one, and the on-chip memory a tile asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.figures import chosen, theme

# Sequential, light to dark with distance from the best; readable on both backgrounds because every cell
# carries its number in a colour that plotly chooses for contrast.
SCALE = [[0.0, "#0072B2"], [0.35, "#7FB8DC"], [0.7, "#F2C6A8"], [1.0, "#D55E00"]]
WORST_SHOWN = 3.0  # a tile this many times slower than the best has the last colour, whatever it is
LEAST_SHOWN = 1.25  # the scale reaches at least this far, so that noise does not look like a difference


class Cell(NamedTuple):
    """One tile Br x Bc. `relative`: latency over the best tile's; None: it did not run, see `reason`.

    `details` are plain-text lines for the hover, such as how near the limits the tile is. `key` is the label
    of the case.
    """

    block_m: int
    block_n: int
    relative: float | None
    latency_ms: float | None = None
    status: str = "ok"
    reason: str = ""
    details: tuple[str, ...] = ()
    key: str = ""


class TileChart(NamedTuple):
    """The cells of one slice at one N; `best`, `default` and `picked` are tiles (Br, Bc) marked on the map.

    `picked` is a model's choice.
    """

    cells: tuple[Cell, ...]
    best: tuple[int, int] | None
    default: tuple[int, int] | None
    picked: tuple[int, int] | None = None


class Part(NamedTuple):
    """One piece of a tile's on-chip memory, such as the Q tile."""

    label: str
    nbytes: int


class SramBill(NamedTuple):
    """What a tile asks of shared memory (modelled, piece by piece) against what a block can have (M)."""

    tile: tuple[int, int]
    parts: tuple[Part, ...]
    sram_bytes: int | None
    device: str

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return sum(part.nbytes for part in self.parts)


class BestLine(NamedTuple):
    """The best tile at each N: (N, Br, Bc, margin over the default tile as default / best latency)."""

    points: tuple[tuple[int, int, int, float | None], ...]


def figure(chart: TileChart) -> go.Figure:
    """A map with Br down and Bc across; tiles that did not run are hatched, with the reason on hover."""
    rows = sorted({cell.block_m for cell in chart.cells})
    columns = sorted({cell.block_n for cell in chart.cells})
    by_tile = {(cell.block_m, cell.block_n): cell for cell in chart.cells}
    z: list[list[float | None]] = []
    text: list[list[str]] = []
    for m in rows:
        cells = [by_tile.get((m, n)) for n in columns]
        z.append([None if c is None or c.relative is None else math.log2(c.relative) for c in cells])
        text.append(["" if c is None or c.relative is None else units.ratio_text(c.relative) for c in cells])
    ran = [cell.relative for cell in chart.cells if cell.relative is not None]
    worst = min(WORST_SHOWN, max([LEAST_SHOWN, *ran]))
    ticks = [t for t in (1.0, 1.25, 1.5, 2.0, 2.5, 3.0) if t <= worst]
    fig = go.Figure(
        go.Heatmap(
            z=z,
            x=[str(n) for n in columns],
            y=[str(m) for m in rows],
            text=text,
            texttemplate="%{text}",
            hoverinfo="skip",
            colorscale=SCALE,
            zmin=0.0,
            zmax=math.log2(worst),
            xgap=2,
            ygap=2,
            colorbar={
                "title": {"text": "Latency<br>over best"},
                "tickvals": [math.log2(t) for t in ticks],
                "ticktext": [units.ratio_text(t) for t in ticks],
                "thickness": 12,
            },
        )
    )
    for i, m in enumerate(rows):
        for j, n in enumerate(columns):
            cell = by_tile.get((m, n))
            if cell is not None and cell.relative is None:
                hatch(fig, j, i)
    failed = [(cell.block_m, cell.block_n) for cell in chart.cells if cell.relative is None]
    _marks(fig, [(m, n) for m in rows for n in columns if (m, n) not in failed], by_tile, failed=False)
    _marks(fig, failed, by_tile, failed=True)
    _frame(fig, rows, columns, chart.best, "best measured", "#009E73")
    _frame(fig, rows, columns, chart.default, "default", "#FFFFFF", dash="dot", side=0.72)
    _frame(fig, rows, columns, chart.picked, "model's pick", "#CC79A7", dash="dash", side=0.82)
    fig.update_xaxes(title={"text": "Bc (keys per tile)"}, type="category")
    fig.update_yaxes(title={"text": "Br (queries per tile)"}, type="category")
    return theme.finish(fig, height=150 + 52 * max(3, len(rows)))


def _cell_hover(m: int, n: int, cell: Cell | None) -> str:
    head = f"<b>Br {m} × Bc {n}</b>"
    if cell is None:
        return f"{head}<br>not in this run"
    more = "".join(f"<br>{theme.safe(line)}" for line in cell.details)
    if cell.relative is None:
        return f"{head}<br>did not run: {theme.safe(cell.status)}<br>{theme.safe(cell.reason)}{more}"
    return f"{head}<br>{units.time_text(cell.latency_ms)}<br>{units.ratio_text(cell.relative)} the best{more}"


def hatch(fig: go.Figure, x: int, y: int, lines: int = 4) -> None:
    """Diagonal strokes over the cell at (column x, row y), whose side is 1."""
    fig.add_shape(
        type="rect",
        x0=x - 0.48,
        x1=x + 0.48,
        y0=y - 0.48,
        y1=y + 0.48,
        fillcolor=theme.GREY,
        opacity=0.15,
        line_width=0,
    )
    for k in range(1, 2 * lines):
        t = k / lines  # the stroke runs through points with (dx + dy) = t, both from the lower left corner
        (x0, y0), (x1, y1) = (max(0.0, t - 1), min(1.0, t)), (min(1.0, t), max(0.0, t - 1))
        fig.add_shape(
            type="line",
            x0=x - 0.48 + 0.96 * x0,
            y0=y - 0.48 + 0.96 * y0,
            x1=x - 0.48 + 0.96 * x1,
            y1=y - 0.48 + 0.96 * y1,
            line={"color": theme.GREY, "width": 1},
            opacity=0.6,
        )


def _marks(
    fig: go.Figure, tiles: Sequence[tuple[int, int]], cells: Mapping[tuple[int, int], Cell], *, failed: bool
) -> None:
    """A point in each cell carries its hover and its case: a map's own cells cannot be chosen.

    Crosses where a tile did not run, else invisible and as large as a cell.
    """
    if tiles:
        fig.add_trace(
            go.Scatter(
                x=[str(n) for _, n in tiles],
                y=[str(m) for m, _ in tiles],
                mode="markers",
                marker={"symbol": "x", "size": 9, "color": theme.GREY}
                if failed
                else {"symbol": "square", "size": 40, "opacity": 0},
                name="did not run" if failed else "ran",
                showlegend=failed,
                customdata=chosen.carried([cells[t].key if t in cells else "" for t in tiles]),
                hovertext=[_cell_hover(*t, cells.get(t)) for t in tiles],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )


def _frame(
    fig: go.Figure,
    rows: list[int],
    columns: list[int],
    tile: tuple[int, int] | None,
    label: str,
    colour: str,
    dash: str = "solid",
    side: float = 0.92,
) -> None:
    """A frame in a tile's cell (whose side is 1), with an entry in the legend."""
    if tile is None or tile[0] not in rows or tile[1] not in columns:
        return
    y, x = rows.index(tile[0]), columns.index(tile[1])
    fig.add_shape(
        type="rect",
        x0=x - side / 2,
        x1=x + side / 2,
        y0=y - side / 2,
        y1=y + side / 2,
        line={"color": colour, "width": 3, "dash": dash},
    )
    fig.add_trace(
        go.Scatter(
            x=[None],
            y=[None],
            mode="lines",
            line={"color": theme.LINE if colour == "#FFFFFF" else colour, "width": 3, "dash": dash},
            name=f"{label}: {tile[0]}×{tile[1]}",
        )
    )


def bill_figure(bill: SramBill) -> go.Figure:
    """One stacked bar, a segment per part, with M as a line."""
    fig = go.Figure()
    palette = ["#0072B2", "#009E73", "#D55E00", "#8A6FDF", "#CC79A7", "#A0522D"]
    for i, part in enumerate(bill.parts):
        fig.add_trace(
            go.Bar(
                x=[part.nbytes / units.KIB],
                y=[f"{bill.tile[0]}×{bill.tile[1]}"],
                orientation="h",
                name=theme.safe(f"{part.label}: {units.bytes_text(part.nbytes)}"),
                marker={"color": palette[i % len(palette)], "line": {"width": 1, "color": "#FFFFFF"}},
                hovertemplate=theme.safe(f"{part.label}: {units.bytes_text(part.nbytes)}")
                + "<extra></extra>",
            )
        )
    longest = max(bill.total_bytes, bill.sram_bytes or 0) / units.KIB
    if bill.sram_bytes is not None:
        fig.add_vline(x=bill.sram_bytes / units.KIB, line={"dash": "dash", "color": theme.LINE, "width": 2})
        fig.add_annotation(
            x=bill.sram_bytes / units.KIB,
            y=1,
            yref="paper",
            yanchor="bottom",
            text=f"M = {units.bytes_text(bill.sram_bytes)} a block<br>{theme.safe(bill.device)}",
            xanchor=("left", "center", "right")[int(2.99 * bill.sram_bytes / units.KIB / longest)],
            showarrow=False,
        )
    fig.update_layout(barmode="stack")
    fig.update_xaxes(title={"text": "Shared memory of one block (KiB), modelled"}, range=[0, longest * 1.08])
    fig.update_yaxes(visible=False)
    theme.finish(fig, height=244)
    fig.update_layout(legend={"y": -0.55, "yanchor": "top", "traceorder": "normal"}, margin={"t": 44})
    return fig


def best_line_figure(line: BestLine) -> go.Figure:
    """The best Br and Bc at each N, as two lines on a log axis of tile sizes."""
    ns = [n for n, *_ in line.points]
    fig = go.Figure()
    for name, place, style in (("Br", 1, theme.STYLES["flash"]), ("Bc", 2, theme.STYLES["sdpa"])):
        fig.add_trace(
            go.Scatter(
                x=ns,
                y=[point[place] for point in line.points],
                name=f"best {name}",
                mode="lines+markers",
                line={"color": style.colour},
                marker={"symbol": style.symbol, "size": 9},
                hovertext=[
                    "" if p[3] is None else f"<br>default tile: {units.ratio_text(p[3])}" for p in line.points
                ],
                hovertemplate=f"N = %{{x:,d}}<br>{name} = %{{y}}%{{hovertext}}<extra></extra>",
            )
        )
    sizes = sorted({size for point in line.points for size in point[1:3]})
    fig.update_xaxes(theme.seq_len_axis(ns))
    fig.update_yaxes(
        type="log", tickvals=sizes, ticktext=[str(s) for s in sizes], title={"text": "Tile size (tokens)"}
    )
    return theme.finish(fig, height=320)
