"""Measured curves whose crossing is known: for the calibration of intervals, in tests and in the benchmark.

A curve is the log-ratio of two backends over x = log2 N. Between the points of the grid it is what it is, not
what an interpolant makes of it, so intervals are held to the error of interpolation, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from synthetic import synthetic_run

from profiling.analysis.crossover import Crossover, crossovers
from profiling.store import frame, samples_frame

OCTAVES: tuple[int, ...] = tuple(64 * 2**k for k in range(9))  # the N of data/sweeps/standard.toml
# The shapes that the 95 % are claimed for, in equal parts.
SHAPES: tuple[str, ...] = ("sum", "round", "knee", "plateau")

Curve = Callable[[np.ndarray], np.ndarray]


class Design(NamedTuple):
    """How a curve is measured. Noise is relative, of the ratio of two backends.

    Attributes:
        processes: that measure each point.
        rounds: of each process.
        round_noise: standard deviation of a round.
        process_noise: of a process, drawn anew at every point.
        common_noise: of a process, the same along the curve.
        falling: noise halves with each octave above N = 512, as on the wall clock.
        disturbed: share of rounds in which one of the two takes half as long again.
        seq_lens: the grid.
    """

    processes: int
    rounds: int
    round_noise: float
    process_noise: float
    common_noise: float = 0.0
    falling: bool = False
    disturbed: float = 0.0
    seq_lens: tuple[int, ...] = OCTAVES


class Outcome(NamedTuple):
    """What `crossovers` said of one curve. `truth` is log2 of the true N*."""

    shape: str
    truth: float
    found: Crossover

    @property
    def held(self) -> bool:
        """Whether there is an interval, and it holds the truth."""
        return self.found.interval is not None and (
            self.found.interval[0] <= 2**self.truth <= self.found.interval[1]
        )

    @property
    def width(self) -> float:
        """Of the interval, in octaves."""
        low, high = self.found.interval or (np.nan, np.nan)
        return float(np.log2(high / low))

    @property
    def error(self) -> float:
        """N* minus the truth, in octaves; NaN where there is no one N*."""
        return float(np.log2(self.found.crossover_seq_len or np.nan)) - self.truth


def curve(shape: str, rng: np.random.Generator) -> tuple[Curve, float]:
    """A random curve of a shape, and log2 of the N at which it crosses zero, between 256 and 4096.

    `sum`, `round` and `knee`: both backends take (launch^s + work^s)^(1/s), with s = 1, 3 and 40, where work
    is a power of N with an exponent of 1.5 to 2; the candidate's launch takes 1.2 to 3 times as long, its
    work 0.15 to 0.8 times. s = 1 is one after the other; 40 is whichever takes longer, as on the wall clock,
    where the host launches while the GPU works. `plateau`: a smooth step between two levels, as where a cache
    is outgrown. `jump`: the same as good as sudden; not among `SHAPES`: where it is, no point can tell.
    """
    at = rng.uniform(8, 12)
    if shape in ("plateau", "jump"):
        steepness = rng.uniform(1, 4) if shape == "plateau" else 40.0
        below, rise = -rng.uniform(0.1, 0.7), rng.uniform(0.9, 2.5)
        part = -below / rise
        middle = at - np.log(part / (1 - part)) / steepness
        return lambda x: below + rise / (1 + np.exp(-steepness * (x - middle))), at
    s = {"sum": 1.0, "round": 3.0, "knee": 40.0}[shape]
    launch, slope, power = rng.uniform(1.2, 3.0), rng.uniform(0.15, 0.8), rng.uniform(1.5, 2.0)
    work_at = np.log((launch**s - 1) / (1 - slope**s)) / s

    def log_ratio(x: np.ndarray) -> np.ndarray:
        work = work_at + power * np.log(2) * (x - at)
        baseline = np.logaddexp(0, s * work)
        candidate = np.logaddexp(s * np.log(launch), s * (work + np.log(slope)))
        return (baseline - candidate) / s

    return log_ratio, at


def measured(curves: Sequence[Curve], design: Design, rng: np.random.Generator) -> np.ndarray:
    """Milliseconds [curve, N, backend, process, round] of naive and flash, a median a round."""
    x = np.log2(design.seq_lens)
    ratio = np.stack([each(x) for each in curves])
    quieter = 2.0 ** -np.maximum(0, x - 9) if design.falling else np.ones(len(x))
    axes = (*ratio.shape, 2, design.processes, design.rounds)
    noise = rng.normal(0, design.round_noise, axes) + rng.normal(0, design.process_noise, axes[:4])[..., None]
    noise *= quieter[:, None, None, None]
    noise += rng.normal(0, design.common_noise, (len(curves), 1, 2, design.processes, 1))
    noise /= np.sqrt(2)  # of each backend: together they have what the design says
    noise += np.log(1.5) * (rng.random(axes) < design.disturbed / 2)
    sides = np.stack([ratio / 2, -ratio / 2], axis=2)
    return np.exp(sides[..., None, None] + noise)


def tables(ms: np.ndarray, design: Design) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The comparison table and the samples of `measured` curves, each a run of its own, named by number."""
    one = synthetic_run(seq_lens=(64,), backends=("flash",), clocks=("device",), processes=1, rounds=1)
    run, n, backend = (axis.ravel() for axis in np.indices(ms.shape[:3]))
    lengths = np.array(design.seq_lens)[n]
    fields = {"backend": np.array(["naive", "flash"])[backend], "run_id": np.char.mod("%d", run)}
    fields |= {"seq_len_q": lengths, "seq_len_k": lengths}
    many = frame(one).loc[np.zeros(len(run), dtype=int)].reset_index(drop=True)
    rows = many.assign(**fields, latency_p50_ms=np.median(ms, axis=(3, 4)).ravel()).astype(many.dtypes)
    many = samples_frame(one).loc[np.zeros(len(run), dtype=int)].reset_index(drop=True)
    each = many.assign(**fields).astype(many.dtypes)
    samples = each.loc[np.repeat(np.arange(len(run)), ms.shape[3] * ms.shape[4])].reset_index(drop=True)
    place = np.indices((len(run), *ms.shape[3:]))
    return rows, samples.assign(process=place[1].ravel(), round=place[2].ravel(), ms=ms.ravel())


def simulate(
    design: Design, count: int, seed: int, shapes: Sequence[str] = SHAPES, replicates: int = 400
) -> list[Outcome]:
    """`count` random curves, their shapes in turn, measured and judged."""
    rng = np.random.default_rng(seed)
    names = [shapes[k % len(shapes)] for k in range(count)]
    drawn = [curve(name, rng) for name in names]
    rows, samples = tables(measured([each for each, _ in drawn], design, rng), design)
    found = crossovers(rows, samples, replicates=replicates)
    return [Outcome(name, truth, each) for name, (_, truth), each in zip(names, drawn, found, strict=True)]


def coverage(outcomes: Sequence[Outcome]) -> float:
    """Of the intervals, the share that holds the truth."""
    given = [each for each in outcomes if each.found.interval is not None]
    return sum(each.held for each in given) / max(len(given), 1)
