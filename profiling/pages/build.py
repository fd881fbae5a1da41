"""The form of page Run for a sweep of one's own; all of it stands in the address."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from profiling.case import DIRECTIONS, DTYPE_BYTES, LARGEST, InputError
from profiling.grid import Sweep
from profiling.pages import build_model, filters, widgets

NUMBERS = "numbers with spaces between them; 64..1024 doubles: 64, 128, 256, 512, 1024"


def form(device: str) -> Sweep | None:
    """Draw the form for a device; the sweep, or None after saying what is wrong with it."""
    on_cpu = device == "cpu"
    usual = ["naive", "tiled", "sdpa_math"] if on_cpu else ["naive", "flash", "sdpa_flash"]
    backends = _several("own_backends", "Backends", build_model.backends_for(device), usual)
    with st.container(horizontal=True):
        directions = _several("own_direction", "Directions", DIRECTIONS, ["fwd"])
        dtypes = _several("own_dtype", "Dtypes", list(DTYPE_BYTES), ["fp32" if on_cpu else "bf16"])
        masks = _several("own_mask", "Masks", ("none", "causal"), ["none"])
    left, right = st.columns(2)
    with left:
        seq_len = _text("own_n", "Sequence lengths N", "64..512" if on_cpu else "512..8192", hint=NUMBERS)
        batch = _text("own_batch", "Batch", "1", hint=NUMBERS)
        heads = _text("own_heads", "Heads", "4" if on_cpu else "16", hint=NUMBERS)
    with right:
        head_dim = _text("own_d", "Head dim d", "64" if on_cpu else "128", hint=NUMBERS)
        kv_heads = _text("own_kv", "KV heads", "", hint="empty: as many as heads")
        naive_to = st.number_input(
            "Eager attention up to N",
            min_value=1.0,  # see `filters.whole`
            max_value=float(LARGEST),
            step=1.0,
            format="%d",
            value=None,
            key="own_naive_to",
            bind="query-params",
            help="its scores grow with N²; empty: as far as the others",
            placeholder="no limit",
        )
    clocks = build_model.clocks_for(device)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = _several("own_clock", "Clocks", clocks, list(clocks[:2]), hint=filters.CLOCK_HELP)
        processes = _count("own_processes", "Processes", 3, 32, "from three on, their spread can be known")
        rounds = _count("own_rounds", "Rounds", 6, 1000, "in each process, at most")
        name = _text("own_name", "Name", "own", hint="of the sweep; the run's id begins with it")
    try:
        return build_model.sweep(
            build_model.Fields(
                *(
                    name,
                    backends,
                    directions,
                    dtypes,
                    masks,
                    seq_len,
                    batch,
                    heads,
                    kv_heads,
                    head_dim,
                    chosen,
                ),
                processes=processes,
                rounds=rounds,
                naive_to=None if naive_to is None else int(naive_to),
            )
        )
    except InputError as error:
        st.error(widgets.plain(error))
        return None


def _several(
    key: str, label: str, values: Sequence[str], default: Sequence[str], *, hint: str = ""
) -> list[str]:
    """Any number of values as chips, bound to the URL; what is not offered (any more) is dropped."""
    asked = st.session_state.get(key)
    if asked is not None and any(value not in values for value in asked):
        st.session_state[key] = [value for value in asked if value in values]
    chosen = st.pills(
        label,
        values,
        selection_mode="multi",
        default=list(default),
        key=key,
        bind="query-params",
        help=hint or None,
    )
    return [value for value in values if value in (chosen or [])]


def _text(key: str, label: str, default: str, *, hint: str) -> str:
    return st.text_input(label, value=default, key=key, bind="query-params", help=hint, max_chars=300)


def _count(key: str, label: str, default: int, most: int, hint: str) -> int:
    return filters.whole(key, label, default, most, hint=hint, width=140).value
