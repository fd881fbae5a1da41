"""Claims about the map of who wins, and the reason bar."""

from __future__ import annotations

import math

import pytest

from profiling.analysis.explain import Shares
from profiling.analysis.winners import Win
from profiling.figures import reasons, winners

CELLS = (
    Win("d = 64", 64, 0.5, -1),
    Win("d = 64", 128, 2.0, 1),
    Win("d = 64", 256, None, 0, "naive: <oom>"),
    Win("d = 128", 64, 0.8, -1),
    Win("d = 128", 128, 0.98, 0),
    Win("d = 128", 256, 20.0, 1),
)
CHART = winners.WinnersChart(CELLS, ("d = 64", "d = 128"), "Head dim d", "naive / flash")


def test_colours_are_log2_of_the_ratio_around_one() -> None:
    """Half and twice are as far from the middle; a ratio beyond 8 has the last colour."""
    heat = winners.figure(CHART).data[0]
    assert list(heat.x) == ["64", "128", "256"]
    assert list(heat.y) == ["d = 64", "d = 128"]
    assert list(heat.z[0]) == [-1.0, 1.0, None]
    assert heat.z[1][2] == pytest.approx(math.log2(20))
    assert (heat.zmin, heat.zmax) == (-3.0, 3.0)
    assert list(heat.text[1]) == ["0.8×", "≈ 0.98×", "20×"]


def test_a_small_difference_looks_small() -> None:
    """The scale reaches at least half and twice."""
    cells = tuple(cell._replace(ratio=1.01) for cell in CELLS[:2])
    heat = winners.figure(CHART._replace(cells=cells, rows=("d = 64",))).data[0]
    assert (heat.zmin, heat.zmax) == (-1.0, 1.0)


def test_who_did_not_run_is_hatched_and_told_as_text() -> None:
    """Strokes over the cell alone; the reason on hover, escaped."""
    fig = winners.figure(CHART)
    strokes = [s for s in fig.layout.shapes if s.type == "line" and s.line.width == 1]
    assert strokes
    assert all(1.5 <= s.x0 <= 2.5 and -0.5 <= s.y0 <= 0.5 for s in strokes)
    assert fig.data[0].customdata[0][2] == "d = 64, N = 256: naive: &lt;oom&gt;"


def test_a_line_runs_where_the_lead_changes() -> None:
    """Between neighbours on either side of 1×, across N and across rows, and nowhere else."""
    lines = [s for s in winners.figure(CHART).layout.shapes if s.type == "line" and s.line.width == 3]
    assert {(s.x0, s.x1, s.y0, s.y1) for s in lines} == {
        (0.5, 0.5, -0.5, 0.5),  # d = 64: from 0.5 to 2
        (1.5, 1.5, 0.5, 1.5),  # d = 128: from 0.98 to 20
        (0.5, 1.5, 0.5, 0.5),  # N = 128: 2 below, 0.98 above
    }


def test_reasons_add_up_to_the_call() -> None:
    """A bar a side, with its N and time; shares of all reasons sum to 1, unknown ones come last."""
    bars = (
        Shares("naive", 512, 0.05, {"bytes": 0.7, "launch": 0.2, "other": 0.1}),
        Shares("flash", 512, 0.02, {"arithmetic": 0.6, "waves": 0.4}),
    )
    fig = reasons.figure(bars)
    assert [t.name for t in fig.data] == ["launch", "waves", "bytes", "arithmetic", "other"]
    assert [sum(t.x[i] for t in fig.data) for i in (0, 1)] == pytest.approx([1, 1])
    assert fig.data[0].y[0] == "naive, N = 512 (50 µs)"
