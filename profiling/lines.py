"""Rows of the comparison table (with `analysis.axes`) -> the series a chart draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from profiling import units
from profiling.analysis.axes import names, records
from profiling.analysis.operations import along_of
from profiling.case import KEY_FIELDS, Case, ragged_lengths
from profiling.figures.series import Failure, Point, Series
from profiling.figures.traffic import Counted


class Reading(NamedTuple):
    """How to read one value of a row: its column, its whisker's columns, and a scale.

    `scale` takes the row and returns the factor that turns the column into the metric's unit.
    """

    column: str
    low: str = ""
    high: str = ""
    scale: Callable[[Any], float] = lambda row: 1.0
    inverse: bool = False  # the metric falls when the whisker's columns rise: p80 of time is the low rate


def query_tokens(row: Any) -> int:
    """The queries of a row's whole batch: packed sequences have their own lengths, logits one a row."""
    if row.layout == "varlen":
        return sum(ragged_lengths(row.batch, row.seq_len_q))
    return row.batch * row.seq_len_q


LATENCY = Reading("latency_p50_ms", "latency_p20_ms", "latency_p80_ms")
PER_TOKEN = LATENCY._replace(scale=lambda row: 1e6 / max(1, query_tokens(row)))
PEAK_MEMORY = Reading("peak_mem_bytes")
RETAINED_MEMORY = Reading("retained_mem_bytes")
TFLOPS = Reading("paper_tflops", inverse=True)


def series(frame: pd.DataFrame, reading: Reading) -> tuple[Series, ...]:
    """One series per backend of a table that holds one slice and one clock.

    A row that is not `ok` becomes a failure; an `ok` row without this value (a run without memory, say)
    gives nothing.
    """
    out = []
    along = along_of(frame)
    for name in names(frame):
        points, failures = [], []
        rows = frame[frame["name"] == name].sort_values("seq_len")
        for row in records(rows):
            if row.status != "ok":
                failures.append(Failure(int(row.seq_len), str(row.status), str(row.reason), key_of(row)))
                continue
            value = getattr(row, reading.column)
            if pd.isna(value):
                continue
            low, high = _whisker(row, reading, float(value))
            factor = reading.scale(row)
            points.append(
                Point(
                    int(row.seq_len),
                    float(value) * factor,
                    None if low is None else low * factor,
                    None if high is None else high * factor,
                    details(row),
                    key_of(row),
                )
            )
        if points or failures:
            summary = bool(len(rows)) and bool((rows["n_samples"].fillna(0) == 0).all()) and bool(points)
            out.append(Series(name, tuple(points), tuple(failures), summary=summary, along=along))
    return tuple(out)


def case_of(row: Any) -> Case:
    """The case of a row of the comparison table."""
    values = {name: getattr(row, name) for name in KEY_FIELDS}
    return Case.model_validate({name: None if pd.isna(v) else v for name, v in values.items()})


def key_of(row: Any) -> str:
    """The label of a row's case, by which a point of a chart is known."""
    return case_of(row).label


def _whisker(row: Any, reading: Reading, value: float) -> tuple[float | None, float | None]:
    """The ends of a row's whisker in the column's unit, low first."""
    if reading.inverse:  # a rate: the work over p80 and p20 of the latency
        p20, p50, p80 = row.latency_p20_ms, row.latency_p50_ms, row.latency_p80_ms
        if pd.isna(p20) or pd.isna(p80) or pd.isna(p50):
            return None, None
        return value * p50 / p80, value * p50 / p20
    if not reading.low:
        return None, None
    low, high = getattr(row, reading.low), getattr(row, reading.high)
    return (None, None) if pd.isna(low) or pd.isna(high) else (float(low), float(high))


def details(row: Any) -> tuple[str, ...]:
    """What a hover says of a row beyond its value: spread, samples, tile, error, flags."""
    lines = []
    if not pd.isna(row.latency_p20_ms):
        spread = f"{units.time_text(row.latency_p20_ms)} to {units.time_text(row.latency_p80_ms)}"
        lines.append(f"p20 to p80: {spread}, {row.clock} clock")
    if not pd.isna(row.n_samples):
        lines.append(
            f"{units.count_text(row.n_samples)} samples, {units.count_text(row.n_rounds)} rounds, "
            f"{units.count_text(row.n_processes)} processes"
        )
    if not pd.isna(row.block_m):
        lines.append(f"tile {row.block_m}×{row.block_n}")
    if not pd.isna(row.rel_error):
        eager = "" if pd.isna(row.eager_rel_error) else f", eager {units.number_text(row.eager_rel_error)}"
        lines.append(f"relative error {units.number_text(row.rel_error)}{eager}")
    if row.flags:
        lines.append(f"flags: {row.flags}")
    return tuple(lines)


def counted(frame: pd.DataFrame, scale: float = 1.0) -> tuple[Counted, ...]:
    """The hardware counters of a slice's cases as points, DRAM and L2, in bytes divided by `scale`."""
    rows = frame[frame["status"] == "ok"]
    rows = rows.assign(dram_bytes=rows["dram_read_bytes"] + rows["dram_write_bytes"])
    out = []
    for level, column in (("DRAM", "dram_bytes"), ("L2", "l2_bytes")):
        known = rows[rows[column].notna()].drop_duplicates(subset=["name", "seq_len"])
        for s in series(known, Reading(column)):
            points = tuple(p._replace(value=p.value / scale) for p in s.points)
            out.append(Counted(s.name, s.name, level, points))
    return tuple(out)


def ratios(lines: Sequence[Series], baseline: str) -> tuple[Series, ...]:
    """baseline / backend at each N where both have a value; the baseline itself is left out.

    The numbers must be such that lower is better, so that above 1 the backend is ahead.
    """
    reference = next((s for s in lines if s.name == baseline), None)
    if reference is None:
        return ()
    of = {p.seq_len: p.value for p in reference.points}
    out = []
    for s in lines:
        points = tuple(
            Point(p.seq_len, of[p.seq_len] / p.value, key=p.key)
            for p in s.points
            if s.name != baseline and p.seq_len in of and p.value > 0
        )
        if points:
            out.append(s._replace(points=points, failures=()))
    return tuple(out)
