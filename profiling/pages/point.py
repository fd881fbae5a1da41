"""A chart whose points can be picked, and everything about the one that is.

A click and the box under the chart do the same: they choose a case by its label, which stands in the
address. The choice is copied out of the chart at once, since Streamlit forgets what was selected as soon as
the figure changes, and the ring around a chosen point changes it.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from profiling import units
from profiling.case import InputError
from profiling.figures import chosen, strip
from profiling.pages import filters, point_model, state, widgets
from profiling.records import Measurement

KEY = "case"


def chart(
    fig: go.Figure,
    loaded: state.Loaded,
    *,
    name: str,
    alt: str,
    caption: str,
    measured: bool | None,
    clock: str | None = None,
    below: DeltaGenerator | None = None,
) -> filters.Choice:
    """Draw a figure as `widgets.chart` does, a box with its points, and the point that is chosen.

    Args:
        fig: the figure; a ring is added to it.
        loaded: the run that its points are of.
        name: as of `widgets.chart`.
        alt: likewise.
        caption: likewise.
        measured: likewise.
        clock: whose samples are shown; by default the usual one of the case.
        below: where the point goes, if not under the chart.

    Returns:
        The choice, for the link to the view.
    """
    rows = _by_label(loaded.stamp)
    labels = [key for key in chosen.keys_of(fig) if key in rows]
    asked = st.session_state[KEY] if KEY in st.session_state else st.query_params.get(KEY)
    picked = asked if asked in labels else None
    if picked is not None:
        chosen.ring(fig, picked)
    widget = f"chart-{name}"
    widgets.chart(
        fig,
        name=name,
        alt=alt,
        caption=f"{caption} Click a point for all that is known of it." if labels else caption,
        measured=measured,
        on_select=lambda: take(widget),
    )
    if asked and picked is None:
        st.session_state.pop(KEY, None)
        st.text(f"This chart has no point {str(asked)[:100]}.")
    if not labels:
        return filters.Choice(KEY, "Point", None, None)
    value = st.selectbox(
        "Point of the chart",
        labels,
        index=None,
        key=KEY,
        bind="query-params",
        placeholder="Click a point above, or choose one here",
        help="its samples, provenance, and the command that measures it again; of a ratio, the candidate's",
    )
    if value is not None:
        with below or st.container():
            _details(loaded, rows[value], clock)
    return filters.Choice(KEY, "Point", value, None)


def take(widget: str) -> None:
    """Choose the point that was clicked (a callback); a click beside the points leaves the choice alone."""
    points = st.session_state[widget].selection.points
    keys = [key for point in points if (key := _key(point.get("customdata")))]
    if keys:
        st.session_state[KEY] = keys[0]


def _key(customdata: Any) -> str:
    """The case of a selected point; plotly may wrap it in a list."""
    if isinstance(customdata, list | tuple):
        customdata = customdata[0] if customdata else ""
    return customdata if isinstance(customdata, str) else ""


@st.cache_resource(max_entries=6, show_spinner=False)
def _by_label(key: state.Stamp) -> dict[str, Measurement]:
    return {row.case.label: row for row in state.load(key.path).run.measurements}


def _details(loaded: state.Loaded, row: Measurement, clock: str | None) -> None:
    """The point's samples, its facts, its clocks, and how to measure it again."""
    rows = point_model.rows_of(loaded.frame, row.case)
    with st.container(border=True):
        st.subheader(widgets.plain(row.case.label))
        if row.status != "ok":
            st.warning(widgets.plain(f"It did not run: {row.status}. {row.reason}"))
        for flag in point_model.flags(rows):
            st.warning(widgets.plain(flag))
        left, right = st.columns(2, gap="medium")
        with left:
            _strip(row, clock)
        with right:
            _facts(point_model.facts(loaded.run, row, state.label_of(loaded.stamp.path)))
        st.dataframe(
            point_model.clocks(rows), hide_index=True, placeholder=units.UNKNOWN, alt="Clocks of this point"
        )
        widgets.table(point_model.samples(row), name="samples", run_id=loaded.name)
        _again(loaded, row)


def _facts(facts: pd.DataFrame) -> None:
    """What is known beside the clocks, a tab for each thing that it is about."""
    names = list(dict.fromkeys(facts["about"]))
    for name, tab in zip(names, st.tabs(names), strict=True):
        own = facts[facts["about"] == name][["what", "value"]]
        tab.dataframe(own, hide_index=True, height="content", alt=f"{name} of this point")


def _strip(row: Measurement, clock: str | None) -> None:
    present = list(dict.fromkeys(sample.clock for sample in row.samples))
    if not present:
        st.info("There are no raw samples of this point: it did not run, or its file has summaries only.")
        return
    shown = clock if clock in present else filters.default_clock(present)
    found = point_model.strip_chart(row, shown)
    if found is None:
        return
    kept = len(strip.thinned(found.dots))
    thinned = "" if kept == len(found.dots) else f" {units.count_text(kept)} of them are drawn."
    widgets.chart(
        strip.figure(found),
        name="samples",
        alt=f"Raw samples of this point on the {shown} clock, by process",
        caption=(
            f"{units.count_text(len(found.dots))} raw samples, from left to right as each process took them."
            f"{thinned} Shaded: p20 to p80; dotted: the median."
        ),
        measured=True,
    )


def _again(loaded: state.Loaded, row: Measurement) -> None:
    """The command; the case alone, so its row is no part of a comparison measured in turns."""
    st.markdown(
        "**Measure it again.** :small[This case alone, with the protocol of the run, in a POSIX shell:]"
    )
    try:
        st.code(point_model.command(loaded.run, row), language="bash", wrap_lines=True)
    except InputError as error:
        st.text(f"There is no command for it: {error}.")
