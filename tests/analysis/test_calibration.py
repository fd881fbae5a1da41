"""Calibration: of intervals that claim 95 %, how many hold the truth, which is known here?

The curves are `tests/simulated.py`'s; `tests/benchmarks/calibrate_crossovers.py` does it for many designs.
"""

from __future__ import annotations

import numpy as np
import pytest
from simulated import OCTAVES, SHAPES, Design, coverage, curve, measured, simulate, tables

from profiling.analysis.crossover import crossovers

DEVICE = {"round_noise": 0.006, "process_noise": 0.003}  # as h200-standard shows on the device clock
WALL = {"round_noise": 0.25, "process_noise": 0.08, "falling": True}


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """800 curves of all shapes, 3 processes of 5 rounds, noise as on the device clock: 95 % give or take."""
    outcomes = simulate(Design(3, 5, **DEVICE), 800, seed=3)
    given = [each for each in outcomes if each.found.interval is not None]
    assert len(given) > 0.97 * len(outcomes)
    assert 0.925 <= coverage(outcomes) <= 0.975  # far from it: 90 to 99 % would already be a fault
    assert abs(np.mean([each.error for each in given])) < 0.02
    assert all(each.found.calibrated for each in given)


def test_the_interval_follows_the_noise() -> None:
    """Where noise is all there is (sums of power laws), more processes and less noise make it narrower."""
    wide, more, less = (
        np.median(
            [x.width for x in simulate(Design(processes, 5, 0.03 * part, 0.02 * part), 60, 4, ("sum",))]
        )
        for processes, part in ((3, 1.0), (6, 1.0), (3, 0.25))
    )
    # t with 5 degrees of freedom by the root of 6 is 0.42 of t with 2 by the root of 3
    assert 0.3 < more / wide < 0.6
    assert 0.15 < less / wide < 0.4


def test_the_truth_lies_where_the_curves_cross() -> None:
    """Each shape is zero at its own truth, inside the grid, and changes sign there once."""
    rng = np.random.default_rng(0)
    x = np.linspace(6, 14, 2000)
    for shape in (*SHAPES, "jump"):
        for _ in range(50):
            law, at = curve(shape, rng)
            assert law(np.array([at]))[0] == pytest.approx(0, abs=1e-9)
            y = law(x)
            assert np.all((y > 0) == (x > at))
            assert y[0] < 0 < y[-1]


def test_the_noise_is_the_design_s() -> None:
    """Of log-ratios: a round's deviation, and between the medians of processes what the design says."""
    design = Design(4, 200, 0.05, 0.02)
    rng = np.random.default_rng(0)
    ms = measured([lambda x: 0 * x] * 40, design, rng)
    ratio = np.log(ms[:, :, 0]) - np.log(ms[:, :, 1])  # [curve, N, process, round]
    assert ratio.std(axis=-1).mean() == pytest.approx(0.05, rel=0.05)
    assert np.median(ratio, axis=-1).std() == pytest.approx(0.02, rel=0.1)
    rows, samples = tables(ms[:2], design)
    assert len(rows) == 2 * len(OCTAVES) * 2
    assert len(samples) == len(rows) * 4 * 200
    assert [x.processes for x in crossovers(rows, samples)] == [4, 4]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("processes", "rounds", "noise"), [(3, 3, DEVICE), (5, 5, DEVICE), (6, 10, DEVICE), (5, 5, WALL)]
)
def test_the_interval_is_calibrated(processes: int, rounds: int, noise: dict[str, float]) -> None:
    """2000 curves a design: the 95 % interval covers the truth 93 to 97 % of the time."""
    outcomes = simulate(Design(processes, rounds, **noise), 2000, seed=2)
    print(f"{processes} x {rounds}, {noise}: covered {coverage(outcomes):.4f}")
    assert 0.93 <= coverage(outcomes) <= 0.97
