"""What larger logits do: computed by `flashscope numerics --scales` in a process of its own, read as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pandas as pd

from profiling.case import InputError
from profiling.figures.numerics import ScaleLine
from profiling.pages.jobs import ROOT

SCALES: tuple[float, ...] = (1, 4, 16, 64)
TIMEOUT_S = 180
COLUMNS = (
    *("dtype", "scale", "tensor", "rel_error", "eager_rel_error", "ratio_to_eager"),
    *("max_error", "max_allowed", "share_of_allowed"),
)


def command(scales: tuple[float, ...] = SCALES) -> list[str]:
    """The command that computes them, as the page runs it."""
    words = ",".join(f"{scale:g}" for scale in scales)
    return [sys.executable, "-m", "profiling", "numerics", "--scales", words, "--format", "json"]


def compute(scales: tuple[float, ...] = SCALES) -> list[dict[str, Any]]:
    """Records of `COLUMNS`, a dtype, scale and tensor each.

    Raises:
        InputError: the process failed, or took too long; with what it said last.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    try:
        done = subprocess.run(
            command(scales),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the computation took more than {TIMEOUT_S} s and was ended") from None
    except OSError as error:
        raise InputError(f"the computation could not be started: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(f"the computation failed: {said[-1] if said else f'status {done.returncode}'}")
    return json.loads(done.stdout)["scales"]


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
