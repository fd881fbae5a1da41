"""How far from the device's limits a call is: the least time that each of its units would need alone.

The limits are those of `profiling.analysis.ceilings`: the tensor cores (the wanted pairs' matrix products,
five in the backward), the unit for exponentials, the L2, DRAM, and the launch (what the clock was seen to
read for an empty kernel). Bytes are the counters' where a run has them, else the model's. The largest is
the bound; a call is above it by what overlaps badly, by further kernels, waves, padding and the power cap.

Of the L2 the model knows what tiles ask of it (`flash`, whose tile is on record), and for the eager baseline
that each kernel reads its inputs and writes its outputs once; of the backward of `flash_hopper` it knows
neither L2 nor DRAM. Counters of an H200 found 0.58 (N = 4096) to 0.99 (N = 65536) of what a forward's tiles
ask, since requests of neighbouring SMs are merged on the way while they are in step; 0.7 to 1 in the
backward, but 1.4 at d = 64, whose dK/dV kernel spills registers; and 1.7 to 1.8 times the eager bytes: a
product reads its operands several times, and a counter sees lines being filled.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from profiling.analysis.ceilings import CEILINGS, LEVELS, Ceiling, ceilings
from profiling.analysis.curves import cases
from profiling.analysis.operations import attention_rows
from profiling.case import FLASH_BACKENDS, Case
from profiling.devices import Device, known_device
from profiling.model.flops import flops
from profiling.model.naive import naive_passes
from profiling.model.traffic import is_modelled
from profiling.records import KEY_FIELDS

__all__ = ["CEILINGS", "LEVELS", "Ceiling", "Moved", "Roof", "ceilings", "roofs", "with_counters"]

COUNTERS: tuple[str, ...] = ("dram_read_bytes", "dram_write_bytes", "l2_bytes")
_ESTIMATES = ("est_naive_bytes", "est_tile_bytes", "est_dram_bytes")
# What must agree for the bytes of one run to be those of another's call.
_SAME = (*KEY_FIELDS, "device_name", "kernel_hash", "torch_version")


class Moved(NamedTuple):
    """Bytes that a call moved through a level of memory, read and written; counted, or modelled."""

    nbytes: float
    counted: bool


class Roof(NamedTuple):
    """One case on one clock.

    `flops` are exact ones (unmasked pairs). `moved` has the bytes by level of memory, `least_ms` by ceiling
    the least milliseconds; what is not known is absent. `bound_by` is the largest of them and `reached` its
    share of the measured latency. `paper_tflops` is the measured rate by the paper's count.
    """

    case: Case
    clock: str
    latency_ms: float
    flops: int
    moved: dict[str, Moved]
    least_ms: dict[str, float]
    bound_by: str
    reached: float
    paper_tflops: float

    @property
    def tflops(self) -> float:
        """The measured rate by the exact count."""
        return self.flops / self.latency_ms / 1e9

    def intensity(self, level: str) -> float | None:
        """FLOPs a byte through a level of memory; None where its bytes are not known."""
        return self.flops / self.moved[level].nbytes if level in self.moved else None


def roofs(frame: pd.DataFrame, *, clock: str = "device") -> list[Roof]:
    """The roofs of every row that ran on a clock and whose case the formulas hold for, in order.

    Args:
        frame: the comparison table.
        clock: whose latencies.
    """
    rows = attention_rows(frame)
    rows = rows[(rows["clock"] == clock) & (rows["status"] == "ok") & (rows["latency_p50_ms"] > 0)]
    devices = {name: known_device(str(name)) for name in rows["device_name"].unique()}
    columns = ["device_name", "latency_p50_ms", "paper_tflops", "floor_ms", "sm_clock_max_mhz", "block_m"]
    found = []
    for case, row in zip(
        cases(rows), rows[[*columns, *COUNTERS, *_ESTIMATES]].to_dict("records"), strict=True
    ):
        device = devices[row["device_name"]]
        if device is None or not is_modelled(case) or case.seq_len_q == 0 or case.seq_len_k == 0:
            continue
        work, moved = flops(case, "exact"), _moved(case, device, row)
        least = _least(ceilings(case, device, _known(row["sm_clock_max_mhz"])), work, moved)
        floor_ms = _known(row["floor_ms"])
        if floor_ms is not None:
            least["launch"] = floor_ms
        if not least:
            continue
        ms = float(row["latency_p50_ms"])
        bound = max(least, key=lambda ceiling: least[ceiling])
        found.append(Roof(case, clock, ms, work, moved, least, bound, least[bound] / ms, row["paper_tflops"]))
    return found


def with_counters(frame: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """The table with the counters of other runs where it has none: same case, device, kernel and torch.

    Args:
        frame: the comparison table, or some of its rows.
        counted: rows of runs with counters.
    """
    known = counted[(counted["status"] == "ok") & counted["dram_read_bytes"].notna()]
    table = dict(zip(_keys(known), known[list(COUNTERS)].itertuples(index=False, name=None), strict=True))
    lacks = frame["dram_read_bytes"].isna() & frame["dram_write_bytes"].isna() & frame["l2_bytes"].isna()
    if not table or not lacks.any():
        return frame
    nothing = (pd.NA,) * len(COUNTERS)
    values = [table.get(key, nothing) for key in _keys(frame[lacks])]
    out = frame.copy()
    for place, name in enumerate(COUNTERS):
        out.loc[lacks, name] = pd.array([row[place] for row in values], dtype="Int64")
    return out


def _keys(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    return [tuple(map(str, row)) for row in frame[list(_SAME)].itertuples(index=False, name=None)]


def _known(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[arg-type]


def _moved(case: Case, device: Device, row: dict) -> dict[str, Moved]:
    """Bytes by level: counted, else modelled for what the backend does; absent where neither is known."""
    found = {}
    read, written, l2 = (_known(row[name]) for name in COUNTERS)
    if read is not None and written is not None:
        found["dram"] = Moved(read + written, True)
    elif (modelled := _modelled_dram(case, device, row)) is not None:
        found["dram"] = Moved(modelled, False)
    if l2 is not None:
        found["l2"] = Moved(l2, True)
    elif (modelled := _modelled_l2(case, row)) is not None:
        found["l2"] = Moved(modelled, False)
    return {level: moved for level, moved in found.items() if moved.nbytes > 0}


def _modelled_dram(case: Case, device: Device, row: dict) -> float | None:
    if not case.backend.startswith("naive"):
        return _known(row["est_dram_bytes"])  # of the backward for sm_90 there is none
    # Where all stays in the cache: what of it reaches DRAM is not modelled.
    return _known(row["est_naive_bytes"]) if _is_counted_out(case) and _outgrows(case, device) else None


def _modelled_l2(case: Case, row: dict) -> float | None:
    if _is_counted_out(case):
        return _known(row["est_naive_bytes"])
    # Without the tile that ran, what it asked for is a guess.
    ran = case.backend in FLASH_BACKENDS and pd.notna(row["block_m"])
    return _known(row["est_tile_bytes"]) if ran else None


def _is_counted_out(case: Case) -> bool:
    """Whether the case is the eager baseline that `est_naive_bytes` counts kernel by kernel."""
    return case.backend == "naive" and case.variant in ("", "add")


def _outgrows(case: Case, device: Device) -> bool:
    """Whether some eager kernel's input and output are more than the cache holds: two score matrices, say."""
    largest = max(step.read_bytes + step.write_bytes for step in naive_passes(case))
    return device.cache_bytes is not None and largest > device.cache_bytes


def _least(known: tuple[Ceiling, ...], work: int, moved: dict[str, Moved]) -> dict[str, float]:
    """Milliseconds by ceiling, of the catalogue's: what was measured on a card is no limit."""
    least = {}
    for ceiling in known:
        if ceiling.measured:
            continue
        if not ceiling.sloped:
            least[ceiling.name] = work / ceiling.rate / 1e9
        elif ceiling.name in moved:
            least[ceiling.name] = moved[ceiling.name].nbytes / ceiling.rate / 1e9
    return least
