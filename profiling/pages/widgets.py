"""Pieces that pages share: the head of a page, the run picker, charts with their table, and safe text.

Text that comes from a file is shown by `st.text` and in tables of data, or passed through `plain` first:
Streamlit reads Markdown nearly everywhere else, and Markdown can load pictures from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from profiling import export, store, units
from profiling.analysis.operations import attention_rows, listed
from profiling.case import CLOCKS, InputError
from profiling.figures.series import status_word
from profiling.pages import filters, pictures, state

# Streamlit's wide layout leaves 80 px on either side, which a table of ten columns cannot spare at 1280 px.
# What is chosen is written in the primary colour on a tint of it: in Streamlit's shades that is too pale.
# What has the keyboard's focus has an outline: Streamlit marks some elements by a pale shadow, and links not
# at all. A switch is drawn by the label around an input that cannot be seen. Our components take the same.
STYLE = """<style>
:root {--chosen: light-dark(#00588a, #5ab4e8); --focus: 2px solid var(--chosen)}
[data-testid=stMainBlockContainer] {padding: 3.5rem clamp(1rem, 3vw, 3rem) 4rem}
[data-selected=true] p, [data-testid=stSliderThumbValue] p {color: var(--chosen)}
:focus-visible, label:has(input:focus-visible) {outline: var(--focus) !important; outline-offset: 1px}
input:focus-visible, [data-testid=stMain]:focus-visible {outline-offset: -2px}
.js-plotly-plot:focus-within .modebar {opacity: 1 !important}
</style>"""
MARKDOWN_ROWS = 500
# Pages that show operations over rows as they show attention.
OF_ROWS = {name: name.capitalize() for name in ("overview", "crossover", "latency", "memory", "numerics")}
_MARKS = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&^=@/])")


def plain(text: object) -> str:
    """Text from a file for a place that reads Markdown: every mark is escaped, line ends become spaces."""
    return _MARKS.sub(r"\\\1", re.sub(r"[\r\n\t]+", " ", str(text)).strip())


def cut(text: str, most: int = 100) -> str:
    """A text from elsewhere, short enough for a sentence about it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def page(name: str) -> Any:
    """The page of that URL path, for `st.page_link` and `st.switch_page`."""
    from profiling.pages import registry  # the registry imports every page, and pages import this module

    return registry.page(name)


# ------------------------------------------------------------------------------------------ head of a page


class Head(NamedTuple):
    """The head of a page, drawn in two steps: its line of context needs the filters, which come later."""

    loaded: state.Loaded | None
    line: DeltaGenerator
    link: DeltaGenerator
    run_key: str

    def finish(self, choices: Sequence[filters.Choice]) -> None:
        """Fill in the line of context and the link to this view, and draw the reset under the filters."""
        reset_button(choices)
        if self.loaded is None:
            return
        self.line.text(context(self.loaded, choices))
        share(self.link, filters.query_of(self.loaded.name, choices, self.run_key))


def heading(title: str, question: str) -> DeltaGenerator:
    """Draw the title and the question that the page answers; returns the place for `share`."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.title(title, width="content")
        link = st.container(width="content")
    st.caption(question)
    return link


def share(place: DeltaGenerator, query: Mapping[str, str | list[str]]) -> None:
    """The address of this view, to be sent to a colleague."""
    with place.popover("Link to this view"):
        st.code(view_url(query), language=None, wrap_lines=True)


def open_run(
    title: str, question: str, *, required: bool = True, tiled: bool = False, attention: bool = False
) -> Head:
    """Draw the title and the run picker, and read the chosen run.

    Args:
        title: of the page.
        question: that the page answers.
        required: whether the page is empty without a run; if not, nothing is said about a missing one.
        tiled: offer only runs that asked for tiles, and keep that choice apart from the other pages'.
        attention: whether the page speaks of attention alone: rows of other operations are left out.

    Returns:
        The head; its run is None when there is none to show, and then the page has said what to do next.
    """
    link = heading(title, question)
    key = state.TILE_RUN_KEY if tiled else state.RUN_KEY
    loaded = _open(key, required=required)
    if attention and loaded is not None:
        loaded = of_attention(loaded, required=required)
    return Head(loaded, st.empty(), link, key)


def of_attention(loaded: state.Loaded, *, required: bool) -> state.Loaded | None:
    """The run without rows of other operations; None after saying that it has none of attention."""
    frame = attention_rows(loaded.frame)
    if len(frame) or not len(loaded.frame):
        return loaded._replace(frame=frame)
    found = listed(loaded.frame["operation"].unique())
    st.info(f"This run holds {found} alone, and this page speaks of attention; these show what was measured:")
    with st.container(horizontal=True):
        for name, label in OF_ROWS.items():
            st.page_link(page(name), label=label)
    return None if required else loaded._replace(frame=frame)


def _open(key: str, *, required: bool) -> state.Loaded | None:
    folder = state.data_dir()
    if not folder_exists(folder):
        return None
    infos = [info for info in state.runs() if not info.problem]
    if not infos:
        if required:
            nothing_yet()
        return None
    if key == state.TILE_RUN_KEY:
        infos = [info for info in infos if info.n_tiled]
        if not infos:
            st.info("No run of this folder asked for tiles.")
            st.text("Measure them with: flashscope run data/sweeps/tiles.toml")
            return None
    info = _pick_run(infos, key)
    try:
        loaded = state.load(info.path)
    except (InputError, FileNotFoundError) as error:
        st.error(plain(error))
        st.text("Choose another run in the sidebar, or see page Data.")
        return None
    if not len(loaded.frame):
        st.info("This run has no case yet.")
        st.page_link(page("run"), label="Watch it on page Run")
        return None
    if required and state.only_counters(loaded.frame):
        st.info("This run has hardware counters only: nothing of it was timed.")
        st.page_link(page("traffic"), label="See them on page Traffic")
        return None
    unknown = set(loaded.frame["clock"].unique()) - {""}
    if required and unknown and unknown.isdisjoint(CLOCKS):
        st.info("Nothing of this run was timed by a clock that is known here; page Data has its rows.")
        return None
    if loaded.run.problems:
        count = units.count_text(len(loaded.run.problems))
        st.warning(f"{count} part(s) of this run file could not be read; page Data says which.")
    return loaded


def _pick_run(infos: Sequence[store.RunInfo], key: str) -> store.RunInfo:
    """The run picker in the sidebar. A link to a run that is not here says so."""
    by_name: dict[str, store.RunInfo] = {}
    for info in sorted(infos, key=lambda info: info.created_at, reverse=True):
        by_name.setdefault(info.path.stem, info)
    asked = st.query_params.get(key)
    if asked and asked not in by_name:
        archived = any(info.path.stem == asked for info in state.runs(archived=True))
        where = "is archived (page Data brings it back)" if archived else "is not here"
        st.warning(f"The link asks for run {plain(cut(asked))}, which {where}; this is another run.")
    if st.session_state.get(key) not in by_name:
        st.session_state.pop(key, None)
    state.carry(key)
    names = list(by_name)
    # Of tiles the run that has most of them tells most.
    tiled = max(infos, key=lambda info: (info.n_tiled, info.created_at)).path.stem
    usual = tiled if key == state.TILE_RUN_KEY else state.default_run(infos)
    default = names.index(usual or names[0])
    with st.sidebar:
        chosen = st.selectbox(
            "Run",
            names,
            index=default,
            key=key,
            bind="query-params",
            help="Runs of the data folder by file name, newest first",
        )
        info = by_name[chosen or names[default]]
        label = f"{info.label} · " if info.label else ""
        count = units.count_text(info.n_cases)
        st.text(f"{label}{info.device_name} · {info.created_at[:10]} · {count} cases")
    return info


def folder_exists(folder: Path) -> bool:
    """Whether the data folder is there; if not, say so."""
    if folder.is_dir():
        return True
    st.error(f"The data folder {plain(folder)} does not exist.")
    st.text("Start the app with an existing folder: streamlit run app.py -- --data DIR")
    return False


def nothing_yet() -> None:
    """The state of a data folder without runs: what to do next."""
    st.info("There is no run to show yet.")
    st.markdown(
        "- Measure this machine: `flashscope run data/sweeps/quick.toml --device cpu`, "
        "or start a sweep on page Run.\n"
        "- Bring a run from another machine: upload its `.jsonl` file, or a comparison CSV, on page Data."
    )
    with st.container(horizontal=True):
        st.page_link(page("run"), label="Run")
        st.page_link(page("data"), label="Data")


def reset_button(choices: Sequence[filters.Choice]) -> None:
    """A button under the filters that sets them back; disabled while nothing differs."""
    changed = [choice for choice in choices if choice.value != choice.default]
    st.sidebar.button(
        "Reset filters",
        key="reset",
        on_click=filters.reset,
        args=(choices,),
        disabled=not changed,
        width="stretch",
    )


def context(loaded: state.Loaded, choices: Sequence[filters.Choice]) -> str:
    """The top line: device, dtype, clock, versions, run, cases and flags, as plain text."""
    environment = loaded.run.header.environment
    chosen = filters.values_of(choices)
    label = state.label_of(loaded.stamp.path)
    flagged = int((loaded.frame["flags"].fillna("") != "").sum())
    versions = [f"torch {environment.torch_version}"] if environment.torch_version else []
    versions += [f"triton {environment.triton_version}"] if environment.triton_version else []
    dirty = {True: "", False: ", uncommitted changes", None: ""}[environment.git_clean]
    commit = [f"commit {environment.git_commit[:9]}{dirty}"] if environment.git_commit else []
    parts = [
        environment.device_name,
        *([str(chosen["dtype"])] if "dtype" in chosen else []),
        *([f"{chosen['clock']} clock"] if "clock" in chosen else []),
        *versions,
        f"run {loaded.name} ({', '.join([loaded.run.header.created_at[:10], *commit])})",
        *([label] if label else []),
        f"{units.count_text(len(loaded.run.measurements))} cases",
        f"{units.count_text(flagged)} of {units.count_text(len(loaded.frame))} rows flagged",
    ]
    return " · ".join(parts)


def view_url(query: Mapping[str, str | list[str]]) -> str:
    """The address of the page at hand with these query parameters."""
    parts = urlsplit(st.context.url or "")
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query, doseq=True), ""))


# ------------------------------------------------------------------------------------- charts and tables


def chart(
    fig: go.Figure,
    *,
    name: str,
    alt: str,
    caption: str,
    measured: bool | None,
    on_select: Callable[[], None] | None = None,
) -> None:
    """Draw a figure under a caption that says whether its numbers were measured.

    Args:
        fig: the figure.
        name: of the chart, used for keys and for the picture's file name.
        alt: what the chart shows, for a screen reader.
        caption: one or more sentences of our own (Markdown; text from files must be `plain`).
        measured: True, False (modelled) or None for both on one chart.
        on_select: called when a point is clicked, see `pages.point`; None: points cannot be picked.
    """
    config = {
        "displaylogo": False,
        "modeBarButtonsToRemove": ["toImage", "select2d", "lasso2d", "autoScale2d"],
    }
    picking: dict[str, Any] = {}
    if on_select is not None:
        picking = {"on_select": on_select, "selection_mode": "points"}
    st.plotly_chart(fig, key=f"chart-{name}", alt=alt, config=config, **picking)
    badge = {
        True: ":blue-badge[measured]",
        False: ":orange-badge[modelled]",
        None: ":blue-badge[measured: solid] :orange-badge[modelled: dashed]",
    }[measured]
    st.markdown(f"{badge} :small[{caption}]")  # a caption's grey would fall below the contrast of text
    pictures.buttons(f"chart-{name}", name)


def csv_button(label: str, make: Callable[[], pd.DataFrame], *, file_name: str, key: str) -> None:
    """A download of a table with all digits; it is made when asked for."""
    st.download_button(
        label,
        data=lambda: export.to_csv(make()),
        file_name=file_name,
        mime="text/csv",
        on_click="ignore",
        key=key,
    )


def table(frame: pd.DataFrame, *, name: str, run_id: str) -> None:
    """The numbers of a chart: a table, a CSV with all digits, and Markdown to paste into a review.

    A review reads no table of thousands of rows: of a long one, the Markdown has the first `MARKDOWN_ROWS`.
    """
    rows = "1 row" if len(frame) == 1 else f"{units.count_text(len(frame))} rows"
    with st.expander(f"Table, CSV, Markdown ({rows})"):
        st.dataframe(frame, hide_index=True, placeholder=units.UNKNOWN, alt=f"Data of {name}")
        with st.container(horizontal=True):
            csv_button("CSV", lambda: frame, file_name=f"{run_id}-{name}.csv", key=f"csv-{name}")
            with st.popover("Markdown"):
                if len(frame) > MARKDOWN_ROWS:
                    st.text(f"The first {units.count_text(MARKDOWN_ROWS)} rows; the CSV has all.")
                st.code(export.to_markdown(frame.head(MARKDOWN_ROWS)), language="markdown")


def failures_text(frame: pd.DataFrame) -> str:
    """How many cases of a table did not run, and why: `3 of 48 cases did not run: 2 OOM, 1 timeout.`"""
    failed = frame[frame["status"] != "ok"]
    if not len(failed):
        return f"All {units.count_text(len(frame))} cases ran." if len(frame) != 1 else "The case ran."
    counts = failed["status"].value_counts()
    words = ", ".join(f"{units.count_text(n)} {plain(status_word(str(s)))}" for s, n in counts.items())
    return f"{units.count_text(len(failed))} of {units.count_text(len(frame))} cases did not run: {words}."
