"""What a page looks at: the data folder, its runs, and the one that was read, with what filters need."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from profiling import store
from profiling.analysis.curves import backend_names
from profiling.case import BACKENDS, CLOCKS, window_text
from profiling.devices import Device, device_of
from profiling.paths import DATA_DIR
from profiling.records import Run

DEFAULT_RUN = "h200-standard"
DATA_VARIABLE = "FLASHSCOPE_DATA"
RUN_KEY = "run"
TILE_RUN_KEY = "tile_run"


NO_NAME = r"[^\w.:/-]"  # what no name of a backend has


class Stamp(NamedTuple):
    """A file as it was: its path, modification time (ns) and size (bytes). The key of every cache here."""

    path: Path
    mtime_ns: int
    size: int


class Loaded(NamedTuple):
    """A run as pages use it; shared between sessions, so never changed in place.

    `frame` is the comparison table with further columns made of its key fields: see `with_axes`.
    """

    stamp: Stamp
    run: Run
    frame: pd.DataFrame
    device: Device | None

    @property
    def name(self) -> str:
        """What the run is called in the picker and in the address: its file's name."""
        return self.stamp.path.stem


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
    """The name of the run a first visit shows; None if there is none.

    The committed H200 sample, else the newest one that is not a tile sweep (which compares nothing).
    """
    if any(info.path.stem == DEFAULT_RUN for info in infos):
        return DEFAULT_RUN
    comparing = [info for info in infos if 2 * info.n_tiled <= info.n_cases] or infos
    return max(comparing, key=lambda info: info.created_at).path.stem if comparing else None


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
    """Add `seq_len` (N), `name` (backend/variant), `plain`, and the columns that the filters choose from.

    These are texts: `series` (batch and heads), `tokens` (of the batch, and heads), `mask`, `window`, `cap`
    (softcap), `has_bias`, `has_sinks`, `has_alibi`, and `other` (whatever else sets cases apart). `plain`
    is whether a case is dense attention of one length and width without any feature.
    """
    heads = "-H" + frame["heads"].astype("string")
    heads = heads.where(
        frame["kv_heads"] == frame["heads"], heads + "-KV" + frame["kv_heads"].astype("string")
    )
    return frame.assign(
        seq_len=frame["seq_len_k"],
        # chips read Markdown, and a file may say anything
        name=backend_names(frame).str.replace(NO_NAME, "?", regex=True),
        series="B" + frame["batch"].astype("string") + heads,
        tokens=(frame["batch"] * frame["seq_len_q"]).astype("string") + " tokens" + heads,
        mask=frame["causal"].map({True: "causal", False: "none"}).astype("string"),
        window=_window(frame),
        cap=frame["softcap"].map(lambda cap: "none" if pd.isna(cap) else f"{cap:g}").astype("string"),
        **{f"has_{name}": _yes_no(frame[name]) for name in ("bias", "sinks", "alibi")},
        other=_other(frame),
    ).assign(plain=_plain)


def _yes_no(flags: pd.Series) -> pd.Series:
    return flags.fillna(False).map({True: "yes", False: "no"}).astype("string")


def _window(frame: pd.DataFrame) -> pd.Series:
    sides = zip(frame["window_left"], frame["window_right"], strict=True)
    texts = [
        window_text(*(None if pd.isna(side) else int(side) for side in pair)) or "none" for pair in sides
    ]
    return pd.Series(texts, index=frame.index, dtype="string")


def _plain(frame: pd.DataFrame) -> pd.Series:
    """Whether the formulas for dense attention hold, causal or not; of the frame with its other axes."""
    without = {"layout": "dense", "window": "none", "cap": "none", "other": "plain"}
    without |= {f"has_{name}": "no" for name in ("bias", "sinks", "alibi")}
    plain = pd.Series(True, index=frame.index)
    for column, value in without.items():
        plain &= frame[column] == value
    return plain


def _other(frame: pd.DataFrame) -> pd.Series:
    """What sets a case apart beyond the usual filters, such as `Nq 1`; `plain` if nothing does."""
    text = pd.Series([""] * len(frame), index=frame.index, dtype="string")
    unequal = frame["seq_len_q"] != frame["seq_len_k"]
    text = text.mask(unequal, "Nq " + frame["seq_len_q"].astype("string"))
    unequal = frame["head_dim_v"] != frame["head_dim"]
    text = text.mask(unequal, text + " dv " + frame["head_dim_v"].astype("string"))
    text = text.str.strip()
    return text.where(text != "", "plain")


def only_counters(frame: pd.DataFrame) -> bool:
    """Whether a table has hardware counters and no clock, as `flashscope counters SWEEP` makes it."""
    counted = frame[["dram_read_bytes", "dram_write_bytes", "l2_bytes"]].notna().any(axis=None)
    return bool(counted) and bool((frame["clock"] == "").all())


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
    """The clocks of a table, in the order of `case.CLOCKS`; others have no meaning here."""
    present = set(frame["clock"].unique())
    return [clock for clock in CLOCKS if clock in present] or list(CLOCKS[:1])
