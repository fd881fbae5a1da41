"""Roofline bounds."""

from __future__ import annotations

from typing import Any

import pytest

from profiling.case import Case
from profiling.devices import find_device
from profiling.model.flops import flops
from profiling.model.latency import est_flash, est_naive
from profiling.model.traffic import naive_passes, traffic

H200 = find_device("H200")


def make(**changes: Any) -> Case:
    """A case of our standard sweep."""
    base = {"backend": "flash", "batch": 4, "heads": 16, "kv_heads": 16, "seq_len_q": 8192, "seq_len_k": 8192}
    return Case(**({**base, "head_dim": 128, "head_dim_v": 128} | changes))


def test_a_long_forward_is_bound_by_arithmetic() -> None:
    """flash at N=8192: FLOPs over the bf16 peak, far above its bytes over the bandwidth."""
    bound = est_flash(make(), H200)
    assert bound.bound_by == "compute"
    assert bound.est_latency_ms == bound.est_compute_ms == pytest.approx(flops(make()) / 989.4e9)
    assert bound.est_memory_ms == pytest.approx(traffic(make(), H200).compulsory_bytes / 4.9167e9, rel=1e-4)


def test_one_query_is_bound_by_memory() -> None:
    """A decoding step reads K and V for two FLOPs a byte."""
    assert est_flash(make(seq_len_q=1), H200).bound_by == "memory"


def test_eager_kernels_wait_for_one_another() -> None:
    """The eager bound is the sum over its kernels, so at least each of memory and compute in whole."""
    bound = est_naive(make(), H200, "fill")
    assert bound.est_memory_ms is not None
    assert bound.est_compute_ms is not None
    assert bound.est_latency_ms is not None
    assert bound.est_latency_ms >= max(bound.est_memory_ms, bound.est_compute_ms)
    moved = sum(step.read_bytes + step.write_bytes for step in naive_passes(make(), "fill"))
    assert bound.est_memory_ms == pytest.approx(moved / 4.9167e9, rel=1e-4)
    assert bound.bound_by == "memory"


def test_eager_is_bound_higher_than_flash() -> None:
    """Whatever the direction, eager's bound is not below flash's."""
    for direction in ("fwd", "fwd_bwd"):
        naive, flash = (f(make(direction=direction), H200).est_latency_ms for f in (est_naive, est_flash))
        assert naive is not None
        assert flash is not None
        assert naive > flash


@pytest.mark.parametrize(("dtype", "device"), [("fp64", "H200"), ("bf16", "T4")])
def test_an_unknown_peak_bounds_nothing(dtype: str, device: str) -> None:
    """Without a peak for the dtype there is a memory time, and no latency."""
    for estimate in (est_flash, est_naive):
        bound = estimate(make(dtype=dtype), find_device(device))
        assert bound.est_memory_ms is not None
        assert bound.est_compute_ms is None
        assert bound.est_latency_ms is None
        assert bound.bound_by == ""


def test_nothing_takes_no_time() -> None:
    """An empty batch has a bound of 0 ms."""
    for estimate in (est_flash, est_naive):
        assert estimate(make(batch=0), H200).est_latency_ms == 0
