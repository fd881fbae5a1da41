"""The crossover engine: the right bracket, an honest interval, and a verdict for every shape of curve.

All curves here are made from formulas (tests/synthetic.py) or from medians others have published.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import pandas as pd
import pytest
from synthetic import (
    LAWS,
    Law,
    failed_measurement,
    synthetic_case,
    synthetic_environment,
    synthetic_measurement,
    synthetic_run,
    true_crossover,
)

from profiling.analysis.crossover import VERDICTS, Crossover, crossovers
from profiling.case import InputError
from profiling.records import ClockResult, Measurement, Run
from profiling.store import frame, samples_frame

Values = Mapping[int, float | str]


def table(naive: Values, flash: Values, memory: bool = False) -> pd.DataFrame:
    """A table without samples: N to milliseconds (or bytes), or to the status of a case that failed."""
    measurements = []
    for name, values in (("naive", naive), ("flash", flash)):
        for n, value in values.items():
            case = synthetic_case(name, n)
            if isinstance(value, str):
                measurements.append(failed_measurement(case, value, value))
                continue
            clock = ClockResult(clock="device", latency_p50_ms=1.0 if memory else value)
            fields = {"peak_mem_bytes": round(value), "mem_method": "cuda_allocator"} if memory else {}
            measurements.append(Measurement(case=case, status="ok", clocks=(clock,), **fields))
    run = synthetic_run(seq_lens=())
    header = run.header.model_copy(update={"clocks": ("device",)})
    return frame(dataclasses.replace(run, header=header, measurements=tuple(measurements)))


def only(found: list[Crossover]) -> Crossover:
    """The single crossover."""
    assert len(found) == 1
    return found[0]


def measured(run: Run, **ask: object) -> list[Crossover]:
    """The crossovers of a run with its samples."""
    return crossovers(frame(run), samples_frame(run), **ask)


def limited_up_to(run: Run, last: int) -> Run:
    """The run with `timer_limited` on the device clock of the candidate's cases up to N = last."""
    flagged = []
    for m in run.measurements:
        if m.case.backend == "flash" and m.case.seq_len_q <= last:
            clocks = tuple(c.model_copy(update={"flags": ("timer_limited",)}) for c in m.clocks)
            m = m.model_copy(update={"clocks": clocks})
        flagged.append(m)
    return dataclasses.replace(run, measurements=tuple(flagged))


# ------------------------------------------------------------------------------------- what is not ranked


def test_what_the_clock_cannot_resolve_is_left_out() -> None:
    """A point within the clock's own time has no say: neither a sign, nor a doubt, and the answer says so."""
    run = synthetic_run(seq_lens=(64, 128, 256, 512, 1024))
    whole, cut = only(measured(run)), only(measured(limited_up_to(run, 128)))
    assert [p.seq_len for p in whole.points] == [64, 128, 256, 512, 1024]
    assert [p.seq_len for p in cut.points] == [256, 512, 1024]
    assert (whole.limited, cut.limited) == ((), (64, 128))
    assert "N = 64 and 128 are left out" in cut.why
    assert cut.verdict != "ambiguous"


def test_where_no_point_can_be_resolved_there_is_no_answer() -> None:
    """All within the clock's own time: ambiguous, and the next step is another clock or longer N."""
    run = synthetic_run(seq_lens=(64, 128))
    found = only(measured(limited_up_to(run, 128)))
    assert (found.verdict, found.points, found.limited) == ("ambiguous", (), (64, 128))
    assert "clock cannot tell" in found.why
    assert "graph clock" in found.next


def test_memory_knows_no_clock() -> None:
    """A clock's limits say nothing of bytes."""
    run = limited_up_to(synthetic_run(seq_lens=(64, 128)), 128)
    assert only(measured(run, metric="memory")).limited == ()


# ------------------------------------------------------------------------------------ verdicts, medians


@pytest.mark.parametrize(
    ("naive", "flash", "verdict", "brackets"),
    [
        ({64: 1, 128: 2}, {64: 0.5, 128: 0.5}, "always", ()),
        ({64: 1, 128: 2}, {64: 2.0, 128: 3.0}, "never", ()),
        ({64: 1, 128: 2, 256: 4}, {64: 2.0, 128: 1.0, 256: 1}, "clear", ((64, 128),)),
        ({64: 1, 128: 2, 256: 4}, {64: 0.5, 128: 3.0, 256: 5}, "clear", ((64, 128),)),
        (
            {64: 1, 128: 2, 256: 4, 512: 9},
            {64: 2, 128: 1, 256: 5, 512: 6},
            "several",
            ((64, 128), (128, 256), (256, 512)),
        ),
        ({64: 1, 128: "oom"}, {64: 2, 128: 3}, "censored", ()),
        ({64: 1}, {64: 2, 128: 3}, "censored", ()),
        ({64: 1, 128: "timeout"}, {64: 2, 128: 3}, "censored", ()),
        ({64: 1, 128: "oom"}, {64: 0.5, 128: 1}, "always", ()),
        ({64: 1, 128: "oom"}, {64: 2, 128: "oom"}, "never", ()),
        ({64: 1, 128: 2}, {64: 2, 128: "unsupported"}, "never", ()),
        ({64: "oom"}, {64: 1}, "censored", ()),
        ({64: 1}, {128: 1}, "censored", ()),
        ({64: 1, 128: 2}, {64: 1, 128: 1}, "ambiguous", ()),
        ({64: 1}, {64: 1}, "ambiguous", ()),
        ({64: 1, 128: 1, 256: 2}, {64: 2, 128: 1, 256: 1}, "clear", ((64, 256),)),
    ],
)
def test_the_verdict_follows_from_the_signs(
    naive: Values, flash: Values, verdict: str, brackets: tuple[tuple[int, int], ...]
) -> None:
    """From medians alone: each verdict where design says so, all sign changes kept, nothing extrapolated."""
    found = only(crossovers(table(naive, flash)))
    assert found.verdict == verdict
    assert found.verdict in VERDICTS
    assert found.brackets == brackets
    assert found.interval is None
    assert found.share is None
    assert len(found.crossings) == len(brackets)
    assert all(low < n < high for n, (low, high) in zip(found.crossings, brackets, strict=True))
    assert (found.crossover_seq_len is not None) == (verdict == "clear")
    for sentence in (found.why, found.next):
        assert sentence.endswith(".")
        assert "\n" not in sentence


def test_the_side_on_which_the_candidate_is_ahead_is_told() -> None:
    """Overtaking and falling behind are both a clear crossing; `ahead` tells them apart."""
    up = only(crossovers(table({64: 1, 128: 2}, {64: 2, 128: 1})))
    down = only(crossovers(table({64: 2, 128: 1}, {64: 1, 128: 2})))
    assert (up.ahead, down.ahead) == ("above", "below")
    assert "behind up to N = 64 and ahead from N = 128 on" in up.why
    assert "ahead up to N = 64 and behind from N = 128 on" in down.why


def test_swapping_the_backends_swaps_the_sides_only() -> None:
    """Brackets and N* do not depend on which of the two is called the baseline."""
    medians = table({64: 1, 128: 2, 256: 8}, {64: 2, 128: 3, 256: 4})
    one = only(crossovers(medians))
    other = only(crossovers(medians, baseline="flash", candidate="naive"))
    assert one.brackets == other.brackets == ((128, 256),)
    assert one.crossings == pytest.approx(other.crossings)
    assert [p.sign for p in one.points] == [-p.sign for p in other.points]


def test_published_medians_give_their_bracket() -> None:
    """Liger-Kernel's fused neighbourhood attention, backward, H100 (2 x 512, 8 heads, ead96b6): 512..1024."""
    ns = (64, 128, 256, 512, 1024)
    torch_ms = dict(zip(ns, (0.4124, 0.4137, 0.4321, 0.4431, 0.9624), strict=True))
    liger_ms = dict(zip(ns, (0.4911, 0.4912, 0.5104, 0.5199, 0.6806), strict=True))
    found = only(crossovers(table(torch_ms, liger_ms)))
    assert found.verdict == "clear"
    assert found.brackets == ((512, 1024),)
    assert found.bracket_only
    assert "no samples" in found.why
    assert 600 < (found.crossover_seq_len or 0) < 700


def test_where_memory_ends_is_told() -> None:
    """`oom_from` is the first N after the last success; an earlier accident is not the end."""
    found = only(
        crossovers(
            table(
                {64: 1, 128: "oom", 256: 3, 512: "oom", 1024: "oom"},
                {64: 0.5, 128: 1, 256: 1, 512: 2, 1024: "crashed"},
            )
        )
    )
    assert found.baseline_oom_from == 512
    assert found.candidate_oom_from is None
    assert found.verdict == "always"
    assert [p.seq_len for p in found.points] == [64, 256]
    assert "naive is out of memory from N = 512 on" in found.why


def test_n_zero_has_no_place_on_the_axis() -> None:
    """An empty sequence is measured but not interpolated."""
    found = only(crossovers(table({0: 1, 64: 1}, {0: 2, 64: 0.5})))
    assert [p.seq_len for p in found.points] == [64]


# ----------------------------------------------------------------------------------- only what is alike


def test_rows_that_are_not_ok_and_requested_tiles_do_not_count() -> None:
    """An incorrect row has no speed, and a tile sweep cannot decide a crossover."""
    run = synthetic_run(seq_lens=(64, 1024), tiles=((64, 64),))
    fast = Law(launch_ms=1e-6, pair_ms=1e-15)
    cheats = [
        synthetic_measurement(synthetic_case("flash", n), laws={"flash": fast}).model_copy(
            update={"status": "incorrect", "reason": "out is off"}
        )
        for n in (128, 256)
    ]
    found = only(measured(dataclasses.replace(run, measurements=(*run.measurements, *cheats)), clock="wall"))
    assert [p.seq_len for p in found.points] == [64, 1024]


def test_backends_are_compared_within_a_run_only() -> None:
    """The baseline of one run and the candidate of another never meet; the same shape twice stays twice."""
    a = synthetic_run(run_id="a", backends=("naive",))
    b = synthetic_run(run_id="b", backends=("flash",))
    both = pd.concat([frame(a), frame(b)], ignore_index=True)
    assert crossovers(both) == []
    c, d = synthetic_run(run_id="c"), synthetic_run(run_id="d", seed=1)
    found = crossovers(frame([c, d]), samples_frame([c, d]))
    assert [each.slice.run_id for each in found] == ["c", "d"]
    alone = only(crossovers(frame(d), samples_frame(d)))
    assert found[1] == alone


def test_clocks_and_devices_are_kept_apart() -> None:
    """Each clock has its own answer, and two devices in one resumed run have two."""
    run = synthetic_run(seq_lens=(64, 256, 1024, 4096))
    by_clock = {clock: only(measured(run, clock=clock)) for clock in ("wall", "device")}
    assert by_clock["wall"].crossover_seq_len > 1.5 * by_clock["device"].crossover_seq_len
    environments = (synthetic_environment(), synthetic_environment("NVIDIA A100-SXM4-80GB"))
    moved = tuple(m.model_copy(update={"environment": int(m.case.seq_len_q > 256)}) for m in run.measurements)
    split = dataclasses.replace(run, measurements=moved, environments=environments)
    found = measured(split)
    assert [each.slice.device_name for each in found] == ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]
    assert [each.verdict for each in found] == ["never", "always"]


def test_a_filter_changes_no_number() -> None:
    """The same slice gives the same interval, alone or among others."""
    run = synthetic_run(directions=("fwd", "bwd"), causals=(False, True))
    everything = measured(run)
    rows, samples = frame(run), samples_frame(run)
    alone = crossovers(
        rows[(rows["direction"] == "bwd") & rows["causal"]].reset_index(drop=True),
        samples[(samples["direction"] == "bwd") & samples["causal"]],
    )
    assert only(alone) == everything[3]
    assert measured(run, seed=1)[3].points != everything[3].points


# --------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("clock", ["wall", "device", "graph"])
def test_the_truth_of_a_known_law_is_found(clock: str) -> None:
    """Launch and quadratic work, 1 % noise: one clear crossing, its interval narrow and at the truth."""
    run = synthetic_run(clocks=(clock,), processes=5)
    found = only(measured(run, clock=clock))
    truth = true_crossover(LAWS["naive"], LAWS["flash"], clock=clock, pairs_per_square=16)
    assert found.verdict == "clear"
    assert found.ahead == "above"
    assert not found.bracket_only
    low, high = found.interval
    assert low / 1.01 < truth < high * 1.01  # how often it holds the truth: see test_calibration
    assert high / low < 1.2
    assert low < found.crossover_seq_len < high
    assert found.brackets[0][0] < truth < found.brackets[0][1]
    assert found.share >= 0.95
    assert found.processes == 5
    assert "process" not in found.why


def test_points_carry_their_intervals() -> None:
    """Each ratio lies in its interval, near the ratio of the two medians, and the sign follows from it."""
    found = only(measured(synthetic_run()))
    for p in found.points:
        assert p.ratio_lo < p.ratio < p.ratio_hi
        assert p.ratio == pytest.approx(p.baseline_value / p.candidate_value, rel=0.02)
        assert p.sign == (1 if p.ratio_lo > 1 else -1 if p.ratio_hi < 1 else 0)


def test_without_between_process_spread_the_interval_says_so() -> None:
    """One process, and two, give an interval with a warning; three give one without."""
    said = {}
    for processes in (1, 2, 3):
        found = only(measured(synthetic_run(processes=processes)))
        assert found.interval is not None
        assert found.processes == processes
        assert found.calibrated is (processes == 3)
        said[processes] = found.why
    assert "one process only" in said[1]
    assert "2 processes are too few" in said[2]
    assert "process" not in said[3]


def test_one_round_of_one_process_gives_no_false_certainty() -> None:
    """A single paired ratio has no spread: the warning stands, and nothing is divided by zero."""
    found = only(measured(synthetic_run(processes=1, rounds=1, samples_per_round=1)))
    assert "one process only" in found.why


def test_a_point_within_the_noise_has_no_sign() -> None:
    """Two backends alike at small N: the verdict stays open, says where, and what to repeat."""
    laws = {"naive": Law(0.02, 2e-9), "flash": Law(0.02, 0.5e-9)}
    run = synthetic_run(laws=laws, seq_lens=(16, 4096), round_noise=0.02)
    found = only(measured(run))
    assert [p.sign for p in found.points] == [0, 1]
    assert found.verdict == "ambiguous"
    assert "At N = 16 the difference is within the noise" in found.why
    assert found.next.startswith("Repeat at N = 16")


def test_a_noisy_point_inside_a_crossing_widens_the_bracket() -> None:
    """The crossing lies between the nearest points that have a sign of their own."""
    truth = true_crossover(LAWS["naive"], LAWS["flash"], clock="device", pairs_per_square=16)
    middle = round(truth)
    run = synthetic_run(seq_lens=(middle // 4, middle, 4 * middle), round_noise=0.03)
    found = only(measured(run))
    assert [p.sign for p in found.points] == [-1, 0, 1]
    assert found.verdict == "clear"
    assert found.brackets == ((middle // 4, 4 * middle),)
    assert found.interval[0] < truth < found.interval[1]


# ------------------------------------------------------------------------------------------------ memory


def test_memory_is_exact() -> None:
    """Peak bytes have brackets and N* but no interval, and no clock."""
    found = only(
        crossovers(
            table({64: 100, 128: 400, 256: 1600}, {64: 200, 128: 390, 256: 800}, True), metric="memory"
        )
    )
    assert found.verdict == "clear"
    assert found.brackets == ((64, 128),)
    assert found.interval is None
    assert not found.bracket_only
    assert found.clock == found.slice.clock == ""
    assert "process" not in found.why


def test_equal_bytes_are_a_tie_not_noise() -> None:
    """Equal at small N, less from then on: never behind, hence `always`; equal everywhere: undecided."""
    found = only(crossovers(table({64: 512, 128: 2048}, {64: 512, 128: 1024}, True), metric="memory"))
    assert found.verdict == "always"
    tie = only(crossovers(table({64: 512}, {64: 512}, True), metric="memory"))
    assert tie.verdict == "ambiguous"
    assert "equal" in tie.why


def test_zero_bytes_have_no_ratio() -> None:
    """A peak below what the method can see is neither ahead nor behind, and draws no infinite ratio."""
    found = only(
        crossovers(table({64: 0, 128: 300, 256: 900}, {64: 0, 128: 400, 256: 800}, True), metric="memory")
    )
    assert found.points[0].ratio is None
    assert found.brackets == ((128, 256),)


# ------------------------------------------------------------------------------------------ asking, telling


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"baseline": "magic"}, "unknown backend"),
        ({"candidate": "sdpa/add"}, "has no variants"),
        ({"baseline": "flash"}, "must differ"),
        ({"metric": "speed"}, "latency, memory"),
        ({"clock": "sundial"}, "wall"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask: dict[str, str], said: str) -> None:
    """One sentence, with what is allowed."""
    with pytest.raises(InputError, match=said):
        crossovers(frame([]), **ask)


def test_nothing_to_compare_is_an_empty_list() -> None:
    """An empty table, a clock that was not measured, a backend that is not there."""
    run = synthetic_run(seq_lens=(64,))
    assert crossovers(frame([])) == []
    assert crossovers(frame([]), samples_frame([])) == []
    assert measured(run, clock="graph") == []
    assert measured(run, candidate="sdpa_flash") == []
    assert measured(run, baseline="naive/fill") == []


def test_a_variant_is_a_backend() -> None:
    """`naive/fp32_softmax` is compared by its own rows."""
    found = only(measured(synthetic_run(backends=("naive", "naive/fill", "flash")), baseline="naive/fill"))
    assert found.baseline == "naive/fill"
    assert found.verdict == "clear"


def test_the_answer_goes_into_json() -> None:
    """The documented keys are there, intervals and brackets are lists, and nothing is NaN."""
    for found in (only(measured(synthetic_run())), only(crossovers(table({64: 1}, {64: 2, 128: 3})))):
        told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert told == found.to_dict()
        for key in ("slice", "verdict", "brackets", "crossover_seq_len", "interval", "why", "next"):
            assert key in told


def test_along_keys_with_few_queries() -> None:
    """Decoding: the number of queries stays, N is the number of keys."""
    cases = [
        synthetic_case(b, n).model_copy(update={"seq_len_q": 16})
        for n in (64, 65536)
        for b in ("naive", "flash")
    ]
    run = dataclasses.replace(
        synthetic_run(seq_lens=()), measurements=tuple(synthetic_measurement(c) for c in cases)
    )
    found = only(measured(run))
    assert found.slice.seq_len_q == 16
    assert found.brackets == ((64, 65536),)
