"""A cell is a number, a failure or neither, and which it is does not depend on its neighbours' spelling."""

from __future__ import annotations

import pytest

from profiling.case import InputError
from profiling.importers.cells import MEMORY, TIME, decimal_mark, failure, measured, number


@pytest.mark.parametrize(
    "text",
    [
        *("OOM", "oom", " Oom ", "CUDA OOM", "(OOM)", "OOM error", "Out of memory", "out-of-memory"),
        *("OutOfMemoryError", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        *("CUDA error: out of memory", "MemoryError", "out_of_memory"),
    ],
)
def test_out_of_memory_in_all_its_spellings(text: str) -> None:
    """Whatever else the text says."""
    assert failure(text) == "oom"


@pytest.mark.parametrize(
    "text", ["", " ", "nan", "NaN", "None", "null", "N/A", "-", "\u2014", "\u2013", "-1", "inf"]
)
def test_what_only_says_that_there_is_no_value_is_missing(text: str) -> None:
    """A `nan` does not say why, so neither do we."""
    assert failure(text) == "missing"


@pytest.mark.parametrize(
    ("text", "status"),
    [("timed out", "timeout"), ("Unsupported", "unsupported"), ("FAILED", "crashed"), ("ERR", "crashed")],
)
def test_other_failures_have_their_status(text: str, status: str) -> None:
    """Words for a failure that name its kind."""
    assert failure(text) == status


@pytest.mark.parametrize("text", ["1.5", "0", "room", "boom", "fast", "-2", "1e5"])
def test_anything_else_is_no_failure(text: str) -> None:
    """Numbers and unknown words are not swallowed."""
    assert failure(text) is None


@pytest.mark.parametrize(
    ("text", "decimal", "value"),
    [
        ("1024.000000", ".", 1024.0),
        ("8,192", ".", 8192.0),
        ("1,234,567.5", ".", 1234567.5),
        ("1 234.5", ".", 1234.5),
        ("1'234", ".", 1234.0),
        ("5e-3", ".", 0.005),
        (".5", ".", 0.5),
        ("0,335", ",", 0.335),
        ("1.234,5", ",", 1234.5),
        ("1,234", ",", 1.234),
        ("8\u00a0192", ",", 8192.0),
        ("12,34", ".", None),
        ("1.5", ",", None),
        ("1e999", ".", None),
        ("fast", ".", None),
        ("1.2.3", ".", None),
        ("0x10", ".", None),
        ("", ".", None),
        ("\u0663", ".", None),
    ],
)
def test_numbers(text: str, decimal: str, value: float | None) -> None:
    """Thousands by the other mark, spaces or apostrophes; what is not finite or not plain is no number."""
    found = number(text, decimal)
    assert (None if found is None else found.value) == value


def test_a_number_knows_its_rounding() -> None:
    """Half a unit of the last digit that is written."""
    for text, half in (("0.009", 0.0005), ("1.50", 0.005), ("12", 0.5), ("1.5e3", 50.0)):
        found = number(text)
        assert found is not None
        assert found.half == pytest.approx(half)


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["0,335", "1,234"], ","),
        (["1,5", "2"], ","),
        (["1.234,5"], ","),
        (["8,192", "0.094"], "."),
        (["1.5"], "."),
        (["12", "OOM", "(1, 2)"], "."),
        (["1,234,567.5"], "."),
        ([], "."),
    ],
)
def test_the_decimal_mark_is_seen_where_it_can_be(cells: list[str], mark: str) -> None:
    """By cells that can be read in one way only."""
    assert decimal_mark(cells, "t.csv") == mark


@pytest.mark.parametrize("cells", [["1,234"], ["1,234", "7"], ["1,5", "1.5"]])
def test_the_decimal_mark_is_asked_for_where_it_cannot(cells: list[str]) -> None:
    """`1,234` alone is a decimal or a thousand; both marks at once are a fault."""
    with pytest.raises(InputError, match="--decimal"):
        decimal_mark(cells, "t.csv")


@pytest.mark.parametrize(
    ("text", "unit", "units", "value"),
    [
        ("171.904", "us", TIME, 0.171904),
        ("1.5", "s", TIME, 1500.0),
        ("1500 us", "ms", TIME, 1.5),
        ("2ms", "us", TIME, 2.0),
        ("1", "MiB", MEMORY, 1048576.0),
        ("1", "MB", MEMORY, 1e6),
        ("0.335545344", "GB", MEMORY, 335545344.0),
        ("2 GiB", "MiB", MEMORY, 2.0 * 2**30),
        ("1e308", "s", TIME, None),
        ("1.5 parsecs", "ms", TIME, None),
        ("ms", "ms", TIME, None),
    ],
)
def test_values_come_in_the_stored_unit(
    text: str, unit: str, units: dict[str, tuple[int, int]], value: float | None
) -> None:
    """ms and bytes; a unit in the cell itself counts more than the column's."""
    found = measured(text, unit, units, ".")
    assert (None if found is None else found.value) == (None if value is None else pytest.approx(value))


def test_a_speed_up_may_end_in_x() -> None:
    """`10.81x` and `10.81` are the same."""
    for text in ("10.81x", "10.81", "10.81 X", "10.81\u00d7"):
        found = measured(text, "", {}, ".")
        assert found is not None
        assert found.value == 10.81
