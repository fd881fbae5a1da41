"""The numbers under the intervals: medians, their resampling, and where a curve crosses zero."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from profiling.analysis import resample


def test_the_estimate_is_a_mean_of_medians() -> None:
    """Rounds by their median, processes by their mean, absent rounds passed over."""
    values = np.array([[1.0, 9.0, 2.0], [4.0, 6.0, np.nan]])
    assert resample.estimate(values) == pytest.approx((2.0 + 5.0) / 2)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 8, 21])
def test_order_statistics_replace_drawing_and_sorting(rounds: int) -> None:
    """The shortcut has the law of the median of n draws with replacement (two-sample Kolmogorov-Smirnov)."""
    rng = np.random.default_rng(rounds)
    ordered = np.sort(rng.normal(size=(1, rounds)), axis=1)
    quick = resample._resampled_medians(ordered, np.zeros((20000, 1), dtype=np.int64), rng)[:, 0]
    plain = np.median(ordered[0][rng.integers(0, rounds, (20000, rounds))], axis=1)
    assert stats.ks_2samp(np.round(quick, 9), np.round(plain, 9)).pvalue > 1e-3


@pytest.mark.parametrize("processes", [3, 5, 10])
def test_the_interval_is_as_wide_as_student_s_t(processes: int) -> None:
    """Centred on the estimate; half as wide as t times the standard error of the mean of processes."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (processes, 1)) + rng.normal(0, 0.2, (processes, 7))
    draws = resample.replicates([values], 4000, rng)[:, 0]
    low, high = resample.interval(draws)
    error = np.median(values, axis=1).std(ddof=1) / np.sqrt(processes)
    assert (high - low) / 2 == pytest.approx(error * stats.t.ppf(0.975, processes - 1))
    assert draws.mean() == pytest.approx(resample.estimate(values))
    assert low < resample.estimate(values) < high


def test_processes_are_drawn_together_at_all_points() -> None:
    """What a process has in common along the curve stays common in a replicate."""
    rng = np.random.default_rng(1)
    shift = rng.normal(0, 1, (6, 1))
    points = [shift + rng.normal(0, 0.01, (6, 5)) for _ in range(3)]
    draws = resample.replicates(points, 1000, rng)
    assert np.corrcoef(draws.T).min() > 0.99


def test_no_spread_gives_no_spread() -> None:
    """Identical rounds give identical replicates, and no point gives no column."""
    rng = np.random.default_rng(2)
    assert np.all(resample.replicates([np.full((3, 4), 0.5)], 10, rng) == 0.5)
    assert np.all(resample.replicates([np.full((1, 1), 0.5)], 10, rng) == 0.5)
    assert resample.replicates([], 10, rng).shape == (10, 0)
