"""What the Traffic page says, computed from its controls: formulas of `profiling.model`, no Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from profiling import lines, units
from profiling.case import DTYPE_BYTES, Case
from profiling.devices import Device
from profiling.figures.series import Point
from profiling.figures.traffic import LABELS, Counted, Modelled
from profiling.model.orders import FA2_BLOCK_N, tile_bytes_for
from profiling.model.traffic import traffic
from profiling.pages.counters import Call


class Knobs(NamedTuple):
    """What the controls say: N, loop order (`fa1`, `fa2`), M in bytes, Br in queries, the element's dtype."""

    seq_len: int
    order: str
    sram_bytes: int
    block_m: int
    dtype: str


class Row(NamedTuple):
    """The modelled bytes at one N; `dram` is None where it is not modelled."""

    seq_len: int
    naive: int
    tile: int
    dram: int | None
    compulsory: int


def base_case(frame: pd.DataFrame | None) -> Case:
    """The shape at hand, N left open; B8 H32 d128 forward when there is no run."""
    if frame is None or not len(frame):
        shape: dict[str, Any] = {"batch": 8, "heads": 32, "kv_heads": 32, "head_dim": 128, "head_dim_v": 128}
        return Case(backend="flash", seq_len_q=1, seq_len_k=1, **shape)
    row = frame.iloc[0]
    numbers = {name: int(row[name]) for name in ("batch", "heads", "kv_heads", "head_dim", "head_dim_v")}
    fields: dict[str, Any] = {**numbers, "direction": str(row["direction"]), "causal": bool(row["causal"])}
    return Case(backend="flash", seq_len_q=1, seq_len_k=1, **fields)


def at_length(base: Case, seq_len: int, dtype: str) -> Case:
    """The shape at N = Nq = Nk."""
    return base.model_copy(update={"seq_len_q": seq_len, "seq_len_k": seq_len, "dtype": dtype})


def row_at(base: Case, seq_len: int, knobs: Knobs, device: Device) -> Row:
    """The four series at one N. FA1's order has no DRAM model."""
    case = at_length(base, seq_len, knobs.dtype)
    moved = traffic(case, device, block_m=knobs.block_m, block_n=FA2_BLOCK_N)
    if knobs.order == "fa1":
        tile = tile_bytes_for(case, order="fa1", sram_bytes=knobs.sram_bytes).tile_bytes
        return Row(seq_len, moved.naive_bytes, tile, None, moved.compulsory_bytes)
    return Row(seq_len, moved.naive_bytes, moved.tile_bytes, moved.dram_bytes, moved.compulsory_bytes)


def sentence(at: Row, base: Case, knobs: Knobs) -> str:
    """What the controls come to, in words and numbers (Markdown; every word is ours)."""
    mask = " causal" if base.causal else ""
    shape = f"B{base.batch} H{base.heads} d{base.head_dim}{mask}, N = {units.count_text(at.seq_len)}"
    said = _fa1(at, base, knobs) if knobs.order == "fa1" else _fa2(at, base, knobs)
    return f"**{shape}:** {said}"


def _fa1(at: Row, base: Case, knobs: Knobs) -> str:
    case = at_length(base, at.seq_len, knobs.dtype)
    order = tile_bytes_for(case, order="fa1", sram_bytes=knobs.sram_bytes)
    keys = units.count_text(order.block_n)
    return (
        f"with M = {units.bytes_text(knobs.sram_bytes)} a key tile holds Bc = {keys} keys, and the tiles "
        f"ask the L2 for **{units.traffic_text(at.tile)}**{_against(at.naive, at.tile)}. The paper's "
        f"{order.formula} alone comes to {units.traffic_text(order.asymptotic_bytes)}. What of it reaches "
        "DRAM is modelled for FA2's order only."
    )


def _fa2(at: Row, base: Case, knobs: Knobs) -> str:
    text = f"with Br = {knobs.block_m} the tiles ask the L2 for **{units.traffic_text(at.tile)}**"
    if at.dram is None:
        text += f"{_against(at.naive, at.tile)}."
    else:
        text += (
            f"; DRAM moves **{units.traffic_text(at.dram)}**{_against(at.naive, at.dram)}. "
            f"No algorithm can move less than {units.traffic_text(at.compulsory)}."
        )
    return f"{text} {_room(at, base, knobs)}" if base.direction == "fwd" else text


def _against(naive: int, other: int) -> str:
    """How the bytes compare with naive's: `, 65.2× less than naive's 8.79 GB`."""
    if not other:
        return ""
    word, ratio = ("less", naive / other) if naive >= other else ("more", other / max(1, naive))
    return f", {units.ratio_text(ratio)} {word} than naive's {units.traffic_text(naive)}"


def _room(at: Row, base: Case, knobs: Knobs) -> str:
    """Whether the tile fits M, and how large it could be."""
    case = at_length(base, at.seq_len, knobs.dtype)
    asked = tile_bytes_for(
        case, order="fa2", sram_bytes=knobs.sram_bytes, block_m=knobs.block_m, block_n=FA2_BLOCK_N
    )
    largest = tile_bytes_for(case, order="fa2", sram_bytes=knobs.sram_bytes, block_n=FA2_BLOCK_N)
    need, room = units.bytes_text(asked.sram_needed_bytes), units.bytes_text(knobs.sram_bytes)
    beside = f"beside Bc = {FA2_BLOCK_N}"
    if asked.fits:
        limit = f"M and the registers allow up to Br = {largest.block_m} {beside}"
        return f"The tile needs {need} of M = {room} and fits; {limit}."
    if largest.fits:
        return f"**The tile needs {need} and does not fit M = {room}**; Br = {largest.block_m} {beside} does."
    return f"**The tile needs {need} and does not fit M = {room}, nor does any smaller one {beside}.**"


def modelled(rows: Sequence[Row], scale: int) -> tuple[Modelled, ...]:
    """The four series divided by `scale`; one that is not modelled is left out."""
    out = []
    for role, label in LABELS.items():
        points = [(row.seq_len, getattr(row, role) / scale) for row in rows if getattr(row, role) is not None]
        if points:
            out.append(Modelled(role, label, tuple(points)))
    return tuple(out)


def counted(calls: Sequence[Call], *, per_head: bool) -> tuple[Counted, ...]:
    """Calls with counters as points, one series per backend and level of memory."""
    points: dict[tuple[str, str], list[Point]] = {}
    labels: dict[str, str] = {}
    for call in calls:
        scale = max(1, call.batch * call.heads) if per_head else 1
        labels[call.backend] = call.label
        shape = (f"B{call.batch} H{call.heads} d{call.head_dim}",)
        for level, nbytes in (("DRAM", call.dram_bytes), ("L2", call.l2_bytes)):
            if nbytes is None:
                continue
            points.setdefault((call.backend, level), []).append(
                Point(call.seq_len, nbytes / scale, details=shape)
            )
    return tuple(Counted(name, labels[name], level, tuple(found)) for (name, level), found in points.items())


def own_counters(frame: pd.DataFrame | None, dtype: str, scale: int) -> tuple[Counted, ...]:
    """The run's own counters, where its cases were counted, in elements of the size of `dtype`."""
    if frame is None:
        return ()
    wide = frame["dtype"].map(DTYPE_BYTES) == DTYPE_BYTES[dtype]
    return lines.counted(frame[wide], scale)


def table(rows: Sequence[Row], scale: int) -> pd.DataFrame:
    """The series as columns, exact bytes; likewise divided by `scale`, the batch · heads, if it is not 1."""
    whole = pd.DataFrame(
        {
            "seq_len": [row.seq_len for row in rows],
            "est_naive_bytes": [row.naive for row in rows],
            "est_tile_bytes": [row.tile for row in rows],
            "est_dram_bytes": pd.array([row.dram for row in rows], dtype="Int64"),
            "est_compulsory_bytes": [row.compulsory for row in rows],
        }
    )
    if scale == 1:
        return whole
    per_head = {
        f"{name.removesuffix('_bytes')}_per_head_bytes": whole[name] / scale
        for name in whole.columns
        if name != "seq_len"
    }
    return whole.assign(**per_head)


def counted_table(found: Sequence[Counted]) -> pd.DataFrame:
    """The points of the chart, in its bytes: whole calls', or divided by batch · heads."""
    return pd.DataFrame(
        [
            {"counted": c.label, "level": c.level, "seq_len": p.seq_len, "bytes": p.value}
            for c in found
            for p in c.points
        ]
    )
