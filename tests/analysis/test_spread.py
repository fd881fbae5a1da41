"""What samples scatter: processes count once each, and rounds keep them from claiming too much."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic import synthetic_run

from profiling.analysis.spread import ROW_FIELDS, Spread, half_width, spreads
from profiling.store import frame, samples_frame


def measured(ms: dict[int, list[list[float]]]) -> Spread:
    """The spread of one row with these samples: by process, rounds of samples."""
    run = synthetic_run(seq_lens=(64,), backends=("flash",), clocks=("device",))
    rows = frame(run)[list(ROW_FIELDS)].assign(number=7)
    one = samples_frame(run).iloc[:1]
    flat = [(p, r, x) for p, rounds in ms.items() for r, samples in enumerate(rounds) for x in samples]
    samples = pd.concat([one] * len(flat), ignore_index=True)
    for k, name in enumerate(("process", "round", "ms")):
        samples[name] = [each[k] for each in flat]
    (found,) = spreads(samples, rows).items()
    assert found[0] == 7
    return found[1]


def test_each_process_counts_once() -> None:
    """The estimate is the mean of medians of medians, however many rounds a process has."""
    found = measured({0: [[1.0, 9.0, 1.0]], 1: [[4.0]] * 9})
    assert found.estimate == pytest.approx((math.log(1) + math.log(4)) / 2)
    assert (found.processes, found.rounds) == (2, 10)
    assert found.variance == pytest.approx(math.log(4) ** 2 / 2)
    assert (found.low, found.high) == pytest.approx((0.0, math.log(4)))


def test_rounds_count_where_processes_agree() -> None:
    """Processes with equal medians say no more than their rounds allow: their variance over their number."""
    found = measured({p: [[1.0], [2.0], [4.0]] for p in range(3)})
    assert found.estimate == pytest.approx(math.log(2))
    assert found.variance == pytest.approx(math.log(2) ** 2 / 3)


def test_one_round_shows_nothing() -> None:
    """A single process with a single round has no spread, and is no error."""
    found = measured({0: [[2.0, 3.0, 4.0]]})
    assert found == (
        pytest.approx(math.log(3)),
        0.0,
        1,
        1,
        pytest.approx(math.log(3)),
        pytest.approx(math.log(3)),
    )


def test_samples_of_other_rows_are_passed_over() -> None:
    """Another case, another clock, or no samples at all: nothing is known."""
    run = synthetic_run(seq_lens=(64, 128), backends=("flash",))
    rows, samples = frame(run)[list(ROW_FIELDS)], samples_frame(run)
    wanted = (rows["seq_len_q"] == 64) & (rows["clock"] == "wall")
    assert list(spreads(samples, rows[wanted].assign(number=3))) == [3]
    assert spreads(samples, rows[wanted].assign(number=3, clock="graph")) == {}
    assert spreads(samples.iloc[:0], rows.assign(number=range(len(rows)))) == {}
    assert spreads(samples, rows.iloc[:0].assign(number=[])) == {}


def test_the_interval_is_students() -> None:
    """Two sides alike in number: the error of the difference, with the smaller side's degrees of freedom."""
    a = Spread(0.0, 0.01, 4, 12, 0.0, 0.0)
    b = Spread(0.0, 0.04, 8, 24, 0.0, 0.0)
    expected = stats.t.ppf(0.975, 3) * math.sqrt(0.01 / 4 + 0.04 / 8)
    assert half_width(a, b) == half_width(b, a) == pytest.approx(expected)


@pytest.mark.parametrize(("few", "many"), [(3, 3), (3, 8), (6, 6)])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_interval_is_never_too_narrow(few: int, many: int, scale: float) -> None:
    """Of 4 000 differences of normal processes, at least 95 % are covered, whatever the two variances."""
    rng = np.random.default_rng(5)
    a = rng.normal(0.0, 1.0, (4000, few))
    b = rng.normal(0.0, scale, (4000, many))
    covered = 0
    for first, second in zip(a, b, strict=True):
        one, two = (Spread(x.mean(), x.var(ddof=1), len(x), 0, 0.0, 0.0) for x in (first, second))
        covered += abs(one.estimate - two.estimate) <= half_width(one, two)
    assert covered / 4000 >= 0.945
