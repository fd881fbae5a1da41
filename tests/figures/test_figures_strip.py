"""Claims about the strip plot of raw samples, and about points that can be picked."""

import itertools

import plotly.graph_objects as go
import pytest

from profiling.figures import chosen, latency, strip
from profiling.figures.series import LATENCY, Failure, Point, Series

DOTS = tuple(
    strip.Dot(p, r, 0, 0.02 + 0.001 * p + 0.0001 * r) for p, r in itertools.product((0, 2), range(4))
)


def chart(dots: tuple[strip.Dot, ...] = DOTS) -> strip.StripChart:
    """A chart of these samples."""
    return strip.StripChart("flash", "device", dots, 0.0201, 0.0215, 0.0223)


def test_each_process_has_a_strip_and_each_sample_its_place_in_time() -> None:
    """Two processes stand apart; within one, samples go from left to right as they were taken."""
    fig = strip.figure(chart())
    (dots,) = fig.data
    assert list(fig.layout.xaxis.ticktext) == ["process 0", "process 2"]
    for place, xs in ((0, dots.x[:4]), (1, dots.x[4:])):
        assert list(xs) == sorted(xs)
        assert all(abs(x - place) < 0.5 for x in xs)


@pytest.mark.parametrize(("ms", "unit", "shown"), [(3e-4, "ns", 300), (0.02, "µs", 20), (5.0, "ms", 5)])
def test_the_axis_has_the_unit_that_fits(ms: float, unit: str, shown: float) -> None:
    """Latencies are shown in the unit that a person would choose, and no digit is lost on hover."""
    fig = strip.figure(strip.StripChart("flash", "wall", (strip.Dot(0, 0, 0, ms),), ms, ms, ms))
    assert fig.layout.yaxis.title.text == f"Latency, wall clock ({unit})"
    assert fig.data[0].y[0] == pytest.approx(shown)
    assert fig.layout.shapes[-1].y0 == pytest.approx(shown)


def test_no_more_samples_than_can_be_seen_are_sent() -> None:
    """Of very many samples the fastest and the slowest are among those that are drawn."""
    many = tuple(strip.Dot(i % 3, i, 0, 1.0 + (i * 7919 % 10007) / 1e4) for i in range(10007))
    kept = strip.thinned(many)
    assert len(kept) == strip.MOST
    assert {min(d.ms for d in many), max(d.ms for d in many)} <= {d.ms for d in kept}
    assert strip.thinned(DOTS) == list(DOTS)
    assert len(strip.figure(chart(many)).data[0].x) == strip.MOST


def _fig() -> go.Figure:
    naive = Series(
        "naive",
        (Point(64, 2.0, key="n64"), Point(256, 4.0, key="n256")),
        (Failure(1024, "oom", key="n1024"),),
    )
    flash = Series("flash", (Point(64, 1.0, key="f64"),))
    law = Series("law", (Point(64, 1.0),), modelled=True)
    ratio = Series("flash", (Point(64, 2.0, key="f64"),))
    return latency.figure(latency.LatencyChart(LATENCY, (naive, flash, law), (ratio,), "naive"))


def test_points_and_failures_carry_their_case_and_a_model_none() -> None:
    """What was measured can be picked, what did not run too; a law cannot."""
    fig = _fig()
    assert chosen.keys_of(fig) == ["n64", "n256", "f64", "n1024"]
    assert all(trace.customdata is None for trace in fig.data if trace.name and "law" in trace.name)


def test_a_ring_is_drawn_in_every_panel_that_has_the_case() -> None:
    """The call and its ratio are ringed, each on its own axes; an unknown case changes nothing."""
    fig = _fig()
    before = len(fig.data)
    chosen.ring(fig, "nobody")
    assert len(fig.data) == before
    chosen.ring(fig, "f64")
    rings = fig.data[before:]
    assert [(r.xaxis, r.yaxis, list(r.x), list(r.y)) for r in rings] == [
        ("x", "y", [64], [1.0]),
        ("x2", "y2", [64], [2.0]),
    ]
    assert all(r.hoverinfo == "skip" and not r.showlegend for r in rings)
