"""Hardware counters, a row per call, and what the models say of it: of a run, and of `counters_h200.csv`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from profiling import units
from profiling.analysis.curves import untiled
from profiling.case import ATTENTION, KEY_FIELDS, Case
from profiling.devices import Device
from profiling.model.traffic import traffic
from profiling.pages import state, widgets
from profiling.paths import DATA_DIR

FILE = "counters_h200.csv"
DEVICE = "H200"
CALL = ["B", "H", "N", "d", "impl", "cache_control"]
# How the file names an implementation -> the backend whose colour it takes, and its name in a legend.
LABELS = {"naive": ("naive", "naive"), "sdpa_cudnn": ("sdpa_cudnn", "sdpa_cudnn")}
PORTABLE = ("flash", "flash_portable")  # backends whose kernels start a block a tile, unless sm_90's ran
BEFORE_THE_CALL = "before the call"  # how `flashscope counters` leaves the caches


class Call(NamedTuple):
    """One call's bytes by the counters (all its kernels) and by the model; None is unknown."""

    backend: str
    label: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    dram_bytes: int | None
    l2_bytes: int | None
    est_dram_bytes: int | None  # of the naive passes for naive
    est_l2_bytes: int | None  # of the tile model; None for naive
    caches: str  # `all`: flushed before each kernel; `none`: left as they were; or before the call
    direction: str = "fwd"
    causal: bool = False
    is_spoken_of: bool = False  # by the DRAM model: kernels as those that it was fitted to


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
        backend, label = LABELS.get(str(row.impl), ("flash_portable", "Triton forward (128×64)"))
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
                is_spoken_of=backend == "flash_portable",
            )
        )
    return out


def of_run(frame: pd.DataFrame) -> list[Call]:
    """The calls of a run that were counted, each once whatever clocks it has, beside its own estimates."""
    known = frame[["dram_read_bytes", "dram_write_bytes"]].notna().all(axis=1) | frame["l2_bytes"].notna()
    rows = untiled(frame[known & frame["plain"] & (frame["status"] == "ok")])
    out = []
    for row in state.records(rows.drop_duplicates(subset=list(KEY_FIELDS))):
        naive = str(row.backend).startswith("naive")
        moved = row.dram_read_bytes + row.dram_write_bytes
        out.append(
            Call(
                backend=str(row.backend),
                label=str(row.name),
                batch=int(row.batch),
                heads=int(row.heads),
                seq_len=int(row.seq_len),
                head_dim=int(row.head_dim),
                dram_bytes=_known(moved),
                l2_bytes=_known(row.l2_bytes),
                est_dram_bytes=_known(row.est_naive_bytes if naive else row.est_dram_bytes),
                est_l2_bytes=None if naive else _known(row.est_tile_bytes),
                caches=BEFORE_THE_CALL,
                direction=str(row.direction),
                causal=bool(row.causal),
                is_spoken_of=row.backend in PORTABLE and not str(row.kernel).endswith("flash_hopper"),
            )
        )
    return out


def rows_counted(frame: pd.DataFrame) -> pd.DataFrame:
    """The counted calls of operations over rows, a row each, beside what must move in any case.

    Of these there is one model: each tensor once for a fused kernel, kernel by kernel for eager PyTorch.
    """
    known = frame["dram_read_bytes"].notna() & frame["dram_write_bytes"].notna()
    rows = frame[known & (frame["operation"] != ATTENTION) & (frame["status"] == "ok")]
    out = []
    for row in state.records(rows.drop_duplicates(subset=list(KEY_FIELDS))):
        moved = int(row.dram_read_bytes + row.dram_write_bytes)
        naive = str(row.backend) == "naive"
        model = _known(row.est_naive_bytes if naive else row.est_compulsory_bytes)
        out.append(
            {
                "operation": str(row.operation_name),
                "backend": str(row.name),
                "direction": str(row.direction),
                "dtype": str(row.dtype),
                "rows": int(row.batch),
                "classes": int(row.seq_len),
                "classes_kept": int(row.head_dim_v) if row.operation == "softmax_top_k" else None,
                "dram_bytes": moved,
                "est_bytes": model,
                "dram_over_model": moved / model if model else None,
                "l2_bytes": _known(row.l2_bytes),
            }
        )
    whole = dict.fromkeys(("classes_kept", "est_bytes", "l2_bytes"), "Int64")
    return pd.DataFrame(out).astype(whole) if out else pd.DataFrame()


def _known(value: object) -> int | None:
    return None if pd.isna(value) else int(value)  # type: ignore[call-overload, arg-type]


def sentences(found: list[Call]) -> list[str]:
    """What the counters of fused kernels come to beside the models, for each direction.

    Kernels as those that the DRAM model was fitted to are told apart from others, of which it does not speak.
    """
    rows = table(found)
    spoken_of = pd.Series([call.is_spoken_of for call in found], dtype=bool)
    out = []
    for direction, words in (("fwd", "fused forwards"), ("bwd", "fused backwards")):
        known = rows[["dram_over_model", "dram_over_tile"]].notna().all(axis=1)
        counted = known & (rows["direction"] == direction)
        ours, others = (rows[counted & of] for of in (spoken_of, ~spoken_of))
        if len(ours):
            far = ours["dram_over_tile"]
            out.append(
                f"For {words} the DRAM counters are {_range(ours)} of the DRAM model ({_kernels(ours)}), but "
                f"only {units.percent_text(far.min())} to {units.percent_text(far.max())} of the tile model: "
                "read as HBM traffic, N²d²/M overstates it by that much."
            )
        if len(others):
            out.append(
                f"For other {words} ({_kernels(others)}) the DRAM counters are {_range(others)} of the DRAM "
                "model, which was not fitted to such kernels and does not speak of them."
            )
    return out


def _range(rows: pd.DataFrame) -> str:
    near = rows["dram_over_model"]
    return f"{units.ratio_text(near.min())} to {units.ratio_text(near.max())}"


def _kernels(rows: pd.DataFrame) -> str:
    return ", ".join(widgets.plain(name) for name in rows["kernel"].unique())


def table(found: list[Call]) -> pd.DataFrame:
    """Counter, model and their ratio for each call; exact bytes."""

    def over(nbytes: int | None, model_bytes: int | None) -> float | None:
        return nbytes / model_bytes if nbytes is not None and model_bytes else None

    return pd.DataFrame(
        [
            {
                "kernel": call.label,
                "direction": call.direction,
                "causal": call.causal,
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
