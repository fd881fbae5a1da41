"""Runs as tables: the comparison table, one row per case and clock, and the raw samples.

What is derived (estimates, TFLOP/s, the `stale_kernel` flag) is not in the files, but added here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from profiling.analysis.estimates import with_estimates
from profiling.case import ATTENTION, KEY_FIELDS, InputError
from profiling.devices import device_of
from profiling.fingerprint import kernel_hash
from profiling.records import (
    CLOCK_COLUMNS,
    COLUMNS,
    ENVIRONMENT_COLUMNS,
    MEASUREMENT_COLUMNS,
    ClockResult,
    Measurement,
    Run,
)
from profiling.store.collector import paused

FLAG_SEPARATOR = ";"

_BOOL_COLUMNS = ("causal", "bias", "sinks", "alibi")
_INT_COLUMNS = (
    *("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "head_dim_v"),
    *("window_left", "window_right", "tile_m", "tile_n", "block_m", "block_n"),
    *("n_samples", "n_rounds", "n_processes", "peak_mem_bytes", "retained_mem_bytes"),
    *("est_naive_bytes", "est_tile_bytes", "est_dram_bytes", "est_compulsory_bytes"),
    *("dram_read_bytes", "dram_write_bytes", "l2_bytes", "reserved_mem_bytes", "process_mem_bytes"),
    *("sm_clock_min_mhz", "sm_clock_max_mhz"),
)
_FLOAT_COLUMNS = (
    *("softcap", "latency_p50_ms", "latency_p20_ms", "latency_p80_ms", "energy_mj"),
    *("rel_error", "eager_rel_error", "paper_tflops", "floor_ms", "resolution_ms", "compile_ms"),
    *("energy_window_s", "tensor_pipe_pct"),
)
# Every column of the comparison table and its pandas dtype. Unknown is <NA> in integers, NaN in floats and
# the empty string in texts.
DTYPES: dict[str, Any] = {
    name: "boolean"
    if name in _BOOL_COLUMNS
    else "Int64"
    if name in _INT_COLUMNS
    else "float64"
    if name in _FLOAT_COLUMNS
    else "string"
    for name in COLUMNS
}
SAMPLE_COLUMNS: tuple[str, ...] = (*KEY_FIELDS, "clock", "process", "round", "order", "ms", "run_id")


def frame(runs: Run | Iterable[Run]) -> pd.DataFrame:
    """The comparison table: one row per case and clock, exactly `records.COLUMNS` with `DTYPES`.

    A failed case has one row per clock that was planned for it; a row that is not `ok` says why. Estimates
    are computed here, with the device of the row's own environment. Rows keep the order of the files.

    Raises:
        InputError: a run has a number that no column holds.
    """
    with paused(), _numbers_fit():
        parts = [_run_frame(run) for run in ([runs] if isinstance(runs, Run) else runs)]
    parts = [part for part in parts if len(part)] or [typed({})]
    return pd.concat(parts, ignore_index=True)


def samples_frame(runs: Run | Iterable[Run]) -> pd.DataFrame:
    """All raw samples: `SAMPLE_COLUMNS`, `ms` one call's milliseconds; summaries alone give no rows.

    Raises:
        InputError: as `frame`.
    """
    measurements = [
        (measurement, run.run_id)
        for run in ([runs] if isinstance(runs, Run) else runs)
        for measurement in run.measurements
    ]
    keys = pd.DataFrame(
        {
            name: pd.array([getattr(m.case, name) for m, _ in measurements], dtype=DTYPES[name])
            for name in KEY_FIELDS
        }
    )
    keys["run_id"] = pd.array([run_id for _, run_id in measurements], dtype="string")
    samples = [sample for m, _ in measurements for sample in m.samples]
    counts = [len(m.samples) for m, _ in measurements]
    out = keys.take(np.repeat(np.arange(len(measurements)), counts)).reset_index(drop=True)
    out["clock"] = pd.array([sample.clock for sample in samples], dtype="string")
    with _numbers_fit():
        for name in ("process", "round", "order"):
            out[name] = np.array([getattr(sample, name) for sample in samples], dtype=np.int64)
    out["ms"] = np.array([sample.ms for sample in samples], dtype=np.float64)
    return out[list(SAMPLE_COLUMNS)]


@contextlib.contextmanager
def _numbers_fit() -> Iterator[None]:
    try:
        yield
    except OverflowError:
        raise InputError("the run holds a number beyond 64 bits, so no table can be made of it") from None


def typed(columns: dict[str, list[Any]]) -> pd.DataFrame:
    """A comparison table from lists; columns not given are unknown throughout, the operation attention."""
    length = max((len(values) for values in columns.values()), default=0)
    columns = {"operation": [ATTENTION] * length} | columns
    data: dict[str, Any] = {}
    for name, dtype in DTYPES.items():
        data[name] = _array(name, columns.get(name, [""] * length if dtype == "string" else [None] * length))
    return pd.DataFrame(data)


def _array(name: str, values: Sequence[Any]) -> Any:
    """A column's values in its dtype; None becomes <NA>, or NaN."""
    dtype = DTYPES[name]
    if dtype == "float64":
        return np.array(values, dtype=np.float64)
    return pd.array(list(values), dtype=dtype)


def _run_frame(run: Run) -> pd.DataFrame:
    rows = [
        (number, clock)
        for number, m in enumerate(run.measurements)
        for clock in _clocks(m, run.header.clocks)
    ]
    if not rows:
        return typed({})
    cases = _case_columns(run)
    owner = np.array([number for number, _ in rows])
    columns: dict[str, Any] = {name: values.take(owner) for name, values in cases.items()}
    for name, values in _clock_columns(run, rows).items():
        columns[name] = _array(name, values)
    unknown = [name for name in COLUMNS if name not in columns]  # what is derived
    columns |= {name: _array(name, [None] * len(rows)) for name in unknown}
    table = pd.DataFrame({name: columns[name] for name in COLUMNS})
    owners = np.array([m.environment for m in run.measurements])[owner]
    parts = [
        with_estimates(table[owners == number], device_of(run.environments[number]))
        for number in sorted(set(owners.tolist()))
    ]
    return pd.concat(parts).sort_index()[list(COLUMNS)].astype(DTYPES)


def _case_columns(run: Run) -> dict[str, Any]:
    """What is the same on all clocks of a case: an array of its column's dtype, a value a case."""
    columns = _fields([m.case for m in run.measurements], KEY_FIELDS)
    columns |= _fields([run.environments[m.environment] for m in run.measurements], ENVIRONMENT_COLUMNS)
    columns |= _fields(run.measurements, MEASUREMENT_COLUMNS)
    columns["run_id"] = [run.run_id] * len(run.measurements)
    return {name: _array(name, values) for name, values in columns.items()}


def _fields(records: Sequence[BaseModel], names: Sequence[str]) -> dict[str, list[Any]]:
    """Fields of records by name. From their dictionaries: a million look-ups by attribute take a second."""
    own = [vars(record) for record in records]
    return {name: [values[name] for values in own] for name in names}


def _clock_columns(run: Run, rows: Sequence[tuple[int, ClockResult]]) -> dict[str, list[Any]]:
    """What belongs to one clock of a case, for each row: the case's number and the clock."""
    columns = _fields([clock for _, clock in rows], ("clock", *CLOCK_COLUMNS))
    asked = [(m.case.backend, m.case.operation) for m in run.measurements]
    at_hand = {each: kernel_hash(*each) for each in set(asked)}
    stale = [
        bool(m.kernel_hash) and at_hand[each] not in ("", m.kernel_hash)
        for m, each in zip(run.measurements, asked, strict=True)
    ]
    columns |= {"status": [], "reason": [], "flags": []}
    for number, clock in rows:
        m = run.measurements[number]
        columns["status"].append(m.status if m.status != "ok" else clock.status)
        columns["reason"].append(m.reason if m.status != "ok" else clock.reason or m.reason)
        flags = dict.fromkeys(flag for flag in (*m.flags, *clock.flags) if flag != "stale_kernel")
        columns["flags"].append(FLAG_SEPARATOR.join([*flags, *["stale_kernel"] * stale[number]]))
    return columns


def _clocks(measurement: Measurement, planned: Sequence[str]) -> list[ClockResult]:
    """The rows of a case: its own clocks and, when it failed, the planned ones it never came to."""
    clocks = list(measurement.clocks)
    if measurement.status != "ok":
        seen = {clock.clock for clock in clocks}
        clocks += [ClockResult(clock=name) for name in planned if name not in seen]
    return clocks or [ClockResult(clock="")]
