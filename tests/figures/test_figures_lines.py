"""Claims about the line charts: latency, memory, crossover, speed-up and traffic."""

import math

import plotly.graph_objects as go
import pytest

from profiling.figures import crossover, latency, memory, speedup, theme, traffic
from profiling.figures.series import (
    LATENCY,
    PEAK_MEMORY,
    TFLOPS,
    Failure,
    Point,
    Series,
    failure_traces,
    trace,
)

NAIVE = Series(
    "naive",
    (Point(1024, 2.0, 1.9, 2.2), Point(64, 0.5, 0.4, 0.6), Point(256, 0.7, 0.7, 0.7)),
    (Failure(4096, "oom", "CUDA out of memory"),),
)
FLASH = Series(
    "flash", tuple(Point(n, 0.1 * i, details=("<script>",)) for i, n in enumerate((64, 256, 1024, 4096), 1))
)


def named(fig: go.Figure, name: str) -> go.Scatter:
    """The first trace of that name."""
    return next(t for t in fig.data if t.name == name)


def test_points_are_drawn_in_order_of_length() -> None:
    """A file in any order gives a line without zigzag, on a numeric axis."""
    line = trace(NAIVE, LATENCY)
    assert list(line.x) == [64, 256, 1024]
    assert list(line.y) == [0.5, 0.7, 2.0]


def test_whiskers_reach_from_p20_to_p80() -> None:
    """Error bars are distances from the median; a point without a spread has none."""
    line = trace(NAIVE, LATENCY)
    assert list(line.error_y.array) == pytest.approx([0.1, 0.0, 0.2])
    assert list(line.error_y.arrayminus) == pytest.approx([0.1, 0.0, 0.1])
    assert trace(FLASH, LATENCY).error_y.array is None


def test_a_model_cannot_pass_for_a_measurement() -> None:
    """Modelled: dashed, no markers, and the legend says so. Measured: solid with markers."""
    model = trace(FLASH._replace(modelled=True, label="law"), PEAK_MEMORY)
    assert (model.mode, model.line.dash, model.name) == ("lines", "dash", "law (modelled)")
    line = trace(FLASH, PEAK_MEMORY)
    assert (line.mode, line.line.dash) == ("lines+markers", "solid")
    assert trace(FLASH._replace(summary=True), LATENCY).marker.symbol == "square-open"


def test_hover_shows_the_exact_value_and_escapes_details() -> None:
    """The hover has the value with its unit; details from a file are text, not markup."""
    line = trace(FLASH, LATENCY)
    assert "%{y:,.6~g} ms" in line.hovertemplate
    assert line.hovertext[0] == "<br>&lt;script&gt;"


def test_failures_stand_under_the_top_edge_one_above_the_other() -> None:
    """Every failed case has a labelled cross inside the axis, and two series' crosses do not overlap."""
    other = Series("tiled", (), (Failure(4096, "timeout", "longer than 120 s"),))
    crosses = failure_traces([NAIVE, FLASH, other], [-1.0, 1.0])
    assert [list(c.text) for c in crosses] == [["OOM"], ["timeout"]]
    heights = [math.log10(c.y[0]) for c in crosses]
    assert all(-1.0 < h < 1.0 for h in heights)
    assert heights[0] - heights[1] > 0.05
    assert "longer than 120 s" in crosses[1].hovertext[0]
    assert crosses[1].showlegend  # a backend with nothing but failures is still in the legend
    assert not crosses[0].showlegend


def chart(**changes: object) -> latency.LatencyChart:
    """A latency chart of the two series."""
    ratio = Series("flash", (Point(64, 5.0), Point(1024, 0.8)))
    return latency.LatencyChart(LATENCY, (NAIVE, FLASH), (ratio,), "naive")._replace(**changes)


def test_latency_has_the_ratio_under_it_on_the_same_axis() -> None:
    """Two panels share the N axis, both log; the lower one has the 1× line and names the baseline."""
    fig = latency.figure(chart())
    assert fig.layout.xaxis.matches == "x2"
    assert fig.layout.xaxis2.range == fig.layout.xaxis.range
    assert (fig.layout.yaxis.type, fig.layout.yaxis2.type) == ("log", "log")
    assert fig.layout.yaxis.title.text == "Latency, median (ms), lower is better"
    assert fig.layout.yaxis2.title.text == "Speed-up over naive"
    assert any(s.yref == "y2" and s.y0 == 1.0 for s in fig.layout.shapes)


def test_latency_keeps_everything_inside_the_axis() -> None:
    """Whisker ends, crosses and the peak line lie within the y range."""
    fig = latency.figure(chart(metric=TFLOPS, peak=989.0, peak_label="H200 bf16 peak 989 TFLOP/s"))
    low, high = fig.layout.yaxis.range
    values = [y for t in fig.data if t.yaxis in (None, "y") for y in t.y]
    assert all(low < math.log10(y) < high for y in [*values, 989.0, 0.4, 2.2])
    assert any(a.text == "H200 bf16 peak 989 TFLOP/s" for a in fig.layout.annotations)


def test_latency_on_linear_axes_starts_at_zero() -> None:
    """Without the log both axes begin at 0, where a linear scale is honest."""
    fig = latency.figure(chart(log=False))
    assert (fig.layout.xaxis.type, fig.layout.yaxis.type) == ("linear", "linear")
    assert fig.layout.yaxis.range[0] == 0


def test_latency_of_failures_alone_still_draws() -> None:
    """A slice where nothing ran shows its crosses, and no exception."""
    only = Series("naive", (), (Failure(64, "crashed", "illegal memory access"),))
    fig = latency.figure(chart(series=(only,), ratios=()))
    assert [list(t.text) for t in fig.data] == [["crashed"]]


def test_memory_shows_law_capacity_and_binary_units() -> None:
    """The law is dashed, the capacity a labelled line inside the axis, ticks are MiB and GiB."""
    series = Series("naive", (Point(64, 2.0**20), Point(4096, 2.0**34)), (Failure(16384, "oom"),))
    law = Series("naive", (Point(64, 2.0**20), Point(16384, 2.0**38)), label="naive law", modelled=True)
    label = memory.capacity_label("NVIDIA H200", 150_754_820_096)
    fig = memory.figure(memory.MemoryChart(PEAK_MEMORY, (series,), (law,), 150_754_820_096, label))
    assert named(fig, "naive law (modelled)").line.dash == "dash"
    assert any(a.text == "NVIDIA H200 has 140 GiB" for a in fig.layout.annotations)
    low, high = fig.layout.yaxis.range
    assert low < math.log10(150_754_820_096) < high
    assert any(t.endswith("GiB") for t in fig.layout.yaxis.ticktext)


def test_crossover_marks_n_star_and_shades_bracket_and_interval() -> None:
    """N* is a labelled line at log10(N*); bracket and interval are shaded in both panels."""
    ratio = Series("flash", (Point(256, 0.8, 0.7, 0.9), Point(1024, 1.5, 1.4, 1.6)))
    fig = crossover.figure(
        crossover.CrossoverChart(
            LATENCY, (NAIVE, FLASH), ratio, "Speed-up", ((256, 1024),), 512.4, (448.0, 590.2)
        )
    )
    label = next(a for a in fig.layout.annotations if "N*" in a.text)
    assert label.text == "N* = 512 [448, 590]"
    assert label.x == pytest.approx(math.log10(512.4))
    spans = [(s.x0, s.x1) for s in fig.layout.shapes if s.type == "rect"]
    assert spans.count((256, 1024)) == 2
    assert spans.count((448.0, 590.2)) == 2
    assert all(abs(v) < 6 for v in fig.layout.xaxis.range)


def test_crossover_without_crossing_has_no_line() -> None:
    """A verdict of always draws both curves and the ratio, and marks nothing."""
    ratio = Series("flash", (Point(64, 5.0), Point(1024, 20.0)))
    fig = crossover.figure(crossover.CrossoverChart(LATENCY, (NAIVE, FLASH), ratio, "Speed-up"))
    assert not any(s.type == "rect" for s in fig.layout.shapes)
    assert not any("N*" in a.text for a in fig.layout.annotations)


def test_speedup_panels_share_one_range_and_shade_losses() -> None:
    """All panels compare: same y range, a shade below 1×, one legend entry per mask."""
    panels = tuple(
        speedup.Panel(
            "fwd", f"d = {d}", (Series("flash", (Point(64, 0.5), Point(1024, high)), label="no mask"),)
        )
        for d, high in ((64, 4.0), (128, 40.0))
    )
    fig = speedup.figure(speedup.SpeedupChart(panels, "naive / flash"))
    assert fig.layout.yaxis.range == fig.layout.yaxis2.range
    shades = [s for s in fig.layout.shapes if s.type == "rect"]
    assert [(s.y1, s.fillcolor) for s in shades] == [(1.0, theme.LOSS)] * 2
    assert [t.showlegend for t in fig.data] == [True, False]
    titles = ["fwd · d = 64", "fwd · d = 128", "Sequence length N (tokens)"]
    assert [a.text for a in fig.layout.annotations] == titles


def test_speedup_without_panels_is_an_empty_chart() -> None:
    """No panel is no exception."""
    assert len(speedup.figure(speedup.SpeedupChart((), "naive / flash")).data) == 0


def test_traffic_draws_models_dashed_and_counters_as_points() -> None:
    """The four series are dashed lines that say modelled, counters are markers that say measured."""
    models = tuple(traffic.Modelled(role, role, ((64, 10.0), (128, 40.0))) for role in theme.MODEL_STYLES)
    counted = traffic.Counted("flash", "Triton forward", "DRAM", (Point(128, 20.0),))
    fig = traffic.figure(traffic.TrafficChart(models, (counted,), at=128))
    lines = [t for t in fig.data if t.mode == "lines"]
    assert all(t.line.dash != "solid" and t.name.endswith("(modelled)") for t in lines)
    assert len({t.line.dash for t in lines}) == 4
    points = [t for t in fig.data if t.mode == "markers"]
    assert [t.name for t in points] == ["Triton forward, DRAM counters (measured)"]


def test_cache_chart_shades_from_where_kv_outgrows_the_cache() -> None:
    """The shade begins at the N given, and both sizes of the cache are lines."""
    points = tuple((n, n * 512.0) for n in (1024, 65536, 131072))
    fig = traffic.cache_figure(
        traffic.CacheChart(points, "K and V", 62914560, 25165824, "H200", outgrown_from=49152, at=8192)
    )
    shade = next(s for s in fig.layout.shapes if s.type == "rect")
    assert (shade.x0, shade.x1) == (49152, 131072)
    assert {s.y0 for s in fig.layout.shapes if s.type == "line"} >= {62914560, 25165824}
