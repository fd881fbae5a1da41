"""How sure is a curve of ratios? Cluster bootstrap of paired log-ratios.

Pure NumPy. A point holds log-ratios `values[process, round]`, one per round in which both backends ran.
Its estimate is the mean over processes of the median over each one's rounds: one disturbed round moves
nothing, and what is common to a process (placement, clocks) counts once.

The replicates come from resampling processes and, within them, rounds (Davison & Hinkley, Bootstrap
Methods and their Application, 1997, section 3.8). With few processes the plain bootstrap is too narrow:
it misses the factor P/(P-1) and the heavier tail of Student's t; with many it counts the rounds twice. So
each point's replicates are centred on its estimate and stretched until their central 95 % are as wide as
the interval of Student's t, P-1 degrees of freedom, for the mean of P processes. These replicates say how
sure the signs of the points are; the interval of N* is `interpolation`'s, from the spread that `noise` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling.analysis.interpolation import Noise
from profiling.analysis.student import LEVEL, student_t

# From so many processes on, their own spread is what the interval rests on; below, it cannot be known.
MIN_PROCESSES = 3


def estimate(values: np.ndarray) -> float:
    """The point's log-ratio: mean over processes of the median over rounds; NaN marks absent rounds."""
    return float(_process_medians(np.sort(values, axis=1)).mean())


def replicates(points: Sequence[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    """Bootstrap replicates of every point's estimate.

    Args:
        points: for each point an array [processes, rounds] of log-ratios, NaN where a process has fewer
            rounds than another; each process has at least one.
        count: number of replicates.
        rng: source of randomness.

    Returns:
        [count, points], spread as the module says. Within a replicate the same processes are drawn at
        every point (they may have something in common), and rounds anew for each.
    """
    most = max((len(values) for values in points), default=0)
    uniform = rng.random((count, most))
    columns = []
    for values in points:
        ordered = np.sort(values, axis=1)  # NaN last
        chosen = (uniform[:, : len(values)] * len(values)).astype(np.int64)
        drawn = _resampled_medians(ordered, chosen, rng).mean(axis=1)
        centre = _process_medians(ordered).mean()
        columns.append(centre + (drawn - drawn.mean()) * _widening(ordered, drawn, rng))
    return np.stack(columns, axis=1) if columns else np.empty((count, 0))


def _held(ordered: np.ndarray) -> np.ndarray:
    """How many rounds each process has."""
    return np.count_nonzero(~np.isnan(ordered), axis=1)


def _process_medians(ordered: np.ndarray) -> np.ndarray:
    """The median of each process's rounds, which are sorted."""
    held, process = _held(ordered), np.arange(len(ordered))
    return (ordered[process, (held - 1) // 2] + ordered[process, held // 2]) / 2


def _resampled_medians(ordered: np.ndarray, chosen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each chosen process, the median of as many rounds as it has, drawn with replacement.

    Instead of n draws and their sorting, the middle order statistics of n uniforms are drawn, which follow
    a beta distribution: the same law at a fraction of the cost.
    """
    n = _held(ordered)[chosen]
    rank = (n + 1) // 2  # of the lower middle one, counted from 1
    lower = rng.beta(rank, n + 1 - rank)
    # the next one up is the least of the n - rank uniforms left between `lower` and 1
    rest = np.maximum(n - rank, 1)
    upper = np.where(n % 2 == 0, lower + (1 - lower) * (1 - rng.random(n.shape) ** (1 / rest)), lower)
    picks = [np.minimum((u * n).astype(np.int64), n - 1) for u in (lower, upper)]
    return (ordered[chosen, picks[0]] + ordered[chosen, picks[1]]) / 2


def noise(points: Sequence[np.ndarray], rng: np.random.Generator) -> Noise:
    """What `interpolation` needs to know of the points, given as for `replicates`; at least one.

    With `MIN_PROCESSES` the spread is that between processes; with fewer, what processes or rounds show of
    it, whichever is more: too little, as a rule.
    """
    ordered = [np.sort(values, axis=1) for values in points]
    medians = [_process_medians(values) for values in ordered]
    mean = np.array([each.mean() for each in medians])
    counts = {len(each) for each in medians}
    spreads = [_spread(values, rng) for values in ordered]
    deviations = None
    if len(counts) == 1 and min(counts) >= MIN_PROCESSES:
        deviations = np.stack(medians, axis=1) - mean
    variances = np.array([variance for variance, _ in spreads])
    return Noise(mean, deviations, variances, min(degrees for _, degrees in spreads))


def _widening(ordered: np.ndarray, drawn: np.ndarray, rng: np.random.Generator) -> float:
    """The factor that makes the replicates' interval as wide as Student's t for the mean of processes."""
    low, high = interval(drawn)
    half_width = float(high - low) / 2
    if half_width == 0.0:
        return 1.0
    variance, degrees = _spread(ordered, rng)
    return np.sqrt(variance) * student_t(degrees) / half_width


def _spread(ordered: np.ndarray, rng: np.random.Generator) -> tuple[float, int]:
    """The variance of the mean of processes, and its degrees of freedom."""
    processes = len(ordered)
    between = float(_process_medians(ordered).var(ddof=1)) / processes if processes > 1 else 0.0
    if processes >= MIN_PROCESSES:
        return between, processes - 1
    # One or two processes: their spread is unknown or nearly so; the rounds say at least something.
    fixed = np.broadcast_to(np.arange(processes), (256, processes))
    rounds = float(_held(ordered).mean())
    within = float(_resampled_medians(ordered, fixed, rng).var(axis=0).mean()) / processes
    within *= rounds / max(rounds - 1, 1)
    return max(between, within), max(1, round(processes * (rounds - 1)))


def interval(draws: np.ndarray) -> np.ndarray:
    """The ends [2, ...] of the central `LEVEL` of the draws, which run along the first axis."""
    return np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
