"""Errors by what was left out, and sums of ones: marks where the numbers are, crosses where there is none."""

from __future__ import annotations

import pytest

from profiling.figures.numerics_lab import Mark, SumLine, errors_figure, sums_figure

MARKS = (
    Mark("all in place", "fp16", 1e-4, "1e-4"),
    Mark("all in place", "fp64", 0.0, "0"),
    Mark("no guard", "fp16", None, "3 of 9 numbers"),
    Mark("no guard", "fp64", 1e-16, "1e-16"),
)


def test_marks_stand_at_their_errors_and_crosses_beyond_all() -> None:
    """A cross lies right of every error and within the axis; an error of 0 has no place on it."""
    fig = errors_figure(MARKS)
    fp16, fp64 = fig.data
    assert (fp16.name, list(fp16.y)) == ("fp16", ["all in place", "no guard"])
    assert list(fp16.marker.symbol) == ["circle", "x"]
    assert fp16.x[0] == 1e-4
    assert 1e-4 < fp16.x[1] < 10 ** fig.layout.xaxis.range[1]
    assert (list(fp64.x), list(fp64.y)) == ([1e-16], ["no guard"])
    assert list(fig.layout.yaxis.categoryarray) == ["no guard", "all in place"]
    assert len(fig.layout.xaxis.tickvals) <= 7


def test_names_are_text() -> None:
    """What stands in a label or a note is never markup."""
    fig = errors_figure((Mark("<b>x</b>", "fp32", 1.0, "<i>n</i>"),))
    assert list(fig.data[0].y) == ["&lt;b&gt;x&lt;/b&gt;"]
    assert list(fig.data[0].customdata) == ["&lt;i&gt;n&lt;/i&gt;"]


@pytest.mark.parametrize("marks", [(), (Mark("no guard", "fp16", None, "all"),)])
def test_nothing_finite_is_still_a_figure(marks: tuple[Mark, ...]) -> None:
    """No error at all, or crosses alone."""
    fig = errors_figure(marks)
    assert len(fig.data) == len(marks)
    assert fig.layout.xaxis.range[0] < fig.layout.xaxis.range[1]


def test_sums_are_drawn_by_dtype_and_order() -> None:
    """One colour a dtype, one dash an order, ticks no further than the ones go."""
    lines = (
        SumLine("fp16", "one by one", ((1, 1.0), (2, 2.0))),
        SumLine("fp16", "pairwise", ((1, 1.0), (256, 256.0))),
        SumLine("bf16", "pairwise", ()),
    )
    fig = sums_figure(lines)
    assert [trace.name for trace in fig.data] == ["fp16, one by one", "fp16, pairwise", "bf16, pairwise"]
    assert fig.data[0].line.color == fig.data[1].line.color != fig.data[2].line.color
    assert fig.data[0].line.dash != fig.data[1].line.dash == fig.data[2].line.dash
    assert list(fig.layout.xaxis.tickvals) == [1, 16, 256]
    assert list(sums_figure(()).data) == []
