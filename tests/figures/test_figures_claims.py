"""The small chart beside a claim: its axes, and that models are dashed."""

from __future__ import annotations

from profiling.figures.claims import MOST_TICKS, ClaimChart, figure
from profiling.figures.series import Metric, Point, Series


def chart(unit: str, *values: float) -> ClaimChart:
    """A measured line along N = 64, 128, ..., and a modelled one of half of it."""
    points = [Point(64 * 2**i, value) for i, value in enumerate(values)]
    halves = tuple(p._replace(value=p.value / 2) for p in points)
    lines = (Series("flash", tuple(points)), Series("tile", halves, modelled=True))
    return ClaimChart(Metric("What is shown", unit, "lower"), lines)


def test_bytes_held_are_binary_and_bytes_moved_decimal() -> None:
    """MiB for memory, MB for traffic; both axes are logarithmic and named."""
    held, moved = figure(chart("bytes", 2**20, 2**30)), figure(chart("bytes moved", 10**6, 10**9))
    assert all("iB" in text or text.endswith(" B") for text in held.layout.yaxis.ticktext)
    assert not any("iB" in text for text in moved.layout.yaxis.ticktext)
    for fig in (held, moved):
        assert fig.layout.yaxis.type == fig.layout.xaxis.type == "log"
        assert fig.layout.yaxis.title.text == "What is shown"


def test_an_error_over_many_decades_has_few_ticks() -> None:
    """From 1e-16 to 1 the axis stays readable."""
    fig = figure(chart("", 1e-16, 1e-8, 1.0))
    assert 3 <= len(fig.layout.yaxis.tickvals) <= MOST_TICKS


def test_a_model_is_dashed_and_a_measurement_solid() -> None:
    """Lines say which they are."""
    measured, modelled = figure(chart("", 1.0, 2.0)).data
    assert (measured.line.dash, modelled.line.dash) == ("solid", "dash")
    assert "modelled" in modelled.name
