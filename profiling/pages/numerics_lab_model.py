"""What page Numerics lab says: which safeguard does what, from records of `flashscope safeguards`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from profiling import units
from profiling.figures.numerics_lab import Mark, SumLine

Record = Mapping[str, Any]

# By what is left out: how the chart calls it.
LABELS = {
    "eager": "eager attention",
    "none": "tiles, all in place",
    "maximum": "no maximum subtracted",
    "rescaling": "O not rescaled",
    "accumulator": "sums in the dtype",
    "products": "products in TF32",
    "delta": "delta within a tile",
    "guard": "no guard for empty rows",
}
INPUTS = {
    "random": "Random",
    "large": "Large logits",
    "long": "Long rows",
    "outliers": "Outliers",
    "masked": "Masked rows",
}
NOTABLE = 2.0  # times the error with all in place: what is less is taken as no effect
SOURCE = "FlashAttention-3, arXiv:2407.08608, table 3"


RMSE = ("published_rmse", "rmse_from_drawn", "rmse_from_rounded")


class Published(NamedTuple):
    """A line of the published table: method, dtype, RMSE against fp64; `ours` names what stands beside it."""

    method: str
    dtype: str
    rmse: float
    ours: str = ""


# Inputs N(0, 1) with N(0, 100) on top of one in a thousand; the table states no shape.
PUBLISHED = (
    Published("Baseline", "fp16", 3.2e-4, "eager"),
    Published("FlashAttention-2", "fp16", 1.9e-4, "tiles"),
    Published("FlashAttention-3", "fp16", 1.9e-4, "tiles"),
    Published("Baseline, one scale a tensor", "fp8", 2.4e-2),
    Published("FlashAttention-3", "fp8", 9.1e-3),
    Published("FlashAttention-3, no block quantisation", "fp8", 9.3e-3),
    Published("FlashAttention-3, no incoherent processing", "fp8", 2.4e-2),
)


def of_tensor(found: Record, tensor: str) -> list[Record]:
    """The errors of one tensor."""
    return [error for error in found["errors"] if error["tensor"] == tensor]


def marks(errors: Sequence[Record]) -> tuple[Mark, ...]:
    """The chart's marks, a row for each thing left out."""
    return tuple(
        Mark(LABELS[left_out], error["dtype"], error["rel_error"], _shown(error))
        for left_out in LABELS
        for error in errors
        if error["left_out"] == left_out
    )


def _shown(error: Record) -> str:
    bad = error["not_finite"]
    if not bad:
        return units.number_text(error["rel_error"])
    return f"{units.count_text(bad)} of {units.count_text(error['numbers'])} numbers infinite or NaN"


def sentence(errors: Sequence[Record], inputs: str) -> str:
    """What leaving out each safeguard does to a tensor on these inputs (Markdown)."""
    by_key = {(error["left_out"], error["dtype"]): error for error in errors}
    told, quiet = [], []
    for left_out, label in LABELS.items():
        if left_out in ("eager", "none"):
            continue
        own = [by_key[left_out, dtype] for dtype in ("fp16", "bf16", "fp32") if (left_out, dtype) in by_key]
        broken = [error for error in own if error["not_finite"]]
        if broken:
            dtypes = ", ".join(error["dtype"] for error in broken)
            told.append(f"**{label}**: {_shown(broken[0])} ({dtypes})")
            continue
        worst = max(own, key=lambda error: error["rel_error"] / by_key["none", error["dtype"]]["rel_error"])
        intact = by_key["none", worst["dtype"]]["rel_error"]
        if worst["rel_error"] > NOTABLE * intact:
            told.append(
                f"**{label}**: {_shown(worst)} in {worst['dtype']}, {units.number_text(intact)} with it"
            )
        else:
            quiet.append(label)
    lines = [f"- {line}" for line in told]
    if quiet:
        lines.append(f"- less than {NOTABLE:g}× on these inputs: {', '.join(quiet)}")
    return f"{INPUTS[inputs]}, error of {errors[0]['tensor']} with one safeguard left out:\n\n" + "\n".join(
        lines
    )


def table(errors: Sequence[Record]) -> pd.DataFrame:
    """The numbers of the chart."""
    frame = pd.DataFrame([{**error, "left_out": LABELS[error["left_out"]]} for error in errors])
    return frame[["dtype", "left_out", "tensor", "rel_error", "rmse", "not_finite", "numbers"]]


def sum_lines(found: Record) -> tuple[SumLine, ...]:
    """The sums of ones; what is infinite is left out, and the text says so."""
    keys = dict.fromkeys((one["dtype"], one["order"]) for one in found["ones"])
    return tuple(
        SumLine(
            *key,
            tuple(
                (one["terms"], one["sum"])
                for one in found["ones"]
                if (one["dtype"], one["order"]) == key and one["sum"] is not None
            ),
        )
        for key in keys
    )


def stalls(found: Record) -> str:
    """Where each dtype's sum of ones stops growing, or overflows (Markdown)."""
    told = []
    for line in sum_lines(found):
        own = [x for x in found["ones"] if (x["dtype"], x["order"]) == (line.dtype, line.order)]
        most, last = own[-1], line.points[-1]
        where = f"**{line.dtype}, {line.order}**"
        if most["sum"] is None:
            told.append(f"- {where} overflows: {units.count_text(most['terms'])} ones are infinite")
        elif last[1] < most["terms"]:
            told.append(f"- {where} stops at {units.count_text(last[1])}")
    if not told:
        return "Every sum is right."
    return "\n".join([*told, "- all others are right"])


def orders(found: Record) -> pd.DataFrame:
    """The error of a softmax row's sum, a row an order and a column a dtype."""
    frame = pd.DataFrame(found["orders"]).pivot(index="order", columns="dtype", values="rel_error")
    names = list(dict.fromkeys(x["order"] for x in found["orders"]))
    dtypes = list(dict.fromkeys(x["dtype"] for x in found["orders"]))
    return frame.loc[names, dtypes].reset_index().rename_axis(columns=None)


def order_sentence(found: Record) -> str:
    """By how much the orders differ in fp32, and that in 16 bits they do not merely differ (Markdown)."""
    told = []
    for dtype in dict.fromkeys(x["dtype"] for x in found["orders"]):
        own = {x["order"]: x["rel_error"] for x in found["orders"] if x["dtype"] == dtype}
        told.append(
            f"{dtype} {units.number_text(min(own.values()))} to {units.number_text(max(own.values()))}"
        )
    return f"Relative error of the sum, best to worst order: {'; '.join(told)}."


def beside_published(found: Record) -> pd.DataFrame:
    """The published RMSE and ours on inputs of the same distribution, from inputs as drawn and as rounded."""
    rows = []
    for line in PUBLISHED:
        own = found["rmse"].get(line.ours, {})
        rows.append(
            {
                "method": line.method,
                "dtype": line.dtype,
                "published_rmse": line.rmse,
                "computed_here": {"eager": "eager attention", "tiles": "tile algorithm"}.get(line.ours, ""),
                "rmse_from_drawn": own.get("total"),
                "rmse_from_rounded": own.get("algorithm"),
            }
        )
    return pd.DataFrame(rows)
