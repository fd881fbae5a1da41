"""Numerics lab: what is each safeguard of the algorithm for?"""

from __future__ import annotations

import shlex
from typing import Any

import streamlit as st

from profiling.case import InputError
from profiling.figures import numerics_lab as figures
from profiling.pages import computing, filters, jobs, widgets
from profiling.pages import numerics_lab_model as model

QUESTION = "What is each safeguard of the algorithm for, and what do narrow numbers do without it?"
TENSORS = ("out", "dq", "dk", "dv")
WORDS = """
- **The maximum** is subtracted before exp: without it exp overflows, in fp32 from a score of 88.7 on.
- **Rescaling**: what O holds of earlier keys belongs to an older maximum, and is multiplied by
  exp(m before - m after). Without it (O += P V alone) the result is wrong as soon as a row has two tiles.
- **Sums in fp32**: l, O and the gradients are summed in fp32 for 16-bit inputs. Left out, scores and sums
  are in the dtype. In fp32 and fp64 there is nothing to leave out.
- **True fp32 products**: left out, both factors of each product are rounded to TF32's 10 mantissa bits.
  That is an imitation on a CPU: a tensor core adds in fp32 too, but in its own order.
- **delta** is rowsum(dO · O), over all keys. The same sum formed from P · dP of one tile sees that tile's
  keys alone, so the gradients are wrong as soon as a row has two tiles.
- **The guard**: a row that has seen no key has m = -inf, and -inf - (-inf) is no number.

The loops are those of `fa_core.tiled`, written out a second time so that the code which others call has no
unsafe switch; a test holds them to its bits when nothing is left out. Tiles are 64 x 64, d = 64, two heads.
Reference: eager attention in fp64 on the inputs as rounded to the dtype.
"""
PUBLISHED_WORDS = (
    f"{model.SOURCE}: RMSE against fp64 of inputs N(0, 1) with N(0, 100) on top of one in a thousand, on an "
    "H100; no shape is given. Here: N = 1024, d = 128, one head, this CPU. Two references: the inputs as "
    "drawn, which counts rounding them to fp16 too, and as rounded, which is the algorithm's own error. The "
    "published kernels also round P to fp16 before P V; the tile algorithm here does not. No fp8 here."
)


def render() -> None:
    """Draw the page."""
    link = widgets.heading("Numerics lab", QUESTION)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        inputs = filters.choose_in_page(
            "inputs",
            "Inputs",
            list(model.INPUTS),
            "random",
            hint="random: standard normal, N = 256. large: logits 32 times as large. long: 8192 keys that "
            "weigh alike. outliers: one in a thousand far larger. masked: 56 of 96 queries see no key",
        )
        tensor = filters.choose_in_page("lab_tensor", "Tensor", list(TENSORS), "out")
        seed = filters.drop_down("seed", "Seed", list(range(10)), 0, hint="of the inputs")
    choices = [inputs, tensor, filters.Choice("seed", "Seed", seed, 0)]
    words = ["safeguards", "--inputs", str(inputs.value), "--seed", str(seed)]
    found = _found(words)
    if found is not None:
        _errors(found, inputs.value, tensor.value)
        _sums(found)
        _published(found)
        st.header("The command that does the same")
        st.code(shlex.join(["flashscope", *words]), language=None, wrap_lines=True)
    widgets.share(link, filters.texts_of(choices))


def _found(words: list[str]) -> dict[str, Any] | None:
    """What the process computed; None where it was not asked for, or cannot, and the page has said so."""
    st.markdown(
        "Nothing here was measured by a run: it is computed on request with this machine's CPU, by the tile "
        "algorithm in plain PyTorch with one safeguard left out at a time."
    )
    missing = jobs.missing()
    if missing:
        st.info(missing)
        st.text("Install it with: pip install 'flashscope[measure]'")
        return None
    if not st.session_state.get("lab_wanted"):
        st.button(
            "Compute now",
            key="compute-lab",
            type="primary",
            on_click=lambda: st.session_state.update(lab_wanted=True),
            help="Some seconds of this machine's CPU: better not while a run measures it.",
        )
        st.text(f"Or: {shlex.join(['flashscope', *words])}")
        with st.expander("What is left out, in words", expanded=True):
            st.markdown(WORDS)
        return None
    try:
        return _computed(tuple(words))
    except InputError as error:
        st.session_state["lab_wanted"] = False
        st.error(widgets.plain(error))
        return None


@st.cache_data(max_entries=32, show_spinner="Computing on this machine's CPU")
def _computed(words: tuple[str, ...]) -> dict[str, Any]:
    return computing.computed([*words, "--format", "json"])


def _errors(found: dict[str, Any], inputs: str, tensor: str) -> None:
    """The chart of one tensor, and what it says."""
    errors = model.of_tensor(found, tensor)
    st.markdown(model.sentence(errors, inputs))
    widgets.chart(
        figures.errors_figure(model.marks(errors)),
        name="safeguards",
        alt=f"Relative error of {tensor} by dtype, with each safeguard left out",
        caption="Computed on this CPU. A cross at the right end: numbers that are infinite or NaN. An error "
        "of 0 (eager attention in fp64 is the reference itself) is not drawn.",
        measured=True,
    )
    widgets.table(model.table(errors), name="safeguards", run_id=inputs)
    with st.expander("What is left out, in words"):
        st.markdown(WORDS)


def _sums(found: dict[str, Any]) -> None:
    """Sums that stall, and their order."""
    st.header("Sums that stall")
    st.markdown(
        "A row whose keys weigh alike has l = 1 + 1 + 1 + ... After the maximum is subtracted no term "
        "exceeds 1, so l is at most N. What goes wrong first in 16 bits is not overflow (fp16 ends at 65504) "
        f"but that the next 1 is less than half a step.\n\n{model.stalls(found)}"
    )
    widgets.chart(
        figures.sums_figure(model.sum_lines(found)),
        name="sums",
        alt="The sum of ones against their number, by dtype and order of the sum",
        caption="Computed on this CPU, each partial sum rounded to the dtype. By tiles: 64 ones pairwise, "
        "then one tile's sum after the other, as the algorithm forms l. What is infinite is not drawn.",
        measured=True,
    )
    st.header("The order of a sum")
    st.markdown(
        f"The 8192 terms of one softmax row, added in other orders. {model.order_sentence(found)} Between "
        "orders fp32 differs in its last digits; 16 bits lose the sum, unless it is added in a tree."
    )
    widgets.table(model.orders(found), name="orders", run_id="sums")


def _published(found: dict[str, Any]) -> None:
    """The published table, and the same here."""
    st.header("Beside FlashAttention-3's table")
    st.markdown(PUBLISHED_WORDS)
    frame = model.beside_published(found)
    st.dataframe(
        frame,
        hide_index=True,
        placeholder="–",
        column_config={c: st.column_config.NumberColumn(format="%.1e") for c in model.RMSE},
        alt="RMSE as published, and as computed here",
    )
    with st.container(horizontal=True):
        st.page_link(widgets.page("numerics"), label="Numerics: errors of what was measured")
        st.page_link(widgets.page("algorithm"), label="Algorithm: each safeguard at work")
