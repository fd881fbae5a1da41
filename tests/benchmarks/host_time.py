"""Host time of one eager forward call: how long Python and the drivers take to enqueue it.

    python tests/benchmarks/host_time.py [--profile]

Microseconds a call, medians over shuffled rounds of 40 calls each, which the GPU runs behind; bf16, no
gradient. First B = 1, 16 heads, N = 256, then decoding: one query beside 1024 keys, B = 8, 32 heads on 8 of
keys, dense and in pages of 64. `--profile` adds where the time of `flash_hopper` goes, by cProfile.
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

from fa_core import attention, attention_paged

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


def decoding() -> dict[str, Callable[[], Any]]:
    """By name: one query, whose keys are divided between programs and joined by a second kernel."""
    q = torch.randn(8, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(8, 8, 1024, 128, device="cuda", dtype=torch.bfloat16)
    pages = torch.randn(128, 64, 8, 128, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(128, device="cuda").reshape(8, 16).int()
    lengths = torch.full((8,), 1024, device="cuda", dtype=torch.int32)

    def sdpa_flash() -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q, k, k, enable_gqa=True)

    return {
        "flash": partial(attention, q, k, k, impl="flash"),
        "flash, pages": partial(attention_paged, q, pages, pages, table, lengths, check_table=False),
        "flash, LSE too": partial(attention, q, k, k, impl="flash", return_lse=True),
        "sdpa": partial(scaled_dot_product_attention, q, k, k, enable_gqa=True),
        "sdpa_flash": sdpa_flash,
    }


def medians_us(known: dict[str, Callable[[], Any]], shuffle: random.Random) -> dict[str, float]:
    """Of each call the median of all rounds."""
    taken: dict[str, list[float]] = {name: [] for name in known}
    for call in known.values():
        host_us(call)
    for _ in range(ROUNDS):
        for name in shuffle.sample(list(known), len(known)):
            taken[name].append(host_us(known[name]))
    return {name: statistics.median(times) for name, times in taken.items()}


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
                us = medians_us(known, shuffle)
                cells = ", ".join(f"{name} {x:.1f}" for name, x in us.items())
                ratio = us["flash_hopper"] / us["sdpa"]
                mask = "causal" if causal else "full"
                print(f"d={head_dim} {mask}: {cells} us; flash_hopper / sdpa {ratio:.2f}", flush=True)
        us = medians_us(decoding(), shuffle)
        cells = ", ".join(f"{name} {x:.1f}" for name, x in us.items())
        print(f"decoding: {cells} us; flash / sdpa {us['flash'] / us['sdpa']:.2f}", flush=True)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(lambda: [known["flash_hopper"]() for _ in range(2000)])
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
