"""The ceilings of a device: how fast a call could be if one unit alone had to be waited for.

Tensor cores (the vendor's dense peak), the unit for exponentials, the L2 and DRAM, from the catalogue at
the SM clock of the run; and what was measured on a card of that kind, where the catalogue has it. DRAM's is
that of its bus and clock where these are known, because a data sheet rounds. How fast the L2 itself is
clocked, vendors do not say: it is taken to follow the SMs.
"""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import Case
from profiling.devices import Device
from profiling.model.flops import flops
from profiling.model.tiles import visible_pairs

CEILINGS: tuple[str, ...] = ("tensor", "exp", "l2", "dram", "launch")
LEVELS: tuple[str, ...] = ("dram", "l2")  # of memory: their ceilings rise with the FLOPs a byte
# Of an SM, from compute capability 7.0 to 10.0: CUDA C++ Programming Guide, arithmetic throughput.
EXPONENTIALS_PER_CLOCK = 16


class Ceiling(NamedTuple):
    """One ceiling. `name` is one of `CEILINGS`.

    `rate` is in TFLOP/s by the exact count, and for a level of memory in TB/s. `measured` tells what was
    seen on a card of that kind from what is in the catalogue.
    """

    name: str
    rate: float
    measured: bool
    source: str

    @property
    def sloped(self) -> bool:
        """Whether the rate in TFLOP/s is this one times the FLOPs a byte."""
        return self.name in LEVELS


def exponentials(case: Case) -> int:
    """One for each unmasked pair, head and pass: the backward forms the probabilities again."""
    pairs = case.batch * case.heads * visible_pairs(case.seq_len_q, case.seq_len_k, case.causal)
    return pairs * (2 if case.direction == "fwd_bwd" else 1)


def ceilings(case: Case, device: Device, clock_mhz: float | None) -> tuple[Ceiling, ...]:
    """The ceilings that are known for a case; the launch is no rate and not among them.

    Args:
        case: dense and modelled, with at least one unmasked pair.
        device: of the catalogue.
        clock_mhz: of the SMs; without it the L2 and the exponentials have no rate.
    """
    found = []
    peak = device.peak_tflops(case.dtype)
    if peak is not None:
        found.append(Ceiling("tensor", peak, False, device.source))
    if clock_mhz and device.sm_count is not None and exponentials(case):
        each = flops(case, "exact") / exponentials(case)
        rate = EXPONENTIALS_PER_CLOCK * device.sm_count * clock_mhz * each / 1e6
        found.append(Ceiling("exp", rate, False, "CUDA C++ Programming Guide: 16 a clock and SM"))
    if clock_mhz and device.l2_bytes_per_clock is not None:
        rate = device.l2_bytes_per_clock * clock_mhz / 1e6
        found.append(Ceiling("l2", rate, False, device.l2_source))
    if device.dram_peak_gbs is not None:
        source = device.dram_source or device.source
        found.append(Ceiling("dram", device.dram_peak_gbs / 1e3, False, source))
    if device.measured_tensor_tflops is not None and case.dtype in ("fp16", "bf16"):
        found.append(Ceiling("tensor", device.measured_tensor_tflops, True, device.measured_source))
    if device.measured_l2_gbs is not None:
        found.append(Ceiling("l2", device.measured_l2_gbs / 1e3, True, device.measured_source))
    if device.measured_dram_gbs is not None:
        found.append(Ceiling("dram", device.measured_dram_gbs / 1e3, True, device.measured_source))
    return tuple(found)
