"""Traffic: what does N²d²/M mean on this GPU?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from profiling import units
from profiling.analysis.curves import untiled
from profiling.case import DTYPE_BYTES, Case
from profiling.devices import Device, catalogue
from profiling.figures import traffic as figures
from profiling.model.traffic import kv_fits_l2_until
from profiling.pages import counters, filters, state, widgets
from profiling.pages import traffic_model as model
from profiling.units import KIB

LENGTHS = [2**p for p in range(6, 18)]
QUERIES_PER_TILE = [16, 32, 64, 128, 256]
LEAST_KIB, USUAL_SRAM_KIB, MOST_KIB = 16, 227, 512
USUAL_N, USUAL_BR = 8192, 128
ELEMENTS = {"2 bytes (fp16, bf16)": "bf16", "4 bytes (fp32)": "fp32"}
ORDER_HINT = (
    "FA2: queries outside; each query tile reads all keys and values once, and Br sets the bytes. "
    "FA1: keys outside, as in the first paper; M sets the key tile, and with it the bytes."
)
STORY = (
    "**N²d²/M counts what the tiles ask of the L2, not what the HBM moves.** A block algorithm reads K and V "
    "once per query tile, so its requests grow with N². But thread blocks that run at the same time walk the "
    "same K and V, and a large L2 hands them on: DRAM sees little more than each tensor once, until K and V "
    "of the heads in flight outgrow the L2. The eager baseline is another matter: it writes and reads its "
    "N × N scores several times, and beyond short N no cache holds those."
)


def render() -> None:
    """Draw the page."""
    head = widgets.open_run("Traffic", "What does N²d²/M mean on this GPU?", required=False)
    whole = head.loaded
    loaded = widgets.of_attention(whole, required=False) if whole is not None else None
    frame, choices = _slice(loaded)
    device, usual, gpu = _device(loaded)
    base = model.base_case(frame)
    knobs, set_by = _knobs(device, usual, base)

    rows = [model.row_at(base, n, knobs, device) for n in LENGTHS]
    at = next(row for row in rows if row.seq_len == knobs.seq_len)
    st.markdown(model.sentence(at, base, knobs))
    with st.container(horizontal=True):
        per_head = st.toggle(
            "Per head",
            value=True,
            key="per_head",
            bind="query-params",
            help="divided by batch · heads, so that counters of other shapes with the same d can be shown",
        )
        log = filters.choose_log()
    head.finish([*choices, gpu, *set_by, filters.Choice("per_head", "Per head", per_head, True), log])
    calls = counters.calls(counters.read(), device) if device.name == counters.DEVICE else []
    own = loaded is not None and loaded.device is not None and loaded.device.name == device.name
    shown = [call for call in calls if _same_shape(call, base, knobs, per_head=per_head)]
    scale = max(1, base.batch * base.heads) if per_head else 1  # an empty batch moves nothing
    chart = figures.TrafficChart(
        models=model.modelled(rows, scale),
        counters=(
            *model.counted(shown, per_head=per_head),
            *model.own_counters(frame if own else None, knobs.dtype, scale),
        ),
        at=knobs.seq_len,
        per_head=per_head,
        log=log.value,
    )
    widgets.chart(
        figures.figure(chart),
        name="traffic",
        alt="Bytes moved against sequence length: four models, and hardware counters as points",
        caption=_caption(base, len(shown), len(chart.counters) > 0, per_head=per_head),
        measured=None if chart.counters else False,
    )
    named = loaded.name if loaded else "model"
    widgets.table(model.table(rows, scale), name="traffic", run_id=named)
    if chart.counters:
        widgets.table(model.counted_table(chart.counters), name="traffic-counters", run_id=named)
    st.markdown(STORY)
    _cache_panel(device, base, knobs, log=log.value)
    _counters_panel([*calls, *(counters.of_run(loaded.frame) if own and loaded is not None else [])])
    if whole is not None:
        _rows_panel(counters.rows_counted(whole.frame), whole.name)


def _slice(loaded: state.Loaded | None) -> tuple[pd.DataFrame | None, list[filters.Choice]]:
    """The rows of the chosen shape, if there is a run. The element size is a control of the page itself."""
    if loaded is None:
        return None, []
    frame = untiled(loaded.frame)
    plain = frame[frame["plain"]]  # the formulas hold for dense attention only
    if not len(plain):
        return None, []
    return filters.choose_slice(plain, ("direction", "series", "d", "mask"))


def _device(loaded: state.Loaded | None) -> tuple[Device, Device, filters.Choice]:
    """The device the models speak of, any of the catalogue; the usual one, the run's own; and the choice."""
    known = {name: device for name, device in catalogue().items() if device.cache_bytes is not None}
    own = loaded.device if loaded is not None else None
    if own is not None:
        known = {own.name: own, **{name: device for name, device in known.items() if name != own.name}}
    default = own.name if own is not None else counters.DEVICE
    name = filters.choose_one("gpu", "Device of the model", list(known), default)
    return known[name], known[default], filters.Choice("gpu", "Device of the model", name, default)


def _knobs(device: Device, usual: Device, base: Case) -> tuple[model.Knobs, list[filters.Choice]]:
    """The controls, all in the URL, and what they say as choices for the link to the view."""
    own_kib = _sram_kib(device)
    left, right = st.columns(2)
    with left:
        seq_len = st.select_slider("N (tokens)", LENGTHS, value=USUAL_N, key="n", bind="query-params")
        sram_kib = st.slider(
            f"M, SRAM of one block in KiB ({widgets.plain(device.name)}: {own_kib})",
            min_value=LEAST_KIB,
            max_value=MOST_KIB,
            value=own_kib,
            key="sram_kib",
            bind="query-params",
        )
    with right:
        block_m = st.select_slider(
            "Br (queries per tile)", QUERIES_PER_TILE, value=USUAL_BR, key="br", bind="query-params"
        )
        with st.container(horizontal=True):
            order = filters.Choice("order", "Loop order", "FA2", "FA2", drawn=False)
            if base.direction == "fwd":
                order = filters.choose_in_page("order", "Loop order", ["FA2", "FA1"], "FA2", hint=ORDER_HINT)
            element = filters.choose_in_page("element", "Element", list(ELEMENTS), next(iter(ELEMENTS)))
    choices = [
        filters.Choice("n", "N", int(seq_len), USUAL_N),
        filters.Choice("sram_kib", "M", int(sram_kib), _sram_kib(usual)),
        filters.Choice("br", "Br", int(block_m), USUAL_BR),
        order,
        element,
    ]
    knobs = model.Knobs(
        int(seq_len), order.value.lower(), int(sram_kib) * KIB, int(block_m), ELEMENTS[element.value]
    )
    return knobs, choices


def _sram_kib(device: Device) -> int:
    """What one block of that device has, as the slider can show it."""
    return min(MOST_KIB, max(LEAST_KIB, round((device.sram_bytes or USUAL_SRAM_KIB * KIB) / KIB)))


def _same_shape(call: counters.Call, base: Case, knobs: model.Knobs, *, per_head: bool) -> bool:
    """Whether a call with counters may be drawn on this chart: forward, no mask, 16 bits, same d."""
    alike = base.direction == "fwd" and not base.causal and DTYPE_BYTES[knobs.dtype] == 2
    shape = per_head or (call.batch, call.heads) == (base.batch, base.heads)
    return alike and shape and call.head_dim == base.head_dim


def _caption(base: Case, n_counters: int, counted: bool, *, per_head: bool) -> str:
    direction = {"fwd": "Forward", "bwd": "Backward alone", "fwd_bwd": "Forward and backward"}[base.direction]
    found = "No hardware counters exist for this shape."
    if n_counters:
        found = f"Points: hardware counters of {n_counters} forward calls on an H200."
    elif counted:
        found = "Points: hardware counters of this run."
    per = "; per head, that is divided by batch · heads" if per_head else ""
    return f"{direction}, bytes read and written{per}. {found}"


def _cache_panel(device: Device, base: Case, knobs: model.Knobs, *, log: bool) -> None:
    """Where the K and V of one head outgrow the L2."""
    st.header("Where K and V of one head outgrow the L2")
    usable, whole = device.usable_cache_bytes, device.cache_bytes
    until = kv_fits_l2_until(device, base.head_dim, knobs.dtype, base.head_dim_v)
    if usable is None or whole is None or until is None:
        st.info("The cache of this device is not known.")
        return
    row_bytes = (base.head_dim + base.head_dim_v) * DTYPE_BYTES[knobs.dtype]
    longest = max(LENGTHS[-1], 2 * until)
    chart = figures.CacheChart(
        points=tuple((n, n * row_bytes) for n in sorted({*LENGTHS, longest})),
        label="K and V of one head",
        l2_bytes=whole,
        usable_bytes=usable,
        device=device.name,
        outgrown_from=until,
        at=knobs.seq_len,
        log=log,
    )
    widgets.chart(
        figures.cache_figure(chart),
        name="cache",
        alt="Bytes of K and V of one head against sequence length, with the L2 of the device",
        caption=(
            f"Beyond N = {units.count_text(until)} (shaded) K and V of one head alone exceed what re-reads "
            "can count on, and each further generation of query tiles fetches some of them from DRAM again; "
            "with queries, outputs and the next head's tiles beside them it begins at about a third of that. "
            "The usable part, "
            f"{units.percent_text(device.l2_usable_fraction)} of the cache, is fitted to hardware counters "
            "of flash_portable. Of its forwards in the shaded part counts do not repeat: one call read 4.7 "
            "to 6.2 GB in four runs on H200s and 14.8 GB in another. DRAM bytes modelled there are right "
            "to a factor of about two."
        ),
        measured=False,
    )
    sizes = pd.DataFrame(
        {"seq_len": [n for n, _ in chart.points], "est_kv_bytes": [b for _, b in chart.points]}
    )
    widgets.table(sizes, name="cache", run_id="model")


def _counters_panel(calls: list[counters.Call]) -> None:
    """Model against counter, call by call: which model speaks of which memory."""
    st.header("What the counters say")
    if not calls:
        st.info(
            "There are no hardware counters of this device here. `flashscope counters` reads them; those of "
            "an H200 are shown when it is chosen in the sidebar."
        )
        return
    st.markdown("\n\n".join(counters.sentences(calls)))
    widgets.table(counters.table(calls), name="counters", run_id="h200")


def _rows_panel(counted: pd.DataFrame, run_id: str) -> None:
    """What operations over rows moved, where the run counted them."""
    if counted.empty:
        return
    st.header("Operations over rows")
    st.markdown(
        ":blue-badge[measured] :small[DRAM bytes of a call by hardware counters, beside the bytes that must "
        "move: of `naive` kernel by kernel, of others each tensor once.]"
    )
    st.dataframe(
        counted, hide_index=True, placeholder=units.UNKNOWN, alt="Counted calls of operations over rows"
    )
    widgets.table(counted, name="row-counters", run_id=run_id)
