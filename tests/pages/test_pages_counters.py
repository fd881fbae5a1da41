"""Hardware counters on the Traffic page: which kernels the DRAM model speaks of, in numbers and in words."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from page_runs import counters_run

from profiling.analysis.estimates import with_estimates
from profiling.devices import find_device
from profiling.pages import counters
from profiling.pages.state import with_axes
from profiling.store import frame

H200 = find_device("H200")


def calls_of(kernel: str, backend: str = "flash") -> list[counters.Call]:
    """The calls of a run whose `flash` rows are of another kernel, and named as another backend."""
    run = counters_run()
    rows = tuple(
        row.model_copy(
            update={"kernel": kernel, "case": row.case.model_copy(update={"backend": backend})}
            if row.case.backend == "flash"
            else {}
        )
        for row in run.measurements
    )
    return counters.of_run(with_axes(with_estimates(frame([replace(run, measurements=rows)]), H200)))


@pytest.mark.parametrize(
    ("backend", "kernel", "spoken_of"),
    [
        ("flash_portable", "fa_core.flash_portable", True),
        ("flash", "fa_core.flash_portable", True),
        ("flash", "fa_core.flash_hopper", False),
        ("flash_hopper", "fa_core.flash_hopper", False),
        ("sdpa_cudnn", "aten._scaled_dot_product_cudnn_attention", False),
    ],
)
def test_the_model_speaks_of_the_kernels_it_was_fitted_to(backend: str, kernel: str, spoken_of: bool) -> None:
    """What ran decides of `flash`; other backends' kernels are told apart, with their own range."""
    found = calls_of(kernel, backend)
    assert {call.is_spoken_of for call in found if call.backend == backend} == {spoken_of}
    assert not any(call.is_spoken_of for call in found if call.backend == "naive")
    rows = counters.table(found)
    near = rows[(rows["kernel"] == backend) & (rows["direction"] == "fwd")]["dram_over_model"]
    said = counters.sentences(found)[0].replace("\\", "")
    assert said.startswith("For fused forwards" if spoken_of else "For other fused forwards")
    assert f"({backend})" in said
    assert ("does not speak of them" in said) is not spoken_of
    assert counters.units.ratio_text(near.min()) in said
    assert counters.units.ratio_text(near.max()) in said


def test_the_files_triton_kernels_are_spoken_of() -> None:
    """Those of counters_h200.csv stand under flash_portable, cuDNN's under its own name."""
    found = counters.calls(counters.read(), H200)
    assert {(c.backend, c.is_spoken_of) for c in found} == {
        ("flash_portable", True),
        ("sdpa_cudnn", False),
        ("naive", False),
    }
    both = " ".join(counters.sentences(found))
    assert "Triton forward" in both
    assert "For other fused forwards" in both


def test_without_calls_nothing_is_said() -> None:
    """An empty file has no sentence."""
    empty = pd.DataFrame(columns=[*counters.CALL, "dram_read", "dram_write", "lts_bytes", "ns"])
    assert counters.calls(empty, H200) == []
