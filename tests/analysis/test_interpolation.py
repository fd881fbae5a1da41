"""Where a curve crosses zero, and how far off that may be: noise, and what lies between the points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.interpolate import CubicSpline
from simulated import SHAPES, Curve, curve

from profiling.analysis.interpolation import (
    Noise,
    interpolation_errors,
    weights,
    zero,
    zero_interval,
)

X = np.arange(6.0, 15.0)


def quiet(y: np.ndarray, processes: int = 3) -> Noise:
    """Points without noise."""
    return Noise(y, np.zeros((processes, len(y))), np.zeros(len(y)), processes - 1)


def noisy(values: np.ndarray) -> Noise:
    """Points [processes, points] with the spread they have."""
    processes, mean = len(values), values.mean(axis=0)
    return Noise(mean, values - mean, values.var(axis=0, ddof=1) / processes, processes - 1)


def bracket(y: np.ndarray) -> int:
    """The first point of the only pair of neighbours that differ in sign."""
    (k,) = np.flatnonzero((y[:-1] > 0) != (y[1:] > 0))
    return int(k)


# ---------------------------------------------------------------------------------------------- the zero


def test_the_spline_errs_least_between_octaves() -> None:
    """On random laws launch + c·N², root mean square error of log2 N*: a spline's is a tenth of lines'."""
    rng = np.random.default_rng(0)
    spline, lines = [], []
    for _ in range(400):
        launch, slope, at = rng.uniform(1.3, 3), rng.uniform(0.2, 0.7), rng.uniform(8, 12)
        work = (launch - 1) / (1 - slope) * 4.0 ** (X - at)
        y = np.log((1 + work) / (launch + slope * work))
        k = bracket(y)
        spline.append(zero(X, y, k, k + 1) - at)
        lines.append(X[k] - y[k] / (y[k + 1] - y[k]) - at)
    rms = [float(np.sqrt(np.mean(np.square(errors)))) for errors in (spline, lines)]
    assert rms[0] < np.log2(1.004)
    assert rms[1] > np.log2(1.02)


def test_a_zero_is_the_spline_s() -> None:
    """On wild curves: in the bracket, a root of SciPy's natural spline, and NaN where no signs differ."""
    rng = np.random.default_rng(3)
    x = np.array([6.0, 7.0, 9.0, 10.0, 13.0])
    for _ in range(300):
        y = rng.normal(size=5) * np.array([10, 0.1, 5, 0.01, 100])
        for low, high in ((0, 1), (1, 3), (0, 4)):
            found = zero(x, y, low, high)
            same = bool(np.all(y[low : high + 1] > 0) or np.all(y[low : high + 1] <= 0))
            assert np.isnan(found) == same
            if not same:
                assert x[low] <= found <= x[high]
                assert abs(CubicSpline(x, y, bc_type="natural")(found)) < 1e-3 * np.abs(y).max()
    assert zero(np.array([6.0, 8.0]), np.array([-1.0, 1.0]), 0, 1) == pytest.approx(7.0)


def test_a_spline_is_linear_in_its_points() -> None:
    """The weights give what SciPy's spline through the values gives, and at a point the point itself."""
    rng = np.random.default_rng(0)
    y, at = rng.normal(size=9), rng.uniform(6, 14, 50)
    assert weights(X, at) @ y == pytest.approx(CubicSpline(X, y, bc_type="natural")(at))
    assert weights(X, X) == pytest.approx(np.eye(9))


# ---------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("processes", [3, 5, 12])
def test_on_a_straight_line_the_interval_is_student_s(processes: int) -> None:
    """With nothing between the points but the line, and a shift common to all of them, it is the t interval.

    The curve is x - 10 and a process shifts it: its zero is 10 minus the shift, so the interval is that of
    the mean of the shifts.
    """
    shifts = np.random.default_rng(processes).normal(0, 0.05, processes)
    noise = noisy(X - 10.3 + shifts[:, None])
    k = bracket(noise.mean)
    at = 10.3 - shifts.mean()
    half = stats.t.ppf(0.975, processes - 1) * shifts.std(ddof=1) / np.sqrt(processes)
    found = zero_interval(X, noise, k, k + 1, zero(X, noise.mean, k, k + 1))
    assert (found.low, found.high) == pytest.approx((at - half, at + half), abs=1e-6)
    assert found.noise_share == pytest.approx(1.0)


def test_without_noise_on_a_line_the_interval_is_a_point() -> None:
    """Nothing is uncertain: both ends are the zero."""
    y = X - 10.3
    found = zero_interval(X, quiet(y), 4, 5, zero(X, y, 4, 5))
    assert (found.low, found.high) == pytest.approx((10.3, 10.3), abs=1e-6)


def test_independent_points_have_less_in_common() -> None:
    """Without deviations the variances add up by the squares of the weights, and the degrees are as said."""
    y = X - 10.5
    variances = np.full(9, 0.01**2)
    found = zero_interval(X, Noise(y, None, variances, 4), 4, 5, 10.5)
    half = stats.t.ppf(0.975, 4) * 0.01 * np.sqrt(np.square(weights(X, np.array([10.5]))).sum())
    assert found.high - found.low == pytest.approx(2 * half, rel=0.02)


def test_an_interval_stays_in_its_bracket() -> None:
    """However noisy, and the zero is always in it; with two points, too."""
    rng = np.random.default_rng(5)
    for count in (2, 3, 4, 9):
        x = X[:count]
        for _ in range(50):
            noise = noisy(np.linspace(-1, 1, count) * 0.1 + rng.normal(0, 0.3, (4, count)))
            if noise.mean[0] * noise.mean[-1] > 0:
                continue
            at = zero(x, noise.mean, 0, count - 1)
            found = zero_interval(x, noise, 0, count - 1, at)
            assert x[0] <= found.low <= at <= found.high <= x[-1]
            assert 0 <= found.noise_share <= 1


# -------------------------------------------------------------------------------------- between the points


def test_what_bends_more_is_less_sure() -> None:
    """Without noise: nothing on a line, more at a kink than along a smooth curve, less with half the gaps."""

    def there(x: np.ndarray, law: Curve) -> float:
        """In the gap of the bend: the mean over 40 places."""
        places = np.linspace(9, 11, 40)
        errors = [interpolation_errors(x, quiet(law(x - at)))[np.searchsorted(x, at) - 1] for at in places]
        return float(np.mean(errors))

    def smooth(x: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, x)

    def kink(x: np.ndarray) -> np.ndarray:
        return np.maximum(0, x)

    fine = np.arange(6.0, 14.1, 0.5)
    assert there(X, lambda x: x) < 1e-9
    assert 0 < there(X, smooth) < there(X, kink) / 3
    assert there(fine, smooth) < there(X, smooth) / 4
    assert 0.3 < there(fine, kink) / there(X, kink) < 0.7


def test_noise_is_not_mistaken_for_bends() -> None:
    """Around a straight line the errors found are mostly what noise could not explain: little beside it."""
    rng = np.random.default_rng(1)
    found = [interpolation_errors(X, noisy(X - 10 + rng.normal(0, 0.02, (5, 9)))).mean() for _ in range(300)]
    assert np.median(found) < 0.02


def test_two_points_say_nothing_of_what_is_between() -> None:
    """Half the rise stands for it, so that the interval takes most of the bracket."""
    found = zero_interval(np.array([6.0, 8.0]), quiet(np.array([-1.0, 1.0])), 0, 1, 7.0)
    assert found.low < 6.8 < 7.2 < found.high
    assert found.noise_share == 0.0


@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_is_held_without_noise(shape: str) -> None:
    """Of 400 curves of each shape nine in ten or nearly: 89 % of the sharpest kinks, 95 % over all."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        law, at = curve(shape, rng)
        y = law(X)
        k = bracket(y)
        found = zero_interval(X, quiet(y), k, k + 1, zero(X, y, k, k + 1))
        held += found.low <= at <= found.high
    assert held / 400 > 0.86
