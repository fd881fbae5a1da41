"""Capacity: what does the attention of a model hold, and which GPU holds it?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from profiling import store, units
from profiling.case import InputError
from profiling.claims.evidence import at_hand
from profiling.devices import catalogue
from profiling.figures import capacity as figures
from profiling.model.capacity import CHAPTER, Workload
from profiling.pages import capacity_model as model
from profiling.pages import claims, filters, state, widgets

QUESTION = "What does the attention of a model hold, which GPU has room for it, and how far does N reach?"
DTYPES = ("fp32", "fp16", "bf16")
MASKS = ("none", "causal")
LONGEST, MOST_HEADS, WIDEST, MOST_LAYERS, MOST_SEQUENCES = 2**24, 1024, 1024, 1024, 2**16
READING = (
    "Inference reads a prompt of N tokens at once, layer by layer, and keeps keys and values of all layers. "
    "Training keeps of every layer what its backward needs, and of the one at work what the backward holds. "
    "Weights, optimizer, the rest of the model and what an allocator rounds up come on top: state them as "
    "other memory."
)


def render() -> None:
    """Draw the page."""
    link = widgets.heading("Capacity", QUESTION)
    if not widgets.folder_exists(state.data_dir()):
        return
    load, choices = _ask()
    widgets.reset_button(choices)
    widgets.share(link, filters.texts_of(choices))
    try:
        model.check(load)
        devices = catalogue()
    except InputError as error:
        st.error(widgets.plain(error))
        return
    found = model.fits(load, devices.values())
    st.text(model.shape_text(load))
    st.markdown(model.sentence(load, found))
    shown = model.chart(load, found)
    widgets.chart(
        figures.figure(shown),
        name="capacity",
        alt="Memory by tensor of eager attention and of flash, with the memories of GPUs as lines",
        caption="By tensor, from which of them are alive at the peak. Dotted: memories of the catalogue's "
        f"GPUs, {units.bytes_text(found[0].memory_bytes)} to {units.bytes_text(found[-1].memory_bytes)}, as "
        "far as the axis reaches.",
        measured=False,
    )
    st.markdown(f":small[{READING}]")
    widgets.table(model.tensor_rows(shown), name="capacity-tensors", run_id="chapter")
    st.header("Which GPU holds it")
    st.dataframe(
        model.gpu_table(found),
        hide_index=True,
        placeholder=units.UNKNOWN,
        alt="GPUs of the catalogue, whether eager attention and flash fit, and the longest N of each",
    )
    st.markdown(
        ":orange-badge[modelled] :small[Shares are of the GPU's whole memory; 0: not even one token.]"
    )
    widgets.table(model.gpu_rows(found), name="capacity-gpus", run_id="chapter")
    _measured(load)


def _ask() -> tuple[Workload, list[filters.Choice]]:
    """Draw what is asked for; the chapter's case at first."""
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            numbers = [
                filters.whole(f"cap_{key}", label, default, most, width=130)
                for key, label, default, most in (
                    ("batch", "Batch", CHAPTER.batch, MOST_SEQUENCES),
                    ("heads", "Heads", CHAPTER.heads, MOST_HEADS),
                    ("kv", "KV heads", CHAPTER.kv_heads, MOST_HEADS),
                    ("n", "Sequence length N", CHAPTER.seq_len, LONGEST),
                    ("d", "Head dim d", CHAPTER.head_dim, WIDEST),
                    ("layers", "Layers", CHAPTER.layers, MOST_LAYERS),
                )
            ]
        with st.container(horizontal=True, vertical_alignment="bottom"):
            workload = filters.choose_in_page("cap_for", "Workload", model.WORKLOADS, model.WORKLOADS[0])
            dtype = filters.choose_in_page("cap_dtype", "Dtype", DTYPES, CHAPTER.dtype)
            mask = filters.choose_in_page("cap_mask", "Mask", MASKS, MASKS[0])
            other = filters.positive(
                "cap_other", "Other memory (GiB)", None, hint="weights, optimizer, and all but attention"
            )
    batch, heads, kv_heads, seq_len, head_dim, layers = (choice.value for choice in numbers)
    load = Workload(
        batch,
        heads,
        kv_heads,
        seq_len,
        head_dim,
        dtype.value,
        layers,
        workload.value == model.WORKLOADS[1],
        mask.value == MASKS[1],
        round((other.value or 0.0) * units.GIB),
    )
    return load, [*numbers, other, workload, dtype, mask]


def _measured(load: Workload) -> None:
    """Peaks that runs at hand measured of calls like one layer's, beside the law."""
    st.header("Measured beside the law")
    infos = [info for info in state.runs() if not info.problem]
    stamps = tuple(sorted(s for s in (state.stamp(info.path) for info in infos) if s is not None))
    rows = model.measured(load, _peaks(stamps))
    if len(rows):
        st.markdown(f":blue-badge[measured] {model.measured_text(load, rows)}")
        widgets.table(rows, name="capacity-measured", run_id="runs")
    else:
        st.info("No run at hand has the peak of a call with this head dim, mask, grouping and element size.")
    if not rows["this_shape"].any():
        st.markdown("One layer of this shape is measured, on a GPU that holds it, with")
        st.code(model.command(load), language="bash", wrap_lines=True)


@st.cache_resource(max_entries=2, show_spinner="Reading the runs")
def _peaks(stamps: tuple[state.Stamp, ...]) -> pd.DataFrame:
    return model.peaks(at_hand(store.frame(claims.readable(stamps)), None).plain)
