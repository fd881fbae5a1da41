"""Inspector: what does a kernel take of a GPU, and what does it consist of?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from profiling import units
from profiling.case import InputError
from profiling.figures import instructions as figures
from profiling.inspection import KERNELS, Inspection, Request, cache_path, cached, triton_version
from profiling.inspection_facts import (
    CONFLICTS,
    CONFLICTS_MEANING,
    Facts,
    command_words,
    conflicts_command,
    facts,
    problems,
    title,
    verdict,
)
from profiling.pages import computing, filters, jobs, state, widgets
from profiling.pages import inspector_model as model

QUESTION = "What does a kernel take of a GPU that need not be here, and what does it consist of?"
KEPT_KEY = "inspected"
KERNEL_HINT = "; ".join(f"{name}: {kind.what}" for name, kind in KERNELS.items())
VIEWS = ("SASS", "PTX", "source lines")


def render() -> None:
    """Draw the page."""
    link = widgets.heading("Inspector", QUESTION)
    folder = state.data_dir()
    if not widgets.folder_exists(folder):
        return
    requests, choices = _ask()
    widgets.reset_button(choices)
    found = _found(folder, requests) if requests else []
    if found:
        choices += _show(found)
    widgets.share(link, filters.texts_of(choices))


# ------------------------------------------------------------------------------------------------ controls


def _ask() -> tuple[list[Request], list[filters.Choice]]:
    """Draw what is asked for; no requests where that cannot be, and then the page has said why."""
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            kernel = _drop("ins_kernel", "Kernel", list(KERNELS), "forward", KERNEL_HINT)
            targets, dtypes = model.targets(kernel.value), model.dtypes(kernel.value)
            target = filters.choose_in_page(
                "ins_target", "Target", targets, "sm_90", hint="sm_80: A100. sm_90: H100, H200. sm_100: B200"
            )
            dtype = filters.choose_in_page("ins_dtype", "Dtype", dtypes, dtypes[0])
            head_dim = _drop("ins_d", "Head dim d", model.HEAD_DIMS, 128)
            mask = filters.choose_in_page("ins_mask", "Mask", ["none", "causal"], "none")
        choices = [kernel, target, dtype, head_dim, mask]
        several = filters.choose_in_page("ins_beside", "Tiles", ["one", "two"], "one", hint="side by side")
        tiles = []
        for letter in ("A", "B") if several.value == "two" else ("A",):
            chosen = _ask_tile(letter, several.value == "two")
            tiles.append(model.tile(*(choice.value for choice in chosen)))
            choices += chosen
    try:
        fields = (kernel.value, target.value, dtype.value, head_dim.value, mask.value == "causal")
        requests = [model.request(*fields, tile) for tile in tiles]
    except InputError as error:
        st.error(widgets.plain(error))
        return [], [*choices, several]
    return requests, [*choices, several]


def _ask_tile(letter: str, several: bool) -> list[filters.Choice]:
    end = f" of {letter}" if several else ""
    key = f"ins_{letter.lower()}"
    with st.container(horizontal=True, vertical_alignment="bottom"):
        return [
            _drop(f"{key}_br", f"Br{end}", model.SIDES, model.OWN, "queries; own: the kernel's choice"),
            _drop(f"{key}_bc", f"Bc{end}", model.SIDES, model.OWN, "keys of a tile"),
            _drop(f"{key}_warps", f"Warps{end}", model.WARPS, model.OWN, "of a block, 32 threads each"),
            _drop(f"{key}_stages", f"Stages{end}", model.STAGES, model.OWN, "tiles in flight at once"),
        ]


def _drop(key: str, label: str, values: Sequence[object], default: object, hint: str = "") -> filters.Choice:
    return filters.Choice(key, label, filters.drop_down(key, label, values, default, hint=hint), default)


# ----------------------------------------------------------------------------------------------- compiling


def _found(folder: Path, requests: list[Request]) -> list[Facts]:
    """What is known of the requests: from the cache, or compiled on a click; empty until all are there."""
    lacking = [request for request in requests if _known(folder, request) is None]
    if lacking and not _compile(folder, lacking):
        return []
    found = [one for request in requests if (one := _known(folder, request)) is not None]
    return found if len(found) == len(requests) else []


def _known(folder: Path, request: Request) -> Facts | None:
    """Of the data folder's cache, or compiled in this session where that folder cannot be written."""
    path = cache_path(folder, request)
    stamp = state.stamp(path)
    return st.session_state.get(KEPT_KEY, {}).get(path) if stamp is None else _read(folder, request, stamp)


@st.cache_resource(max_entries=8, show_spinner="Reading the machine code")
def _read(_folder: Path, _request: Request, stamp: state.Stamp) -> Facts | None:
    one = cached(_folder, _request)
    return None if one is None else facts(one)


def _compile(folder: Path, requests: list[Request]) -> bool:
    """Compile in processes of their own when asked to; whether that was done."""
    if jobs.missing() or not triton_version():
        st.info("torch or triton is not installed: kernels are compiled where both are, on Linux.")
        st.text("Install them with: pip install 'flashscope[measure]'")
        return False
    words = [command_words(request) for request in requests]
    place = st.empty()
    with place.container():
        st.info("Not compiled yet: it takes this machine's CPU for seconds, or minutes where much spills.")
        asked = st.button("Compile", type="primary", help="Better not while a run measures this CPU.")
        for line in words:
            st.code(shlex.join(["flashscope", *line]), language=None, wrap_lines=True)
    if not asked:
        return False
    for number, (request, line) in enumerate(zip(requests, words, strict=True), start=1):
        of = f" ({number} of {len(requests)})" if len(requests) > 1 else ""
        with st.spinner(f"Compiling {widgets.plain(title(request))}{of}", show_time=True):
            try:
                (told,) = computing.computed([*line, "--format", "json", "--data", str(folder)])
            except InputError as error:
                st.error(widgets.plain(str(error).rpartition("flashscope: ")[2]))
                return False
        path = cache_path(folder, request)
        if state.stamp(path) is None:
            one = facts(Inspection.model_validate(told["inspection"]))
            st.session_state[KEPT_KEY] = {**st.session_state.get(KEPT_KEY, {}), path: one}
    place.empty()
    return True


# ------------------------------------------------------------------------------------------------- results


def _show(found: list[Facts]) -> list[filters.Choice]:
    """Sentences, tables, chart and code of one kernel or two; the choices made among them."""
    request, names = found[0].inspection.request, model.labels(found)
    for x, letter in zip(found, "AB" if len(found) > 1 else [""], strict=True):
        st.markdown(f"**{letter}** {widgets.plain(verdict(x))}" if letter else widgets.plain(verdict(x)))
        for text in problems(x):
            st.warning(f"{letter} {widgets.plain(text)}".strip())
    takes = model.takes_table(found)
    st.dataframe(takes, hide_index=True, height="content", alt="What each kernel takes of the GPU")
    st.markdown(
        f":blue-badge[compiled] :small[with triton {found[0].inspection.triton_version}; limits are those of "
        f"{request.device.name}.] "
        ":orange-badge[modelled] :small[shared memory by formula; blocks, warps and occupancy of an SM.]"
    )
    widgets.table(model.numbers_table(found), name="inspector", run_id=request.kernel)
    with st.expander("How to read it"):
        st.markdown(model.WORDS)
    choices = _mix(found)
    choices += _code(found, names)
    st.header("What only a running GPU tells")
    st.markdown(CONFLICTS)
    st.code(conflicts_command(request), language=None, wrap_lines=True)
    st.markdown(f":small[{CONFLICTS_MEANING}]")
    st.markdown("This page in a terminal:")
    tiles = [x.inspection.request.tile for x in found]
    st.code(shlex.join(["flashscope", *command_words(request, *tiles)]), language=None, wrap_lines=True)
    return choices


def _mix(found: list[Facts]) -> list[filters.Choice]:
    """The instruction mix."""
    st.header("Instructions")
    if not all(x.code for x in found):
        st.info("There is no disassembly to count in; the sentences above say why.")
        return []
    parts = [model.LOOP, model.WHOLE] if any(x.loop for x in found) else [model.WHOLE]
    part = filters.choose_in_page("ins_part", "Of the", parts, parts[0])
    widgets.chart(
        figures.figure(model.mix_chart(found, part.value)),
        name="instructions",
        alt=f"Instructions of the {part.value} by kind",
        caption="Counted in the disassembly, each once, however often it runs.",
        measured=True,
    )
    widgets.table(model.mix_table(found), name="instructions", run_id=found[0].inspection.name)
    return [part]


def _code(found: list[Facts], names: list[str]) -> list[filters.Choice]:
    """The machine code, the PTX, or the source lines, of one of the kernels."""
    st.header("Code")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = filters.choose_in_page("ins_view", "Show", VIEWS, VIEWS[0])
        letters = ["A", "B"][: len(found)]
        which = filters.Choice("ins_which", "Tile", "A", "A", drawn=False)
        if len(found) > 1:
            which = filters.choose_in_page("ins_which", "Of tile", letters, "A")
        x = found[letters.index(which.value)]
        only = filters.Choice("ins_only", "Only", model.WHOLE, model.WHOLE, drawn=False)
        if view.value == "SASS" and x.code:
            only = _drop("ins_only", "Only", model.shown_kinds(x), model.WHOLE)
    text, end = (x.inspection.ptx, "ptx") if view.value == "PTX" else (x.inspection.sass, "sass")
    if view.value == "PTX":
        frame = model.ptx_table(x)
    elif not x.code:
        st.info("There is no disassembly; the sentences above say why.")
        return [view, which, only]
    else:
        frame = model.sass_table(x, only.value) if view.value == "SASS" else model.source_table(x)
    st.text(f"{x.inspection.name}, {names[letters.index(which.value)]}: {units.count_text(len(frame))} lines")
    st.dataframe(frame, hide_index=True, height=420, alt=f"{view.value} of the kernel, with source lines")
    st.download_button(
        f"{end.upper()} as text",
        data=text,
        file_name=f"{x.inspection.name}-{x.inspection.block_m}x{x.inspection.block_n}.{end}",
        on_click="ignore",
        key="ins-text",
    )
    return [view, which, only]
