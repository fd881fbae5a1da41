"""What differs between two sides is told, and nothing else."""

from __future__ import annotations

import pandas as pd
import pytest
from synthetic import synthetic_environment, synthetic_run

from profiling.analysis.differences import differences
from profiling.store import frame


def table(**changes: object) -> pd.DataFrame:
    """A run on an environment with these changes."""
    return frame(synthetic_run(seq_lens=(64,), environment=synthetic_environment(**changes)))  # type: ignore[arg-type]


def test_equal_origins_differ_in_nothing() -> None:
    """The same machine and code: no banner."""
    assert differences(table(), table()) == ()


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("device_name", "NVIDIA A100", "device"),
        ("device_uuid", "GPU-other", "device UUID"),
        ("driver_version", "570.1", "driver"),
        ("torch_version", "2.13.0", "torch"),
        ("triton_version", "3.7.1", "triton"),
        ("git_commit", "f" * 40, "git commit"),
        ("git_commit", "", "git commit"),
    ],
)
def test_each_origin_is_told(field: str, value: str, what: str) -> None:
    """With the value of either side; an unknown one differs from a known."""
    a, b = table(), table(**{field: value})
    (found,) = differences(a, b)
    assert found == (what, (getattr(synthetic_environment(), field),), (value,))


def test_a_mixed_side_differs() -> None:
    """A side of several commits is told even if the other is of the same ones."""
    mixed = pd.concat([table(git_commit="a" * 40), table(git_commit="b" * 40)], ignore_index=True)
    (found,) = differences(mixed, mixed)
    assert found == ("git commit", ("a" * 40, "b" * 40), ("a" * 40, "b" * 40))


def test_kernel_sources_are_told_by_backend() -> None:
    """Only of backends that both have; a failed row without a hash is no difference."""
    a = table()
    b = a.assign(kernel_hash=a["kernel_hash"].where(a["backend"] != "flash", "0" * 16))
    assert [each.what for each in differences(a, b)] == ["kernel sources of flash"]
    only = b[b["backend"] == "naive"]
    assert differences(a, only) == ()
    failed = pd.concat([a, a.assign(kernel_hash="", status="oom")], ignore_index=True)
    assert differences(a, failed) == ()
    assert [each.what for each in differences(a, a.assign(kernel_hash=""))] == [
        "kernel sources of naive",
        "kernel sources of flash",
    ]
