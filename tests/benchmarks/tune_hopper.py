"""The tiles of the kernels for sm_90, on such a GPU: compiled on all cores, held to the error rule, timed.

    python tests/benchmarks/tune_hopper.py [--only compile|check|time] [--seconds 500] [--rounds 3]
        [--heads-dim 64,128,256] [--fwd] [--bwd]

Prints what breaks the rule, and TFLOP/s by the paper's count on the `device` clock: medians over shuffled
rounds, B·N = 16k tokens, hidden 2048, bf16, with the geometric mean of each tile against cuDNN. What wins is
written into `fa_core/hopper.py` by hand.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fa_core")]

from fa_core import hopper  # noqa: E402
from fa_core.band import Band  # noqa: E402
from fa_core.hopper import BackwardTile, ForwardTile  # noqa: E402
from fa_core.launch import Problem, Saved  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Kind(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    d: int
    heads: int
    kv_heads: int
    n_q: int
    n_k: int
    left: int | None
    right: int | None
    forward_tile: ForwardTile | None = None
    backward_tile: BackwardTile | None = None


def problem(kind: Kind, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Problem:
    """Plain attention within the kind's band, aligned bottom-right."""
    band = Band(kind.left, kind.right).needed(q.shape[2], k.shape[2])
    return Problem(q, k, v, None, None, None, None, None, None, q.shape[3] ** -0.5, *band, 0.0)


def forward(p: Problem, tile: ForwardTile | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, row_max and log_sum."""
    out = torch.empty_like(p.q)
    row_max, log_sum = p.q.new_empty((2, *p.q.shape[:3]), dtype=torch.float32)
    hopper.forward_launch(p, out, row_max, log_sum, tile).run()
    return out, row_max, log_sum


def backward(
    p: Problem,
    done: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    dout: torch.Tensor,
    tile: BackwardTile | None = None,
    deterministic: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv, of what `forward` left."""
    out, row_max, log_sum = done
    grads = (torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v))
    for step in hopper.backward_launches(
        p, Saved(dout, row_max, log_sum, row_max), out, None, grads, deterministic, tile
    ):
        step.run()
    return grads


def checked() -> list[Kind]:
    """Every switch of the kernels, on lengths off the tile and on it."""
    bands = ((None, None), (None, 0), (40, 0), (100, 30), (50, None))
    lengths = ((1, 1), (65, 300), (300, 65), (257, 257), (512, 512), (1023, 1025))
    dims = (64, 128, 256, 80, 40)
    kinds = [
        Kind("bf16", d, 4, kv_heads, *lengths, *band)
        for d, kv_heads, lengths, band in itertools.product(dims, (4, 2), lengths, bands)
    ]
    return kinds + [k._replace(dtype="fp16") for k in kinds if k.d in (64, 128) and k.kv_heads == 4]


FORWARDS = {
    64: (
        None,
        ForwardTile(192, 128, 2, True, 160, 32),
        ForwardTile(),
        ForwardTile(128, 64, 3),
        ForwardTile(128, 64, 4),
    ),
    128: (None, ForwardTile(128, 64, 3), ForwardTile(128, 64, 4, True)),
    256: (None, ForwardTile(128, 64, 2, False, persistent=False)),
}
BACKWARDS = {
    64: (None, BackwardTile(128, 128), BackwardTile(128, 128, 2, True), BackwardTile(64, 128)),
    128: (None, BackwardTile(128, 64), BackwardTile(128, 64, 2, True), BackwardTile(64, 64)),
    256: (None,),
}


def timed() -> list[Kind]:
    """The issue's shapes."""
    return [
        Kind("bf16", d, 2048 // d, 2048 // d, n, n, None, right)
        for d, right, n in itertools.product((128, 64, 256), (None, 0), (512, 1024, 2048, 4096, 8192, 16384))
    ]


# --------------------------------------------------------------------------------------------- compiling


def compile_kind(kind: Kind) -> str:
    """Why a kind does not compile; "" if it does."""
    from fa_core.ahead import compiling_for
    from fa_core.kernels.tuning import Gpu

    def empty(heads: int, n: int, dtype: torch.dtype = DTYPES[kind.dtype]) -> torch.Tensor:
        return torch.empty(2, heads, n, kind.d, dtype=dtype, device="meta")

    q, k = empty(kind.heads, kind.n_q), empty(kind.kv_heads, kind.n_k)
    try:
        with compiling_for(Gpu(shared_bytes=227 * 1024, capability=(9, 0), processors=132)):
            p = problem(kind, q, k, k)
            done = forward(p, kind.forward_tile)
            for deterministic in (False, True):
                backward(p, done, q, kind.backward_tile, deterministic)
    except Exception as error:
        return f"{kind}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return ""


def compile_all(kinds: list[Kind]) -> None:
    """Into Triton's cache, on all cores; kinds that share all switches are compiled once."""

    def switches(kind: Kind) -> tuple[Any, ...]:
        width = hopper.padded_width(kind.d)
        even = kind.n_k % 128 == 0, kind.n_k % 64 == 0
        alone = kind.heads == kind.kv_heads
        return (kind.dtype, width, alone, kind.left is None, kind.right is None, even, kind[8:])

    distinct = list({switches(kind): kind for kind in kinds}.values())
    begin = time.time()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=context) as pool:
        for failure in filter(None, pool.map(compile_kind, distinct)):
            print("does not compile:", failure, flush=True)
    print(f"{len(distinct)} kinds compiled in {time.time() - begin:.0f} s", flush=True)


# ---------------------------------------------------------------------------------------------- checking


def results(kind: Kind, x: Any, deterministic: bool) -> dict[str, torch.Tensor]:
    """out, lse and the gradients, each poisoned before by what the allocator gives back."""
    p = problem(kind, x.q, x.k, x.v)
    done = forward(p, kind.forward_tile)
    out, row_max, log_sum = done
    found = {"out": out, "lse": row_max * p.scale + log_sum}
    grads = backward(p, done, x.dout, kind.backward_tile, deterministic)
    found |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    return found


def poison() -> None:
    """Leave NaN in the memory that the next tensors get."""
    blocks = [
        torch.full((size,), float("nan"), device="cuda") for size in [2**24] * 4 + [2**18] * 16 + [2**12] * 16
    ]
    del blocks


def faults_of(kind: Kind) -> list[str]:
    """What breaks the error rule, or changes from run to run where it must not."""
    from oracle import Inputs, assert_within_rule, make_inputs, run

    from fa_core import naive_attention

    x = make_inputs(kind.n_q, kind.n_k, kind.d, heads=kind.heads, kv_heads=kind.kv_heads, dtype=kind.dtype)
    options: dict[str, object] = {"window": (kind.left, kind.right)}
    reference = run(naive_attention, Inputs(*(t.double() for t in x)), **options)
    eager = run(naive_attention, x, **options)
    found = []
    for deterministic in (False, True):
        poison()
        got = results(kind, x, deterministic)
        torch.cuda.synchronize()
        faults = []
        for name, seen in got.items():
            try:
                assert_within_rule(name, seen, reference[name], eager[name], x.q.dtype)
            except AssertionError as fault:
                faults.append(str(fault))
        if deterministic and any(
            not torch.equal(a, b)
            for _ in range(3)
            for a, b in zip(got.values(), results(kind, x, True).values(), strict=True)
        ):
            faults.append("bits differ between runs")
        if faults:
            found.append(f"{'split' if deterministic else 'fused'}: {'; '.join(faults)}")
    return found


def check_in_turn(kinds: list[Kind], pipe: Connection) -> None:
    """What a child does: the faults of each kind, sent as they are found."""
    for kind in kinds:
        try:
            pipe.send(faults_of(kind))
        except RuntimeError as error:  # of CUDA: nothing can be computed in this process any more
            pipe.send([f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"])
            return


def check(kinds: list[Kind], limit_s: float) -> None:
    """Say which kinds break the error rule; one that hangs or crashes costs its child, not the rest."""
    context = multiprocessing.get_context("spawn")
    begin, bad, done = time.time(), 0, 0
    while done < len(kinds) and time.time() - begin < limit_s:
        pipe, childs = context.Pipe()
        child = context.Process(target=check_in_turn, args=(kinds[done:], childs), daemon=True)
        child.start()
        childs.close()
        patience_s = 60.0  # for the first, which waits for the imports too
        while done < len(kinds) and time.time() - begin < limit_s:
            try:
                faults = pipe.recv() if pipe.poll(patience_s) else ["hangs"]
            except EOFError:
                break
            patience_s = 20.0
            if faults:
                bad += 1
                print(f"{kinds[done]}: {' | '.join(faults)}", flush=True)
            done += 1
            if faults == ["hangs"]:
                break
        child.kill()
        child.join()
    print(
        f"{done} of {len(kinds)} kinds checked, {bad} break the rule, {time.time() - begin:.0f} s", flush=True
    )


# ----------------------------------------------------------------------------------------------- timing


def calls(kind: Kind) -> dict[str, dict[str, Callable[[], Any]]]:
    """By direction and implementation: a call on the same inputs."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch = max(1, 16384 // kind.n_q)
    g = torch.Generator(device="cuda").manual_seed(0)
    shape = (batch, kind.heads, kind.n_q, kind.d)
    q, k, v, dout = (torch.randn(*shape, generator=g, device="cuda").to(torch.bfloat16) for _ in range(4))
    found: dict[str, dict[str, Callable[[], Any]]] = {"fwd": {}, "bwd": {}}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("fa2", SDPBackend.FLASH_ATTENTION)):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]

        def attend(a: Any, b: Any, c: Any, backend: Any = backend) -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(a, b, c, is_causal=kind.right == 0)

        with torch.enable_grad():
            out = attend(*leaves)
        found["fwd"][name] = lambda attend=attend: attend(q, k, v)
        found["bwd"][name] = lambda out=out, leaves=leaves: torch.autograd.grad(
            out, leaves, dout, retain_graph=True
        )
    p = problem(kind, q, k, v)
    for tile in FORWARDS[kind.d]:
        if tile is not None and tile.persistent:
            tile = tile._replace(persistent=hopper.forward_tile(p).persistent)
        name = "ours" if tile is None else f"ours {tile.block_m}x{tile.block_n}x{tile.stages}"
        name += "" if tile is None or tile.persistent else " hardware"
        found["fwd"][name] = lambda tile=tile: forward(p, tile)
    done = forward(p)
    for tile in BACKWARDS[kind.d]:
        name = "ours" if tile is None else f"ours {tile.keys}x{tile.block_m}"
        name += " engine" if tile is not None and tile.engine else ""
        found["bwd"][name] = lambda tile=tile: backward(p, done, dout, tile)
    found["bwd"]["ours split"] = lambda: backward(p, done, dout, None, True)
    return found


def time_all(kinds: list[Kind], rounds: int, limit_s: float) -> None:
    """A table, and geometric means against cuDNN."""
    from profiling.measure.clocks import CudaTimer

    torch.cuda.set_stream(torch.cuda.Stream())
    timer = CudaTimer(torch.device("cuda:0"))
    begin, ratios, shuffle = time.time(), {}, random.Random(0)
    for kind in kinds:
        flops = 4 * 16384 * kind.n_q * 2048 * (0.5 if kind.right == 0 else 1.0)
        for direction, group in calls(kind).items():
            if time.time() - begin > limit_s:
                print("out of time", flush=True)
                return
            taken: dict[str, list[float]] = {name: [] for name in group}
            for call in group.values():
                call()
            for _ in range(rounds):
                for name in shuffle.sample(list(group), len(group)):
                    taken[name].append(statistics.median(timer.cold(group[name], 1, 5, 0.3).ms))
            ms = {name: statistics.median(times) for name, times in taken.items()}
            factor = 2.5 if direction == "bwd" else 1.0
            cells = {name: round(factor * flops / x / 1e9) for name, x in ms.items()}
            mask = "causal" if kind.right == 0 else "full"
            print(f"{direction} d={kind.d} {mask} N={kind.n_q}: {cells}", flush=True)
            for name, x in ms.items():
                ratios.setdefault((direction, kind.d, mask, name), []).append(ms["cudnn"] / x)
        torch.cuda.empty_cache()
    for key, values in ratios.items():
        print(*key, f"cudnn's time / its: {statistics.geometric_mean(values):.3f}", flush=True)


def main() -> None:
    """Compile, check, time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("compile", "check", "time"))
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    begin = time.time()
    tiled = [
        kind._replace(forward_tile=forward, backward_tile=backward)
        for kind in timed()
        if kind.n_q == 4096
        for forward, backward in itertools.zip_longest(FORWARDS[kind.d], BACKWARDS.get(kind.d, ()))
    ]
    compile_all([*(checked() if options.only != "time" else []), *(tiled if options.only != "check" else [])])
    if options.only in (None, "check"):
        kinds = random.Random(0).sample(checked(), len(checked()))  # so that a part says something of all
        check(kinds, 0.45 * (options.seconds - (time.time() - begin)))
    if options.only in (None, "time"):
        with torch.no_grad():
            time_all(timed(), options.rounds, options.seconds - (time.time() - begin))


if __name__ == "__main__":
    main()
