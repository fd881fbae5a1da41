"""Time fa_core's kernels in two checkouts on one GPU, in turns, and print the ratios.

    python tests/benchmarks/compare_checkouts.py BEFORE AFTER [--rounds 5]

BEFORE and AFTER are folders that hold a `fa_core`. Each gets a process of its own; shape by shape the two
are timed alternately (GPU events, L2 overwritten before each call), so that a drifting clock meets both.
Printed is time before / time after: above 1 the change is faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

SHAPES = [
    (head_dim, causal, n, direction)
    for head_dim, causal, n, direction in itertools.product(
        (64, 128, 256), (False, True), (512, 2048, 8192), ("fwd", "bwd")
    )
]


def serve() -> None:
    """Answer each line [head_dim, causal, n, direction] with the median latency in ms, and the eager one."""
    import torch

    from fa_core import attention

    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    held: dict[tuple, tuple] = {}
    for line in sys.stdin:
        key = tuple(json.loads(line))
        head_dim, causal, n, direction = key
        if key not in held:
            g = torch.Generator(device="cuda").manual_seed(0)
            shape = (max(1, 16384 // n // 4), 16, n, head_dim)
            q, k, v, dout = (
                torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=g) for _ in range(4)
            )
            held.clear()
            held[key] = (*(x.requires_grad_() for x in (q, k, v)), dout)
        q, k, v, dout = held[key]
        if direction == "fwd":

            def call(q=q, k=k, v=v, causal=causal):
                with torch.no_grad():
                    return attention(q, k, v, causal=causal, impl="flash")
        else:
            out = attention(q, k, v, causal=causal, impl="flash")

            def call(q=q, k=k, v=v, out=out, dout=dout):
                return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        for _ in range(3):
            call()
        times = []
        for _ in range(9):
            flush.zero_()
            torch.cuda._sleep(4_000_000)  # the queue stays full: launches are not timed
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        wall = []
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            wall.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps([statistics.median(times), statistics.median(wall)]), flush=True)


def main() -> None:
    """Start the two processes and ask them in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    workers = []
    for folder in (options.before, options.after):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        workers.append(
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--serve"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder,
            )
        )  # fmt: skip

    def ask(worker: subprocess.Popen, shape: tuple) -> list[float]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(shape) + "\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())

    for shape in SHAPES:
        rounds = [[ask(worker, shape) for worker in workers] for _ in range(options.rounds)]
        (before, wall_before), (after, wall_after) = (
            (statistics.median(r[i][0] for r in rounds), statistics.median(r[i][1] for r in rounds))
            for i in (0, 1)
        )
        d, causal, n, direction = shape
        print(
            f"{direction} d={d} {'causal' if causal else 'full'} N={n}: {before:.3f} -> {after:.3f} ms, "
            f"ratio {before / after:.3f}; launch {wall_before:.3f} -> {wall_after:.3f} ms",
            flush=True,
        )
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()


if __name__ == "__main__":
    main()
