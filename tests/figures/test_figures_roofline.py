"""Claims about the roofline chart."""

import math
from itertools import pairwise

import pytest

from profiling.figures.roofline import Roofline, RooflineChart, Spot, Track, figure

CEILINGS = (
    Roofline("tensor", "tensor 989 TFLOP/s (catalogue)", 989.0, sloped=False, measured=False),
    Roofline("tensor", "tensor 800 TFLOP/s (measured)", 800.0, sloped=False, measured=True),
    Roofline("exp", "exp 2 140 TFLOP/s (catalogue)", 2140.0, sloped=False, measured=False),
    Roofline("dram", "DRAM 4.8 TB/s", 4.8, sloped=True, measured=False),
    Roofline("dram", "DRAM 4.2 TB/s, measured", 4.2, sloped=True, measured=True),
)
NAIVE = Track("naive", (Spot(8192, 62.0, 103.0, True), Spot(1024, 65.0, 130.0, False, ("<script>",))))
FLASH = Track("flash", (Spot(1024, 512.0, 351.0, False), Spot(8192, 4000.0, 518.0, False)))


def drawn(**changes):
    """The figure of both tracks, and its traces by name (of two with one name the last)."""
    chart = RooflineChart((NAIVE, FLASH), CEILINGS, "DRAM")._replace(**changes)
    fig = figure(chart)
    return fig, {trace.name: trace for trace in fig.data}


def test_measured_ceilings_are_solid_and_those_of_the_catalogue_dashed():
    """One look tells what was seen from what a vendor says; each is named on the chart or on hover."""
    fig, by_name = drawn()
    for ceiling in CEILINGS:
        trace = by_name[ceiling.label]
        assert trace.line.dash == ("solid" if ceiling.measured else "dash")
        assert ceiling.label in trace.hovertemplate
    notes = [note.text for note in fig.layout.annotations]
    assert notes == ["tensor 989", "tensor 800, measured", "exp 2\u00a0140", "DRAM 4.8 TB/s"]


def test_memory_rises_to_the_lowest_level_ceiling():
    """A rising one is bandwidth times FLOPs a byte, and ends where the tensor cores take over."""
    _, by_name = drawn()
    line = by_name["DRAM 4.8 TB/s"]
    assert list(line.y) == pytest.approx([4.8 * x for x in line.x])
    assert line.y[1] == pytest.approx(989.0)
    assert list(by_name["tensor 989 TFLOP/s (catalogue)"].y) == [989.0, 989.0]


def test_open_markers_are_modelled_bytes():
    """Counted bytes have filled markers; a line with any modelled ones is dashed; points go by N."""
    _, by_name = drawn()
    assert list(by_name["naive"].marker.symbol) == ["circle-open", "circle"]
    assert list(by_name["naive"].x) == [65.0, 62.0]
    assert by_name["naive"].line.dash == "dash"
    assert by_name["naive"].hovertext[0] == "<br>&lt;script&gt;"
    counted = Track("flash", tuple(spot._replace(counted=True) for spot in FLASH.spots))
    assert drawn(tracks=(counted,))[1]["flash"].line.dash == "solid"


def test_the_chosen_call_has_a_ring():
    """Around the point that the sentence speaks of; none where it is not on the chart."""
    _, by_name = drawn(chosen=("flash", 8192))
    ring = by_name["the call explained above"]
    assert (ring.x, ring.y) == ((4000.0,), (518.0,))
    assert "the call explained above" not in drawn(chosen=("flash", 64))[1]


def test_everything_is_inside_the_axes():
    """Points, ceilings and where they meet; the launch's ceiling is dotted."""
    fig, by_name = drawn(launch=((512.0, 600.0), (600.0, 900.0)), launch_label="launch of flash")
    (x0, x1), (y0, y1) = fig.layout.xaxis.range, fig.layout.yaxis.range
    for trace in fig.data:
        assert all(x0 - 1e-9 <= math.log10(x) <= x1 + 1e-9 for x in trace.x), trace.name
        assert all(y0 <= math.log10(y) <= y1 for y in trace.y), trace.name
    assert by_name["launch of flash"].line.dash == "dot"
    assert all(a < b for a, b in pairwise(by_name["launch of flash"].y))


def test_without_ceilings_there_are_points():
    """A device of which nothing is known still has its measured rates."""
    fig, by_name = drawn(ceilings=())
    assert set(by_name) == {"naive", "flash"}
    assert not fig.layout.annotations


def test_on_linear_axes_both_begin_at_zero_and_names_stay_on_their_lines():
    """Everything is inside, a rising ceiling goes through 0, and no name is placed at a logarithm."""
    fig, by_name = drawn(log=False)
    (x0, x1), (y0, y1) = fig.layout.xaxis.range, fig.layout.yaxis.range
    assert (fig.layout.xaxis.type, fig.layout.yaxis.type, x0, y0) == ("linear", "linear", 0, 0)
    for trace in fig.data:
        assert all(x0 <= x <= x1 for x in trace.x), trace.name
        assert all(y0 <= y <= y1 for y in trace.y), trace.name
    assert (by_name["DRAM 4.8 TB/s"].x[0], by_name["DRAM 4.8 TB/s"].y[0]) == (0, 0)
    at = {note.text: (note.x, note.y) for note in fig.layout.annotations}
    assert at["tensor 989"] == (0, 989.0)
    x, y = at["DRAM 4.8 TB/s"]
    assert y == pytest.approx(4.8 * x)
    assert 0 < y < 989
