"""Host time of one eager forward call: how long Python and the drivers take to enqueue it.

    python tests/benchmarks/host_time.py [--profile]

Microseconds a call, medians over shuffled rounds of 40 calls each, which the GPU runs behind; bf16, B = 1,
16 heads, N = 256, no gradient. `--profile` adds where the time of `flash_hopper` goes, by cProfile.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fa_core import attention

CALLS = 40
ROUNDS = 25


def host_us(call: Callable[[], Any]) -> float:
    """Microseconds to enqueue a call; the queue is empty before and never full."""
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - begin) / 1e3 / CALLS


def calls(q: torch.Tensor, causal: bool) -> dict[str, Callable[[], Any]]:
    """By name. SDPA's choice of backend is made inside the call, as a user would."""

    def sdpa(backend: SDPBackend | None) -> Any:
        if backend is None:
            return scaled_dot_product_attention(q, q, q, is_causal=causal)
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, q, q, is_causal=causal)

    ours = {
        name: partial(attention, q, q, q, causal=causal, impl=name)
        for name in ("flash_hopper", "flash_portable", "naive")
    }
    theirs = {
        "sdpa": partial(sdpa, None),
        "sdpa_flash": partial(sdpa, SDPBackend.FLASH_ATTENTION),
        "sdpa_cudnn": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
    }
    return {**ours, **theirs}


def main() -> None:
    """Print a line a shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    shuffle = random.Random(0)
    with torch.no_grad():
        for head_dim in (64, 128):
            for causal in (False, True):
                q = torch.randn(1, 16, 256, head_dim, device="cuda", dtype=torch.bfloat16)
                known = calls(q, causal)
                taken: dict[str, list[float]] = {name: [] for name in known}
                for call in known.values():
                    host_us(call)
                for _ in range(ROUNDS):
                    for name in shuffle.sample(list(known), len(known)):
                        taken[name].append(host_us(known[name]))
                us = {name: statistics.median(times) for name, times in taken.items()}
                cells = ", ".join(f"{name} {x:.1f}" for name, x in us.items())
                ratio = us["flash_hopper"] / us["sdpa"]
                mask = "causal" if causal else "full"
                print(f"d={head_dim} {mask}: {cells} us; flash_hopper / sdpa {ratio:.2f}", flush=True)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(lambda: [known["flash_hopper"]() for _ in range(2000)])
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
