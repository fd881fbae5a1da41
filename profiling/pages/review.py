"""Review: can we ship? A decision table for models that are to be deployed, and who signed it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from profiling import review_report as report
from profiling import reviews, units
from profiling.analysis import decision_fingerprint as prints
from profiling.analysis.curves import untiled
from profiling.analysis.decision import DECIDED, Decision, decide
from profiling.analysis.decision_sweep import FILE_NAME, command, sweep_text
from profiling.analysis.deployment import LONGEST, MOST_SEQUENCES, WORKLOADS, Question, Shape
from profiling.case import InputError
from profiling.pages import filters, review_model, review_steps, state, widgets
from profiling.pages import review_signing as signing
from profiling.review_table import headline, numbers, standings


def render() -> None:
    """Draw the page."""
    head = widgets.open_run(
        "Review",
        "Can we ship? What to use for which model, on which evidence, and who signed for it.",
        attention=True,
    )
    loaded = head.loaded
    if loaded is None:
        return
    frame, choices = filters.choose_slice(untiled(loaded.frame), ("dtype",))
    candidate = filters.choose_candidate(frame[frame["variant"] == ""], "naive")
    question, own, asked = _ask(frame, [*choices, candidate])
    if not question.shapes:
        head.finish([*choices, candidate, *asked])
        st.info("No model is chosen.")
        st.text("Choose one or several above, or add a shape of your own.")
        return
    try:
        decision, found = _decide(loaded.stamp, question)
    except InputError as error:
        head.finish([*choices, candidate, *asked])
        st.error(widgets.plain(error))
        return
    fingerprint = prints.fingerprint(question, found)
    _answer(decision, loaded)
    worth, more = review_steps.draw(decision, loaded, own)
    head.finish([*choices, candidate, *asked, *more])
    _lacking(decision, loaded)
    exports = signing.Exports(st.container())
    signed = signing.draw(
        reviews.SignOff(
            name="",
            decision="",
            comment="",
            run_id=loaded.run.run_id,
            question_digest=prints.question_digest(question),
            question=prints.question_text(question),
            fingerprint=fingerprint,
            evidence=found,
        ),
        state.data_dir(),
    )
    exports.fill(
        report.Review(decision, loaded.run.header, fingerprint, standings(signed, fingerprint, found), worth),
        loaded.name,
    )


def _ask(
    frame: pd.DataFrame, choices: list[filters.Choice]
) -> tuple[Question, Shape | None, list[filters.Choice]]:
    """Draw what is asked for; returns the question, the reader's own shape in it, and the choices behind."""
    chosen = filters.values_of(choices)
    dtype, candidate = str(chosen.get("dtype", "bf16")), str(chosen["candidate"])
    with st.container(border=True):
        shapes = review_model.offered(frame, dtype)
        usual = review_model.usual(frame, shapes, dtype)
        names = [shape.name for shape in shapes]
        asked = [name for name in st.session_state.get("models", []) if name in names]
        if asked != st.session_state.get("models", []):
            st.session_state["models"] = asked
        picked = st.multiselect(
            "Models",
            names,
            default=[shape.name for shape in usual],
            key="models",
            bind="query-params",
            help="Presets as one GPU sees them, then the shapes of this run; your own below",
        )
        models = filters.Choice("models", "Models", list(picked), [shape.name for shape in usual])
        own, own_choices = _own_shape()
        first, second = st.columns(2)
        with first:
            batches, batch_choices = _span("batch", "Batch", (1, 1), MOST_SEQUENCES)
        with second:
            lengths, length_choices = _span("context", "Context", review_model.lengths(frame), LONGEST)
        with st.container(horizontal=True):
            workload = filters.choose_in_page(
                "workload",
                "Workload",
                list(WORKLOADS),
                WORKLOADS[0],
                hint="inference: a forward over the whole context; training: forward and backward",
            )
            clock = filters.choose_clock(frame)
    chosen_shapes = [shape for shape in shapes if shape.name in picked] + ([own] if own else [])
    question = Question(
        tuple(chosen_shapes), batches, lengths, str(workload.value), str(clock.value), dtype, candidate
    )
    return question, own, [models, *own_choices, *batch_choices, *length_choices, workload, clock]


def _own_shape() -> tuple[review_model.Shape | None, list[filters.Choice]]:
    """A shape of the reader's own, if it is switched on."""
    on = st.toggle("Add a shape of my own", key="own", bind="query-params")
    choices = [filters.Choice("own", "Own shape", on, False)]
    if not on:
        return None, choices
    values: dict[str, int] = {}
    with st.container(horizontal=True):
        for key, label, value, most in (
            ("own_heads", "Heads", 32, 1024),
            ("own_kv", "KV heads", 8, 1024),
            ("own_d", "Head dim d", 128, 1024),
        ):
            choices.append(filters.whole(key, label, value, most, width=140))
            values[key] = choices[-1].value
        causal = st.toggle("Causal", True, key="own_causal", bind="query-params")
        choices.append(filters.Choice("own_causal", "Causal", causal, True))
    return review_model.own(values["own_heads"], values["own_kv"], values["own_d"], causal), choices


def _span(
    key: str, label: str, usual: tuple[int, int], most: int
) -> tuple[tuple[int, int], list[filters.Choice]]:
    """From and to, side by side."""
    found, choices = [], []
    with st.container(horizontal=True):
        for end, value in zip(("from", "to"), usual, strict=True):
            choices.append(filters.whole(f"{key}_{end}", f"{label} {end}", value, most))
            found.append(choices[-1].value)
    return (found[0], found[1]), choices


@st.cache_data(max_entries=24, show_spinner="Comparing every model")
def _decide(stamp: state.Stamp, question: Question) -> tuple[Decision, dict[str, str]]:
    loaded = state.load(stamp.path)
    decision = decide(loaded.frame, state.samples(stamp), question, loaded.device)
    return decision, prints.parts(decision, loaded.frame)


def _answer(decision: Decision, loaded: state.Loaded) -> None:
    """The headline, the table, and what stands against it."""
    st.markdown(f"**{widgets.plain(headline(decision))}**")
    st.table(review_model.linked(decision), hide_index=True, border="horizontal")
    st.markdown(
        f":blue-badge[measured] :small[{widgets.plain(report.LEGEND)} Verdicts rest on rows of the same "
        "group size, head dim, dtype, mask and direction, with batch · heads within what was measured.]"
    )
    widgets.table(numbers(decision), name="review", run_id=loaded.name)
    against = report.reasons(decision)
    if against:
        with st.expander(f"What stands against it ({units.count_text(len(against))})"):
            for text in against:
                st.markdown(f"- {widgets.plain(text)}")
    if all(row.verdict == DECIDED for row in decision.rows):
        st.caption("Every row is decided.")


def _lacking(decision: Decision, loaded: state.Loaded) -> None:
    """How to measure what is not, as a sweep to run."""
    kind = loaded.run.header.environment.device_kind
    text = sweep_text(decision, kind)
    if not text:
        return
    with st.expander("Measure what is lacking"):
        st.text("Save this sweep beside the project, run it there, and choose its run in the sidebar.")
        st.code(command(kind), language="sh")
        st.download_button(
            FILE_NAME, data=text, file_name=FILE_NAME, mime="application/toml", on_click="ignore", key="sweep"
        )
        st.code(text, language="toml")
