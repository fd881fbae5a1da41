"""Fills the derived columns of the comparison table: TFLOP/s by the paper's count, and modelled bytes.

They are computed on load and never stored, so that a better formula reaches old runs too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profiling.case import ATTENTION, KEY_FIELDS, Case, InputError
from profiling.devices import Device
from profiling.model import hopper, rows
from profiling.model.flops import flops
from profiling.model.traffic import is_modelled, traffic
from profiling.records import DERIVED_FIELDS

_INPUTS = (*KEY_FIELDS, "block_m", "block_n")
_COUNTS = tuple(name for name in DERIVED_FIELDS if name.startswith("est_"))


def with_estimates(frame: pd.DataFrame, device: Device | None) -> pd.DataFrame:
    """A copy of `frame` with `DERIVED_FIELDS` computed.

    Args:
        frame: the comparison table: the key's columns, `block_m`, `block_n`, `kernel` (what ran of `flash`),
            `status`, `latency_p50_ms`.
        device: the one its rows were measured on; None (a CPU) leaves `est_dram_bytes` empty.

    Returns:
        Bytes as Int64. `est_tile_bytes` and `est_dram_bytes` take the tile that ran where it is known,
        else the requested one, else the model's default; the backward of the kernels for sm_90 is not
        modelled and has neither. A case outside the formulas (a window, a bias, a packed layout) has no
        estimate.
        `paper_tflops` is filled for `ok` rows alone, no speed without correctness, and not under a window:
        the paper's count does not know that it leaves work out. An operation over rows has none either:
        what it takes is bytes.
    """
    out = frame.copy()
    # Shape by shape: a row on another clock or of another backend, which has no part in it, costs nothing.
    shape = [name for name in _INPUTS if name != "backend"]
    number = frame.groupby(shape, dropna=False, sort=False, observed=True).ngroup().to_numpy()
    _, first = np.unique(number, return_index=True)
    table = frame[list(_INPUTS)].iloc[first].astype(object)  # Python's own numbers, unknown ones None
    plain = table.where(table.notna(), None).itertuples(index=False, name=None)
    known: list[dict[str, int | None]] = [_estimates(row, device) for row in plain]
    for name in _COUNTS:
        values = pd.array([_held(one[name]) for one in known], dtype="Int64")
        out[name] = values.take(number)
    # One kernel for all gradients, to which several blocks add dQ: not what the formulas count.
    on_sm_90 = (frame["kernel"] == hopper.KERNEL).fillna(False) | (frame["backend"] == "flash_hopper")
    fused = (on_sm_90 & (frame["direction"] != "fwd")).to_numpy(dtype=bool)
    out.loc[fused, ["est_tile_bytes", "est_dram_bytes"]] = pd.NA
    work = np.array([one["flops"] or np.nan for one in known], dtype=np.float64)
    latency_ms = pd.to_numeric(frame["latency_p50_ms"]).to_numpy(dtype=np.float64, na_value=np.nan)
    measured = (frame["status"] == "ok").to_numpy(dtype=bool, na_value=False) & (latency_ms > 0)
    out["paper_tflops"] = np.where(measured, work[number] / np.where(measured, latency_ms, 1.0) / 1e9, np.nan)
    return out


def _held(count: int | None) -> int | None:
    """A count, or None where it is beyond what a column of integers holds."""
    return None if count is None or count >= 2**63 else count


def _estimates(row: tuple[Any, ...], device: Device | None) -> dict[str, int | None]:
    """The estimates of one row of `_INPUTS`, and its FLOPs by the paper's count."""
    values = dict(zip(_INPUTS, row, strict=True))
    block_m, block_n = values.pop("block_m"), values.pop("block_n")
    case = Case.model_validate(values)
    if case.operation != ATTENTION:
        once = rows.compulsory_bytes(case)
        moved = (rows.naive_bytes(case), once, None if device is None else once, once)
        return dict(zip(_COUNTS, moved, strict=True)) | {"flops": None}
    if not is_modelled(case):
        windowed = case.window_left is not None or case.window_right is not None
        return dict.fromkeys(_COUNTS) | {"flops": None if windowed else flops(case)}
    if block_m is None or block_n is None:
        block_m = block_n = None
    try:
        moved = traffic(case, device, block_m=block_m, block_n=block_n)
    except InputError:  # a variant that this version does not know
        return dict.fromkeys(_COUNTS) | {"flops": flops(case)}
    return {
        "est_naive_bytes": moved.naive_bytes,
        "est_tile_bytes": moved.tile_bytes,
        "est_dram_bytes": moved.dram_bytes,
        "est_compulsory_bytes": moved.compulsory_bytes,
        "flops": flops(case),
    }
