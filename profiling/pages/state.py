"""What a page looks at: the data folder, the chosen run, and the filters, which live in the URL.

Every filter is a widget bound to a query parameter of its key's name, so the address of a page is the
view. Streamlit keeps a bound value in the session too: it is still there on the next page.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from profiling import store
from profiling.analysis.curves import backend_names
from profiling.case import BACKENDS, CLOCKS, DIRECTIONS, DTYPE_BYTES
from profiling.devices import Device, device_of
from profiling.paths import DATA_DIR
from profiling.records import Run

DEFAULT_RUN = "h200-standard"
DATA_VARIABLE = "FLASHSCOPE_DATA"
CANDIDATES = ("flash", "sdpa_flash", "sdpa", "sdpa_cudnn", "tiled", "naive_compiled")
RUN_KEY = "run"
TILE_RUN_KEY = "tile_run"
CLOCK_HELP = (
    "wall: one eager call, launch included. pipelined: many calls, one synchronise. "
    "device: GPU events, cold L2. graph: replay of a CUDA graph, rotating buffers. "
    "graph_hot: the same on hot caches."
)


class Stamp(NamedTuple):
    """A file as it was: its path, modification time (ns) and size (bytes). The key of every cache here."""

    path: Path
    mtime_ns: int
    size: int


class Loaded(NamedTuple):
    """A run as pages use it; shared between sessions, so never changed in place.

    `frame` is the comparison table with five columns more, made of its key fields: `seq_len` (N), `name`
    (backend/variant), `series` (batch and heads), `mask` and `other` (anything else that sets cases apart).
    """

    stamp: Stamp
    run: Run
    frame: pd.DataFrame
    device: Device | None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.run.run_id


# ------------------------------------------------------------------------------------------- data folder


def data_dir() -> Path:
    """The folder with `samples/` and `runs/`.

    `--data DIR` after `--` on the command line, else $FLASHSCOPE_DATA, else the checkout's `data/`.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--data")
    try:
        asked = parser.parse_known_args(sys.argv[1:])[0].data
    except argparse.ArgumentError:  # `--data` without a folder
        asked = None
    asked = asked or os.environ.get(DATA_VARIABLE)
    return Path(asked).expanduser().resolve() if asked else DATA_DIR


def runs() -> list[store.RunInfo]:
    """The run files of the data folder, read again only when one of them changed."""
    folder = data_dir()
    paths = [p for name in store.RUN_FOLDERS for p in (folder / name).glob("*.jsonl")]
    return _runs(folder, tuple(sorted(s for s in map(stamp, paths) if s is not None)))


@st.cache_data(max_entries=4, show_spinner=False)
def _runs(folder: Path, stamps: tuple[Stamp, ...]) -> list[store.RunInfo]:
    return store.list_runs(folder)


def stamp(path: Path) -> Stamp | None:
    """The stamp of a file; None if it is gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return Stamp(path, stat.st_mtime_ns, stat.st_size)


def default_run(infos: Sequence[store.RunInfo]) -> str | None:
    """The run a first visit shows: the committed H200 sample, else the newest; None if there is none."""
    ids = {info.run_id for info in infos}
    if DEFAULT_RUN in ids:
        return DEFAULT_RUN
    return max(infos, key=lambda info: info.created_at).run_id if infos else None


def load(path: Path) -> Loaded:
    """Read a run, or take it from the cache if the file has not changed.

    Raises:
        InputError: the file is gone or is not a run file.
    """
    found = stamp(path)
    if found is None:
        store.load_run(path)  # says what is wrong with the file, in its own words
        raise FileNotFoundError(path)
    return _load(found)


@st.cache_resource(max_entries=6, show_spinner="Reading the run")
def _load(key: Stamp) -> Loaded:
    run = store.load_run(key.path)
    frame = with_axes(store.frame(run))
    return Loaded(key, run, frame, device_of(run.header.environment))


@st.cache_resource(max_entries=6, show_spinner="Reading the samples")
def samples(key: Stamp) -> pd.DataFrame:
    """All raw samples of the run with this stamp."""
    return store.samples_frame(_load(key).run)


# ------------------------------------------------------------------------------------------------- axes


def with_axes(frame: pd.DataFrame) -> pd.DataFrame:
    """Add `seq_len` (N) and the columns `name`, `series`, `mask` and `other` that the filters choose from."""
    heads = "B" + frame["batch"].astype("string") + "-H" + frame["heads"].astype("string")
    shared = heads + "-KV" + frame["kv_heads"].astype("string")
    return frame.assign(
        seq_len=frame["seq_len_k"],
        name=backend_names(frame),
        series=heads.where(frame["kv_heads"] == frame["heads"], shared),
        mask=frame["causal"].map({True: "causal", False: "none"}).astype("string"),
        other=_other(frame),
    )


def _other(frame: pd.DataFrame) -> pd.Series:
    """What sets a case apart beyond the usual filters, such as `window_left 128`; `plain` if nothing does."""
    text = pd.Series([""] * len(frame), index=frame.index, dtype="string")
    unequal = frame["seq_len_q"] != frame["seq_len_k"]
    text = text.mask(unequal, "Nq " + frame["seq_len_q"].astype("string"))
    unequal = frame["head_dim_v"] != frame["head_dim"]
    text = text.mask(unequal, text + " dv " + frame["head_dim_v"].astype("string"))
    text = text.mask(frame["layout"] != "dense", text + " " + frame["layout"].astype("string"))
    for column in ("bias", "sinks", "alibi"):
        text = text.mask(frame[column].fillna(False), text + " " + column)
    for column in ("window_left", "window_right", "softcap"):
        text = text.mask(frame[column].notna(), text + f" {column} " + frame[column].astype("string"))
    text = text.str.strip()
    return text.where(text != "", "plain")


def records(frame: pd.DataFrame) -> list[Any]:
    """The rows of a table, whose columns are attributes."""
    return list(frame.itertuples(index=False))


def names(frame: pd.DataFrame) -> list[str]:
    """The backends (with variant) of a table, in the order of `case.BACKENDS`."""

    def place(name: str) -> tuple[int, str]:
        backend = name.partition("/")[0]
        return (BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS), name)

    return sorted(frame["name"].unique(), key=place)


def clocks(frame: pd.DataFrame) -> list[str]:
    """The clocks of a table, in the order of `case.CLOCKS`."""
    present = set(frame["clock"].unique())
    return [clock for clock in CLOCKS if clock in present] + sorted(present - {*CLOCKS, ""})


# ---------------------------------------------------------------------------------------------- filters


class Axis(NamedTuple):
    """A filter along one column. `order` lists values in the order to offer them; others follow, sorted."""

    key: str
    label: str
    column: str
    order: tuple[Any, ...] = ()
    hint: str = ""


AXES: dict[str, Axis] = {
    axis.key: axis
    for axis in (
        Axis("dtype", "Dtype", "dtype", tuple(DTYPE_BYTES)),
        Axis("direction", "Direction", "direction", DIRECTIONS, "fwd: forward, bwd: backward alone"),
        Axis("series", "Batch · heads", "series", (), "held fixed along N; KV is shown where heads share it"),
        Axis("d", "Head dim d", "head_dim"),
        Axis("mask", "Mask", "mask", ("none", "causal"), "causal is aligned bottom-right"),
        Axis("other", "Other", "other", ("plain",), "what else sets these cases apart"),
    )
}
SLICE: tuple[str, ...] = ("dtype", "direction", "series", "d", "mask", "other")


class Choice(NamedTuple):
    """A filter: what was chosen, and the value a reset goes back to; with one value it is not drawn."""

    key: str
    label: str
    value: Any
    default: Any
    drawn: bool = True


def options(frame: pd.DataFrame, axis: Axis) -> list[Any]:
    """The values of a column to choose from, in the axis' order."""
    present = [v.item() if hasattr(v, "item") else v for v in frame[axis.column].dropna().unique()]
    known = [value for value in axis.order if value in present]
    rest = sorted((value for value in present if value not in known), key=_natural)
    return known + rest


def _natural(value: Any) -> tuple[Any, ...]:
    """Sort key under which B2 comes before B16."""
    if not isinstance(value, str):
        return (value,)
    parts = "".join(c if c.isdigit() else " " for c in value).split()
    return (tuple(int(p) for p in parts), value)


def choose(key: str, label: str, values: Sequence[Any], default: Any, *, hint: str = "") -> Choice:
    """One filter as a row of chips in the sidebar, bound to the URL; with a single value it is not drawn."""
    if st.session_state.get(key) not in values:  # of another run, or nonsense: the default counts
        st.session_state.pop(key, None)
    if len(values) < 2:
        return Choice(key, label, default, default, drawn=False)
    with st.sidebar:
        value = st.pills(
            label, values, default=default, key=key, required=True, bind="query-params", help=hint or None
        )
    return Choice(key, label, default if value is None else value, default)


def choose_one(key: str, label: str, values: Sequence[Any], default: Any, *, hint: str = "") -> Any:
    """One of many as a drop-down in the sidebar, bound to the URL."""
    if st.session_state.get(key) not in values:
        st.session_state.pop(key, None)
    with st.sidebar:
        value = st.selectbox(
            label,
            values,
            index=list(values).index(default),
            key=key,
            bind="query-params",
            help=hint or None,
        )
    return default if value is None else value


def choose_in_page(key: str, label: str, values: Sequence[Any], default: Any, *, hint: str = "") -> Choice:
    """As `choose`, but as a segmented control where the page stands: for what visibly moves the chart."""
    if st.session_state.get(key) not in values:
        st.session_state.pop(key, None)
    value = st.segmented_control(
        label, values, default=default, key=key, required=True, bind="query-params", help=hint or None
    )
    return Choice(key, label, default if value is None else value, default)


def choose_clock(frame: pd.DataFrame) -> Choice:
    """The clock, in the page: a crossover moves with it. Shown even when there is one: it must be named."""
    present = clocks(frame)
    return choose_in_page("clock", "Clock", present, default_clock(present), hint=CLOCK_HELP)


def choose_slice(frame: pd.DataFrame, keys: Sequence[str] = SLICE) -> tuple[pd.DataFrame, list[Choice]]:
    """Draw the filters `keys` one after the other; each offers what the earlier ones leave.

    Returns:
        The rows that match, and the choices.
    """
    choices = []
    for key in keys:
        axis = AXES[key]
        values = options(frame, axis)
        if not values:
            continue
        choice = choose(key, axis.label, values, _usual(frame, axis, values), hint=axis.hint)
        frame = frame[frame[axis.column] == choice.value]
        choices.append(choice)
    return frame, choices


def _usual(frame: pd.DataFrame, axis: Axis, values: Sequence[Any]) -> Any:
    """The default of a filter: d = 128 if there, the first of an ordered axis, else the most frequent."""
    if axis.key == "d" and 128 in values:
        return 128
    if axis.order and values[0] in axis.order and axis.key != "dtype":
        return values[0]
    counts = frame[axis.column].value_counts()
    return max(values, key=lambda value: counts[value])  # the first of equals


def choose_baseline(frame: pd.DataFrame) -> Choice:
    """What speed-ups are measured against: naive where there is one."""
    present = names(frame)
    first = next((name for name in present if name.partition("/")[0] == "naive"), present[0])
    return choose("baseline", "Baseline", present, first, hint="what a speed-up is measured against")


def choose_candidate(frame: pd.DataFrame, baseline: str) -> Choice:
    """What is compared with the baseline: flash where there is one."""
    others = [name for name in names(frame) if name != baseline] or [baseline]
    best = next((name for name in CANDIDATES if name in others), others[0])
    return choose("candidate", "Candidate", others, best)


def choose_backends(frame: pd.DataFrame) -> Choice:
    """Which backends a chart shows; none chosen means all, so that a link holds for other runs too."""
    present = names(frame)
    kept = [name for name in st.session_state.get("backends", []) if name in present]
    if kept != st.session_state.get("backends", []):
        st.session_state["backends"] = kept
    if len(present) < 3:
        return Choice("backends", "Backends", [], [], drawn=False)
    with st.sidebar:
        value = st.pills(
            "Backends",
            present,
            selection_mode="multi",
            default=[],
            key="backends",
            bind="query-params",
            help="none chosen: all are shown",
        )
    return Choice("backends", "Backends", list(value or []), [])


def default_clock(present: Sequence[str]) -> str:
    """The clock a first visit shows: `device` where there is one, else the first."""
    return "device" if "device" in present else present[0]


def reset(choices: Sequence[Choice]) -> None:
    """Set the filters back to their defaults (a callback: widgets of this run may not exist yet)."""
    for choice in choices:
        st.session_state[choice.key] = choice.default


def query_of(run_id: str, choices: Sequence[Choice], run_key: str = RUN_KEY) -> dict[str, str | list[str]]:
    """The query parameters that show this view to someone else, defaults included."""
    texts = {c.key: c.value if isinstance(c.value, list) else str(c.value) for c in choices if c.drawn}
    return {run_key: run_id, **texts}


def values_of(choices: Sequence[Choice]) -> Mapping[str, Any]:
    """The chosen value by key."""
    return {choice.key: choice.value for choice in choices}
