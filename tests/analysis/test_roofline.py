"""Least times: what each ceiling asks for, which one bounds a call, and that none is above a measurement."""

from pathlib import Path

import pandas as pd
import pytest

from profiling.analysis.estimates import with_estimates
from profiling.analysis.roofline import CEILINGS, Moved, ceilings, roofs, with_counters
from profiling.devices import find_device
from profiling.model.flops import flops
from profiling.store import frame, load_run

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
H200 = find_device("H200")


@pytest.fixture(scope="module")
def table():
    """The committed run's table."""
    return frame([load_run(SAMPLES / "h200-standard.jsonl")])


def counters():
    """The table of the committed counters."""
    return frame([load_run(SAMPLES / "h200-counters.jsonl")])


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


@pytest.mark.parametrize("run", ["h200-decode", "h200-features", "h200-tiles"])
def test_nor_in_any_other_run(run):
    """Few queries beside many keys, shared heads, masks, every tile: no bound is above the latency."""
    other = frame([load_run(SAMPLES / f"{run}.jsonl")])
    found = [x for clock in ("device", "graph") for x in roofs(other, clock=clock)]
    assert len(found) > 20
    assert max(x.reached for x in found) <= 1


def test_a_repeated_cache_of_keys_goes_through_dram():
    """Eager attention on grouped heads writes K and V out for every query head: no L2 holds those."""
    decode = frame([load_run(SAMPLES / "h200-decode.jsonl")])
    (x, *_) = (
        x
        for x in roofs(decode)
        if x.case.backend == "naive" and x.case.seq_len_k >= 32768 and x.case.batch >= 8
    )
    assert x.bound_by == "dram"


def test_each_ceiling_is_its_units_work(table):
    """FLOPs over the peak, pairs over 16 a clock and SM, bytes over the bandwidth."""
    x = pick(roofs(table), "flash", 16384)
    assert x.least_ms["tensor"] == pytest.approx(flops(x.case, "exact") / 989.4e9)
    assert x.least_ms["exp"] == pytest.approx(16 * 16384**2 / (16 * 132 * 1.98e6), rel=0.02)
    assert x.least_ms["dram"] == pytest.approx(4 * 16 * 16384 * 128 * 2 / 4.917e9, rel=0.02)
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
    assert pick(found, "naive", 16384).intensity("dram") < pick(found, "flash", 16384).intensity("dram") / 50


def test_counted_bytes_come_before_modelled_ones(table):
    """Where a run has counters, they say how much went through DRAM."""
    counted = table.assign(dram_read_bytes=6144 / 8 * 2 * 3201e3, dram_write_bytes=0.0)
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


def test_the_l2_is_asked_by_tiles_and_by_eager_kernels(table):
    """`flash` asks by the tile that ran, eager kernels once a tensor; of other kernels it is not known."""
    found = roofs(table)
    rate = 6144 * 1.98e9
    flash = pick(found, "flash", 16384)
    ran = (table["backend"] == "flash") & (table["direction"] == "fwd") & (table["seq_len_q"] == 16384)
    (tile,) = table[ran & (table["head_dim"] == 128) & ~table["causal"]]["block_m"].unique()
    asked = 16 * 16384 * 256 * 2 * 16384 / tile
    assert flash.moved["l2"].nbytes == pytest.approx(asked, rel=0.02)
    assert flash.least_ms["l2"] == pytest.approx(asked / rate * 1e3, rel=0.02)
    naive = pick(found, "naive", 16384)
    assert naive.moved["l2"] == naive.moved["dram"]
    assert "l2" in pick(found, "naive", 512).least_ms  # which DRAM says nothing of
    assert "l2" not in pick(found, "sdpa_cudnn", 16384).moved
    assert flash.intensity("l2") < flash.intensity("dram") / 25
    assert pick(found, "sdpa_cudnn", 16384).intensity("l2") is None


def test_the_kernels_for_sm_90_ask_by_their_tile_forward_and_unknown_backward(table):
    """A forward of `flash_hopper` has modelled L2 and DRAM bytes, its backward neither."""
    own = table[(table["backend"] == "flash") & (table["head_dim"] == 128) & (table["batch"] == 1)].copy()
    own["backend"] = "flash_hopper"
    own.loc[own["direction"] != "fwd", ["block_m", "block_n"]] = pd.NA
    found = roofs(with_estimates(own, H200))
    assert set(pick(found, "flash_hopper", 16384).moved) == {"l2", "dram"}
    backward = pick(found, "flash_hopper", 16384, direction="bwd")
    assert backward.moved == {}
    assert backward.bound_by == "tensor"


def test_narrow_tiles_are_bound_by_the_l2(table):
    """Tiles of a quarter of the queries ask the L2 four times as often: it becomes the nearest limit."""
    assert pick(roofs(table), "flash", 16384).bound_by == "tensor"
    narrow = table.assign(est_tile_bytes=4 * table["est_tile_bytes"])
    assert pick(roofs(narrow), "flash", 16384).bound_by == "l2"


def test_ceilings_have_a_rate_and_a_source(table):
    """Four in the catalogue and two measured on an H200; the exponentials' share grows as d falls."""
    case = pick(roofs(table), "flash", 16384).case
    known = ceilings(case, H200.model_copy(update={"measured_l2_gbs": None}), 1980)
    assert [(x.name, x.measured) for x in known] == [
        *(("tensor", False), ("exp", False), ("l2", False), ("dram", False)),
        *(("tensor", True), ("dram", True)),
    ]
    assert all(x.source and x.rate > 0 for x in known)
    assert {x.name for x in known if x.sloped} == {"l2", "dram"}
    by_name = {x.name: x.rate for x in known if not x.measured}
    assert by_name["exp"] == pytest.approx(16 * 132 * 1.98e9 * 4 * 128 / 1e12)
    half = case.model_copy(update={"head_dim": 64, "head_dim_v": 64})
    assert {x.name: x.rate for x in ceilings(half, H200, 1980)}["exp"] == pytest.approx(by_name["exp"] / 2)
    seen = H200.model_copy(update={"measured_l2_gbs": 6000.0})
    assert ("l2", 6.0) in {(x.name, x.rate) for x in ceilings(case, seen, 1980) if x.measured}
    measured = {x.name: x.rate for x in known if x.measured}
    assert measured["tensor"] < by_name["tensor"]
    assert measured["dram"] < by_name["dram"]


def test_what_is_not_known_has_no_ceiling(table):
    """Without a clock neither exponentials nor the L2; without a source no L2; in fp32 no 16-bit product."""
    case = pick(roofs(table), "flash", 16384).case
    assert {x.name for x in ceilings(case, H200, None)} == {"tensor", "dram"}
    assert "l2" not in {x.name for x in ceilings(case, find_device("B200"), 1980)}
    wide = case.model_copy(update={"dtype": "fp32"})
    assert ("tensor", True) not in {(x.name, x.measured) for x in ceilings(wide, H200, 1980)}


def test_counters_of_another_run_are_taken_for_the_same_call(table):
    """`h200-counters` fills the bytes of `h200-standard` where case, device, kernel and torch agree."""
    table, counted = table.assign(kernel_hash="one"), counters().assign(kernel_hash="one")
    filled = with_counters(table, counted)
    assert table["dram_read_bytes"].isna().all()
    own = counted.set_index(["backend", "direction", "seq_len_q", "head_dim", "causal"])
    for n, backend, direction in (
        (16384, "flash", "fwd"),
        (8192, "naive", "bwd"),
        (4096, "sdpa_cudnn", "fwd"),
    ):
        row = own.loc[(backend, direction, n, 128, False)]
        roof = pick(roofs(filled), backend, n, direction)
        assert roof.moved["dram"] == Moved(row["dram_read_bytes"] + row["dram_write_bytes"], True)
        assert roof.moved["l2"] == Moved(row["l2_bytes"], True)
    assert not pick(roofs(filled), "flash", 2048).moved["dram"].counted
    assert max(x.reached for x in roofs(filled)) <= 1
    for changes in ({"kernel_hash": "another"}, {"device_name": "NVIDIA B200"}, {"torch_version": "1.0"}):
        assert with_counters(table, counted.assign(**changes))["dram_read_bytes"].isna().all()


def test_own_counters_stay(table):
    """Rows with counters of their own keep them."""
    counted = counters()
    own = table.assign(dram_read_bytes=5, dram_write_bytes=6, l2_bytes=7)
    assert (with_counters(own, counted)["dram_read_bytes"] == 5).all()
    assert with_counters(table, counted.iloc[:0])["l2_bytes"].isna().all()
