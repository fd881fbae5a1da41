"""Hardware counters of an H200 (`data/counters_h200.csv`): a row per call, and what the models say of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from profiling.case import Case
from profiling.devices import Device
from profiling.model.traffic import traffic
from profiling.pages import state
from profiling.paths import DATA_DIR

FILE = "counters_h200.csv"
DEVICE = "H200"
CALL = ["B", "H", "N", "d", "impl", "cache_control"]
# How the file names an implementation -> the backend whose colour it takes, and its name in a legend.
LABELS = {"naive": ("naive", "naive"), "sdpa_cudnn": ("sdpa_cudnn", "sdpa_cudnn")}


class Call(NamedTuple):
    """One call's bytes by the counters (all its kernels) and by the model, forward, 16-bit elements."""

    backend: str
    label: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    dram_bytes: int
    l2_bytes: int
    est_dram_bytes: int | None  # of the naive passes for naive
    est_l2_bytes: int | None  # of the tile model; None for naive
    caches: str  # `all`: flushed before each kernel; `none`: left as they were


def read(path: Path | None = None) -> pd.DataFrame:
    """The file with the kernels of one call added up; empty if there is no such file."""
    path = path or DATA_DIR / FILE
    if not path.is_file():
        return pd.DataFrame(columns=[*CALL, "dram_read", "dram_write", "lts_bytes", "ns"])
    rows = pd.read_csv(path)
    return rows.groupby(CALL, sort=False)[["dram_read", "dram_write", "lts_bytes", "ns"]].sum().reset_index()


def calls(rows: pd.DataFrame, device: Device | None) -> list[Call]:
    """Each call beside its model; the tile of a Triton kernel is the one its name in the file gives."""
    out = []
    for row in state.records(rows):
        backend, label = LABELS.get(str(row.impl), ("flash", "Triton forward, 128×64"))
        case = Case(
            backend=backend,
            batch=int(row.B),
            heads=int(row.H),
            kv_heads=int(row.H),
            seq_len_q=int(row.N),
            seq_len_k=int(row.N),
            head_dim=int(row.d),
            head_dim_v=int(row.d),
        )
        moved = traffic(case, device, block_m=128, block_n=64)
        naive = backend == "naive"
        out.append(
            Call(
                backend=backend,
                label=label,
                batch=case.batch,
                heads=case.heads,
                seq_len=case.seq_len_q,
                head_dim=case.head_dim,
                dram_bytes=int(row.dram_read + row.dram_write),
                l2_bytes=int(row.lts_bytes),
                est_dram_bytes=moved.naive_bytes if naive else moved.dram_bytes,
                est_l2_bytes=None if naive else moved.tile_bytes,
                caches=str(row.cache_control),
            )
        )
    return out


def table(found: list[Call]) -> pd.DataFrame:
    """Counter, model and their ratio for each call; exact bytes."""

    def over(nbytes: int, model_bytes: int | None) -> float | None:
        return nbytes / model_bytes if model_bytes else None

    return pd.DataFrame(
        [
            {
                "kernel": call.label,
                "batch": call.batch,
                "heads": call.heads,
                "seq_len": call.seq_len,
                "head_dim": call.head_dim,
                "dram_bytes": call.dram_bytes,
                "est_dram_bytes": call.est_dram_bytes,
                "dram_over_model": over(call.dram_bytes, call.est_dram_bytes),
                "l2_bytes": call.l2_bytes,
                "est_tile_bytes": call.est_l2_bytes,
                "l2_over_tile": over(call.l2_bytes, call.est_l2_bytes),
                "dram_over_tile": over(call.dram_bytes, call.est_l2_bytes),
                "caches_flushed": call.caches,
            }
            for call in found
        ]
    )
