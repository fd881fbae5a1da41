"""Algorithm: what does a tile do, and what does it not have to move?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.components.v2 import component

from profiling.case import InputError
from profiling.devices import catalogue
from profiling.figures import tiles as tile_figures
from profiling.pages import algorithm_model as model
from profiling.pages import computing, filters, jobs, tile_fit, widgets

QUESTION = "What happens on the chip, tile by tile, and what is read from memory and written to it?"
LENGTHS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
HEAD_DIMS = (2, 4, 8, 16, 32, 64)
SIDES = (2, 4, 8, 12, 16, 32, 64)
HOW = """
Framed and in full colour: what is on chip in this step. Pale: what lies in memory. Orange is above 0, blue
below; white is 0, or nothing yet. The score matrix in the middle never exists: of each tile that was done
(grey) nothing is left.

Every number comes from `fa_core.tiled`, the algorithm in plain PyTorch, which the page has run once on this
machine's CPU on inputs from a standard normal. Bytes are counted as without a cache: each block when it is
first needed and each result when it is done. On a GPU they are asked of the L2, which most of K and V do not
leave (page Traffic).

The address of the page holds the step, so that it can be sent to a colleague.

The backward is shown as one loop, keys outside and queries inside, so dQ goes to memory and back at every
step. FlashAttention-2 adds to it there atomically; the portable kernels here form dQ in a second loop.
"""
HERE = Path(__file__).parent


def render() -> None:
    """Draw the page."""
    link = widgets.heading("Algorithm", QUESTION)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        n = _number("n", "Sequence length N", LENGTHS, 32)
        d = _number("dim", "Head dim d", HEAD_DIMS, 8)
        block_m = _number("br", "Query rows Br", SIDES, 8)
        block_n = _number("bc", "Keys Bc", SIDES, 8)
        causal = filters.choose_in_page("walk_mask", "Mask", ["none", "causal"], "none")
        seed = _number("seed", "Seed", tuple(range(10)), 0, hint="of the random input")
    choices = [n, d, block_m, block_n, causal, seed]
    words = ["trace", "--seq-len", str(n.value), "--head-dim", str(d.value)]
    words += ["--block-m", str(block_m.value), "--block-n", str(block_n.value), "--seed", str(seed.value)]
    words += ["--causal"] if causal.value == "causal" else []
    _walk(words)
    choices += _fit()
    widgets.share(link, filters.texts_of(choices))


def _number(key: str, label: str, values: tuple[int, ...], default: int, *, hint: str = "") -> filters.Choice:
    """One of some numbers as a drop-down, bound to the URL."""
    value = filters.drop_down(key, label, list(values), default, hint=hint)
    return filters.Choice(key, label, value, default)


def _walk(words: list[str]) -> None:
    """The player, its words and its table; or what is lacking."""
    missing = jobs.missing()
    if missing:
        st.info(f"{missing} The walk is computed by `fa_core.tiled`, which needs it.")
        st.text("Install it with: pip install 'flashscope[measure]'")
        return
    try:
        walk = _traced(tuple(words))
    except InputError as error:
        st.error(widgets.plain(error))
        return
    st.markdown(model.sentence(walk))
    _player()(data=model.player_data(walk, _asked_step()), key="walk", height="content")
    with st.expander("How to read it"):
        st.markdown(HOW)
        with st.container(horizontal=True):
            st.page_link(widgets.page("traffic"), label="Traffic: the same bytes at full size")
            st.page_link(widgets.page("numerics-lab"), label="Numerics lab: what each step guards against")
    widgets.table(model.steps_table(walk), name="steps", run_id="walk")
    st.markdown("The same as a file, with every number:")
    st.code(shlex.join(["flashscope", *words, "--out", "trace.json"]), language=None, wrap_lines=True)


def _asked_step() -> int:
    """The step of the address, counted from 0 here: for the first walk of a session, which it was made for.

    The player writes it there without the server, and keeps the step itself while the walk stays.
    """
    asked = "" if st.session_state.get("walk_opened") else st.query_params.get("step", "")
    st.session_state["walk_opened"] = True
    return int(asked) - 1 if asked.isascii() and asked.isdigit() and 0 < len(asked) < 6 else 0


@st.cache_data(max_entries=16, show_spinner="Walking through the tiles on this machine's CPU")
def _traced(words: tuple[str, ...]) -> dict[str, Any]:
    return computing.computed(words)


def _player() -> Any:
    """The component; a name stands for one in each session, so it is declared on every run."""
    html, css, js = ((HERE / f"player.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    return component("flashscope_player", html=html, css=css, js=js, isolate_styles=False)


def _fit() -> list[filters.Choice]:
    """The SRAM bar of a tile of a real size."""
    st.header("Does the tile fit?")
    try:
        devices = {name: one for name, one in catalogue().items() if one.sram_bytes is not None}
    except InputError as error:
        st.error(widgets.plain(error))
        return []
    gpus = list(devices)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        block_m = _number("fit_br", "Query rows Br", tile_fit.SIDES, tile_fit.TILE[0])
        block_n = _number("fit_bc", "Keys Bc", tile_fit.SIDES, tile_fit.TILE[1])
        d = _number("fit_d", "Head dim d", tile_fit.HEAD_DIMS, tile_fit.HEAD_DIM)
        dtype = filters.choose_in_page("fit_dtype", "Dtype", list(tile_fit.DTYPES), tile_fit.DTYPE)
        default = tile_fit.GPU if tile_fit.GPU in devices else gpus[0]
        gpu = filters.drop_down("fit_gpu", "GPU", gpus, default, hint="of the catalogue, data/devices.toml")
    own = tile_fit.bill((block_m.value, block_n.value), d.value, dtype.value, devices[gpu])
    st.markdown(tile_fit.verdict(own, d.value, dtype.value, devices[gpu]))
    widgets.chart(
        tile_figures.bill_figure(own),
        name="tile-fit",
        alt="What a forward tile holds at once, piece by piece, against the shared memory of a block",
        caption="All that the tile touches, as if it lay in shared memory; right of the line it overflows. "
        "Q, K and V in the dtype; S, O, m and l in fp32.",
        measured=False,
    )
    parts = pd.DataFrame({"part": [p.label for p in own.parts], "est_bytes": [p.nbytes for p in own.parts]})
    widgets.table(parts, name="tile-fit", run_id=gpu)
    return [block_m, block_n, d, dtype, filters.Choice("fit_gpu", "GPU", gpu, default)]
