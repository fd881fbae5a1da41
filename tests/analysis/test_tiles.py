"""Tile grids: the best tile, what the default costs, and why a tile could not run."""

from __future__ import annotations

import dataclasses

import pytest
from synthetic import failed_measurement, synthetic_case, synthetic_run

from profiling.analysis.tiles import tile_grids
from profiling.store import frame

TILES = ((64, 64), (128, 64), (128, 128), (256, 256))


def test_a_grid_for_each_shape_and_n() -> None:
    """Axes are the requested tiles, ascending; the law's best tile is found, others are relative to it."""
    run = synthetic_run(
        seq_lens=(4096, 16384), directions=("fwd", "bwd"), tiles=TILES, round_noise=1e-4, process_noise=0.0
    )
    grids = tile_grids(frame(run))
    assert [(g.slice.direction, g.seq_len) for g in grids] == [
        ("fwd", 4096),
        ("fwd", 16384),
        ("bwd", 4096),
        ("bwd", 16384),
    ]
    for grid in grids:
        assert grid.block_m == (64, 128, 256)
        assert grid.block_n == (64, 128, 256)
        assert grid.best == grid.default == (128, 64)
        assert grid.relative[1][0] == 1.0
        assert grid.default_relative == pytest.approx(1.0, abs=0.01)
        assert 1.0 < grid.relative[0][0] < 1.2
        assert grid.latency_ms[0][1] is None
        assert grid.relative[0][1] is None


def test_what_could_not_run_says_why() -> None:
    """An infeasible tile has its reason; a tile never asked for is neither there nor infeasible."""
    (grid,) = tile_grids(frame(synthetic_run(seq_lens=(1024,), tiles=TILES)))
    assert list(grid.infeasible) == [(256, 256)]
    assert grid.infeasible[256, 256].startswith("unsupported: the tile needs 294912 bytes")
    assert (64, 128) not in grid.infeasible


def test_a_grid_in_which_nothing_ran_is_still_a_grid() -> None:
    """All tiles out of memory: no best, no ratio, every reason."""
    run = synthetic_run(seq_lens=())
    base = synthetic_case("flash", 64)
    cases = [base.model_copy(update={"tile_m": m, "tile_n": n}) for m, n in TILES]
    failed = tuple(failed_measurement(case, "timeout", "") for case in cases)
    (grid,) = tile_grids(frame(dataclasses.replace(run, measurements=failed)))
    assert grid.best is None
    assert grid.default is None
    assert grid.default_relative is None
    assert set(grid.infeasible.values()) == {"timeout"}
    assert all(cell is None for line in grid.relative for cell in line)


def test_without_requested_tiles_there_is_no_grid() -> None:
    """A plain sweep, another backend, another clock, an empty table."""
    run = synthetic_run(seq_lens=(64,))
    assert tile_grids(frame(run)) == []
    tiled = frame(synthetic_run(seq_lens=(64,), tiles=TILES))
    assert tile_grids(tiled, backend="tiled") == []
    assert tile_grids(tiled, clock="graph") == []
    assert tile_grids(frame([])) == []


def test_a_sweep_without_the_default_row_has_no_default() -> None:
    """The default is what ran without a requested tile: it is not guessed."""
    table = frame(synthetic_run(seq_lens=(1024,), tiles=TILES))
    (grid,) = tile_grids(table[table["tile_m"].notna()])
    assert grid.best == (128, 64)
    assert grid.default is None
