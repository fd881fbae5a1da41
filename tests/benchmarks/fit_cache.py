"""Fits the model of DRAM bytes to all hardware counters at hand, beside variants of it.

    python tests/benchmarks/fit_cache.py

prints, for the model of `profiling.model.cache` and for variants of it, the share of the L2 (and the
sharpness) with the least squared error of the logarithms of bytes read, the errors of that fit, and those of
leaving one call out: each call is predicted by the fit to all others. Then the same of the best of all 32
ways to let one block or all that an SM runs walk in step, kernel by kernel.

Calls are those of `flash_portable` in h200-counters and h200-predictions, and the fused forwards of
data/counters_h200.csv. What was counted several times (data/counts_h200.csv) enters with the median. Forwards
that run several blocks an SM and whose K and V of a head do not fit (`is_lost`) are in no fit but the one by
all calls, because they do not repeat: column "lost" has modelled / counted of each. Half a minute; no GPU.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
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
FRACTIONS = np.arange(0.38, 0.70, 0.01)
SHARPNESS = (8, 12, 16, 20, 24)
OLD_TILE = (128, 64)  # of the kernels of counters_h200.csv, by their names


class Counted(NamedTuple):
    """A call with its tile, and the DRAM bytes that it was seen to read: of several counts the median."""

    name: str
    case: Case
    tile: tuple[int, int]
    read_bytes: float


class Variant(NamedTuple):
    """A variant: what it changes in the two modules, and the sharpnesses that it is tried with."""

    name: str
    changes: dict[tuple[Any, str], Any]
    sharpness: tuple[int, ...] = (cache.SHARPNESS,)


def counts() -> dict[str, list[int]]:
    """DRAM bytes read by each call of h200-predictions, by label, as often as it was counted."""
    found: dict[str, list[int]] = {}
    with (DATA / "counts_h200.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["case"], []).append(int(row["dram_read_bytes"]))
    return found


def counted() -> list[Counted]:
    """Every counted call of a fused kernel whose tile is known."""
    found, again = [], counts()
    for run in ("h200-counters", "h200-predictions"):
        for row in load_run(DATA / "samples" / f"{run}.jsonl").measurements:
            if row.case.backend == "flash_portable" and row.dram_read_bytes and row.block_m and row.block_n:
                name = row.case.label.removeprefix("flash_portable ")
                read = statistics.median(again.get(name, [row.dram_read_bytes]))
                found.append(Counted(name, row.case, (row.block_m, row.block_n), read))
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


def running(kernel: str, width: int, tile: tuple[int, int]) -> int:
    """Blocks that an SM runs, as tests/fa_core/aot.py compiles them for sm_90."""
    if kernel == "forward" and max(tile) > 64:
        return 1
    return SEVERAL.get((kernel, width), 1)


def is_lost(call: Counted, device: Device) -> bool:
    """A forward of which an SM runs several blocks, and of which a head's K and V do not fit the cache."""
    case, until = call.case, traffic.kv_fits_l2_until(device, call.case.head_dim, call.case.dtype)
    assert until is not None
    return case.direction == "fwd" and max(call.tile) <= 64 and case.seq_len_k > until


def as_compiled(known: Any, *kernel: Any) -> int:
    """All blocks that an SM runs in step."""
    return known.sm_count * running(*kernel)


def one_an_sm(known: Any, *_kernel: Any) -> int:
    """One block an SM, in every kernel."""
    return known.sm_count


def as_before(known: Any, kernel: str, width: int, tile: tuple[int, int]) -> int:
    """The model before: one block of every forward, all that an SM runs of the backward's kernels."""
    return known.sm_count * (1 if kernel == "forward" else running(kernel, width, tile))


def chosen(which: frozenset[tuple[str, int]]) -> Callable[..., int]:
    """All blocks in step in these kernels at these widths, one in the others."""
    return lambda known, *kernel: known.sm_count * (running(*kernel) if kernel[:2] in which else 1)


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


# Kernels of which an SM runs several blocks.
SEVERAL: dict[tuple[str, int], int] = {
    ("forward", 64): 3,
    ("forward", 128): 2,
    ("dkdv", 64): 2,
    ("dkdv", 128): 2,
    ("dq", 64): 2,
}
MISSED, STREAMED, IN_STEP = (cache, "missed_share"), (traffic, "streamed_bytes"), (traffic, "_in_step")
VARIANTS = (
    Variant("the model, sharpness fitted too", {}, SHARPNESS),
    Variant("random replacement", {MISSED: random_replacement}),
    Variant("sets of 16 ways, least recently used", {MISSED: sixteen_ways}),
    Variant("least recently used, one sharp step", {MISSED: least_recently_used}),
    Variant("without what blocks hold for themselves", {STREAMED: without_own}, SHARPNESS),
    Variant("one block an SM in step, in every kernel", {IN_STEP: one_an_sm}, SHARPNESS),
    Variant("all blocks that an SM runs in step", {IN_STEP: as_compiled}, SHARPNESS),
    Variant("the mean of these two", {IN_STEP: as_compiled, STREAMED: half_in_step}, SHARPNESS),
    Variant(
        "all in step at d = 128, one at d = 64, room held by all",
        {IN_STEP: by_width, STREAMED: held_by_all},
        SHARPNESS,
    ),
    Variant("the model before: one block of every forward", {IN_STEP: as_before}, SHARPNESS),
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


class Fit(NamedTuple):
    """A variant fitted: share and sharpness, a line of errors, and the squared error that it leaves."""

    line: str
    squares: float


def fit(variant: Variant, calls: list[Counted], device: Device, lost: set[str]) -> Fit:
    """The share and the sharpness with the least squared error over the calls that are not lost."""
    gone = np.array([call.name in lost for call in calls])
    tried, rows = [], []
    for sharpness in variant.sharpness:
        with changed(variant.changes | {(cache, "SHARPNESS"): sharpness}):
            for fraction in FRACTIONS:
                seen = device.model_copy(update={"l2_usable_fraction": float(fraction)})
                tried.append((fraction, sharpness))
                rows.append(log_errors(calls, seen))
    all_errors = np.array(rows)
    errors, squares = all_errors[:, ~gone], all_errors[:, ~gone] ** 2
    best = int(squares.sum(axis=1).argmin())
    others = [int((squares.sum(axis=1) - squares[:, i]).argmin()) for i in range(squares.shape[1])]
    out = np.array([errors[where, i] for i, where in enumerate(others)])
    worst = [call.name for call in calls if call.name not in lost][int(np.abs(out).argmax())]
    ratios = " ".join(f"{x:.2f}" for x in np.exp(all_errors[best, gone]))
    return Fit(
        f"{variant.name:62} {tried[best][0]:5.2f} {tried[best][1]:9d}  | {percent(errors[best])} |"
        f" {percent(out)} | {ratios} | {worst}",
        float(squares[best].sum()),
    )


def main(say: Callable[[str], None] = print) -> None:
    """Fit each variant, and print."""
    calls, h200 = counted(), find_device("H200")
    lost = {call.name for call in calls if is_lost(call, h200)}
    say(f"{len(calls) - len(lost)} calls, without {' and '.join(sorted(lost))}")
    say("errors in %: root mean square, largest\n")
    say(f"{'':62} share sharpness  |  fitted      |  left out    | lost      | worst left out")
    for variant in VARIANTS:
        say(fit(variant, calls, h200, lost).line)
    say(fit(Variant(f"the model, by all {len(calls)} calls", {}, SHARPNESS), calls, h200, set()).line)
    say("\nall blocks that an SM runs in step in ..., one in the others; the best of all ways\n")
    ways = [frozenset(which) for n in range(len(SEVERAL) + 1) for which in itertools.combinations(SEVERAL, n)]
    fits = []
    for which in ways:
        name = ", ".join(f"{kernel} {width}" for kernel, width in sorted(which)) or "none"
        fits.append(fit(Variant(name, {IN_STEP: chosen(which)}, SHARPNESS), calls, h200, lost))
    for found in sorted(fits, key=lambda found: found.squares)[:5]:
        say(found.line)


if __name__ == "__main__":
    main()
