"""The choice of a tile on one shape: how sure the best is, how near the limits, and what other picks cost.

Tiles of a shape are measured in turns, so their rounds are paired: what a tile costs is the ratio of its
latency to the best tile's in the same round. Its interval is Student's t on what processes or, with one or
two of them, rounds show (`resample.noise`); on simulated rounds of 1 to 5 processes it holds the true ratio
of two given tiles in 93 to 98 % of cases (`tests/analysis/test_tile_choice.py`). Which tile is the fastest of
many was decided by these very samples, so how often a bootstrap replicate agrees is told beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiling.analysis.curves import cases
from profiling.analysis.pairing import blocks
from profiling.analysis.resample import MIN_PROCESSES, noise, replicates
from profiling.analysis.student import student_t
from profiling.analysis.tile_pick import Pick, picks
from profiling.analysis.tiles import Tile, TileGrid, TileRows, is_asked, tile_grids, tile_rows
from profiling.case import KEY_FIELDS
from profiling.devices import known_device
from profiling.model.tile_limits import TileLimits, tile_limits

REPLICATES = 1000
_CASE = (*KEY_FIELDS, "run_id")
OfOne = Mapping[tuple[int, int], float]  # by (process, round): log of the median ms
Rounds = dict[int, dict[tuple[int, int], float]]  # by row


class Price(NamedTuple):
    """A tile's latency over the best tile's, and the 95 % interval of that where samples allow one."""

    ratio: float
    interval: tuple[float, float] | None

    @property
    def as_good(self) -> bool:
        """Whether the samples cannot tell it from the best."""
        return self.ratio <= 1.0 if self.interval is None else self.interval[0] <= 1.0


class TileChoice(NamedTuple):
    """One shape and N.

    Attributes:
        grid: the tiles asked for, with their medians; `grid.best` is the fastest by median.
        prices: what each tile that ran costs against the best; the best itself is 1 without interval.
        best_share: of the bootstrap replicates, how many have the same best; None without samples.
        default: what the backend's own choice costs; None where it was not measured. Below 1 it beats every
            tile asked for: its schedule (warps, stages) is its own.
        limits: of each tile asked for, by formula.
        picked: what the latency model would have taken.
        processes: how many an interval rests on, the fewest of any tile; 0 without samples.
    """

    grid: TileGrid
    prices: dict[Tile, Price]
    best_share: float | None
    default: Price | None
    limits: dict[Tile, TileLimits]
    picked: Pick | None
    processes: int

    @property
    def picked_price(self) -> Price | None:
        """What the model's pick costs; None where it picked nothing, or a tile that did not run."""
        return None if self.picked is None else self.prices.get(self.picked.tile)

    @property
    def rivals(self) -> tuple[Tile, ...]:
        """Other tiles that the samples cannot tell from the best, the fastest first."""
        near = [tile for tile, price in self.prices.items() if price.as_good and tile != self.grid.best]
        return tuple(sorted(near, key=lambda tile: self.prices[tile].ratio))

    @property
    def calibrated(self) -> bool:
        """Whether there were processes enough to know their spread."""
        return self.processes >= MIN_PROCESSES

    @property
    def ran_beyond(self) -> tuple[Tile, ...]:
        """Tiles that ran although the formula says that their shared memory exceeds a block's."""
        return tuple(tile for tile in self.prices if (self.limits[tile].sram_share or 0.0) > 1.0)


def tile_choices(
    frame: pd.DataFrame,
    samples: pd.DataFrame,
    *,
    backend: str = "flash",
    clock: str = "device",
    seed: int = 0,
) -> list[TileChoice]:
    """The choice on each shape and N for which tiles were requested, in the order of `tile_grids`.

    Args:
        frame: the comparison table.
        samples: as `store.samples_frame`; without them ratios have no interval.
        backend: `flash` or `tiled`.
        clock: whose latencies are compared.
        seed: of the bootstrap.
    """
    shapes = tile_rows(frame, backend=backend, clock=clock)
    grids = tile_grids(frame, backend=backend, clock=clock)
    rounds = _rounds(samples, shapes, clock)
    found = []
    for grid, shape, pick in zip(grids, shapes, picks(shapes), strict=True):
        found.append(_choice(grid, shape, rounds, pick, np.random.default_rng(seed)))
    return found


def _choice(
    grid: TileGrid, shape: TileRows, rounds: Rounds, pick: Pick | None, rng: np.random.Generator
) -> TileChoice:
    ran = shape.rows[(shape.rows["status"] == "ok") & (shape.rows["latency_p50_ms"] > 0)]
    asked = ran[is_asked(ran)]
    # A tile that was measured twice counts as `tile_grids` counts it: the last row holds.
    number: dict[Tile, int] = dict(zip(_tiles(asked), asked.index.tolist(), strict=True))
    free = ran.drop(index=asked.index).index.tolist()
    prices: dict[Tile, Price] = {}
    default, share = None, None
    if grid.best is not None:
        ms = dict(zip(ran.index.tolist(), ran["latency_p50_ms"].astype(float).tolist(), strict=True))
        best = number[grid.best]

        def priced(row: int) -> Price:
            return price(rounds.get(row, {}), rounds.get(best, {}), ratio=ms[row] / ms[best], rng=rng)

        for tile, row in number.items():
            prices[tile] = Price(1.0, None) if row == best else priced(row)
        if free:
            default = priced(free[-1])
        share = _share(list(number.values()), best, rounds, rng)
    device = known_device(grid.slice.device_name)
    wanted = shape.rows[is_asked(shape.rows)]
    limits = {
        tile: tile_limits(case, *tile, device)
        for tile, case in zip(_tiles(wanted), cases(wanted), strict=True)
    }
    held = [len({process for process, _ in rounds.get(row, {})}) for row in number.values()]
    return TileChoice(grid, prices, share, default, limits, pick, min(held, default=0))


def _tiles(rows: pd.DataFrame) -> list[Tile]:
    return list(zip(rows["tile_m"].astype(int).tolist(), rows["tile_n"].astype(int).tolist(), strict=True))


def _rounds(samples: pd.DataFrame, shapes: list[TileRows], clock: str) -> Rounds:
    """The rounds of every row of the shapes that has samples."""
    samples = samples[(samples["clock"] == clock) & (samples["ms"] > 0)]
    if samples.empty or not shapes:
        return {}
    block = blocks(samples, _CASE)
    _, first = np.unique(block, return_index=True)
    heads = samples[list(_CASE)].iloc[first].assign(block=np.arange(len(first)))
    rows = pd.concat([shape.rows[list(_CASE)].assign(row=shape.rows.index) for shape in shapes])
    owners = heads.merge(rows, on=list(_CASE), how="inner").drop_duplicates("block", keep="last")
    row_of = dict(zip(owners["block"].tolist(), owners["row"].tolist(), strict=True))
    raw = pd.DataFrame(
        {
            "row": pd.Series(block).map(row_of).to_numpy(dtype=np.float64),
            "process": samples["process"].to_numpy(dtype=np.int64),
            "round": samples["round"].to_numpy(dtype=np.int64),
            "ms": samples["ms"].to_numpy(dtype=np.float64),
        }
    ).dropna()
    medians = raw.groupby(["row", "process", "round"])["ms"].median()
    out: Rounds = {}
    table = medians.reset_index()
    for row, process, number, ms in table.itertuples(index=False, name=None):
        out.setdefault(int(row), {})[int(process), int(number)] = math.log(ms)
    return out


def _matrix(values: OfOne) -> np.ndarray:
    """[processes, rounds], NaN where a process has fewer."""
    by_process: dict[int, list[float]] = {}
    for (process, _), value in sorted(values.items()):
        by_process.setdefault(process, []).append(value)
    most = max(map(len, by_process.values()))
    return np.array([own + [math.nan] * (most - len(own)) for own in by_process.values()])


def price(own: OfOne, best: OfOne, *, ratio: float, rng: np.random.Generator) -> Price:
    """A tile's latency over the best's: the ratio of paired rounds, with its interval.

    Args:
        own: by (process, round), the log of the tile's median ms.
        best: the same of the best tile.
        ratio: that of the medians over everything, taken where fewer than two rounds have both.
        rng: of the bootstrap that says how far medians of few rounds scatter.
    """
    paired = {at: own[at] - best[at] for at in own.keys() & best.keys()}
    if len(paired) < 2:
        return Price(ratio, None)
    spread = noise([_matrix(paired)], rng)
    middle = float(spread.mean[0])
    half = student_t(spread.degrees) * math.sqrt(float(spread.variances[0]))
    return Price(math.exp(middle), (math.exp(middle - half), math.exp(middle + half)))


def _share(rows: list[int], best: int, rounds: Rounds, rng: np.random.Generator) -> float | None:
    """Of the bootstrap replicates of all tiles, the share in which `best` is the fastest."""
    known = [row for row in rows if len(rounds.get(row, {})) > 1]
    if len(known) < len(rows):
        return None
    drawn = replicates([_matrix(rounds[row]) for row in known], REPLICATES, rng)
    return float((drawn.argmin(axis=1) == known.index(best)).mean())
