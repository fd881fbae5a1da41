"""Exponents: exact laws give exact exponents, noise gives an interval that holds them."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import Law, synthetic_run

from profiling.analysis.scaling import fit, scalings
from profiling.case import InputError
from profiling.store import frame

PURE = {"naive": Law(0.0, 2e-6, pair_bytes=4096.0), "flash": Law(0.0, 1e-6, token_bytes=4096.0)}


def test_memory_laws_are_found_exactly() -> None:
    """Naive grows with N², flash with N: that is the whole story of the memory page."""
    run = synthetic_run(laws=PURE)
    found = {each.backend: each for each in scalings(frame(run), metric="memory")}
    assert found["naive"].exponent == pytest.approx(2.0, abs=1e-9)
    assert found["flash"].exponent == pytest.approx(1.0, abs=1e-9)
    assert found["flash"].prefactor == pytest.approx(4096 * 16)
    assert (found["naive"].first_seq_len, found["naive"].last_seq_len) == (512, 4096)
    assert found["naive"].n_points == 4


def test_launches_are_left_out_of_the_fit() -> None:
    """Over the last octaves a law with a launch is steeper than over all, and near its N²."""
    run = synthetic_run(seq_lens=tuple(2**k for k in range(6, 15)), round_noise=0.0, process_noise=0.0)
    last, wide = (
        next(each for each in scalings(frame(run), octaves=octaves) if each.backend == "naive")
        for octaves in (2.0, 8.0)
    )
    assert 1.9 < last.exponent < 2.0
    assert wide.exponent < last.exponent - 0.3


def test_the_interval_holds_the_exponent_under_noise() -> None:
    """95 % of intervals of N² with 3 % noise hold 2, give or take what 300 trials allow."""
    rng = np.random.default_rng(0)
    n = 2.0 ** np.arange(8, 13)
    held = 0
    for _ in range(300):
        _, interval, _ = fit(n, n**2 * np.exp(rng.normal(0, 0.03, len(n))))
        held += interval[0] <= 2.0 <= interval[1]
    assert 0.91 <= held / 300 <= 0.99


def test_too_few_points_give_less_not_nonsense() -> None:
    """One N has no exponent, two have one without an interval, and failed rows are no points."""
    assert scalings(frame(synthetic_run(seq_lens=(64,)))) == []
    for each in scalings(frame(synthetic_run(seq_lens=(64, 128)))):
        assert each.interval is None
        assert each.n_points == 2
    run = synthetic_run(seq_lens=(64, 128, 256), oom_from={"naive": 128})
    assert {each.backend for each in scalings(frame(run))} == {"flash"}
    assert scalings(frame([])) == []


def test_clocks_are_fitted_apart_and_metrics_checked() -> None:
    """Only rows of the asked clock count; an unknown metric is refused."""
    run = synthetic_run(directions=("fwd", "bwd"))
    assert {each.slice.clock for each in scalings(frame(run), clock="wall")} == {"wall"}
    assert len(scalings(frame(run), clock="wall")) == 4
    with pytest.raises(InputError, match="latency, memory"):
        scalings(frame(run), metric="speed")
