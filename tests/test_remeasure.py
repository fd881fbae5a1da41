"""Which rows are measured again: those in doubt with their whole block, or those that failed, alone."""

from __future__ import annotations

import pytest
from synthetic import synthetic_case

from profiling.fingerprint import kernel_hash
from profiling.records import ClockResult, Measurement
from profiling.remeasure import cases_again


def row(name: str, n: int, status: str = "ok", flags=(), clock_flags=(), kernel: str = "") -> Measurement:
    """A row of a backend at N."""
    return Measurement.model_validate(
        {
            "case": synthetic_case(name, n),
            "status": status,
            "flags": flags,
            "clocks": (ClockResult(clock="device", flags=clock_flags),),
            "kernel_hash": kernel,
        }
    )


def again(rows: list[Measurement], which: str, backends=None) -> list[tuple[str, int]]:
    """(backend, N) of what is measured again."""
    return [(case.backend, case.seq_len_q) for case in cases_again(rows, which, backends)]


@pytest.mark.parametrize(
    "doubt",
    [
        {"flags": ("thermal",)},
        {"flags": ("clock_drift",)},
        {"clock_flags": ("noisy",)},
        {"clock_flags": ("timer_limited",)},
        {"kernel": "0" * 12},
    ],
    ids=lambda doubt: str(*doubt.values()),
)
def test_a_doubtful_row_takes_its_block_along(doubt):
    """A comparison holds within a block that was interleaved: its other `ok` cases are measured with it."""
    rows = [row("naive", 64), row("flash", 64, **doubt), row("naive", 128), row("flash", 128)]
    assert again(rows, "flagged") == [("naive", 64), ("flash", 64)]


def test_what_failed_in_a_flagged_block_stays_as_it_is():
    """An out-of-memory is no doubt; `failed` is for that."""
    rows = [row("naive", 64, "oom"), row("flash", 64, flags=("thermal",))]
    assert again(rows, "flagged") == [("flash", 64)]


@pytest.mark.parametrize("status", ["oom", "timeout", "crashed", "incorrect"])
def test_failed_rows_alone(status):
    """What failed is tried again without its neighbours."""
    rows = [row("naive", 64, status), row("flash", 64, flags=("thermal",))]
    assert again(rows, "failed") == [("naive", 64)]


def test_what_a_backend_cannot_take_is_not_tried_again():
    """`unsupported` would be that once more."""
    assert again([row("tiled", 64, "unsupported")], "failed") == []


def test_backends_keep_their_own_rows():
    """With --backends only theirs are looked at."""
    rows = [row("naive", 64, flags=("thermal",)), row("flash", 64, flags=("thermal",))]
    assert again(rows, "flagged", ("flash",)) == [("flash", 64)]


def test_a_kernel_as_it_is_now_is_no_doubt():
    """The hash at hand, or none, is not stale."""
    rows = [row("flash", 64, kernel=kernel_hash("flash")), row("sdpa_flash", 64)]
    assert again(rows, "flagged") == []
