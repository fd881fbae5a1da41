"""Compare: did it get better? Two runs, GPUs or versions, or a published result, case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from profiling import store, units
from profiling.analysis import compare as engine
from profiling.analysis.compare import MARGIN, METRICS, THRESHOLD, VERDICTS, Comparison
from profiling.analysis.operations import named
from profiling.analysis.regressions import compares_nothing, summary
from profiling.case import ATTENTION, CLOCKS, DIRECTIONS, OPERATIONS, InputError
from profiling.figures import ratios as figures
from profiling.pages import compare_model as model
from profiling.pages import compare_sides as sides
from profiling.pages import filters, published, state, widgets
from profiling.paths import DATA_DIR

QUESTION = "Did it get better? Two runs, GPUs or versions, case by case; every ratio is B / A."
MEANING = {
    "same": "the interval of the ratio lies within the margin",
    "faster": "the interval lies below the margin altogether; of memory and energy: less",
    "slower": "the interval lies above the margin altogether; of memory and energy: more",
    "ambiguous": "anything else: too few processes or samples, or a difference too small to tell",
    "missing": "a side has no value: the case failed there, or is not in it",
}
AXIS = {"latency": "Latency", "memory": "Peak memory", "energy": "Energy of a call"}
READING = (
    "How to read it: 1× means no difference. To the right of the shaded band B takes more than A, to the "
    "left less. Where a bar (the interval) crosses the edge of the band, the measurements do not tell which."
)


def render() -> None:
    """Draw the page."""
    link = widgets.heading("Compare", QUESTION)
    if not widgets.folder_exists(state.data_dir()):
        return
    infos = {info.path.stem: info for info in state.runs() if not info.problem and info.n_cases}
    if not infos:
        widgets.nothing_yet()
        return
    chosen = _choose(infos)
    if chosen is None:
        return
    a, others, beside = chosen
    st.text("\n".join([f"A: {a.name}: {a.about}", *(f"B: {b.name}: {b.about}" for b in others)]))
    for note in dict.fromkeys(filter(None, (a.note, *(b.note for b in others)))):
        st.info(note)
    choices = _how(a, others)
    if choices is None:
        return
    choices += beside
    asked = filters.values_of(choices)
    try:
        found = [_compared(a, b, asked["margin"] / 100, asked["threshold"] / 100) for b in others]
    except InputError as error:
        st.info(widgets.plain(error))
        return
    b, comparison, look = _look(others, found, asked)
    choices += [look, *_filters(comparison)]
    asked = filters.values_of(choices)
    shown = _shown(comparison, asked)
    widgets.reset_button(choices)
    query: filters.Query = {"a": a.name, "b": [each.name for each in others]}
    widgets.share(link, query | filters.texts_of(choices))
    _answer(comparison, shown, str(asked["metric"]))
    _evidence(shown, asked, f"{_file_name(a)}-{_file_name(b)}")
    _regressions(shown, f"{_file_name(a)}-{_file_name(b)}")
    _command(a, b, asked)


# ------------------------------------------------------------------------------------------------ choosing


def _choose(
    infos: dict[str, store.RunInfo],
) -> tuple[sides.Side, list[sides.Side], list[filters.Choice]] | None:
    """A, what it is compared with, and the filter that this took; None after saying what is lacking."""
    table = published.table()
    brought = _brought()
    newest = sorted(infos.values(), key=lambda info: info.created_at, reverse=True)
    names = [info.path.stem for info in newest] + ([brought.name] if brought else [])
    names += sides.published_names(table)
    usual = state.default_run(newest) or names[0]
    for key in ("a", "b"):
        for name in st.query_params.get_all(key):
            if name and name not in names:
                st.warning(f"The link asks for {widgets.plain(widgets.cut(name))}, which is not here.")
    asked = st.session_state.get("b", [])
    kept = [name for name in asked if name in names]
    if brought is not None and st.session_state.get("brought") != brought.key:
        st.session_state["brought"] = brought.key
        kept = [brought.name]  # a file that has just come is what is in question
    written = kept != asked
    if written:
        st.session_state["b"] = kept
    with st.container(horizontal=True, vertical_alignment="bottom"):
        first = filters.drop_down("a", "A: what was before", names, usual)
        rest = [info for info in newest if info.path.stem != first]
        default = [brought.name] if brought else [_usual_b(infos.get(first), rest)] if rest else []
        second = st.multiselect(
            "B: what is in question", names, default=None if written else default, key="b",
            bind="query-params",
            help="a run, or several: each is held against A by itself", max_selections=6,
        )  # fmt: skip
    if not second:
        st.info("Choose what to compare with." if rest else "There is one run only: nothing to compare with.")
        st.text("Measure again with: flashscope run SWEEP, or bring a file of another machine above.")
        return None

    def opened(name: str) -> sides.Side:
        if brought is not None and name == brought.name:
            return brought
        return sides.run_side(infos[name])

    try:
        real = {name: opened(name) for name in (first, *second) if not name.startswith(sides.PUBLISHED)}
    except (InputError, FileNotFoundError) as error:
        st.error(widgets.plain(error))
        st.text("Choose another run, or see page Data.")
        return None
    beside = []
    if len(real) < len({first, *second}):
        beside.append(_beside(list(real.values())))
        real = {name: sides.only(side, beside[0].value) for name, side in real.items()}
    dtypes = {str(dtype) for side in real.values() for dtype in side.frame["dtype"].unique()}
    found = [
        real.get(name) or sides.published_side(table, name, beside[0].value, tuple(dtypes))
        for name in (first, *second)
    ]
    for side in found:
        if side.frame.empty or state.only_counters(side.frame):
            st.info(f"Nothing of {widgets.plain(side.name)} was timed, so it cannot be compared.")
            return None
    return found[0], found[1:], beside


def _usual_b(a: store.RunInfo | None, rest: Sequence[store.RunInfo]) -> str:
    """The newest other run of the same device and an operation of A's that was timed, else the newest."""
    alike = [
        info
        for info in rest
        if a is not None
        and info.device_name == a.device_name
        and not info.n_counted
        and set(info.operations) & set(a.operations)
    ]
    return (alike or list(rest))[0].path.stem


def _brought() -> sides.Side | None:
    """A file that is compared without being added to the data folder."""
    with st.expander("Compare with a file that is not in the data folder"):
        uploaded = st.file_uploader(
            "A run file (.jsonl), a comparison CSV, or a table of others (.csv, .md, .log, .txt)",
            type=["jsonl", "csv", "md", "log", "txt"],
            key="compare-file",
            max_upload_size=20,
        )
        st.caption("It stays in this browser session: a link to this view does not carry it.")
        if uploaded is None:
            return None
        try:
            return sides.file_side(uploaded.getvalue(), uploaded.name.replace("\\", "/").rpartition("/")[2])
        except InputError as error:
            st.error(widgets.plain(error))
            return None


def _beside(real: Sequence[sides.Side]) -> filters.Choice:
    """Which backend of the runs the published results are held against."""
    present = list(dict.fromkeys(name.partition("/")[0] for side in real for name in state.names(side.frame)))
    names = present or ["flash"]
    usual = next((each for each in filters.CANDIDATES if each in names), names[0])
    hint = "the backend whose rows published results are held against"
    value = filters.choose_one("beside", "Published stands for", names, usual, hint=hint)
    return filters.Choice("beside", "Published stands for", value, usual)


def _how(a: sides.Side, others: Sequence[sides.Side]) -> list[filters.Choice] | None:
    """Metric, clock, margin and threshold; None after saying that nothing was measured."""
    frames = [a.frame, *(b.frame for b in others)]
    metrics = [
        name for name, column in METRICS.items() if any(frame[column].notna().any() for frame in frames)
    ]
    if not metrics:
        st.info("Neither side has a value of any case, so there is nothing to compare.")
        return None
    present = {clock for frame in frames for clock in frame["clock"].unique()}
    clocks = [clock for clock in CLOCKS if clock in present] or list(CLOCKS[:1])
    common = [clock for clock in clocks if all((frame["clock"] == clock).any() for frame in frames)] or clocks
    with st.container(horizontal=True, vertical_alignment="bottom"):
        metric = filters.choose_in_page("metric", "Metric", metrics, metrics[0])
        choices = [metric]
        if metric.value == "latency":
            usual = filters.default_clock(common)
            choices.append(filters.choose_in_page("clock", "Clock", clocks, usual, hint=filters.CLOCK_HELP))
        choices.append(
            filters.positive(
                "margin", "Same within (%)", 100 * MARGIN, hint="within this two values are the same"
            )
        )
        choices.append(
            filters.positive(
                "threshold", "Differ beyond (%)", 100 * THRESHOLD,
                hint="beyond this they differ, where there are no samples or few processes",
            )
        )  # fmt: skip
    return choices


def _look(
    others: Sequence[sides.Side], found: Sequence[Comparison], asked: Mapping[str, Any]
) -> tuple[sides.Side, Comparison, filters.Choice]:
    """Which B is looked at; with several a table of their counts stands above."""
    names = [b.name for b in others]
    if len(names) > 1:
        counted = [
            {"B": b.name, **_counts(_shown(each, asked), asked)}
            for b, each in zip(others, found, strict=True)
        ]
        st.dataframe(pd.DataFrame(counted), hide_index=True, alt="Verdicts by B")
        with st.container():
            name = filters.drop_down("look", "Look at", names, names[0])
    else:
        name = names[0]
    place = names.index(name)
    return (
        others[place],
        found[place],
        filters.Choice("look", "Look at", name, names[0], drawn=len(names) > 1),
    )


def _filters(comparison: Comparison) -> list[filters.Choice]:
    """What to leave out, in the sidebar."""
    rows = comparison.rows
    found = {row.case.direction for row in rows}
    present = {row.case.operation for row in rows}
    operations = [named(each) for each in OPERATIONS if each in present]
    dims = sorted({row.case.head_dim for row in rows if row.case.operation == ATTENTION})
    names = list(dict.fromkeys(model.name_of(row) for row in rows))
    return [
        filters.choose_any("verdicts", "Verdict", VERDICTS),
        filters.choose_any("sides_backends", "Backend", names),
        filters.choose_any("passes", "Direction", [each for each in DIRECTIONS if each in found]),
        filters.choose_any("operations", "Operation", operations),
        filters.choose_any("dims", "Head dim d", dims),
    ]


def _shown(comparison: Comparison, asked: Mapping[str, Any]) -> Comparison:
    return model.chosen(
        comparison,
        asked["metric"],
        asked.get("clock", ""),
        backends=asked.get("sides_backends", ()),
        directions=asked.get("passes", ()),
        head_dims=asked.get("dims", ()),
        verdicts=asked.get("verdicts", ()),
        operations=asked.get("operations", ()),
    )


def _counts(comparison: Comparison, asked: Mapping[str, Any]) -> dict[str, int]:
    none = dict.fromkeys(VERDICTS, 0)
    return summary(comparison).n_by_verdict.get(asked["metric"], none)


def _compared(a: sides.Side, b: sides.Side, margin: float, threshold: float) -> Comparison:
    return _engine(a.key, b.key, margin, threshold, a, b)


@st.cache_resource(max_entries=12, show_spinner="Comparing")
def _engine(
    a_key: tuple, b_key: tuple, margin: float, threshold: float, _a: sides.Side, _b: sides.Side
) -> Comparison:
    """Every metric and clock, once for each pair of files and limits."""
    return engine.compare(_a.frame, _b.frame, _a.samples, _b.samples, margin=margin, threshold=threshold)


# ------------------------------------------------------------------------------------------------- showing


def _answer(comparison: Comparison, shown: Comparison, metric: str) -> None:
    """What differs besides, then the verdicts counted."""
    lines = model.differences(shown)
    if not lines:
        st.markdown(f"Nothing else differs between A and B: {model.SAME} are the same.")
    else:
        text = "**A and B differ in more than time.** " if model.is_grave(shown) else "A and B differ in: "
        text += "A ratio is of all of it, not of the kernels alone." if model.is_grave(shown) else ""
        text += "\n" + "\n".join(f"- {line}" for line in lines)
        (st.warning if model.is_grave(shown) else st.info)(text)
    counts = _counts(shown, {"metric": metric})
    st.markdown("  \n".join(filter(None, (model.headline(counts, metric), model.advice(shown)))))
    with st.container(horizontal=True, gap="medium"):
        for verdict in VERDICTS:
            value = units.count_text(counts[verdict])
            st.metric(verdict.capitalize(), value, help=MEANING[verdict], width="content")
    if shown.rows and compares_nothing(shown):
        st.info(
            "Choose runs of the same sweep, so that they have cases in common, or another metric or clock."
        )
    if not shown.rows:
        whole = units.count_text(len(comparison.rows))
        st.info(f"No row passes the filters at the left ({whole} rows without them). Reset them to see all.")


def _evidence(shown: Comparison, asked: Mapping[str, Any], name: str) -> None:
    """The ratios by size, and every row."""
    rows = model.ratios(shown)
    if rows:
        what = AXIS[asked["metric"]] + (f", {asked['clock']} clock" if "clock" in asked else "")
        chart = figures.RatioChart(rows, shown.margin, f"{what}: B / A, lower is better")
        rated = sum(row.ratio is not None for row in shown.rows)
        caption = [model.basis_text(shown), model.missing_text(shown)]
        if len(rows) < rated:
            caption.append(
                f"{units.count_text(len(rows))} of {units.count_text(rated)} points are drawn: the ends "
                "whole, and some of what lies between."
            )
        widgets.chart(
            figures.figure(chart),
            name="ratios",
            alt=f"Ratio B / A of the {asked['metric']} with its interval, per case, sorted by size",
            caption=" ".join(filter(None, caption)),
            measured=True,
        )
        st.markdown(READING)
    if shown.rows:
        widgets.table(model.rows_table(shown), name="compare", run_id=name)


def _regressions(shown: Comparison, name: str) -> None:
    """Counts by backend and direction, the worst rows, and what no longer runs."""
    if not shown.rows:
        return
    told = summary(shown)
    st.header("Regressions")
    for title, lines in (
        ("Slower in B, the worst first" if told.worst else "", model.worst_text(told)),
        ("Ran in A, does not in B" if told.lost else "", model.lost_text(told)),
    ):
        if title:
            st.markdown("\n".join([f"**{title}**", "", *(f"- {line}" for line in lines)]))
    if not told.worst and not told.lost:
        st.markdown("No case is slower in B, and none that ran in A fails in B.")
    st.caption(
        "By backend and direction. The mean is geometric, and only given where no case is missing on a side; "
        "rows within what the clock itself takes are not in it."
    )
    groups = model.groups_table(told)
    st.dataframe(groups, hide_index=True, placeholder=units.UNKNOWN, alt="Verdicts by backend and direction")
    widgets.csv_button(
        "Regressions as CSV", lambda: groups, file_name=f"{name}-regressions.csv", key="csv-regressions"
    )


def _command(a: sides.Side, b: sides.Side, asked: Mapping[str, Any]) -> None:
    """The same on the command line, where it can stop a merge."""
    st.header("The command that does the same")
    if not (a.command and b.command):
        st.markdown("Published results are compared on this page only.")
        return
    folder = state.data_dir()
    text = model.command(
        a.command,
        b.command,
        asked["metric"],
        asked.get("clock", ""),
        margin=asked["margin"] / 100,
        threshold=asked["threshold"] / 100,
        data="" if folder == DATA_DIR else str(folder),
    )
    st.code(text, language="bash", wrap_lines=True)
    st.caption("With --fail-on slower=5% --fail-on missing it ends in status 4 where B is worse: for CI.")


def _file_name(side: sides.Side) -> str:
    """A side's name as part of a download's."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in side.name)
