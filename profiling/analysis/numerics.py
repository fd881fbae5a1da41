"""Is it right: errors against the fp64 oracle, beside eager's own, and what of the error rule they use up.

Errors are measured with every case, tensor by tensor, so nothing is computed anew here. Two numbers count:
the ratio of a backend's relative error to that of eager attention in the same dtype on the same inputs (1 is
as good as eager, below it is better), and the largest error over what the error rule allows (1 is the limit;
the rule is under Words in CONTRIBUTING.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from profiling.case import ATTENTION, Case
from profiling.records import Measurement, TensorError

# In the order in which they are shown; `worst` is of imports, which know no single tensor.
TENSORS: tuple[str, ...] = (
    *("out", "lse", "picked", "dq", "dk", "dv", "dbias", "dsinks", "dlogits"),
    "worst",
)


_Group = tuple[str, str, str, str]  # backend, dtype, direction, tensor


class ErrorPoint(NamedTuple):
    """One tensor of one case. A `rel_error` of None is not finite where the reference is (or not known)."""

    case: Case
    tensor: str
    status: str
    error: TensorError

    @property
    def backend(self) -> str:
        """With its variant, if one was asked for."""
        return f"{self.case.backend}/{self.case.variant}" if self.case.variant else self.case.backend

    @property
    def ratio(self) -> float | None:
        """To eager's relative error, see `ratio_to_eager`."""
        return ratio_to_eager(self.error)

    @property
    def used(self) -> float | None:
        """Of what the error rule allows, see `share_of_allowed`."""
        return share_of_allowed(self.error)


class ErrorSummary(NamedTuple):
    """All cases of an operation, backend, dtype, direction and tensor.

    Attributes:
        backend: with its variant.
        dtype: of the inputs.
        direction: `fwd`, `bwd` or `fwd_bwd`.
        tensor: one of `TENSORS`.
        points: how many cases.
        median_ratio: of the ratios to eager; None where none is known.
        worst_ratio: the largest of them.
        worst: the case that has it.
        worst_rel_error: its relative error.
        most_used: the largest share of what is allowed; None where none is known.
        beyond: how many cases are not within what is allowed, or not finite.
        seq_len: N (of the keys), where the summary is of one N.
        head_dim: d, where it is of one d.
        operation: of the cases.
    """

    backend: str
    dtype: str
    direction: str
    tensor: str
    points: int
    median_ratio: float | None
    worst_ratio: float | None
    worst: Case | None
    worst_rel_error: float | None
    most_used: float | None
    beyond: int
    seq_len: int | None = None
    head_dim: int | None = None
    operation: str = ATTENTION


def ratio_to_eager(error: TensorError) -> float | None:
    """The relative error over eager's; 1 where both are exact, infinite where only eager is, None unknown."""
    if error.rel_error is None or error.eager_rel_error is None:
        return None
    if error.eager_rel_error == 0:
        return 1.0 if error.rel_error == 0 else math.inf
    return error.rel_error / error.eager_rel_error


def share_of_allowed(error: TensorError) -> float | None:
    """The largest error over the largest that the rule allows; None where one of them is not known."""
    if error.max_error is None or error.max_allowed is None:
        return None
    if error.max_allowed == 0:
        return 0.0 if error.max_error == 0 else math.inf
    return error.max_error / error.max_allowed


def error_points(measurements: Iterable[Measurement]) -> list[ErrorPoint]:
    """Every tensor whose error was measured, in order of the cases, then of `TENSORS`.

    Cases that did not run have none; a case that is `incorrect` has. Imports know the worst tensor at most.
    """
    found = []
    for row in measurements:
        errors = dict(row.tensor_errors)
        if not errors and row.rel_error is not None:
            errors["worst"] = TensorError(
                rel_error=row.rel_error,
                eager_rel_error=row.eager_rel_error,
                max_error=None,
                max_allowed=None,
            )
        known = [tensor for tensor in TENSORS if tensor in errors]
        known += [tensor for tensor in errors if tensor not in TENSORS]
        found += [ErrorPoint(row.case, tensor, row.status, errors[tensor]) for tensor in known]
    return found


def summaries(points: Sequence[ErrorPoint], by: Collection[str] = ()) -> list[ErrorSummary]:
    """A summary for each operation, backend, dtype, direction and tensor, in order of first appearance.

    Args:
        points: of one run.
        by: `seq_len`, `head_dim` or both: a summary for each of these, too.
    """
    groups: dict[tuple[str, _Group, int | None, int | None], list[ErrorPoint]] = {}
    for point in points:
        case = point.case
        group = (point.backend, case.dtype, case.direction, point.tensor)
        n, d = case.seq_len_k if "seq_len" in by else None, case.head_dim if "head_dim" in by else None
        groups.setdefault((case.operation, group, n, d), []).append(point)
    return [
        _summary(group, own)._replace(seq_len=n, head_dim=d, operation=operation)
        for (operation, group, n, d), own in groups.items()
    ]


def _summary(key: _Group, points: list[ErrorPoint]) -> ErrorSummary:
    ratios = [(point.ratio, point) for point in points if point.ratio is not None]
    shares = [point.used for point in points if point.used is not None]
    worst_ratio, worst = max(ratios, key=lambda pair: pair[0]) if ratios else (None, None)
    return ErrorSummary(
        *key,
        points=len(points),
        median_ratio=float(np.median([ratio for ratio, _ in ratios])) if ratios else None,
        worst_ratio=worst_ratio,
        worst=None if worst is None else worst.case,
        worst_rel_error=None if worst is None else worst.error.rel_error,
        most_used=max(shares, default=None),
        beyond=sum(is_beyond(point) for point in points),
    )


def is_beyond(point: ErrorPoint) -> bool:
    """Whether a tensor breaks the error rule: beyond what is allowed, or not finite where eager is."""
    if point.used is not None:
        return point.used > 1.0
    return point.error.rel_error is None and point.error.max_allowed is not None
