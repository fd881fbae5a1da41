"""Numbers as text: units, three digits, and a dash for what is not known."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.units import (
    GB,
    GIB,
    GROUP,
    KIB,
    MIB,
    UNKNOWN,
    bandwidth_text,
    bytes_text,
    count_text,
    crossover_text,
    duration_text,
    number_text,
    percent_text,
    ratio_interval_text,
    ratio_text,
    tflops_text,
    time_text,
    traffic_text,
)

ALL = (
    bandwidth_text,
    bytes_text,
    count_text,
    duration_text,
    number_text,
    percent_text,
    ratio_text,
    tflops_text,
    time_text,
    traffic_text,
)
SCALES = {
    bytes_text: {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40, "PiB": 2**50},
    traffic_text: {"B": 1, "kB": 1e3, "MB": 1e6, "GB": GB, "TB": 1e12, "PB": 1e15},
    time_text: {"ns": 1e-6, "µs": 1e-3, "ms": 1, "s": 1e3},
}


@pytest.mark.parametrize("to_text", ALL)
@pytest.mark.parametrize("nothing", [None, math.nan, np.nan, pd.NA], ids=str)
def test_the_unknown_is_a_dash(to_text, nothing) -> None:
    """None, NaN and NA give a dash in every unit, never a 0."""
    assert to_text(nothing) == UNKNOWN


@pytest.mark.parametrize(
    ("to_text", "number", "text"),
    [
        (bytes_text, 0, "0 B"),
        (bytes_text, 1, "1 B"),
        (bytes_text, 268_435_456, "256 MiB"),
        (bytes_text, 64 * GIB, "64 GiB"),
        (bytes_text, 1013 * MIB, f"1{GROUP}013 MiB"),
        (bytes_text, 1023.9, "1 KiB"),
        (bytes_text, -5 * MIB, "-5 MiB"),
        (bytes_text, np.int64(1536), "1.5 KiB"),
        (traffic_text, 69_800_000_000, "69.8 GB"),
        (traffic_text, 999_960, "1 MB"),
        (bandwidth_text, 4800, "4.8 TB/s"),
        (bandwidth_text, 614.4, "614 GB/s"),
        (time_text, 1.2345, "1.23 ms"),
        (time_text, 0.0456, "45.6 µs"),
        (time_text, 0.00032, "320 ns"),
        (time_text, 0.99999, "1 ms"),
        (time_text, 2500, "2.5 s"),
        (time_text, math.inf, "∞ s"),
        (ratio_text, 2.341, "2.34×"),
        (ratio_text, 9.996, "10×"),
        (ratio_text, 0.98, "0.98×"),
        (tflops_text, 512.4, "512 TFLOP/s"),
        (percent_text, 0.1234, "12.3 %"),
        (percent_text, 1, "100 %"),
        (count_text, 16384, f"16{GROUP}384"),
        (count_text, 1_234_567, f"1{GROUP}234{GROUP}567"),
        (count_text, 7.0, "7"),
        (number_text, 0, "0"),
        (number_text, 3.2e-4, "3.20e-4"),
        (number_text, 0.00123456, "0.00123"),
        (number_text, 12345, f"12{GROUP}300"),
        (number_text, 1.5e9, "1.50e9"),
        (number_text, -1234, f"-1{GROUP}230"),
        (number_text, math.inf, "∞"),
        (duration_text, 75, "1 minute and 15 seconds"),
        (duration_text, 7500, "2 hours and 5 minutes"),
        (duration_text, 0.2, "0 seconds"),
    ],
)
def test_known_texts(to_text, number, text) -> None:
    """Each unit writes what the design's examples show, at its edges too."""
    assert to_text(number) == text


@pytest.mark.parametrize("to_text", list(SCALES))
@given(number=st.floats(min_value=1e-3, max_value=1e15, allow_nan=False))
def test_a_text_is_within_half_a_unit_of_its_third_digit(to_text, number) -> None:
    """Reading a text back gives the number to three significant digits, with at least one digit shown."""
    digits, unit = to_text(number).rsplit(" ", 1)
    value = float(digits.replace(GROUP, ""))
    scale = SCALES[to_text][unit]
    smallest = min(SCALES[to_text].values())
    tolerance = max(0.00501 * number, 0.00501 * smallest)
    assert abs(value * scale - number) <= tolerance
    assert value < 1024 or unit in ("s", "PiB", "PB")


@given(number=st.integers(min_value=-(10**15), max_value=10**15))
def test_counts_are_exact(number) -> None:
    """A count loses no digit: its groups put together are the number."""
    text = count_text(number)
    assert int(text.replace(GROUP, "")) == number
    assert re.fullmatch(rf"-?\d{{1,3}}({GROUP}\d{{3}})*", text)


def test_a_fraction_is_no_count() -> None:
    """A count of 1.5 is a caller's mistake, not a rounding."""
    with pytest.raises(ValueError, match=r"whole number, got 1\.5"):
        count_text(1.5)


def test_crossover_text_rounds_to_whole_tokens():
    """N* and the ends of its interval are whole tokens; without an interval there are no brackets."""
    assert crossover_text(511.6, (447.7, 590.2)) == "512 [448, 590]"
    assert crossover_text(1024.0, None) == count_text(1024)


def test_a_ratio_has_its_interval_where_there_is_one():
    """Both ends to three digits; without an interval the ratio stands alone."""
    assert ratio_interval_text(1.0749, (1.0612, 1.0889)) == "1.07× [1.06, 1.09]"
    assert ratio_interval_text(1.5, None) == "1.5×"
    assert ratio_interval_text(None, None) == UNKNOWN
