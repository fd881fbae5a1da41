"""Filters that live in the URL: which rows a page shows, chosen by chips in the sidebar or in the page.

Every filter is a widget bound to a query parameter of its key's name, so the address of a page is the
view. Streamlit keeps a bound value in the session too: it is still there on the next page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from profiling.analysis.axes import CANDIDATES as CANDIDATES
from profiling.analysis.axes import usual_baseline, usual_candidate
from profiling.analysis.operations import named
from profiling.case import ATTENTION, DIRECTIONS, DTYPE_BYTES, LAYOUTS, OPERATIONS
from profiling.pages import state

CLOCK_HELP = (
    "wall: one eager call, launch included. pipelined: many calls, one synchronise. "
    "device: GPU events, cold L2. graph: replay of a CUDA graph, rotating buffers. "
    "graph_hot: the same on hot caches."
)


Query = dict[str, str | list[str]]  # query parameters; several values of one key are a list


class Axis(NamedTuple):
    """A filter along one column. `order` lists values in the order to offer them; others follow, sorted.

    `over_rows` is its label where the cases are of an operation over rows.
    """

    key: str
    label: str
    column: str
    order: tuple[Any, ...] = ()
    hint: str = ""
    over_rows: str = ""


AXES: dict[str, Axis] = {
    axis.key: axis
    for axis in (
        Axis(
            "operation",
            "Operation",
            "operation_name",
            tuple(named(each) for each in OPERATIONS),
            "what softmax is a part of; over rows it runs along the classes of each",
        ),
        Axis("dtype", "Dtype", "dtype", tuple(DTYPE_BYTES)),
        Axis("direction", "Direction", "direction", DIRECTIONS, "fwd: forward, bwd: backward alone"),
        Axis(
            "series",
            "Batch · heads",
            "series",
            (),
            "held fixed along N; KV is shown where heads share it",
            "Rows",
        ),
        Axis("tokens", "Tokens · heads", "tokens", (), "of the batch: it falls as N grows", "Rows"),
        Axis("d", "Head dim d", "head_dim"),
        Axis("layout", "Layout", "layout", LAYOUTS, "varlen: packed sequences; paged: keys in pages"),
        Axis("window", "Window", "window", ("none",), "keys that a query sees before and after its place"),
        Axis("softcap", "Softcap", "cap", ("none",), "scores become cap · tanh(score / cap)"),
        Axis("bias", "Bias", "has_bias", ("no", "yes"), "added to the scores, one value a pair and head"),
        Axis("sinks", "Sinks", "has_sinks", ("no", "yes"), "a logit a head that takes part and has no value"),
        Axis("alibi", "ALiBi", "has_alibi", ("no", "yes"), "scores fall with the distance of a key"),
        Axis("other", "Other", "other", ("plain",), "what else sets these cases apart", "Classes kept"),
        Axis("mask", "Mask", "mask", ("none", "causal"), "causal is aligned bottom-right"),
    )
}
FEATURES: tuple[str, ...] = ("window", "softcap", "bias", "sinks", "alibi", "other")
# The mask comes last: where the plain cases of a run are causal, they come before a bias without a mask.
SLICE: tuple[str, ...] = ("operation", "dtype", "direction", "layout", "series", "d", *FEATURES, "mask")
# The same with the tokens of a batch held fixed along N and not the batch.
SLICE_AT_TOKENS: tuple[str, ...] = tuple("tokens" if key == "series" else key for key in SLICE)
ALONG = {"batch": SLICE, "tokens": SLICE_AT_TOKENS}
_CURVE_LENGTHS = 3  # from so many lengths on there is a curve to speak of


class Choice(NamedTuple):
    """A filter: what was chosen, and the value a reset goes back to; with one value it is not drawn."""

    key: str
    label: str
    value: Any
    default: Any
    drawn: bool = True


def options(frame: pd.DataFrame, axis: Axis) -> list[Any]:
    """The values of a column to choose from, in the axis' order."""
    present = [v.item() if hasattr(v, "item") else v for v in frame[axis.column].dropna().unique()]
    known = [value for value in axis.order if value in present]
    rest = sorted((value for value in present if value not in known), key=_natural)
    return known + rest


def _natural(value: Any) -> tuple[Any, ...]:
    """Sort key under which B2 comes before B16."""
    if not isinstance(value, str):
        return (value,)
    parts = "".join(c if c.isdigit() else " " for c in value).split()
    return (tuple(int(p) for p in parts), value)


def choose(key: str, label: str, values: Sequence[Any], default: Any, *, hint: str = "") -> Choice:
    """One filter as a row of chips in the sidebar, bound to the URL; with a single value it is not drawn."""
    if st.session_state.get(key) not in values:  # of another run, or nonsense: the default counts
        st.session_state.pop(key, None)
    if len(values) < 2:
        return Choice(key, label, default, default, drawn=False)
    state.carry(key)
    with st.sidebar:
        value = st.pills(
            label, values, default=default, key=key, required=True, bind="query-params", help=hint or None
        )
    return Choice(key, label, default if value is None else value, default)


def choose_one(key: str, label: str, values: Sequence[Any], default: Any, *, hint: str = "") -> Any:
    """One of many as a drop-down in the sidebar, bound to the URL."""
    with st.sidebar:
        return drop_down(key, label, values, default, hint=hint)


def drop_down(key: str, label: str, values: Sequence[Any], default: Any, *, hint: str = "") -> Any:
    """One of many as a drop-down where the page stands, bound to the URL."""
    if st.session_state.get(key) not in values:
        st.session_state.pop(key, None)
    state.carry(key)
    value = st.selectbox(
        label,
        values,
        index=list(values).index(default),
        key=key,
        bind="query-params",
        help=hint or None,
    )
    return default if value is None else value


def choose_any(key: str, label: str, values: Sequence[Any], *, hint: str = "none chosen: all") -> Choice:
    """Any number of values as chips in the sidebar, bound to the URL; none means all."""
    known = list(values)
    asked = st.session_state.get(key) or []
    kept = [value for value in asked if value in known]
    if kept != asked:
        st.session_state[key] = kept
    if len(known) < 2:
        return Choice(key, label, [], [], drawn=False)
    state.carry(key)
    with st.sidebar:
        value = st.pills(
            label, known, selection_mode="multi", default=[], key=key, bind="query-params", help=hint or None
        )
    return Choice(key, label, list(value or []), [])


def positive(key: str, label: str, default: float | None, *, most: float = 1e6, hint: str = "") -> Choice:
    """A number above 0, at most `most`, where the page stands, bound to the URL; None is an empty one."""
    value = st.number_input(
        label,
        min_value=0.0,
        max_value=most,
        value=default,
        key=key,
        bind="query-params",
        help=hint or None,
        format="%g",
    )
    return Choice(key, label, value or default, default)


def whole(key: str, label: str, default: int, most: int, *, hint: str = "", width: Any = "stretch") -> Choice:
    """A whole number from 1 to `most` where the page stands, bound to the URL."""
    default = min(max(1, default), most)
    value = st.number_input(
        label,
        min_value=1.0,  # as a float: one of integers does not survive `inf` in the address (streamlit 1.67)
        max_value=float(most),
        value=float(default),
        step=1.0,
        key=key,
        bind="query-params",
        format="%1d",  # as %d, of which Streamlit would warn in the terminal at each draw, with a traceback
        help=hint or None,
        width=width,
    )
    return Choice(key, label, int(value), default)


def choose_in_page(key: str, label: str, values: Sequence[Any], default: Any, *, hint: str = "") -> Choice:
    """As `choose`, but as a segmented control where the page stands: for what visibly moves the chart."""
    if st.session_state.get(key) not in values:
        st.session_state.pop(key, None)
    state.carry(key)
    value = st.segmented_control(
        label, values, default=default, key=key, required=True, bind="query-params", help=hint or None
    )
    return Choice(key, label, default if value is None else value, default)


def choose_log() -> Choice:
    """Whether axes that span decades are logarithmic: the last of the controls above a chart, on at first.

    Ratios keep a log axis: there twice and half are as far from 1×.
    """
    state.carry("log")
    value = st.toggle("Log axes", value=True, key="log", bind="query-params", help="off: both begin at 0")
    return Choice("log", "Log axes", value, True)


def choose_clock(frame: pd.DataFrame) -> Choice:
    """The clock, in the page: a crossover moves with it. Shown even when there is one: it must be named."""
    present = state.clocks(frame)
    return choose_in_page("clock", "Clock", present, default_clock(present), hint=CLOCK_HELP)


def choose_slice(frame: pd.DataFrame, keys: Sequence[str] = SLICE) -> tuple[pd.DataFrame, list[Choice]]:
    """Draw the filters `keys` one after the other; each offers what the earlier ones leave.

    Returns:
        The rows that match, and the choices.
    """
    choices = []
    for key in keys:
        axis = AXES[key]
        values = options(frame, axis)
        if not values:
            continue
        label, hint = axis.label, axis.hint
        if axis.over_rows and is_over_rows(frame):
            label, hint = axis.over_rows, ""
        choice = choose(key, label, values, _usual(frame, axis, values), hint=hint)
        frame = frame[frame[axis.column] == choice.value]
        choices.append(choice)
    return frame, choices


def is_over_rows(frame: pd.DataFrame) -> bool:
    """Whether a table holds rows of operations over rows alone."""
    return bool(len(frame)) and not (frame["operation"] == ATTENTION).any()


def choose_along(frame: pd.DataFrame) -> Choice:
    """What is held fixed along N, in the page; drawn for runs with curves at fixed tokens, as papers have."""
    at_tokens, at_batch = _on_curves(frame, SLICE_AT_TOKENS), _on_curves(frame, SLICE)
    if not at_tokens:
        st.session_state.pop("along", None)
        return Choice("along", "Held fixed", "batch", "batch", drawn=False)
    usual = "tokens" if at_tokens > at_batch else "batch"
    hint = "tokens: batch · N, the same work at every N but for the scores; no crossover is to be read off"
    return choose_in_page("along", "Held fixed", list(ALONG), usual, hint=hint)


def _on_curves(frame: pd.DataFrame, keys: Sequence[str]) -> int:
    """Rows in slices of several lengths; of those at fixed tokens only where the batch changes along N."""
    columns = [AXES[key].column for key in keys]
    slices = frame.groupby(columns, dropna=False, observed=True)
    lengths = slices["seq_len"].transform("nunique")
    if "tokens" in keys:
        lengths = lengths.where(slices["batch"].transform("nunique") > 1, 0)
    return int((lengths >= _CURVE_LENGTHS).sum())


def _usual(frame: pd.DataFrame, axis: Axis, values: Sequence[Any]) -> Any:
    """The default of a filter: d = 128 if there, the first of an ordered axis, else the most frequent."""
    if axis.key == "d" and 128 in values:
        return 128
    if axis.order and values[0] in axis.order and axis.key != "dtype":
        return values[0]
    counts = frame[axis.column].value_counts()
    return max(values, key=lambda value: counts[value])  # the first of equals


def choose_baseline(frame: pd.DataFrame) -> Choice:
    """What speed-ups are measured against: naive where there is one."""
    if frame.empty:
        st.info("Every case of this run asked for a tile, so there is nothing to compare; see page Tiles.")
        st.stop()
    present = state.names(frame)
    hint = "what a speed-up is measured against"
    return choose("baseline", "Baseline", present, usual_baseline(present), hint=hint)


def choose_candidate(frame: pd.DataFrame, baseline: str) -> Choice:
    """What is compared with the baseline: flash where there is one."""
    others = [name for name in state.names(frame) if name != baseline] or [baseline]
    return choose("candidate", "Candidate", others, usual_candidate(state.names(frame), baseline))


def choose_backends(frame: pd.DataFrame) -> Choice:
    """Which backends a chart shows; none chosen means all, so that a link holds for other runs too."""
    present = state.names(frame)
    kept = [name for name in st.session_state.get("backends", []) if name in present]
    if kept != st.session_state.get("backends", []):
        st.session_state["backends"] = kept
    if len(present) < 3:
        return Choice("backends", "Backends", [], [], drawn=False)
    state.carry("backends")
    with st.sidebar:
        value = st.pills(
            "Backends",
            present,
            selection_mode="multi",
            default=[],
            key="backends",
            bind="query-params",
            help="none chosen: all are shown",
        )
    return Choice("backends", "Backends", list(value or []), [])


def default_clock(present: Sequence[str]) -> str:
    """The clock a first visit shows: `device` where there is one, else the first."""
    return "device" if "device" in present else present[0]


def reset(choices: Sequence[Choice]) -> None:
    """Set the filters back to their defaults (a callback: widgets of this run may not exist yet)."""
    for choice in choices:
        st.session_state[choice.key] = choice.default


def query_of(run: str, choices: Sequence[Choice], run_key: str = state.RUN_KEY) -> Query:
    """The query parameters that show this view to someone else, defaults included."""
    return {run_key: run, **texts_of(choices)}


def texts_of(choices: Sequence[Choice]) -> Query:
    """The query parameters of these choices; one that was left empty has none."""
    return {
        c.key: [str(value) for value in c.value] if isinstance(c.value, list) else _text_of(c.value)
        for c in choices
        if c.drawn and c.value is not None
    }


def _text_of(value: Any) -> str:
    """A value as Streamlit writes it into the address."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def values_of(choices: Sequence[Choice]) -> Mapping[str, Any]:
    """The chosen value by key."""
    return {choice.key: choice.value for choice in choices}
