"""Fits the model of DRAM bytes to all hardware counters at hand, beside variants of it.

    python tests/benchmarks/fit_cache.py

prints, for the model of `profiling.model.cache` and for variants of it, the share of the L2 (and the
sharpness) with the least squared error of the logarithms of bytes read, the errors of that fit, and those of
leaving one call out: each call is predicted by the fit to all others. Calls are those of `flash` in
h200-counters and h200-predictions, and the fused forwards of data/counters_h200.csv. Ten seconds; no GPU.
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
            if row.case.backend == "flash" and row.dram_read_bytes and row.block_m and row.block_n:
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


def heads_share(walk: Walk, blocks: int, capacity_bytes: int) -> int:
    """The model before: a share of the next head, generations in the mean, random replacement."""
    count, longest = len(walk.rows) * walk.members, int(walk.rows.max())
    generations = math.ceil(count * walk.streams / blocks)
    again = min(1.0, (generations - 1) / walk.streams / (count - 1)) if count > 1 else 0.0
    between = longest * walk.row_bytes * (1 + min(1.0, blocks / count, walk.streams - 1))
    missed = float(random_replacement(np.array(between), capacity_bytes))
    others = (walk.members * int(walk.rows.sum()) - longest) * walk.row_bytes
    return walk.streams * (longest * walk.row_bytes + round(others * again * missed))


def as_compiled(known: Any, kernel: str, width: int) -> int:
    """Blocks that an SM runs, all in step: three of the forward at d = 64."""
    blocks = {"forward": {64: 3}, "dkdv": {64: 2, 128: 2}, "dq": {64: 2}}
    return known.sm_count * blocks[kernel].get(width, 1)


def one_an_sm(known: Any, _kernel: str, _width: int) -> int:
    """One block an SM, in every kernel."""
    return known.sm_count


MISSED, STREAMED, IN_STEP = (cache, "missed_share"), (traffic, "streamed_bytes"), (traffic, "_in_step")
VARIANTS = (
    Variant("the model, sharpness fitted too", {}, SHARPNESS),
    Variant("random replacement", {MISSED: random_replacement}),
    Variant("sets of 16 ways, least recently used", {MISSED: sixteen_ways}),
    Variant("least recently used, one sharp step", {MISSED: least_recently_used}),
    Variant("without what blocks hold for themselves", {STREAMED: without_own}, SHARPNESS),
    Variant("all blocks of an SM in step, three of the forward at d = 64", {IN_STEP: as_compiled}, SHARPNESS),
    Variant("one block an SM in the backward too", {IN_STEP: one_an_sm}, SHARPNESS),
    Variant("the model before, fitted again", {STREAMED: heads_share, IN_STEP: one_an_sm}),
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
