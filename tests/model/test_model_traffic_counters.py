"""The models of DRAM bytes against the counters of a real H200; what was predicted before it was measured."""

from __future__ import annotations

import csv
import runpy
import statistics
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
# Bytes read by the calls of h200-predictions, by label, as often as they were counted.
COUNTS: dict[str, list[int]] = runpy.run_path(str(COUNTERS.parents[1] / "tests/benchmarks/fit_cache.py"))[
    "counts"
]()

# Calls that are not within 15 %, held to what they are off by: at the foot of the step at d = 64 the model
# loses too much. Beyond the compulsory 0.50 GB it read 0.08, and the model 0.29.
OFF_BY = {("fwd", 64, 81920): (1.25, 1.38), ("fwd", 128, 28672): (1.12, 1.20)}
# Forwards whose K and V of a head outgrow the cache, and of which an SM runs several blocks: the least and
# the most GB read, and modelled over their median.
LOST = {("fwd", 128, 81920): (4.74, 14.81, 0.82), ("fwd", 64, 163840): (13.68, 23.67, 0.73)}


def place(row: Measurement) -> tuple[str, int, int]:
    """Direction, d and N, by which calls are told apart here."""
    return row.case.direction, row.case.head_dim, row.case.seq_len_q


def counts_of(row: Measurement) -> list[int]:
    """Bytes read, as often as they were counted."""
    assert row.dram_read_bytes is not None
    return COUNTS.get(row.case.label.removeprefix("flash_portable "), [row.dram_read_bytes])


def read_and_moved(row: Measurement) -> tuple[float, float]:
    """What the model says over what was counted (the median): of bytes read, and of both together."""
    assert row.dram_write_bytes is not None
    read = statistics.median(counts_of(row))
    moved = traffic(row.case, H200, block_m=row.block_m, block_n=row.block_n).dram
    assert moved is not None
    written = moved.write - min(moved.write, UNWRITTEN_BYTES)
    return moved.read / read, (moved.read + written) / (read + row.dram_write_bytes)


def test_the_counts_at_hand_are_the_runs() -> None:
    """Each call of h200-predictions was counted three to five times, and once by the committed run."""
    rows = load_run(SAMPLES / "h200-predictions.jsonl").measurements
    assert len(rows) == len(COUNTS)
    for row in rows:
        assert 3 <= len(counts_of(row)) <= 5
        assert counts_of(row).count(row.dram_read_bytes or 0) == 1


@pytest.mark.parametrize(
    "row", [row for row in COUNTED if place(row) not in LOST], ids=lambda row: row.case.label
)
def test_dram_model_against_our_kernels(row: Measurement) -> None:
    """Forward and backward, both head dims, within L2 and beyond: DRAM bytes within 15 %, but for two.

    Of bytes read, and of both together. Those two are too high: one at the foot of the step at d = 64.
    """
    least, most = OFF_BY.get(place(row), (0.85, 1.15))
    read, moved = read_and_moved(row)
    assert least <= read <= most
    assert min(1, least) <= moved <= most


def test_where_all_is_lost_the_model_is_low_and_counts_differ() -> None:
    """Two forwards read 1.2 and 1.4 times the model in the median; one was counted at thrice its least count.

    They, and no others, are forwards with small tiles whose K and V of a head do not fit.
    """
    found = {place(row): row for row in COUNTED if place(row) in LOST}
    assert found.keys() == LOST.keys()
    for where, row in found.items():
        least, most, ratio = LOST[where]
        assert min(counts_of(row)) == pytest.approx(least * 1e9, rel=2e-3)
        assert max(counts_of(row)) == pytest.approx(most * 1e9, rel=2e-3)
        assert read_and_moved(row)[0] == pytest.approx(ratio, abs=0.01)
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
    ("fwd", 128, 16, 73728): ((64, 64), 3.42),
    ("fwd", 128, 4, 98304): ((64, 64), 5.28),
    ("fwd", 64, 16, 147456): ((64, 64), 9.65),
    ("bwd", 64, 16, 163840): ((128, 64), 13.27),
}
# What four models before said of the calls of h200-predictions before they were measured, by direction, d,
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
FOURTH = {("fwd", 128, False): {61440: 3.08}, ("bwd", 128, False): {98304: 13.38}}
FOURTH_GROUPED = 3.39  # the forward at d = 128 and N = 65536, of 16 heads on 4 of keys
FIRST_TILES = {("fwd", 128): (128, 128)}  # asked for, as they were the kernel's own when it was predicted


def said_before(case: Case) -> tuple[str, float] | None:
    """Which of the four sets has a call, and the GB read that it predicted."""
    key, asked = (case.direction, case.head_dim, case.causal), case.tile_m is not None
    if case.kv_heads != case.heads:
        of_fourth = (case.kv_heads, case.seq_len_q) == (4, 65536)
        return ("fourth", FOURTH_GROUPED) if of_fourth else None
    for name, said in (("first", FIRST), ("second", SECOND), ("third", THIRD), ("fourth", FOURTH)):
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
    sets = (FIRST, SECOND, THIRD, FOURTH)
    assert len(before) == 1 + sum(len(of) for said in sets for of in said.values())
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
    """Of eight predictions six are within 15 %, then four and three of six, then one of three.

    CONTRIBUTING.md has each, beside the median of what was counted.
    """
    text = (COUNTERS.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    close = dict.fromkeys(("first", "second", "third", "fourth"), 0)
    for row in load_run(SAMPLES / "h200-predictions.jsonl").measurements:
        case, counts, before = row.case, counts_of(row), said_before(row.case)
        assert before is not None
        name, predicted = before
        median, least, most = (f(counts) / 1e9 for f in (statistics.median, min, max))
        close[name] += abs(predicted / median - 1) <= 0.15
        grouped = f", {case.kv_heads} key heads" * (case.kv_heads != case.heads)
        cells = (
            ("forward" if case.direction == "fwd" else "backward") + ", causal" * case.causal + grouped,
            *(f"{case.head_dim}", f"{case.seq_len_q}", f"{predicted:.2f}"),
            f"{median:.2f} ({least:.2f} to {most:.2f}, {len(counts)})",
            *(f"{predicted / median:.2f}", f"{read_and_moved(row)[0]:.2f}"),
        )
        assert f"| {' | '.join(cells)} |" in text
    assert close == {"first": 6, "second": 4, "third": 3, "fourth": 1}


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
