"""What larger logits do: computed by `flashscope numerics --scales` in a process of its own, read as JSON."""

from __future__ import annotations

from typing import Any

import pandas as pd

from profiling.figures.numerics import ScaleLine
from profiling.pages import computing

SCALES: tuple[float, ...] = (1, 4, 16, 64)
COLUMNS = (
    *("dtype", "scale", "tensor", "rel_error", "eager_rel_error", "ratio_to_eager"),
    *("max_error", "max_allowed", "share_of_allowed"),
)


def compute(scales: tuple[float, ...] = SCALES) -> list[dict[str, Any]]:
    """Records of `COLUMNS`, a dtype, scale and tensor each.

    Raises:
        InputError: the process failed, or took too long; with what it said last.
    """
    words = ",".join(f"{scale:g}" for scale in scales)
    return computing.computed(["numerics", "--scales", words, "--format", "json"])["scales"]


def table(found: list[dict[str, Any]], tensor: str) -> pd.DataFrame:
    """The records of one tensor."""
    return pd.DataFrame([x for x in found if x["tensor"] == tensor], columns=list(COLUMNS))


def lines(found: list[dict[str, Any]], tensor: str) -> tuple[ScaleLine, ...]:
    """Eager's and the tile algorithm's errors of one tensor by dtype; what is not finite is left out."""
    own = [x for x in found if x["tensor"] == tensor]
    out = []
    for dtype in dict.fromkeys(x["dtype"] for x in own):
        for backend, column in (("naive", "eager_rel_error"), ("tiled", "rel_error")):
            points = [(x["scale"], x[column]) for x in own if x["dtype"] == dtype and x[column]]
            if points:
                out.append(ScaleLine(backend, dtype, tuple(points)))
    return tuple(out)


def sentence(found: list[dict[str, Any]], tensor: str) -> str:
    """By how much eager's error grows from the smallest to the largest scale, and the tiles' (Markdown)."""
    told = []
    for dtype in dict.fromkeys(x["dtype"] for x in found):
        own = sorted(
            (x for x in found if (x["dtype"], x["tensor"]) == (dtype, tensor)), key=lambda x: x["scale"]
        )
        ends = [own[0][c] for c in ("eager_rel_error", "rel_error")] if own else []
        last = [own[-1][c] for c in ("eager_rel_error", "rel_error")] if own else []
        if len(own) > 1 and all((*ends, *last)):
            eager, tiles = (b / a for a, b in zip(ends, last, strict=True))
            told.append(f"{dtype}: eager's error × {eager:.3g}, the tiles' × {tiles:.3g}")
    if not told:
        return ""
    scales = sorted({x["scale"] for x in found})
    return f"From logits of {scales[0]:g} to {scales[-1]:g}, **{tensor}**: {'; '.join(told)}."
