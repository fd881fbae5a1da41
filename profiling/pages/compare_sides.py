"""What the page Compare sets side by side: a run of the folder, a file brought along, a published result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from profiling import store
from profiling.analysis.operations import attention_rows
from profiling.case import Case, InputError
from profiling.model.flops import flops
from profiling.pages import state, widgets
from profiling.pages.data import read_upload

FILE = "file: "
PUBLISHED = "published: "
# A published number names no clock; most were taken between events of the GPU, as this one is.
PUBLISHED_CLOCK = "device"
_SIXTEEN_BITS = ("fp16", "bf16")
_METRICS = ("latency_ms", "paper_tflops")
_SHAPE = ["batch", "heads", "seq_len", "head_dim", "causal"]


class Side(NamedTuple):
    """One side of a comparison; shared between sessions, so never changed in place.

    Attributes:
        name: as it was chosen.
        key: what caches know it by; another content has another key.
        frame: the comparison table with the pages' axes.
        samples: the raw samples; None where there are none.
        about: where and when, as plain text.
        command: what the command line calls it; empty where it cannot.
        note: what a reader must know of it (Markdown, escaped); empty if nothing.
    """

    name: str
    key: tuple[Any, ...]
    frame: pd.DataFrame
    samples: pd.DataFrame | None
    about: str
    command: str = ""
    note: str = ""


def run_side(info: store.RunInfo) -> Side:
    """A run of the data folder.

    Raises:
        InputError: it cannot be read.
        FileNotFoundError: it is gone.
    """
    loaded = state.load(info.path)
    header = loaded.run.header
    commit = f", commit {header.environment.git_commit[:9]}" if header.environment.git_commit else ""
    return Side(
        loaded.name,
        tuple(loaded.stamp),
        loaded.frame,
        state.samples(loaded.stamp),
        f"{header.environment.device_name}, {header.created_at[:10]}{commit}",
        loaded.name,
    )


def file_side(content: bytes, name: str) -> Side:
    """A run file or a comparison CSV that a browser sent; nothing of it is written to the data folder.

    Raises:
        InputError: it cannot be taken in, or has no row.
    """
    digest = hashlib.sha256(content).hexdigest()
    return _file_side(digest, name, content)


@st.cache_resource(max_entries=4, show_spinner="Reading the file")
def _file_side(digest: str, name: str, _content: bytes) -> Side:
    runs = read_upload(_content, name).runs
    table = store.frame(runs)
    if table.empty:
        raise InputError(f"{name}: no row of it can be compared")
    devices = ", ".join(sorted({run.header.environment.device_name for run in runs}))
    samples = store.samples_frame(runs)
    known = samples if len(samples) else None
    return Side(f"{FILE}{name}", (digest, name), state.with_axes(table), known, devices, name)


def only(side: Side, backend: str) -> Side:
    """A side without what a published result cannot have: other backends, clocks and operations."""
    frame = attention_rows(side.frame)
    frame = frame[(frame["backend"] == backend) & (frame["clock"] == PUBLISHED_CLOCK)]
    return side._replace(frame=frame, key=(*side.key, backend))


def published_names(table: pd.DataFrame) -> list[str]:
    """What of the published results can stand on a side: device, dtype and method, with whole shapes."""
    rows = _whole(table)
    names = {_name(*key) for key in zip(rows["device_name"], rows["dtype"], rows["method"], strict=True)}
    return sorted(names)


def published_side(table: pd.DataFrame, name: str, backend: str, dtypes: tuple[str, ...]) -> Side:
    """Published results of one method, set in the place of `backend`.

    Args:
        table: as `load_published` returns it.
        name: of `published_names`.
        backend: of the other side, whose rows they are held against.
        dtypes: of the other side: fp16 takes the place of bf16 and the reverse where only that is there,
            because the tensor cores of GPUs run both at one rate.
    """
    rows = _whole(table)
    keys = zip(rows["device_name"], rows["dtype"], rows["method"], strict=True)
    own = rows[[_name(*key) == name for key in keys]]
    dtype = str(own["dtype"].iloc[0])
    other = next((each for each in _SIXTEEN_BITS if each != dtype and each in dtypes), dtype)
    stands_for = dtype if dtype in dtypes or dtype not in _SIXTEEN_BITS else other
    frame = state.with_axes(published_frame(own, backend, stands_for))
    sources = "; ".join(sorted({str(source) for source in own["source"]}))
    about = f"{own['device_name'].iloc[0]}, {dtype}, {sources}"
    note = f"Published numbers stand in the place of {widgets.plain(backend)}, on the {PUBLISHED_CLOCK} clock"
    note += (
        " (which clock they were taken by is not always told). A rate was turned into a time by the paper's"
    )
    note += " count of FLOPs."
    if stands_for != dtype:
        note += f" They were measured in {dtype} and are set beside {stands_for}."
    return Side(name, (name, backend, stands_for), frame, None, about, note=note)


def published_frame(rows: pd.DataFrame, backend: str, dtype: str) -> pd.DataFrame:
    """Published rows as a comparison table of summaries: one row each, on the device clock.

    Args:
        rows: as `load_published` returns them, all of whole shapes, with a latency or a rate.
        backend: whose place they take.
        dtype: likewise.
    """
    columns: dict[str, list[Any]] = {}
    for row in state.records(rows):
        case = Case.model_validate(
            {"backend": backend, "direction": row.direction, "dtype": dtype}
            | {"batch": int(row.batch), "heads": int(row.heads), "kv_heads": int(row.heads)}
            | {"seq_len_q": int(row.seq_len), "seq_len_k": int(row.seq_len)}
            | {"head_dim": int(row.head_dim), "head_dim_v": int(row.head_dim), "causal": bool(row.causal)}
        )
        ms = row.value if row.metric == "latency_ms" else flops(case) / row.value / 1e9
        values: Mapping[str, Any] = case.model_dump() | {
            "run_id": f"{row.source}, {row.figure}",
            "device_kind": "cuda",
            "device_name": row.device_name,
            "clock": PUBLISHED_CLOCK,
            "status": "ok",
            "latency_p50_ms": float(ms),
        }
        for name in store.DTYPES:
            empty = "" if store.DTYPES[name] == "string" else None
            columns.setdefault(name, []).append(values.get(name, empty))
    return store.typed(columns)


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that tell a time or a rate of a whole shape."""
    return table[table["metric"].isin(_METRICS) & table[_SHAPE].notna().all(axis=1)]


def _name(device: object, dtype: object, method: object) -> str:
    return f"{PUBLISHED}{device} {dtype}, {method}"
