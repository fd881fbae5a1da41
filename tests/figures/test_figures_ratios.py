"""Claims about the chart of a comparison's ratios."""

import math

import pytest

from profiling.figures.ratios import LABELLED, MOST, STYLES, Ratio, RatioChart, axis, figure, thinned

ROWS = (
    Ratio("flash fwd N64", 1.02, (0.99, 1.05), "ambiguous"),
    Ratio("flash fwd N128", 1.30, (1.25, 1.36), "slower", ("A 1 ms, B 1.3 ms", "<b>why</b>")),
    Ratio("naive <script>", 0.80, None, "faster"),
    Ratio("naive fwd N128", 1.00, (0.995, 1.004), "same"),
)


def many(n):
    """So many rows, each with its own ratio."""
    return tuple(Ratio(str(k), 1 + k / n, None, "slower") for k in range(n))


def test_rows_stand_by_falling_ratio():
    """The largest is on top (place 0), whatever the order given, in a trace of its verdict."""
    fig = figure(RatioChart(ROWS, 0.02, "B / A"))
    places = {trace.name: (trace.x[0], trace.y[0]) for trace in fig.data}
    assert places == {"slower": (1.30, 0), "ambiguous": (1.02, 1), "same": (1.00, 2), "faster": (0.80, 3)}
    assert fig.layout.yaxis.range[0] > 3 > 0 > fig.layout.yaxis.range[1]


def test_whiskers_are_the_interval():
    """From its lower to its upper end; a row without an interval has none."""
    by_name = {trace.name: trace for trace in figure(RatioChart(ROWS, 0.02, "B / A")).data}
    assert by_name["slower"].error_x.array == pytest.approx((0.06,))
    assert by_name["slower"].error_x.arrayminus == pytest.approx((0.05,))
    assert by_name["faster"].error_x.array is None


def test_summaries_are_hollow():
    """A row without samples behind it is drawn open, beside a filled one of the same verdict."""
    rows = (ROWS[1], ROWS[1]._replace(label="imported", ratio=1.2, interval=None, summary=True))
    (trace,) = figure(RatioChart(rows, 0.02, "B / A")).data
    assert list(trace.marker.symbol) == ["triangle-right", "triangle-right-open"]


def test_verdicts_differ_in_shape_as_in_colour():
    """No two share either."""
    assert len({colour for colour, _ in STYLES.values()}) == len({s for _, s in STYLES.values()}) == 4


def test_texts_are_escaped():
    """A case's name and its details may say anything."""
    fig = figure(RatioChart(ROWS, 0.02, "B <i>/</i> A"))
    texts = [note.text for note in fig.layout.annotations]
    texts += [text for trace in fig.data for text in trace.hovertext]
    assert any("naive &lt;script&gt;" in text for text in texts)
    assert not any("<script>" in text or "<b>" in text for text in texts)
    assert "<i>" not in fig.layout.xaxis.title.text


def test_few_rows_are_named_and_many_are_not():
    """Names would overlap; the hover has them still."""
    assert len(figure(RatioChart(many(LABELLED), 0.02, "")).layout.annotations) == LABELLED
    assert not figure(RatioChart(many(LABELLED + 1), 0.02, "")).layout.annotations


@pytest.mark.parametrize("n", [MOST, MOST + 1, 10 * MOST])
def test_no_more_points_than_can_be_seen(n):
    """Both ends are whole, the middle is thinned evenly, and nothing comes twice."""
    rows = many(n)
    kept = thinned(rows)
    assert len(kept) == MOST
    assert len({row.label for row in kept}) == MOST
    ranked = sorted(rows, key=lambda row: row.ratio, reverse=True)
    assert kept[: MOST // 4] == ranked[: MOST // 4]
    assert kept[-MOST // 4 :] == ranked[-MOST // 4 :]
    assert [row.ratio for row in kept] == sorted((row.ratio for row in kept), reverse=True)


@pytest.mark.parametrize("values", [[0.98, 1.02], [0.9, 1.1], [0.5, 3.0], [0.01, 50.0], [1.0], []])
def test_the_axis_has_ticks_near_its_values(values):
    """1× is among them, all are inside the range, and so is every value."""
    made = axis(values, title="B / A")
    low, high = made["range"]
    assert 1.0 in made["tickvals"]
    assert len(made["tickvals"]) >= 3
    assert all(low <= math.log10(x) <= high for x in [*made["tickvals"], *values])


def test_nothing_to_draw_is_an_empty_chart():
    """No row, no trace, and no error."""
    assert not figure(RatioChart((), 0.02, "B / A")).data
