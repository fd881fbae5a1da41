"""The only place where a number becomes text: three significant digits, a unit, a dash for the unknown.

Every function takes a number, None, NaN or pandas' NA (by duck typing: this module knows no pandas)
and returns `UNKNOWN` for the last three.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import humanize

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9

UNKNOWN = "–"
GROUP = "\u00a0"  # a space that never breaks a line, between groups of three digits

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_BANDWIDTH = ("GB/s", "TB/s", "PB/s")
_TIME = ("ns", "µs", "ms", "s")


def _finite(x: Any) -> float | None:
    """`x` as a float; None when it says nothing: None, NaN, NA."""
    try:
        value = float(x)
    except TypeError:
        return None
    return None if math.isnan(value) else value


def _grouped(digits: str) -> str:
    """Set groups of three before the decimal point apart: `1234567.8` -> `1 234 567.8`."""
    whole, point, fraction = digits.partition(".")
    return f"{int(whole):,}".replace(",", GROUP) + point + fraction if len(whole) > 3 else digits


def _significant(value: float) -> str:
    """A value >= 0 with three significant digits, without trailing zeros after the point, no exponent."""
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞"
    decimals = 2 - math.floor(math.log10(value))
    rounded = round(value, decimals)
    # 9.996 rounds to 10.0: the magnitude, and with it the number of decimals, changed under us
    decimals = max(0, 2 - math.floor(math.log10(rounded)))
    text = f"{rounded:.{decimals}f}"
    return _grouped(text.rstrip("0").rstrip(".") if "." in text else text)


def _scaled(x: Any, units: Sequence[str], base: int) -> str:
    """`x`, given in the first of `units`, in the largest unit that leaves a value of at least 1."""
    value = _finite(x)
    if value is None:
        return UNKNOWN
    sign, size, index = "-" if value < 0 else "", abs(value), 0
    if math.isinf(size):
        return f"{sign}∞ {units[-1]}"
    while index < len(units) - 1 and round(size) >= base:
        size, index = size / base, index + 1
    # between 1000 and 1023 of a binary unit four digits are shown: 1 010 MiB would hide 1 013
    number = _grouped(f"{size:.0f}") if 1000 <= size < base else _significant(size)
    return f"{sign}{number} {units[index]}"


def bytes_text(n: Any) -> str:
    """Memory in bytes, in binary units: `268435456` -> `256 MiB`."""
    return _scaled(n, _BINARY, KIB)


def traffic_text(n: Any) -> str:
    """Bytes moved, in decimal units as bandwidths are: `69_800_000_000` -> `69.8 GB`."""
    return _scaled(n, _DECIMAL, 1000)


def bandwidth_text(gbs: Any) -> str:
    """A bandwidth given in GB/s: `4800` -> `4.8 TB/s`."""
    return _scaled(gbs, _BANDWIDTH, 1000)


def time_text(ms: Any) -> str:
    """A duration given in milliseconds: `1.234` -> `1.23 ms`, `0.0456` -> `45.6 µs`."""
    value = _finite(ms)
    return _scaled(None if value is None else value * 1e6, _TIME, 1000)


def duration_text(seconds: Any) -> str:
    """How long something takes a person to wait for: `7500` -> `2 hours and 5 minutes`."""
    value = _finite(seconds)
    if value is None or math.isinf(value):
        return UNKNOWN
    unit = "seconds" if abs(value) < 600 else "minutes"
    rounded = datetime.timedelta(seconds=round(value) if unit == "seconds" else round(value / 60) * 60)
    return humanize.precisedelta(rounded, minimum_unit=unit, format="%d")


def tflops_text(x: Any) -> str:
    """A rate given in TFLOP/s; the caller names the FLOP convention beside it."""
    return UNKNOWN if _finite(x) is None else f"{number_text(x)} TFLOP/s"


def ratio_text(x: Any) -> str:
    """A ratio: `2.341` -> `2.34×`."""
    return UNKNOWN if _finite(x) is None else f"{number_text(x)}×"


def ratio_interval_text(x: Any, interval: tuple[float, float] | None) -> str:
    """A ratio with its interval where there is one: `1.07× [1.06, 1.09]`."""
    text = ratio_text(x)
    return text if interval is None else f"{text} [{number_text(interval[0])}, {number_text(interval[1])}]"


def percent_text(fraction: Any) -> str:
    """A fraction as per cent: `0.123` -> `12.3 %`."""
    value = _finite(fraction)
    return UNKNOWN if value is None else f"{number_text(value * 100)} %"


def count_text(n: Any) -> str:
    """A whole number, exact, its digits grouped: `16384` -> `16 384`."""
    value = _finite(n)
    if value is None:
        return UNKNOWN
    if not value.is_integer():
        raise ValueError(f"count_text takes a whole number, got {n!r}")
    return f"{int(n):,}".replace(",", GROUP)


def crossover_text(seq_len: float, interval: tuple[float, float] | None) -> str:
    """N* in whole tokens with its interval where there is one: `512 [448, 590]`."""
    text = count_text(round(seq_len))
    if interval is None:
        return text
    low, high = (count_text(round(x)) for x in interval)
    return f"{text} [{low}, {high}]"


def number_text(x: Any) -> str:
    """A bare number with three significant digits; below 0.001 and from 10 million on with an exponent."""
    value = _finite(x)
    if value is None:
        return UNKNOWN
    sign, size = "-" if value < 0 else "", abs(value)
    if size and not math.isinf(size) and not 1e-3 <= size < 1e7:
        mantissa, exponent = f"{size:.2e}".split("e")
        return f"{sign}{mantissa}e{int(exponent)}"
    return sign + _significant(size)
