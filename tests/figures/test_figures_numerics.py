"""Claims about the error charts: two panels, lines for limits, dtypes told apart, logits on a log axis."""

import math

import pytest

from profiling.figures import numerics, theme
from profiling.figures.series import Failure, Point, Series

ERRORS = Series("flash", (Point(64, 1e-3), Point(4096, 2e-3, details=("status <ok>",))))
RATIOS = Series("flash", (Point(64, 0.5), Point(4096, 1.2)))


def test_errors_above_and_ratios_below() -> None:
    """Both panels are log; the upper's axis names the metric, the lower holds 1×."""
    fig = numerics.figure(numerics.NumericsChart(numerics.REL_ERROR, (ERRORS,), (RATIOS,)))
    assert [list(t.y) for t in fig.data] == [[1e-3, 2e-3], [0.5, 1.2]]
    assert fig.data[1].yaxis == "y2"
    assert fig.layout.yaxis.type == fig.layout.yaxis2.type == fig.layout.xaxis.type == "log"
    assert "lower is better" in fig.layout.yaxis.title.text
    low, high = fig.layout.yaxis2.range
    assert low < 0 < high
    assert "status &lt;ok&gt;" in fig.data[0].hovertext[1]


def test_a_level_is_inside_the_axis() -> None:
    """A limit far below the data stretches the axis to it, and is labelled."""
    chart = numerics.NumericsChart(numerics.REL_ERROR, (ERRORS,), (RATIOS,), ((1e-6, "1e-6"),))
    fig = numerics.figure(chart)
    assert fig.layout.yaxis.range[0] < -6
    assert any(shape.y0 == 1e-6 for shape in fig.layout.shapes)
    assert "1e-6" in [a.text for a in fig.layout.annotations]


def test_what_failed_is_a_cross() -> None:
    """A case that did not run stands at the top with its status."""
    failing = ERRORS._replace(failures=(Failure(16384, "oom", "out of memory"),))
    fig = numerics.figure(numerics.NumericsChart(numerics.SHARE, (failing,), (RATIOS,)))
    cross = next(t for t in fig.data if t.mode == "markers+text")
    assert list(cross.text) == ["OOM"]


def test_dtypes_of_a_backend_differ_in_colour_and_marker() -> None:
    """The first has the backend's own style; further ones never look like it."""
    styles = [numerics.dtype_style("flash", number) for number in range(4)]
    assert styles[0] == theme.style_of("flash")
    assert len({style.symbol for style in styles[:3]}) == 3
    assert len({style.colour for style in styles[:3]}) == 3
    assert styles[3] == styles[2]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_logits_on_a_log_axis(count: int) -> None:
    """Scales are the ticks, inside the range; nothing at all is still a figure."""
    lines = (
        numerics.ScaleLine("naive", "bf16", ((1.0, 1e-3), (64.0, 3e-2))),
        numerics.ScaleLine("tiled", "fp32", ((1.0, 1e-7), (64.0, 2e-6))),
    )
    fig = numerics.scale_figure(lines[:count])
    assert [t.name for t in fig.data] == ["eager bf16", "tiled fp32"][:count]
    if count:
        assert list(fig.layout.xaxis.tickvals) == [1.0, 64.0]
        low, high = fig.layout.xaxis.range
        assert low < 0 < math.log10(64) < high
