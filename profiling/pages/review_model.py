"""What page Review offers and shows: models to choose from, the usual choice, the table's cells."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from profiling import review_table
from profiling.analysis.decision import DECIDED, NOT_MEASURED, PARTLY, UNDECIDED, Decision
from profiling.analysis.deployment import BODIES, PRESETS, Shape
from profiling.model.step import Body
from profiling.pages import state
from profiling.pages.widgets import plain

# The colour of a verdict's badge; the word says the same.
COLOURS = {DECIDED: "green", UNDECIDED: "orange", PARTLY: "orange", NOT_MEASURED: "red"}
USUAL_MODELS = 4


def offered(frame: pd.DataFrame, dtype: str) -> list[Shape]:
    """The presets, then the shapes of a run that are none of them and have no feature but a mask."""
    kept = frame[frame["plain"] & (frame["dtype"] == dtype) & (frame["heads"] % frame["kv_heads"] == 0)]
    columns = ["heads", "kv_heads", "head_dim", "causal"]
    found = [
        own(int(row.heads), int(row.kv_heads), int(row.head_dim), bool(row.causal), named="")
        for row in state.records(kept[columns].drop_duplicates().sort_values(columns))
    ]
    known = {shape._replace(name="") for shape in PRESETS}
    return [*PRESETS, *(shape for shape in found if shape._replace(name="") not in known)]


def usual(frame: pd.DataFrame, shapes: list[Shape], dtype: str) -> list[Shape]:
    """What a first visit asks for: models whose very heads this run measured, else its first shape."""
    rows = frame[frame["dtype"] == dtype]
    keys = [tuple(key) for key in rows[["heads", "kv_heads", "head_dim", "causal"]].itertuples(index=False)]
    counts = Counter(keys)
    key_of = {shape: (shape.heads, shape.kv_heads, shape.head_dim, shape.causal) for shape in shapes}
    fitting = [shape for shape in shapes if counts[key_of[shape]]]
    presets = [shape for shape in fitting if shape in PRESETS][:USUAL_MODELS]
    most = max(fitting, key=lambda shape: (counts[key_of[shape]], shape.causal, shape.head_dim), default=None)
    return presets or ([most] if most else [])


def bodies(own: Shape | None, body: Body) -> dict[str, Body]:
    """The layers around each model's attention, those of the reader's own shape among them."""
    return BODIES if own is None else {**BODIES, own.name: body}


def lengths(frame: pd.DataFrame) -> tuple[int, int]:
    """The contexts a first visit asks for: those of the run where its queries are as many as its keys."""
    rows = frame[(frame["seq_len_q"] == frame["seq_len_k"]) & (frame["seq_len_k"] > 0)]
    if rows.empty:
        return 512, 8192
    return int(rows["seq_len_k"].min()), int(rows["seq_len_k"].max())


def own(heads: int, kv_heads: int, head_dim: int, causal: bool, named: str = "own: ") -> Shape:
    """A shape without a model's name: it is called by its numbers."""
    shared = f"{heads}" if kv_heads == heads else f"{heads}/{kv_heads}"
    name = f"{named}{shared} heads, d {head_dim}{', causal' if causal else ''}"
    return Shape(name, heads, kv_heads, head_dim, head_dim, causal)


def linked(decision: Decision) -> pd.DataFrame:
    """The table with its verdicts as badges (Markdown; every other cell is plain text, escaped)."""
    shown = review_table.table(decision).astype(object)
    for name in shown.columns:
        shown[name] = [plain(cell) for cell in shown[name]]
    shown["verdict"] = [f":{COLOURS[row.verdict]}-badge[{row.verdict}]" for row in decision.rows]
    return shown.rename(columns={name: plain(name) for name in shown.columns})
