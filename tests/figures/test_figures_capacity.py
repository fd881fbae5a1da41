"""The stacked bars of memory: heights, lines within reach, round ticks."""

from __future__ import annotations

import pytest

from profiling.figures.capacity import BEYOND, Bar, CapacityChart, figure, ticks_to

GIB = 2**30


def test_a_bar_is_the_sum_of_its_tensors_in_order() -> None:
    """A trace a kind, in the given order, with a value for each bar; kinds that hold nothing are left out."""
    bars = (Bar("naive", {"S": 3 * GIB, "O": GIB}), Bar("flash", {"O": GIB}))
    fig = figure(CapacityChart(bars, ("S", "none", "O"), ()))
    assert [(trace.name, list(trace.x)) for trace in fig.data] == [("S", [3 * GIB, 0]), ("O", [GIB, GIB])]
    assert fig.layout.barmode == "stack"
    assert [bar.total for bar in bars] == [4 * GIB, GIB]
    assert fig.layout.xaxis.range[1] == BEYOND * 4 * GIB


def test_lines_beyond_the_axis_are_left_out_and_labels_do_not_overlap() -> None:
    """Of 1, 4 and 100 GiB the axis of a 4 GiB bar has two; of two that are near one has a label."""
    bar = Bar("naive", {"S": 4 * GIB})
    near = GIB + GIB // 100
    fig = figure(CapacityChart((bar,), ("S",), (near, GIB, 4 * GIB, 100 * GIB)))
    assert [shape.x0 for shape in fig.layout.shapes] == [GIB, near, 4 * GIB]
    assert [note.text for note in fig.layout.annotations] == ["1 GiB", "4 GiB"]


@pytest.mark.parametrize("reach", [1.0, 900.0, 5000.0, 3.3e9, 1.5e11, 8.7e12, 6e14])
def test_ticks_are_few_and_reach_far(reach: float) -> None:
    """Between 3 and 7 ticks from 0 on, the last in the right half of the axis."""
    ticks = ticks_to(reach)
    assert ticks[0] == 0
    assert len(ticks) <= 7
    assert reach < 5 or (len(ticks) >= 3 and ticks[-1] > reach / 2)
    assert len(set(ticks)) == len(ticks)
