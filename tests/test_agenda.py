"""The order of a run under a clock that is made up: what comes first, when it stops, how it goes on."""

import itertools

import pytest

from profiling.agenda import Agenda, Limit, seconds, width
from profiling.case import Case, InputError, blocks
from profiling.planning import sign_changes
from profiling.records import Measurement
from tests.test_planning import by_law

LENGTHS = [2**i for i in range(6, 15)]


def cases(head_dims=(64,), lengths=LENGTHS, backends=("naive", "flash"), **shape):
    """A sweep: head dims, N, backends."""
    return [
        Case(backend=b, seq_len_q=n, seq_len_k=n, head_dim=d, head_dim_v=d, heads=16, kv_heads=16, **shape)
        for d in head_dims
        for n in lengths
        for b in backends
    ]


class Machine:
    """Measures by known laws, on a clock of its own: a case takes `took_s`, and so it was guessed."""

    def __init__(self, took_s=lambda case: 1.0, guess_s=None, fails=lambda case: False):
        self.now_s = 0.0
        self.took_s = took_s
        self.guess_s = guess_s or took_s
        self.fails = fails
        self.done = []

    def now(self):
        """The clock."""
        return self.now_s

    def limit(self, budget_s):
        """A time limit from now."""
        return Limit(self.guess_s, self.now_s + budget_s)

    def measure(self, block):
        """A row for each case, and the time it took."""
        self.done.append(list(block))
        self.now_s += sum(map(self.took_s, block))
        return [Measurement(case=case, status="oom") if self.fails(case) else by_law(case) for case in block]

    def run(self, plan, measured=(), budget_s=None, refine_to=None):
        """The rows of an agenda, and the agenda."""
        agenda = Agenda(
            plan,
            measured=measured,
            clock="device",
            refine_to=refine_to,
            limit=None if budget_s is None else self.limit(budget_s),
            now=self.now,
        )
        rows = [row for block in agenda for row in agenda.learn(self.measure(block))]
        return rows, agenda

    @property
    def lengths(self):
        """N of each block, as they were measured."""
        return [block[0].seq_len_k for block in self.done]


class TestOrder:
    """Which block comes next."""

    def test_without_a_limit_the_sweeps_own(self):
        """Blocks come as they are listed."""
        machine = Machine()
        rows, agenda = machine.run(blocks(cases()))
        assert [row.case for row in rows] == cases()
        assert agenda.left_out == agenda.wide == 0
        assert not any(row.refined for row in rows)

    def test_with_time_enough_every_case_once(self):
        """A limit changes the order, not the set."""
        machine = Machine()
        rows, agenda = machine.run(blocks(cases((64, 128))), budget_s=1000)
        assert sorted(row.case.label for row in rows) == sorted(c.label for c in cases((64, 128)))
        assert agenda.left_out == 0

    def test_ends_first_then_towards_the_change(self):
        """64 and 16384 turn out opposite, then the middle, then always the half where the sign changes."""
        machine = Machine()
        machine.run(blocks(cases()), budget_s=1000)
        assert machine.lengths[:5] == [64, 16384, 1024, 256, 512]  # the laws meet at 790

    def test_series_are_served_in_turns(self):
        """No series gets a second N before each has its first."""
        machine = Machine()
        machine.run(blocks(cases((32, 64, 128))), budget_s=1000)
        firsts = [block[0].head_dim for block in machine.done]
        assert set(firsts[:3]) == {32, 64, 128}
        assert set(firsts[3:6]) == {32, 64, 128}
        assert machine.lengths[:6] == [64] * 3 + [16384] * 3

    def test_cheap_before_dear(self):
        """Of equally telling blocks the cheaper comes first."""
        machine = Machine(took_s=lambda case: case.head_dim)
        machine.run(blocks(cases((128, 32, 64))), budget_s=1e6)
        assert [block[0].head_dim for block in machine.done[:3]] == [32, 64, 128]

    def test_where_a_sign_changes_before_where_it_does_not(self):
        """A series whose ends agree waits until the one whose ends differ is bisected."""
        always = cases((32,), lengths=[2048, 4096, 8192, 16384])
        crossing = cases((64,), lengths=[256, 512, 1024, 2048])
        machine = Machine()
        machine.run(blocks([*always, *crossing]), budget_s=1000)
        inner = [(block[0].head_dim, block[0].seq_len_k) for block in machine.done[4:]]
        assert inner[:2] == [(64, 512), (64, 1024)]

    def test_an_end_that_failed_may_hide_a_change(self):
        """Where naive ran out of memory at the end, its gap comes before one whose ends agree."""
        always = cases((32,), lengths=[2048, 4096, 8192])
        hidden = cases((128,), lengths=[2048, 4096, 8192])
        machine = Machine(fails=lambda c: (c.backend, c.head_dim, c.seq_len_k) == ("naive", 128, 8192))
        machine.run(blocks([*always, *hidden]), budget_s=1000)
        assert [block[0].head_dim for block in machine.done[4:]] == [128, 32]

    def test_tiles_and_single_backends(self):
        """Series without a pair are bisected all the same: ends, middle, rest."""
        machine = Machine()
        machine.run(blocks(cases(backends=("flash",), tile_m=64, tile_n=64)), budget_s=1000)
        assert machine.lengths[:3] == [64, 16384, 1024]
        assert sorted(machine.lengths) == LENGTHS

    def test_no_keys_at_all(self):
        """N = 0 is an end like any other."""
        machine = Machine()
        machine.run(blocks(cases(lengths=[0, 1, 2, 4])), budget_s=1000)
        assert sorted(machine.lengths) == [0, 1, 2, 4]

    def test_what_is_left_of_a_block_comes_first(self):
        """A resumed block that has some of its rows is completed before anything new."""
        machine = Machine()
        done = [by_law(c) for c in cases() if c.seq_len_k in (64, 16384, 1024)][:-1]
        left = [c for c in cases() if c not in {row.case for row in done}]
        machine.run(blocks(left), measured=done, budget_s=1000)
        assert machine.done[0] == [c for c in left if c.seq_len_k == 16384]


class TestLimit:
    """When it stops."""

    def test_it_stops_before_it_would_be_late(self):
        """No block is begun that is expected to end after the deadline; what is left out is counted."""
        machine = Machine(took_s=lambda case: 5.0)
        rows, agenda = machine.run(blocks(cases()), budget_s=34)
        assert machine.now_s == 30
        assert len(rows) == 6
        assert agenda.left_out == len(cases()) - 6

    def test_guesses_are_corrected(self):
        """Blocks that take three times as long as guessed are expected to go on so."""
        machine = Machine(took_s=lambda case: 30.0, guess_s=lambda case: 10.0)
        _, agenda = machine.run(blocks(cases((32, 64, 128))), budget_s=600)
        assert machine.now_s <= 600
        assert agenda.left_out > 0

    def test_a_slow_first_block_is_no_prophecy(self):
        """The first call compiles for 20 s: the blocks after it, of 1 s, are not given up for it."""
        first = itertools.chain([20.0], itertools.repeat(0.5))
        machine = Machine(took_s=lambda case: next(first), guess_s=lambda case: 0.5)
        _, agenda = machine.run(blocks(cases()), budget_s=60)
        assert agenda.left_out == 0

    def test_a_cheaper_block_may_still_fit(self):
        """What is too dear is passed over."""
        machine = Machine(took_s=lambda case: 100.0 if case.seq_len_k == 16384 else 1.0)
        rows, agenda = machine.run(blocks(cases()), budget_s=50)
        assert {row.case.seq_len_k for row in rows} == set(LENGTHS) - {16384}
        assert agenda.left_out == 2

    def test_no_time_at_all(self):
        """Nothing is begun."""
        rows, agenda = Machine().run(blocks(cases()), budget_s=0.5)
        assert rows == []
        assert agenda.left_out == len(cases())

    def test_resumed_it_goes_on_where_it_was(self):
        """Parts of a run, each with its own limit, end with the set of one without, and none twice."""
        machine, rows = Machine(), []
        for _ in range(20):
            done = {row.case for row in rows}
            found, agenda = machine.run(
                blocks(c for c in cases((64, 128)) if c not in done), measured=rows, budget_s=7
            )
            rows += found
            if not agenda.left_out:
                break
        assert sorted(row.case.label for row in rows) == sorted(c.label for c in cases((64, 128)))

    @pytest.mark.parametrize(("text", "s"), [("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 m ", 120)])
    def test_durations(self, text, s):
        """A number and its unit."""
        assert seconds(text) == s

    @pytest.mark.parametrize("text", ["", "10", "ten minutes", "-5m", "0s", "0.0h", "1d", "1e3s", "nan s"])
    def test_what_is_no_duration(self, text):
        """One sentence says what one looks like."""
        with pytest.raises(InputError, match=r"such as 90s, 10m or 1\.5h"):
            seconds(text)


class TestLikely:
    """What a run is likely to hand out, told before it measures."""

    @staticmethod
    def agenda(plan, machine, budget_s=None, **fields):
        """An agenda that has not begun."""
        limit = None if budget_s is None else machine.limit(budget_s)
        return Agenda(blocks(plan), clock="device", limit=limit, now=machine.now, **fields)

    def test_without_a_limit_all(self):
        """In the plan's order."""
        assert self.agenda(cases(), Machine()).likely() == cases()

    def test_time_enough_for_all(self):
        """As much as the plan is guessed to take is enough, and less is not."""
        plan = cases((64, 128))
        assert self.agenda(plan, Machine(), len(plan)).likely() == plan
        assert len(self.agenda(plan, Machine(), len(plan) - 1).likely()) < len(plan)

    def test_a_short_one_takes_the_ends(self):
        """8 s, of 36: both ends of both series, in the plan's order, and nothing between."""
        plan = cases((64, 128))
        assert self.agenda(plan, Machine(), 8).likely() == [c for c in plan if c.seq_len_k in (64, 16384)]

    def test_then_the_middle(self):
        """6 s: the middle of the gap between the ends comes next."""
        found = self.agenda(cases(), Machine(), 6).likely()
        assert found == [case for case in cases() if case.seq_len_k in (64, 1024, 16384)]

    def test_what_is_too_dear_is_left_out(self):
        """A block beyond the time is passed over for those that fit."""
        machine = Machine(took_s=lambda case: 100.0 if case.seq_len_k == 16384 else 1.0)
        found = self.agenda(cases(), machine, 99).likely()
        assert {case.seq_len_k for case in found} == set(LENGTHS) - {16384}

    @pytest.mark.parametrize("budget_s", [0.5, 1e-6, 0.0, -5.0])
    def test_no_time(self, budget_s):
        """Nothing, where not even the first block would fit, or the time is over."""
        assert self.agenda(cases(), Machine(), budget_s).likely() == []

    def test_an_empty_plan(self):
        """Everything is measured already: nothing is likely, with and without a limit."""
        assert self.agenda([], Machine()).likely() == self.agenda([], Machine(), 10).likely() == []

    @pytest.mark.parametrize("refine_to", [None, 0.125])
    @pytest.mark.parametrize("budget_s", [3, 7, 20, 1000])
    def test_nothing_is_changed(self, budget_s, refine_to):
        """The agenda asked hands out what one does that was not, at the same times; the clock stood still."""
        measured = [by_law(case) for case in cases() if case.seq_len_k in (64, 16384)]
        left = [case for case in cases() if case.seq_len_k not in (64, 16384)]
        asked, silent = Machine(), Machine()
        agenda = self.agenda(left, asked, budget_s, measured=measured, refine_to=refine_to)
        before = len(measured), agenda.left_out, agenda.wide
        assert agenda.likely() == agenda.likely()
        assert (len(measured), agenda.left_out, agenda.wide) == before
        assert (asked.now_s, asked.done) == (0.0, [])
        rows = [row for block in agenda for row in agenda.learn(asked.measure(block))]
        expected, other = silent.run(blocks(left), measured, budget_s, refine_to)
        assert rows == expected
        assert (agenda.left_out, agenda.wide) == (other.left_out, other.wide)

    @pytest.mark.parametrize("budget_s", [2, 5, 1000])
    def test_refinement_plays_no_part(self, budget_s):
        """Cases beyond the sweep are none of it, and take no time from the sweep's."""
        measured = [by_law(case) for case in cases() if case.seq_len_k in (64, 512, 1024, 16384)]
        left = [case for case in cases() if case.seq_len_k not in (64, 512, 1024, 16384)]
        plain, refining = (
            self.agenda(left, Machine(), budget_s, measured=measured, refine_to=to).likely()
            for to in (None, 0.125)
        )
        assert refining == plain
        assert set(refining) <= set(left)

    def test_signs_that_are_known_count(self):
        """Resumed, the half of a gap in which the sign changes comes first."""
        measured = [by_law(case) for case in cases() if case.seq_len_k in (64, 1024, 16384)]
        left = [case for case in cases() if case.seq_len_k not in (64, 1024, 16384)]
        found = self.agenda(left, Machine(), 2, measured=measured).likely()
        assert {case.seq_len_k for case in found} == {256}  # the laws meet at 790

    @pytest.mark.parametrize("budget_s", [2, 4, 10, 15, 30])
    def test_it_holds_what_is_then_measured(self, budget_s):
        """With right guesses these curves have nothing else measured, though their signs lead elsewhere."""
        plan, machine = cases((64, 128)), Machine()
        likely = self.agenda(plan, machine, budget_s).likely()
        rows, _ = machine.run(blocks(plan), budget_s=budget_s)
        assert {row.case for row in rows} <= set(likely)


class TestRefine:
    """What is added to the plan."""

    def test_after_the_plan_and_marked(self):
        """New blocks follow the sweep's, of the pair at N between; their rows say so."""
        machine = Machine()
        rows, agenda = machine.run(blocks(cases()), refine_to=0.125)
        assert [row.case for row in rows[: len(cases())]] == cases()
        assert [row.refined for row in rows] == [False] * len(cases()) + [True] * 6
        assert machine.lengths[-3:] == [720, 864, 784]
        (bracket,) = sign_changes(rows, "device")
        assert bracket.width <= 0.125
        assert agenda.wide == 0

    def test_stopped_and_resumed(self):
        """Wherever it was stopped, going on ends with the same set of rows, and none twice."""
        whole, _ = Machine().run(blocks(cases()), refine_to=0.125)
        for stop in range(len(cases()), len(whole), 2):
            done = whole[:stop]
            more, agenda = Machine().run([], measured=done, refine_to=0.125)
            assert [row.case for row in (*done, *more)] == [row.case for row in whole]
            assert all(row.refined for row in more)
            assert agenda.wide == 0

    def test_without_it_nothing_is_missing(self):
        """A refined run that is resumed without is complete."""
        whole, _ = Machine().run(blocks(cases()), refine_to=0.125)
        assert Machine().run([], measured=whole[:-2])[0] == []

    def test_measured_again_a_row_keeps_its_mark(self):
        """A case that refining has added is not of the sweep, however often it is measured."""
        whole, _ = Machine().run(blocks(cases()), refine_to=0.125)
        again, _ = Machine().run(blocks([whole[-1].case, whole[0].case]), measured=whole)
        assert sorted(row.refined for row in again) == [False, True]

    def test_a_case_that_fails_ends_its_bracket(self):
        """Nothing is asked for twice, and the run ends."""
        machine = Machine(fails=lambda case: case.seq_len_k == 720)
        rows, agenda = machine.run(blocks(cases()), refine_to=0.125)
        assert machine.lengths.count(720) == 1
        assert len(rows) == len(cases()) + 2
        assert agenda.wide == 0

    def test_rows_that_never_come_are_not_asked_for_again(self):
        """A measurer that loses a new block cannot keep the run going for ever."""
        agenda = Agenda([], measured=[by_law(c) for c in cases()], clock="device", refine_to=0.125)
        assert len(list(agenda)) == 1

    def test_only_the_environment_at_hand(self):
        """Rows of another machine are not completed here: they would never be compared."""
        elsewhere = [by_law(c).model_copy(update={"environment": 1}) for c in cases()]
        assert Agenda([], measured=elsewhere, clock="device", refine_to=0.125, environment=0).wide == 0
        assert Agenda([], measured=elsewhere, clock="device", refine_to=0.125, environment=1).wide == 1

    def test_under_a_limit_before_what_agrees(self):
        """New N in a bracket come before N of the sweep between which nothing changes."""
        machine = Machine()
        machine.run(blocks(cases()), budget_s=14 + 6 + 0.5, refine_to=0.125)
        assert machine.lengths[:5] == [64, 16384, 1024, 256, 512]
        assert machine.lengths[5:8] == [720, 864, 784]

    def test_a_planned_case_that_waits_is_not_added(self):
        """Too dear with all its backends, a planned N is not measured with two of them as if it were new."""
        backends = ("naive", "flash", "tiled")
        plan = cases(lengths=[64, 1024, 16384], backends=backends)  # 1024 is the ends' middle
        machine = Machine()
        rows, agenda = machine.run(blocks(plan), budget_s=6 + 2.5, refine_to=0.125)
        assert machine.lengths == [64, 16384]
        assert not any(row.refined for row in rows)
        assert agenda.left_out == 3
        more, agenda = machine.run(blocks(plan[3:6]), measured=rows, refine_to=0.125)
        assert [row.case for row in more[:3]] == plan[3:6]
        assert sum(row.refined for row in (*rows, *more)) == len(rows) + len(more) - len(plan)

    @pytest.mark.parametrize("budget_s", [3, 5, 7, 11, 23])
    def test_limited_and_resumed_it_ends_with_all_and_narrow(self, budget_s):
        """Parts, each with a limit: every planned case once, every other marked, every bracket narrow."""
        plan, rows, machine = cases((64, 128)), [], Machine()
        for _ in range(40):
            done = {row.case for row in rows}
            left = blocks(c for c in plan if c not in done)
            found, agenda = machine.run(left, measured=rows, budget_s=budget_s, refine_to=0.125)
            rows += found
            if not agenda.left_out and not agenda.wide:
                break
        assert len({row.case for row in rows}) == len(rows)
        assert {row.case for row in rows if not row.refined} == set(plan)
        assert [bracket.width <= 0.125 for bracket in sign_changes(rows, "device")] == [True, True]

    def test_under_a_limit_what_is_wide_is_told(self):
        """Time was up before the bracket was narrow."""
        _, agenda = Machine().run([], measured=[by_law(c) for c in cases()], budget_s=3, refine_to=0.125)
        assert agenda.wide == 1
        assert agenda.left_out == 0

    def test_widths(self):
        """An eighth unless another is asked for; what makes no sense is refused."""
        assert width(None) == 0.125
        assert width(0.05) == 0.05
        for bad in (0.0, -1.0, 2.0, float("nan")):
            with pytest.raises(InputError, match=r"from 0\.01 to 1"):
                width(bad)
