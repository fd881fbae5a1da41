"""One cell's text as a number, a failure, or a word of ours. Pure; nothing here guesses a unit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from profiling.case import InputError
from profiling.importers.tables import shown

# What a value is multiplied with and divided by to be in the unit that is stored: exact where it can be.
TIME: dict[str, tuple[int, int]] = {  # to ms
    "s": (1000, 1),
    "ms": (1, 1),
    "us": (1, 1000),
    "µs": (1, 1000),
    "μs": (1, 1000),
    "ns": (1, 1_000_000),
}
MEMORY: dict[str, tuple[int, int]] = {  # to bytes; MB is 10^6, MiB 2^20
    "B": (1, 1),
    "KB": (1000, 1),
    "MB": (10**6, 1),
    "GB": (10**9, 1),
    "KiB": (2**10, 1),
    "MiB": (2**20, 1),
    "GiB": (2**30, 1),
}
ENERGY: dict[str, tuple[int, int]] = {"uJ": (1, 1000), "mJ": (1, 1), "J": (1000, 1)}  # to mJ
RATE: dict[str, tuple[int, int]] = {  # to TFLOP/s
    "TFLOP/s": (1, 1),
    "TFLOPs/s": (1, 1),
    "TFLOPS": (1, 1),
    "GFLOP/s": (1, 1000),
    "GFLOPS": (1, 1000),
}
UNITS: dict[str, dict[str, tuple[int, int]]] = {
    "latency": TIME,
    "memory": MEMORY,
    "retained": MEMORY,
    "energy": ENERGY,
    "throughput": RATE,
}

WORDS: dict[str, dict[str, str]] = {
    "dtype": {
        **dict.fromkeys(("float16", "half", "f16", "torch.float16", "torch.half"), "fp16"),
        **dict.fromkeys(("bfloat16", "torch.bfloat16"), "bf16"),
        **dict.fromkeys(("float32", "float", "f32", "torch.float32"), "fp32"),
        **dict.fromkeys(("float64", "double", "f64", "torch.float64"), "fp64"),
    },
    "direction": {
        "forward": "fwd",
        "backward": "bwd",
        **dict.fromkeys(("fwd+bwd", "fwd + bwd", "fwd-bwd", "forward+backward"), "fwd_bwd"),
    },
    "status": {**dict.fromkeys(("success", "succeeded", "passed", "pass", "done"), "ok")},
}
BOOLEANS: dict[str, bool] = {
    **dict.fromkeys(("true", "1", "yes"), True),
    **dict.fromkeys(("false", "0", "no"), False),
}

_OOM = re.compile(
    r"\boom\b|out[ _-]*of[ _-]*memory|memoryerror|\boom[ _-]*error|alloc\w* failed", re.IGNORECASE
)
_FAILURES: dict[str, tuple[str, ...]] = {
    "timeout": ("timeout", "timed out", "timedout"),
    "unsupported": ("unsupported", "not supported", "notimplementederror", "not implemented"),
    "crashed": ("error", "err", "fail", "failed", "failure", "crash", "crashed"),
    "missing": (
        *("", "nan", "none", "null", "n/a", "na", "<na>", "#n/a", "-", "--", "\u2013", "\u2014", "?"),
        *("-1", "-1.0", "-1,0", "inf", "-inf", "infinity", "skip", "skipped", "missing", "unknown"),
    ),
}
_STATUS_OF = {word: status for status, words in _FAILURES.items() for word in words}

_PLAIN = re.ASCII | re.IGNORECASE
_POINT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", _PLAIN)
_COMMA = re.compile(r"[+-]?(\d+(,\d*)?|,\d+)(e[+-]?\d+)?", _PLAIN)
_COMMA_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", _PLAIN)
_POINT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?", _PLAIN)
_SPACE_GROUPS = re.compile(r"(?<=[0-9])[ \u00a0\u2009\u202f'_](?=[0-9]{3}(?![0-9]))")


class Number(NamedTuple):
    """A number as written: its value, and half a unit of its last digit, within which it was rounded."""

    value: float
    half: float


def failure(text: str) -> str | None:
    """The status that a text stands for where a number should be; None if it stands for none.

    Text that says "out of memory" in any spelling is `oom`; `nan`, blanks, dashes and -1 are `missing`: they
    say that there is no value, and not why.
    """
    plain = " ".join(text.strip().lower().split())
    if _OOM.search(plain):
        return "oom"
    return _STATUS_OF.get(plain)


def decimal_mark(cells: Iterable[str], name: str) -> str:
    """Whether decimals have a point or a comma, by the cells that can be read in one way only.

    Raises:
        InputError: both occur, or `1,234` may be either; --decimal then has to say which.
    """
    points = commas = either = ""
    for cell in cells:
        as_points = _POINT.fullmatch(cell) or _COMMA_GROUPS.fullmatch(cell)
        as_commas = _COMMA.fullmatch(cell) or _POINT_GROUPS.fullmatch(cell)
        if as_points and as_commas:
            either = either or (cell if "," in cell else "")
        elif as_points:
            points = points or cell
        elif as_commas:
            commas = commas or cell
    if points and commas:
        raise InputError(f"{name}: decimals are written both as {shown(points)} and as {shown(commas)}: "
                         "say which is meant with --decimal . or --decimal ,")  # fmt: skip
    if either and not points and not commas:
        raise InputError(f"{name}: {shown(either)} may be a decimal or a thousand: "
                         "say with --decimal . or --decimal ,")  # fmt: skip
    return "," if commas else "."


def number(text: str, decimal: str = ".") -> Number | None:
    """The number that a text is, or None where it is none, or not finite.

    Thousands may be grouped, by the mark that is not the decimal one, by spaces or by apostrophes.
    """
    plain = _SPACE_GROUPS.sub("", text.strip())
    if decimal == ",":
        if _POINT_GROUPS.fullmatch(plain):
            plain = plain.replace(".", "")
        if not _COMMA.fullmatch(plain):
            return None
        plain = plain.replace(",", ".")
    else:
        if _COMMA_GROUPS.fullmatch(plain):
            plain = plain.replace(",", "")
        if not _POINT.fullmatch(plain):
            return None
    value = float(plain)
    if value in (float("inf"), float("-inf")):
        return None
    mantissa, _, exponent = plain.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    place = max(-400, min(300, int(exponent[:6] or 0) - digits))
    return Number(value, 0.5 * 10.0**place)


def measured(text: str, unit: str, units: dict[str, tuple[int, int]], decimal: str) -> Number | None:
    """A value in the stored unit: `text` in `unit`, or in a unit of its own behind it (`1.5 us`).

    A trailing `x` is allowed where there is no unit (`units` is empty): a speed-up.
    """
    plain = text.strip()
    if not units:
        return number(plain.rstrip("xX\u00d7 "), decimal)
    for own in sorted(units, key=len, reverse=True):
        if plain.endswith(own) and plain[: -len(own)].strip()[-1:].isdigit():
            plain, unit = plain[: -len(own)].strip(), own
            break
    found = number(plain, decimal)
    if found is None:
        return None
    times, by = units[unit]
    value, half = found.value * times / by, found.half * times / by
    return None if value in (float("inf"), float("-inf")) else Number(value, half)
