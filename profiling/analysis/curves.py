"""Which rows form one curve: everything alike but the backend and the sequence length.

A curve runs along N where Nq = Nk. Where they differ, a curve keeps its number of queries and runs along
the number of keys, as decoding does: one slice per `seq_len_q`, with N = `seq_len_k`. So an operation over
rows, which is like one query a row, runs along its classes.

Runs are never mixed: two runs may share a GPU and still differ in software, clocks or kernels, and only
within a run were backends measured in turns. The same holds within a run that was resumed elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profiling.case import ATTENTION, KEY_FIELDS, Case, InputError, feature_words, rows_label

# What a metric reads. Less is better in every one of them, and only a latency has a clock.
METRICS: dict[str, str] = {"latency": "latency_p50_ms", "memory": "peak_mem_bytes", "energy": "energy_mj"}


# Where a row was measured: rows that differ in any of these are never compared.
ORIGIN_FIELDS = (
    *("run_id", "device_kind", "device_name", "device_uuid"),
    *("torch_version", "triton_version", "driver_version"),
)


class Slice(NamedTuple):
    """What the points of a curve share. None means unlimited, absent, or does not apply.

    `clock` is empty but for latency, `mem_method` but for memory. `seq_len_q` is None where Nq = Nk, else the
    number of queries that stays the same while the keys grow.
    """

    run_id: str
    device_kind: str
    device_name: str
    device_uuid: str
    torch_version: str
    triton_version: str
    driver_version: str
    direction: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    layout: str
    causal: bool
    window_left: int | None
    window_right: int | None
    softcap: float | None
    bias: bool
    sinks: bool
    alibi: bool
    operation: str
    seq_len_q: int | None
    clock: str
    mem_method: str

    @property
    def batch_heads(self) -> int:
        """Batch times query heads: how many attention problems run side by side."""
        return self.batch * self.heads

    @property
    def label(self) -> str:
        """The shape in short, such as `fwd bf16 B2 H16 d128 causal`, without device and clock."""
        if self.operation != ATTENTION:
            return rows_label(self)
        heads = f"H{self.heads}" if self.kv_heads == self.heads else f"H{self.heads}/{self.kv_heads}"
        width = (
            f"d{self.head_dim}" if self.head_dim_v == self.head_dim else f"d{self.head_dim}/{self.head_dim_v}"
        )
        parts = [self.direction, self.dtype, f"B{self.batch}", heads, width]
        if self.seq_len_q is not None:
            parts.append(f"Nq{self.seq_len_q}")
        return " ".join([*parts, *feature_words(self)])

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return self._asdict()

    def case(self, name: str, seq_len: int) -> Case:
        """The case of a backend (or `backend/variant`) at one N of the slice."""
        backend, _, variant = name.partition("/")
        queries = seq_len if self.seq_len_q is None else self.seq_len_q
        shared = {field: value for field, value in self._asdict().items() if field in Case.model_fields}
        own = {"backend": backend, "variant": variant, "seq_len_q": queries, "seq_len_k": seq_len}
        return Case.model_validate(shared | own)


def check_metric(metric: str) -> str:
    """The column a metric reads.

    Raises:
        InputError: there is no such metric.
    """
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}: must be one of {', '.join(METRICS)}")
    return METRICS[metric]


def untiled(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows whose tile was left to the backend: only these are compared across backends."""
    return frame[frame["tile_m"].isna() & frame["tile_n"].isna()]


def backend_names(frame: pd.DataFrame) -> pd.Series:
    """`backend`, or `backend/variant` where a variant was asked for, for each row."""
    plain = frame["backend"]
    return plain.where(frame["variant"] == "", plain + "/" + frame["variant"])


def curve_rows(frame: pd.DataFrame, metric: str = "latency") -> pd.DataFrame:
    """The rows that curves are made of, with `name` (the backend's) and `seq_len` (N) added.

    Rows with a requested tile are left out. Memory and energy are measured once a case, so for `memory` and
    `energy` each case has one row and no clock; but for `memory`, a row's memory method says nothing. Sorted
    by `seq_len`.
    """
    check_metric(metric)
    rows = untiled(frame)
    rows = rows.assign(name=backend_names(rows), seq_len=rows["seq_len_k"].astype("int64"))
    square = (rows["seq_len_q"] == rows["seq_len_k"]) & (rows["operation"] == ATTENTION)
    rows["seq_len_q"] = rows["seq_len_q"].where(~square)
    if metric != "latency":
        rows["clock"] = ""
    if metric != "memory":
        rows["mem_method"] = ""
    else:
        # a case that failed names no method: it belongs to the curve of its run's other cases
        known = rows.loc[rows["mem_method"] != "", ["run_id", "mem_method"]].drop_duplicates("run_id")
        method = rows["run_id"].map(dict(zip(known["run_id"], known["mem_method"], strict=True)))
        rows["mem_method"] = rows["mem_method"].where(rows["mem_method"] != "", method.astype("string"))
        rows["mem_method"] = rows["mem_method"].fillna("")
    if metric != "latency":
        rows = rows.drop_duplicates(subset=[*Slice._fields, "name", "seq_len"])
    return rows.sort_values("seq_len", kind="stable")


def slice_codes(rows: pd.DataFrame) -> tuple[np.ndarray, list[Slice]]:
    """For each of `curve_rows`, the number of its slice; and the slices, in order of first appearance."""
    if rows.empty:
        return np.empty(0, dtype=np.int64), []
    codes = rows.groupby(list(Slice._fields), dropna=False, sort=False).ngroup().to_numpy()
    _, first = np.unique(codes, return_index=True)
    table = rows[list(Slice._fields)].iloc[first].astype(object)
    table = table.where(table.notna(), None)
    return codes, [Slice(*values) for values in table.itertuples(index=False, name=None)]


def by_slice(frame: pd.DataFrame, metric: str = "latency") -> dict[Slice, pd.DataFrame]:
    """`curve_rows` by slice; each table is sorted by `seq_len` and holds every backend and status."""
    rows = curve_rows(frame, metric)
    codes, slices = slice_codes(rows)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(slices) + 1))
    return {
        each: rows.iloc[order[start:stop]]
        for each, start, stop in zip(slices, bounds[:-1], bounds[1:], strict=True)
    }


def cases(rows: pd.DataFrame) -> list[Case]:
    """The case of each row of the comparison table."""
    table = rows[list(KEY_FIELDS)].astype(object)  # Python's own numbers, unknown ones None
    known = table.where(table.notna(), None).itertuples(index=False, name=None)
    return [Case.model_validate(dict(zip(KEY_FIELDS, values, strict=True))) for values in known]
