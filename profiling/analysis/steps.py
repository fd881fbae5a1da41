"""What attention is of a whole model step, and what making it faster is worth there.

Attention's time is measured; the other matrix products are modelled by their FLOPs at a stated share of the
device's peak. With s the share of attention and k its speed-up, the step's is 1 / (1 - s + s / k) (Amdahl
1967), which is (naive + other) / (candidate + other).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from profiling.analysis.decision import Decision, DecisionRow
from profiling.analysis.deployment import INFERENCE, Question, Shape
from profiling.analysis.fitting import latencies
from profiling.case import InputError
from profiling.devices import Device
from profiling.model.step import Body, other_flops

EFFICIENCY = 0.7  # of the peak, unless said otherwise


class Attention(NamedTuple):
    """One way to compute attention: the measured median of one layer's call, in milliseconds."""

    backend: str
    latency_ms: float


class Step(NamedTuple):
    """One layer of a model at one batch and N; `other` is modelled, the three ways are measured or None."""

    shape: Shape
    body: Body
    batch: int
    seq_len: int
    est_other_ms: float
    naive: Attention | None
    sdpa: Attention | None
    candidate: Attention

    def est_share(self, way: Attention) -> float:
        """The share of the step that attention is, computed this way."""
        return way.latency_ms / (way.latency_ms + self.est_other_ms)

    def est_speedup(self, way: Attention) -> float:
        """How many times faster a step is with the candidate than with this way."""
        return (way.latency_ms + self.est_other_ms) / (self.candidate.latency_ms + self.est_other_ms)


class Steps(NamedTuple):
    """The steps of a decision, and what the modelled part rests on.

    `lacking` names models without a body: their other layers are not known.
    """

    rows: tuple[Step, ...]
    question: Question
    device: str
    peak_tflops: float
    efficiency: float
    lacking: tuple[str, ...]


def steps(
    decision: Decision,
    frame: pd.DataFrame,
    bodies: Mapping[str, Body],
    device: Device | None,
    efficiency: float = EFFICIENCY,
) -> Steps | None:
    """Each model and batch at each measured length that was asked for.

    A row counts where batch · heads is what was measured, not where it lies between two sizes.

    Args:
        decision: the answer of a review.
        frame: the comparison table that it was made from.
        bodies: the other layers, by the name of the shape.
        device: the run's; its matmul peak for the dtype is needed.
        efficiency: the share of that peak at which the other matrix products run.

    Returns:
        The steps; None if the peak is not known.

    Raises:
        InputError: the efficiency is not above 0 and at most 1.
    """
    if not 0 < efficiency <= 1:
        raise InputError(f"the efficiency of other layers must be above 0 and at most 1, got {efficiency:g}")
    question = decision.question
    peak = None if device is None else device.peak_tflops(question.dtype)
    if device is None or peak is None:
        return None
    rows = [
        step
        for row in decision.rows
        if row.shape.name in bodies
        for step in _of_row(row, frame, question, bodies[row.shape.name], efficiency * peak)
    ]
    lacking = dict.fromkeys(row.shape.name for row in decision.rows if row.shape.name not in bodies)
    return Steps(tuple(rows), question, device.name, peak, efficiency, tuple(lacking))


def _of_row(
    row: DecisionRow, frame: pd.DataFrame, question: Question, body: Body, rate_tflops: float
) -> list[Step]:
    """The steps of one row of the decision, by N."""
    shape = row.shape
    if row.measured is None or row.measured[0] * row.measured[1] != row.batch * shape.heads:
        return []
    rows = frame.loc[list(row.rows)]
    rows = rows[(rows["batch"] == row.measured[0]) & (rows["heads"] == row.measured[1])]
    by_backend = {option.impl: own for option, own in latencies(rows, question.workload)[0].items()}
    names = {
        "naive": "naive",
        "sdpa": "sdpa" if row.sdpa is None else row.sdpa.other,
        "candidate": question.candidate,
    }
    low, high = question.seq_lens
    out = []
    for n in row.seq_lens:
        ways = {
            word: Attention(name, by_backend[name][n])
            for word, name in names.items()
            if n in by_backend.get(name, {})
        }
        if not low <= n <= high or "candidate" not in ways:
            continue
        flops = other_flops(
            body,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            head_dim_v=shape.head_dim_v,
            batch=row.batch,
            seq_len=n,
            training=question.workload != INFERENCE,
        )
        other_ms = flops / (rate_tflops * 1e12) * 1e3
        out.append(
            Step(shape, body, row.batch, n, other_ms, ways.get("naive"), ways.get("sdpa"), ways["candidate"])
        )
    return out
