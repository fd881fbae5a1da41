"""Claims about how every chart looks: colours, axes, marks and safe text."""

import math

import plotly.graph_objects as go
import pytest

from profiling.analysis.operations import CLASSES
from profiling.case import BACKENDS, VARIANTS
from profiling.figures import theme

ASKED = [f"{name}/{variant}" for name, variants in VARIANTS.items() for variant in variants]


def luminance(colour: str) -> float:
    """Relative luminance of `#RRGGBB` (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours (WCAG 2)."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [*BACKENDS, *ASKED, "mine.kernels:attend"])
def test_every_backend_reads_on_white_and_on_dark(name: str) -> None:
    """Each backend's colour has a contrast of 3:1 on both backgrounds."""
    colour = theme.style_of(name).colour
    assert contrast(colour, "#FFFFFF") >= 3
    assert contrast(colour, "#0E1117") >= 3


def test_no_two_backends_share_colour_and_marker() -> None:
    """Two backends of one chart can be told apart without hue: markers differ, naive's default aside."""
    styles = [theme.style_of(name) for name in (*BACKENDS, "flash_hopper/deterministic")]
    assert len({style.symbol for style in styles}) == len(styles)
    assert theme.style_of("naive") == theme.style_of("naive/add")
    assert theme.style_of("naive").colour == theme.GREY


def test_an_unknown_backend_keeps_its_style() -> None:
    """A custom backend looks the same in every process (no salted hash)."""
    assert theme.style_of("pkg.mod:f") == theme.style_of("pkg.mod:f")


def test_text_from_a_file_cannot_become_markup() -> None:
    """A name such as `<a href=...>` reaches the chart as text."""
    assert (
        theme.safe("<b>x</b> & <a href='http://e'>") == "&lt;b&gt;x&lt;/b&gt; &amp; &lt;a href='http://e'&gt;"
    )


@pytest.mark.parametrize(
    "ns", [[64], [128, 64], [2**p for p in range(6, 15)], list(range(100, 5000, 100)), []]
)
def test_the_axis_holds_every_length_and_ticks_only_at_them(ns: list[int]) -> None:
    """Ticks are measured lengths, the range holds all of them, and the longest keeps its tick."""
    axis = theme.seq_len_axis(ns)
    assert set(axis["tickvals"]) <= set(ns)
    low, high = axis["range"]
    assert all(low < math.log10(n) < high for n in ns)
    if ns:
        assert max(ns) in axis["tickvals"]
        assert len(axis["tickvals"]) <= 16


def test_a_length_of_zero_is_no_place_on_a_log_axis() -> None:
    """N = 0 is a legal case, but has no logarithm."""
    assert 0 not in theme.seq_len_axis([0, 64, 128])["tickvals"]


def test_log_range_leaves_out_what_has_no_logarithm() -> None:
    """Zero, negative, missing and infinite values do not move the axis."""
    clean = theme.log_range([1.0, 100.0])
    assert theme.log_range([1.0, 100.0, 0.0, -3.0, None, math.nan, math.inf]) == clean
    assert clean[0] < 0 < 2 < clean[1]


def test_the_ratio_axis_always_shows_one() -> None:
    """1× is inside the range whatever the ratios are."""
    for values in ([3.0, 8.0], [0.1, 0.2], [], [1.0]):
        axis = theme.ratio_axis(values, title="")
        assert axis["range"][0] < 0 < axis["range"][1]
        assert 1.0 in axis["tickvals"]


def test_a_marked_length_does_not_stretch_a_log_axis() -> None:
    """The label of a vertical line sits at log10(N): at N itself plotly would stretch the axis to 10^N."""
    fig = go.Figure()
    theme.seq_len_line(fig, 512.0, "N* = 512")
    assert fig.layout.annotations[0].x == pytest.approx(math.log10(512))
    assert fig.layout.shapes[0].x0 == 512.0


def test_bytes_ticks_are_powers_of_two() -> None:
    """An axis of memory is labelled 1 MiB, 4 MiB, ..., never 1.05 MB."""
    axis = theme.bytes_axis([6.0, 9.0], "Bytes", log=True)
    assert all(math.log2(v).is_integer() for v in axis["tickvals"])
    assert all(text.split()[1] in {"KiB", "MiB", "GiB"} for text in axis["ticktext"])


@pytest.mark.parametrize("highest", [0.5, 1.0, 3e6, 1.6e11])
def test_a_linear_axis_of_bytes_goes_from_zero_in_even_binary_steps(highest: float) -> None:
    """0 B, 32 GiB, 64 GiB, ...: every step a power of two, enough of them and not too many."""
    axis = theme.bytes_axis([0.0, highest], "Bytes", log=False)
    ticks = axis["tickvals"]
    assert axis["type"] == "linear"
    assert ticks[0] == 0
    assert axis["ticktext"][0] == "0 B"
    assert math.log2(ticks[1]).is_integer()
    assert ticks == [k * ticks[1] for k in range(len(ticks))]
    assert 4 <= len(ticks) <= 9
    assert ticks[-1] <= highest < ticks[-1] + ticks[1]


def test_bytes_moved_have_decimal_units_on_either_axis() -> None:
    """1 MB, 10 MB on a log axis; even steps of 1, 2 or 5 on a linear one."""
    log = theme.bytes_axis([6.0, 8.0], "Bytes", log=True, moved=True)
    assert (log["type"], log["ticktext"]) == ("log", ["1 MB", "10 MB", "100 MB"])
    linear = theme.bytes_axis([0.0, 1.4e11], "Bytes", log=False, moved=True)
    assert linear["type"] == "linear"
    assert linear["ticktext"] == ["0 B", *(f"{k} GB" for k in range(20, 160, 20))]
    assert linear["tickvals"] == [k * 1e9 for k in range(0, 160, 20)]


def test_a_line_at_a_length_has_its_label_there_on_a_linear_axis() -> None:
    """There the label stands at N itself."""
    fig = go.Figure()
    theme.seq_len_line(fig, 512.0, "N* = 512", log=False)
    assert fig.layout.annotations[0].x == 512.0


@pytest.mark.parametrize(
    ("low", "high"), [(-8.0, -2.0), (-7.6, -7.3), (-7.52, -7.45), (1.9, 2.1), (0.0, 0.6), (3.0, 3.9)]
)
def test_a_log_axis_has_two_ticks_at_least(low: float, high: float) -> None:
    """However narrow its range, so that a reader knows the scale."""
    axis = theme.value_axis([low, high], "Relative error", log=True)
    inside = [tick for tick in axis["tickvals"] if low <= math.log10(tick) <= high]
    assert 2 <= len(inside) <= 12
    assert len(set(axis["ticktext"])) == len(axis["tickvals"])


def test_the_axis_of_rows_is_called_classes() -> None:
    """The title is given by what runs along it; without one there is none."""
    assert theme.seq_len_axis([8, 64], title=CLASSES.axis)["title"]["text"] == "Classes of a row"
    assert theme.seq_len_axis([8, 64], title="")["title"]["text"] == ""
    assert theme.seq_len_axis([8, 64])["title"]["text"] == "Sequence length N (tokens)"
