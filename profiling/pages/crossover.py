"""Crossover: show me the evidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from profiling import lines, units
from profiling.analysis import explain
from profiling.analysis.crossover import Crossover, crossovers
from profiling.analysis.curves import untiled
from profiling.analysis.operations import along
from profiling.case import ATTENTION
from profiling.figures import crossover as figures
from profiling.figures import reasons
from profiling.figures.series import LATENCY, PEAK_MEMORY, Point, Series
from profiling.pages import crossover_map, filters, point, state, widgets

QUESTION = (
    "From which sequence length (or number of classes) on is the candidate ahead, how sure is that, and why?"
)
METRICS = ("latency", "memory")
VIEWS = ("curves", "map")
# What a verdict means, for the help text; the words are those of the analysis.
MEANING = {
    "clear": "one crossing, on which nearly all replicates agree",
    "several": "the two cross more than once",
    "ambiguous": "the replicates do not agree on the signs: more rounds or processes are needed",
    "always": "ahead at every N measured",
    "never": "behind at every N measured",
    "censored": "behind wherever both ran, and the baseline stops before a crossing could be seen",
}


def render() -> None:
    """Draw the page."""
    head = widgets.open_run("Crossover", QUESTION)
    loaded = head.loaded
    if loaded is None:
        return
    frame, choices = filters.choose_slice(untiled(loaded.frame))
    baseline = filters.choose_baseline(frame)
    candidate = filters.choose_candidate(frame, baseline.value)
    with st.container(horizontal=True):
        metric = filters.choose_in_page("metric", "Metric", METRICS, "latency")
        clock = filters.choose_clock(frame) if metric.value == "latency" else None
        view = filters.choose_in_page("view", "View", VIEWS, VIEWS[0], hint="map: who wins along two axes")
        down = crossover_map.choose_rows(frame) if view.value == "map" else None
        log = filters.choose_log() if down is None else None
    shown = [choice for choice in (clock, view, down, log) if choice is not None]
    choices = [*choices, baseline, candidate, metric, *shown]
    if down is not None and baseline.value != candidate.value:
        head.finish(choices)
        crossover_map.render(loaded, choices, down.value, find)
        return
    found = find(loaded.stamp, choices)
    if not found:
        head.finish(choices)
        if baseline.value == candidate.value:
            st.info("This run holds one backend only, so there is nothing to compare.")
            return
        st.info("Nothing to compare here.")
        st.text(
            f"Both {baseline.value} and {candidate.value} need rows on this slice; choose others at the left."
        )
        return
    on = clock.value if clock else None
    log_axes = log is None or log.value
    picked = [_one(each, _rows(frame, each, on), loaded, log=log_axes) for each in found]
    head.finish([*choices, *picked])


def find(stamp: state.Stamp, choices: list[filters.Choice]) -> list[Crossover]:
    """The crossovers of the chosen slice; computed once per file and view."""
    chosen = filters.values_of(choices)
    where = tuple((key, chosen[key]) for key in filters.SLICE if key in chosen)
    return _find(
        stamp, where, chosen["baseline"], chosen["candidate"], chosen["metric"], chosen.get("clock", "wall")
    )


@st.cache_data(max_entries=64, show_spinner="Comparing")
def _find(
    stamp: state.Stamp,
    where: tuple[tuple[str, Any], ...],
    baseline: str,
    candidate: str,
    metric: str,
    clock: str,
) -> list[Crossover]:
    if baseline == candidate:
        return []
    frame = state.load(stamp.path).frame
    for key, value in where:
        frame = frame[frame[filters.AXES[key].column] == value]
    samples = state.samples(stamp) if metric == "latency" else None
    return crossovers(frame, samples, baseline=baseline, candidate=candidate, metric=metric, clock=clock)


def _rows(frame: pd.DataFrame, each: Crossover, clock: str | None) -> pd.DataFrame:
    """The rows of both backends, on the clock of the comparison; memory is the same on all."""
    both = frame[frame["name"].isin([each.baseline, each.candidate])]
    if clock is not None:
        return both[both["clock"] == clock]
    return both.drop_duplicates(subset=["name", "seq_len"])


def _one(each: Crossover, rows: pd.DataFrame, loaded: state.Loaded, *, log: bool) -> filters.Choice:
    """The answer first, then the evidence, then the numbers."""
    _answer(each)
    memory, words = each.metric == "memory", along([each.slice.operation])
    ratio = Series(
        each.candidate,
        tuple(
            Point(
                *(p.seq_len, p.ratio, p.ratio_lo, p.ratio_hi, (SIGNS[p.sign],)),
                key=each.slice.case(each.candidate, p.seq_len).label,
            )
            for p in each.points
            if p.ratio is not None
        ),
        label=f"{each.baseline} / {each.candidate}",
        along=words,
    )
    chart = figures.CrossoverChart(
        metric=PEAK_MEMORY if memory else LATENCY,
        curves=lines.series(rows, lines.PEAK_MEMORY if memory else lines.LATENCY),
        ratio=ratio,
        ratio_label="Memory ratio" if memory else "Speed-up",
        brackets=each.brackets,
        crossover_seq_len=each.crossover_seq_len,
        interval=each.interval,
        log=log,
    )
    spread = (
        "" if memory else "Above: median, whiskers p20 to p80. Below: ratio of paired rounds, 95 % interval. "
    )
    measured, star = ("N", "N\\*") if words.before else ("numbers of classes", "the crossover")
    picked = point.chart(
        figures.figure(chart),
        loaded,
        name="crossover",
        alt=f"{each.metric} of {each.baseline} and {each.candidate} against {words.noun}, and their ratio",
        caption=(
            f"{spread}Shaded: between the measured {measured} that enclose a crossing, and the interval of "
            f"{star}. "
            f"{widgets.failures_text(rows)}"
        ),
        measured=True,
        clock=each.clock or None,
    )
    widgets.table(_table(each, chart.curves), name="crossover", run_id=loaded.name)
    _reasons(each, loaded)
    st.download_button(
        "This comparison as JSON",
        data=lambda: json.dumps(each.to_dict(), indent=1),
        file_name=f"{loaded.name}-crossover.json",
        mime="application/json",
        on_click="ignore",
        key="crossover-json",
    )
    return picked


@st.cache_data(max_entries=64, show_spinner="Fitting a latency model")
def _fits(stamp: state.Stamp, names: tuple[str, ...], direction: str, dtype: str, clock: str) -> explain.Fits:
    from profiling.analysis.latency_fit import fit_latency  # scipy's solver takes a while to import

    frame = state.load(stamp.path).frame
    wanted = frame["name"].isin(names) & (frame["direction"] == direction) & (frame["dtype"] == dtype)
    return fit_latency(frame[wanted], clock=clock)


def _reasons(each: Crossover, loaded: state.Loaded) -> None:
    """What both sides' time consists of at N*, or at both ends, by the model fitted to this run."""
    if each.metric != "latency" or each.slice.operation != ATTENTION:
        return
    here = each.slice
    fits = _fits(loaded.stamp, (each.baseline, each.candidate), here.direction, here.dtype, each.clock)
    bars = explain.shares(each, fits)
    if not bars:
        return
    st.header("Why here")
    errors = [
        f"{widgets.plain(bar.backend)} by {units.percent_text(fits[key].error)}"
        for bar in {bar.backend: bar for bar in bars}.values()
        if (key := (bar.backend, here.direction, here.dtype)) in fits
    ]
    widgets.chart(
        reasons.figure(bars),
        name="crossover-reasons",
        alt=f"What the time of {each.baseline} and {each.candidate} consists of",
        caption=f"By a model of launches, bytes and pairs fitted to this run; off, in the median of its "
        f"cases: {', '.join(errors)}. Padding: pairs that tiles compute and throw away; waves: what the "
        "busiest multiprocessor has more than its share.",
        measured=False,
    )
    table = pd.DataFrame(
        [
            {"backend": bar.backend, "seq_len": bar.seq_len, "est_latency_ms": bar.est_latency_ms}
            | {f"est_{reason}_share": share for reason, share in bar.shares.items()}
            for bar in bars
        ]
    )
    widgets.table(table, name="crossover-reasons", run_id=loaded.name)


AHEAD = {"above": "Ahead from N*", "below": "Ahead up to N*", "": "Crossover N*"}
AHEAD_OF_ROWS = {"above": "Ahead from (classes)", "below": "Ahead up to (classes)", "": "Crossover (classes)"}
SIGNS = {1: "candidate ahead", -1: "candidate behind", 0: "neither can be said to be ahead"}


def _answer(each: Crossover) -> None:
    """Verdict, N*, interval and agreement, then why, and what to measure next."""
    columns = st.columns([3, 3, 4, 3])  # an interval is the longest of them
    words = along([each.slice.operation])
    meaning = MEANING.get(each.verdict, "").replace("every N", f"every {words.each}")
    columns[0].metric("Verdict", each.verdict, help=meaning)
    how = f"where a smooth curve through the log-ratios, over log2 of {words.column}, crosses 1×"
    columns[1].metric((AHEAD if words.before else AHEAD_OF_ROWS)[each.ahead], whole(each.crossings), help=how)
    holds = "the spread between processes, and how far the curve may be off between the points"
    columns[2].metric("95 % interval", whole(each.interval or (), " to "), help=holds)
    share = units.percent_text(each.share)
    columns[3].metric("Agreement", share, help="share of the replicates that show exactly these signs")
    st.markdown(f"**Why.** {widgets.plain(each.why)}")
    if each.next:
        st.markdown(f"**Next.** {widgets.plain(each.next)}")


def whole(lengths: Sequence[float], between: str = ", ") -> str:
    """Lengths in whole tokens, or numbers of classes; `–` for none."""
    return between.join(units.count_text(round(n)) for n in lengths) or units.UNKNOWN


def _table(each: Crossover, curves: Sequence[Series]) -> pd.DataFrame:
    """The points, every digit kept; where one side alone ran, the other and the ratio are empty."""
    unit = "bytes" if each.metric == "memory" else "ms"
    both = {p.seq_len for p in each.points}
    alone = [
        {"seq_len": p.seq_len, f"{s.name}_{unit}": p.value}
        for s in curves
        for p in s.points
        if p.seq_len not in both
    ]
    table = pd.DataFrame(
        [
            {
                "seq_len": p.seq_len,
                f"{each.baseline}_{unit}": p.baseline_value,
                f"{each.candidate}_{unit}": p.candidate_value,
                "ratio": p.ratio,
                "ratio_lo": p.ratio_lo,
                "ratio_hi": p.ratio_hi,
                "sign": p.sign,
            }
            for p in each.points
        ]
        + alone,
        columns=None if each.points or alone else ["seq_len", "ratio"],
    )
    return table.sort_values("seq_len", kind="stable").convert_dtypes()
