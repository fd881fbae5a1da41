"""Two sides, case by case: one verdict each, nothing lost, and no difference where there is none."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import LAWS, failed_measurement, synthetic_case, synthetic_environment, synthetic_run

from profiling.analysis.compare import METRICS, VERDICTS, Comparison, Row, compare
from profiling.case import KEY_FIELDS, InputError
from profiling.paths import DATA_DIR
from profiling.records import Run
from profiling.store import frame, load_run, samples_frame

SHORT = {"seq_lens": (1024, 2048), "backends": ("flash",)}


def sides(a: Run, b: Run, **options: object) -> Comparison:
    """The comparison of two runs, with their samples."""
    return compare(frame(a), frame(b), samples_frame(a), samples_frame(b), **options)  # type: ignore[arg-type]


def bare(a: Run, b: Run, **options: object) -> Comparison:
    """The same without samples."""
    return compare(frame(a), frame(b), **options)  # type: ignore[arg-type]


def scaled(by: float, **options: object) -> Run:
    """A run whose every latency is `by` times as long, with noise of its own."""
    laws = {
        name: law._replace(launch_ms=by * law.launch_ms, pair_ms=by * law.pair_ms)
        for name, law in LAWS.items()
    }
    return synthetic_run(**(SHORT | {"laws": laws, "seed": 1} | options))  # type: ignore[arg-type]


def latencies(found: Comparison) -> list[Row]:
    """The rows of latency."""
    return [row for row in found.rows if row.metric == "latency"]


def verdicts(found: Comparison, metric: str = "latency") -> set[str]:
    """The verdicts of one metric."""
    return {row.verdict for row in found.rows if row.metric == metric}


class TestBySamples:
    """Samples of enough processes on both sides."""

    @pytest.mark.parametrize(
        ("by", "verdict"), [(1.0, "same"), (1.2, "slower"), (1.05, "slower"), (0.8, "faster")]
    )
    def test_a_true_difference_is_told(self, by: float, verdict: str) -> None:
        """With little noise each row is what it truly is, and its interval holds the true ratio."""
        quiet = {"processes": 8, "process_noise": 0.002, "round_noise": 0.002}
        found = sides(scaled(1.0, seed=0, **quiet), scaled(by, **quiet))
        assert verdicts(found) == {verdict}
        for row in latencies(found):
            assert row.basis == "processes"
            assert row.interval is not None
            assert row.interval[0] < row.ratio < row.interval[1]
            assert row.ratio == pytest.approx(by, rel=0.01)
            assert row.interval[0] <= by * 1.003
            assert row.interval[1] >= by / 1.003
            assert [side.processes for side in (*row.a, *row.b)] == [8, 8]

    def test_noise_is_ambiguous(self) -> None:
        """Where processes differ by a tenth, neither 0 nor 5 % can be told, and the row says why."""
        for by in (1.0, 1.05):
            found = sides(scaled(1.0, seed=0, process_noise=0.1), scaled(by, process_noise=0.1))
            assert verdicts(found) == {"ambiguous"}
            assert {row.why for row in latencies(found)} == {"the interval reaches across the margin"}

    def test_the_margin_decides(self) -> None:
        """A difference of 5 % is the same within 10 %, and slower beyond 2 %."""
        quiet = {"processes": 8, "process_noise": 0.002, "round_noise": 0.002}
        pair = scaled(1.0, seed=0, **quiet), scaled(1.05, **quiet)
        assert verdicts(sides(*pair)) == {"slower"}
        assert verdicts(sides(*pair, margin=0.1, threshold=0.1)) == {"same"}

    def test_processes_that_agree_by_luck_do_not_hide_their_rounds(self) -> None:
        """Equal medians of processes with scattered rounds leave the interval as wide as the rounds say."""
        a, b = (scaled(by, seed=0, process_noise=0.0, round_noise=0.0) for by in (1.0, 1.03))
        assert verdicts(sides(a, b)) == {"slower"}
        tables = []
        for run in (a, b):
            samples = samples_frame(run)
            ripple = np.array([0.8, 0.9, 1.0, 1.1, 1.2])[samples["round"].to_numpy()]
            tables.append(samples.assign(ms=samples["ms"] * ripple))
        found = compare(frame(a), frame(b), *tables)
        assert verdicts(found) == {"ambiguous"}

    def test_equal_rows_are_rarely_called_different(self) -> None:
        """Of 1 000 equal rows with three noisy processes a side, under one in forty is called slower."""
        many = {"seq_lens": tuple(range(64, 64 + 500)), "backends": ("flash",), "samples_per_round": 1}
        noisy = {"process_noise": 0.05, "round_noise": 0.05, "rounds": 3}
        a, b = (synthetic_run(seed=seed, **many, **noisy) for seed in (3, 4))  # type: ignore[arg-type]
        counts = Counter(row.verdict for row in latencies(sides(a, b)))
        assert sum(counts.values()) == 1000
        assert counts["slower"] / 1000 < 0.025
        assert counts["faster"] / 1000 < 0.025


class TestFewProcesses:
    """One or two processes on a side: what they have in common cannot be known."""

    @pytest.mark.parametrize("processes", [1, 2])
    def test_only_what_every_round_shows(self, processes: int) -> None:
        """Twice as slow in every round is slower; 3 % is not, and equal is not `same`."""
        few = {"processes": processes}
        for by, verdict in ((2.0, "slower"), (0.5, "faster"), (1.03, "ambiguous"), (1.0, "ambiguous")):
            found = sides(scaled(1.0, seed=0), scaled(by, **few))
            assert verdicts(found) == {verdict}
            assert {row.basis for row in latencies(found)} == {"rounds"}
        assert {row.why for row in latencies(found)} == {
            f"too few processes to know their noise: 3 in A, {processes} in B"
        }

    def test_two_rounds_show_no_noise(self) -> None:
        """One process with two rounds says nothing about noise: ambiguous however large the difference."""
        found = sides(scaled(1.0, seed=0, processes=1, rounds=2), scaled(3.0, processes=1, rounds=2))
        assert verdicts(found) == {"ambiguous"}
        assert all(row.interval is None and row.ratio > 2 for row in latencies(found))


class TestSummaries:
    """Files without samples."""

    @pytest.mark.parametrize(
        ("by", "verdict"), [(1.01, "same"), (1.035, "ambiguous"), (1.2, "slower"), (0.8, "faster")]
    )
    def test_the_threshold_decides(self, by: float, verdict: str) -> None:
        """No interval: the same within the margin, a difference beyond the threshold, else ambiguous."""
        none = {"process_noise": 0.0, "round_noise": 0.0}
        found = bare(scaled(1.0, **none), scaled(by, **none))
        assert verdicts(found) == {verdict}
        assert {(row.basis, row.interval) for row in latencies(found)} == {("summary", None)}

    def test_one_side_without_samples_is_enough(self) -> None:
        """Samples of one side alone make no interval."""
        a, b = scaled(1.0), scaled(1.5)
        found = compare(frame(a), frame(b), samples_frame(a), None)
        assert {row.basis for row in latencies(found)} == {"summary"}
        assert verdicts(found) == {"slower"}

    def test_percentiles_that_overlap_tell_nothing(self) -> None:
        """Beyond the threshold, but within the spread of the samples: ambiguous; unknown spread: told."""
        a, b = (frame(scaled(by, process_noise=0.0, round_noise=0.0)) for by in (1.0, 1.1))
        wide = b.assign(latency_p20_ms=b["latency_p20_ms"] * 0.8)
        assert verdicts(compare(a, wide)) == {"ambiguous"}
        assert verdicts(compare(a, wide.assign(latency_p20_ms=np.nan))) == {"slower"}


class TestOuterJoin:
    """Nothing of either side is lost, and nothing becomes a speed-up that did not run."""

    def test_what_one_side_lacks_says_why(self) -> None:
        """A case that failed has its status and reason; one that is not there, that it is not."""
        a = synthetic_run(seq_lens=(64, 4096, 8192), oom_from={"naive": 4096})
        b = synthetic_run(seq_lens=(64, 4096, 16384), backends=("naive",), seed=1)
        found = sides(a, b, metrics=("latency",), clocks=("device",))
        said = {
            (row.case.backend, row.case.seq_len_q): (row.verdict, row.ratio, row.why, row.is_lost)
            for row in found.rows
        }
        assert len(said) == len(found.rows) == 7
        assert said[("naive", 4096)] == ("missing", None, "A: oom, out of memory", False)
        assert said[("naive", 8192)] == (
            "missing",
            None,
            "A: oom, out of memory; B: missing, not in B",
            False,
        )
        assert said[("naive", 16384)] == ("missing", None, "A: missing, not in A", False)
        for seq_len in (64, 4096, 8192):
            assert said[("flash", seq_len)] == ("missing", None, "B: missing, not in B", True)
        assert said[("naive", 64)][0] in ("same", "ambiguous")

    def test_a_wrong_result_is_no_speed_up(self) -> None:
        """A row that is `incorrect` is missing, however fast it is."""
        a, b = frame(scaled(1.0)), frame(scaled(0.1)).assign(status="incorrect", reason="beyond the rule")
        found = compare(a, b)
        assert verdicts(found) == {"missing"}
        assert verdicts(found, "memory") == {"missing"}
        assert all(row.b[0].value is None and row.is_lost for row in found.rows)

    def test_duplicates_are_shown_and_not_averaged(self) -> None:
        """A case that a side has twice is one ambiguous row with both values."""
        a = frame([scaled(1.0, run_id="one"), scaled(5.0, run_id="two")])
        b = frame(scaled(1.0))
        for found in (compare(a, b), compare(b, a)):
            assert verdicts(found) == verdicts(found, "memory") == {"ambiguous"}
            for row in found.rows:
                both = max(row.a, row.b, key=len)
                assert [side.run_id for side in both] == ["one", "two"]
                assert row.ratio is None
                assert "2 rows in" in row.why
            (first,) = [r for r in latencies(found) if r.clock == "device" and r.case.seq_len_q == 1024]
            values = [side.value for side in max(first.a, first.b, key=len)]
            assert values[1] > 4 * values[0]

    def test_a_repeated_row_of_one_run_is_a_duplicate(self) -> None:
        """The same run's case twice, as a table put together by hand may have it: one row, both shown."""
        table = frame(scaled(1.0))
        found = compare(pd.concat([table, table], ignore_index=True), table)
        assert {row.verdict for row in found.rows} == {"ambiguous"}
        assert {len(row.a) for row in found.rows} == {2}

    def test_memory_and_energy_have_a_row_a_case(self) -> None:
        """Whatever the number of clocks; and none where neither side has measured it."""
        a, b = frame(scaled(1.0)), frame(scaled(1.0))
        assert Counter(row.metric for row in compare(a, b).rows) == {"latency": 4, "memory": 2}
        found = compare(a.assign(energy_mj=2.0), b)
        assert {row.why for row in found.rows if row.metric == "energy"} == {
            "B: missing, no energy was measured"
        }
        found = compare(a.assign(energy_mj=2.0), b.assign(energy_mj=3.0))
        assert [(r.verdict, r.basis, r.clock) for r in found.rows if r.metric == "energy"] == [
            ("slower", "summary", "")
        ] * 2

    def test_memory_of_the_allocator_is_exact(self) -> None:
        """A peak that differs by 3 % differs; resident sizes of processes scatter; methods never mix."""
        a = frame(scaled(1.0))
        b = a.assign(peak_mem_bytes=(a["peak_mem_bytes"] * 1.03).astype("float").round().astype("Int64"))
        assert verdicts(compare(a, b), "memory") == {"slower"}
        a, b = (each.assign(mem_method="child_rss") for each in (a, b))
        assert verdicts(compare(a, b), "memory") == {"ambiguous"}
        mixed = compare(a.assign(mem_method="cuda_allocator"), b)
        assert {row.why for row in mixed.rows if row.metric == "memory"} == {
            "measured by cuda_allocator and child_rss, which do not compare"
        }

    def test_a_value_of_nothing_has_no_ratio(self) -> None:
        """No bytes on both sides are the same; from none to some is more, without a ratio."""
        a = frame(scaled(1.0))
        none = a.assign(peak_mem_bytes=pd.array([0] * len(a), dtype="Int64"))
        assert verdicts(compare(none, none), "memory") == {"same"}
        for found, verdict in ((compare(none, a), "slower"), (compare(a, none), "faster")):
            assert verdicts(found, "memory") == {verdict}
            assert {row.ratio for row in found.rows if row.metric == "memory"} == {None}


class TestTheClock:
    """What the clock itself cannot tell."""

    def test_a_latency_within_the_clocks_own_share(self) -> None:
        """A `timer_limited` row is neither faster nor slower, and not the same either."""
        a, b = frame(scaled(1.0)), frame(scaled(2.0))
        limited = b.assign(flags="noisy;timer_limited")
        assert verdicts(compare(a, limited)) == verdicts(compare(limited, a)) == {"ambiguous"}
        assert verdicts(compare(a, b.assign(flags="noisy"))) == {"slower"}

    def test_a_difference_within_one_step(self) -> None:
        """A clock that counts in steps of 1 ms cannot tell 0.04 ms from 0.08."""
        a, b = (frame(scaled(by)).assign(resolution_ms=1.0) for by in (1.0, 2.0))
        found = compare(a, b)
        assert verdicts(found) == {"ambiguous"}
        assert {row.why for row in latencies(found)} == {"the difference is within one step of the clock"}

    def test_only_the_clocks_that_were_asked_for(self) -> None:
        """A clock is a dimension: rows of others are left out, and none is joined with another's."""
        a, b = scaled(1.0), scaled(1.0, clocks=("device", "graph"))
        every = sides(a, b, metrics=("latency",))
        assert Counter(row.clock for row in every.rows) == {"wall": 2, "device": 2, "graph": 2}
        assert {row.clock: row.verdict for row in every.rows if row.clock != "device"} == {
            "wall": "missing",
            "graph": "missing",
        }
        one = sides(a, b, metrics=("latency",), clocks=("device",))
        assert [row for row in every.rows if row.clock == "device"] == list(one.rows)


class TestRejected:
    """One sentence, and no answer."""

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"metrics": ("speed",)}, "must be one of latency, memory, energy"),
            ({"margin": 0.0}, "above 0 and at most the threshold"),
            ({"margin": 0.06}, "got 6 % and 5 %"),
            ({"threshold": math.inf}, "at most the threshold"),
        ],
    )
    def test_options(self, options: dict[str, object], said: str) -> None:
        """What is not allowed is told with what is."""
        with pytest.raises(InputError, match=said):
            bare(scaled(1.0), scaled(1.0), **options)

    def test_an_empty_side(self) -> None:
        """A run without rows has nothing to compare; which side it is is told."""
        with pytest.raises(InputError, match="B has no rows"):
            compare(frame(scaled(1.0)), frame([]))


LENGTHS = (64, 160, 512)
side = st.fixed_dictionaries(
    {
        "present": st.sets(
            st.tuples(st.sampled_from(("naive", "flash")), st.sampled_from(LENGTHS)), min_size=1
        ),
        "failed": st.sets(st.tuples(st.sampled_from(("naive", "flash")), st.sampled_from(LENGTHS))),
        "by": st.sampled_from((0.5, 0.95, 1.0, 1.04, 1.3)),
        "processes": st.integers(1, 4),
        "noise": st.sampled_from((0.0, 0.01, 0.1)),
        "keep_samples": st.booleans(),
        "seed": st.integers(0, 99),
    }
)


def made(options: dict) -> Run:
    """A run of the cases that are present, of which some failed."""
    whole = scaled(
        options["by"],
        seq_lens=LENGTHS,
        backends=("naive", "flash"),
        clocks=("wall", "device"),
        processes=options["processes"],
        rounds=3,
        samples_per_round=1,
        process_noise=options["noise"],
        keep_samples=options["keep_samples"],
        seed=options["seed"],
    )
    kept = []
    for m in whole.measurements:
        name = (m.case.backend, m.case.seq_len_q)
        if name in options["present"]:
            kept.append(failed_measurement(m.case, "crashed", "boom") if name in options["failed"] else m)
    return dataclasses.replace(whole, measurements=tuple(kept))


@settings(max_examples=15, deadline=None)
@given(side, side)
def test_swapping_the_sides_swaps_the_verdicts(one: dict, other: dict) -> None:
    """Faster becomes slower and the ratio its inverse; all else stays as it is."""
    a, b = made(one), made(other)
    there = {(row.case, row.metric, row.clock): row for row in sides(a, b).rows}
    back = {(row.case, row.metric, row.clock): row for row in sides(b, a).rows}
    assert set(there) == set(back)
    opposite = {"faster": "slower", "slower": "faster"}
    for key, row in there.items():
        mirrored = back[key]
        assert mirrored.verdict == opposite.get(row.verdict, row.verdict)
        told = [[(side.status, side.value, side.processes) for side in own] for own in (row.a, row.b)]
        assert [[(s.status, s.value, s.processes) for s in own] for own in (mirrored.b, mirrored.a)] == told
        assert (mirrored.ratio is None) == (row.ratio is None)
        if row.ratio is not None:
            assert mirrored.ratio == pytest.approx(1 / row.ratio)
        if row.interval is not None:
            assert mirrored.interval == pytest.approx((1 / row.interval[1], 1 / row.interval[0]))


@settings(max_examples=15, deadline=None)
@given(side, side)
def test_every_case_appears_once(one: dict, other: dict) -> None:
    """Per clock, whatever either side has, with its own status; and each verdict is a known one."""
    a, b = made(one), made(other)
    tables = [frame(run) for run in (a, b)]
    found = sides(a, b, metrics=("latency",))
    rows = [(*row.case.key, row.clock) for row in found.rows]
    assert len(set(rows)) == len(rows)
    held = [_names(table) for table in tables]
    assert set(rows) == held[0] | held[1]
    for row in found.rows:
        assert row.verdict in VERDICTS
        both = row.a[0].status == row.b[0].status == "ok"
        assert (row.verdict == "missing") == (not both)
        assert (row.ratio is not None) == both


def _names(table: pd.DataFrame) -> set[tuple]:
    plain = table[[*KEY_FIELDS, "clock"]].astype(object)
    return set(plain.where(plain.notna(), None).itertuples(index=False, name=None))


@settings(max_examples=15, deadline=None)
@given(side)
def test_a_run_is_not_faster_than_itself(options: dict) -> None:
    """Same or ambiguous wherever it ran, with a ratio of 1."""
    run = made(options)
    found = sides(run, run)
    assert {row.verdict for row in found.rows} <= {"same", "ambiguous", "missing"}
    assert {row.ratio for row in found.rows} <= {1.0, None}
    assert found.differences == ()


@pytest.mark.parametrize(
    "name", ["h200-standard", "h200-decode", "h200-features", "cpu-quick", "h200-counters"]
)
def test_a_real_run_against_itself(name: str) -> None:
    """The committed runs: every row once; same, ambiguous, or missing on both sides."""
    run = load_run(DATA_DIR / "samples" / f"{name}.jsonl")
    found = sides(run, run)
    assert len(latencies(found)) == len(frame(run))
    assert {row.verdict for row in found.rows} <= {"same", "ambiguous", "missing"}
    assert not any(row.is_lost for row in found.rows)


def test_an_older_run_of_another_gpu_is_told_apart() -> None:
    """What differs is on top, whatever the rows say."""
    a = synthetic_run(**SHORT)  # type: ignore[arg-type]
    b = synthetic_run(environment=synthetic_environment("NVIDIA A100"), **SHORT)  # type: ignore[arg-type]
    assert [each.what for each in sides(a, b).differences] == ["device"]


def test_sm_clocks_ride_along() -> None:
    """A side has the middle of the clocks seen; unknown ones are never apart."""
    a = frame(scaled(1.0))

    def at(low: int, high: int) -> pd.DataFrame:
        ends = {"sm_clock_min_mhz": low, "sm_clock_max_mhz": high}
        return a.assign(**{name: pd.array([mhz] * len(a), dtype="Int64") for name, mhz in ends.items()})

    slow, fast = at(1700, 1800), at(1980, 1980)
    assert {row.sm_clocks_apart_mhz for row in compare(slow, fast).rows} == {(1750.0, 1980.0)}
    assert {row.sm_clocks_apart_mhz for row in compare(slow, slow).rows} == {None}
    assert {row.sm_clocks_apart_mhz for row in compare(a, fast).rows} == {None}


def test_rows_are_ready_for_json() -> None:
    """A row has its label and key, and lists where JSON has no tuples."""
    found = sides(scaled(1.0), scaled(1.3))
    told = found.rows[0].to_dict()
    assert told["label"] == synthetic_case("flash", 1024).label
    assert told["case"]["seq_len_q"] == 1024
    assert told["interval"] == list(found.rows[0].interval)
    assert told["a"][0]["status"] == "ok"
    assert set(METRICS) == {"latency", "memory", "energy"}
