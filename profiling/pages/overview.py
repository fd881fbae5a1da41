"""Overview: does it pay off, from which N on, how sure?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from profiling import overview_table as model
from profiling import run_report
from profiling.analysis.curves import untiled
from profiling.analysis.summary import Overview, OverviewRow, overview
from profiling.case import InputError
from profiling.figures import speedup as figures
from profiling.pages import filters, point, state, widgets

_FILTERS = ("operation", "dtype", "layout", *filters.FEATURES)


def render() -> None:
    """Draw the page."""
    head = widgets.open_run(
        "Overview",
        "Does it pay off, from which sequence length (or number of classes) on, and how sure is that?",
    )
    loaded = head.loaded
    if loaded is None:
        return
    frame, choices = filters.choose_slice(untiled(loaded.frame), _FILTERS)
    baseline = filters.choose_baseline(frame)
    candidate = filters.choose_candidate(frame, baseline.value)
    if candidate.value == baseline.value:
        head.finish([*choices, baseline, candidate])
        st.info("This run holds one backend only, so there is nothing to compare.")
        st.page_link(widgets.page("latency"), label="See its latency")
        return
    answer = st.container()
    clock = filters.choose_clock(frame)
    shown = [*choices, baseline, candidate, clock]
    where = tuple((choice.key, choice.value) for choice in choices)
    try:
        found = _overview(loaded.stamp, where, baseline.value, candidate.value, clock.value)
    except InputError as error:
        head.finish(shown)
        st.error(widgets.plain(error))
        return
    with answer:
        st.markdown(f"**{widgets.plain(found.headline)}**")
        st.caption(widgets.plain(model.counts_text(found)))
        _report_button(found, loaded, frame, choices)
    query = filters.query_of(loaded.name, shown)
    rows = sorted(found.rows, key=lambda row: model.order(row.slice))
    _table(found, rows, query, loaded.name)
    series = _chart(found, rows, loaded, frame)
    head.finish([*shown, *series])


@st.cache_data(max_entries=24, show_spinner="Comparing every shape")
def _overview(
    stamp: state.Stamp, where: tuple[tuple[str, str], ...], baseline: str, candidate: str, clock: str
) -> Overview:
    frame = state.load(stamp.path).frame
    for key, value in where:
        frame = frame[frame[filters.AXES[key].column] == value]
    return overview(frame, state.samples(stamp), baseline=baseline, candidate=candidate, clock=clock)


def _report_button(
    found: Overview, loaded: state.Loaded, frame: pd.DataFrame, choices: Sequence[filters.Choice]
) -> None:
    """This view as one file, made when it is asked for."""
    kept = [(choice.label.lower(), str(choice.value)) for choice in choices]
    st.download_button(
        "Report",
        data=lambda: run_report.to_html(loaded.run, frame, found, loaded.device, kept=kept),
        file_name=f"{loaded.name}-report.html",
        mime="text/html",
        on_click="ignore",
        key="report",
        help="One HTML file that opens without a network: sentences, crossovers, charts, flags, failures",
    )


def _table(found: Overview, rows: list[OverviewRow], query: filters.Query, run_id: str) -> None:
    """One row per shape; every crossover is a link to its evidence."""
    if not rows:
        st.info("No shape has both backends; choose others in the sidebar.")
        return
    st.table(model.linked(found, rows, query), hide_index=True, border="horizontal")
    words = model.along_of(rows)
    star = "Crossover N\\*" if words.before else "Crossover, in classes,"
    st.markdown(
        f":blue-badge[measured] :small[{star} with its 95 % interval where the verdict is clear, else "
        "the verdict; each is a link to its evidence. "
        f"{model.verdict_words(words)} Speed-up at {'N' if words.before else 'so many classes'} on the "
        f"{found.clock} clock: {widgets.plain(found.baseline)} / {widgets.plain(found.candidate)}, higher is "
        "better.]"
    )
    widgets.table(model.numbers(found, rows), name="overview", run_id=run_id)


def _chart(
    found: Overview, rows: list[OverviewRow], loaded: state.Loaded, frame: pd.DataFrame
) -> list[filters.Choice]:
    """Speed-up against N for one batch and number of heads, as small multiples."""
    if not rows:
        return []
    names = list(dict.fromkeys(model.series_name(row.slice) for row in rows))
    words = model.along_of(rows)
    against, label = ("N", "Batch · heads") if words.before else (words.noun, "Rows")
    st.header(f"Speed-up against {against}")
    of_rows = [model.series_name(row.slice) for row in rows]
    usual = names[0] if words.before else max(names, key=of_rows.count)
    series = filters.choose_in_page("series", label, names, usual)
    own = [row for row in rows if model.series_name(row.slice) == series.value]
    panels = model.panels(found, own, frame)
    label = f"{found.baseline} / {found.candidate}"
    picked = point.chart(
        figures.figure(figures.SpeedupChart(panels, label)),
        loaded,
        name="speedup",
        alt=f"Speed-up of {found.candidate} over {found.baseline} against {against}, one panel per shape",
        caption=(
            "Ratio of paired rounds with its 95 % interval; shaded: the candidate is slower. "
            "Crosses: a side did not run."
        ),
        measured=True,
        clock=found.clock,
    )
    widgets.table(model.chart_numbers(found, panels), name="speedup", run_id=loaded.name)
    return [series, picked]
