"""Published results over a curve: which fit, how they are drawn, and that nobody takes them for ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from drawing import draw, figures, texts
from page_runs import gpu_run

from profiling.case import InputError
from profiling.pages import published, state
from profiling.store import frame
from profiling.store.published import load_published

Show = Callable[..., Path]
H100 = "H100-80GB-SXM5 fp16"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Everything that is committed."""
    return load_published()


def shown(run: Any = None, **fields: Any) -> pd.DataFrame:
    """The rows of one slice, forward without a mask and d = 128 unless said otherwise."""
    rows = state.with_axes(frame(run or gpu_run()))
    for name, value in {
        "direction": "fwd",
        "head_dim": 128,
        "causal": False,
        "clock": "device",
        **fields,
    }.items():
        rows = rows[rows[name] == value]
    assert len(rows)
    return rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_rates_fit_by_direction_width_and_mask(table: pd.DataFrame, direction: str, causal: bool) -> None:
    """Of any batch and heads, but nothing whose mask, N or d is unknown or another one."""
    rows = published.matching(table, shown(direction=direction, causal=causal), "paper_tflops")
    assert len(rows) >= 4
    assert set(rows["direction"]) == {direction}
    assert set(rows["head_dim"]) == {128}
    assert set(rows["causal"]) == {causal}
    assert set(rows["metric"]) == {"paper_tflops"}
    assert rows["seq_len"].notna().all()
    assert rows["set"].str.endswith(("fp16", "bf16")).all()


def test_a_latency_is_of_the_same_batch_and_heads(table: pd.DataFrame) -> None:
    """Milliseconds of another batch say nothing: FlashAttention's Table 9 is for B 16 and H 8 alone."""
    assert not len(published.matching(table, shown(head_dim=64), "latency_ms"))
    run = gpu_run(batch_heads=((16, 8),))
    rows = published.matching(table, shown(run, head_dim=64), "latency_ms")
    assert len(rows) > 20
    assert set(zip(rows["batch"], rows["heads"], strict=True)) == {(16, 8)}


@pytest.mark.parametrize("changes", [{"kv_heads": 4}, {"plain": False}])
def test_what_others_did_not_measure_has_no_overlay(table: pd.DataFrame, changes: dict[str, Any]) -> None:
    """Shared KV heads, a window, a bias: no published number is of these."""
    rows = shown().assign(**changes)
    assert not len(published.matching(table, rows, "paper_tflops"))
    assert not len(published.matching(table, rows.iloc[:0], "paper_tflops"))
    assert not len(published.matching(table, shown(), "hbm"))


def test_each_point_has_its_source(table: pd.DataFrame) -> None:
    """A series a method and paper: open markers, not joined, source, device and shape in the hover."""
    rows = published.matching(table, shown(), "paper_tflops")
    rows = rows[rows["set"] == H100]
    drawn = published.series(rows)
    assert sum(len(s.points) for s in drawn) == len(rows)
    for s in drawn:
        assert s.summary
        assert not s.joined
        assert s.label.endswith("(published)")
        for point in s.points:
            assert "arXiv" in point.details[0]
            assert point.details[1] == "H100-80GB-SXM5, fp16"
            assert any(line.startswith("read from: ") for line in point.details)
    third = next(s for s in drawn if s.label == "FlashAttention-3 (published)")
    values = rows[(rows["method"] == "FlashAttention-3")]["value"]
    assert sorted(point.value for point in third.points) == sorted(values)


def test_the_caption_names_the_source_and_another_gpu(table: pd.DataFrame) -> None:
    """Whose numbers they are; and, in bold, where device or dtype differ."""
    rows = published.matching(table, shown(), "paper_tflops")
    rows = rows[rows["set"] == H100]
    said = published.caption(rows, is_own=False)
    assert "not measured here" in said
    assert "FlashAttention\\-3 arXiv\\:2407\\.08608" in said
    assert "another GPU or dtype" in said
    assert "another GPU" not in published.caption(rows, is_own=True)


def test_off_until_asked_for(show: Show) -> None:
    """By default the page draws only what was measured; chosen, the others' points lie over the rates."""
    show("h200-standard")
    app = draw("latency", show="TFLOP/s")
    assert not any("(published)" in trace["name"] for trace in figures(app)[0]["data"])
    assert "published" not in texts(app)
    options = next(box.options for box in app.selectbox if box.label == "Published results")
    assert options[0] == "none"
    assert H100 in options
    app = draw("latency", show="TFLOP/s", published=H100)
    traces = [trace for trace in figures(app)[0]["data"] if "(published)" in trace["name"]]
    assert len(traces) >= 5
    for trace in traces:
        assert trace["mode"] == "markers"
        assert trace["marker"]["symbol"].endswith("-open")
        assert trace["yaxis"] == "y"  # there is no ratio to a baseline that was measured elsewhere
    assert "That is another GPU or dtype than this run's." in texts(app)
    ticks = figures(app)[0]["layout"]["xaxis2"]["tickvals"]
    assert 8448 not in ticks


def test_a_choice_that_fits_nothing_is_no_error(show: Show) -> None:
    """An address from the rates' view, opened on latencies: no drop-down, nothing laid over."""
    show("h200-standard")
    app = draw("latency", show="latency", published=H100)
    assert not any(box.label == "Published results" for box in app.selectbox)
    assert not any("(published)" in trace["name"] for trace in figures(app)[0]["data"])


def test_files_that_cannot_be_read_cost_the_overlay_alone(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken CSV is a warning with its place; the page draws what was measured."""

    def broken() -> pd.DataFrame:
        raise InputError("others.csv line 3, value: must be a number")

    monkeypatch.setattr(published, "_load", broken)
    show("h200-standard")
    app = draw("latency", show="TFLOP/s")
    assert any("others\\.csv line 3" in str(warning.value) for warning in app.warning)
    assert figures(app)
