"""What a line chart draws: `Series` of points along N, and the cases of it that did not run.

A chart's numbers arrive here as NamedTuples, ready; nothing is computed while drawing but positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from profiling.analysis.operations import SEQUENCE, Along
from profiling.figures import chosen, theme


class Metric(NamedTuple):
    """A quantity on a y axis: its label, unit (empty for a ratio), and which direction is better."""

    label: str
    unit: str
    better: str  # "lower" or "higher"
    digits: str = ",.6~g"  # d3 format of the exact value on hover

    @property
    def title(self) -> str:
        """The axis title, such as `Latency, median (ms), lower is better`."""
        return f"{self.label} ({self.unit}), {self.better} is better" if self.unit else self.label


LATENCY = Metric("Latency, median", "ms", "lower")
TFLOPS = Metric("Rate, paper convention", "TFLOP/s", "higher")
TIME_PER_TOKEN = Metric("Latency per query token", "ns", "lower")
TIME_PER_ROW = Metric("Latency per row", "ns", "lower")
PEAK_MEMORY = Metric("Peak memory", "bytes", "lower", ",d")
RETAINED_MEMORY = Metric("Retained after forward", "bytes", "lower", ",d")
TRAFFIC = Metric("Bytes moved", "bytes", "lower", ",d")


class Point(NamedTuple):
    """One value at N; `low` and `high` are its whisker (p20 and p80, or an interval), if there is one.

    `details` are plain-text lines for the hover: tile, clock, samples, flags. `key` is the label of the case
    behind it, if there is one.
    """

    seq_len: int
    value: float
    low: float | None = None
    high: float | None = None
    details: tuple[str, ...] = ()
    key: str = ""


class Failure(NamedTuple):
    """A case that gave no value at N: its status and the reason, both plain text; `key` as of `Point`."""

    seq_len: int
    status: str
    reason: str = ""
    key: str = ""


class Series(NamedTuple):
    """One line. `name` is the backend as written in a sweep, `label` what the legend says.

    `modelled` lines are dashed without markers; `summary` points (imported, without samples) are hollow,
    and not `joined` where each is of another shape. `style` replaces the backend's own where one chart
    draws the same backend twice. `along` is what N is: the series of a chart have it in common.
    """

    name: str
    points: tuple[Point, ...]
    failures: tuple[Failure, ...] = ()
    label: str = ""
    modelled: bool = False
    summary: bool = False
    style: theme.Style | None = None
    joined: bool = True
    along: Along = SEQUENCE

    @property
    def drawn_style(self) -> theme.Style:
        """Colour and symbol to draw with."""
        return self.style or theme.style_of(self.name)

    @property
    def shown_name(self) -> str:
        """The legend entry, escaped; a model says that it is one."""
        name = theme.safe(self.label or self.name)
        return f"{name} (modelled)" if self.modelled and "modelled" not in name else name


def along_of(series: Iterable[Series]) -> Along:
    """What the series of one chart run along."""
    return next((s.along for s in series), SEQUENCE)


def seq_lens(series: Iterable[Series]) -> list[int]:
    """All N of the series, failures included, ascending, each once."""
    return sorted({p.seq_len for s in series for p in (*s.points, *s.failures)})


def values(series: Iterable[Series]) -> list[float | None]:
    """All values and whisker ends, for an axis range."""
    return [v for s in series for p in s.points for v in (p.value, p.low, p.high)]


def trace(series: Series, metric: Metric, *, legend: bool = True, whiskers: bool = True) -> go.Scatter:
    """A series as a line, the points in ascending N; hovering shows the exact value."""
    points = sorted(series.points, key=lambda p: p.seq_len)
    style = series.drawn_style
    symbol = f"{style.symbol}-open" if series.summary else style.symbol
    unit = f" {metric.unit}" if metric.unit else "×"
    return go.Scatter(
        x=[p.seq_len for p in points],
        y=[p.value for p in points],
        name=series.shown_name,
        legendgroup=series.name,
        showlegend=legend,
        mode="lines" if series.modelled else "lines+markers" if series.joined else "markers",
        line={"color": style.colour, "width": 2, "dash": "dash" if series.modelled else "solid"},
        marker={
            "symbol": symbol,
            "size": 8,
            "color": style.colour,
            "line": {"width": 1.5 if series.summary else 0, "color": style.colour},
        },
        error_y=_whiskers(points) if whiskers and not series.modelled else None,
        customdata=chosen.carried([p.key for p in points]),
        hovertext=["".join(f"<br>{theme.safe(line)}" for line in p.details) for p in points],
        hovertemplate=(
            f"<b>{series.shown_name}</b><br>{series.along.of('%{x:,d}')}<br>%{{y:{metric.digits}}}{unit}"
            "%{hovertext}<extra></extra>"
        ),
    )


def _whiskers(points: Sequence[Point]) -> dict[str, Any] | None:
    """Asymmetric error bars from `low` and `high`; a point without them has none."""
    if all(p.low is None or p.high is None for p in points):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if p.high is None else max(0.0, p.high - p.value) for p in points],
        "arrayminus": [0.0 if p.low is None else max(0.0, p.value - p.low) for p in points],
        "thickness": 1.2,
        "width": 3,
    }


def failure_traces(
    series: Iterable[Series], decades: Sequence[float], *, log: bool = True
) -> list[go.Scatter]:
    """The failures as labelled crosses just under the top edge of a y axis with this range.

    `decades` is the axis' range as plotly takes it. Series that fail at the same N are set below one
    another, so that none hides another.
    """
    out = []
    step = (decades[1] - decades[0]) * 0.065
    failing = [s for s in series if s.failures]
    for rank, s in enumerate(failing):
        y = decades[1] - step * (0.55 + rank)
        style = s.drawn_style
        out.append(
            go.Scatter(
                x=[f.seq_len for f in s.failures],
                y=[10**y if log else y] * len(s.failures),
                name=s.shown_name,
                legendgroup=s.name,
                showlegend=not s.points,
                mode="markers+text",
                marker={"symbol": "x", "size": 9, "color": style.colour},
                text=[theme.safe(status_word(f.status)) for f in s.failures],
                textposition="middle left",
                textfont={"size": 11, "color": style.colour},
                cliponaxis=False,
                customdata=chosen.carried([f.key for f in s.failures]),
                hovertext=[
                    f"<b>{s.shown_name}</b><br>{s.along.at(f.seq_len)}<br>{_failure_text(f)}"
                    for f in s.failures
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    return out


def failure_room(series: Iterable[Series]) -> float:
    """The share of the axis' decades to leave free above the data for `failure_traces`."""
    return 0.075 * sum(1 for s in series if s.failures)


def status_word(status: str) -> str:
    """A status as a label: `oom` is `OOM`, the others are themselves."""
    return "OOM" if status == "oom" else status


def _failure_text(failure: Failure) -> str:
    """Status and reason as two lines of a hover."""
    text = f"did not run: {theme.safe(status_word(failure.status))}"
    return f"{text}<br>{theme.safe(_shortened(failure.reason))}" if failure.reason else text


def _shortened(text: str, length: int = 140) -> str:
    """A long reason cut to what a hover can show."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
