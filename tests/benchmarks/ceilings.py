"""What this GPU reaches: the measured ceilings of data/devices.toml.

    python tests/benchmarks/ceilings.py [--device cuda:0]

prints the L2's rate by the size of what is read, what DRAM gives to a reader and to a copy, and the rate of
large matrix products in bf16; then the lines for the catalogue. The L2 is read past the L1, every program
another piece at a time: for sm_90 `.cg` becomes LDG.STRONG.GPU, which no L1 may answer. Medians of 30 calls
of at least a millisecond or so each, warm; nothing else may run on the GPU.

The L2's rate for the catalogue is that of 32 MiB: of what all SMs read an H200 keeps 34 MiB (fit_cache.py).
A buffer has at least twice as many pieces as there are programs: with fewer several programs ask for a line
at the same time, such requests are merged on their way, and more was asked for than the L2 gave. Counters
saw 0.58 of what the tiles of `flash` ask at N = 4096, and nearly all where blocks have fallen out of step.

On 30 Nov 2026 (H200, torch 2.11, triton 3.6) this script, with buffers from 4 MiB on, printed: L2 10405 GB/s
at 32 MiB, 9501 at 48, and up to 13514 below; DRAM 4424 read, 4286 copied; 777 TFLOP/s. The catalogue has no
rate of the L2 from it. 13514 is above what the L2 can hand out (6144 bytes a clock at 1980 MHz: 12165); the
512 and 1024 pieces of 4 and 8 MiB met 1056 programs, but which size gave it was not kept. If 16 or 24 MiB
did, merged requests do not explain it, and 32 MiB is not to be trusted either.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

CALLS = 30
BLOCK = 2048  # fp32 elements that a program reads at a time: four 16-byte loads a thread
PROGRAMS_PER_SM = 8
L2_MIB = (20, 24, 28, 32, 40, 48)
CATALOGUE_MIB = 32  # whose rate is for the catalogue
L2_BYTES_READ = 16e9
DRAM_MIB = 8192
PRODUCT = 8192


@triton.jit
def read_kernel(X, OUT, pieces, rounds, BLOCK: tl.constexpr):
    """Each program adds up pieces of X, one a round, all programs' pieces side by side."""
    pid = tl.program_id(0)
    step = tl.num_programs(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for r in range(rounds):
        piece = (pid + r * step) % pieces
        total += tl.load(X + piece.to(tl.int64) * BLOCK + offsets, cache_modifier=".cg")
    tl.store(OUT + pid, tl.sum(total))


def read(x: torch.Tensor, out: torch.Tensor, rounds: int) -> int:
    """Read a buffer of whole pieces with `len(out)` programs; returns the bytes asked for."""
    read_kernel[(len(out),)](x, out, x.numel() // BLOCK, rounds, BLOCK=BLOCK)  # type: ignore[index]
    return len(out) * rounds * BLOCK * x.element_size()


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """The median time of a call, by events around each."""
    for _ in range(3):
        call()
    times = []
    for _ in range(CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def pieces_of(mib: int) -> int:
    """Pieces of a buffer of so many MiB."""
    return mib * 2**20 // 4 // BLOCK


def l2_gbs(device: torch.device, programs: int) -> dict[int, float]:
    """GB/s by MiB of the buffer, of those whose pieces are enough for all programs twice."""
    out = torch.empty(programs, device=device)
    found = {}
    for mib in L2_MIB:
        if pieces_of(mib) < 2 * programs:
            continue
        x = torch.ones(pieces_of(mib) * BLOCK, device=device)
        rounds = max(1, round(L2_BYTES_READ / (programs * BLOCK * 4)))
        nbytes = read(x, out, rounds)
        found[mib] = nbytes / seconds(lambda x=x, rounds=rounds: read(x, out, rounds), device) / 1e9
    return found


def dram_gbs(device: torch.device, programs: int) -> tuple[float, float]:
    """GB/s of a reader that goes over a large buffer once, and of a copy, read and written."""
    x = torch.ones(DRAM_MIB * 2**20 // 4, device=device)
    y, out = torch.empty_like(x), torch.empty(programs, device=device)
    rounds = x.numel() // BLOCK // programs
    reading = read(x, out, rounds) / seconds(lambda: read(x, out, rounds), device) / 1e9
    return reading, 2 * x.numel() * 4 / seconds(lambda: y.copy_(x), device) / 1e9


def tensor_tflops(device: torch.device) -> float:
    """TFLOP/s of a square product of random bf16 matrices."""
    a, b = (torch.randn(PRODUCT, PRODUCT, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * PRODUCT**3 / seconds(lambda: a @ b, device) / 1e12


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="The measured ceilings of this GPU.")
    parser.add_argument("--device", default="cuda:0")
    device = torch.device(parser.parse_args().device)
    torch.cuda.set_device(device)
    properties = torch.cuda.get_device_properties(device)
    programs = PROGRAMS_PER_SM * properties.multi_processor_count
    print(f"{properties.name}, torch {torch.__version__}, triton {triton.__version__}")
    by_size = l2_gbs(device, programs)
    for mib, gbs in by_size.items():
        print(f"L2, {mib} MiB read again and again: {gbs:.0f} GB/s")
    reading, copying = dram_gbs(device, programs)
    print(f"DRAM, read once: {reading:.0f} GB/s; copied, read and written: {copying:.0f} GB/s")
    rate = tensor_tflops(device)
    print(f"bf16 products of {PRODUCT}: {rate:.0f} TFLOP/s")
    print()
    if CATALOGUE_MIB in by_size:
        print(f"measured_l2_gbs = {by_size[CATALOGUE_MIB]:.0f}")
    print(f"measured_dram_gbs = {copying:.0f}\nmeasured_tensor_tflops = {rate:.0f}")


if __name__ == "__main__":
    main()
