"""Least times: what each ceiling asks for, which one bounds a call, and that none is above a measurement."""

from pathlib import Path

import pytest

from profiling.analysis.roofline import CEILINGS, roofs
from profiling.devices import find_device
from profiling.model.flops import flops
from profiling.store import frame, load_run

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
H200 = find_device("H200")


@pytest.fixture(scope="module")
def table():
    """The committed run's table."""
    return frame([load_run(SAMPLES / "h200-standard.jsonl")])


def pick(found, backend, n, direction="fwd", causal=False):
    """The one of d = 128, batch 1."""
    (one,) = (
        x
        for x in found
        if (x.case.backend, x.case.seq_len_k, x.case.direction, x.case.causal)
        == (backend, n, direction, causal)
        and (x.case.head_dim, x.case.batch, x.case.variant) == (128, 1, "")
    )
    return one


def test_no_ceiling_is_above_what_was_measured(table):
    """A limit is one: no measured call is faster than its bound, on either GPU clock."""
    for clock in ("device", "graph"):
        found = roofs(table, clock=clock)
        assert len(found) > 400
        assert max(x.reached for x in found) <= 1
        for x in found:
            assert x.bound_by == max(x.least_ms, key=lambda name, x=x: x.least_ms[name])
            assert set(x.least_ms) <= set(CEILINGS)


def test_each_ceiling_is_its_units_work(table):
    """FLOPs over the peak, pairs over 16 a clock and SM, bytes over the bandwidth."""
    x = pick(roofs(table), "flash", 16384)
    assert x.least_ms["tensor"] == pytest.approx(flops(x.case, "exact") / 989.4e9)
    assert x.least_ms["exp"] == pytest.approx(16 * 16384**2 / (16 * 132 * 1.98e6), rel=0.02)
    assert x.least_ms["dram"] == pytest.approx(4 * 16 * 16384 * 128 * 2 / 4.8e9, rel=0.02)
    assert x.bound_by == "tensor"
    assert x.paper_tflops == pytest.approx(flops(x.case) / x.latency_ms / 1e9)


def test_what_bounds_whom(table):
    """Long fused calls are bound by tensor cores, long eager ones by DRAM, the shortest by their launch."""
    found = roofs(table)
    assert pick(found, "naive", 16384).bound_by == "dram"
    assert pick(found, "flash", 16384, "bwd").bound_by == "tensor"
    assert pick(found, "flash", 64).bound_by == "launch"
    assert pick(found, "naive", 64).bound_by == "launch"
    assert "dram" not in pick(found, "naive", 512).least_ms  # its scores stay in the cache
    assert pick(found, "naive", 16384).intensity < pick(found, "flash", 16384).intensity / 50


def test_counted_bytes_come_before_modelled_ones(table):
    """Where a run has counters, they say how much went through DRAM."""
    counted = table.assign(dram_read_bytes=4.8e9, dram_write_bytes=0.0)
    assert pick(roofs(counted), "flash", 16384).least_ms["dram"] == pytest.approx(1.0)


def test_a_mask_asks_for_half(table):
    """Unmasked pairs alone count as work: half under a causal mask."""
    found = roofs(table)
    full, half = (pick(found, "flash", 16384, causal=causal) for causal in (False, True))
    assert half.least_ms["tensor"] == pytest.approx(full.least_ms["tensor"] / 2, rel=0.001)


def test_of_an_unknown_device_nothing_is_said(table):
    """No ceilings, no roofs; nor on a clock without rows."""
    assert roofs(table.assign(device_name="Abacus")) == []
    assert roofs(table, clock="pipelined") == []
