"""How far the samples of a row scatter, between processes and between rounds: what a comparison rests on.

Two runs are not interleaved, so nothing pairs their rounds (`pairing` needs one run), and what a process
brings with it (placement, clocks, the order of allocations) is common to all of its samples. The processes
are therefore the units: each counts once, with the median of its rounds, as in `resample.estimate`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiling.analysis.pairing import blocks
from profiling.analysis.student import student_t
from profiling.case import KEY_FIELDS

ROW_FIELDS: tuple[str, ...] = (*KEY_FIELDS, "clock")


class Spread(NamedTuple):
    """One row's samples, as natural logarithms of milliseconds.

    Attributes:
        estimate: mean over processes of the median over rounds of a round's median.
        variance: of what one process says: the larger of the variance between the processes' medians and
            the mean variance of the rounds within a process over their number. The second keeps three
            processes that agree by luck from claiming more than their rounds allow.
        processes: how many there are.
        rounds: how many over all processes.
        low: the least median of a round.
        high: the greatest.
    """

    estimate: float
    variance: float
    processes: int
    rounds: int
    low: float
    high: float


def spreads(samples: pd.DataFrame, rows: pd.DataFrame) -> dict[int, Spread]:
    """The spread of each row that has samples, by its number.

    Args:
        samples: as `store.samples_frame`, of one side; samples of other rows are passed over.
        rows: `ROW_FIELDS` and an integer `number`, each combination once.
    """
    if samples.empty or rows.empty:
        return {}
    block = blocks(samples, ROW_FIELDS)
    _, first = np.unique(block, return_index=True)
    heads = samples[list(ROW_FIELDS)].iloc[first].assign(block=np.arange(len(first)))
    owners = heads.merge(rows, on=list(ROW_FIELDS), how="left").sort_values("block")
    raw = pd.DataFrame(
        {
            "number": owners["number"].fillna(-1).to_numpy(dtype=np.int64)[block],
            "process": samples["process"].to_numpy(dtype=np.int64),
            "round": samples["round"].to_numpy(dtype=np.int64),
            "ms": samples["ms"].to_numpy(dtype=np.float64),
        }
    )
    raw = raw[(raw["number"] >= 0) & (raw["ms"] > 0)]
    rounds = raw.groupby(["number", "process", "round"])["ms"].median().transform(np.log)
    processes = rounds.groupby(level=["number", "process"]).agg(["median", "var", "count"])
    # of a process with one round nothing is known within; of one process, nothing between
    processes["within"] = processes["var"] / processes["count"]
    found = processes.groupby(level="number").agg(
        estimate=("median", "mean"),
        between=("median", "var"),
        within=("within", "mean"),
        processes=("median", "size"),
        rounds=("count", "sum"),
    )
    variance = found[["between", "within"]].max(axis=1).fillna(0.0)
    extremes = rounds.groupby(level="number").agg(["min", "max"])
    return {
        number: Spread(*values)
        for number, *values in zip(
            found.index.tolist(),
            found["estimate"].tolist(),
            variance.tolist(),
            found["processes"].tolist(),
            found["rounds"].tolist(),
            extremes["min"].tolist(),
            extremes["max"].tolist(),
            strict=True,
        )
    }


def half_width(a: Spread, b: Spread) -> float:
    """Half of the 95 % interval of the difference of two estimates, by Student's t.

    The degrees of freedom are those of the side with fewer processes, which is never too narrow for normal
    noise, whatever the two variances (Mickey & Brown, Annals of Mathematical Statistics 37, 1966, p. 639).
    Both sides need two processes.
    """
    error = a.variance / a.processes + b.variance / b.processes
    return student_t(min(a.processes, b.processes) - 1) * math.sqrt(error)
