"""The models of DRAM bytes against the counters of a real H200; what was predicted before it was measured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from profiling.case import Case
from profiling.devices import find_device
from profiling.grid import load_sweep
from profiling.model.naive import naive_passes
from profiling.model.traffic import kv_fits_l2_until, traffic
from profiling.records import Measurement
from profiling.store import load_run

COUNTERS = Path(__file__).parents[2] / "data" / "counters_h200.csv"
H200 = find_device("H200")


def counters() -> list[dict[str, str]]:
    """What Nsight Compute read on our H200, a row a kernel."""
    with COUNTERS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


FLASH_ROWS = [row for row in counters() if row["impl"].startswith(("triton_fwd", "sdpa_cudnn"))]


def case_of(row: dict[str, str]) -> Case:
    """The case a row of the counters was read on."""
    n, d, heads = int(row["N"]), int(row["d"]), int(row["H"])
    return Case(
        backend="flash_portable", dtype="fp16", batch=int(row["B"]), heads=heads, kv_heads=heads,
        seq_len_q=n, seq_len_k=n, head_dim=d, head_dim_v=d,
    )  # fmt: skip


@pytest.mark.parametrize("row", FLASH_ROWS, ids=lambda row: f"{row['impl'][:10]}-N{row['N']}")
def test_dram_model_against_counters(row: dict[str, str]) -> None:
    """DRAM bytes of a fused forward on the H200 are within 6 %, from 2k to 131k keys, on either side of L2.

    Writes alone are low in the counters by what still sits in L2 when the kernel ends.
    """
    moved = traffic(case_of(row), H200, block_m=128, block_n=64)
    assert moved.dram is not None
    read, write = int(row["dram_read"]), int(row["dram_write"])
    assert moved.dram.read == pytest.approx(read, rel=0.06)
    assert moved.dram_bytes == pytest.approx(read + write, rel=0.06)


SAMPLES = COUNTERS.parent / "samples"
COUNTED = [
    row
    for run in ("h200-counters", "h200-predictions")
    for row in load_run(SAMPLES / f"{run}.jsonl").measurements
    if row.case.backend == "flash_portable"
]
# Of what a kernel writes, the counter misses what its L2 still holds when it ends: some 9 MB on an H200.
UNWRITTEN_BYTES = 9_400_000


# Calls that are not within 15 %, held to what they are off by: at the foot of the step at d = 64 the model
# loses too much. Beyond the compulsory 0.50 and 0.60 GB they read 0.07 and 0.44, and the model 0.28 and 0.65.
OFF_BY = {("fwd", 64, 81920): (1.25, 1.38), ("fwd", 64, 98304): (1.10, 1.21)}
# Forwards whose K and V of a head outgrow the cache, and of which an SM runs several blocks: GB read, and
# counted / modelled. One count is not enough there: at d = 128 it was 4.74 GB before (commit 91bb79c).
LOST = {("fwd", 128, 81920): (14.81, 2.03), ("fwd", 64, 163840): (23.67, 1.79)}


def place(row: Measurement) -> tuple[str, int, int]:
    """Direction, d and N, by which calls are told apart here."""
    return row.case.direction, row.case.head_dim, row.case.seq_len_q


def read_and_moved(row: Measurement) -> tuple[float, float]:
    """What the model says over what was counted: of bytes read, and of both together."""
    assert row.dram_read_bytes is not None
    assert row.dram_write_bytes is not None
    moved = traffic(row.case, H200, block_m=row.block_m, block_n=row.block_n).dram
    assert moved is not None
    written = moved.write - min(moved.write, UNWRITTEN_BYTES)
    both = row.dram_read_bytes + row.dram_write_bytes
    return moved.read / row.dram_read_bytes, (moved.read + written) / both


@pytest.mark.parametrize(
    "row", [row for row in COUNTED if place(row) not in LOST], ids=lambda row: row.case.label
)
def test_dram_model_against_our_kernels(row: Measurement) -> None:
    """Forward and backward, both head dims, within L2 and beyond: DRAM bytes within 15 %, but for two.

    Of bytes read, and of both together. Those two are at the foot of the step at d = 64, and too high.
    """
    least, most = OFF_BY.get(place(row), (0.85, 1.15))
    read, moved = read_and_moved(row)
    assert least <= read <= most
    assert min(1, least) <= moved <= most


def test_where_all_is_lost_the_model_is_within_a_factor_of_two_or_so() -> None:
    """Two forwards read 1.8 and 2.0 times what blocks in step do; one of them 0.65 times when counted before.

    They, and no others, are forwards with small tiles whose K and V of a head do not fit.
    """
    found = {place(row): row for row in COUNTED if place(row) in LOST}
    assert found.keys() == LOST.keys()
    for where, row in found.items():
        read, over = LOST[where]
        assert row.dram_read_bytes == pytest.approx(read * 1e9, rel=1e-3)
        assert 1 / read_and_moved(row)[0] == pytest.approx(over, abs=0.01)
    row = found["fwd", 128, 81920]
    assert row.dram_read_bytes is not None
    modelled = read_and_moved(row)[0] * row.dram_read_bytes
    assert 4_736_049_408 / modelled == pytest.approx(0.65, abs=0.01)
    beyond = set()
    for row in COUNTED:
        until = kv_fits_l2_until(H200, row.case.head_dim, row.case.dtype)
        assert until is not None
        if row.case.direction == "fwd" and row.case.seq_len_k > until:
            assert row.block_m == row.block_n == 64
            beyond.add(place(row))
    assert beyond == LOST.keys()


def test_our_counters_reach_beyond_l2() -> None:
    """Both directions and both head dims are among them, on either side of where K and V stop fitting."""
    seen = {(row.case.direction, row.case.head_dim) for row in COUNTED}
    assert seen == {("fwd", 64), ("fwd", 128), ("bwd", 64), ("bwd", 128)}
    assert len(COUNTED) >= 35
    beyond = [
        row for row in COUNTED if (row.dram_read_bytes or 0) > 1.2 * traffic(row.case, None).compulsory.read
    ]
    assert {row.case.direction for row in beyond} == {"fwd", "bwd"}


# The tile of flash_portable, and GB read as CONTRIBUTING.md predicts them, by direction, d, key heads and N.
PREDICTED = {
    ("fwd", 128, 16, 61440): ((64, 64), 3.08),
    ("fwd", 128, 4, 65536): ((64, 64), 3.39),
    ("bwd", 128, 16, 98304): ((32, 64), 13.38),
}
# What three models before said of the calls of h200-predictions before they were measured, by direction, d,
# whether causal, and N: CONTRIBUTING.md has the ratio of each to what came.
FIRST = {
    ("fwd", 128, False): {40960: 0.98, 49152: 1.42, 65536: 2.55},
    ("fwd", 64, False): {98304: 3.00, 131072: 7.00},
    ("bwd", 128, False): {24576: 1.06, 49152: 4.28},
    ("bwd", 64, False): {65536: 1.52},
}
SECOND = {
    ("fwd", 128, False): {33792: 0.42, 81920: 7.44},
    ("fwd", 64, False): {114688: 2.25},
    ("fwd", 128, True): {65536: 1.32},
    ("bwd", 128, False): {65536: 6.88},
    ("bwd", 64, False): {98304: 4.44},
}
THIRD = {
    ("fwd", 128, False): {49152: 1.39, 65536: 2.76},
    ("fwd", 64, False): {81920: 0.78, 163840: 13.26},
    ("bwd", 128, False): {81920: 13.14},
    ("bwd", 64, False): {131072: 8.78},
}
FIRST_TILES = {("fwd", 128): (128, 128)}  # asked for, as they were the kernel's own when it was predicted


def said_before(case: Case) -> tuple[str, float] | None:
    """Which of the three sets has a call, and the GB read that it predicted."""
    key, asked = (case.direction, case.head_dim, case.causal), case.tile_m is not None
    if case.kv_heads != case.heads:
        return None
    for name, said in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        of_first = name == "first" and (case.direction, case.head_dim) in FIRST_TILES
        if asked == of_first and case.seq_len_q in said.get(key, {}):
            return name, said[key][case.seq_len_q]
    return None


def test_predictions_are_the_models_and_their_sweep_has_them() -> None:
    """data/sweeps/predictions.toml has exactly the predicted calls and those measured since.

    Of the calls not yet measured the model still says what was written down.
    """
    cases = load_sweep(COUNTERS.parent / "sweeps" / "predictions.toml").cases()
    assert {(c.backend, c.dtype, c.batch, c.heads) for c in cases} == {("flash_portable", "bf16", 1, 16)}
    before = [case for case in cases if said_before(case)]
    measured = load_run(SAMPLES / "h200-predictions.jsonl").measurements
    assert {case.key for case in before} == {row.case.key for row in measured}
    assert len(before) == sum(len(of) for said in (FIRST, SECOND, THIRD) for of in said.values())
    said = {}
    for case in cases:
        if case in before:
            continue
        assert not case.causal
        assert case.tile_m is None
        key = (case.direction, case.head_dim, case.kv_heads, case.seq_len_q)
        tile, _ = PREDICTED[key]
        moved = traffic(case, H200, block_m=tile[0], block_n=tile[1]).dram
        assert moved is not None
        said[key] = round(moved.read / 1e9, 2)
    assert said == {key: read for key, (_, read) in PREDICTED.items()}


def test_what_was_predicted_before_is_told_as_it_came_out() -> None:
    """Of eight predictions six are within 15 %, of six four, of six more one: CONTRIBUTING.md has each."""
    text = (COUNTERS.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    close = {"first": 0, "second": 0, "third": 0}
    for row in load_run(SAMPLES / "h200-predictions.jsonl").measurements:
        case, read, before = row.case, row.dram_read_bytes, said_before(row.case)
        assert read is not None
        assert before is not None
        name, predicted = before
        ratio = predicted * 1e9 / read
        close[name] += abs(ratio - 1) <= 0.15
        now = traffic(case, H200, block_m=row.block_m, block_n=row.block_n).dram
        assert now is not None
        cells = (
            ("forward" if case.direction == "fwd" else "backward") + (", causal" if case.causal else ""),
            *(f"{case.head_dim}", f"{case.seq_len_q}", f"{predicted:.2f}", f"{read / 1e9:.2f}"),
            *(f"{ratio:.2f}", f"{now.read / read:.2f}"),
        )
        assert f"| {' | '.join(cells)} |" in text
    assert close == {"first": 6, "second": 4, "third": 1}


@pytest.mark.parametrize(
    "row", [row for row in FLASH_ROWS if row["impl"].startswith("triton")], ids=lambda row: row["N"]
)
def test_tile_model_bounds_what_l2_was_asked(row: dict[str, str]) -> None:
    """L2 served 0.6 to 0.8 of the tile model's bytes: neighbouring SMs' requests are merged on the way."""
    moved = traffic(case_of(row), H200, block_m=128, block_n=64)
    assert 0.6 < int(row["lts_bytes"]) / moved.tile_bytes < 0.8


def test_naive_model_against_counters() -> None:
    """Beyond L2 each eager kernel moves what its pass says, to 2 % (outputs alone: less what stays in L2)."""
    rows = [row for row in counters() if row["impl"] == "naive" and row["cache_control"] == "all"]
    kernels = {row["kernel"]: int(row["dram_read"]) + int(row["dram_write"]) for row in rows}
    passes = {step.name: step.read_bytes + step.write_bytes for step in naive_passes(case_of(rows[0]))}
    for kernel, step in (("nvjet QK^T", "S = Q Kᵀ"), ("softmax", "softmax"), ("nvjet PV", "O = P V")):
        assert passes[step] == pytest.approx(kernels[kernel], rel=0.02)


EAGER_COUNTED = [
    row
    for row in load_run(COUNTERS.parent / "samples" / "h200-counters.jsonl").measurements
    if row.case.backend == "naive"
]


@pytest.mark.parametrize("row", EAGER_COUNTED, ids=lambda row: row.case.label)
def test_naive_model_against_our_counters(row: Measurement) -> None:
    """DRAM bytes of eager attention are its passes' sum within 3 %, read and written, both directions.

    What stays: up to 2 % more is read than modelled, the more the longer N (0.36 of 17.8 GB in the forward of
    N = 16384); the counters are of the whole call and do not tell which kernel reads again. Of the writes
    6 to 26 MB are missing, which the L2 still holds when the call ends.
    """
    assert row.dram_read_bytes is not None
    assert row.dram_write_bytes is not None
    moved = traffic(row.case, H200).naive
    assert moved.read == pytest.approx(row.dram_read_bytes, rel=0.03)
    assert 0 <= moved.write - row.dram_write_bytes <= 30e6
    assert moved.total == pytest.approx(row.dram_read_bytes + row.dram_write_bytes, rel=0.03)


def test_our_counters_have_the_eager_backward() -> None:
    """Three forwards and two backwards are held to the count, none of them small enough for the L2."""
    assert {(row.case.direction, row.case.seq_len_q) for row in EAGER_COUNTED} == {
        *(("fwd", n) for n in (4096, 8192, 16384)),
        *(("bwd", n) for n in (4096, 8192)),
    }
