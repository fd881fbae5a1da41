"""Data: which runs there are, what in them could not be read, bringing files in and taking them out."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from profiling import export, importers, store, units
from profiling.case import InputError
from profiling.figures.series import status_word
from profiling.pages import jobs, manage, signin, state, widgets
from profiling.paths import DATA_DIR
from profiling.records import COLUMNS, STATUSES

MOST_PROBLEMS = 20  # warnings in a row


def render() -> None:
    """Draw the page."""
    st.title("Data")
    st.caption("The runs of the data folder, what was set aside and why, and files in and out.")
    folder = state.data_dir()
    if not widgets.folder_exists(folder):
        return
    admitted = signin.admit("add, label, archive or delete runs").admitted
    infos = state.runs(archived=True)
    _list(infos)
    if infos and admitted:
        manage.render(infos)
    _upload(folder, {info.run_id for info in infos}, may_add=admitted)
    readable = [info for info in infos if not info.problem]
    if readable:
        _export(readable)
    _columns()


def _list(infos: list[store.RunInfo]) -> None:
    """All runs with their counts by status; unreadable files come with what is wrong."""
    st.header("Runs")
    if not infos:
        widgets.nothing_yet()
        return
    seen = [status for status in STATUSES if any(info.n_by_status.get(status) for info in infos)]
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "run": info.path.stem,
                    "device": info.device_name,
                    "state": _state(info),
                    "planned": info.planned_cases,
                    "cases": info.n_cases,
                    **{status_word(status): info.n_by_status.get(status, 0) for status in seen},
                    "created (UTC)": info.created_at,
                    "label": info.label,
                    "id": info.run_id,
                    "file": f"{info.path.parent.name}/{info.path.name}",
                }
                for info in infos
            ]
        ).astype({"planned": "Int64"}),
        hide_index=True,
        placeholder=units.UNKNOWN,
        alt="Runs of the data folder",
    )
    for info in infos:
        if info.problem:
            st.error(widgets.plain(info.problem))


def _state(info: store.RunInfo) -> str:
    state = "unreadable" if info.problem else jobs.progress(info).state
    return state + ", archived" * info.archived


def _upload(folder: Path, known: set[str], *, may_add: bool) -> None:
    """Bring in a run file or a table; nothing is written before the second look."""
    st.header("Bring a file in")
    uploaded = st.file_uploader(
        "A run file (.jsonl), a comparison CSV, or a table of others (.csv, .md, .log, .txt)",
        type=["jsonl", "csv", "md", "log", "txt"],
        key="upload",
        max_upload_size=20,
    )
    if uploaded is None:
        return
    try:
        found = read_upload(uploaded.getvalue(), Path(uploaded.name).name)
    except InputError as error:
        st.error(widgets.plain(error))
        st.text("Nothing was written.")
        return
    runs = found.runs
    for run in runs:
        st.text(
            f"{run.run_id}: {run.header.environment.device_name}, "
            f"{units.count_text(len(run.measurements))} cases"
        )
        _problems(run.problems)
    st.text(found.summary)
    if found.aside:
        st.download_button(
            "Rows set aside",
            data=importers.aside_csv(found),
            file_name="set-aside.csv",
            mime="text/csv",
            on_click="ignore",
            key="set-aside",
        )
    new = [run for run in runs if run.run_id not in known]
    if len(new) < len(runs):
        st.info("A run that is in the data folder already is not added again.")
    if new and not may_add:
        st.text("Only who is signed in can add it to the data folder.")
    elif new and st.button("Add to the data folder", key="add", type="primary"):
        try:
            for run in new:
                store.save_run(run, folder / "runs")
        except InputError as error:
            st.error(widgets.plain(error))
            return
        st.session_state[state.RUN_KEY] = new[0].run_id  # which names its file
        st.switch_page(widgets.page("overview"))


def _problems(problems: Sequence[str]) -> None:
    """What of a run could not be read, the first of it; a broken file may have thousands of such lines."""
    for problem in problems[:MOST_PROBLEMS]:
        st.warning(widgets.plain(problem))
    if len(problems) > MOST_PROBLEMS:
        st.warning(f"and {units.count_text(len(problems) - MOST_PROBLEMS)} more")


def read_upload(content: bytes, name: str) -> importers.Imported:
    """Parse an upload out of a file of our own name; what the browser calls it is never a path.

    Raises:
        InputError: the file cannot be taken in; the message speaks of the file, not of where it lay.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upload"
        path.write_bytes(content)
        try:
            found = importers.import_tables([path], names=[name])
            store.frame(found.runs)  # what no table can be made of is refused now, and not once it is stored
            return found
        except InputError as error:
            raise InputError(str(error).replace(str(path), "the file")) from None


def _export(infos: list[store.RunInfo]) -> None:
    """One run as comparison CSV, or as JSON with everything."""
    st.header("Take a run out")
    names = [info.path.stem for info in infos]
    usual = state.default_run(infos) or names[0]
    chosen = st.selectbox("Run", names, index=names.index(usual), key="export")
    info = infos[names.index(chosen or usual)]
    try:
        loaded = state.load(info.path)
    except (InputError, FileNotFoundError) as error:
        st.error(widgets.plain(error))
        return
    _problems(loaded.run.problems)
    with st.container(horizontal=True):
        widgets.csv_button(
            "Comparison CSV",
            lambda: loaded.frame[list(COLUMNS)],
            file_name=f"{loaded.name}.csv",
            key="export-csv",
        )
        st.download_button(
            "JSON",
            data=lambda: export.to_json(loaded.run),
            file_name=f"{loaded.name}.json",
            mime="application/json",
            on_click="ignore",
            key="export-json",
        )
    st.caption(
        "The CSV has one row per case and clock and comes back without loss on this page; "
        "the JSON has the raw samples and the environment as well."
    )
    with st.expander(f"Rows of this run ({units.count_text(len(loaded.frame))})"):
        st.dataframe(
            loaded.frame[list(COLUMNS)], hide_index=True, placeholder=units.UNKNOWN, alt="Rows of the run"
        )


def _columns() -> None:
    """What each column means: the data folder's own description."""
    readme = DATA_DIR / "README.md"
    if readme.is_file():
        with st.expander("What each column means"):
            st.markdown(readme.read_text(encoding="utf-8"))
