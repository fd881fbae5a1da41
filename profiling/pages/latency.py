"""Latency: how fast, and how far from the limit?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from profiling import lines, units
from profiling.analysis.curves import untiled
from profiling.figures import latency as figures
from profiling.figures.series import LATENCY, TFLOPS, TIME_PER_ROW, TIME_PER_TOKEN, Metric, along_of
from profiling.pages import filters, point, published, state, widgets

SHOW: dict[str, tuple[Metric, lines.Reading]] = {
    "latency": (LATENCY, lines.LATENCY),
    "TFLOP/s": (TFLOPS, lines.TFLOPS),
    "time per token": (TIME_PER_TOKEN, lines.PER_TOKEN),
}
# Of an operation over rows: it has no FLOPs to speak of, what it takes is bytes.
SHOW_OF_ROWS: dict[str, tuple[Metric, lines.Reading]] = {
    "latency": (LATENCY, lines.LATENCY),
    "time per row": (TIME_PER_ROW, lines.PER_TOKEN),
}
_ALONG = {"batch": "", "tokens": "The batch falls as N grows, so that batch · N stays the same."}
COLUMNS = [
    *("name", "batch", "seq_len", "latency_p50_ms", "latency_p20_ms", "latency_p80_ms", "speedup"),
    "latency_per_token_ns",
    *(
        "paper_tflops",
        "n_samples",
        "n_rounds",
        "n_processes",
        "status",
        "reason",
        "flags",
        "block_m",
        "block_n",
        "kernel",
    ),
    *("rel_error", "eager_rel_error"),
]

# What they are called of operations over rows.
OF_ROWS = {
    "name": "backend",
    "batch": "rows",
    "seq_len": "classes",
    "latency_per_token_ns": "latency_per_row_ns",
}


def render() -> None:
    """Draw the page."""
    head = widgets.open_run("Latency", "How fast is each backend, and how far from the device's limit?")
    loaded = head.loaded
    if loaded is None:
        return
    along = filters.choose_along(untiled(loaded.frame))
    frame, choices = filters.choose_slice(untiled(loaded.frame), filters.ALONG[along.value])
    offered = SHOW_OF_ROWS if filters.is_over_rows(frame) else SHOW
    baseline, chosen = filters.choose_baseline(frame), filters.choose_backends(frame)
    with st.container(horizontal=True):
        clock = filters.choose_clock(frame)
        show = filters.choose_in_page("show", "Show", list(offered), "latency")
        log = filters.choose_log()
    laid_over = published.choose(frame, str(show.value), loaded.device)
    choices = [along, *choices, baseline, chosen, clock, show, log, laid_over.choice]

    frame = frame[frame["clock"] == clock.value]
    wanted = chosen.value or state.names(frame)
    shown = frame[frame["name"].isin([*wanted, baseline.value])]
    metric, reading = offered[show.value]
    dtype = str(frame["dtype"].iloc[0])
    peak = loaded.device.peak_tflops(dtype) if loaded.device and show.value == "TFLOP/s" else None
    times = lines.series(shown, lines.LATENCY)
    chart = figures.LatencyChart(
        metric=metric,
        series=lines.series(shown, reading),
        ratios=lines.ratios(times, baseline.value),
        baseline=baseline.value,
        peak=peak,
        peak_label=figures.caption_of_peak(peak, loaded.device.name if loaded.device else "", dtype),
        log=log.value,
        published=laid_over.series,
    )
    picked = point.chart(
        figures.figure(chart),
        loaded,
        name="latency",
        alt=f"{metric.label} against {along_of(chart.series).noun} per backend, and the speed-up over "
        f"{baseline.value}",
        caption=" ".join(
            filter(None, (_caption(shown, show.value, peak), _ALONG[along.value], laid_over.caption))
        ),
        measured=True,
        clock=str(clock.value),
    )
    head.finish([*choices, picked])
    widgets.table(_table(shown, baseline.value), name="latency", run_id=loaded.name)
    if laid_over.rows is not None:
        st.markdown(":small[The published numbers that are laid over, each with its source:]")
        widgets.table(laid_over.rows, name="published", run_id="others")


def _caption(shown: pd.DataFrame, show: str, peak: float | None) -> str:
    sentences = ["Median; whiskers from p20 to p80.", widgets.failures_text(shown)]
    if show == "TFLOP/s":
        sentences.append(
            "FLOPs by the paper convention: forward 4·B·H·N²·d, halved under a causal mask, "
            "backward 2.5 times that."
        )
        if (shown["window"] != "none").any():
            sentences.append("A window has no rate: this count does not know what it leaves out.")
        above = shown[shown["paper_tflops"] > peak] if peak else shown.iloc[:0]
        if len(above):
            sentences.append(
                f"**{units.count_text(len(above))} points lie above the device's peak**: the convention "
                "counts work that this backend skips, or the clock is wrong."
            )
    if show == "time per row":
        sentences.append("Latency divided by the number of rows.")
    if show == "time per token":
        sentences.append("Latency divided by the query tokens of the batch.")
    return " ".join(sentences)


def _table(shown: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The rows of the chart with their speed-up over the baseline, every digit kept."""
    reference = shown[(shown["name"] == baseline) & (shown["status"] == "ok")].set_index("seq_len")
    of = reference["latency_p50_ms"][~reference.index.duplicated()]
    ok = shown["latency_p50_ms"].where(shown["status"] == "ok")
    speedup = shown["seq_len"].map(of).astype("float64") / ok
    per_token = [row.latency_p50_ms * lines.PER_TOKEN.scale(row) for row in state.records(shown)]
    shown = shown.assign(speedup=speedup, latency_per_token_ns=pd.array(per_token, dtype="Float64"))
    if filters.is_over_rows(shown):
        kept = [name for name in COLUMNS if name not in ("paper_tflops", "block_m", "block_n")]
        return shown[kept].rename(columns=OF_ROWS)
    return shown[COLUMNS].rename(columns={"name": "backend"})
