"""A latency model fitted to a run: what a backend's launch, bytes and arithmetic cost on this machine.

For each backend, direction and dtype the amounts of `profiling.model.costs` are weighted by rates that are
not negative and make the relative errors small (non-negative least squares on measured / predicted). How well
that predicts what it has not seen is asked by leaving out, in turn, each head dim and each batch · heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from profiling.analysis.curves import cases, untiled
from profiling.analysis.operations import attention_rows
from profiling.case import Case
from profiling.devices import Device, known_device
from profiling.model.costs import Amount, amounts

FEWEST = 6  # points that a fit needs


class LatencyFit(NamedTuple):
    """Rates of one backend, in milliseconds of each amount, and how far off the model is.

    `error` is the median of |predicted / measured - 1| on the points that were fitted; `unseen` by what was
    left out (`d = 64`, `batch · heads = 16`), the same on those alone, by rates from the others.
    """

    backend: str
    direction: str
    dtype: str
    device: Device
    rates: dict[str, float]
    points: int
    error: float
    unseen: dict[str, float]

    def predict_ms(self, case: Case) -> float | None:
        """Milliseconds of a call of this backend; None where the model says nothing."""
        parts = self.parts_ms(case)
        return sum(parts.values()) if parts else None

    def parts_ms(self, case: Case) -> dict[str, float]:
        """The same by reason: `launch`, `bytes`, `arithmetic`, `padding`, `waves`."""
        parts: dict[str, float] = {}
        for one in amounts(case, self.device):
            parts[one.reason] = parts.get(one.reason, 0.0) + self.rates.get(one.rate, 0.0) * one.amount
        return parts


class _Point(NamedTuple):
    amounts: tuple[Amount, ...]
    ms: float
    head_dim: int
    batch_heads: int


def fit_latency(frame: pd.DataFrame, *, clock: str = "device") -> dict[tuple[str, str, str], LatencyFit]:
    """By (backend, direction, dtype): the model fitted to the rows of one run on one clock.

    Backends with fewer than `FEWEST` points that the model is about are left out, and all of them where the
    device is not in the catalogue.

    Args:
        frame: the comparison table of one device.
        clock: whose latencies.
    """
    rows = untiled(attention_rows(frame))
    rows = rows[(rows["clock"] == clock) & (rows["status"] == "ok") & (rows["latency_p50_ms"] > 0)]
    names = rows["device_name"].unique()
    if len(names) != 1:
        return {}
    device = known_device(str(names[0]))
    if device is None:
        return {}
    fits = {}
    for key, own in rows[rows["variant"] == ""].groupby(["backend", "direction", "dtype"], sort=True):
        backend, direction, dtype = (str(part) for part in key)  # pyright: ignore[reportGeneralTypeIssues]
        points = _points(own, device)
        if len(points) >= FEWEST:
            rates = _rates(points)
            fits[backend, direction, dtype] = LatencyFit(
                backend, direction, dtype, device, rates, len(points), _error(points, rates), _unseen(points)
            )
    return fits


def _points(rows: pd.DataFrame, device: Device) -> list[_Point]:
    points = []
    for case, ms in zip(cases(rows), rows["latency_p50_ms"], strict=True):
        found = amounts(case, device)
        if found:
            points.append(_Point(found, ms, case.head_dim, case.batch * case.heads))
    return points


def _rates(points: list[_Point]) -> dict[str, float]:
    return rates_of([(point.amounts, point.ms) for point in points])


def rates_of(measured: Sequence[tuple[tuple[Amount, ...], float]]) -> dict[str, float]:
    """The rates, none negative, that make the relative errors of these (amounts, milliseconds) least."""
    names = list(dict.fromkeys(one.rate for found, _ in measured for one in found))
    matrix = np.zeros((len(measured), len(names)))
    for i, (found, ms) in enumerate(measured):
        for one in found:
            matrix[i, names.index(one.rate)] += one.amount / ms
    size = matrix.max(axis=0)
    size[size == 0] = 1.0
    solution, _ = nnls(matrix / size, np.ones(len(measured)))
    return dict(zip(names, (solution / size).tolist(), strict=True))


def priced_ms(found: Sequence[Amount], rates: Mapping[str, float]) -> float:
    """Milliseconds of these amounts at these rates; a rate that was not fitted costs nothing."""
    return sum(rates.get(one.rate, 0.0) * one.amount for one in found)


def _error(points: list[_Point], rates: dict[str, float]) -> float:
    predicted = [priced_ms(point.amounts, rates) for point in points]
    return float(np.median([abs(ms / point.ms - 1) for ms, point in zip(predicted, points, strict=True)]))


def _unseen(points: list[_Point]) -> dict[str, float]:
    errors = {}
    for text, of in (("d", lambda p: p.head_dim), ("batch · heads", lambda p: p.batch_heads)):
        for value in sorted({of(point) for point in points}):
            left_out = [point for point in points if of(point) == value]
            others = [point for point in points if of(point) != value]
            if len(others) >= FEWEST:
                errors[f"{text} = {value}"] = _error(left_out, _rates(others))
    return errors
