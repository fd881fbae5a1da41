"""Fits the model of DRAM bytes to all hardware counters at hand, beside variants of it.

    python tests/benchmarks/fit_cache.py

prints, for the model of `profiling.model.cache` and for variants of it, the share of the L2 (and the
sharpness) with the least squared error of the logarithms of bytes read, the errors of that fit, and those of
leaving one call out: each call is predicted by the fit to all others. Calls are those of `flash_portable` in
h200-counters and h200-predictions, and the fused forwards of data/counters_h200.csv. Half a minute; no GPU.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profiling.case import Case
from profiling.devices import Device, find_device
from profiling.model import cache, traffic
from profiling.model.cache import Walk
from profiling.store import load_run

DATA = Path(__file__).resolve().parents[2] / "data"
FRACTIONS = np.arange(0.20, 0.90, 0.01)
SHARPNESS = (8, 12, 16, 20, 24)
OLD_TILE = (128, 64)  # of the kernels of counters_h200.csv, by their names


class Counted(NamedTuple):
    """A call with its tile, and the DRAM bytes that it was seen to read."""

    name: str
    case: Case
    tile: tuple[int, int]
    read_bytes: int


class Variant(NamedTuple):
    """A variant: what it changes in the two modules, and the sharpnesses that it is tried with."""

    name: str
    changes: dict[tuple[Any, str], Any]
    sharpness: tuple[int, ...] = (cache.SHARPNESS,)


def counted() -> list[Counted]:
    """Every counted call of a fused kernel whose tile is known."""
    found = []
    for run in ("h200-counters", "h200-predictions"):
        for row in load_run(DATA / "samples" / f"{run}.jsonl").measurements:
            if row.case.backend == "flash_portable" and row.dram_read_bytes and row.block_m and row.block_n:
                found.append(
                    Counted(row.case.label, row.case, (row.block_m, row.block_n), row.dram_read_bytes)
                )
    with (DATA / "counters_h200.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not row["impl"].startswith(("triton_fwd", "sdpa_cudnn")):
                continue
            n, d, heads = int(row["N"]), int(row["d"]), int(row["H"])
            case = Case(
                backend="flash", dtype="fp16", batch=int(row["B"]), heads=heads, kv_heads=heads,
                seq_len_q=n, seq_len_k=n, head_dim=d, head_dim_v=d,
            )  # fmt: skip
            found.append(Counted(f"{row['impl'][:10]} {case.label}", case, OLD_TILE, int(row["dram_read"])))
    return found


def random_replacement(between_bytes: np.ndarray, capacity_bytes: float) -> np.ndarray:
    """m of m = 1 - exp(-m x): what a cyclic stream of x capacities misses where any line may be evicted."""
    x = between_bytes / capacity_bytes
    missed = np.ones_like(x)
    for _ in range(200):
        missed = 1 - np.exp(-missed * x)
    return np.where(x <= 1, 0.0, missed)


def sixteen_ways(between_bytes: np.ndarray, capacity_bytes: float) -> np.ndarray:
    """A set of 16 ways, least recently used: lost once 16 of the lines between fell into it (Poisson)."""
    mean = 16 * between_bytes / capacity_bytes
    return 1 - np.sum([np.exp(-mean) * mean**i / math.factorial(i) for i in range(16)], axis=0)


def least_recently_used(between_bytes: np.ndarray, capacity_bytes: float) -> np.ndarray:
    """Lost as soon as more than the capacity went by."""
    return (between_bytes > capacity_bytes).astype(float)


def without_own(walk: Walk, blocks: int, capacity_bytes: int) -> int:
    """The model, but what blocks hold for themselves takes no room."""
    return cache.streamed_bytes(walk._replace(own_bytes=0), blocks, capacity_bytes)


class Walking(int):
    """Blocks that walk in step; `running` are all that run at once."""

    running: int


def running(known: Any, kernel: str, width: int, tile: tuple[int, int]) -> int:
    """Blocks that an SM runs, as tests/fa_core/aot.py compiles them for sm_90."""
    if kernel == "forward":
        return {64: 3, 128: 2}.get(width, 1) if max(tile) <= 64 else 1
    return {("dkdv", 64): 2, ("dkdv", 128): 2, ("dq", 64): 2}.get((kernel, width), 1)


def as_compiled(known: Any, *kernel: Any) -> int:
    """All blocks that an SM runs in step."""
    return known.sm_count * running(known, *kernel)


def one_an_sm(known: Any, *_kernel: Any) -> int:
    """One block an SM, in every kernel."""
    return known.sm_count


def as_before(known: Any, kernel: str, width: int, _tile: tuple[int, int]) -> int:
    """The model before: one block of every forward, two of dK/dV, two of dQ at d = 64."""
    return known.sm_count * (2 if kernel == "dkdv" or (kernel == "dq" and width == 64) else 1)


def two_of_dkdv(known: Any, *kernel: Any) -> int:
    """The model, but for two blocks of dK/dV in step at d = 128 too."""
    return 2 * known.sm_count if kernel[0] == "dkdv" else IN_STEP_NOW(known, *kernel)


def by_width(known: Any, *kernel: Any) -> int:
    """All blocks in step at d = 128, one at d = 64; all that run are known."""
    blocks = Walking(one_an_sm(known) if kernel[1] == 64 else as_compiled(known, *kernel))
    blocks.running = as_compiled(known, *kernel)
    return blocks


def held_by_all(walk: Walk, blocks: int, capacity_bytes: int) -> int:
    """The model, but all blocks that run hold what is their own, not only those in step."""
    assert isinstance(blocks, Walking)
    own = round(walk.own_bytes * blocks.running / blocks)
    return cache.streamed_bytes(walk._replace(own_bytes=own), int(blocks), capacity_bytes)


def half_in_step(walk: Walk, blocks: int, capacity_bytes: int) -> int:
    """The mean of one block an SM in step and of all."""
    one = find_device("H200").sm_count
    assert one is not None
    return sum(cache.streamed_bytes(walk, n, capacity_bytes) for n in (one, blocks)) // 2


IN_STEP_NOW = traffic._in_step
MISSED, STREAMED, IN_STEP = (cache, "missed_share"), (traffic, "streamed_bytes"), (traffic, "_in_step")
VARIANTS = (
    Variant("the model, sharpness fitted too", {}, SHARPNESS),
    Variant("random replacement", {MISSED: random_replacement}),
    Variant("sets of 16 ways, least recently used", {MISSED: sixteen_ways}),
    Variant("least recently used, one sharp step", {MISSED: least_recently_used}),
    Variant("without what blocks hold for themselves", {STREAMED: without_own}, SHARPNESS),
    Variant("two blocks of dK/dV in step at d = 128 too", {IN_STEP: two_of_dkdv}, SHARPNESS),
    Variant("one block an SM in step, in every kernel", {IN_STEP: one_an_sm}, SHARPNESS),
    Variant("all blocks that an SM runs in step", {IN_STEP: as_compiled}, SHARPNESS),
    Variant("the mean of these two", {IN_STEP: as_compiled, STREAMED: half_in_step}, SHARPNESS),
    Variant(
        "all in step at d = 128, one at d = 64, room held by all",
        {IN_STEP: by_width, STREAMED: held_by_all},
        SHARPNESS,
    ),
    Variant("the model before: one of every forward, two of dK/dV", {IN_STEP: as_before}, SHARPNESS),
)


@contextmanager
def changed(changes: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """The modules with other attributes; their results are not kept."""
    kept = {where: getattr(*where) for where in changes}
    try:
        for (module, name), value in changes.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in kept.items():
            setattr(module, name, value)
        traffic._forward.cache_clear()
        traffic._backward.cache_clear()


def log_errors(calls: list[Counted], device: Device) -> np.ndarray:
    """ln(modelled / counted) of the bytes that each call reads."""
    out = []
    for call in calls:
        moved = traffic.traffic(call.case, device, block_m=call.tile[0], block_n=call.tile[1]).dram
        assert moved is not None
        out.append(math.log(moved.read / call.read_bytes))
    return np.array(out)


def percent(errors: np.ndarray) -> str:
    """Root mean square and largest, of logarithms, in per cent."""
    return f"{100 * np.sqrt((errors**2).mean()):5.1f} {100 * (math.exp(np.abs(errors).max()) - 1):6.1f}"


def main(say: Callable[[str], None] = print) -> None:
    """Fit each variant, and print."""
    calls, h200 = counted(), find_device("H200")
    say(f"{len(calls)} calls; errors in %: root mean square, largest\n")
    say(f"{'':62} share sharpness  |  fitted      |  left out")
    for variant in VARIANTS:
        tried, rows = [], []
        for sharpness in variant.sharpness:
            with changed(variant.changes | {(cache, "SHARPNESS"): sharpness}):
                for fraction in FRACTIONS:
                    device = h200.model_copy(update={"l2_usable_fraction": float(fraction)})
                    tried.append((fraction, sharpness))
                    rows.append(log_errors(calls, device))
        errors = np.array(rows)
        squares = errors**2
        best = int(squares.sum(axis=1).argmin())
        others = [int((squares.sum(axis=1) - squares[:, i]).argmin()) for i in range(len(calls))]
        out = np.array([errors[where, i] for i, where in enumerate(others)])
        worst = calls[int(np.abs(out).argmax())].name
        say(
            f"{variant.name:62} {tried[best][0]:5.2f} {tried[best][1]:9d}  | {percent(errors[best])} |"
            f" {percent(out)}  {worst}"
        )


if __name__ == "__main__":
    main()
