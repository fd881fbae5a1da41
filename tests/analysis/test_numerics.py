"""Errors: the ratio to eager's, what of the rule is used up, and summaries; made-up errors, known answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import failed_measurement, synthetic_case, synthetic_measurement, synthetic_run

from profiling.analysis.numerics import (
    error_points,
    is_beyond,
    ratio_to_eager,
    share_of_allowed,
    summaries,
)
from profiling.paths import DATA_DIR
from profiling.records import Measurement, TensorError
from profiling.store import load_run


def error(
    rel: float | None = 0.002,
    eager: float | None = 0.004,
    largest: float | None = 0.01,
    allowed: float | None = 0.02,
) -> TensorError:
    """An error of these parts."""
    return TensorError(rel_error=rel, eager_rel_error=eager, max_error=largest, max_allowed=allowed)


def measured(n: int = 256, status: str = "ok", backend: str = "flash", **errors: TensorError) -> Measurement:
    """A case with these errors by tensor."""
    row = synthetic_measurement(synthetic_case(backend, n), clocks=("device",))
    return row.model_copy(update={"tensor_errors": errors, "status": status})


@pytest.mark.parametrize(
    ("rel", "eager", "ratio"),
    [
        (0.002, 0.004, 0.5),
        (0.004, 0.004, 1.0),
        (0.0, 0.0, 1.0),
        (1e-9, 0.0, math.inf),
        (0.0, 0.1, 0.0),
        (None, 0.1, None),
        (0.1, None, None),
    ],
)
def test_the_ratio_to_eager(rel: float | None, eager: float | None, ratio: float | None) -> None:
    """1 is as good as eager, also where both are exact; what is not known stays so."""
    assert ratio_to_eager(error(rel, eager)) == ratio


@pytest.mark.parametrize(
    ("largest", "allowed", "share", "beyond"),
    [
        (0.01, 0.02, 0.5, False),
        (0.02, 0.02, 1.0, False),
        (0.03, 0.02, 1.5, True),
        (0.0, 0.0, 0.0, False),
        (0.1, 0.0, math.inf, True),
        (0.1, None, None, False),  # eager is not finite itself: it cannot judge
    ],
)
def test_the_share_of_what_is_allowed(
    largest: float, allowed: float | None, share: float | None, beyond: bool
) -> None:
    """1 is the limit; above it the rule is broken."""
    point = error_points([measured(out=error(largest=largest, allowed=allowed))])[0]
    assert share_of_allowed(point.error) == share
    assert is_beyond(point) == beyond


def test_a_result_that_is_not_finite_is_beyond() -> None:
    """A record has None where an error is infinite: that is no missing error, it is the worst."""
    lost = error(rel=None, largest=None)
    (point,) = error_points([measured(status="incorrect", dq=lost)])
    assert is_beyond(point)
    (summary,) = summaries([point])
    assert (summary.beyond, summary.worst, summary.median_ratio, summary.most_used) == (1, None, None, None)


def test_tensors_come_in_one_order() -> None:
    """Whatever order a file has them in: out, lse, gradients."""
    row = measured(dv=error(), out=error(), dsinks=error(), lse=error())
    assert [point.tensor for point in error_points([row])] == ["out", "lse", "dv", "dsinks"]


def test_imports_know_the_worst_tensor_alone() -> None:
    """A row without tensors has its own two errors under `worst`; one without errors has none."""
    row = measured().model_copy(update={"rel_error": 0.3, "eager_rel_error": 0.2})
    (point,) = error_points([row])
    assert (point.tensor, point.ratio, point.used) == ("worst", pytest.approx(1.5), None)
    assert not is_beyond(point)
    assert error_points([row.model_copy(update={"rel_error": None})]) == []
    assert error_points([failed_measurement(synthetic_case("naive", 64))]) == []


def test_a_summary_by_hand() -> None:
    """Three cases with ratios 0.5, 2 and 1: median 1, worst 2 at its N; a broken rule is counted."""
    rows = [
        measured(64, out=error(0.002, 0.004, 0.01, 0.02)),
        measured(128, status="incorrect", out=error(0.008, 0.004, 0.05, 0.02)),
        measured(256, out=error(0.003, 0.003, 0.001, 0.02)),
    ]
    (found,) = summaries(error_points(rows))
    assert (found.backend, found.dtype, found.direction, found.tensor) == ("flash", "bf16", "fwd", "out")
    assert (found.points, found.median_ratio, found.worst_ratio) == (3, 1.0, 2.0)
    assert found.worst is not None
    assert (found.worst.seq_len_k, found.worst_rel_error) == (128, 0.008)
    assert (found.most_used, found.beyond) == (2.5, 1)


def test_groups_are_kept_apart() -> None:
    """Backends, variants, dtypes, directions and tensors each have their own summary."""
    run = synthetic_run(
        backends=("naive", "naive/fill", "flash"),
        dtypes=("bf16", "fp16"),
        directions=("fwd", "bwd"),
        seq_lens=(64, 128),
        clocks=("wall",),
    )
    found = summaries(error_points(run.measurements))
    assert len(found) == 3 * 2 * 2
    assert {each.points for each in found} == {2}
    assert {each.backend for each in found} == {"naive", "naive/fill", "flash"}
    assert all(each.median_ratio == pytest.approx(31 / 29) for each in found)


def test_summaries_of_one_n_or_one_d() -> None:
    """Asked for by N or d they say which; otherwise they are over all of them."""
    run = synthetic_run(backends=("flash",), seq_lens=(64, 128), head_dims=(64, 128), clocks=("wall",))
    points = error_points(run.measurements)
    assert [(x.seq_len, x.head_dim, x.points) for x in summaries(points)] == [(None, None, 4)]
    found = summaries(points, ("seq_len",))
    assert [(x.seq_len, x.head_dim, x.points) for x in found] == [(64, None, 2), (128, None, 2)]
    both = {(x.seq_len, x.head_dim): x.points for x in summaries(points, ("seq_len", "head_dim"))}
    assert both == {(n, d): 1 for n in (64, 128) for d in (64, 128)}


@settings(deadline=None)  # a busy machine must not fail it
@given(st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3)), min_size=1, max_size=20))
def test_the_median_is_never_above_the_worst(errors: list[tuple[float, float]]) -> None:
    """For any errors, and the worst ratio belongs to a case of the group."""
    rows = [measured(64 * (i + 1), out=error(*pair)) for i, pair in enumerate(errors)]
    (found,) = summaries(error_points(rows))
    assert found.median_ratio is not None
    assert found.worst_ratio is not None
    assert found.median_ratio <= found.worst_ratio
    assert found.worst in [row.case for row in rows]


def test_the_committed_runs_are_within_the_rule() -> None:
    """Every `ok` case of `h200-standard`; eager is its own yardstick, flash nearer to fp64 than eager is."""
    points = error_points(load_run(DATA_DIR / "samples" / "h200-standard.jsonl").measurements)
    found = {(each.backend, each.direction, each.tensor): each for each in summaries(points)}
    assert not any(each.beyond for each in found.values())
    assert found["naive", "fwd", "out"].worst_ratio == 1.0
    assert found["flash", "fwd", "out"].median_ratio == pytest.approx(0.516, abs=0.001)
    gradients = [found["flash", "bwd", name].worst_ratio for name in ("dq", "dk", "dv")]
    assert max(x for x in gradients if x is not None) == pytest.approx(0.836, abs=0.001)
