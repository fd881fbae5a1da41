"""Page Review beside its table: what attention is of a whole model step, and what its speed-up is worth."""

from __future__ import annotations

import streamlit as st

from profiling import step_table
from profiling.analysis.decision import Decision
from profiling.analysis.deployment import Shape
from profiling.analysis.steps import EFFICIENCY, Steps, steps
from profiling.case import InputError
from profiling.model.step import Body
from profiling.pages import filters, review_model, state, widgets

MOST_WIDTH = 2**20
USUAL = "longest that all ran"


def draw(
    decision: Decision, loaded: state.Loaded, own: Shape | None
) -> tuple[Steps | None, list[filters.Choice]]:
    """Draw the section; returns the steps, and the choices behind them."""
    st.header("In a whole model step")
    device, question = loaded.device, decision.question
    if device is None or device.peak_tflops(question.dtype) is None:
        st.info(
            f"The matmul peak of this device for {question.dtype} is not in the catalogue "
            "(data/devices.toml), so that the other layers of a model cannot be timed."
        )
        return None, []
    with st.container(horizontal=True):
        percent = filters.positive(
            "efficiency",
            "Efficiency of other layers (%)",
            100 * EFFICIENCY,
            hint="the share of the peak at which projections, MLP and head run; an assumption, not measured",
        )
        body, choices = _own_body(own)
        place = st.container()
    choices = [percent, *choices]
    try:
        found = steps(
            decision, loaded.frame, review_model.bodies(own, body), device, (percent.value or 0) / 100
        )
    except InputError as error:
        st.error(widgets.plain(error))
        return None, choices
    if found is None or not found.rows:
        st.info("No model above was measured at its own batch and heads, with its other layers known.")
        return found, choices
    lengths = sorted({step.seq_len for step in found.rows})
    with place:
        at = filters.drop_down("step_n", "Context N of the step", [USUAL, *lengths], USUAL)
    rows = step_table.shown(found, None if at == USUAL else int(at))
    said = step_table.sentence(rows, question.candidate)
    if said:
        st.markdown(f"**{widgets.plain(said)}**")
    table = step_table.table(rows, question.candidate)
    st.table(
        table.map(widgets.plain).rename(columns={name: widgets.plain(name) for name in table.columns}),
        hide_index=True,
        border="horizontal",
    )
    st.markdown(
        ":blue-badge[measured: attention] :orange-badge[modelled: est.] "
        f":small[{widgets.plain(step_table.legend(found))}]"
    )
    widgets.table(step_table.numbers(found), name="steps", run_id=loaded.name)
    return found, [*choices, filters.Choice("step_n", "Context N of the step", at, USUAL)]


def _own_body(own: Shape | None) -> tuple[Body, list[filters.Choice]]:
    """Hidden and intermediate size of the reader's own shape, if there is one; its head is left out."""
    if own is None:
        return Body(1, 1), []
    values: list[int] = []
    choices: list[filters.Choice] = []
    for key, label, value in (
        ("own_hidden", "Own hidden size", own.heads * own.head_dim),
        ("own_mlp", "Own intermediate size", 7 * own.heads * own.head_dim // 2),
    ):
        choices.append(filters.whole(key, label, value, MOST_WIDTH, width=180))
        values.append(choices[-1].value)
    return Body(*values), choices
