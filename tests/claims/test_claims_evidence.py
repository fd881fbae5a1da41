"""Numbers of the evidence, worked out again from raw rows, closed forms and loops."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from profiling.claims import algorithm, held, moved, onchip, speed
from profiling.claims.evidence import AtHand, Evidence, LackingError, curves
from profiling.claims.recurrence import error, inputs, online, softmax, tf32
from profiling.records import Measurement, Run

KIB, GIB = 2**10, 2**30


def values(found: Evidence) -> dict[str, float]:
    """Numbers by label."""
    return {fact.label: fact.value for fact in found.facts}


def measured(runs: list[Run], run_id: str) -> list[Measurement]:
    """The raw measurements of a run."""
    (run,) = (run for run in runs if run.run_id == run_id)
    return [row for row in run.measurements if row.status == "ok"]


def plain(row: Measurement, **fields: object) -> bool:
    """Whether a measurement is of plain attention without a tile asked for, with these fields of its case."""
    case = row.case
    return (
        (case.layout, case.window_left, case.softcap, case.bias, case.sinks, case.alibi, case.tile_m)
        == ("dense", None, None, False, False, False, None)
        and (case.window_right, case.seq_len_q, case.head_dim_v) == (None, case.seq_len_k, case.head_dim)
        and all(getattr(case, name) == value for name, value in fields.items())
    )


# ------------------------------------------------------------------------------------------ from raw rows


def test_what_a_forward_left_is_the_raw_rows(runs: list[Run], hand: AtHand) -> None:
    """Retained bytes over B·H·N·d·e, of the run file's own line at the longest N that both have."""
    found = held.retained(hand)
    shape = {"direction": "bwd", "batch": 1, "heads": 16, "head_dim": 128, "causal": False, "dtype": "bf16"}
    raw = {
        (row.case.backend, row.case.seq_len_k): row.retained_mem_bytes
        for row in measured(runs, "h200-standard")
        if plain(row, **shape) and not row.case.variant and row.retained_mem_bytes is not None
    }
    n = max(n for backend, n in raw if backend == "naive" and ("flash", n) in raw)
    token = 16 * n * 128 * 2
    assert values(found) == {
        "flash, tensors of N·d": pytest.approx(raw["flash", n] / token),  # type: ignore[operator]
        "naive": pytest.approx(raw["naive", n] / token),  # type: ignore[operator]
    }


def test_counted_bytes_are_the_raw_rows(runs: list[Run], hand: AtHand) -> None:
    """The exponents of DRAM bytes by a straight line through the raw lines, and the last ratio."""
    found = moved.counted_growth(hand)
    raw = {
        (row.case.backend, row.case.seq_len_k): row.dram_read_bytes + row.dram_write_bytes
        for row in measured(runs, "h200-counters")
        if plain(row, direction="fwd", head_dim=128, causal=False)
        and row.dram_read_bytes is not None
        and row.dram_write_bytes is not None
    }
    lengths = sorted(n for backend, n in raw if backend == "naive" and ("flash", n) in raw)
    facts = values(found)
    for name in ("naive", "flash"):
        slope = statistics.linear_regression(
            [math.log(n) for n in lengths], [math.log(raw[name, n]) for n in lengths]
        ).slope
        assert facts[f"exponent, {name}"] == pytest.approx(slope)
    last = lengths[-1]
    ratio = next(value for label, value in facts.items() if label.startswith("naive / flash"))
    assert ratio == pytest.approx(raw["naive", last] / raw["flash", last])
    assert dict(found.lines[0].points) == {n: raw["naive", n] for n in lengths}


def test_what_the_backward_wrote_is_the_raw_row(runs: list[Run], hand: AtHand) -> None:
    """DRAM bytes written by a backward over a tensor of N·d, for each fused backend that was counted."""
    facts = moved.gradients_written(hand).facts[:-1]
    assert facts[0].label.startswith("flash,")
    for fact in facts:
        name = fact.label.partition(",")[0]
        counted = [row for run in ("h200-counters", "h200-predictions") for row in measured(runs, run)]
        rows = [row for row in counted if plain(row, direction="bwd", backend=name, head_dim=128)]
        longest = max(rows, key=lambda row: row.case.seq_len_k)
        token = longest.case.heads * longest.case.seq_len_k * 128 * 2
        assert fact.value == pytest.approx(longest.dram_write_bytes / token)  # type: ignore[operator]


def test_short_sequences_are_counted_case_by_case(runs: list[Run], hand: AtHand) -> None:
    """On the device clock: how many forwards up to 512 of all runs flash lost, from the run files."""
    ratios = []
    for run in runs:
        ms = {}
        for row in measured(runs, run.run_id):
            if row.case.variant or row.case.seq_len_k > 512 or not plain(row, direction="fwd"):
                continue
            for clock in row.clocks:
                if clock.clock == "device" and clock.latency_p50_ms is not None:
                    ms[row.case.shape_key, row.case.backend] = clock.latency_p50_ms
        ratios += [
            value / ms[shape, "flash"]
            for (shape, backend), value in ms.items()
            if backend == "naive" and (shape, "flash") in ms
        ]
    fact = next(f for f in speed.short_sequences(hand).facts if f.label.startswith("device"))
    assert fact.value == pytest.approx(sum(ratio < 1 for ratio in ratios) / len(ratios))
    assert f"of {len(ratios)}, " in fact.text


def test_training_is_the_sum_of_both_ways(runs: list[Run], hand: AtHand) -> None:
    """Naive over flash, forward and backward added, at each N of the run file."""
    found = speed.training_speed(hand)
    ms: dict[tuple[str, str, int], float] = {}
    for row in measured(runs, "h200-standard"):
        if row.case.variant or not plain(row, batch=1, heads=16, head_dim=128, causal=False):
            continue
        for clock in row.clocks:
            if clock.clock == "device" and clock.latency_p50_ms is not None:
                ms[row.case.backend, row.case.direction, row.case.seq_len_k] = clock.latency_p50_ms
    drawn = next(line for line in found.lines if line.name == "flash").points
    for n, ratio in drawn.items():
        sums = {name: ms[name, "fwd", n] + ms[name, "bwd", n] for name in ("naive", "flash")}
        assert ratio == pytest.approx(sums["naive"] / sums["flash"])
    assert values(found)["most"] == pytest.approx(max(drawn.values()))


def test_errors_are_the_median_of_the_raw_rows(runs: list[Run], hand: AtHand) -> None:
    """Of all plain forwards of flash in bf16, and of eager's on the same inputs."""
    rows = [
        (row.rel_error, row.eager_rel_error)
        for run in runs
        for row in measured(runs, run.run_id)
        if plain(row, direction="fwd", backend="flash", dtype="bf16", variant="")
        and row.rel_error is not None
        and row.eager_rel_error is not None
        for _ in row.clocks or (None,)
    ]
    facts = values(speed.errors_by_dtype(hand))
    assert facts["bf16, flash"] == pytest.approx(statistics.median(own for own, _ in rows))
    assert facts["bf16, eager"] == pytest.approx(statistics.median(eager for _, eager in rows))


def test_the_best_tile_is_the_fastest_row(runs: list[Run], hand: AtHand) -> None:
    """By head dim, the requested tile of the least latency at the longest N."""
    rows = [
        row
        for row in measured(runs, "h200-tiles")
        if row.case.tile_m is not None and row.case.direction == "fwd" and row.clocks
    ]
    longest = max(row.case.seq_len_k for row in rows)
    for fact in onchip.best_tiles(hand).facts:
        d = int(fact.label.rpartition(" ")[2])
        own = [row for row in rows if (row.case.head_dim, row.case.seq_len_k) == (d, longest)]
        best = min(own, key=lambda row: row.clocks[0].latency_p50_ms or math.inf).case
        assert fact.text == f"{best.tile_m} x {best.tile_n}"


# --------------------------------------------------------------------------------------- closed forms


def test_the_chapters_bill() -> None:
    """321 KiB at 128 x 128; one side at 64 does not fit 192 KiB, both do."""
    assert onchip.bill(128, 128) == 5 * 64 * KIB + KIB
    assert onchip.bill(64, 128) == (32 + 64 + 64 + 32 + 32) * KIB + KIB // 2
    assert onchip.bill(128, 64) == (64 + 32 + 32 + 32 + 64) * KIB + KIB
    assert onchip.bill(64, 64) == (32 * 4 + 16) * KIB + KIB // 2
    assert [
        bill > 192 * KIB for bill in (onchip.bill(64, 128), onchip.bill(128, 64), onchip.bill(64, 64))
    ] == [
        True,
        True,
        False,
    ]


def test_bank_conflicts_bank_by_bank() -> None:
    """The ways, counted over all words that eight rows' chunks touch."""
    for row_bytes, swizzled in (
        (256, False),
        (272, False),
        (256, True),
        (128, False),
        (64, False),
        (512, True),
    ):
        banks: dict[int, set[int]] = {}
        for row in range(8):
            chunk = row if swizzled else 0
            for word in range(4):
                place = (row * row_bytes + chunk * 16) // 4 + word
                banks.setdefault(place % 32, set()).add(place)
        assert onchip.conflicts(row_bytes, swizzled=swizzled) == max(map(len, banks.values()))


def test_products_of_the_backward() -> None:
    """4 of 2 without recompute, 5 fused, 7 split; shares of them as the page says."""
    assert speed.products() == pytest.approx({"naive": 2.0, "fused": 2.5, "split": 3.5})
    facts = values(speed.recompute_share(AtHand(*[None] * 3)))  # type: ignore[arg-type]
    assert list(facts.values()) == pytest.approx([1 / 4, 1 / 6, 3 / 4, 1 / 2])


def test_sizes_of_the_chapters_case(nothing: AtHand) -> None:
    """256 MiB a head; 256 GiB for four matrices of all heads; O is 1 GiB; scores of a token are under 1 %."""
    assert values(held.score_matrix(nothing))["fp32"] == 8192 * 8192 * 4
    assert values(held.one_head(nothing)) == {
        "S, P, dP, dS": GIB,
        "at the peak, training": GIB,
        "at the peak, inference": GIB // 2,
    }
    assert values(held.all_heads(nothing))["four matrices, fp32"] == 256 * GIB
    assert values(held.output_alone(nothing))["O, fp32"] == GIB
    facts = values(speed.decode_bytes(nothing))
    assert facts["keys and values"] == 2 * 32 * 32 * 16384 * 128 * 2
    assert facts["share of the scores"] == pytest.approx(
        facts["scores, eager"] / sum(list(facts.values())[:3])
    )
    assert facts["share of the scores"] < 0.01


def test_traffic_of_the_chapters_case(nothing: AtHand) -> None:
    """Tiles: q, O, a row statistic and K, V once per query tile; compulsory: each once."""
    facts = values(moved.four_series(nothing))
    token = 256 * 8192 * 128 * 2
    rows = 256 * 8192 * 4
    assert facts["tile (asked of L2)"] == 2 * token + rows + 64 * 2 * token
    assert facts["compulsory"] == 4 * token + rows
    assert facts["naive"] > facts["tile (asked of L2)"] > facts["dram"] >= facts["compulsory"]


# --------------------------------------------------------------------------------------- small inputs


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_computed_claims_hold_for_any_seed(seed: int, nothing: AtHand) -> None:
    """Each computed verdict is carried by its numbers, whatever the random input."""
    hand = nothing._replace(seed=seed)
    found = values(algorithm.rescaling(hand))
    assert found["relative error without the factor"] > 0.1 > 1e-12 > found["with it"]
    assert max(values(algorithm.same_result(hand)).values()) < 1e-13
    found = values(algorithm.any_reference(hand))
    assert found.pop("NaN with scores about 1000, reference 0") == 1
    assert max(found.values()) < 1e-13
    found = values(algorithm.gradient_scale(hand))
    assert found["dQ without the scale, over dQ"] == pytest.approx(8)
    assert found["largest distance to finite differences"] < 1e-6
    found = values(algorithm.row_sums(hand))
    assert found["difference over all columns"] < 1e-12 < 0.1 < found["over 64 columns"]
    found = values(algorithm.factor_underflows(hand))
    assert found["factor in fp32"] == 0
    assert found["relative error of the result"] < 1e-12
    found = values(algorithm.scale_and_guard(hand))
    assert math.isnan(found["a row of -∞"])
    assert found["without"] > 10 * found["largest weight with 1/√d"]


def test_another_seed_gives_other_numbers(nothing: AtHand) -> None:
    """What is computed is no constant."""
    for maker in (
        algorithm.rescaling,
        algorithm.scale_and_guard,
        algorithm.gradient_scale,
        algorithm.row_sums,
    ):
        assert maker(nothing).says != maker(nothing._replace(seed=5)).says


def test_an_fp16_sum_stalls_at_2048(nothing: AtHand) -> None:
    """With and without halving; below it is exact."""
    assert algorithm.fp16_sum(2048) == 2048
    assert algorithm.fp16_sum(5000) == algorithm.fp16_sum(5000, rescaled=True) == 2048
    assert values(algorithm.rescaling_a_sum(nothing)) == {
        "fp16, halved": 2048,
        "fp16, untouched": 2048,
        "fp32": 4096,
    }


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_errors_grow_with_coarser_arithmetic(seed: int, nothing: AtHand) -> None:
    """True fp32 stays below 1e-6; storing fp16 is within its rounding; TF32 and fp16 sums are beyond 1e-4."""
    found = values(algorithm.errors_by_arithmetic(nothing._replace(seed=seed)))
    assert found["fp32 throughout"] < 1e-6
    assert 1e-4 < found["fp16 in and out, fp32 sums"] < 2**-11
    assert 1e-4 < found["TF32 products, fp32 sums"] < 2e-3
    assert found["fp16 throughout"] > 2 * found["fp16 in and out, fp32 sums"]


def test_tf32_keeps_ten_bits() -> None:
    """Rounded to the nearest of 2^-10 steps; what has no more bits stays."""
    x = np.array([1.0, 1 + 2**-10, 1 + 2**-12, 1 + 3 * 2**-12, -3.5, 0.0], np.float32)
    assert tf32(x).tolist() == [1.0, 1 + 2**-10, 1.0, 1 + 2**-10, -3.5, 0.0]


def test_the_longest_prompt_is_the_last_that_fits(nothing: AtHand) -> None:
    """Of a 7B model on 24 GiB, counted by hand for flash: weights, a cache of all layers, q, O, two rows."""
    n = int(values(held.seven_b(nothing))["longest N, flash"])

    def needed(n: int) -> int:
        token = 32 * n * 128 * 2
        return round(13.5e9) + 32 * 2 * token + 2 * token + 2 * 4 * 32 * n

    assert needed(n) <= 24 * GIB < needed(n + 1)


def test_the_share_of_attention_is_amdahls(hand: AtHand) -> None:
    """What a saving of 35 % needs, from the median ratio."""
    found = values(speed.decode_speed(hand))
    share = found["attention's share for a saving of 35 %"]
    assert share * (1 - 1 / found["median"]) == pytest.approx(0.35)


@pytest.mark.parametrize("tile", [1, 3, 100, 5000])
def test_the_recurrence_is_the_softmax(tile: int) -> None:
    """For tiles that do not divide the keys, and one that is longer than all of them."""
    x = inputs(3, rows=5, keys=130, d=16)
    assert error(online(x.scores, x.v, tile), softmax(x.scores) @ x.v) < 1e-13


# --------------------------------------------------------------------------------------------- curves


def test_a_kernel_that_has_changed_since_is_said(hand: AtHand) -> None:
    """Where one row of the curve has the flag, its source says so; where none has, it does not."""
    for flag, said in (("stale_kernel;noisy", True), ("noisy", False)):
        plain = hand.plain.assign(flags=flag)
        found = curves(hand._replace(plain=plain), ("flash",), "latency_p50_ms", direction="fwd")
        assert ("changed since" in found.label) is said


def test_curves_take_one_slice_of_one_run(hand: AtHand) -> None:
    """No two rows share a backend and N; what nobody measured is lacking."""
    found = curves(hand, ("naive", "flash"), "latency_p50_ms", direction="fwd")
    own = hand.plain
    for name, points in found.by_backend.items():
        for n, ms in points.items():
            rows = own[(own["name"] == name) & (own["seq_len_k"] == n) & (own["latency_p50_ms"] == ms)]
            assert len(rows) >= 1
    assert found.case.head_dim == 128
    with pytest.raises(LackingError):
        curves(hand, ("naive", "no_such"), "latency_p50_ms")
    with pytest.raises(LackingError):
        curves(hand, ("naive",), "latency_p50_ms", head_dim=7)
