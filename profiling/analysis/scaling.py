"""How does it grow: the exponent of latency or memory in N, from a straight line in log-log."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiling.analysis.curves import Slice, by_slice, check_metric
from profiling.analysis.student import student_t


class Scaling(NamedTuple):
    """A fitted law `value = prefactor * N ** exponent` over the longest N that ran.

    Attributes:
        slice: what the points have in common.
        backend: with its variant if one was asked for.
        metric: `latency` (ms) or `memory` (bytes).
        exponent: the slope of log value against log N.
        interval: its 95 % interval (Student's t on the residuals); None with fewer than three points.
        prefactor: in ms or bytes.
        first_seq_len: the shortest N in the fit.
        last_seq_len: the longest.
        n_points: how many N are in the fit.
    """

    slice: Slice
    backend: str
    metric: str
    exponent: float
    interval: tuple[float, float] | None
    prefactor: float
    first_seq_len: int
    last_seq_len: int
    n_points: int


def scalings(
    frame: pd.DataFrame, *, metric: str = "latency", clock: str = "device", octaves: float = 3.0
) -> list[Scaling]:
    """The law of each backend on each slice, fitted by least squares over its last octaves.

    Short sequences are left out because there a launch, not the algorithm, sets the time.

    Args:
        frame: the comparison table; only `ok` rows without a requested tile count.
        metric: `latency` or `memory`.
        clock: of the latency; memory has none.
        octaves: how far the fit reaches below the longest N that ran.

    Raises:
        InputError: an unknown metric.
    """
    column = check_metric(metric)
    if metric == "latency":
        frame = frame[frame["clock"] == clock]
    frame = frame[(frame["status"] == "ok") & (frame["seq_len_k"] > 0) & (frame[column] > 0)]
    found = []
    for each, rows in by_slice(frame, metric).items():
        for backend, own in rows.groupby("name", sort=False):
            n = own["seq_len"].to_numpy(dtype=np.float64)
            near = n >= n[-1] / 2**octaves
            law = fit(n[near], own[column].to_numpy(dtype=np.float64)[near])
            if law is not None:
                found.append(
                    Scaling(each, str(backend), metric, *law, int(n[near][0]), int(n[-1]), int(near.sum()))
                )
    return found


def fit(seq_len: np.ndarray, value: np.ndarray) -> tuple[float, tuple[float, float] | None, float] | None:
    """Exponent, its interval and prefactor of a power law; None with fewer than two different N."""
    if len(np.unique(seq_len)) < 2:
        return None
    x, y = np.log(seq_len), np.log(value)
    slope, intercept = (float(number) for number in np.polyfit(x, y, 1))
    interval = None
    if len(x) > 2:
        left = float(np.sum((y - slope * x - intercept) ** 2)) / (len(x) - 2)
        half = student_t(len(x) - 2) * math.sqrt(left / float(np.sum((x - x.mean()) ** 2)))
        interval = (slope - half, slope + half)
    return slope, interval, float(np.exp(intercept))
