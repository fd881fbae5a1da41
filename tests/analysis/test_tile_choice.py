"""The choice of a tile: how sure the best is, what other picks cost, what a model would have taken."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from synthetic import LAWS, failed_measurement, synthetic_case, synthetic_environment, synthetic_run

from profiling.analysis.curves import cases
from profiling.analysis.tile_choice import TileChoice, price, tile_choices
from profiling.analysis.tile_pick import picks
from profiling.analysis.tiles import tile_rows
from profiling.case import Case
from profiling.devices import find_device
from profiling.model.costs import tile_amounts
from profiling.model.tile_limits import tile_limits
from profiling.paths import DATA_DIR
from profiling.records import Run
from profiling.store import frame, load_run, samples_frame

TILES = ((64, 64), (128, 64), (128, 128), (256, 256))
H200 = find_device("H200")


def choices(run: Run, **options: Any) -> list[TileChoice]:
    """Of a run's own samples."""
    return tile_choices(frame(run), samples_frame(run), **options)


def test_the_price_of_a_tile_is_its_law() -> None:
    """Without noise a tile costs what the law says: a tenth more per octave off 128 x 64."""
    run = synthetic_run(seq_lens=(16384,), tiles=TILES, round_noise=1e-5, process_noise=0.0)
    (found,) = choices(run)
    assert found.grid.best == (128, 64)
    launch = LAWS["flash"].launch_ms
    pairs = LAWS["flash"].pair_ms * 16 * 16384**2
    expected = (launch + 1.1 * pairs) / (launch + pairs)
    for tile in ((64, 64), (128, 128)):
        one = found.prices[tile]
        assert one.ratio == pytest.approx(expected, rel=1e-4)
        assert one.interval is not None
        assert one.interval[0] <= one.ratio <= one.interval[1]
        assert not one.as_good
    assert found.prices[128, 64] == (1.0, None)
    assert (256, 256) not in found.prices
    assert found.best_share == 1.0
    assert found.default is not None
    assert found.default.ratio == pytest.approx(1.0, rel=1e-4)


def test_tiles_within_the_noise_are_rivals() -> None:
    """Tiles 10 % apart cannot be told apart through noise of 30 %, and the best is then not sure."""
    run = synthetic_run(seq_lens=(16384,), tiles=TILES, round_noise=0.3, process_noise=0.3)
    (found,) = choices(run)
    assert found.grid.best is not None
    assert found.rivals
    assert found.grid.best not in found.rivals
    assert found.best_share is not None
    assert found.best_share < 0.95


@pytest.mark.parametrize(
    ("processes", "rounds", "process_noise"),
    [(1, 3, 0.0), (1, 6, 0.0), (2, 5, 0.005), (3, 3, 0.005), (5, 5, 0.005)],
)
def test_the_interval_covers_the_law(processes: int, rounds: int, process_noise: float) -> None:
    """Of 1000 simulated pairs of tiles, 10 % apart, the 95 % interval holds that in 92 to 99 %."""
    rng = np.random.default_rng(processes)
    held = 0
    for _ in range(1000):
        shift = rng.normal(0.0, process_noise, (2, processes, 1))
        ms = shift + np.median(rng.normal(0.0, 0.01, (2, processes, rounds, 3)), axis=-1)
        own, best = (
            {(p, r): float(each[p, r]) for p in range(processes) for r in range(rounds)} for each in ms
        )
        own = {at: value + math.log(1.1) for at, value in own.items()}
        interval = price(own, best, ratio=math.nan, rng=rng).interval
        assert interval is not None
        held += interval[0] <= 1.1 <= interval[1]
    assert 920 <= held <= 990


def test_rounds_that_only_one_tile_has_pair_with_nothing() -> None:
    """The best was visited three times, the tile once more and once less; one common round is no interval."""
    best = {(0, 0): 0.0, (0, 1): 0.0, (0, 2): 0.0}
    rng = np.random.default_rng(0)
    found = price({(0, 1): 0.1, (0, 2): 0.1, (0, 3): 9.0}, best, ratio=5.0, rng=rng)
    assert found.ratio == pytest.approx(math.exp(0.1))
    assert price({(0, 2): 0.1, (1, 2): 0.1}, best, ratio=5.0, rng=rng) == (5.0, None)
    assert price({}, best, ratio=5.0, rng=rng) == (5.0, None)


def test_few_processes_are_said_to_be_few() -> None:
    """One process has intervals from its rounds, which are not calibrated; three are enough."""
    axes: dict[str, Any] = {"seq_lens": (1024,), "tiles": TILES}
    (one,), (three,) = choices(synthetic_run(processes=1, **axes)), choices(synthetic_run(**axes))
    assert (one.processes, one.calibrated) == (1, False)
    assert (three.processes, three.calibrated) == (3, True)
    assert one.prices[64, 64].interval is not None


def test_without_samples_there_is_a_ratio_and_no_interval() -> None:
    """Summaries give the ratio of medians; nothing is invented beside it."""
    run = synthetic_run(seq_lens=(4096,), tiles=TILES, keep_samples=False)
    (found,) = choices(run)
    assert found.best_share is None
    assert found.processes == 0
    for tile, one in found.prices.items():
        row, column = found.grid.block_m.index(tile[0]), found.grid.block_n.index(tile[1])
        assert one == (found.grid.relative[row][column], None)


def test_a_shape_on_which_nothing_ran_has_limits_and_no_prices() -> None:
    """Every tile failed: no best and no price, but what each would have needed."""
    run = synthetic_run(seq_lens=())
    base = synthetic_case("flash", 64)
    failed = tuple(
        failed_measurement(base.model_copy(update={"tile_m": m, "tile_n": n}), "timeout") for m, n in TILES
    )
    (found,) = choices(dataclasses.replace(run, measurements=failed))
    assert found.grid.best is None
    assert found.prices == {}
    assert found.default is None
    assert found.best_share is None
    assert set(found.limits) == set(TILES)
    assert found.picked_price is None


def test_without_tiles_there_is_no_choice() -> None:
    """A plain sweep and an empty table have none."""
    assert choices(synthetic_run(seq_lens=(64,))) == []
    assert tile_choices(frame([]), samples_frame([])) == []


def test_a_cpu_has_no_limits_and_no_pick() -> None:
    """Of a device that is not in the catalogue no share is known, and the model says nothing."""
    run = synthetic_run(
        backends=("tiled",),
        seq_lens=(256, 512, 1024),
        tiles=TILES,
        environment=synthetic_environment("Some CPU", device_kind="cpu"),
    )
    found = choices(run, backend="tiled", clock="wall")
    assert len(found) == 3
    assert all(one.picked is None for one in found)
    assert all(each.waves is None for one in found for each in one.limits.values())


def by_law(run: Run, rates: dict[str, float]) -> Any:
    """The run's table, its latencies replaced by what these rates make of each tile."""
    table = frame(run)
    ms = []
    for m in run.measurements:
        known = sum(rates[one.rate] * one.amount for one in tile_amounts(m.case, H200))
        ms += [known or np.nan] * len(m.clocks)
    return table[table["status"] == "ok"].assign(latency_p50_ms=ms)


@pytest.mark.parametrize("head_dims", [(64, 128, 256), (64,)])
def test_the_model_finds_the_best_of_its_own_laws(head_dims: tuple[int, ...]) -> None:
    """Times made of rates: fitted to other head dims, or other N, the model picks the best tile itself."""
    rates = {"launch": 0.01, "product": 0.001, "softmax": 0.003, "step": 0.1, "cache": 0.1}
    run = synthetic_run(
        backends=("flash",),
        seq_lens=(1024, 2048, 4096),
        head_dims=head_dims,
        directions=("fwd", "bwd"),
        clocks=("device",),
        tiles=tuple((m, n) for m in (32, 64, 128) for n in (32, 64, 128)),
    )
    table = by_law(run, rates)
    shapes = tile_rows(table)
    found = picks(shapes)
    words = "other head dims" if len(head_dims) > 1 else "other shapes"
    assert len(found) == 2 * 3 * len(head_dims)
    for shape, pick in zip(shapes, found, strict=True):
        assert pick is not None
        assert pick.fitted_to == words
        assert pick.error == pytest.approx(0.0, abs=1e-3)
        asked = shape.rows[shape.rows["tile_m"].notna()]
        ms = [
            float(one)
            for case, one in zip(cases(asked), asked["latency_p50_ms"], strict=True)
            if tile_limits(case, case.tile_m or 0, case.tile_n or 0, H200).fits
        ]
        assert pick.est_latency_ms == pytest.approx(min(ms), rel=1e-3)


def test_the_model_picks_no_tile_that_cannot_fit() -> None:
    """At d = 256 the pick stays within shared memory and registers, though larger tiles were asked for."""
    run = load_run(DATA_DIR / "samples" / "h200-tiles.jsonl")
    for one in choices(run):
        assert one.picked is not None
        assert one.limits[one.picked.tile].fits
        assert one.picked.tile in one.limits


def test_one_shape_alone_has_no_pick() -> None:
    """A model fitted to the tiles that it is to choose from would prove nothing."""
    (found,) = choices(synthetic_run(seq_lens=(4096,), tiles=TILES))
    assert found.picked is None
    assert found.picked_price is None


def test_the_committed_sweep() -> None:
    """The figures that the texts quote: best tiles, the default's price and the model's on `h200-tiles`."""
    found = {
        (c.grid.slice.direction, c.grid.slice.head_dim, c.grid.seq_len): c
        for c in choices(load_run(DATA_DIR / "samples" / "h200-tiles.jsonl"), backend="flash_portable")
    }
    assert len(found) == 12
    assert found["fwd", 128, 4096].grid.best == (256, 64)
    assert found["fwd", 128, 4096].rivals == ((128, 128),)
    defaults = [c.default.ratio for c in found.values() if c.default is not None]
    assert len(defaults) == 12
    assert max(defaults) == pytest.approx(1.072, abs=0.001)
    costs = [c.picked_price.ratio for c in found.values() if c.picked_price is not None]
    assert len(costs) == 12
    assert float(np.median(costs)) == pytest.approx(1.53, abs=0.01)
    assert max(costs) == pytest.approx(2.72, abs=0.01)
    assert all(math.isfinite(c.picked.error or 0.0) for c in found.values() if c.picked is not None)


def test_a_tile_that_ran_beyond_the_formula_is_named() -> None:
    """At d = 256, 128 x 256 ran, though Q, K and V at once would not fit: K and V can take turns."""
    found = choices(load_run(DATA_DIR / "samples" / "h200-tiles.jsonl"), backend="flash_portable")
    beyond = {tile for c in found for tile in c.ran_beyond}
    assert (128, 256) in beyond
    assert all(c.grid.slice.head_dim == 256 for c in found if c.ran_beyond)


def test_a_case_of_its_own_is_kept_apart() -> None:
    """Two runs in one table: samples and fits of one never reach the other."""
    axes: dict[str, Any] = {"seq_lens": (4096,), "tiles": TILES, "clocks": ("device",)}
    slow = {"flash": LAWS["flash"]._replace(pair_ms=50 * LAWS["flash"].pair_ms)}
    runs = [synthetic_run(run_id="a", backends=("flash",), **axes)]
    runs.append(synthetic_run(run_id="b", backends=("flash",), laws=slow, **axes))
    together = tile_choices(frame(runs), samples_frame(runs))
    alone = [choices(run)[0] for run in runs]
    assert [c.prices for c in together] == [c.prices for c in alone]
    assert isinstance(together[0].grid.slice.case("flash", 64), Case)
