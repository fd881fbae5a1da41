"""Claims: what does the chapter say that FlashScope grew out of, and what does the evidence say?"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from profiling import store
from profiling.case import InputError
from profiling.claims import chapter
from profiling.claims.chapter import Claim, Missing
from profiling.claims.evidence import AtHand, Evidence, at_hand
from profiling.devices import device_of
from profiling.figures import claims as figures
from profiling.pages import claims_model as model
from profiling.pages import filters, pictures, registry, state, widgets
from profiling.records import Run

QUESTION = "Which sentences of the chapter hold, and what do runs, models and a small experiment say of them?"
MAX_SEED = 9999


def render() -> None:
    """Draw the page."""
    link = widgets.heading("Claims", QUESTION)
    if not widgets.folder_exists(state.data_dir()):
        return
    try:
        claims = chapter.claims()
    except InputError as error:
        st.error(widgets.plain(error))
        return
    verdicts = filters.choose_any("verdict", "Verdict", list(chapter.VERDICTS.values()))
    sections = filters.choose_any("section", "Section of the chapter", model.sections(claims))
    device, seed = _source()
    choices = [verdicts, sections, device, seed]
    widgets.reset_button(choices)
    widgets.share(link, filters.texts_of(choices))

    shown = model.chosen(claims, verdicts.value, sections.value)
    st.markdown(model.summary(shown))
    if not shown:
        st.info("No claim of these sections has these verdicts; choose fewer filters.")
        return
    stamps = _stamps(device.value)
    if not stamps:
        st.info("No run is at hand: what is measured is lacking below, and each card says how to measure it.")
    st.markdown(model.kinds_text())
    places = [_card(claim) for claim in shown]  # all words first: evidence takes a moment when first made
    rows = []
    for claim, place in zip(shown, places, strict=True):
        with place:
            for name in claim.evidence:
                found = _evidence(name, stamps, seed.value)
                _show(found, f"claim-{claim.number}-{name}")
                rows.append((claim, name, found))
    widgets.table(model.table(rows), name="claims", run_id="chapter")


def _source() -> tuple[filters.Choice, filters.Choice]:
    """Whose runs are the evidence, and the seed of what is computed."""
    infos = [info for info in state.runs() if not info.problem]
    names = sorted({info.device_name for info in infos})
    first = state.default_run(infos)
    usual = next((info.device_name for info in infos if info.path.stem == first), "")
    device = filters.Choice("claims_device", "Evidence from", usual, usual, drawn=False)
    if len(names) > 1:  # as a drop-down: chips would read a name from a file as Markdown
        value = filters.choose_one("claims_device", "Evidence from", names, usual, hint="whose runs")
        device = device._replace(value=value, drawn=True)
    with st.sidebar:
        seed = filters.whole("seed", "Seed of the small inputs", 1, MAX_SEED)
    return device, seed


def _stamps(device: str) -> tuple[state.Stamp, ...]:
    """The run files of a device."""
    infos = [info for info in state.runs() if not info.problem and info.device_name == device]
    found = [state.stamp(info.path) for info in infos]
    return tuple(sorted(stamp for stamp in found if stamp is not None))


def readable(stamps: Sequence[state.Stamp]) -> list[Run]:
    """The runs of these files, without those that cannot be read: page Data says what is wrong with them."""
    runs = []
    for stamp in stamps:
        with contextlib.suppress(InputError, FileNotFoundError):
            runs.append(store.load_run(stamp.path))
    return runs


@st.cache_resource(max_entries=4, show_spinner="Reading the runs")
def _hand(stamps: tuple[state.Stamp, ...], seed: int) -> AtHand:
    runs = readable(stamps)
    device = device_of(runs[0].header.environment) if runs else None
    return at_hand(store.frame(runs), device, seed)


@st.cache_resource(max_entries=512, show_spinner=False)
def _evidence(name: str, stamps: tuple[state.Stamp, ...], seed: int) -> Evidence | Missing:
    return chapter.one(name, _hand(stamps, seed))


def _card(claim: Claim) -> DeltaGenerator:
    """One claim: its words and what is right on the left; returns the place for the evidence on the right."""
    with st.container(border=True, key=f"claim-{claim.number}"):
        left, right = st.columns([2, 3], gap="medium")
    with left:
        st.markdown(model.words(claim))
        paths = {entry.path: entry.title for entry in registry.ENTRIES}
        path = next((path for path in claim.pages if path in paths), None)
        if path is not None:
            st.page_link(widgets.page(path), label=f"More on page {paths[path]}")
    return right


def _show(found: Evidence | Missing, key: str) -> None:
    """One evidence with its chart, or how to measure it."""
    if isinstance(found, Missing):
        st.markdown(f":grey-badge[not at hand] {widgets.plain(found.lacks)}. Measure it with")
        st.code(found.command, language="bash", wrap_lines=True)
        return
    st.markdown(model.evidence_text(found))
    if found.lines:
        st.plotly_chart(
            figures.figure(model.chart(found)),
            key=f"chart-{key}",
            alt=f"{found.title} along {found.along.noun}",
            config={"displayModeBar": False},
        )
        pictures.buttons(f"chart-{key}", key)
