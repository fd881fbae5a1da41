"""Time candidate tiles of each Triton kernel on the GPU at hand and print them, best first.

    python tests/benchmarks/tune_tiles.py [--seq-len 4096] [--seconds 240] [--only forward,dkdv,dq]

What wins here is written into fa_core/kernels/tuning.py by hand. Each candidate is compared with the
eager result before it is timed, and compiled beforehand in parallel. Ratios are to PyTorch's
FlashAttention-2 (forward, and whole backward), timed in the same rounds.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

from fa_core.kernels import tuning
from fa_core.kernels.tuning import TileConfig
from fa_core.op import flash_attention

TOKENS, HIDDEN = 16384, 2048
TILES = {
    "forward": ((128, 64), (128, 128), (64, 64), (128, 32), (64, 128)),
    "dkdv": ((64, 128), (64, 64), (32, 128), (32, 64), (128, 128), (128, 64)),
    "dq": ((128, 64), (64, 64), (128, 128), (128, 32), (64, 32)),
}
CHOOSERS = {"forward": "forward_config", "dkdv": "dkdv_config", "dq": "dq_config"}


def candidates(kernel: str, head_dim: int) -> list[TileConfig]:
    """Tiles whose bf16 operands fit 227 KiB of shared memory and whose accumulators fit the registers."""
    out = []
    for (m, n), warps, stages in itertools.product(TILES[kernel], (4, 8), (1, 2, 3)):
        kept, passing = (m, n) if kernel != "dkdv" else (n, m)
        operands = (kept * (1 if kernel == "forward" else 2) + 2 * stages * passing) * head_dim * 2
        outputs = kept * head_dim * (2 if kernel == "dkdv" else 1)
        scores = m * n * (1 if kernel == "forward" else 2)
        registers = (outputs + scores) / (32 * warps)
        if operands <= 227 * 1024 and 48 <= registers <= 260 and (stages > 1 or head_dim == 256):
            out.append(TileConfig(m, n, warps, stages))
    return out


def problem(head_dim: int, seq_len: int):
    """q, k, v and dout, bf16, normal random; 16k tokens, hidden size 2048."""
    shape = (max(1, TOKENS // seq_len), HIDDEN // head_dim, seq_len, head_dim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def attempt(job):
    """Compile and run one candidate once; returns its largest relative error, or the reason it cannot run."""
    kernel, head_dim, causal, config = job
    torch.manual_seed(0)
    q, k, v, dout = (t[:1, :2, :1024].contiguous() for t in problem(head_dim, 1024))
    original = getattr(tuning, CHOOSERS[kernel])
    try:
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        wide = [t.float().requires_grad_() for t in (q, k, v)]
        setattr(tuning, CHOOSERS[kernel], lambda *_: config)
        out, _ = flash_attention(*leaves, causal=causal, scale=head_dim**-0.5)
        with sdpa_kernel(SDPBackend.MATH):
            ref = scaled_dot_product_attention(*wide, is_causal=causal)
        pairs = [(out, ref)]
        if kernel != "forward":
            grads = torch.autograd.grad(out, leaves, dout), torch.autograd.grad(ref, wide, dout.float())
            pairs += zip(*grads, strict=True)
        return max(((a.float() - b).norm() / b.norm()).item() for a, b in pairs)
    except Exception as error:  # any refusal or crash disqualifies the candidate, and is printed
        return f"{type(error).__name__}: {str(error)[:80]}"
    finally:
        setattr(tuning, CHOOSERS[kernel], original)


def tune(kernel: str, head_dim: int, causal: bool, seq_len: int, configs: list[TileConfig]) -> None:
    """Print the configs' times, best first, with the ratio of FlashAttention-2's time to theirs."""
    q, k, v, dout = problem(head_dim, seq_len)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        peer_out = scaled_dot_product_attention(*leaves, is_causal=causal)
    name = CHOOSERS[kernel]
    original = getattr(tuning, name)

    def ours(config):
        setattr(tuning, name, lambda *_: config)
        if kernel == "forward":
            with torch.no_grad():
                return do_bench(
                    lambda: flash_attention(q, k, v, causal=causal, scale=head_dim**-0.5),
                    5,
                    20,
                    return_mode="median",
                )
        out, _ = flash_attention(*leaves, causal=causal, scale=head_dim**-0.5)
        return do_bench(
            lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True), 5, 20, return_mode="median"
        )

    def peer():
        if kernel == "forward":
            with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return do_bench(
                    lambda: scaled_dot_product_attention(q, k, v, is_causal=causal),
                    5,
                    20,
                    return_mode="median",
                )
        return do_bench(
            lambda: torch.autograd.grad(peer_out, leaves, dout, retain_graph=True),
            5,
            20,
            return_mode="median",
        )

    times: dict[TileConfig, list[float]] = {config: [] for config in configs}
    peer_ms = []
    for _ in range(2):
        peer_ms.append(peer())
        for config in configs:
            times[config].append(ours(config))
    setattr(tuning, name, original)
    base = statistics.median(peer_ms)
    ranked = sorted(times, key=lambda c: min(times[c]))
    print(
        f"{kernel} d={head_dim} {'causal' if causal else 'full'} N={seq_len}: FlashAttention-2 {base:.3f} ms"
    )
    for config in ranked[:5]:
        best = min(times[config])
        print(
            f"   {tuple(config)!s:20} {best:.3f} ms  {base / best:.3f} of FlashAttention-2's speed",
            flush=True,
        )


def main() -> None:
    """Tune every kernel, head_dim and mask, until the seconds run out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--only", default="forward,dkdv,dq")
    parser.add_argument("--head-dim", default="128,64,256")
    parser.add_argument("--workers", type=int, default=14)
    options = parser.parse_args()
    start = time.monotonic()
    groups = [
        (kernel, int(d), causal)
        for kernel in options.only.split(",")
        for d in options.head_dim.split(",")
        for causal in (True, False)
    ]
    jobs = [(*group, config) for group in groups for config in candidates(group[0], group[1])]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        verdicts = dict(zip(jobs, pool.map(attempt, jobs, chunksize=1), strict=True))
    wrong = {job: v for job, v in verdicts.items() if isinstance(v, float) and not v < 0.02}
    print(
        f"{len(jobs)} candidates compiled in {time.monotonic() - start:.0f} s; wrong: {wrong or 'none'}",
        flush=True,
    )
    for group in groups:
        if time.monotonic() - start > options.seconds:
            sys.exit(f"stopped after {options.seconds:.0f} s")
        fit = [j[3] for j in jobs if j[:3] == group and isinstance(verdicts[j], float) and verdicts[j] < 0.02]
        tune(*group, options.seq_len, fit)


if __name__ == "__main__":
    main()
