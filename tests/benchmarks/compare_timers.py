"""Our clocks beside `triton.testing.do_bench` and `do_bench_cudagraph`, on the same calls, in turns.

    python tests/benchmarks/compare_timers.py [--rounds 5] [--head-dim 128] [--lengths 256,1024,4096]

For each call and timer the median over rounds, and the SM clock that NVML showed right after it. Where a
timer of Triton's is more than 5 % from the clock of ours that means the same, an experiment says why:

- `held`: do_bench's own loop, but enqueued while the GPU is held busy. If that agrees with `device`, the
  difference was the host: gaps between launches that the GPU waited through.
- `swept`: the same, and L2 read over after it was overwritten. If that agrees where `held` does not, the rest
  was do_bench's flush: what it wrote last is still in L2 and goes back to memory during the call.
- `graph_hot`: if that agrees with do_bench_cudagraph where `graph` does not, the difference was L2, which
  do_bench_cudagraph leaves warm.
- `graph_here`: do_bench_cudagraph's own loop, but captured on the stream of the forward, where autograd runs
  the backward, and not on another. If that agrees with `graph` or `graph_hot`, the difference was the stream:
  of a backward the graph forks and joins at each call, and with cuDNN's the longer the graph, the more a call
  takes. If it agrees with do_bench_cudagraph instead, what is left is the length of the graph, whose launch
  is divided among its calls.
- cycles: if times multiplied by the SM clock agree, the difference was power: a timer that runs a call back
  to back for long enough is slowed down by the power limit.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from triton.testing import do_bench, do_bench_cudagraph

from profiling.case import Case, Protocol
from profiling.measure.backend import Call
from profiling.measure.backends import bind, resolve
from profiling.measure.clocks import CudaTimer
from profiling.measure.environment import worker_environment
from profiling.measure.inputs import make_inputs
from profiling.measure.telemetry import Telemetry
from profiling.measure.visits import Visitor

APART = 0.05
OURS = ("device", "graph", "graph_hot")
# A timer of Triton's, the clock of ours that means the same, and what tells the two apart: if two columns
# agree, the cause is named.
PAIRS: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "do_bench",
        "device",
        (
            ("held", "device", "launch gaps: with the queue held it agrees"),
            ("swept", "device", "launch gaps and a dirty L2: held, with L2 read over, it agrees"),
        ),
    ),
    (
        "do_bench_cudagraph",
        "graph",
        (
            ("do_bench_cudagraph", "graph_hot", "warm L2: it agrees with graph_hot"),
            ("graph_here", "graph", "stream: captured where the forward ran it agrees"),
            (
                "graph_here",
                "graph_hot",
                "stream and a warm L2: there it agrees with graph_hot",
            ),
            ("graph_here", "do_bench_cudagraph", "length of the graph: on one stream as many calls agree"),
        ),
    ),
)


class Reading(NamedTuple):
    """Milliseconds of one call, and the SM clock in MHz right after."""

    ms: float
    sm_clock_mhz: float


def held(call: Call, timer: CudaTimer, calls: int, host_ms: float, swept: bool) -> float:
    """do_bench's loop (its flush of 256 MB, an event pair a call), enqueued behind a held GPU; the median."""
    flush = torch.empty(64 * 2**20, dtype=torch.float32, device=timer.device)
    total = torch.empty((), dtype=torch.float32, device=timer.device)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    timer._hold(min(1.0 + 2.0 * calls * (host_ms + 0.05), 200.0))
    for begin, end in events:
        flush.zero_()
        if swept:
            torch.sum(flush, dim=0, out=total)
        begin.record()
        call()
        end.record()
    timer.sync()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def graph_here(call: Call, timer: CudaTimer, calls: int) -> float:
    """do_bench_cudagraph's loop (`calls` calls in a graph, ten replays) on the stream of the forward."""
    graph = timer.capture([call] * calls)
    times = []
    for _ in range(11):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        timer.sync()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times[1:])  # the first uploads the graph


def timers(case: Case, timer: CudaTimer, protocol: Protocol) -> dict[str, Callable[[], float]]:
    """By name: what times one call of a case once, in milliseconds."""
    backend = resolve(case, timer.device)
    inputs = backend.prepare(make_inputs(case, timer.device, protocol.seed))
    call = bind(backend.forward, case, inputs)
    visitors = {clock: Visitor(case, backend, inputs, timer, protocol, (clock,), 2**33) for clock in OURS}
    first = visitors["device"]
    calls = max(5, min(50, int(20.0 / first.call_ms)))

    def ours(clock: str) -> float:
        return statistics.median(visitors[clock].visit()[clock])

    return {
        **{clock: lambda clock=clock: ours(clock) for clock in OURS},
        "do_bench": lambda: do_bench(call, return_mode="median"),  # type: ignore[return-value]
        "held": lambda: held(call, timer, calls, first.host_ms, swept=False),
        "swept": lambda: held(call, timer, calls, first.host_ms, swept=True),
        "do_bench_cudagraph": lambda: do_bench_cudagraph(call, return_mode="median"),  # type: ignore[return-value]
        "graph_here": lambda: graph_here(call, timer, max(1, min(300, int(20.0 / first.call_ms)))),
    }


def read(case: Case, timer: CudaTimer, telemetry: Telemetry, rounds: int) -> dict[str, Reading]:
    """The median reading of each timer over shuffled rounds; without those that cannot take the case."""
    protocol = Protocol(rounds=10 * rounds, min_rounds=10 * rounds, rel_stderr=0.0, max_ms=1e9)
    known = timers(case, timer, protocol)
    taken: dict[str, list[Reading]] = {name: [] for name in known}
    shuffle = random.Random(case.label)
    for _ in range(rounds):
        for name in shuffle.sample(list(known), len(known)):
            try:
                ms = known[name]()
            except (RuntimeError, KeyError) as error:
                print(f"   {name} cannot take {case.label}: {str(error).splitlines()[0][:80]}")
                del known[name]
                continue
            taken[name].append(Reading(ms, telemetry.sm_clock_mhz() or float("nan")))
    return {
        name: Reading(*(statistics.median(column) for column in zip(*readings, strict=True)))
        for name, readings in taken.items()
        if len(readings) == rounds
    }


def _apart(a: Reading, b: Reading) -> bool:
    return abs(a.ms / b.ms - 1) > APART


def cause(
    found: dict[str, Reading], theirs: str, ours: str, experiments: Sequence[tuple[str, str, str]]
) -> str:
    """Why two timers differ, by the first experiment that makes two columns agree; "" where they do not."""
    a, b = found[theirs], found[ours]
    if not _apart(a, b):
        return ""
    for one, other, words in experiments:
        if one in found and other in found and not _apart(found[one], found[other]):
            return words
    if abs(a.ms * a.sm_clock_mhz / (b.ms * b.sm_clock_mhz) - 1) <= APART:
        return f"power: {a.sm_clock_mhz:.0f} against {b.sm_clock_mhz:.0f} MHz, as many cycles"
    return "not explained"


def cases(head_dim: int, lengths: list[int]) -> list[Case]:
    """Calls of one kernel and of several, short and long, forward and backward."""
    backends, directions = ("flash", "sdpa_flash", "sdpa_cudnn", "naive"), ("fwd", "bwd")
    return [
        Case(
            backend=backend, direction=direction, heads=16, kv_heads=16, seq_len_q=n, seq_len_k=n,
            head_dim=head_dim, head_dim_v=head_dim, causal=True,
        )
        for direction, n, backend in itertools.product(directions, lengths, backends)
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--lengths", default="256,1024,4096")
    options = parser.parse_args()
    device = torch.device("cuda:0")
    torch.cuda.set_stream(torch.cuda.Stream(device))
    timer = CudaTimer(device)
    telemetry = Telemetry(worker_environment(device).device_uuid)
    names = [
        *("device", "do_bench", "held", "swept"),
        *("graph", "graph_hot", "do_bench_cudagraph", "graph_here"),
    ]
    print(
        "| case | "
        + " | ".join(f"{name} (us)" for name in names)
        + " | do_bench / device | its graph / graph | why |"
    )
    print("|---|" + "--:|" * (len(names) + 2) + "---|")
    with torch.no_grad():
        for case in cases(options.head_dim, [int(n) for n in options.lengths.split(",")]):
            found = read(case, timer, telemetry, options.rounds)
            times = [f"{found[name].ms * 1e3:.1f}" if name in found else "" for name in names]
            ratios, why = [], []
            for theirs, ours, experiments in PAIRS:
                if theirs in found and ours in found:
                    ratios.append(f"{found[theirs].ms / found[ours].ms:.3f}")
                    why.append(cause(found, theirs, ours, experiments))
                else:
                    ratios.append("")
            print(
                f"| {case.label} | {' | '.join([*times, *ratios])} | {'; '.join(filter(None, why))} |",
                flush=True,
            )
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
