"""Roofline: what bounds a call, and how near is it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import streamlit as st

from profiling import units
from profiling.analysis.ceilings import CEILINGS, LEVELS, Ceiling, ceilings
from profiling.analysis.curves import untiled
from profiling.analysis.roofline import Roof, roofs, with_counters
from profiling.case import InputError
from profiling.devices import Device
from profiling.figures import roofline as figures
from profiling.pages import filters, point, state, widgets

LEVEL_NAMES = {"DRAM": "dram", "L2": "l2"}
LEVEL_LABELS = {level: label for label, level in LEVEL_NAMES.items()}
LEVEL_HINT = (
    "DRAM: what comes from and goes to the memory behind the caches. "
    "L2: what the kernels ask of the cache that all SMs share."
)
UNITS_NAMED = {
    "tensor": "the tensor cores",
    "exp": "the unit for exponentials",
    "l2": "the L2",
    "dram": "DRAM",
    "launch": "the launch",
}
# What it means that a ceiling binds, for those who meet a roofline for the first time.
MEANING = {
    "tensor": (
        "The matrix products alone take that long: only fewer of them (a mask) or a faster GPU would help. "
        "What is missing is lost where softmax and loads do not overlap with the products, and to the power "
        "cap."
    ),
    "exp": (
        "A softmax needs an exponential for each pair of query and key, whatever d is: with a small d they "
        "take longer than the products."
    ),
    "l2": (
        "Every tile of queries asks the L2 for K and V anew: tiles with more queries (Br) ask less often. "
        "An eager kernel asks for each tensor it reads and writes."
    ),
    "dram": (
        "The bytes alone take that long: a faster kernel does not help, moving fewer bytes does. "
        "That is what fusing the softmax with the products is for."
    ),
    "launch": (
        "The call is over before the GPU is busy: longer sequences, larger batches or a CUDA graph help, "
        "a faster kernel hardly."
    ),
}
READING = (
    "How to read it: each point is a call, the higher the faster. A call that moves many bytes for its "
    "FLOPs stands on the left, under the rising line of memory; one that computes much with each byte on "
    "the right, under the level lines of the units that compute. The line right above a point is what it "
    "would have to wait for even if everything else took no time."
)


class View(NamedTuple):
    """What the page shows: the roofs by name and N, and the call that it explains."""

    roofs: dict[str, dict[int, Roof]]
    backend: str
    seq_len: int

    @property
    def chosen(self) -> Roof:
        """The call that is explained."""
        return self.roofs[self.backend][self.seq_len]


def render() -> None:
    """Draw the page."""
    head = widgets.open_run(
        "Roofline", "What bounds each call, and how near is it to that limit?", attention=True
    )
    loaded = head.loaded
    if loaded is None:
        return
    frame, choices = filters.choose_slice(untiled(loaded.frame))
    backends = filters.choose_backends(frame)
    with st.container(horizontal=True):
        clock = filters.choose_clock(frame)
        level = filters.choose_in_page("level", "Bytes through", list(LEVEL_NAMES), "DRAM", hint=LEVEL_HINT)
        log = filters.choose_log()
    choices = [*choices, backends, clock, level, log]
    rows = frame[(frame["clock"] == clock.value) & frame["name"].isin(backends.value or state.names(frame))]
    rows, borrowed = _with_counters(rows, loaded)
    by_name = {name: _by_length(rows[rows["name"] == name], str(clock.value)) for name in state.names(rows)}
    by_name = {name: found for name, found in by_name.items() if found}
    if not by_name or loaded.device is None:
        head.finish(choices)
        st.info(
            "There is no limit to hold these calls against: it needs a device of the catalogue "
            "(data/devices.toml) and dense attention, causal or not."
        )
        return
    view, own = _choose(by_name)

    st.markdown(sentence(view.chosen, view.backend))
    known = _ceilings(view.chosen, loaded.device, rows)
    chart = chart_of(view, known, LEVEL_NAMES[level.value])
    picked = point.chart(
        figures.figure(chart._replace(log=log.value)),
        loaded,
        name="roofline",
        alt=f"Rate against FLOPs a byte through the {level.value} per backend, under the device's ceilings",
        caption=_caption(view, known, LEVEL_NAMES[level.value], borrowed),
        measured=None,
        clock=str(clock.value),
    )
    head.finish([*choices, *own, picked])
    st.markdown(READING)
    widgets.table(_table(view), name="roofline", run_id=loaded.name)
    widgets.table(_ceilings_table(chart.ceilings), name="ceilings", run_id=loaded.name)


def _with_counters(rows: pd.DataFrame, loaded: state.Loaded) -> tuple[pd.DataFrame, list[str]]:
    """The rows with what other runs of this folder counted of the same calls, and those runs' names."""
    device, names = loaded.run.header.environment.device_name, []
    for info in state.runs():
        if (
            info.n_counted
            and not info.problem
            and info.device_name == device
            and info.path != loaded.stamp.path
        ):
            try:
                counted = state.load(info.path).frame
            except (InputError, FileNotFoundError):  # gone or broken meanwhile: page Data says so
                continue
            before = int(rows["dram_read_bytes"].notna().sum())
            rows = with_counters(rows, counted)
            if int(rows["dram_read_bytes"].notna().sum()) > before:
                names.append(info.path.stem)
    return rows, names


def _by_length(rows: pd.DataFrame, clock: str) -> dict[int, Roof]:
    return {roof.case.seq_len_k: roof for roof in roofs(rows, clock=clock)}


def _choose(by_name: dict[str, dict[int, Roof]]) -> tuple[View, list[filters.Choice]]:
    """Which call to explain: by default the candidate's longest."""
    names = list(by_name)
    usual = next((name for name in filters.CANDIDATES if name in names), names[0])
    with st.container(horizontal=True):
        backend = filters.choose_in_page("explain", "Explain", names, usual)
        lengths = sorted(by_name[backend.value])
        length = filters.choose_in_page("explain_n", "at N", lengths, lengths[-1])
    return View(by_name, backend.value, int(length.value)), [backend, length]


def sentence(roof: Roof, backend: str) -> str:
    """Which ceiling binds a call, how near it is, what the others would take, and what that means."""
    n, name = units.count_text(roof.case.seq_len_k), widgets.plain(backend)
    others = sorted(
        ((ms, which) for which, ms in roof.least_ms.items() if which != roof.bound_by), reverse=True
    )
    rest = ", ".join(f"{UNITS_NAMED[which]} {units.time_text(ms)}" for ms, which in others)
    bound = UNITS_NAMED[roof.bound_by]
    return (
        f"At N = {n} **{name}** takes {units.time_text(roof.latency_ms)}. **{bound[0].upper()}{bound[1:]} "
        f"{'bind' if roof.bound_by == 'tensor' else 'binds'} it**: alone that takes "
        f"{units.time_text(roof.least_ms[roof.bound_by])}, {units.percent_text(roof.reached)} of the time "
        f"measured{f' (the others: {rest})' if rest else ''}. {MEANING[roof.bound_by]}"
    )


def _ceilings(roof: Roof, device: Device, rows: pd.DataFrame) -> tuple[Ceiling, ...]:
    """The ceilings of the slice, at the highest clock that its rows ran at."""
    clock = rows["sm_clock_max_mhz"].max()
    return ceilings(roof.case, device, None if pd.isna(clock) else float(clock))


def chart_of(view: View, known: Sequence[Ceiling], level: str) -> figures.RooflineChart:
    """The chart for one level of memory."""
    tracks = []
    for name, found in view.roofs.items():
        spots = [
            figures.Spot(
                n, intensity, roof.tflops, roof.moved[level].counted, _details(roof, level), roof.case.label
            )
            for n, roof in sorted(found.items())
            if (intensity := roof.intensity(level)) is not None
        ]
        if spots:
            tracks.append(figures.Track(name, tuple(spots)))
    own = [roof for _, roof in sorted(view.roofs[view.backend].items()) if "launch" in roof.least_ms]
    launch = [
        (intensity, roof.flops / roof.least_ms["launch"] / 1e9)
        for roof in own
        if (intensity := roof.intensity(level)) is not None
    ]
    drawn = [ceiling for ceiling in known if not ceiling.sloped or ceiling.name == level]
    lowest = min([c.rate for c in drawn if not c.sloped and not c.measured], default=float("inf"))
    return figures.RooflineChart(
        tracks=tuple(tracks),
        ceilings=tuple(
            figures.Roofline(c.name, _label(c), c.rate, c.sloped, c.measured)
            for c in sorted(drawn, key=lambda c: (c.sloped, c.measured))
        ),
        level=LEVEL_LABELS[level],
        chosen=(view.backend, view.seq_len),
        launch=tuple((x, y) for x, y in launch if y <= lowest),
        launch_label=f"launch of {view.backend} ({units.time_text(own[0].least_ms['launch'])}, measured)"
        if own
        else "",
    )


def _label(ceiling: Ceiling) -> str:
    how = "measured" if ceiling.measured else "catalogue"
    if ceiling.sloped:
        name = LEVEL_LABELS[ceiling.name]
        return f"{name} {units.number_text(ceiling.rate)} TB/s{', measured' if ceiling.measured else ''}"
    return f"{ceiling.name} {units.number_text(ceiling.rate)} TFLOP/s ({how})"


def _details(roof: Roof, level: str) -> tuple[str, ...]:
    moved = roof.moved[level]
    return (
        f"{units.time_text(roof.latency_ms)}, {roof.clock} clock",
        f"{units.traffic_text(moved.nbytes)} {'counted' if moved.counted else 'modelled'}",
        f"bound by {roof.bound_by}, {units.percent_text(roof.reached)} reached",
    )


def _caption(view: View, known: Sequence[Ceiling], level: str, borrowed: Sequence[str]) -> str:
    """What is counted and what modelled, what is missing, and where the ceilings are from."""
    every = [roof for found in view.roofs.values() for roof in found.values()]
    without = [roof for roof in every if level not in roof.moved]
    fused = [r for r in without if r.case.backend == "flash_hopper" and r.case.direction != "fwd"]
    counted = [roof for roof in every if level in roof.moved and roof.moved[level].counted]
    parts = [
        "Rates are measured. Open markers: bytes from the model; filled ones: from hardware counters"
        + (f" of {', '.join(map(widgets.plain, borrowed))}" if borrowed else "")
        + f" ({units.count_text(len(counted))} of {units.count_text(len(every))} calls).",
        "FLOPs are the exact count: unmasked pairs, five products in the backward.",
    ]
    if level == "l2" and any(roof.case.backend == "naive" for roof in every):
        parts.append(
            "Of eager kernels the model counts each tensor that is read or written once; counters say some "
            "1.7 times that, since products read their operands again and lines are filled."
        )
    if fused:
        parts.append(
            f"{units.count_text(len(fused))} calls are not drawn: what the backward of "
            "flash\\_hopper moves is not modelled, and not counted here."
        )
    if without := [roof for roof in without if roof not in fused]:
        parts.append(
            f"{units.count_text(len(without))} calls are not drawn: neither counters nor the model say what "
            f"they move through the {LEVEL_LABELS[level]} "
            f"({'short eager calls live in the cache' if level == 'dram' else 'their tiles are unknown'})."
        )
    by_source: dict[str, list[str]] = {}
    for ceiling in known:
        if not ceiling.measured and ceiling.source:
            by_source.setdefault(ceiling.source, []).append(ceiling.name)
    told = "; ".join(f"{' and '.join(names)}: {widgets.plain(s)}" for s, names in by_source.items())
    parts.append(f"Ceilings of the catalogue, dashed: {told}.")
    parts += [f"Measured ones, solid: {widgets.plain(s)}." for s in {c.source for c in known if c.measured}]
    present = {ceiling.name for ceiling in known}
    missing = [UNITS_NAMED[name] for name in CEILINGS if name not in present and name != "launch"]
    if missing:
        parts.append(f"Not known of this device: {', '.join(missing)}.")
    return " ".join(parts)


def _ceilings_table(drawn: Sequence[figures.Roofline]) -> pd.DataFrame:
    """The device's lines of the chart: level ones by their rate, rising ones by their bandwidth."""
    return pd.DataFrame(
        [
            {
                "ceiling": c.label,
                "measured": c.measured,
                "rate_tflops": None if c.sloped else c.rate,
                "bandwidth_tbs": c.rate if c.sloped else None,
            }
            for c in drawn
        ]
    ).astype({"rate_tflops": "Float64", "bandwidth_tbs": "Float64"})


def _table(view: View) -> pd.DataFrame:
    """Every call: its rate, its FLOPs a byte at both levels, and the least time by each ceiling."""
    rows = []
    for name, found in view.roofs.items():
        for n, roof in sorted(found.items()):
            line = {"backend": name, "seq_len": n, "latency_p50_ms": roof.latency_ms}
            line |= {"exact_tflops": roof.tflops, "bound_by": roof.bound_by, "reached": roof.reached}
            for level in LEVELS:
                moved = roof.moved.get(level)
                line[f"{level}_bytes"] = None if moved is None else round(moved.nbytes)
                line[f"{level}_bytes_are"] = (
                    "" if moved is None else "counted" if moved.counted else "modelled"
                )
            line |= {f"est_least_{ceiling}_ms": roof.least_ms.get(ceiling) for ceiling in CEILINGS}
            rows.append(line)
    whole = dict.fromkeys((f"{level}_bytes" for level in LEVELS), "Int64")
    return pd.DataFrame(rows).astype(whole)
