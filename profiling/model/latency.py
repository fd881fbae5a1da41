"""Roofline bounds on time: bytes over bandwidth, matmul FLOPs over peak. Estimates, named `est_`.

They leave out what a small case mostly consists of: launches, waves of thread blocks, the exponentials,
a power cap. A measurement below a bound means that a cache helped or that a peak is wrong.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from profiling.case import Case
from profiling.devices import Device
from profiling.model.flops import flops
from profiling.model.naive import naive_passes
from profiling.model.traffic import traffic


class Bound(NamedTuple):
    """The least time in milliseconds, and what sets it; None where the device's figure is unknown."""

    est_memory_ms: float | None
    est_compute_ms: float | None
    est_latency_ms: float | None
    bound_by: Literal["memory", "compute", ""]


def est_flash(case: Case, device: Device) -> Bound:
    """No fused kernel can be faster: compulsory bytes, and the unmasked pairs' FLOPs with five matmuls.

    Raises:
        InputError: the case is not modelled (see `traffic`).
    """
    return roofline_bound(traffic(case, device).compulsory_bytes, flops(case, "exact"), case.dtype, device)


def est_naive(case: Case, device: Device, variant: str | None = None) -> Bound:
    """The eager baseline, one kernel after another, each bound by its bytes or its FLOPs.

    A bound as long as the score matrix exceeds the cache; below, kernels find their inputs there and can
    be faster.

    Raises:
        InputError: unknown variant.
    """
    steps = naive_passes(case, variant)
    whole = roofline_bound(
        sum(step.read_bytes + step.write_bytes for step in steps),
        sum(step.flops for step in steps),
        case.dtype,
        device,
    )
    if whole.est_latency_ms is None:
        return whole
    each = [
        roofline_bound(step.read_bytes + step.write_bytes, step.flops, case.dtype, device) for step in steps
    ]
    return whole._replace(est_latency_ms=sum(one.est_latency_ms or 0.0 for one in each))


def roofline_bound(moved_bytes: float | None, work: int, dtype: str, device: Device) -> Bound:
    """Bytes over the bandwidth and FLOPs over the peak; None where one of the two is unknown."""
    bandwidth, peak = device.dram_peak_gbs, device.peak_tflops(dtype)
    memory = None if bandwidth is None or moved_bytes is None else moved_bytes / bandwidth / 1e6
    compute = None if peak is None else work / peak / 1e9
    if memory is None or compute is None:
        return Bound(memory, compute, None, "")
    return Bound(memory, compute, max(memory, compute), "memory" if memory >= compute else "compute")
