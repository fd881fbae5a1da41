"""What-if: what would this run look like on a GPU that we do not have?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from profiling import lines, units
from profiling.analysis.curves import by_slice, untiled
from profiling.analysis.whatif import Prediction, WhatIf, what_if
from profiling.case import KEY_FIELDS, InputError
from profiling.devices import Device, catalogue
from profiling.figures import latency as figures
from profiling.figures import memory as memory_figures
from profiling.figures.series import LATENCY, PEAK_MEMORY
from profiling.pages import crossover, filters, state, widgets
from profiling.pages import whatif_model as model
from profiling.paths import DATA_DIR

QUESTION = "The GPU we do not have: how fast would it be, from which N on does the candidate win, what fits?"
USUAL = ("A100-SXM-80GB", "H100-SXM")
PRICE_HINT = "in any currency: a million tokens then cost thousandths of it. Empty: not counted"
READING = (
    "How to read it: solid lines with markers were measured on the GPU of the run, dashed lines are what the "
    "model expects of the other GPU. Below, above 1× the candidate is ahead. Short calls are mostly launch, "
    "which depends on the host and stays as it was; long ones are bytes (eager) or arithmetic (fused), which "
    "follow the GPU's bandwidth and peak."
)


def render() -> None:
    """Draw the page."""
    head = widgets.open_run("What-if", QUESTION, attention=True)
    loaded = head.loaded
    if loaded is None:
        return
    frame, choices = filters.choose_slice(untiled(loaded.frame))
    baseline = filters.choose_baseline(frame)
    candidate = filters.choose_candidate(frame, baseline.value)
    try:
        devices = catalogue()
    except InputError as error:
        st.error(widgets.plain(error))
        return
    here = loaded.device.name if loaded.device else ""
    usual = next(
        (name for name in (*USUAL, *devices) if name in devices and name != here), next(iter(devices))
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        gpu = filters.drop_down(
            "gpu", "GPU", list(devices), usual, hint="of the catalogue, data/devices.toml"
        )
        price = filters.positive("price", "Its price per hour", None, hint=PRICE_HINT)
        own = filters.positive("price_here", "Price per hour of the run's GPU", None, hint=PRICE_HINT)
        clock = filters.choose_clock(frame)
        log = filters.choose_log()
    choices += [baseline, candidate, filters.Choice("gpu", "GPU", gpu, usual), price, own, clock, log]
    head.finish(choices)

    device = devices[gpu]
    found = _predicted(loaded.stamp, device, baseline.value, candidate.value, clock.value)
    rows = frame[frame["clock"] == clock.value]
    one = _of(found, rows) if isinstance(found, WhatIf) else None
    if not isinstance(found, WhatIf) or one is None:
        why = found if isinstance(found, str) else "this shape is not one that the latency model knows."
        _not_modelled(loaded, why, clock.value)
        return
    measured = _measured(rows, one)
    _answer(one, found, crossover.find(loaded.stamp, [*choices, filters.Choice("metric", "", "latency", "")]))
    if price.value:
        st.markdown(model.cost_text(one, found, price.value, measured.get(one.candidate, {}), own.value))
    _latency(one, found, rows, log=log.value)
    widgets.table(model.table(one, found, measured, price.value), name="what-if", run_id=loaded.name)
    _memory(one, found, frame, log=log.value)
    st.header("The command that does the same")
    words = ["flashscope", "whatif", loaded.name, "--gpu", gpu]
    words += ["--baseline", one.baseline, "--candidate", one.candidate, "--clock", found.clock]
    words += [] if state.data_dir() == DATA_DIR else ["--data", str(state.data_dir())]
    st.code(shlex.join(words), language="bash", wrap_lines=True)


def _predicted(stamp: state.Stamp, device: Device, baseline: str, candidate: str, clock: str) -> WhatIf | str:
    """The predictions of the whole run, or the sentence that says why there are none."""
    if baseline == candidate:
        return "this run holds one backend only, so there is nothing to compare."
    return _what_if(stamp, device.name, device.model_dump_json(), baseline, candidate, clock)


@st.cache_resource(max_entries=32, show_spinner="Predicting")
def _what_if(
    stamp: state.Stamp, gpu: str, figures_of_it: str, baseline: str, candidate: str, clock: str
) -> WhatIf | str:
    device = Device.model_validate_json(figures_of_it)
    try:
        frame = state.load(stamp.path).frame
        return what_if(frame, device, baseline=baseline, candidate=candidate, clock=clock)
    except InputError as error:
        return f"{error}."


def _of(found: WhatIf, rows: pd.DataFrame) -> Prediction | None:
    """The prediction of the slice that the filters leave."""
    shown = set(by_slice(rows))
    return next((one for one in found.predictions if one.slice in shown), None)


def _not_modelled(loaded: state.Loaded, why: str, clock: str) -> None:
    """What is lacking, and what to do next."""
    st.info(f"Not modelled: {widgets.plain(why)}")
    st.markdown(
        "- Choose another GPU, if the catalogue lacks a figure of this one.\n"
        "- Choose naive and flash (or sdpa\\_flash), dense attention without window, bias and the like, or "
        "another clock.\n"
        "- Measure more: `flashscope run data/sweeps/standard.toml` on a GPU of the catalogue gives "
        "enough cases."
    )
    if loaded.device is None:
        st.text(
            f"{loaded.run.header.environment.device_name} is not in the catalogue (data/devices.toml), so "
            f"this run cannot be carried over on clock {clock}; choose another run at the left."
        )


def _measured(rows: pd.DataFrame, one: Prediction) -> dict[str, dict[int, float]]:
    """Measured medians in ms by backend and N."""
    ok = rows[rows["status"] == "ok"]
    out: dict[str, dict[int, float]] = {}
    for name in (one.baseline, one.candidate):
        own = ok[ok["name"] == name]
        out[name] = {
            int(n): float(ms)
            for n, ms in zip(own["seq_len"], own["latency_p50_ms"], strict=True)
            if pd.notna(ms)
        }
    return out


def _answer(one: Prediction, found: WhatIf, known: list[Any]) -> None:
    """N* there and here, what the model is off by, and the sentences that say what that means."""
    measured = next(iter(known), None)
    with st.container(horizontal=True, gap="medium"):
        st.metric(
            f"N* on {widgets.plain(found.device.name)}",
            model.crossover_text(one, one.crossover_seq_len),
            help="predicted: from where on the candidate stays ahead, within the lengths of the run",
            width="content",
        )
        st.metric(
            "Its interval",
            model.MODEL,
            help="it would need measurements on a GPU of that kind, which nobody made",
            width="content",
        )
        st.metric(
            f"N* on {widgets.plain(found.here.name)}, measured",
            units.UNKNOWN if measured is None else _here(measured),
            help="with its 95 % interval where there is one; the same model says "
            f"{model.crossover_text(one, one.here_crossover_seq_len)} here",
            width="content",
        )
        st.metric(
            "Model off by, unseen",
            units.percent_text(found.unseen_error),
            help="median error on the run's own GPU for head dims and batch · heads left out of the fit",
            width="content",
        )
    st.markdown(f"{model.sentence(one, found)}\n\n{model.error_text(one, found)}")


def _here(measured: Any) -> str:
    """A measured crossover: its N* with interval if it is clear, else its verdict."""
    n = measured.crossover_seq_len
    return measured.verdict if n is None else units.crossover_text(n, measured.interval)


def _latency(one: Prediction, found: WhatIf, rows: pd.DataFrame, *, log: bool) -> None:
    """Measured and predicted latency, and the ratio under them."""
    both = rows[rows["name"].isin([one.baseline, one.candidate])]
    times = lines.series(both, lines.LATENCY)
    chart = figures.LatencyChart(
        metric=LATENCY,
        series=(*times, *model.latency_series(one, found.device)),
        ratios=(*lines.ratios(times, one.baseline), model.ratio_series(one, found.device)),
        baseline=one.baseline,
        log=log,
    )
    st.header("Latency")
    widgets.chart(
        figures.figure(chart),
        name="what-if",
        alt=f"Latency of {one.baseline} and {one.candidate} against sequence length, measured on "
        f"{found.here.name} and predicted for {found.device.name}",
        caption=f"Measured on {widgets.plain(found.here.name)}: median, whiskers p20 to p80. "
        f"{widgets.failures_text(both)} A dashed line ends where the call no longer fits the other GPU. "
        f"{model.source_text(found.device)}",
        measured=None,
    )
    st.markdown(READING)


def _memory(one: Prediction, found: WhatIf, frame: pd.DataFrame, *, log: bool) -> None:
    """What fits: the measured peaks, the law, and the other GPU's memory."""
    st.header("What fits")
    st.markdown("\n".join(f"- {line}" for line in model.memory_text(one, found.device)))
    cases = frame.drop_duplicates(subset=list(KEY_FIELDS))
    shown = cases[cases["name"].isin([one.baseline, one.candidate])]
    by_allocator = bool((shown["mem_method"].isin(["", "cuda_allocator"])).all())
    capacity = found.device.memory_bytes
    chart = memory_figures.MemoryChart(
        metric=PEAK_MEMORY,
        series=lines.series(shown, lines.PEAK_MEMORY) if by_allocator else (),
        models=model.memory_series(one, found.device),
        capacity_bytes=capacity,
        capacity_label=memory_figures.capacity_label(found.device.name, capacity),
        log=log,
    )
    if not any(series.points for series in (*chart.series, *chart.models)):
        st.info("Neither backend has a memory law, and the run measured no memory of them.")
        return
    widgets.chart(
        memory_figures.figure(chart),
        name="what-if-memory",
        alt=f"Peak memory of {one.baseline} and {one.candidate} against N, and what {found.device.name} has",
        caption="Peak above the inputs, which come on top. The law follows from which tensors are alive; of "
        f"GPUs it knows which kernels flash takes there. {widgets.failures_text(shown)}",
        measured=None,
    )
    widgets.table(_memory_table(one, found, shown), name="what-if-memory", run_id=found.device.name)


def _memory_table(one: Prediction, found: WhatIf, shown: pd.DataFrame) -> pd.DataFrame:
    """Peak by backend and N: measured where it was, and by the law."""
    peaks: Mapping[tuple[str, int], Any] = {
        (row.name_, int(row.seq_len)): row.peak_mem_bytes
        for row in state.records(shown.rename(columns={"name": "name_"}))
    }
    models = model.memory_series(one, found.device)
    law = {s.name: {p.seq_len: round(p.value) for p in s.points} for s in models}
    rows = [
        {
            "backend": name,
            "seq_len": n,
            "peak_mem_bytes": peaks.get((name, n)),
            "est_peak_mem_bytes": law.get(name, {}).get(n),
            "memory_bytes": found.device.memory_bytes,
        }
        for name in (one.baseline, one.candidate)
        for n in one.est_latency_ms
    ]
    whole = dict.fromkeys(("peak_mem_bytes", "est_peak_mem_bytes", "memory_bytes"), "Int64")
    return pd.DataFrame(rows).astype(whole)
