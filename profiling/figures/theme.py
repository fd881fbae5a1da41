"""How every chart looks: one colour and one marker shape per backend, axes, marks, and safe text.

Measured is solid with markers, modelled is dashed without; the eager baseline is grey. The colours reach
a contrast of 3:1 on white and on Streamlit's dark background; shapes differ too, for eyes that see no hue.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple
from zlib import crc32

import plotly.graph_objects as go

from profiling import units
from profiling.analysis.operations import SEQUENCE

GREY = "#7F7F7F"
LINE = "#8A8A8A"  # reference lines: visible on both backgrounds
LOSS = "rgba(213, 94, 0, 0.14)"  # shade where the candidate loses
BRACKET = "rgba(0, 114, 178, 0.14)"  # shade between the N that enclose a crossover
MIN_GAP = 0.08  # decades kept free beyond the data at either end of a log axis


class Style(NamedTuple):
    """A backend's colour and plotly marker symbol."""

    colour: str
    symbol: str


STYLES: dict[str, Style] = {
    "naive": Style(GREY, "circle"),
    "naive/add": Style(GREY, "circle"),
    "naive/fill": Style("#A0522D", "hexagon"),
    "naive/fp32_softmax": Style("#C44E52", "octagon"),
    "naive_compiled": Style("#CC79A7", "pentagon"),
    "tiled": Style("#5B8E00", "triangle-up"),
    "flash": Style("#0072B2", "square"),
    "flash_portable": Style("#6C6CFF", "cross"),
    "flash_hopper": Style("#B3128E", "x"),
    "flash_hopper/deterministic": Style("#B3128E", "star-triangle-up"),
    "sdpa": Style("#D55E00", "diamond"),
    "sdpa_flash": Style("#009E73", "triangle-down"),
    "sdpa_cudnn": Style("#8A6FDF", "star"),
    "sdpa_efficient": Style("#2A9DC4", "diamond-wide"),
    "sdpa_math": Style("#C44E52", "hourglass"),
    "flex": Style("#B0742A", "triangle-left"),
    "online": Style("#00868B", "star-triangle-down"),
}
# For `module:function` backends: the same name gets the same style in every run.
_OTHERS: tuple[Style, ...] = (
    Style("#A0522D", "star-square"),
    Style("#CC79A7", "star-diamond"),
    Style("#8A6FDF", "bowtie"),
    Style("#5B8E00", "hexagram"),
)
# The modelled series of the traffic charts; the same role always has the same colour and dash.
MODEL_STYLES: dict[str, tuple[str, str]] = {
    "naive": (GREY, "dash"),
    "tile": ("#D55E00", "dashdot"),
    "dram": ("#0072B2", "longdash"),
    "compulsory": ("#009E73", "dot"),
}


def style_of(name: str) -> Style:
    """The style of a backend or `backend/variant`."""
    known = STYLES.get(name) or STYLES.get(name.partition("/")[0])
    return known or _OTHERS[crc32(name.encode()) % len(_OTHERS)]


def causal_style(style: Style) -> Style:
    """The style of the causal line beside the unmasked one of the same backend: paler, another marker."""
    red, green, blue = (int(style.colour[i : i + 2], 16) for i in (1, 3, 5))
    return Style(f"rgba({red}, {green}, {blue}, 0.62)", "triangle-right")


def safe(text: object) -> str:
    """Text for a chart: plotly reads a little HTML in names and hovers, so the marks are escaped."""
    return html.escape(str(text), quote=False)


UNDER_AXIS = 130  # pixels of `height`: a phone turns the ticks upright, and the axis' title moves down


def finish(fig: go.Figure, *, height: int, legend: Literal["above", "below"] = "above") -> go.Figure:
    """The layout every figure shares: height in pixels, margins, closest-point hover, and the legend.

    A legend of long names goes `below`: above, its second row would cover what is written over the panel.
    """
    above = legend == "above"
    place = {"yanchor": "bottom", "y": 1.02} if above else {"yanchor": "top", "y": -UNDER_AXIS / height}
    fig.update_layout(
        height=height,
        margin={"t": 56 if above else 30, "r": 16, "b": 8, "l": 8},
        showlegend=True,
        legend={"orientation": "h", "xanchor": "left", "x": 0, **place},
        separators=f".{units.GROUP}",  # as `units` writes numbers
        hovermode="closest",
        hoverlabel={"align": "left"},
    )
    return fig


def seq_len_axis(
    seq_lens: Iterable[int], *, log: bool = True, title: str = SEQUENCE.axis, most: int = 14
) -> dict[str, Any]:
    """The N axis: ticks at measured lengths, never between them, and at most about `most` of them.

    `title` is that of what runs along it (`analysis.operations.Along`), or empty.
    """
    ns = sorted({int(n) for n in seq_lens if n > 0})
    ticks = _thinned(ns, log=log, most=most)
    axis: dict[str, Any] = {
        "title": {"text": title},
        "tickvals": ticks,
        "ticktext": [units.count_text(n) for n in ticks],
        "automargin": True,
        "autotickangles": [0, 90],  # aslant, the last would pass the chart's edge and be left out
        "zeroline": False,
    }
    if not log:
        return axis | {"type": "linear", "range": [0, max(ns, default=1) * 1.05]}
    low, high = math.log10(min(ns, default=1)), math.log10(max(ns, default=10))
    return axis | {"type": "log", "range": [low - MIN_GAP, high + MIN_GAP]}


def _thinned(ns: Sequence[int], *, log: bool, most: int) -> list[int]:
    """Keep ticks 1/most of the axis apart, from the longest down: the end of the axis matters most."""
    if len(ns) < 3:
        return list(ns)
    place = [math.log10(n) if log else float(n) for n in ns]
    least = (place[-1] - place[0]) / most
    kept: list[int] = []
    last = math.inf
    for n, x in zip(reversed(ns), reversed(place), strict=True):
        if last - x >= least:
            kept.append(n)
            last = x
    return kept[::-1]


def log_range(values: Iterable[float | None]) -> list[float]:
    """The range of a log axis, in decades, that holds every value > 0."""
    logs = [math.log10(v) for v in values if v is not None and v > 0 and math.isfinite(v)]
    low, high = (min(logs), max(logs)) if logs else (0.0, 1.0)
    gap = max(MIN_GAP, 0.05 * (high - low))
    return [low - gap, high + gap]


def bytes_axis(value_range: Sequence[float], title: str, *, log: bool, moved: bool = False) -> dict[str, Any]:
    """An axis of bytes over a range as `value_range` gives it.

    Memory has binary units and ticks at powers of two; bytes that are `moved` decimal ones, as bandwidths.
    """
    low, high = value_range
    if not log:
        ticks = _even_ticks(high, binary=not moved)
    elif moved:
        ticks = [10.0**p for p in range(math.ceil(low), math.floor(high) + 1)]
    else:
        ticks = _powers_of_two(low, high)
    return {
        "type": "log" if log else "linear",
        "range": list(value_range),
        "title": {"text": safe(title)},
        "tickvals": ticks,
        "ticktext": [units.traffic_text(tick) if moved else units.bytes_text(tick) for tick in ticks],
        "zeroline": False,
    }


def _even_ticks(highest: float, *, binary: bool) -> list[float]:
    """From 0 in even steps, at most nine ticks: a step is a power of two, or 1, 2 or 5 times one of ten."""
    least = max(highest, 1) / 8
    power = 10.0 ** math.floor(math.log10(least))
    decimal = next(m * power for m in (1, 2, 5, 10) if m * power >= least)
    step = 2.0 ** math.ceil(math.log2(least)) if binary else decimal
    return [k * step for k in range(math.floor(highest / step) + 1)]


def _powers_of_two(low: float, high: float) -> list[float]:
    """At most some nine between these decades."""
    first, last = (math.floor(decade / math.log10(2)) for decade in (low, high))
    step = max(1, math.ceil((last - first) / 8))
    return [2.0**p for p in range(math.ceil(first / step) * step, last + 1, step) if p >= 0]


def ratio_axis(values: Iterable[float | None], *, title: str) -> dict[str, Any]:
    """A log axis of ratios with ticks at 1, 2, 5 and their like; 1× is always inside."""
    decades = log_range([1.0, *values])
    ticks = [m * 10.0**p for p in range(-4, 6) for m in (1, 2, 5)]
    inside = [t for t in ticks if decades[0] <= math.log10(t) <= decades[1]]
    if len(inside) > 7:
        inside = [t for t in inside if round(math.log10(t), 6) == int(round(math.log10(t), 6))] or inside
    return ratio_ticks(decades, inside, title=title)


def ratio_ticks(decades: Sequence[float], ticks: Sequence[float], *, title: str) -> dict[str, Any]:
    """A log axis over `decades` (powers of ten, low and high) with these ratios written on it."""
    return {
        "type": "log",
        "range": decades,
        "title": {"text": title},
        "tickvals": ticks,
        "ticktext": [units.ratio_text(tick) for tick in ticks],
        "zeroline": False,
    }


def level_line(fig: go.Figure, y: float, text: str, *, log: bool = True, **place: Any) -> None:
    """A dotted horizontal line at `y`, its label at the left end; `place` is a panel's `row` and `col`."""
    fig.add_hline(y=y, line={"dash": "dot", "color": LINE, "width": 1.5}, **place)
    if text:
        fig.add_annotation(
            x=0,
            xref="x domain",
            xanchor="left",
            y=math.log10(y) if log else y,
            yanchor="bottom",
            text=safe(text),
            showarrow=False,
            font={"size": 12},
            **place,
        )


def seq_len_line(
    fig: go.Figure, n: float, text: str, *, log: bool = True, row: int | None = None, col: int | None = None
) -> None:
    """A dashed vertical line at N, its label above the panel.

    The label is an annotation of its own: a vline's would stretch a log axis to 10^N.
    """
    place = {} if row is None else {"row": row, "col": col}
    fig.add_vline(x=n, line={"dash": "dash", "color": LINE, "width": 1.5}, **place)
    if text:
        fig.add_annotation(
            x=math.log10(n) if log else n,
            y=1,
            yref="y domain",
            yanchor="bottom",
            text=safe(text),
            showarrow=False,
            font={"size": 12},
            **place,
        )


def value_range(values: Iterable[float | None], *, log: bool, room_above: float = 0.0) -> list[float]:
    """The range of a value axis as plotly takes it; `room_above` is the share of its height left free."""
    kept = [v for v in values if v is not None and math.isfinite(v)]
    if log:
        low, high = log_range(kept)
    else:
        low, high = 0.0, max([*kept, 0.0]) * 1.06 or 1.0
    return [low, high + room_above * (high - low)]


def value_axis(value_range: Sequence[float], title: str, *, log: bool) -> dict[str, Any]:
    """A plain value axis; a log axis has ticks at 1, 10, 100 if that gives enough, else at 1, 2, 5, 10.

    Where two of these are not on it, at every whole number, or tenth of one, of a power of ten.
    """
    axis: dict[str, Any] = {"title": {"text": safe(title)}, "range": list(value_range), "zeroline": False}
    if not log:
        return axis | {"type": "linear", "tickformat": ",.6~g"}  # no prefix: the title has the unit
    low, high = value_range
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks: list[float] = []
    for steps in (
        ((1,),) if high - low >= 1.5 else ((1, 2, 5), range(1, 10), [m / 10 for m in range(10, 100)])
    ):
        ticks = [float(f"{m}e{p}") for p in powers for m in steps]
        if sum(low <= math.log10(tick) <= high for tick in ticks) > 1:
            break
    return axis | {"type": "log", "tickvals": ticks, "ticktext": [units.number_text(t) for t in ticks]}
