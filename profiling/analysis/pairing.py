"""From raw samples to paired log-ratios: which rounds of two backends stand beside each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiling.case import KEY_FIELDS

_CASE = [*KEY_FIELDS, "run_id"]
_MOST_STEPS = 1000  # values of more timer steps than this say nothing about the step
_FEWEST_VALUES = 5  # with fewer distinct values anything looks like a multiple of something


class Pairs(NamedTuple):
    """`log_ratios[point]` is an array [processes, rounds] (NaN where a process has fewer), or absent.

    `timer_steps[slice]` is the clock's step in ms, where its values betray one.
    """

    log_ratios: dict[int, np.ndarray]
    timer_steps: dict[int, float]


def pair(rows: pd.DataFrame, samples: pd.DataFrame, clock: str) -> Pairs:
    """Pair the rounds in which baseline and candidate both ran.

    Args:
        rows: the analysed rows: the columns of the key, `run_id`, and integers `point` (rows that share it
            are one N of one slice), `slice`, and a boolean `candidate`.
        samples: as `store.samples_frame`; rows of other cases and clocks are passed over.
        clock: the clock whose samples count.
    """
    samples = samples[(samples["clock"] == clock) & samples["backend"].isin(rows["backend"].unique())]
    if samples.empty or rows.empty:
        return Pairs({}, {})
    block = blocks(samples, _CASE)
    _, first = np.unique(block, return_index=True)
    cases = samples[_CASE].iloc[first].assign(block=np.arange(len(first)))
    owners = cases.merge(rows[[*_CASE, "point", "slice", "candidate"]], on=_CASE, how="left").sort_values(
        "block"
    )
    owners = owners.drop_duplicates("block")
    raw = pd.DataFrame(
        {
            "point": owners["point"].fillna(-1).to_numpy(dtype=np.int64)[block],
            "slice": owners["slice"].fillna(-1).to_numpy(dtype=np.int64)[block],
            "candidate": owners["candidate"].fillna(False).to_numpy(dtype=bool)[block],
            "process": samples["process"].to_numpy(dtype=np.int64),
            "round": samples["round"].to_numpy(dtype=np.int64),
            "ms": samples["ms"].to_numpy(dtype=np.float64),
        }
    )
    raw = raw[(raw["point"] >= 0) & (raw["ms"] > 0)]
    place = ["point", "process", "round"]
    medians = raw.groupby([*place, "candidate"], sort=True)["ms"].median().reset_index()
    both = medians[~medians["candidate"]].merge(
        medians[medians["candidate"]], on=place, how="inner", suffixes=("_baseline", "_candidate")
    )
    log_ratio = np.log(both["ms_baseline"].to_numpy()) - np.log(both["ms_candidate"].to_numpy())
    return Pairs(
        log_ratios=_matrices(both["point"].to_numpy(), both["process"].to_numpy(), log_ratio),
        timer_steps=_timer_steps(raw["slice"].to_numpy(), raw["ms"].to_numpy()),
    )


def blocks(samples: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Number the stretches of consecutive samples alike in `names`: cheaper than grouping on 22 columns."""
    changed = np.zeros(len(samples), dtype=bool)
    for name in names:
        codes, _ = pd.factorize(samples[name])
        changed[1:] |= codes[1:] != codes[:-1]
    return np.cumsum(changed)


def _matrices(point: np.ndarray, process: np.ndarray, values: np.ndarray) -> dict[int, np.ndarray]:
    """`values`, sorted by point and process, as one array [processes, rounds] a point, padded with NaN."""
    bounds = np.flatnonzero(np.diff(point, prepend=-1, append=-1))  # points count from 0
    out = {}
    for start, stop in itertools.pairwise(bounds):
        _, counts = np.unique(process[start:stop], return_counts=True)
        matrix = np.full((len(counts), counts.max()), np.nan)
        matrix[np.arange(counts.max()) < counts[:, None]] = values[start:stop]
        out[int(point[start])] = matrix
    return out


def _timer_steps(number: np.ndarray, ms: np.ndarray) -> dict[int, float]:
    order = np.argsort(number, kind="stable")
    slices, starts = np.unique(number[order], return_index=True)
    steps = {
        int(each): timer_step(values)
        for each, values in zip(slices, np.split(ms[order], starts[1:]), strict=True)
    }
    return {each: step for each, step in steps.items() if step is not None}


def timer_step(ms: np.ndarray) -> float | None:
    """The step of a clock that counts in steps, in ms; None if the values do not look like multiples.

    CUDA events, for instance, tick every 0.5 to 1 µs on some cards: two kernels within one tick of each
    other cannot be told apart, however often they are measured.
    """
    distinct = np.unique(ms)
    if len(distinct) < _FEWEST_VALUES:
        return None
    step = float(np.diff(distinct).min())
    counts = distinct[distinct < _MOST_STEPS * step] / step
    if len(counts) < _FEWEST_VALUES or np.abs(counts - np.round(counts)).max() > 0.05:
        return None
    return step
