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

from profiling.analysis.latency_fit import case_of
from profiling.case import KEY_FIELDS, Case, InputError
from profiling.devices import Device, find_device
from profiling.model.flops import flops
from profiling.model.tiles import visible_pairs
from profiling.model.traffic import is_modelled, traffic

CEILINGS: tuple[str, ...] = ("tensor", "exp", "dram", "launch")
EXPONENTIALS_PER_CLOCK = 16  # of an SM


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
    devices: dict[str, Device | None] = {}
    found = []
    columns = [*KEY_FIELDS, "device_name", "latency_p50_ms", "floor_ms", "sm_clock_max_mhz"]
    counted = ["dram_read_bytes", "dram_write_bytes"]
    for row in rows[[*columns, *counted]].to_dict("records"):
        name = str(row["device_name"])
        if name not in devices:
            devices[name] = _device(name)
        device, case = devices[name], case_of(row)  # type: ignore[arg-type]
        if device is None or not is_modelled(case) or case.seq_len_q == 0 or case.seq_len_k == 0:
            continue
        moved = _bytes(case, device, row)
        least = _least(case, device, row, moved)
        if not least:
            continue
        ms = float(row["latency_p50_ms"])
        bound = max(least, key=lambda ceiling: least[ceiling])
        work = flops(case, "exact")
        found.append(
            Roof(
                case, clock, ms, least, bound, least[bound] / ms, work / moved if moved else None,
                flops(case, "paper") / ms / 1e9,
            )
        )  # fmt: skip
    return found


def _device(name: str) -> Device | None:
    try:
        return find_device(name)
    except InputError:
        return None


def _bytes(case: Case, device: Device, row: dict) -> float | None:
    """Bytes through DRAM: counted, else modelled for what the backend does, else None."""
    read, write = row["dram_read_bytes"], row["dram_write_bytes"]
    if pd.notna(read) and pd.notna(write):
        return float(read) + float(write)
    if not case.backend.startswith("naive"):
        return traffic(case, device).dram_bytes
    scores = 2 * case.batch * case.heads * case.seq_len_q * case.seq_len_k * 2
    if (
        case.variant in ("", "add")
        and case.backend == "naive"
        and device.cache_bytes
        and scores > device.cache_bytes
    ):
        return traffic(case, device).naive_bytes
    return None  # the scores stay in the cache, and what of them reaches DRAM is not modelled


def _least(case: Case, device: Device, row: dict, moved: float | None) -> dict[str, float]:
    least: dict[str, float] = {}
    peak = device.peak_tflops(case.dtype)
    if peak is not None:
        least["tensor"] = flops(case, "exact") / peak / 1e9
    clock_mhz = row["sm_clock_max_mhz"]
    if device.sm_count is not None and pd.notna(clock_mhz) and clock_mhz > 0:
        pairs = case.batch * case.heads * visible_pairs(case.seq_len_q, case.seq_len_k, case.causal)
        passes = 2 if case.direction == "fwd_bwd" else 1
        least["exp"] = passes * pairs / (EXPONENTIALS_PER_CLOCK * device.sm_count * clock_mhz * 1e3)
    if moved is not None and device.dram_bandwidth_gbs is not None:
        least["dram"] = moved / device.dram_bandwidth_gbs / 1e6
    if pd.notna(row["floor_ms"]):
        least["launch"] = float(row["floor_ms"])
    return least
