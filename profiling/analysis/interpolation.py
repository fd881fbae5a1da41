"""Where does a measured curve cross zero, given noise and that nothing was measured between the points?

Pure NumPy. The curve is a natural cubic spline through the points in log2 N. Two things keep its zero from
being known:

**Noise.** A spline is linear in its points, so each process has a spline of its own, through the medians of
its rounds, and at any x the splines of P processes are P independent draws, whatever they have in common
along the curve. The zero is bounded as Fieller bounds a ratio (J. R. Stat. Soc. B 16, 1954, 175): by the x at
which their mean is within Student's t, P-1 degrees of freedom, standard errors of zero. That holds for any
slope, and for 3 processes as for 30.

**Interpolation.** How far the spline may be off between two points is read off the points themselves. Each
is left out, and the spline through the others compared with it; how much worse that gets when its neighbours
are left out too tells at which order the error falls with the distance of the points, and with it the error
at the distance they have (the idea of Richardson's extrapolation). What noise adds to these differences is
taken off again.

Both are at 95 % and added in squares. `tests/benchmarks/calibrate_crossovers.py` measures what coverage
results, and holds the log of what was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from profiling.analysis.student import student_t

# So many extrapolated errors hold the spline's own in 95 % of the curves that the calibration draws: sums,
# rounded and sharp maxima of power laws, and steps between plateaus.
INTERPOLATION_FACTOR = 2.6
# At which power of the distance the error may fall: 0 for a jump, 1 for a kink, 4 for a smooth curve.
_LEAST_ORDER, _UNKNOWN_ORDER, _MOST_ORDER = 0.0, 1.0, 4.0
_NODES = 64  # of the search for the interval's ends, in each gap between two points


class Noise(NamedTuple):
    """The points of a curve, and what is known of their noise.

    Attributes:
        mean: [points] log-ratios, means over processes.
        deviations: [processes, points] of each process from the mean; None where their number differs from
            point to point or is too small to know their spread.
        variances: [points] of `mean`, used where `deviations` is None, as if points were independent.
        degrees: of freedom of the variances.
    """

    mean: np.ndarray
    deviations: np.ndarray | None
    variances: np.ndarray
    degrees: int

    def variance(self, operators: np.ndarray) -> np.ndarray:
        """The variances [rows] of linear combinations [rows, points] of the mean."""
        if self.deviations is None:
            return operators**2 @ self.variances
        processes = len(self.deviations)
        return np.square(operators @ self.deviations.T).sum(axis=1) / ((processes - 1) * processes)


class ZeroInterval(NamedTuple):
    """Where the zero is, at 95 %: `low` to `high` in log2 N.

    `noise_share` says how much of the interval's squared width is noise; the rest is interpolation.
    """

    low: float
    high: float
    noise_share: float


class _LeftOut(NamedTuple):
    """What leaving points out does, as linear maps of the values at given x.

    `operators` [points, points]: the value minus the spline through the others, zero where too few remain.
    `gaps` [points]: the distance between the points that remain on either side.
    """

    operators: np.ndarray
    gaps: np.ndarray


def weights(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The natural cubic spline as a linear map: [at, points], with which the values at `x` are summed."""
    return CubicSpline(x, np.eye(len(x)), bc_type="natural")(at)


def zero(x: np.ndarray, y: np.ndarray, low: int, high: int) -> float:
    """Where the spline through (x, y) crosses zero between the points `low` and `high`.

    On laws of the form launch + c·N² at octave steps its N* errs by 0.25 % (root mean square over random
    laws); a monotone cubic errs by 0.7 %, straight lines by 2.8 %. At a kink all three err by some per cent.

    Args:
        x: log2 N of the points, ascending, two or more.
        y: [points] log-ratios.
        low: index of the bracket's first point.
        high: index of its last.

    Returns:
        log2 N*, between the two points; the middle one of several, NaN where no neighbours differ in sign.
    """
    pieces = _coefficients(tuple(x.tolist()))[:, low:high] @ y
    values = y.tolist()
    roots = [
        float(x[k]) + _root(pieces[:, k - low].tolist(), float(x[k + 1] - x[k]))
        for k in range(low, high)
        if (values[k] > 0) != (values[k + 1] > 0)
    ]
    return roots[len(roots) // 2] if roots else float("nan")


@lru_cache(maxsize=256)
def _coefficients(x: tuple[float, ...]) -> np.ndarray:
    """The spline's cubics as a linear map: [power, piece, points], highest power first."""
    return CubicSpline(np.array(x), np.eye(len(x)), bc_type="natural").c


def _root(cubic: Sequence[float], width: float) -> float:
    """A zero in [0, width] of a cubic, highest power first, whose ends differ in sign.

    Ten halvings, then a straight line: in a thousandth of the width a cubic is as good as straight.
    """
    a, b, c, d = cubic

    def at(x: float) -> float:
        return ((a * x + b) * x + c) * x + d

    low, step, rising = 0.0, width, d <= 0
    for _ in range(10):
        step /= 2
        if (at(low + step) > 0) != rising:
            low += step
    left, right = at(low), at(low + step)
    return low + step * min(max(-left / ((right - left) or 1.0), 0.0), 1.0)


def zero_interval(x: np.ndarray, noise: Noise, low: int, high: int, zero: float) -> ZeroInterval:
    """The interval of the curve's zero within a bracket.

    Args:
        x: log2 N of the points, ascending, two or more.
        noise: of the points.
        low: index of the bracket's first point.
        high: index of its last.
        zero: log2 N*, where the spline through the means crosses; the interval holds it.
    """
    gaps = [np.linspace(x[k], x[k + 1], _NODES, endpoint=False) for k in range(low, high)]
    at = np.unique(np.concatenate([*gaps, [x[high], zero]]))
    spline = weights(x, at)
    gap = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    part = (at - x[gap]) / (x[gap + 1] - x[gap])
    off = interpolation_errors(x, noise)[gap] * 4 * part * (1 - part)
    noisy = student_t(noise.degrees) ** 2 * noise.variance(spline)
    beyond = np.abs(spline @ noise.mean) - np.sqrt(noisy + off**2)  # above 0: no zero here
    beyond[at == zero] = np.minimum(beyond[at == zero], 0.0)
    within = np.flatnonzero(beyond <= 0)
    first, last = int(within[0]), int(within[-1])
    both = (noisy + off**2)[[first, last]].sum()
    share = float(noisy[[first, last]].sum() / both) if both > 0 else 1.0
    return ZeroInterval(_edge(at, beyond, first, first - 1), _edge(at, beyond, last, last + 1), share)


def _edge(at: np.ndarray, beyond: np.ndarray, within: int, outside: int) -> float:
    """Where `beyond` rises above zero, between two neighbouring nodes."""
    if not 0 <= outside < len(at):
        return float(at[within])
    part = -beyond[within] / (beyond[outside] - beyond[within])
    return float(at[within] + (at[outside] - at[within]) * part)


def interpolation_errors(x: np.ndarray, noise: Noise) -> np.ndarray:
    """How far the spline may be off (95 %) in the middle of each gap: [points - 1], in log-ratio.

    Towards the points it falls as 4u(1 - u). Of two points none can be left out: half the rise between them
    then stands for what is not known.
    """
    if len(x) < 3:
        return np.abs(np.diff(noise.mean)) / 2
    one, three = _left_out(tuple(x.tolist()), 1), _left_out(tuple(x.tolist()), 2)
    square_one, square_three = _beyond_noise(one.operators, noise), _beyond_noise(three.operators, noise)
    errors = []
    for k in range(len(x) - 1):
        near = [i for i in range(k - 1, k + 3) if 0 < i < len(x) - 1]
        wide = [i for i in near if 1 < i < len(x) - 2]
        order = _UNKNOWN_ORDER
        square, wide_square = _mean(square_one[near]), _mean(square_three[wide])
        if square > 0 and wide_square > 0:
            growth = 0.5 * np.log(wide_square / square)
            order = growth / np.log(three.gaps[wide].mean() / one.gaps[near].mean())
            order = np.clip(order, _LEAST_ORDER, _MOST_ORDER)
        shrunk = ((x[k + 1] - x[k]) / one.gaps[near].mean()) ** order
        errors.append(INTERPOLATION_FACTOR * np.sqrt(square) * shrunk)
    return np.array(errors)


def _mean(squares: np.ndarray) -> float:
    """Their mean, 0 for none: what noise took too much off one is set off against the others."""
    return max(float(squares.mean()), 0.0) if len(squares) else 0.0


def _beyond_noise(operators: np.ndarray, noise: Noise) -> np.ndarray:
    """The squares of linear combinations of the means, without what noise is expected to add."""
    return np.square(operators @ noise.mean) - noise.variance(operators)


@lru_cache(maxsize=256)
def _left_out(x: tuple[float, ...], reach: int) -> _LeftOut:
    """Each point left out with its neighbours nearer than `reach` places."""
    at, count = np.array(x), len(x)
    operators, gaps = np.zeros((count, count)), np.ones(count)
    for i in range(reach, count - reach):
        kept = np.abs(np.arange(count) - i) >= reach
        operators[i, kept] = -weights(at[kept], at[i : i + 1])[0]
        operators[i, i] = 1.0
        gaps[i] = at[i + reach] - at[i - reach]
    return _LeftOut(operators, gaps)
