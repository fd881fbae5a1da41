"""The online softmax in a few lines of NumPy, with what the chapter discusses as switches.

For evidence that needs neither a GPU nor torch; the implementation that is measured is `fa_core.tiled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Pivot = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Inputs(NamedTuple):
    """Queries, keys and values of one head, fp64: (rows, d), (keys, d), (keys, d)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @property
    def scores(self) -> np.ndarray:
        """q kᵀ / sqrt(d): (rows, keys)."""
        return self.q @ self.k.T / np.sqrt(self.q.shape[1])


def inputs(seed: int, rows: int = 32, keys: int = 1024, d: int = 64) -> Inputs:
    """Standard normal numbers from a seed."""
    rng = np.random.default_rng(seed)
    return Inputs(*(rng.standard_normal(shape) for shape in ((rows, d), (keys, d), (keys, d))))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Row by row, all columns at once."""
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def online(
    scores: np.ndarray,
    values: np.ndarray,
    tile: int,
    *,
    pivot: Pivot = lambda m, tile_max: np.maximum(m, tile_max),
    rescale: bool = True,
) -> np.ndarray:
    """softmax(scores) @ values, `tile` columns at a time: (rows, d), all sums in the dtype of `scores`.

    Args:
        scores: (rows, keys).
        values: (keys, d).
        tile: columns of a step.
        pivot: the next reference from the one before (-inf at first) and the tile's maximum, both (rows, 1).
        rescale: whether what was summed of the output follows the reference; the denominator always does.
    """
    m = np.full((len(scores), 1), -np.inf, scores.dtype)
    total, out = np.zeros_like(m), np.zeros((len(scores), values.shape[1]), scores.dtype)
    for start in range(0, scores.shape[1], tile):
        part = scores[:, start : start + tile]
        new = pivot(m, part.max(1, keepdims=True))
        weights, factor = np.exp(part - new), np.exp(m - new)
        total = total * factor + weights.sum(1, keepdims=True)
        out = (out * factor if rescale else out) + weights @ values[start : start + tile]
        m = new
    return out / total


def tf32(x: np.ndarray) -> np.ndarray:
    """fp32 numbers rounded to the ten bits of mantissa that TF32 products take."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def error(x: np.ndarray, ref: np.ndarray) -> float:
    """‖x - ref‖ / ‖ref‖."""
    return float(np.linalg.norm(x - ref) / np.linalg.norm(ref))


class Gradients(NamedTuple):
    """dQ, dK, dV of sum(O ∘ dO), and the row sums of dP ∘ P and of dO ∘ O, (rows,)."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    from_probs: np.ndarray
    from_out: np.ndarray


def gradients(x: Inputs, dout: np.ndarray, *, scale: float | None = None) -> Gradients:
    """The backward by the chapter's formulas, whole rows at a time; `scale` is 1/sqrt(d) when None.

    With `scale` 1 the factor is left out of dQ and dK, as the chapter does; the scores always have it.
    """
    scale = 1 / np.sqrt(x.q.shape[1]) if scale is None else scale
    probs = softmax(x.scores)
    dprobs = dout @ x.v.T
    from_probs, from_out = (dprobs * probs).sum(1), (dout * (probs @ x.v)).sum(1)
    dscores = probs * (dprobs - from_out[:, None])
    return Gradients(scale * dscores @ x.k, scale * dscores.T @ x.q, probs.T @ dout, from_probs, from_out)


def slope(x: Inputs, dout: np.ndarray, which: str, step: float = 1e-5) -> float:
    """The derivative of sum(O ∘ dO) by one element of q, k or v (the first), by central differences."""

    def loss(shift: float) -> float:
        moved = getattr(x, which).copy()
        moved[0, 0] += shift
        own = x._replace(**{which: moved})
        return float((softmax(own.scores) @ own.v * dout).sum())

    return (loss(step) - loss(-step)) / (2 * step)
