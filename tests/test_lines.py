"""Rows of the comparison table become the lines of a chart."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from synthetic import failed_measurement, synthetic_case, synthetic_run

from profiling import lines, store
from profiling.analysis.axes import records, with_axes
from profiling.case import Case
from profiling.figures.series import Point, Series
from profiling.records import Run


def frame(run: Run) -> pd.DataFrame:
    """The table of a run with the columns that charts go by."""
    return with_axes(store.frame(run))


def gpu_run(**changes: Any) -> Run:
    """Forward, d = 64, no mask, on three clocks, naive out of memory at the end."""
    axes: dict[str, Any] = {"head_dims": (64,), "rounds": 3, "samples_per_round": 2}
    axes |= {"clocks": ("wall", "device", "graph"), "oom_from": {"naive": 16384}}
    return synthetic_run(**{**axes, **changes})


def run_of(case: Case) -> Run:
    """A run of one failed case: what is asked for is in the key."""
    run = synthetic_run(seq_lens=(64,))
    return Run(header=run.header, measurements=(failed_measurement(case),), environments=run.environments)


def test_time_per_token_counts_the_tokens_there_are() -> None:
    """Packed sequences are shorter than the longest one, whose length a row names."""
    case = synthetic_case("flash", 1000, batch=4, layout="varlen")
    (row,) = records(frame(run_of(case)).head(1))
    assert lines.query_tokens(row) == sum(n for n, _ in case.lengths) < 4000
    (row,) = records(frame(run_of(synthetic_case("flash", 1000, batch=4))).head(1))
    assert lines.query_tokens(row) == 4000


def test_failed_rows_become_failures_and_the_rest_points() -> None:
    """A line has a point per `ok` row and a failure per other row, in order of N, not of the file."""
    run = gpu_run(seq_lens=(4096, 64, 16384))
    table = frame(run)
    naive, flash = lines.series(table[table["clock"] == "device"], lines.LATENCY)
    assert [p.seq_len for p in naive.points] == [64, 4096]
    assert [(f.seq_len, f.status) for f in naive.failures] == [(16384, "oom")]
    assert [p.seq_len for p in flash.points] == [64, 4096, 16384]
    first = flash.points[0]
    assert first.low is not None
    assert first.high is not None
    assert first.low <= first.value <= first.high
    assert any("samples" in line for line in first.details)


def test_a_rate_turns_its_whisker_round() -> None:
    """The slow end of the latency (p80) is the low end of the rate."""
    table = frame(gpu_run(seq_lens=(1024,)))
    row = table[(table["clock"] == "device") & (table["name"] == "flash")].iloc[0]
    (point,) = lines.series(table[table["clock"] == "device"], lines.TFLOPS)[1].points
    work = row["paper_tflops"] * row["latency_p50_ms"]
    assert point.low == pytest.approx(work / row["latency_p80_ms"])
    assert point.high == pytest.approx(work / row["latency_p20_ms"])


def test_summaries_without_samples_are_hollow() -> None:
    """An imported table has quantiles but no samples: its points are drawn hollow."""
    table = frame(gpu_run(seq_lens=(64, 128)))
    table = table[table["clock"] == "device"].assign(n_samples=0)
    assert all(series.summary for series in lines.series(table, lines.LATENCY))


def test_ratios_need_both_sides() -> None:
    """baseline / backend where both have a value; above 1 is faster; no baseline, no ratio."""
    naive = Series("naive", (Point(64, 2.0), Point(128, 4.0)))
    flash = Series("flash", (Point(128, 1.0), Point(256, 3.0)))
    (ratio,) = lines.ratios([naive, flash], "naive")
    assert [(p.seq_len, p.value) for p in ratio.points] == [(128, 4.0)]
    assert lines.ratios([naive, flash], "tiled") == ()
