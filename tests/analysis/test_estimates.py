"""Derived columns of the comparison table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from profiling.analysis.estimates import with_estimates
from profiling.case import Case
from profiling.devices import find_device
from profiling.model.traffic import traffic
from profiling.records import DERIVED_FIELDS
from profiling.store import DTYPES, typed

H200 = find_device("H200")


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    """A comparison table; each row changes one `ok` measurement of 2 ms."""
    base: dict[str, Any] = {
        "backend": "flash",
        "variant": "",
        "direction": "fwd",
        "dtype": "bf16",
        "batch": 4,
        "heads": 16,
        "kv_heads": 16,
        "seq_len_q": 4096,
        "seq_len_k": 4096,
        "head_dim": 128,
        "head_dim_v": 128,
        "layout": "dense",
        "causal": False,
        "bias": False,
        "sinks": False,
        "alibi": False,
        "clock": "device",
        "status": "ok",
        "latency_p50_ms": 2.0,
    }
    full = [base | row for row in rows]
    names = {name for row in full for name in row}
    return typed({name: [row.get(name) for row in full] for name in DTYPES if name in names})


def case(**changes: Any) -> Case:
    """The case of `table`'s row."""
    base = {"backend": "flash", "batch": 4, "heads": 16, "kv_heads": 16, "seq_len_q": 4096, "seq_len_k": 4096}
    return Case(**({**base, "head_dim": 128, "head_dim_v": 128} | changes))


@pytest.mark.parametrize(
    ("changes", "work"),
    [
        ({}, 4 * 4 * 16 * 4096**2 * 128),
        ({"causal": True}, 2 * 4 * 16 * 4096**2 * 128),
        ({"direction": "bwd"}, 10 * 4 * 16 * 4096**2 * 128),
        ({"direction": "fwd_bwd", "causal": True}, 7 * 4 * 16 * 4096**2 * 128),
    ],
)
def test_tflops_by_the_papers_count(changes: dict[str, Any], work: int) -> None:
    """4·B·H·N²·d forward, halved when causal, backward 2.5 and both 3.5 times, over the median."""
    out = with_estimates(table(changes), H200)
    assert out["paper_tflops"].iloc[0] == pytest.approx(work / 2e-3 / 1e12)


def test_estimates_are_the_models() -> None:
    """Each row's bytes are those of `traffic` for its case, its variant and the tile that ran."""
    rows = [
        ({}, {}),
        ({"block_m": 64, "block_n": 32}, {"block_m": 64, "block_n": 32}),
        ({"tile_m": 32, "tile_n": 16}, {}),
        ({"tile_m": 32, "tile_n": 16, "block_m": 32, "block_n": 16}, {"block_m": 32, "block_n": 16}),
        ({"backend": "naive", "variant": "fp32_softmax"}, {}),
        ({"direction": "bwd", "causal": True, "kv_heads": 4}, {}),
        ({"seq_len_q": 0}, {}),
    ]
    out = with_estimates(table(*(row for row, _ in rows)), H200)
    for i, (row, tile) in enumerate(rows):
        key = {name: value for name, value in row.items() if not name.startswith("block")}
        moved = traffic(case(**key), H200, **tile)
        for name in ("naive", "tile", "dram", "compulsory"):
            assert out[f"est_{name}_bytes"].iloc[i] == getattr(moved, f"{name}_bytes"), (row, name)


def test_the_fused_backward_is_not_modelled() -> None:
    """Of `flash_hopper`'s backward neither L2 nor DRAM bytes are said; of its forward both, by its tile."""
    hopper = {"backend": "flash_hopper", "block_m": 192, "block_n": 128}
    backward = [{"backend": "flash_hopper", "direction": d} for d in ("bwd", "fwd_bwd")]
    split = {"backend": "flash_hopper", "variant": "deterministic", "direction": "bwd"}
    found = with_estimates(table(hopper, *backward, split, {"direction": "bwd"}), H200)
    assert found["est_tile_bytes"].isna().tolist() == [False, True, True, True, False]
    assert found["est_dram_bytes"].isna().tolist() == [False, True, True, True, False]
    assert found["est_compulsory_bytes"].notna().all()
    assert found["est_naive_bytes"].notna().all()
    assert found["est_tile_bytes"][0] == traffic(case(), H200, block_m=192, block_n=128).tile_bytes


def test_a_cpu_has_no_dram_estimate() -> None:
    """Without a device the cache is unknown; everything else stands."""
    out = with_estimates(table({}, {"backend": "naive"}), None)
    assert out["est_dram_bytes"].isna().all()
    assert out[["est_naive_bytes", "est_tile_bytes", "est_compulsory_bytes"]].notna().all(axis=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "oom", "latency_p50_ms": None},
        {"status": "incorrect"},
        {"latency_p50_ms": None},
        {"latency_p50_ms": 0.0},
        {"seq_len_k": 0},
    ],
)
def test_no_speed_without_a_correct_measurement(changes: dict[str, Any]) -> None:
    """A failed or incorrect row has estimates and no TFLOP/s; nor has one that did no work."""
    out = with_estimates(table(changes), H200)
    assert np.isnan(out["paper_tflops"].iloc[0])
    assert out["est_tile_bytes"].notna().all()


@pytest.mark.parametrize("changes", [{"window_left": 64}, {"bias": True}, {"layout": "varlen"}])
def test_a_case_outside_the_formulas_stays_empty(changes: dict[str, Any]) -> None:
    """Unknown is empty, never 0; the row beside it is filled."""
    out = with_estimates(table(changes, {}), H200)
    bytes_moved = [name for name in DERIVED_FIELDS if name.startswith("est_")]
    assert out[bytes_moved].iloc[0].isna().all()
    assert out[list(DERIVED_FIELDS)].iloc[1].notna().all()


def test_a_window_has_no_tflops_and_other_features_do() -> None:
    """The paper's count ignores windows, so a rate by it would be a boast; a softcap changes no matmul."""
    out = with_estimates(table({"window_left": 64}, {"softcap": 30.0}, {"layout": "varlen"}, {}), H200)
    windowed, capped, packed, plain = out["paper_tflops"]
    assert np.isnan(windowed)
    assert capped == plain
    assert packed < plain


def test_a_row_has_the_same_estimates_alone_and_among_others() -> None:
    """Shapes are computed once for all clocks and backends: no row may take another's numbers."""
    changes: list[dict[str, Any]] = [
        {"backend": backend, "variant": variant, "seq_len_q": n, "causal": causal} | tile
        for backend, variant, tile in (
            ("naive", "", {}),
            ("naive", "fill", {}),
            ("flash", "", {"block_m": 128, "block_n": 64}),
            ("flash", "", {"block_m": 64, "block_n": 64}),
            ("sdpa_flash", "", {}),
            ("flash", "", {"softcap": 30.0}),
            ("flash", "", {"latency_p50_ms": 3.0}),
        )
        for n in (1024, 4096)
        for causal in (False, True)
    ]
    whole = with_estimates(table(*changes), H200)
    alone = pd.concat([with_estimates(table(*changes).iloc[[k]], H200) for k in range(len(changes))])
    pd.testing.assert_frame_equal(whole, alone, check_exact=True)


def test_the_rest_of_the_table_is_untouched() -> None:
    """Index, order, column types and all other values stay; the input is not changed."""
    before = table({}, {"seq_len_q": 128}, {}, {"backend": "naive"})
    before.index = pd.Index([5, 3, 9, 1])
    kept = before.copy(deep=True)
    out = with_estimates(before, H200)
    pd.testing.assert_frame_equal(before, kept)
    others = [name for name in before.columns if name not in DERIVED_FIELDS]
    pd.testing.assert_frame_equal(out[others], before[others])
    assert (out.dtypes == before.dtypes).all()
    assert out["est_tile_bytes"].tolist()[0] == out["est_tile_bytes"].tolist()[2]


def test_an_empty_table() -> None:
    """No rows give no rows, with the same columns and types."""
    empty = table({}).iloc[:0]
    out = with_estimates(empty, H200)
    assert len(out) == 0
    assert (out.dtypes == empty.dtypes).all()


def test_a_shape_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand rows over twenty shapes call the model twenty times: loading stays fast."""
    from profiling.analysis import estimates

    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return traffic(*args, **kwargs)

    monkeypatch.setattr(estimates, "traffic", counted)
    rows = table(*({"seq_len_q": 64 * (i + 1)} for i in range(20)))
    many = pd.concat([rows] * 500, ignore_index=True)
    assert len(with_estimates(many, H200)) == 10_000
    assert len(calls) == 20
