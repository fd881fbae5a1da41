"""Merging processes: one row per case, its status, its quantiles over all samples, its flags."""

from datetime import UTC, datetime

import numpy as np
import pytest

from profiling.measure.merge import Attempt, merge
from profiling.measure.messages import BlockResult, ClockNote, Outcome
from profiling.records import GpuState, Sample

NOW = datetime(2026, 11, 29, 12, 0, 1, tzinfo=UTC)


def samples(process, times, clock="wall"):
    """Samples of one process, two a round."""
    return tuple(
        Sample(clock=clock, process=process, round=i // 2, order=0, ms=ms) for i, ms in enumerate(times)
    )


def attempt(process, *outcomes, **result):
    """One process' outcomes of a block."""
    return Attempt(process, dict(enumerate(outcomes)), BlockResult(outcomes=outcomes, **result))


def merged(block, *attempts, clocks=("wall",)):
    """The rows that attempts make."""
    return merge(block, attempts, clocks, {"naive": "abc"}, NOW)


def test_quantiles_are_over_all_processes(make_case):
    """The summary is of every sample; rounds of different processes are different rounds."""
    first, second = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0]
    (row,) = merged(
        [make_case()],
        attempt(0, Outcome(samples=samples(0, first), kernel="eager", rel_error=1e-3, first_call_ms=9.0)),
        attempt(1, Outcome(samples=samples(1, second))),
    )
    (clock,) = row.clocks
    assert row.status == "ok"
    assert clock.latency_p50_ms == pytest.approx(np.median(first + second))
    assert clock.latency_p20_ms == pytest.approx(np.quantile(first + second, 0.2))
    assert clock.latency_p80_ms == pytest.approx(np.quantile(first + second, 0.8))
    assert (clock.n_samples, clock.n_rounds, clock.n_processes) == (6, 3, 2)
    assert [s.ms for s in row.samples] == first + second
    assert (row.kernel, row.rel_error, row.first_call_ms, row.kernel_hash) == ("eager", 1e-3, 9.0, "abc")
    assert row.measured_at == "2026-11-29T12:00:01Z"


def test_a_failure_has_a_row_for_every_clock_and_no_latency(make_case):
    """A case that failed carries its status on each planned clock, and no number."""
    block = [make_case(), make_case(backend="tiled")]
    bad, good = merged(
        block,
        attempt(0, Outcome(status="oom", reason="no room"), Outcome(samples=samples(0, [1.0]))),
        clocks=("wall", "device"),
    )
    assert (bad.status, bad.reason) == ("oom", "no room")
    assert [(c.clock, c.status, c.latency_p50_ms) for c in bad.clocks] == [
        ("wall", "oom", None),
        ("device", "oom", None),
    ]
    assert good.status == "ok"


def test_a_failure_in_a_later_process_counts(make_case):
    """What ran once and failed the second time is no `ok`; its samples stay, its summary does not."""
    (row,) = merged(
        [make_case()],
        attempt(0, Outcome(samples=samples(0, [1.0, 2.0]))),
        attempt(1, Outcome(status="crashed", reason="boom")),
    )
    assert row.status == "crashed"
    assert row.reason == "in process 1: boom"
    assert len(row.samples) == 2
    assert row.clocks[0].latency_p50_ms is None


def test_a_clock_that_failed_leaves_the_others(make_case):
    """A graph that could not be captured is that clock's status; the case itself is `ok`."""
    note = ClockNote(status="unsupported", reason="CUDA graph: no")
    (row,) = merged(
        [make_case()],
        attempt(0, Outcome(samples=samples(0, [1.0]), clocks={"graph": note})),
        clocks=("wall", "graph"),
    )
    assert row.status == "ok"
    assert [(c.clock, c.status, c.reason) for c in row.clocks] == [
        ("wall", "ok", ""),
        ("graph", "unsupported", "CUDA graph: no"),
    ]


def test_a_remark_stays_with_its_clock(make_case):
    """A clock that ran with a remark is `ok` and keeps the remark."""
    note = ClockNote(status="ok", reason="late")
    (row,) = merged([make_case()], attempt(0, Outcome(samples=samples(0, [1.0]), clocks={"wall": note})))
    assert (row.clocks[0].status, row.clocks[0].reason) == ("ok", "late")


class TestFlags:
    """What makes a row suspicious."""

    def row(self, make_case, times=(1.0, 1.0, 1.0, 1.0), sm_clocks_mhz=(), **result):
        """The flags of one case measured in one process: of the case, then of its clock."""
        outcome = Outcome(samples=samples(0, times), sm_clocks_mhz=sm_clocks_mhz)
        (row,) = merged([make_case()], attempt(0, outcome, **result))
        return row.flags + row.clocks[0].flags

    def read(self, make_case, *by_process):
        """The row of a case at whose visits each process read these SM clocks."""
        outcomes = [
            Outcome(samples=samples(i, [1.0]), sm_clocks_mhz=clocks) for i, clocks in enumerate(by_process)
        ]
        (row,) = merged([make_case()], *(attempt(i, outcome) for i, outcome in enumerate(outcomes)))
        return row

    def test_none(self, make_case):
        """Steady samples, steady clocks, a cool GPU: no flag."""
        assert self.row(make_case, sm_clocks_mhz=(1980, 1950), floor_ms={"wall": 0.001}) == ()

    def test_noisy(self, make_case):
        """An interquartile range above a tenth of the median is noise."""
        assert self.row(make_case, times=(1.0, 1.3, 1.0, 1.3)) == ("noisy",)
        assert self.row(make_case, times=(1.0, 1.05, 1.0, 1.05)) == ()

    @pytest.mark.parametrize(
        ("limits", "flags"),
        [
            ({"floor_ms": {"wall": 0.49}}, ()),
            ({"floor_ms": {"wall": 0.51}}, ("timer_limited",)),
            ({"resolution_ms": {"wall": 0.09}}, ()),
            ({"resolution_ms": {"wall": 0.11}}, ("timer_limited",)),
            ({"floor_ms": {"graph": 0.9}}, ()),
        ],
    )
    def test_timer_limited(self, make_case, limits, flags):
        """A latency of 1 ms: half an empty kernel, or ten steps of its own clock, and no more."""
        assert self.row(make_case, **limits) == flags

    def test_what_a_clock_can_show_is_stored_with_it(self, make_case):
        """Floor and step of each clock are in the row."""
        limits = {"floor_ms": {"wall": 0.01}, "resolution_ms": {"wall": 0.002}}
        (row,) = merged([make_case()], attempt(0, Outcome(samples=samples(0, [1.0])), **limits))
        assert (row.clocks[0].floor_ms, row.clocks[0].resolution_ms) == (0.01, 0.002)

    def test_a_clock_keeps_its_flags_to_itself(self, make_case):
        """Noise on one clock says nothing of another."""
        quiet = tuple(x.model_copy(update={"clock": "device"}) for x in samples(0, [1.0] * 4))
        both = Outcome(samples=(*samples(0, [1.0, 1.3, 1.0, 1.3]), *quiet))
        (row,) = merge([make_case()], [attempt(0, both)], ("wall", "device"), {})
        assert [clock.flags for clock in row.clocks] == [("noisy",), ()]

    def test_the_lowest_and_highest_clock_are_stored(self, make_case):
        """Of all visits of all processes, whatever is flagged."""
        row = self.read(make_case, (1980, 1650, 1815), (1815, 1800, 1995))
        assert (row.sm_clock_min_mhz, row.sm_clock_max_mhz, row.flags) == (1650, 1995, ())

    @pytest.mark.parametrize(
        "by_process",
        [
            [(1980, 1650, 1815, 1700, 1900)] * 3,
            [(1650, 1980, 1815), (1815, 1980, 1650), (1980, 1830, 1650)],
            [(1980, 1650, 1965, 1665), (1665, 1965, 1650, 1980)],
            [(1650, 1980, 1650, 1980)],
            [(1980, 1815, 1650, 1980, 1815, 1650)],
        ],
    )
    def test_a_power_cap_is_no_clock_drift(self, make_case, by_process):
        """It regulates the clock up and down within each process, whose medians agree."""
        assert self.read(make_case, *by_process).flags == ()

    @pytest.mark.parametrize(
        "by_process",
        [
            [(1980,), (1700,)],
            [(1980, 1965, 1980), (1980, 1980), (1815, 1980, 1800)],
            [(1700, 1650, 1750), (1980, 1700, 1965)],
        ],
    )
    def test_clock_drift_between_processes(self, make_case, by_process):
        """One process' median is more than three per cent from another's: their samples are not alike."""
        assert self.read(make_case, *by_process).flags == ("clock_drift",)

    @pytest.mark.parametrize(("slower", "flags"), [(1940, ()), (1939, ("clock_drift",))])
    def test_clock_drift_begins_beyond_three_per_cent_of_the_largest(self, make_case, slower, flags):
        """2000 and 1940 MHz are three per cent apart, and pass: of two processes, and of halves of one."""
        assert self.read(make_case, (2000,) * 3, (slower,) * 3).flags == flags
        assert self.read(make_case, (slower,) * 3, (2000,) * 3).flags == flags
        assert self.read(make_case, (2000,) * 3 + (slower,) * 3).flags == flags

    @pytest.mark.parametrize(
        ("clocks", "flags"),
        [
            ((1980, 1980, 1980, 1650, 1650, 1650), ("clock_drift",)),
            ((1980, 1980, 1815, 1650, 1650), ("clock_drift",)),
            ((1650, 1980), ("clock_drift",)),
            ((1980, 1650, 1980), ()),
            ((1980, 1980, 1980, 1980, 1980, 1650), ()),
            ((1650,), ()),
            ((), ()),
        ],
    )
    @pytest.mark.parametrize("silent", [0, 2])
    def test_clock_drift_of_a_lone_process(self, make_case, clocks, flags, silent):
        """Its earlier visits are compared with its later ones; other processes that read nothing are none.

        A visit in the middle is of neither half, and one visit has nothing to be compared with.
        """
        assert self.read(make_case, clocks, *[()] * silent).flags == flags

    def test_a_failed_case_has_no_clock_drift(self, make_case):
        """It has no latency that a clock could have changed."""
        failed = Outcome(status="oom", reason="no room", sm_clocks_mhz=(1980, 1650))
        (row,) = merged([make_case()], attempt(0, failed))
        assert row.flags == ()

    def test_cases_of_a_block_may_run_at_clocks_of_their_own(self, make_case):
        """What draws more power is slowed down more: that is no drift of either."""
        fast, slow = (Outcome(samples=samples(0, [1.0]), sm_clocks_mhz=(x,) * 3) for x in (1980, 1650))
        rows = merged([make_case(), make_case(backend="tiled")], attempt(0, fast, slow))
        assert [row.flags for row in rows] == [(), ()]

    @pytest.mark.parametrize(
        ("reasons", "flags"), [(0x4, ()), (0x20, ("thermal",)), (0x40, ("thermal",)), (0x1, ())]
    )
    def test_thermal(self, make_case, reasons, flags):
        """Heat is a flag; a power cap or idling is not."""
        assert self.row(make_case, event_reasons=reasons) == flags


def test_gpu_states_are_of_the_first_and_the_last_process(make_case):
    """Before the first samples, after the last ones."""
    before, between, after = (GpuState(sm_clock_mhz=x) for x in (1, 2, 3))
    (row,) = merged(
        [make_case()],
        attempt(0, Outcome(samples=samples(0, [1.0])), gpu_before=before, gpu_after=between),
        attempt(1, Outcome(samples=samples(1, [1.0])), gpu_before=between, gpu_after=after),
    )
    assert (row.gpu_before, row.gpu_after) == (before, after)


def test_a_block_that_never_came_to_an_end(make_case):
    """Where every worker died there are rows all the same."""
    (row,) = merged([make_case()], Attempt(0, {0: Outcome(status="crashed", reason="gone")}, None))
    assert row.status == "crashed"
    assert row.gpu_before is None
