"""What a run would look like on another GPU of the catalogue: a prediction, with what it rests on.

The latency model fitted to the run (`latency_fit`) counts its amounts for the other GPU's SMs and cache, and
its rates are scaled by what the catalogue knows: bytes by DRAM bandwidth (those in the cache by the number of
SMs), FLOPs and products by the dense peak; launches, and the softmax of an SM, stay as they are. That
assumes kernels as well suited to that GPU as to this one, which no run here has tested.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from profiling.analysis.curves import Slice, by_slice
from profiling.analysis.latency_fit import LatencyFit, fit_latency
from profiling.analysis.operations import attention_rows
from profiling.case import InputError
from profiling.devices import Device
from profiling.model.hopper import as_run
from profiling.model.memory import largest_seq_len

STEPS_PER_OCTAVE = 8


class Prediction(NamedTuple):
    """One shape on the other GPU, against the same model on the GPU at hand.

    `ratio` is baseline / candidate latency by N: above 1 the candidate is ahead. `crossover_seq_len` is from
    where on it stays ahead, None if it never is; `here_crossover_seq_len` is the same by the model of the GPU
    at hand. `largest_seq_len` is how far the baseline fits the other GPU's memory, by its memory law; None
    where there is no law or the memory is unknown.
    """

    slice: Slice
    baseline: str
    candidate: str
    est_latency_ms: dict[int, tuple[float, float]]
    crossover_seq_len: int | None
    here_crossover_seq_len: int | None
    largest_seq_len: int | None

    @property
    def ratio(self) -> dict[int, float]:
        """Baseline over candidate, by N."""
        return {n: baseline / candidate for n, (baseline, candidate) in self.est_latency_ms.items()}


class WhatIf(NamedTuple):
    """Predictions for every shape that the model knows, and how far off it is on what it has not seen.

    `kernels` are those of `flash` here and there, where it goes by others there than the model was fitted to.
    """

    device: Device
    here: Device
    clock: str
    predictions: tuple[Prediction, ...]
    unseen_error: float
    kernels: tuple[str, str] | None = None

    @property
    def kernels_text(self) -> str:
        """The sentence on `kernels`, after a space; empty where they are the same."""
        if self.kernels is None:
            return ""
        here, there = self.kernels
        return (
            f" There flash goes by {there}, and the model was fitted to {here}: "
            f"a run with {there} itself says more."
        )


def what_if(
    frame: pd.DataFrame,
    device: Device,
    *,
    baseline: str = "naive",
    candidate: str = "flash",
    clock: str = "device",
) -> WhatIf:
    """Predict a run's shapes on `device`.

    Args:
        frame: the comparison table of one run.
        device: of the catalogue.
        baseline: a backend without variant.
        candidate: likewise.
        clock: whose latencies the model is fitted to.

    Raises:
        InputError: no model can be fitted to both backends, or the catalogue lacks a figure of either device.
    """
    frame = attention_rows(frame)
    fits = fit_latency(frame, clock=clock)
    known = [fit for fit in fits.values() if fit.backend in (baseline, candidate)]
    if {fit.backend for fit in known} != {baseline, candidate}:
        raise InputError(
            f"no latency model of both {baseline} and {candidate} on clock {clock}: it needs a run of one "
            "device of the catalogue, and six plain cases of each"
        )
    there = {key: moved(fit, device) for key, fit in fits.items() if fit.backend in (baseline, candidate)}
    predictions = []
    for each, rows in by_slice(frame[frame["clock"] == clock]).items():
        keys = [(name, each.direction, each.dtype) for name in (baseline, candidate)]
        lengths = sorted({int(n) for n in rows.loc[rows["name"].isin((baseline, candidate)), "seq_len"]})
        if len(lengths) < 2 or any(key not in there for key in keys):
            continue
        old, new = ([table[key] for key in keys] for table in (fits, there))
        ms = {n: _pair(new, each, n) for n in lengths}
        if not all(ms.values()):
            continue
        predictions.append(
            Prediction(
                each, baseline, candidate, {n: pair for n, pair in ms.items() if pair},
                _crossover(new, each, lengths), _crossover(old, each, lengths),
                None if device.memory_bytes is None
                else largest_seq_len(each.case(baseline, lengths[0]), device.memory_bytes),
            )
        )  # fmt: skip
    if not predictions:
        raise InputError(
            "no shape of this run is one that the latency model knows: dense, Nq = Nk, no features"
        )
    unseen = [error for fit in known for error in fit.unseen.values()]
    return WhatIf(
        device,
        known[0].device,
        clock,
        tuple(predictions),
        float(np.median(unseen)) if unseen else float("nan"),
        _other_kernels(predictions, known[0].device, device),
    )


def _other_kernels(predictions: list[Prediction], here: Device, there: Device) -> tuple[str, str] | None:
    """The kernels of `flash` on both devices, if they are not the same in all predictions."""
    for one in predictions:
        for name in (one.baseline, one.candidate):
            longest = one.slice.case(name, max(one.est_latency_ms))
            pair = as_run(longest, here).backend, as_run(longest, there).backend
            if pair[0] != pair[1]:
                return pair
    return None


def moved(fit: LatencyFit, device: Device) -> LatencyFit:
    """The fit on another device: its amounts will be that device's, its rates scaled by the catalogue.

    Raises:
        InputError: a figure that a rate needs is unknown of either device.
    """

    def ratio(what: str, here: float | None, there: float | None) -> float:
        if here is None or there is None:
            lacking = fit.device.name if here is None else device.name
            raise InputError(f"{lacking}: the catalogue has no {what}, which the prediction needs")
        return here / there

    def per_sm(one: Device) -> float | None:
        peak = one.peak_tflops(fit.dtype)
        return None if peak is None or one.sm_count is None else peak / one.sm_count

    scales = {
        "launch": lambda: 1.0,
        "softmax": lambda: 1.0,
        "dram": lambda: ratio("bandwidth", fit.device.dram_bandwidth_gbs, device.dram_bandwidth_gbs),
        "cache": lambda: ratio("number of SMs", fit.device.sm_count, device.sm_count),
        "flops": lambda: ratio(
            f"{fit.dtype} peak", fit.device.peak_tflops(fit.dtype), device.peak_tflops(fit.dtype)
        ),
        "product": lambda: ratio(f"{fit.dtype} peak", per_sm(fit.device), per_sm(device)),
    }
    return fit._replace(device=device, rates={rate: ms * scales[rate]() for rate, ms in fit.rates.items()})


def _pair(fits: list[LatencyFit], each: Slice, n: int) -> tuple[float, float] | None:
    """Milliseconds of baseline and candidate, or None where the model says nothing."""
    first, second = (fit.predict_ms(each.case(fit.backend, n)) for fit in fits)
    return (first, second) if first and second else None


def _crossover(fits: list[LatencyFit], each: Slice, lengths: list[int]) -> int | None:
    """The first of a fine grid over the lengths from which on the candidate stays ahead."""
    octaves = np.log2(lengths[-1] / lengths[0])
    grid = np.unique(
        np.round(np.geomspace(lengths[0], lengths[-1], int(octaves * STEPS_PER_OCTAVE) + 1)).astype(int)
    )
    ahead = None
    for n in reversed(grid.tolist()):
        pair = _pair(fits, each, n)
        if pair is None or pair[0] <= pair[1]:
            break
        ahead = n
    return ahead
