"""Rates against FLOPs a byte, under the ceilings of the device."""

from __future__ import annotations

import math
from typing import NamedTuple

import plotly.graph_objects as go

from profiling import units
from profiling.figures import chosen, theme

CEILING_COLOURS: dict[str, str] = {
    "tensor": "#D55E00",
    "exp": "#CC79A7",
    "l2": "#009E73",
    "dram": "#009E73",  # of the two levels one is drawn
    "launch": theme.LINE,
}

SLOPE_NAME_AT = 0.5  # of a rising ceiling's way up


class Spot(NamedTuple):
    """One call: FLOPs a byte, its rate in TFLOP/s, and whether the bytes were counted or modelled.

    `details` are plain-text lines for the hover, `key` is the label of the case.
    """

    seq_len: int
    intensity: float
    tflops: float
    counted: bool
    details: tuple[str, ...] = ()
    key: str = ""


class Track(NamedTuple):
    """The calls of a backend, joined along N."""

    name: str
    spots: tuple[Spot, ...]


class Roofline(NamedTuple):
    """A ceiling: level at `rate` TFLOP/s, or rising, with `rate` TFLOP/s at one FLOP a byte."""

    name: str
    label: str
    rate: float
    sloped: bool
    measured: bool

    def at(self, intensity: float) -> float:
        """Its height in TFLOP/s."""
        return self.rate * intensity if self.sloped else self.rate


class RooflineChart(NamedTuple):
    """`level` is the memory whose bytes are meant; `chosen` a backend and N to ring.

    `launch` is the ceiling of the chosen backend's calls that the launch alone sets, at their intensities.
    """

    tracks: tuple[Track, ...]
    ceilings: tuple[Roofline, ...]
    level: str
    chosen: tuple[str, int] | None = None
    launch: tuple[tuple[float, float], ...] = ()
    launch_label: str = ""
    log: bool = True


def figure(chart: RooflineChart) -> go.Figure:
    """Ceilings of the catalogue are dashed, measured ones solid; open markers: modelled bytes."""
    fig = go.Figure()
    log = chart.log
    left, right = _span(chart)
    for ceiling in chart.ceilings:
        fig.add_trace(_ceiling_trace(ceiling, chart.ceilings, left, right))
    if chart.launch:
        fig.add_trace(_launch_trace(chart))
    for track in chart.tracks:
        fig.add_trace(_track_trace(track))
    ring = _ring(chart)
    if ring is not None:
        fig.add_trace(ring)
    heights = [spot.tflops for track in chart.tracks for spot in track.spots]
    tops = [ceiling.rate for ceiling in chart.ceilings if not ceiling.sloped]
    starts = [ceiling.at(left) for ceiling in chart.ceilings if ceiling.sloped]
    limits = theme.value_range([*heights, *tops, *starts], log=log, room_above=0.04)
    _name_ceilings(fig, chart.ceilings, left, right, log=log)
    span = [math.log10(left), math.log10(right)] if log else [left, right]
    fig.update_xaxes(theme.value_axis(span, f"FLOPs a byte through the {chart.level}", log=log))
    fig.update_yaxes(theme.value_axis(limits, "Rate, exact count (TFLOP/s), higher is better", log=log))
    return theme.finish(fig, height=560, legend="below")


def _span(chart: RooflineChart) -> tuple[float, float]:
    """The ends of the x axis: all points, and where the rising ceilings meet the lowest level one.

    A linear axis begins at 0, where a rising ceiling does.
    """
    xs = [spot.intensity for track in chart.tracks for spot in track.spots]
    lowest = _lowest(chart.ceilings)
    xs += [lowest / c.rate for c in chart.ceilings if c.sloped and lowest is not None]
    low, high = theme.value_range(xs, log=chart.log)
    return (10**low, 10 ** (high + 0.1)) if chart.log else (low, high)


def _lowest(ceilings: tuple[Roofline, ...]) -> float | None:
    """The lowest level ceiling of the catalogue: above it no rising one matters."""
    return min((c.rate for c in ceilings if not c.sloped and not c.measured), default=None)


def _ceiling_trace(ceiling: Roofline, others: tuple[Roofline, ...], left: float, right: float) -> go.Scatter:
    """A level one over the whole width; a rising one until it meets the lowest of the level ones."""
    lowest = _lowest(others)
    end = right if not ceiling.sloped or lowest is None else min(right, lowest / ceiling.rate)
    name = theme.safe(ceiling.label)
    return go.Scatter(
        x=[left, end],
        y=[ceiling.at(left), ceiling.at(end)],
        name=name,
        showlegend=False,  # named where they are drawn
        mode="lines",
        line={
            "color": CEILING_COLOURS[ceiling.name],
            "width": 2,
            "dash": "solid" if ceiling.measured else "dash",
        },
        hovertemplate=f"{name}<extra></extra>",
    )


def _name_ceilings(
    fig: go.Figure, ceilings: tuple[Roofline, ...], left: float, right: float, *, log: bool
) -> None:
    """Level ceilings are named where points are rare: at the left, and the exponentials' in the middle.

    Of the rising ones that of the catalogue is named, on the right of its middle.
    """
    lowest = _lowest(ceilings)
    for c in ceilings:
        if c.sloped:
            end = right if lowest is None else min(right, lowest / c.rate)
            if not c.measured:
                x = _between(left, end, SLOPE_NAME_AT, log=log)
                _note(fig, x, c.at(x), c.label, "left", "top", log=log)
            continue
        text = f"{c.name} {units.number_text(c.rate)}{', measured' if c.measured else ''}"
        if c.name == "exp":
            _note(fig, _between(left, right, 0.5, log=log), c.rate, text, "center", "bottom", log=log)
        else:
            _note(fig, left, c.rate, text, "left", "top" if c.measured else "bottom", log=log)


def _between(low: float, high: float, share: float, *, log: bool) -> float:
    """The place at this share of the way from `low` to `high`, as the axis shows it."""
    return low ** (1 - share) * high**share if log else low + share * (high - low)


def _note(fig: go.Figure, x: float, y: float, text: str, xanchor: str, yanchor: str, *, log: bool) -> None:
    fig.add_annotation(
        x=math.log10(x) if log else x,
        y=math.log10(y) if log else y,
        xanchor=xanchor,
        yanchor=yanchor,
        text=theme.safe(text),
        showarrow=False,
        font={"size": 12},
    )


def _launch_trace(chart: RooflineChart) -> go.Scatter:
    name = theme.safe(chart.launch_label)
    return go.Scatter(
        x=[x for x, _ in chart.launch],
        y=[y for _, y in chart.launch],
        name=name,
        mode="lines",
        line={"color": CEILING_COLOURS["launch"], "width": 1.5, "dash": "dot"},
        hovertemplate=f"{name}<br>%{{y:,.4~g}} TFLOP/s<extra></extra>",
    )


def _track_trace(track: Track) -> go.Scatter:
    spots = sorted(track.spots, key=lambda spot: spot.seq_len)
    style = theme.style_of(track.name)
    counted = all(spot.counted for spot in spots)
    name = theme.safe(track.name)
    return go.Scatter(
        x=[spot.intensity for spot in spots],
        y=[spot.tflops for spot in spots],
        name=name,
        mode="lines+markers",
        line={"color": style.colour, "width": 1.5, "dash": "solid" if counted else "dash"},
        marker={
            "symbol": [style.symbol if spot.counted else f"{style.symbol}-open" for spot in spots],
            "size": 9,
            "color": style.colour,
            "line": {"width": 1.5, "color": style.colour},
        },
        hovertext=["".join(f"<br>{theme.safe(line)}" for line in spot.details) for spot in spots],
        customdata=chosen.carried([spot.key for spot in spots]),
        text=[units.count_text(spot.seq_len) for spot in spots],
        hovertemplate=(
            f"<b>{name}</b><br>N = %{{text}}<br>%{{y:,.4~g}} TFLOP/s at %{{x:,.4~g}} FLOPs a byte"
            "%{hovertext}<extra></extra>"
        ),
    )


def _ring(chart: RooflineChart) -> go.Scatter | None:
    """A ring around the chosen call, if it is on the chart."""
    for track in chart.tracks:
        for spot in track.spots:
            if (track.name, spot.seq_len) == chart.chosen:
                return go.Scatter(
                    x=[spot.intensity],
                    y=[spot.tflops],
                    name="the call explained above",
                    mode="markers",
                    marker={"symbol": "circle-open", "size": 20, "color": theme.LINE, "line": {"width": 2.5}},
                    hoverinfo="skip",
                )
    return None
