"""The part of page Data that keeps the runs in order: label, archive, bring back, delete."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from profiling import store, units
from profiling.case import InputError
from profiling.pages import jobs, widgets


def render(infos: Sequence[store.RunInfo]) -> None:
    """Draw it for these runs, archived ones among them."""
    st.header("Label, archive, delete")
    names = {f"{info.path.parent.name}/{info.path.stem}": info for info in infos}
    chosen = st.selectbox("Run to label, archive or delete", list(names), key="manage")
    info = names.get(chosen or "")
    if info is None:
        return
    note = store.read_notes(info.path.parent.parent).get(info.path.stem, store.Note())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label = st.text_input(
            "Label",
            value=info.label,
            key=f"label-{chosen}",
            max_chars=store.MOST_LETTERS,
            help="a few words to recognise the run by, beside its name; its file stays as it is",
        )
        if st.button("Save label", key="save-label", disabled=label.strip() == info.label):
            _write(info, note._replace(label=label))
        if st.button(
            "Bring back" if info.archived else "Archive",
            key="archive",
            help="An archived run is kept, listed here, and offered nowhere else",
        ):
            _write(info, note._replace(archived=not info.archived))
        why = why_not_delete(info)
        if st.button("Delete", key="delete", disabled=bool(why), help=why or "Asks once more"):
            _confirm(info)


def why_not_delete(info: store.RunInfo) -> str:
    """What stands against deleting a run, as a sentence; empty: nothing."""
    if info.path.parent.name != "runs":
        return "A committed sample cannot be deleted; archive it to see it nowhere else."
    if jobs.progress(info).state == "running" or any(
        job.run_id == info.path.stem for job in jobs.living(info.path.parent)
    ):
        return "This run is being written: cancel it first, on page Run."
    return ""


def _write(info: store.RunInfo, note: store.Note) -> None:
    try:
        store.write_note(info.path, note)
    except InputError as error:
        st.error(widgets.plain(error))
    else:
        st.rerun()


@st.dialog("Delete this run?")
def _confirm(info: store.RunInfo) -> None:
    second_look(info)


def second_look(info: store.RunInfo) -> None:
    """Which run, what is in it, that it cannot be brought back; and the button that deletes it."""
    st.text(info.path.name + (f" ({info.label})" if info.label else ""))
    st.text(f"{info.device_name}, made {info.created_at}, {units.count_text(info.n_cases)} cases.")
    st.text("Its file, log and label are deleted. They cannot be brought back; archiving keeps them.")
    with st.container(horizontal=True):
        if st.button("Delete it for good", type="primary", key="delete-for-good"):
            try:
                store.remove_run(info.path)
            except InputError as error:
                st.error(widgets.plain(error))
            else:
                st.rerun()
        if st.button("Keep it", key="keep"):
            st.rerun()
