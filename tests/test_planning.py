"""Where a sign changes along N, and which cases narrow it: rows of known laws, no clock, no GPU."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.case import Case
from profiling.planning import bracket_cases, main_clock, pairs_of, refinement, series_key, sign_changes
from profiling.records import ClockResult, Measurement
from tests.synthetic import LAWS, law_ms, true_crossover


def case(backend, seq_len, **changes):
    """A case of the one series that the tests use, unless `changes` say otherwise."""
    shape = {"heads": 16, "kv_heads": 16, "head_dim": 64, "head_dim_v": 64, "seq_len_q": seq_len}
    return Case.model_validate({"backend": backend, "seq_len_k": seq_len, **shape, **changes})


def row(case, ms, clock="device", flags=(), resolution_ms=None, **fields):
    """A row with one clock's median."""
    result = ClockResult(clock=clock, latency_p50_ms=ms, flags=flags, resolution_ms=resolution_ms)
    return Measurement.model_validate({"case": case, "status": "ok", "clocks": (result,), **fields})


def rows(backend, times, **changes):
    """Rows of a backend from N to milliseconds."""
    return [row(case(backend, n, **changes), ms) for n, ms in times.items()]


def by_law(case):
    """What the laws of `tests.synthetic` say."""
    return row(case, law_ms(case, "device"))


CROSSING = [*rows("naive", {64: 1, 128: 2, 256: 8}), *rows("flash", {64: 2, 128: 3, 256: 4})]


class TestSignChanges:
    """Neighbouring N whose medians are in another order."""

    def test_one_crossing(self):
        """The pair's cases at the two N between which the order turns, in the pair's order."""
        (found,) = sign_changes(CROSSING, "device")
        assert found.low == (case("naive", 128), case("flash", 128))
        assert found.high == (case("naive", 256), case("flash", 256))
        assert found.seq_lens == (128, 256)
        assert found.width == 1.0
        assert bracket_cases(CROSSING, "device") == [*found.low, *found.high]

    def test_rows_in_any_order(self):
        """Rows come as they were measured, not ascending."""
        found = sign_changes(CROSSING[::-1], "device", [("naive", "flash")])
        assert found == sign_changes(CROSSING, "device")

    def test_every_change_is_kept(self):
        """Three crossings are three brackets, and a case at two of them is named once."""
        a = rows("naive", {64: 1, 128: 3, 256: 1, 512: 3})
        b = rows("flash", {64: 2, 128: 2, 256: 2, 512: 2})
        assert [x.seq_lens for x in sign_changes([*a, *b], "device")] == [(64, 128), (128, 256), (256, 512)]
        assert len(bracket_cases([*a, *b], "device")) == 8

    @pytest.mark.parametrize(
        "change",
        [
            {"status": "oom"},
            {"clocks": ()},
            {"clocks": (ClockResult(clock="device", status="unsupported", latency_p50_ms=2.0),)},
            {"clocks": (ClockResult(clock="device", latency_p50_ms=2.0, flags=("timer_limited",)),)},
            {"clocks": (ClockResult(clock="wall", latency_p50_ms=2.0),)},
            {"environment": 1},
        ],
    )
    def test_rows_that_say_nothing_are_passed_over(self, change):
        """Failed, on another clock only, at the timer's limit, elsewhere: their neighbours stand together."""
        changed = [m.model_copy(update=change) if m.case == case("naive", 128) else m for m in CROSSING]
        assert [x.seq_lens for x in sign_changes(changed, "device")] == [(64, 256)]

    def test_a_difference_within_the_clocks_step_has_no_sign(self):
        """Two medians one step apart are in no order."""
        even = [
            row(case("naive", 128), 3.0005, resolution_ms=0.001) if m.case == case("naive", 128) else m
            for m in CROSSING
        ]
        assert [x.seq_lens for x in sign_changes(even, "device")] == [(64, 256)]

    def test_requested_tiles_are_left_out(self):
        """A tile that was asked for says nothing of the backend."""
        tiled = rows("flash", {64: 2, 128: 3, 256: 4}, tile_m=64, tile_n=64)
        assert sign_changes([*rows("naive", {64: 1, 128: 2, 256: 8}), *tiled], "device") == []

    def test_series_are_kept_apart(self):
        """Another head dim is another curve: nothing crosses between them."""
        other = rows("flash", {64: 2, 256: 4}, head_dim=128, head_dim_v=128)
        assert sign_changes([*rows("naive", {64: 1, 256: 8}), *other], "device") == []

    def test_decoding_runs_along_the_keys(self):
        """With one query the series goes on in the number of keys, and each number of queries is its own."""
        found = sign_changes(
            [
                *rows("naive", {64: 1, 256: 8}, seq_len_q=1),
                *rows("flash", {64: 2, 256: 4}, seq_len_q=1),
                *rows("flash", {64: 9, 256: 9}, seq_len_q=4),
            ],
            "device",
        )
        assert [x.seq_lens for x in found] == [(64, 256)]
        assert found[0].low[0].seq_len_q == 1
        assert series_key(case("naive", 64)) == series_key(case("flash", 128))

    def test_pairs(self):
        """Every other backend with flash, or with the first; a variant is a backend of its own."""
        assert pairs_of(["naive", "flash", "sdpa"]) == [("naive", "flash"), ("sdpa", "flash")]
        assert pairs_of(["naive", "naive/fill"]) == [("naive/fill", "naive")]
        assert pairs_of([]) == []
        assert sign_changes(CROSSING, "device", [("naive", "sdpa")]) == []

    def test_the_clock_of_a_plan(self):
        """`device` as in `flashscope crossover`; the first where there is none."""
        assert main_clock(("wall", "device", "graph")) == "device"
        assert main_clock(("wall", "pipelined")) == "wall"


class TestRefinement:
    """New N between two that were measured."""

    def test_the_geometric_middle_in_round_numbers(self):
        """The pair alone, in one block, at a multiple of 16 near the middle."""
        (block,) = refinement(CROSSING, "device", 0.125, [m.case for m in CROSSING])
        assert block == [case("naive", 176), case("flash", 176)]

    @pytest.mark.parametrize(
        ("low", "high", "middle"), [(512, 1024, 720), (64, 96, 80), (80, 96, 88), (16, 18, 17), (1, 4, 2)]
    )
    def test_less_round_where_it_must_be(self, low, high, middle):
        """What lies strictly between the ends, as round as it can be."""
        measured = [*rows("naive", {low: 1, high: 3}), *rows("flash", {low: 2, high: 2})]
        ((first, _),) = refinement(measured, "device", 0.01, [])
        assert first.seq_len_q == first.seq_len_k == middle

    def test_narrow_brackets_are_left_alone(self):
        """Narrow enough, or without a whole number between."""
        assert refinement(CROSSING, "device", 1.0, []) == []
        next_to = [*rows("naive", {3: 1, 4: 3}), *rows("flash", {3: 2, 4: 2})]
        assert refinement(next_to, "device", 0.01, []) == []

    def test_pairs_of_one_shape_share_a_block(self):
        """Two backends that cross flash between the same N are measured in turns with it, and it once."""
        measured = [*CROSSING, *rows("sdpa", {64: 1, 128: 2, 256: 8})]
        (block,) = refinement(measured, "device", 0.125, [])
        assert [c.backend for c in block] == ["naive", "flash", "sdpa"]

    def test_a_middle_that_made_no_sign_ends_it(self):
        """The middle was tried and a case failed there: nothing is tried beside it."""
        failed = Measurement(case=case("naive", 176), status="oom")
        measured = [*CROSSING, failed, *rows("flash", {176: 4})]
        assert refinement(measured, "device", 0.125, [m.case for m in measured]) == []

    def test_a_pair_is_never_measured_apart(self):
        """Where one of the two is known at the middle, both are measured at another N."""
        (block,) = refinement(CROSSING, "device", 0.125, [case("flash", 176)])
        assert {c.seq_len_k for c in block} == {192}
        assert len(block) == 2

    @settings(deadline=None, max_examples=60)
    @given(low=st.integers(1, 300), factor=st.integers(2, 64), to=st.floats(0.01, 1.0), share=st.floats(0, 1))
    def test_it_ends_with_the_crossing_inside(self, low, factor, to, share):
        """Asked again and again, it ends, each case new; the bracket holds the crossing, narrow or whole."""
        high = low * factor
        turn = low * (high / low) ** share
        measured = [*_turning(low, turn), *_turning(high, turn)]
        seen = {m.case for m in measured}
        while found := refinement(measured, "device", to, seen):
            for new in (c for block in found for c in block):
                assert new not in seen
                seen.add(new)
                measured += [m for m in _turning(new.seq_len_k, turn) if m.case == new]
        for bracket in sign_changes(measured, "device"):
            a, b = bracket.seq_lens
            assert a <= turn <= b
            assert bracket.width <= to or b - a == 1

    def test_known_laws(self):
        """From a factor of 2 to within an eighth of where two laws meet, in three steps."""
        truth = true_crossover(LAWS["naive"], LAWS["flash"], clock="device", pairs_per_square=16)
        measured = [by_law(case(b, n)) for n in (256, 512, 1024, 2048) for b in ("naive", "flash")]
        steps = 0
        while found := refinement(measured, "device", 0.125, {m.case for m in measured}):
            measured += [by_law(c) for block in found for c in block]
            steps += 1
        (bracket,) = sign_changes(measured, "device")
        assert bracket.seq_lens[0] < truth < bracket.seq_lens[1]
        assert bracket.width <= 0.125
        assert steps == 3


def _turning(seq_len, turn):
    """Rows at N of two backends that change places at `turn`."""
    return [row(case("naive", seq_len), 3.0 if seq_len > turn else 1.0), row(case("flash", seq_len), 2.0)]
