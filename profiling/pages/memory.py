"""Memory: what fits?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from profiling import lines, units
from profiling.analysis.curves import untiled
from profiling.analysis.operations import along
from profiling.analysis.operations import along_of as along_of_rows
from profiling.analysis.scaling import Scaling, scalings
from profiling.case import KEY_FIELDS
from profiling.devices import Device
from profiling.figures import memory as figures
from profiling.figures.series import PEAK_MEMORY, RETAINED_MEMORY, Metric, Point, Series, along_of
from profiling.model.hopper import as_measured
from profiling.model.memory import largest_seq_len, peak_bytes, retained_bytes
from profiling.pages import filters, point, state, widgets

SHOW: dict[str, tuple[Metric, lines.Reading]] = {
    "peak": (PEAK_MEMORY, lines.PEAK_MEMORY),
    "retained": (RETAINED_MEMORY, lines.RETAINED_MEMORY),
}
METHODS = {
    "cuda_allocator": "above q, k, v (and dO): allocator peak minus the value before the call",
    "allocator_total": "the allocator's whole peak, inputs included, as the imported file has it",
    "child_rss": "peak resident size of a fresh child process minus the size before the call",
}
COLUMNS = ["name", "seq_len", "peak_mem_bytes", "retained_mem_bytes", "mem_method", "status", "reason"]


def render() -> None:
    """Draw the page."""
    head = widgets.open_run("Memory", "What fits, and how does it grow?")
    loaded = head.loaded
    if loaded is None:
        return
    frame, choices = filters.choose_slice(untiled(loaded.frame))
    chosen = filters.choose_backends(frame)
    choices = [*choices, chosen]
    with st.container(horizontal=True):
        show = filters.choose_in_page(
            "held", "Show", list(SHOW), "peak", hint="retained: what a forward leaves behind"
        )
        methods = sorted(m for m in frame["mem_method"].unique() if m in METHODS)
        # Two methods never share an axis: each is a choice of its own, if a run holds both.
        if len(methods) > 1:
            method = filters.choose_in_page("method", "Method", methods, methods[0])
            choices.append(method)
            frame = frame[frame["mem_method"].isin(["", method.value])]
        log = filters.choose_log()
    choices += [show, log]
    # Memory is measured once a case; its row is repeated for each clock.
    cases = frame.drop_duplicates(subset=list(KEY_FIELDS))
    shown = cases[cases["name"].isin(chosen.value or state.names(cases))]
    metric, reading = SHOW[show.value]
    series = lines.series(shown, reading)
    if not any(s.points for s in series):
        head.finish(choices)
        st.info("This run has no memory of these cases: it was measured without, or none of them ran.")
        widgets.table(_table(shown), name="memory", run_id=loaded.name)
        return
    capacity = loaded.device.memory_bytes if loaded.device else None
    models = _models(shown, show.value) if methods == ["cuda_allocator"] else ()
    chart = figures.MemoryChart(
        metric=metric,
        series=series,
        models=models,
        capacity_bytes=capacity,
        capacity_label=figures.capacity_label(loaded.device.name, capacity) if loaded.device else "",
        log=log.value,
    )
    said = growth(scalings(shown, metric="memory")) if show.value == "peak" else ""
    if said:
        st.markdown(said)
    how = METHODS.get(methods[0] if methods else "", "")
    words = along_of(series)
    if not words.before:
        how = how.replace("q, k, v (and dO)", "the logits (and what else goes in)")
    picked = point.chart(
        figures.figure(chart),
        loaded,
        name="memory",
        alt=f"{metric.label} against {words.noun} per backend",
        caption=f"Bytes {how}. {widgets.failures_text(shown)}" if how else widgets.failures_text(shown),
        measured=None if models else True,
    )
    head.finish([*choices, picked])
    st.header("What fits")
    fits = largest(shown, loaded.device)
    alt = f"Largest {'sequence length' if words.before else words.each} per backend"
    st.dataframe(fits, hide_index=True, placeholder=units.UNKNOWN, alt=alt)
    widgets.table(_table(shown, models, show.value), name="memory", run_id=loaded.name)


def _models(shown: pd.DataFrame, held: str) -> tuple[Series, ...]:
    """The law of each backend that has one, at the N of its rows (failures too: there the law says why)."""
    out = []
    for name in state.names(shown):
        points = []
        for row in state.records(shown[shown["name"] == name].sort_values("seq_len")):
            case = as_measured(lines.case_of(row), row.kernel)
            nbytes = peak_bytes(case, row.device_kind) if held == "peak" else retained_bytes(case)
            if nbytes:
                points.append(Point(int(row.seq_len), float(nbytes)))
        if len(points) > 1:
            out.append(
                Series(name, tuple(points), label=f"{name}, law", modelled=True, along=along_of_rows(shown))
            )
    return tuple(out)


def _table(shown: pd.DataFrame, models: Sequence[Series] = (), held: str = "") -> pd.DataFrame:
    """The rows of the chart; where laws are drawn, their bytes beside the measured ones."""
    table = shown[COLUMNS].rename(columns={"name": "backend"})
    if models:
        law = {(s.name, p.seq_len): int(p.value) for s in models for p in s.points}
        keys = zip(table["backend"], table["seq_len"], strict=True)
        known = pd.array([law.get((name, int(n))) for name, n in keys], dtype="Int64")
        table = table.assign(**{f"est_{held}_mem_bytes": known})
    return table.rename(columns={"seq_len": "classes"}) if filters.is_over_rows(shown) else table


def _exponent(x: float) -> str:
    """What does not grow at all has an exponent of rounding errors."""
    return units.number_text(round(x, 6) + 0.0)


def growth(laws: list[Scaling]) -> str:
    """How each backend grows, such as `naive as N^1.98 [1.97, 1.99]` (Markdown with a formula)."""
    parts = []
    words = along(law.slice.operation for law in laws)
    what = "N" if words.before else r"\mathrm{classes}"
    for law in laws:
        interval = ""
        if law.interval is not None:
            low, high = (_exponent(x) for x in law.interval)
            interval = f" [{low}, {high}]"
        parts.append(f"**{widgets.plain(law.backend)}** as ${what}^{{{_exponent(law.exponent)}}}${interval}")
    if not parts:
        return ""
    first, last = min(law.first_seq_len for law in laws), max(law.last_seq_len for law in laws)
    span = words.of(f"{units.count_text(first)} to {units.count_text(last)}")
    return f"Peak memory grows: {', '.join(parts)} (fitted over each backend's last three octaves, {span})."


def largest(shown: pd.DataFrame, device: Device | None) -> pd.DataFrame:
    """Per backend the longest N that ran, where memory ran out first, and the longest N the law allows."""
    columns = ["largest N that ran", "out of memory from N", "largest N that fits (modelled)"]
    if filters.is_over_rows(shown):
        columns = [
            "most classes that ran",
            "out of memory from (classes)",
            "most classes that fit (modelled)",
        ]
    rows = []
    for name in state.names(shown):
        own = shown[shown["name"] == name]
        ran, failed = own[own["status"] == "ok"]["seq_len"], own[own["status"] == "oom"]["seq_len"]
        fits = None
        if device is not None and device.memory_bytes is not None:
            row = state.records(own)[-1]
            fits = largest_seq_len(as_measured(lines.case_of(row), row.kernel), device.memory_bytes)
        found = (int(ran.max()) if len(ran) else None, int(failed.min()) if len(failed) else None, fits)
        rows.append({"backend": name, **dict(zip(columns, found, strict=True))})
    return pd.DataFrame(rows).astype(dict.fromkeys(columns, "Int64"))
