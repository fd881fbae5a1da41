"""Model steps as tables: for people at one N a row, and with every digit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from profiling import units
from profiling.analysis.deployment import INFERENCE
from profiling.analysis.steps import Step, Steps

COLUMNS = (
    "model",
    "batch",
    "N",
    "naive, one layer",
    "SDPA, one layer",
    "{candidate}, one layer",
    "est. other layers, one",
    "est. share, naive",
    "est. share, SDPA",
    "est. share, {candidate}",
    "est. step over naive",
    "est. step over SDPA",
)


def legend(found: Steps) -> str:
    """What was measured, what is modelled and by what, and what is left out; one plain text."""
    call = (
        "a forward over the whole context, with the head for its last token"
        if found.question.workload == INFERENCE
        else "forward and backward, with the head for every token"
    )
    lacking = f" Not known, and left out: {', '.join(found.lacking)}." if found.lacking else ""
    return (
        f"A step is {call}. Attention of one layer is measured. Projections, gated MLP and the layer's "
        f"part of the head are modelled: their FLOPs at {units.percent_text(found.efficiency)} of the "
        f"{units.tflops_text(found.peak_tflops)} of {found.device} ({found.question.dtype}, catalogue). "
        "Norms, activations, embeddings, routers, the optimizer, launches and traffic between GPUs are "
        f"not in it: with them attention's share, and what its speed-up is worth, are smaller.{lacking}"
    )


def shown(found: Steps, seq_len: int | None = None) -> list[Step]:
    """One step of each model and batch.

    Args:
        found: all of them.
        seq_len: at this N; by default at the longest that all three ways ran, else at the longest.
    """
    best: dict[tuple[str, int], Step] = {}
    for step in found.rows:
        key = (step.shape.name, step.batch)
        if seq_len in (None, step.seq_len) and (key not in best or _rank(step) > _rank(best[key])):
            best[key] = step
    return list(best.values())


def _rank(step: Step) -> tuple[bool, bool, int]:
    return step.naive is not None, step.sdpa is not None, step.seq_len


def table(rows: list[Step], candidate: str) -> pd.DataFrame:
    """The steps for people: texts, a line each."""
    names = [name.format(candidate=candidate) for name in COLUMNS]
    return pd.DataFrame([_texts(step) for step in rows], columns=names, dtype="string")


def numbers(found: Steps, rows: Sequence[Step] | None = None) -> pd.DataFrame:
    """Every step, or those of `rows`, with every digit, one quantity a column; empty: not measured."""
    kept = found.rows if rows is None else rows
    return pd.DataFrame([_numbers(step, found) for step in kept]).convert_dtypes()


def _texts(step: Step) -> list[str]:
    ways = (step.naive, step.sdpa, step.candidate)
    return [
        step.shape.name,
        units.count_text(step.batch),
        units.count_text(step.seq_len),
        *(units.UNKNOWN if way is None else units.time_text(way.latency_ms) for way in ways),
        units.time_text(step.est_other_ms),
        *(units.UNKNOWN if way is None else units.percent_text(step.est_share(way)) for way in ways),
        *(units.UNKNOWN if way is None else units.ratio_text(step.est_speedup(way)) for way in ways[:2]),
    ]


def _numbers(step: Step, found: Steps) -> dict[str, Any]:
    q, body = found.question, step.body
    line: dict[str, Any] = {"model": step.shape.name, "workload": q.workload, "dtype": q.dtype}
    line |= {"clock": q.clock, "batch": step.batch, "seq_len": step.seq_len, "layers": body.layers}
    line |= {"hidden": body.hidden, "intermediate": body.intermediate, "vocabulary": body.vocabulary}
    line |= {"peak_tflops": found.peak_tflops, "efficiency": found.efficiency}
    ways = {"naive": step.naive, "sdpa": step.sdpa, "candidate": step.candidate}
    for word, way in ways.items():
        line[f"{word}_backend"] = None if way is None else way.backend
        line[f"{word}_attention_ms"] = None if way is None else way.latency_ms
    line["est_other_ms"] = step.est_other_ms
    for word, way in ways.items():
        line[f"est_{word}_share"] = None if way is None else step.est_share(way)
    for word, way in ways.items():
        if word != "candidate":
            line[f"est_speedup_over_{word}"] = None if way is None else step.est_speedup(way)
    return line


def sentence(rows: list[Step], candidate: str) -> str:
    """What it comes to, in one plain sentence; empty without a step that naive attention took, too."""
    held = [(step, step.naive) for step in rows if step.naive is not None]
    if not held:
        return ""
    shares = [step.est_share(way) for step, way in held]
    worth = [step.est_speedup(way) for step, way in held]
    return (
        f"By this model attention is {_span(shares, units.percent_text)} of a step with eager attention, and "
        f"{candidate} makes the step {_span(worth, units.ratio_text)} as fast."
    )


def _span(values: list[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"
