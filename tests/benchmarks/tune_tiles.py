"""Time candidate tiles of each Triton kernel on the GPU at hand and print them, best first.

    python tests/benchmarks/tune_tiles.py [--seq-len 4096] [--seconds 240] [--only forward,dkdv,dq]
        [--dtype float32]

What wins here is written into fa_core/kernels/tuning.py by hand. Each candidate is compared with the
eager result before it is timed, and compiled beforehand in parallel. Ratios are to PyTorch's
FlashAttention-2 (forward, and whole backward), and in fp32, which that does not take, to its
memory-efficient attention, timed in the same rounds. Where the winner spills
registers, the best candidate that does not is printed too: that is the gain which an entry of the list
in tests/fa_core/test_aot.py names.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import time
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

from fa_core import autotune, launch
from fa_core.band import Band
from fa_core.kernels import tuning
from fa_core.kernels.tuning import TileConfig
from fa_core.op import flash_attention

TOKENS, HIDDEN = 16384, 2048
KERNELS = {"forward": launch.forward_kernel, "dkdv": launch.dkdv_kernel, "dq": launch.dq_kernel}
WARMUP_MS, MEASURE_MS = 5, 20
ALLOWED_ERROR = {torch.bfloat16: 0.02, torch.float32: 1e-5}
PEERS = {
    torch.bfloat16: (SDPBackend.FLASH_ATTENTION, "FlashAttention-2"),
    torch.float32: (SDPBackend.EFFICIENT_ATTENTION, "memory-efficient attention"),
}


class Verdict(NamedTuple):
    """What became of a candidate before it is timed."""

    error: float  # largest relative error, of out and the gradients
    stack_bytes: int  # a thread: what spills
    reason: str = ""  # why it cannot run


def candidates(kernel: str, head_dim: int, dtype: torch.dtype) -> list[TileConfig]:
    """Those of autotuning that are worth a comparison by hand."""
    target = tuning.gpu(torch.device("cuda"))
    assert target is not None
    found = autotune.candidates(kernel, head_dim, dtype, target)
    if dtype == torch.float32:
        return found
    return [config for config in found if config.num_stages > 1 or head_dim == 256]


@contextlib.contextmanager
def forced(kernel: str, config: TileConfig):
    """Within, `kernel` takes `config`; the others take what they always do."""
    original = tuning.choose
    tuning.choose = lambda name, *args, **options: (
        config if name == kernel else original(name, *args, **options)
    )
    try:
        yield
    finally:
        tuning.choose = original


def flash(q, k, v, causal: bool) -> torch.Tensor:
    """Our attention, with the scale that is everybody's default."""
    out, _ = flash_attention(q, k, v, band=Band(right=0 if causal else None), scale=q.shape[3] ** -0.5)
    return out


def problem(head_dim: int, seq_len: int, dtype: torch.dtype):
    """q, k, v and dout, normal random; 16k tokens, hidden size 2048."""
    shape = (max(1, TOKENS // seq_len), HIDDEN // head_dim, seq_len, head_dim)
    return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4)]


def stack_bytes(kernel: str) -> int:
    """Of the variants of a kernel that this process holds, the most."""
    compiled = [c for caches in KERNELS[kernel].device_caches.values() for c in caches[0].values()]
    return max((4 * c.n_spills for c in compiled), default=0)


def attempt(job) -> Verdict:
    """Compile and run one candidate once."""
    kernel, head_dim, causal, dtype, config = job
    torch.manual_seed(0)
    q, k, v, dout = (t[:1, :2, :1024].contiguous() for t in problem(head_dim, 1024, dtype))
    KERNELS[kernel].device_caches.clear()
    try:
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        wide = [t.double().requires_grad_() for t in (q, k, v)]
        with sdpa_kernel(SDPBackend.MATH):
            ref = scaled_dot_product_attention(*wide, is_causal=causal)
        with forced(kernel, config):
            out = flash(*leaves, causal)
            pairs = [(out, ref)]
            if kernel != "forward":
                grads = torch.autograd.grad(out, leaves, dout), torch.autograd.grad(ref, wide, dout.double())
                pairs += zip(*grads, strict=True)
        error = max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)
        return Verdict(error, stack_bytes(kernel))
    except Exception as error:  # any refusal or crash disqualifies the candidate, and is printed
        return Verdict(float("nan"), 0, f"{type(error).__name__}: {str(error)[:80]}")


def median_ms(run) -> float:
    """The time of one call."""
    return do_bench(run, WARMUP_MS, MEASURE_MS, return_mode="median")  # type: ignore[return-value]


def tune(
    kernel: str, head_dim: int, causal: bool, dtype: torch.dtype, seq_len: int, stacks: dict[TileConfig, int]
) -> None:
    """Print the times of the tiles in `stacks`, best first, and the peer's time over theirs."""
    q, k, v, dout = problem(head_dim, seq_len, dtype)
    backend, name = PEERS[dtype]
    leaves = [t.requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(backend):
        peer_out = scaled_dot_product_attention(*leaves, is_causal=causal)

    def ours(config: TileConfig) -> float:
        with forced(kernel, config):
            if kernel == "forward":
                with torch.no_grad():
                    return median_ms(lambda: flash(q, k, v, causal))
            out = flash(*leaves, causal)
            return median_ms(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))

    def peer() -> float:
        if kernel == "forward":
            with torch.no_grad(), sdpa_kernel(backend):
                return median_ms(lambda: scaled_dot_product_attention(q, k, v, is_causal=causal))
        return median_ms(lambda: torch.autograd.grad(peer_out, leaves, dout, retain_graph=True))

    times: dict[TileConfig, list[float]] = {config: [] for config in stacks}
    peer_ms = []
    for _ in range(2):
        peer_ms.append(peer())
        for config in stacks:
            times[config].append(ours(config))
    base = statistics.median(peer_ms)
    ranked = sorted(times, key=lambda config: min(times[config]))
    mask = "causal" if causal else "full"
    print(f"{kernel} d={head_dim} {mask} N={seq_len} {dtype}: {name} {base:.3f} ms")

    def show(config: TileConfig, note: str = "") -> None:
        best = min(times[config])
        print(
            f"   {tuple(config)!s:20} {best:.3f} ms  {base / best:.3f} of its speed, "
            f"{stacks[config]} B of stack{note}",
            flush=True,
        )

    for config in ranked[:5]:
        show(config)
    spares = [config for config in ranked if not stacks[config]]
    if ranked and stacks[ranked[0]]:
        if spares:
            gain = min(times[spares[0]]) / min(times[ranked[0]]) - 1
            show(spares[0], f": the best without; the winner is {gain:.1%} faster")
        else:
            print("   none of the candidates does without a stack", flush=True)


def main() -> None:
    """Tune every kernel, head_dim and mask, until the seconds run out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--only", default="forward,dkdv,dq")
    parser.add_argument("--head-dim", default="128,64,256")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--workers", type=int, default=14)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    start = time.monotonic()
    groups = [
        (kernel, int(d), causal, dtype)
        for kernel in options.only.split(",")
        for d in options.head_dim.split(",")
        for causal in (True, False)
    ]
    jobs = [(*group, config) for group in groups for config in candidates(group[0], group[1], dtype)]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        verdicts = dict(zip(jobs, pool.map(attempt, jobs, chunksize=1), strict=True))
    wrong = {job: v for job, v in verdicts.items() if not v.reason and not v.error < ALLOWED_ERROR[dtype]}
    refused = {job: v.reason for job, v in verdicts.items() if v.reason}
    print(
        f"{len(jobs)} candidates compiled in {time.monotonic() - start:.0f} s; wrong: {wrong or 'none'}; "
        f"refused: {refused or 'none'}",
        flush=True,
    )
    for group in groups:
        if time.monotonic() - start > options.seconds:
            sys.exit(f"stopped after {options.seconds:.0f} s")
        right = {
            job[4]: v.stack_bytes
            for job, v in verdicts.items()
            if job[:4] == group and v.error < ALLOWED_ERROR[dtype]
        }
        tune(*group, options.seq_len, right)


if __name__ == "__main__":
    main()
