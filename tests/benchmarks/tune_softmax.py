"""Time candidate tiles of the softmax kernels on the GPU at hand and print them, best first.

    python tests/benchmarks/tune_softmax.py [--seconds 60] [--rounds 15] [--workers 14]
        [--only cross_entropy,cross_entropy_backward,few_classes,groups,selection,top_k_backward]

What wins here is written into fa_core/softmax/tiles.py by hand. Candidates are compiled beforehand in
parallel, compared with eager, and then take turns, eager among them: one call each a round, between two GPU
events, enqueued while the GPU is held busy, after L2 has been overwritten. GB/s counts what must be moved:
logits read once, and their gradient written. The ratio is eager's time over the candidate's.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from fa_core.ahead import compiling_for
from fa_core.kernels import tuning
from fa_core.softmax import op as _operators  # noqa: F401 (registers torch.ops.fa_core)
from fa_core.softmax import tiles
from fa_core.softmax.cross_entropy import naive_cross_entropy
from fa_core.softmax.tiles import Tile
from fa_core.softmax.top_k import naive_softmax_top_k

DTYPE = torch.bfloat16
IGNORED = -100
HELD_CYCLES = 1_000_000  # for which the GPU is kept busy while a call is enqueued
FLUSHED_BYTES = 256 * 2**20
SHOWN = 4


class Shape(NamedTuple):
    """A kernel of `tiles.KERNELS` on logits (rows, classes) in bf16; k of a top-k, renormalised or not."""

    kernel: str
    rows: int
    classes: int
    k: int = 0
    renormalize: bool = True


SHAPES: tuple[Shape, ...] = (
    *(
        Shape(kernel, rows, classes)
        for kernel in ("cross_entropy", "cross_entropy_backward")
        for rows, classes in ((8192, 32000), (8192, 128256), (8192, 151936), (16, 128256))
    ),
    *(
        Shape("few_classes", 16384, classes, k, k == 2)
        for classes in (8, 64, 128, 256)
        for k in (2, 8)
    ),
    *(
        Shape(kernel, 64, classes, k, renormalize=False)
        for kernel in ("groups", "selection")
        for classes, k in ((32000, 8), (128256, 50))
    ),
    Shape("top_k_backward", 16384, 64, 8),
    Shape("top_k_backward", 16384, 256, 8, renormalize=False),
)  # fmt: skip


def candidates(shape: Shape) -> list[Tile]:
    """The table's tile first, then others: 16 to 256 bytes of a tile for each thread."""
    size = 4 if shape.kernel == "selection" else DTYPE.itemsize
    width = -(-shape.classes // tiles.GROUP_CLASSES) if shape.kernel == "selection" else shape.classes
    usual = tiles.choose(shape.kernel, width, size)
    short = width <= usual.columns and shape.kernel not in ("groups", "selection")
    found = [usual]
    for tile_bytes in (1024, 2048, 4096, 8192, 16384, 32768):
        for warps in (1, 2, 4, 8, 16):
            elements = tile_bytes // size
            rows = elements // usual.columns if short else 1
            if 16 <= tile_bytes // (32 * warps) <= 256 and 1 <= rows <= 512:
                found.append(Tile(rows, usual.columns if short else elements, warps))
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def forced(kernel: str, tile: Tile) -> Iterator[None]:
    """Within, `kernel` takes `tile`; the others take what they always do."""
    usual = tiles.choose
    tiles.choose = lambda name, *args: tile if name == kernel else usual(name, *args)  # type: ignore[assignment]
    try:
        yield
    finally:
        tiles.choose = usual


class Problem(NamedTuple):
    """What a shape's calls take: ours and eager's, and ours' result beside eager's."""

    ours: Callable[[], Any]
    eager: Callable[[], Any]
    moved_bytes: int


def problem(shape: Shape, device: str) -> Problem:
    """Random logits of a shape on `device`; on `meta` nothing but the shapes."""
    logits = torch.randn(shape.rows, shape.classes, device=device, dtype=DTYPE)
    read = logits.numel() * logits.element_size()
    ops = torch.ops.fa_core
    if shape.kernel.startswith("cross_entropy"):
        target = torch.randint(0, shape.classes, (shape.rows,), device=device)
        if shape.kernel == "cross_entropy":
            forward = ops.cross_entropy_forward.default
            return Problem(
                lambda: forward(logits, target, IGNORED)[0].mean(),
                lambda: naive_cross_entropy(logits, target)[0],
                read,
            )
        dloss = torch.full((shape.rows,), 1.0 / shape.rows, device=device)
        _, *kept = ops.cross_entropy_forward.default(logits, target, IGNORED)
        leaf = logits.detach().requires_grad_()
        loss = None if logits.is_meta else naive_cross_entropy(leaf, target)[0]
        return Problem(
            lambda: ops.cross_entropy_backward.default(logits, target, *kept, dloss, None, IGNORED),
            lambda: torch.autograd.grad(loss, leaf, retain_graph=True)[0],  # type: ignore[arg-type]
            2 * read,
        )
    if shape.kernel != "top_k_backward":
        return Problem(
            lambda: ops.top_k_forward.default(logits, shape.k, shape.renormalize)[0],
            lambda: naive_softmax_top_k(logits, shape.k, renormalize=shape.renormalize)[0],
            read + shape.rows * shape.k * (8 + logits.element_size()),
        )
    # No two alike in a row, as whole numbers up to 256 are in bf16: among equals eager may choose others.
    logits = logits.argsort(dim=-1).to(DTYPE) / 32
    _, indices, kept = ops.top_k_forward.default(logits, shape.k, shape.renormalize)
    leaf = logits.detach().requires_grad_()
    weights, _ = naive_softmax_top_k(leaf, shape.k, renormalize=shape.renormalize)
    sent = torch.ones_like(weights)
    sent[:, 0] = 3.0
    return Problem(
        lambda: ops.top_k_backward.default(logits, indices, kept, sent, shape.renormalize),
        lambda: torch.autograd.grad(weights, leaf, sent, retain_graph=True)[0],
        read if shape.renormalize else 2 * read,
    )


def compile_ahead(job: tuple[Shape, Tile, tuning.Gpu]) -> str:
    """Compile one candidate into Triton's cache; the reason where it cannot be."""
    shape, tile, gpu = job
    try:
        with compiling_for(gpu), forced(shape.kernel, tile):
            problem(shape, "meta").ours()
    except Exception as error:  # any refusal or crash disqualifies the candidate, and is printed
        return f"{type(error).__name__}: {str(error)[:80]}"
    return ""


def timed_ms(run: Callable[[], Any], flush: torch.Tensor) -> float:
    """One call between two GPU events, L2 full of something else."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    torch.cuda._sleep(HELD_CYCLES)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def tune(shape: Shape, found: list[Tile], rounds: int, flush: torch.Tensor) -> None:
    """Print the times of the tiles, best first, with the table's own, and eager's time over theirs."""
    torch.manual_seed(0)
    p = problem(shape, "cuda")
    expected = p.eager().float()

    def ours(tile: Tile) -> Callable[[], Any]:
        def run() -> Any:
            with forced(shape.kernel, tile):
                return p.ours()

        return run

    calls: dict[Tile | None, Callable[[], Any]] = {None: p.eager, **{tile: ours(tile) for tile in found}}
    for tile in list(found):
        error = ((calls[tile]().float() - expected).norm() / expected.norm()).item()
        if not error < 0.02:
            print(f"   {tuple(tile)} is wrong: {error:.3g}")
            del calls[tile]
    times: dict[Tile | None, list[float]] = {tile: [] for tile in calls}
    for _ in range(rounds):
        for tile, run in calls.items():
            times[tile].append(timed_ms(run, flush))
    median = {tile: statistics.median(ms) for tile, ms in times.items()}
    eager_ms = median.pop(None)
    what = f"k {shape.k}{' renormalised' * shape.renormalize}" if shape.k else ""
    print(
        f"{shape.kernel} {shape.rows} x {shape.classes} {what}: eager {eager_ms * 1000:.1f} us, "
        f"{p.moved_bytes / eager_ms / 1e6:.0f} GB/s"
    )
    ranked = sorted((tile for tile in median if tile is not None), key=lambda tile: median[tile])
    for place, tile in enumerate(ranked):
        if place < SHOWN or tile == found[0]:
            print(
                f"   {tuple(tile)!s:18} {median[tile] * 1000:8.1f} us  "
                f"{p.moved_bytes / median[tile] / 1e6:6.0f} GB/s  {eager_ms / median[tile]:6.2f} x eager"
                f"{'  <- the table' * (tile == found[0])}",
                flush=True,
            )


def main() -> None:
    """Tune every shape, until the seconds run out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--only", default=",".join(tiles.KERNELS))
    options = parser.parse_args()
    start = time.monotonic()
    gpu = tuning.gpu(torch.device("cuda", 0))
    assert gpu is not None
    shapes = [shape for shape in SHAPES if shape.kernel in options.only.split(",")]
    jobs = [(shape, tile, gpu) for shape in shapes for tile in candidates(shape)]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        reasons = dict(zip(jobs, pool.map(compile_ahead, jobs, chunksize=4), strict=True))
    refused = {(*job[:2],): reason for job, reason in reasons.items() if reason}
    print(
        f"{len(jobs)} candidates compiled in {time.monotonic() - start:.0f} s; refused: {refused or 'none'}",
        flush=True,
    )
    flush = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    for shape in shapes:
        if time.monotonic() - start > options.seconds:
            sys.exit(f"stopped after {options.seconds:.0f} s, before {shape}")
        tune(
            shape,
            [tile for tile in candidates(shape) if not reasons[shape, tile, gpu]],
            options.rounds,
            flush,
        )
        torch.cuda.empty_cache()
    print(f"done in {time.monotonic() - start:.0f} s; {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    main()
