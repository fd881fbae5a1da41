"""A comparison in short: what is counted, averaged, worst, and broken."""

from __future__ import annotations

import pytest
from synthetic import LAWS, synthetic_run

from profiling.analysis.compare import VERDICTS, Comparison, Row, Side, compare
from profiling.analysis.regressions import (
    WORST,
    Limit,
    broken,
    compares_nothing,
    limit,
    percent,
    summary,
)
from profiling.case import Case, InputError
from profiling.store import frame, samples_frame


def row(ratio: float | None, verdict: str, backend: str = "flash", **fields: object) -> Row:
    """A row of a given ratio and verdict; without a ratio it did not run on side B."""
    case = Case(backend=backend, heads=1, kv_heads=1, seq_len_q=64, seq_len_k=64, head_dim=64, head_dim_v=64)
    ran = Side("r", "ok", "", 1.0)
    other = Side("r", "oom", "no room", None) if ratio is None else ran._replace(value=ratio)
    return Row(case, "latency", "device", (ran,), (other,), verdict, ratio)._replace(**fields)  # type: ignore[arg-type]


def comparison(*rows: Row) -> Comparison:
    """A comparison of these rows."""
    return Comparison(rows, (), 0.02, 0.05)


def test_every_row_is_counted_once() -> None:
    """By metric and verdict, over groups as over all."""
    a = synthetic_run(seq_lens=(64, 4096), directions=("fwd", "bwd"), oom_from={"naive": 4096})
    b = synthetic_run(seq_lens=(64, 128, 4096), seed=1)
    found = compare(frame(a), frame(b), samples_frame(a), samples_frame(b))
    told = summary(found)
    assert sum(sum(counts.values()) for counts in told.n_by_verdict.values()) == len(found.rows)
    assert sum(sum(group.n_by_verdict.values()) for group in told.groups) == len(found.rows)
    assert set(told.n_by_verdict) == {"latency", "memory"}
    assert all(list(counts) == list(VERDICTS) for counts in told.n_by_verdict.values())
    names = [(group.metric, group.backend, group.direction, group.clock) for group in told.groups]
    assert len(set(names)) == len(names)
    assert ("memory", "flash", "bwd", "") in names
    lost = {(each.case.backend, each.case.direction, each.case.seq_len_q) for each in told.lost}
    assert lost == {("naive", "bwd", 64), ("flash", "bwd", 64), ("flash", "bwd", 4096)}


def test_the_mean_is_geometric_and_over_what_ran() -> None:
    """Twice and half as long are 1 on average; what did not run, or the clock cannot tell, is left out."""
    limited = Side("r", "ok", "", 9.0, ("timer_limited",))
    rows = (
        row(2.0, "slower"),
        row(0.5, "faster"),
        row(None, "missing"),
        row(9.0, "ambiguous", b=(limited,)),
        row(3.0, "slower", backend="naive"),
    )
    flash, naive = summary(comparison(*rows)).groups
    assert (flash.backend, flash.n_ratio, flash.ratio) == ("flash", 2, pytest.approx(1.0))
    assert (naive.backend, naive.n_ratio, naive.ratio) == ("naive", 1, pytest.approx(3.0))
    (alone,) = summary(comparison(row(None, "missing"))).groups
    assert (alone.n_ratio, alone.ratio) == (0, None)


def test_the_worst_come_first() -> None:
    """Only what is `slower`, by its ratio, and no more than are read."""
    ratios = [1.0 + k / 10 for k in range(1, WORST + 6)]
    rows = [row(ratio, "slower") for ratio in ratios] + [row(99.0, "ambiguous"), row(0.1, "faster")]
    worst = summary(comparison(*rows)).worst
    assert [each.ratio for each in worst] == sorted(ratios, reverse=True)[:WORST]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("slower=5%", Limit("slower", 0.05)),
        ("slower=0.5 %", Limit("slower", 0.005)),
        ("slower", Limit("slower", 0.0)),
        ("faster=10%", Limit("faster", 0.1)),
        ("missing", Limit("missing", 0.0)),
        (" ambiguous ", Limit("ambiguous", 0.0)),
    ],
)
def test_limits_are_read(text: str, found: Limit) -> None:
    """A verdict and, of a speed, how far."""
    read = limit(text)
    assert read.verdict == found.verdict
    assert read.by == pytest.approx(found.by)


@pytest.mark.parametrize(
    "text", ["slow", "slower=5", "slower=", "same", "missing=5%", "slower=-5%", "", "slower=five%"]
)
def test_other_limits_are_rejected(text: str) -> None:
    """With what is allowed."""
    with pytest.raises(InputError, match="such as"):
        limit(text)


@pytest.mark.parametrize("text", ["2", "%", "a%", "1e3%", "-2%"])
def test_percentages_have_their_sign(text: str) -> None:
    """The option that asked is named."""
    with pytest.raises(InputError, match="--margin"):
        percent(text, "--margin")


def test_a_limit_is_broken_by_verdict_and_ratio() -> None:
    """Slower for sure, and by that much or more; what no longer runs is another limit."""
    rows = (
        row(1.05, "slower"),
        row(1.04, "slower"),
        row(1.5, "ambiguous"),
        row(None, "missing"),
        row(1 / 1.05, "faster"),
    )
    found = comparison(*rows)
    assert broken(found, [limit("slower=5%")]) == [rows[0]]
    assert broken(found, [limit("slower")]) == [*rows[:2]]
    assert broken(found, [limit("slower=6%")]) == []
    assert broken(found, [limit("faster=5%")]) == [rows[4]]
    assert broken(found, [limit("missing"), limit("slower=5%")]) == [rows[0], rows[3]]
    assert broken(found, [limit("ambiguous")]) == [rows[2]]
    assert broken(found, []) == []


def test_what_a_lacks_breaks_nothing() -> None:
    """A new case in B, and one that failed on both sides, are no regressions."""
    none, ran = (Side("", "missing", "not in A", None),), (Side("r", "ok", "", 1.0),)
    rows = [row(None, "missing", a=none, b=ran), row(None, "missing", a=none)]
    assert broken(comparison(*rows), [limit("missing")]) == []
    assert compares_nothing(comparison(*rows))
    assert not compares_nothing(comparison(*rows, row(1.0, "same")))


def test_more_memory_from_none_breaks_any_limit() -> None:
    """Without a ratio there is no percentage that it stays below."""
    grown = row(1.0, "slower")._replace(ratio=None)
    assert broken(comparison(grown), [limit("slower=50%")]) == [grown]
    assert summary(comparison(grown, row(2.0, "slower"))).worst[0] == grown


def test_a_slower_version_is_found_in_a_whole_run() -> None:
    """One backend of two that is 20 % slower on long lengths: its rows, and no other's, break 10 %."""
    law = LAWS["flash"]
    slow = {**LAWS, "flash": law._replace(launch_ms=1.2 * law.launch_ms, pair_ms=1.2 * law.pair_ms)}
    quiet = {"process_noise": 0.002, "round_noise": 0.002, "processes": 6, "seq_lens": (1024, 4096)}
    a, b = synthetic_run(**quiet), synthetic_run(laws=slow, seed=1, **quiet)  # type: ignore[arg-type]
    found = compare(frame(a), frame(b), samples_frame(a), samples_frame(b))
    off = broken(found, [limit("slower=10%")])
    assert {each.case.backend for each in off} == {"flash"}
    assert len(off) == 4
    means = {(g.backend, g.clock): g.ratio for g in summary(found).groups if g.metric == "latency"}
    assert means[("flash", "device")] == pytest.approx(1.2, rel=0.01)
    assert means[("naive", "device")] == pytest.approx(1.0, rel=0.01)
