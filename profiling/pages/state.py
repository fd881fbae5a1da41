"""What a page looks at: the data folder, its runs, and the one that was read, with what filters need."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import streamlit as st

from profiling import store
from profiling.analysis.axes import clocks as clocks
from profiling.analysis.axes import names as names
from profiling.analysis.axes import only_counters as only_counters
from profiling.analysis.axes import records as records
from profiling.analysis.axes import with_axes
from profiling.devices import Device, device_of
from profiling.paths import DATA_DIR
from profiling.records import Run

DEFAULT_RUN = "h200-standard"
DATA_VARIABLE = "FLASHSCOPE_DATA"
RUN_KEY = "run"
TILE_RUN_KEY = "tile_run"


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


def carry(key: str) -> None:
    """Let a widget that stands on several pages keep the value that an address gave it; called before it.

    Streamlit keeps what a reader chose. What came with the address it keeps too, but on the next page the
    widget's default would come before it, were it not set anew.
    """
    drawn: dict[str, str] = st.session_state.setdefault("carried", {})
    here = st.context.url or ""
    if drawn.get(key, here) != here and key in st.session_state and key not in st.query_params:
        st.session_state[key] = st.session_state[key]
    drawn[key] = here


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


def runs(*, archived: bool = False) -> list[store.RunInfo]:
    """The run files of the data folder, read again only when one of them, or a note on one, changed.

    What is archived is left out unless it is asked for.
    """
    folder = data_dir()
    paths = [p for name in store.RUN_FOLDERS for p in (folder / name).glob("*.jsonl")]
    paths += store.note_paths(folder)
    found = _runs(folder, tuple(sorted(s for s in map(stamp, paths) if s is not None)))
    return [info for info in found if archived or not info.archived]


def label_of(path: Path) -> str:
    """What a run of the data folder is called beside its name; empty if nothing."""
    return next((info.label for info in runs(archived=True) if info.path == path), "")


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
