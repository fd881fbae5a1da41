"""Results that others published, laid over a curve: which fit what a page shows, and how they are drawn."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import streamlit as st

from profiling.case import InputError
from profiling.devices import Device, known_device
from profiling.figures import theme
from profiling.figures.series import Point, Series
from profiling.pages import filters, state, widgets
from profiling.store.published import Published, load_published

NONE = "none"
METRICS = {"latency": "latency_ms", "TFLOP/s": "paper_tflops"}
# Whose colour and shape a published method borrows, by the beginning of its name.
ALIKE = {
    "PyTorch": "naive",
    "Standard": "naive",
    "eager": "naive",
    "FlashAttention-2": "sdpa_flash",
    "cuDNN": "sdpa_cudnn",
    "Triton": "flash",
}
HINT = (
    "Numbers from papers and threads (data/published), each with its source, for this direction, d and mask. "
    "A rate may be of any batch and heads, a latency is shown for the same ones only."
)


class Overlay(NamedTuple):
    """What is laid over a chart, and the sentence that says whose it is."""

    choice: filters.Choice
    series: tuple[Series, ...] = ()
    caption: str = ""
    rows: pd.DataFrame | None = None


def choose(frame: pd.DataFrame, show: str, device: Device | None) -> Overlay:
    """A drop-down of the devices and dtypes that were published for what is shown; none is the default.

    Args:
        frame: the rows shown: one slice.
        show: what the y axis is, a key of `METRICS`, else nothing fits.
        device: of the run.
    """
    fitting = matching(table(), frame, METRICS.get(show, ""))
    own = [name for name in _sets(fitting) if _is_own(fitting[fitting["set"] == name], frame, device)]
    names = [NONE, *own, *(name for name in _sets(fitting) if name not in own)]
    if len(names) == 1:
        return Overlay(filters.Choice("published", "Published results", NONE, NONE, drawn=False))
    chosen = filters.choose_one("published", "Published results", names, NONE, hint=HINT)
    choice = filters.Choice("published", "Published results", chosen, NONE)
    if chosen == NONE:
        return Overlay(choice)
    rows = fitting[fitting["set"] == chosen]
    return Overlay(choice, series(rows), caption(rows, is_own=chosen in own), rows.drop(columns="set"))


def matching(table: pd.DataFrame, frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The published rows of one metric that are of the shape shown, with a column `set`: device and dtype.

    Args:
        table: as `load_published` returns it.
        frame: rows of the comparison table with the pages' axes, of one slice.
        metric: a metric of `Published`.
    """
    if not len(frame) or not frame["plain"].all() or (frame["kv_heads"] != frame["heads"]).any():
        return table.iloc[:0].assign(set=pd.Series(dtype="string"))
    one = frame.iloc[0]
    fits = (table["metric"] == metric) & (table["direction"] == one["direction"])
    fits &= (table["head_dim"] == one["head_dim"]).fillna(False) & table["seq_len"].notna()
    fits &= (table["causal"] == bool(one["causal"])).fillna(False)
    if metric == "latency_ms":  # at the batch that is shown, which may fall along N
        batches = dict(zip(frame["seq_len"], frame["batch"], strict=True))
        batch = table["seq_len"].map(batches) if frame["batch"].nunique() > 1 else one["batch"]
        fits &= (table["batch"] == batch).fillna(False) & (table["heads"] == one["heads"]).fillna(False)
    rows = table[fits]
    return rows.assign(set=rows["device_name"] + " " + rows["dtype"])


def series(rows: pd.DataFrame) -> tuple[Series, ...]:
    """A series a method and source, as open markers; the source stands on hover."""
    out = []
    for (method, source), own in rows.groupby(["method", "source"], sort=False):
        points = [
            Point(int(row.seq_len), float(row.value), details=_details(row)) for row in state.records(own)
        ]
        alike = next((b for start, b in ALIKE.items() if str(method).startswith(start)), str(method))
        out.append(
            Series(
                f"published {method} {source}",
                tuple(points),
                label=f"{method} (published)",
                summary=True,
                style=theme.style_of(alike),
                joined=False,
            )
        )
    return tuple(out)


def caption(rows: pd.DataFrame, *, is_own: bool) -> str:
    """Whose numbers the open markers are, and that they are of another GPU or dtype where they are."""
    first = rows.iloc[0]
    sources = [f"{source}, {figure}" for source, figure in _distinct(rows, "source", "figure")]
    where = f"{widgets.plain(first['device_name'])}, {widgets.plain(first['dtype'])}"
    other = "" if is_own else " **That is another GPU or dtype than this run's.**"
    return (
        f"Open markers: published, not measured here, on {where}: "
        f"{'; '.join(widgets.plain(source) for source in sources)}.{other}"
    )


@st.cache_resource(max_entries=1, show_spinner=False)
def _load() -> pd.DataFrame:
    return load_published()


def table() -> pd.DataFrame:
    """The published results; a file that cannot be read costs them, not the page."""
    try:
        return _load()
    except InputError as error:
        st.warning(f"Published results are left out: {widgets.plain(error)}")
        return pd.DataFrame(columns=list(Published.model_fields))


def _sets(rows: pd.DataFrame) -> list[str]:
    return sorted(str(name) for name in rows["set"].unique())


def _distinct(rows: pd.DataFrame, *columns: str) -> list[tuple[str, ...]]:
    return list(rows[list(columns)].drop_duplicates().itertuples(index=False, name=None))


def _is_own(rows: pd.DataFrame, frame: pd.DataFrame, device: Device | None) -> bool:
    """Whether published rows are of the run's own kind of device and its dtype."""
    there = known_device(str(rows["device_name"].iloc[0]))
    same = device is not None and there is not None and there.name == device.name
    return same and rows["dtype"].iloc[0] == frame["dtype"].iloc[0]


def _details(row: object) -> tuple[str, ...]:
    """Lines of a hover: source, device, shape, how the number was read."""
    values = row._asdict()  # type: ignore[attr-defined]
    shape = ", ".join(
        f"{letter} {values[name]}"
        for letter, name in (("B", "batch"), ("H", "heads"))
        if pd.notna(values[name])
    )
    lines = [f"{values['source']}, {values['figure']}", f"{values['device_name']}, {values['dtype']}"]
    lines += [shape] if shape else []
    lines.append(f"read from: {values['quality']}")
    return (*lines, *([values["note"]] if values["note"] else []))
