"""What stands beside a claim: numbers, a sentence made of them, and how they came about.

An evidence function takes what is `AtHand` and returns an `Evidence`; it raises `LackingError` where no run
at hand has the rows that it needs. Nothing here is stored: another run or seed gives other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profiling.analysis.curves import Slice, backend_names, untiled
from profiling.analysis.operations import SEQUENCE, Along, attention_rows
from profiling.case import ATTENTION, CLOCKS, DTYPE_BYTES, Case
from profiling.devices import Device

KINDS: dict[str, str] = {
    "measured": "from rows of a run at hand",
    "modelled": "by the formulas of profiling.model",
    "computed": "worked out here on a small random input",
}
# What plays the part of flash: ours, else PyTorch's, else the algorithm without fusion (all that a CPU has).
FUSED: tuple[str, ...] = ("flash", "flash_portable", "sdpa_flash", "tiled")
# Of the comparison table: what evidence reads, beside what a slice is made of.
_COLUMNS = [
    *("backend", "variant", "name", "status", "reason", "seq_len_q", "seq_len_k", "tile_m", "tile_n"),
    *("block_m", "block_n", "kernel", "clock", "latency_p50_ms", "peak_mem_bytes", "retained_mem_bytes"),
    *("rel_error", "eager_rel_error", "dram_write_bytes", "dram_bytes", "l2_bytes"),
    *("est_tile_bytes", "flags"),
]
_SHARED = ["run_id", "direction", "dtype", "batch", "heads", "kv_heads", "head_dim", "head_dim_v", "causal"]


class AtHand(NamedTuple):
    """What evidence is made of; `at_hand` makes it.

    Attributes:
        rows: the comparison tables of all runs of one device, one below the other, with `name` (the backend's
            with its variant) and `dram_bytes` (read and written); of attention alone.
        plain: those that are `ok`, of dense self-attention without features or a requested tile.
        device: that device; None for a CPU, or where there is no run.
        seed: of the random inputs of what is computed.
        over_rows: the same columns as `rows`, of other operations, those that are `ok`.
    """

    rows: pd.DataFrame
    plain: pd.DataFrame
    device: Device | None
    seed: int = 0
    over_rows: pd.DataFrame = pd.DataFrame()


def at_hand(rows: pd.DataFrame, device: Device | None, seed: int = 0) -> AtHand:
    """What is at hand, from the comparison tables of all runs of one device."""
    rows = rows.assign(
        name=backend_names(rows), dram_bytes=rows["dram_read_bytes"] + rows["dram_write_bytes"]
    )
    rows = rows[
        [*_COLUMNS, *(name for name in rows.columns if name not in _COLUMNS and name in Slice._fields)]
    ]
    over_rows = rows[(rows["operation"] != ATTENTION) & (rows["status"] == "ok")]
    rows = attention_rows(rows)
    return AtHand(rows, _plain(rows), device, seed, over_rows)


class Fact(NamedTuple):
    """One number: what it is, its value (in the unit that `text` shows), and its text with the unit."""

    label: str
    value: float
    text: str


class Line(NamedTuple):
    """A curve for a small chart: a backend or a model, and its value by N, or by what else it runs along."""

    name: str
    points: Mapping[int, float]
    modelled: bool = False


class Evidence(NamedTuple):
    """Evidence for or against a claim, as plain text and numbers.

    Attributes:
        kind: one of `KINDS`.
        says: one or two sentences with the numbers.
        source: the runs and shape, the formula, or the input.
        facts: the numbers one by one.
        lines: what a chart draws, all in one unit; none for most.
        unit: of the lines: `bytes`, `bytes moved`, or empty for a ratio.
        title: of the chart's value axis.
        along: what the lines run along.
    """

    kind: str
    says: str
    source: str
    facts: tuple[Fact, ...]
    lines: tuple[Line, ...] = ()
    unit: str = ""
    title: str = ""
    along: Along = SEQUENCE


ByBackend = dict[str, dict[int, float]]
Maker = Callable[[AtHand], Evidence]


class LackingError(Exception):
    """No run at hand has what the evidence needs; the message says what that is."""


class Curves(NamedTuple):
    """Values by backend and N of one slice of one run; `label` says which, `case` makes its cases."""

    label: str
    run_id: str
    case: Case
    by_backend: ByBackend

    @property
    def shape(self) -> dict[str, Any]:
        """What another curve must have in common with these beyond its pass: columns and their values."""
        names = ("dtype", "batch", "heads", "kv_heads", "head_dim", "causal")
        return {"run_id": self.run_id} | {name: getattr(self.case, name) for name in names}

    @property
    def shared(self) -> list[int]:
        """The N at which every backend has a value, ascending."""
        return sorted(set.intersection(*(set(points) for points in self.by_backend.values())))

    def at(self, backend: str, seq_len: int) -> Case:
        """The case of a backend at one N."""
        return self.case.model_copy(update={"backend": backend, "seq_len_q": seq_len, "seq_len_k": seq_len})


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    rows = untiled(rows)
    without = rows["layout"].eq("dense") & rows["status"].eq("ok") & rows["softcap"].isna()
    for column in ("bias", "sinks", "alibi"):
        without &= ~rows[column].fillna(False)
    without &= rows["window_left"].isna() & rows["window_right"].isna()
    without &= rows["seq_len_q"].eq(rows["seq_len_k"]) & rows["head_dim"].eq(rows["head_dim_v"])
    return rows[without.fillna(False)]


def aged(rows: pd.DataFrame) -> str:
    """What a source adds where rows are of kernels that have changed since; empty where none is."""
    stale = rows["flags"].fillna("").str.contains("stale_kernel").any()
    return "; measured with kernels that have changed since" if stale else ""


def clock_of(rows: pd.DataFrame) -> str:
    """The clock that is looked at: `device` where there is one, else the first of `CLOCKS`."""
    present = set(rows["clock"].unique())
    return next((clock for clock in ("device", *CLOCKS) if clock in present), "")


def fused_of(rows: pd.DataFrame) -> str:
    """What plays the part of flash in these rows.

    Raises:
        LackingError: there is none.
    """
    present = set(rows["backend"].unique())
    for name in FUSED:
        if name in present:
            return name
    raise LackingError("rows of flash, or of another kernel of its kind")


def curves(
    hand: AtHand,
    backends: Sequence[str],
    column: str,
    *,
    least: int = 2,
    usual_dim: int = 128,
    **fixed: object,
) -> Curves:
    """`column` along N for all of these backends on one slice: that with the most N where all have a value.

    Among equals the one at `usual_dim`, without a mask, with the longest N, and the fewest heads. A latency
    is of one clock (`clock_of`), or of the one that is `fixed`.

    Args:
        hand: whose rows are searched.
        backends: with variants, as `backend/variant`.
        column: of the comparison table.
        least: so many N are needed.
        usual_dim: the head_dim that is preferred.
        fixed: values of columns that the slice must have.

    Raises:
        LackingError: there is no such slice.
    """
    rows = hand.plain
    rows = rows[rows["name"].isin(backends) & rows[column].notna()][
        [*_SHARED, "name", "seq_len_k", "clock", "device_name", "flags", column]
    ]
    for name, value in fixed.items():
        rows = rows[rows[name] == value]
    if column == "latency_p50_ms":
        rows = rows if "clock" in fixed else rows[rows["clock"] == clock_of(rows)]
    else:  # measured once a case, and repeated on each clock
        rows = rows.assign(clock="")
    best: tuple[tuple[float, ...], dict[str, Any], ByBackend] | None = None
    for values, own in rows.groupby(_SHARED, sort=True):
        if own["name"].nunique() < len(set(backends)):
            continue
        by_backend: ByBackend = {}
        columns = (own["name"].tolist(), own["seq_len_k"].tolist(), own[column].tolist())
        for name, n, value in zip(*columns, strict=True):
            by_backend.setdefault(name, {})[int(n)] = float(value)
        shared: dict[str, Any] = dict(zip(_SHARED, values, strict=True))
        n = sorted(set.intersection(*(set(points) for points in by_backend.values())))
        if len(n) < least:
            continue
        heads = shared["batch"] * shared["heads"]
        rank = (len(n), shared["head_dim"] == usual_dim, not shared["causal"], n[-1], -heads)
        if best is None or rank > best[0]:
            best = (rank, shared | {"clock": own["clock"].iloc[0], "aged": aged(own)}, by_backend)
    if best is None:
        raise LackingError(f"{column} of {' and '.join(backends)} at {least} or more N")
    where = hand.device.name if hand.device else str(rows["device_name"].iloc[0])
    return _curves(best[1], best[2], where)


def _curves(shared: dict[str, Any], by_backend: ByBackend, where: str) -> Curves:
    case = Case.model_validate(
        {name: value for name, value in shared.items() if name in Case.model_fields}
        | {"backend": "flash", "seq_len_q": 1, "seq_len_k": 1}
    )
    mask = " causal" if case.causal else ""
    clock = f", {shared['clock']} clock" if shared["clock"] else ""
    shape = f"{case.direction} {case.dtype} B{case.batch} H{case.heads} d{case.head_dim}{mask}"
    run_id = shared["run_id"]
    return Curves(f"run {run_id} on {where}: {shape}{clock}{shared['aged']}", run_id, case, by_backend)


def exponent(points: Mapping[int, float]) -> float:
    """The slope of a curve along N in log-log, by least squares over two or more N.

    `analysis.scaling` has its interval, too, but brings scipy, for which the first reader of the page waits.
    """
    n, values = np.log(list(points)), np.log(list(points.values()))
    return float(np.polyfit(n, values, 1)[0])


def tensor_bytes(case: Case, seq_len: int) -> int:
    """Bytes of one tensor of N·d for all heads: q, or the output."""
    return case.batch * case.heads * seq_len * case.head_dim * DTYPE_BYTES[case.dtype]
