"""Why a crossover lies where it does: what either side's time consists of there, by the fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from profiling.analysis.crossover import Crossover
from profiling.analysis.latency_fit import LatencyFit
from profiling.case import ATTENTION, split_backend

Fits = Mapping[tuple[str, str, str], LatencyFit]


class Shares(NamedTuple):
    """What a call consists of, modelled: shares of `est_latency_ms` by reason, the largest first."""

    backend: str
    seq_len: int
    est_latency_ms: float
    shares: dict[str, float]


def shares(found: Crossover, fits: Fits) -> tuple[Shares, ...]:
    """Baseline and candidate at N*; where there is none, at the shortest and the longest N of both.

    Empty where the model says nothing of either: another metric than latency or operation than attention,
    features that it does not know, a backend with too few points.
    """
    if found.metric != "latency" or found.slice.operation != ATTENTION or not found.points:
        return ()
    ends = (found.points[0].seq_len, found.points[-1].seq_len)
    at = ends if found.crossover_seq_len is None else (round(found.crossover_seq_len),)
    asked = [
        _shares(found, name, n, fits) for n in dict.fromkeys(at) for name in (found.baseline, found.candidate)
    ]
    return tuple(one for one in asked if one is not None)


def _shares(found: Crossover, name: str, seq_len: int, fits: Fits) -> Shares | None:
    backend, variant = split_backend(name)
    here = found.slice
    fit = fits.get((backend, here.direction, here.dtype))
    if fit is None or variant or here.seq_len_q is not None:
        return None
    parts = fit.parts_ms(here.case(backend, seq_len))
    total = sum(parts.values())
    if not total:
        return None
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return Shares(name, seq_len, total, {reason: ms / total for reason, ms in ordered if ms > 0})
