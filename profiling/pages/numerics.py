"""Numerics: is it right?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from profiling import units
from profiling.analysis.curves import cases, untiled
from profiling.analysis.numerics import TENSORS, ErrorPoint, error_points, summaries
from profiling.analysis.operations import along
from profiling.case import ATTENTION, DTYPE_BYTES, KEY_FIELDS, Case, InputError
from profiling.figures import numerics as figures
from profiling.figures.series import Failure, Point, Series, along_of
from profiling.pages import filters, jobs, logits, state, widgets

CLAIM = 1e-6
TENSOR_HINT = "out: the output; lse: log-sum-exp; picked: logits of the classes kept; d...: gradients"
SHOW = {"error": figures.REL_ERROR, "share": figures.SHARE}
WORDS = """
Every case that is measured is also compared with attention computed in fp64 on the same inputs. An error
alone says little: 16-bit results cannot be nearer to it than their rounding. The yardstick is therefore
**eager attention** (the plain PyTorch of `naive`) in the same dtype: a ratio of 1 is as good as eager, below
1 is better. Flash keeps scores and sums in fp32 on the chip, where eager rounds the score matrix to the
dtype.

A case is *right* by the **error rule** when, for each tensor, its largest error is at most twice eager's
largest, plus twice what one rounding in the dtype may do. The share of that bound is the other view of the
chart: 1 is the limit. Cases beyond it have the status `incorrect` and no speed-up anywhere.

The line at **1e-6** is what texts on FlashAttention often give as its loss. It holds for fp32 with true fp32
products; in 16 bits any attention, eager too, is two (fp16) to three (bf16) orders of magnitude above it.

Inputs are drawn from a standard normal, so logits have a standard deviation of 1. A trained model's logits
can be far larger; what that does is computed below.
"""

WORDS_OF_ROWS = """
Every case that is measured is also compared with the same operation computed in fp64 on the same inputs, on
at most 64 of its rows. An error alone says little: 16-bit results cannot be nearer to it than their rounding.
The yardstick is therefore **eager PyTorch** (`naive`) in the same dtype: a ratio of 1 is as good as eager,
below 1 is better. `online` reads each logit once and keeps maxima and sums in fp32.

A case is *right* by the **error rule** when, for each tensor, its largest error is at most twice eager's
largest, plus twice what one rounding in the dtype may do. The share of that bound is the other view of the
chart: 1 is the limit. Cases beyond it have the status `incorrect` and no speed-up anywhere.

`out` are losses, or the weights of the classes that are kept; `picked` the logits of those classes, which say
whether the right ones were found; `dlogits` the gradient.
"""

ByCase = Mapping[Case, Sequence[ErrorPoint]]


def render() -> None:
    """Draw the page."""
    head = widgets.open_run("Numerics", "Is it right? Errors against fp64, beside eager PyTorch's own.")
    loaded = head.loaded
    if loaded is None:
        _larger_logits("out")
        return
    keys = tuple(key for key in filters.SLICE if key != "dtype")
    frame, choices = filters.choose_slice(untiled(loaded.frame), keys)
    backends, over_rows = filters.choose_backends(frame), filters.is_over_rows(frame)
    rows = frame.drop_duplicates(subset=list(KEY_FIELDS))
    rows = rows[rows["name"].isin(backends.value or state.names(rows))]
    by_case = _by_case(loaded.stamp)
    own = [(case, by_case.get(case, ())) for case in cases(rows)]
    present = {point.tensor for _, points in own for point in points}
    tensors = [tensor for tensor in TENSORS if tensor in present]
    if not tensors:
        head.finish([*choices, backends])
        st.info("No case here was compared with the oracle: an imported table without errors, or none ran.")
        st.text("Measure them with: flashscope run data/sweeps/quick.toml")
        if not over_rows:
            _larger_logits("out")
        return
    with st.container(horizontal=True):
        tensor = filters.choose_in_page("tensor", "Tensor", tensors, tensors[0], hint=TENSOR_HINT)
        show = filters.choose_in_page(
            "errors", "Show", list(SHOW), "error", hint="share: largest error over what the error rule allows"
        )
        log = filters.choose_log()
    head.finish([*choices, backends, tensor, show, log])
    points = [point for _, found in own for point in found if point.tensor == tensor.value]
    st.markdown(sentence(points))
    drawn = chart(points, rows, show.value)
    widgets.chart(
        figures.figure(drawn._replace(log=log.value)),
        name="numerics",
        alt=f"Error against {along_of(drawn.series).noun} per backend and dtype, with its ratio to eager's",
        caption=f"{_caption(points, show.value)} {widgets.failures_text(rows)}",
        measured=True,
    )
    widgets.table(table(points), name="numerics", run_id=loaded.name)
    with st.expander("How errors are judged, in words"):
        st.markdown(WORDS_OF_ROWS if over_rows else WORDS)
    if not over_rows:
        _larger_logits(tensor.value, log=log.value)


@st.cache_resource(max_entries=6, show_spinner="Reading the errors")
def _by_case(key: state.Stamp) -> ByCase:
    out: dict[Case, list[ErrorPoint]] = {}
    for point in error_points(state.load(key.path).run.measurements):
        out.setdefault(point.case, []).append(point)
    return out


def sentence(points: Sequence[ErrorPoint]) -> str:
    """Each backend's error in eager's, and how much of the rule it uses up (Markdown)."""
    told, beyond = [], 0
    for each in summaries(points):
        beyond += each.beyond
        if each.backend == "naive" or each.median_ratio is None or each.worst is None:
            continue
        label = f"**{widgets.plain(each.backend)}** in {each.dtype}"
        at = along([each.operation]).at(each.worst.seq_len_k)
        worst = f"at most {units.ratio_text(each.worst_ratio)} ({at})"
        used = (
            ""
            if each.most_used is None
            else f", using {units.percent_text(each.most_used)} of what is allowed"
        )
        told.append(f"{label} {units.ratio_text(each.median_ratio)} in the median, {worst}{used}")
    if beyond:
        bad = (
            f"**{units.count_text(beyond)} of {units.count_text(len(points))} cases break the error rule.** "
        )
    else:
        bad = "Every case is within the error rule. "
    return bad + (f"Error over eager's: {'; '.join(told)}." if told else "Only eager PyTorch itself ran.")


def chart(points: Sequence[ErrorPoint], rows: pd.DataFrame, show: str) -> figures.NumericsChart:
    """One line a backend and dtype; where eager itself did not run, its error is drawn from the others'.

    Args:
        points: of one tensor and slice.
        rows: of that slice, a row a case: those that failed are marked.
        show: a key of `SHOW`.
    """
    dtypes = [dtype for dtype in DTYPE_BYTES if any(p.case.dtype == dtype for p in points)]
    groups: dict[tuple[str, str], list[ErrorPoint]] = {}
    for point in points:
        groups.setdefault((point.backend, point.case.dtype), []).append(point)
    names = state.names(rows)
    order = sorted(
        groups, key=lambda key: (names.index(key[0]) if key[0] in names else 0, dtypes.index(key[1]))
    )
    series, ratios = [], []
    words = along(p.case.operation for p in points)
    for name, dtype in order:
        own = groups[name, dtype]
        label = f"{name} {dtype}" if len(dtypes) > 1 else name
        style = figures.dtype_style(name, dtypes.index(dtype))
        failed = _failures(rows[(rows["name"] == name) & (rows["dtype"] == dtype)])
        upper = [(p, p.error.rel_error if show == "error" else p.used) for p in own]
        series.append(Series(name, _drawn(upper), failed, label=label, style=style, along=words))
        below = _drawn([(p, p.ratio) for p in own])
        ratios.append(Series(name, below, label=label, style=style, along=words))
    levels = [(1.0, "allowed")] if show == "share" else _quoted(points)
    if show == "error":
        series += [_eager(points, dtype, dtypes) for dtype in dtypes if ("naive", dtype) not in groups]
    return figures.NumericsChart(SHOW[show], tuple(series), tuple(ratios), tuple(levels))


def _quoted(points: Sequence[ErrorPoint]) -> list[tuple[float, str]]:
    """The error that is often quoted of FlashAttention, on charts of attention."""
    of_attention = any(point.case.operation == ATTENTION for point in points)
    return [(CLAIM, "1e-6, as often quoted")] if of_attention else []


def _drawn(values: Sequence[tuple[ErrorPoint, float | None]]) -> tuple[Point, ...]:
    """Points that a log axis can show: not 0, and finite."""
    drawn = []
    for point, value in values:
        if value and value != float("inf"):
            drawn.append(Point(point.case.seq_len_k, value, details=_details(point)))
    return tuple(drawn)


def _details(point: ErrorPoint) -> tuple[str, ...]:
    error = point.error
    return (
        f"error {units.number_text(error.rel_error)}, eager {units.number_text(error.eager_rel_error)}",
        f"largest {units.number_text(error.max_error)}, allowed {units.number_text(error.max_allowed)}",
        f"status {point.status}",
    )


def _eager(points: Sequence[ErrorPoint], dtype: str, dtypes: Sequence[str]) -> Series:
    """Eager's own error, which each case carries along."""
    at = {p.case.seq_len_k: p.error.eager_rel_error for p in points if p.case.dtype == dtype}
    drawn = tuple(Point(n, error) for n, error in sorted(at.items()) if error)
    label = f"eager {dtype}" if len(dtypes) > 1 else "eager"
    style = figures.dtype_style("naive", dtypes.index(dtype))
    return Series("naive", drawn, label=label, style=style, along=along(p.case.operation for p in points))


def _failures(rows: pd.DataFrame) -> tuple[Failure, ...]:
    failed = rows[~rows["status"].isin(("ok", "incorrect"))]
    return tuple(Failure(int(r.seq_len), str(r.status), str(r.reason)) for r in state.records(failed))


def _caption(points: Sequence[ErrorPoint], show: str) -> str:
    hidden = sum(
        not value or value == float("inf")
        for value in ((p.error.rel_error if show == "error" else p.used) for p in points)
    )
    what = (
        "Above: ‖x - ref‖ / ‖ref‖. "
        if show == "error"
        else "Above: largest error over what the rule allows; 1 is the limit. "
    )
    left = f"{units.count_text(hidden)} point(s) are 0 or not finite, and not drawn. " if hidden else ""
    return f"{what}Below: relative error over eager's in the same dtype on the same inputs. {left}".strip()


def table(points: Sequence[ErrorPoint]) -> pd.DataFrame:
    """The numbers of the chart."""
    rows: list[dict[str, Any]] = [
        {
            "backend": p.backend,
            "dtype": p.case.dtype,
            "seq_len" if p.case.operation == ATTENTION else "classes": p.case.seq_len_k,
            "tensor": p.tensor,
            "rel_error": p.error.rel_error,
            "eager_rel_error": p.error.eager_rel_error,
            "ratio_to_eager": p.ratio,
            "max_error": p.error.max_error,
            "max_allowed": p.error.max_allowed,
            "share_of_allowed": p.used,
            "status": p.status,
        }
        for p in points
    ]
    return pd.DataFrame(rows)


def _larger_logits(tensor: str, *, log: bool = True) -> None:
    """What larger logits do: on request, because it takes the CPU for some seconds."""
    st.header("Larger logits")
    st.markdown(
        "What a sweep does not vary: the size of the logits. Computed on request with this machine's CPU, on "
        "short sequences: eager attention and the tile algorithm (`tiled`, plain PyTorch) against fp64."
    )
    missing = jobs.missing()
    if missing:
        st.info(missing)
        return
    if not st.session_state.get("logits_wanted"):
        st.button(
            "Compute now",
            key="compute-logits",
            on_click=lambda: st.session_state.update(logits_wanted=True),
            help="Some seconds of this machine's CPU: better not while a run measures it.",
        )
        st.text("Or: flashscope numerics --scales 1,4,16,64")
        return
    try:
        found = _computed()
    except InputError as error:
        st.session_state["logits_wanted"] = False
        st.error(widgets.plain(error))
        return
    known = {str(x["tensor"]) for x in found}
    tensor = tensor if tensor in known else "out"
    st.markdown(logits.sentence(found, tensor))
    widgets.chart(
        figures.scale_figure(logits.lines(found, tensor), log=log),
        name="logits",
        alt="Error of eager attention and of the tile algorithm against the size of the logits",
        caption="In 16 bits eager rounds its scores, and the larger they are the more that costs; the tile "
        "algorithm keeps them in fp32. In fp32 both do.",
        measured=True,
    )
    widgets.table(logits.table(found, tensor), name="logits", run_id="cpu")


@st.cache_data(max_entries=1, show_spinner="Computing on this machine's CPU")
def _computed() -> list[dict[str, Any]]:
    return logits.compute()
