"""How far from the device's limits a call is: the least time that each of its units would need alone.

The ceilings are the tensor cores (the wanted pairs' matrix products, five in the backward), the unit for
exponentials (one a wanted pair and pass; 16 a clock and SM from compute capability 7.0 to 10.0: CUDA C++
Programming Guide, table of arithmetic throughput), DRAM (the model's bytes, or the counters' where a run has
them), and the launch (what the clock was seen to read for an empty kernel). The largest of them is the bound;
a call is above it by what overlaps badly, by further kernels, waves, padding and the power cap.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from profiling.analysis.curves import cases
from profiling.case import Case
from profiling.devices import Device, known_device
from profiling.model.flops import flops
from profiling.model.latency import roofline_bound
from profiling.model.memory import score_matrix_bytes
from profiling.model.tiles import visible_pairs
from profiling.model.traffic import is_modelled

CEILINGS: tuple[str, ...] = ("tensor", "exp", "dram", "launch")
EXPONENTIALS_PER_CLOCK = 16  # of an SM
_BYTES = ("dram_read_bytes", "dram_write_bytes", "est_naive_bytes", "est_dram_bytes")


class Roof(NamedTuple):
    """One case on one clock.

    `least_ms` has, by ceiling, the least milliseconds; a ceiling that is not known is absent. `bound_by` is
    the largest of them and `reached` its share of the measured latency. `intensity` is FLOPs a byte through
    DRAM, `paper_tflops` the measured rate by the paper's count.
    """

    case: Case
    clock: str
    latency_ms: float
    least_ms: dict[str, float]
    bound_by: str
    reached: float
    intensity: float | None
    paper_tflops: float


def roofs(frame: pd.DataFrame, *, clock: str = "device") -> list[Roof]:
    """The roofs of every row that ran on a clock and whose case the formulas hold for, in order.

    Args:
        frame: the comparison table.
        clock: whose latencies.
    """
    rows = frame[(frame["clock"] == clock) & (frame["status"] == "ok") & (frame["latency_p50_ms"] > 0)]
    devices = {name: known_device(str(name)) for name in rows["device_name"].unique()}
    columns = ["device_name", "latency_p50_ms", "paper_tflops", "floor_ms", "sm_clock_max_mhz", *_BYTES]
    found = []
    for case, row in zip(cases(rows), rows[columns].to_dict("records"), strict=True):
        device = devices[row["device_name"]]
        if device is None or not is_modelled(case) or case.seq_len_q == 0 or case.seq_len_k == 0:
            continue
        work, moved = flops(case, "exact"), _bytes(case, device, row)
        least = _least(case, device, row, work, moved)
        if not least:
            continue
        ms = float(row["latency_p50_ms"])
        bound = max(least, key=lambda ceiling: least[ceiling])
        intensity = work / moved if moved else None
        found.append(Roof(case, clock, ms, least, bound, least[bound] / ms, intensity, row["paper_tflops"]))
    return found


def _bytes(case: Case, device: Device, row: dict) -> float | None:
    """Bytes through DRAM: counted, else modelled for what the backend does, else None."""
    counted = row["dram_read_bytes"], row["dram_write_bytes"]
    if not pd.isna(counted[0]) and not pd.isna(counted[1]):
        return float(counted[0]) + float(counted[1])
    if not case.backend.startswith("naive"):
        modelled = row["est_dram_bytes"]
    elif case.backend == "naive" and case.variant in ("", "add") and _outgrows(case, device):
        modelled = row["est_naive_bytes"]
    else:  # scores that stay in the cache: what of them reaches DRAM is not modelled
        modelled = None
    return None if pd.isna(modelled) else float(modelled)


def _outgrows(case: Case, device: Device) -> bool:
    """Whether two score matrices, one pass's input and output, are more than the cache holds."""
    return device.cache_bytes is not None and 2 * score_matrix_bytes(case).all_heads > device.cache_bytes


def _least(case: Case, device: Device, row: dict, work: int, moved: float | None) -> dict[str, float]:
    bound = roofline_bound(moved, work, case.dtype, device)
    least = {} if bound.est_compute_ms is None else {"tensor": bound.est_compute_ms}
    clock_mhz = row["sm_clock_max_mhz"]
    if device.sm_count is not None and pd.notna(clock_mhz) and clock_mhz > 0:
        pairs = case.batch * case.heads * visible_pairs(case.seq_len_q, case.seq_len_k, case.causal)
        passes = 2 if case.direction == "fwd_bwd" else 1
        least["exp"] = passes * pairs / (EXPONENTIALS_PER_CLOCK * device.sm_count * clock_mhz * 1e3)
    if bound.est_memory_ms is not None:
        least["dram"] = bound.est_memory_ms
    if pd.notna(row["floor_ms"]):
        least["launch"] = float(row["floor_ms"])
    return least
