"""Crossovers in energy and in cost: what they rest on, and how they relate to those in latency."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from synthetic import synthetic_run

from profiling.analysis.crossover import Crossover, crossovers
from profiling.case import InputError
from profiling.records import Run
from profiling.store import frame, samples_frame


def answer(run: Run, **ask: object) -> Crossover:
    """The one crossover of a run with its samples."""
    (found,) = crossovers(frame(run), samples_frame(run), **ask)
    return found


def energetic(run: Run, power_w: Mapping[str, float], known: int = 10**9) -> Run:
    """The run with energies: a backend's power times its latency, up to N = `known`."""
    rows = []
    for m in run.measurements:
        if m.case.seq_len_q <= known and m.clocks:
            device = next(c for c in m.clocks if c.clock == "device")
            m = m.model_copy(update={"energy_mj": device.latency_p50_ms * power_w[m.case.backend]})
        rows.append(m)
    return dataclasses.replace(run, measurements=tuple(rows))


def test_energy_has_brackets_only() -> None:
    """One value a case: compared without clock, never with an interval; what draws more crosses later."""
    run = synthetic_run(process_noise=0.0, round_noise=0.0)
    found = answer(energetic(run, {"naive": 300.0, "flash": 600.0}), metric="energy")
    assert (found.verdict, found.brackets, found.clock) == ("clear", ((1024, 2048),), "")
    assert (found.interval, found.share, found.calibrated, found.bracket_only) == (None, None, None, True)
    assert "energy is one value a case" in found.why
    assert found.next == "Measure N = 1\u00a0472 to halve the bracket."
    assert answer(run).brackets == ((512, 1024),)


def test_what_has_no_energy_is_left_out_and_told() -> None:
    """Only the N at which both energies are known count; without any, the answer says how to get them."""
    run = synthetic_run(process_noise=0.0, round_noise=0.0)
    part = answer(energetic(run, {"naive": 300.0, "flash": 300.0}, known=512), metric="energy")
    assert [p.seq_len for p in part.points] == [64, 128, 256, 512]
    none = answer(run, metric="energy")
    assert (none.verdict, none.points) == ("censored", ())
    assert "energy of both naive and flash is known" in none.why
    assert "--energy all" in none.next


def test_a_price_per_hour_changes_the_values_and_not_n_star() -> None:
    """The cost of a token follows from the latency, so signs, N* and interval are those of the latency."""
    run = synthetic_run(batch_heads=((2, 16),))
    time, cost = answer(run), answer(run, metric="cost", price_per_hour=3.6)
    assert (cost.crossings, cost.interval, cost.share) == (time.crossings, time.interval, time.share)
    assert cost.clock == "device"
    for a, b in zip(time.points, cost.points, strict=True):
        # 3.6 an hour is a thousandth a second: a ms costs 1e-6; a call has 2 N tokens
        assert b.baseline_value == pytest.approx(a.baseline_value * 1e-6 / (2 * a.seq_len) * 1e9)
        assert (b.ratio, b.sign) == (a.ratio, a.sign)


def test_a_price_of_electricity_moves_n_star() -> None:
    """With energy in it a cost has brackets only, between what time says and what energy says."""
    run = energetic(synthetic_run(process_noise=0.0, round_noise=0.0), {"naive": 300.0, "flash": 600.0})
    ask = {"metric": "cost"}
    energy = answer(run, metric="energy").crossings[0]
    both = answer(run, **ask, price_per_hour=0.36, price_per_kwh=1.2)
    alone = answer(run, **ask, price_per_kwh=0.3)
    assert alone.crossings[0] == pytest.approx(energy)
    assert answer(run).crossings[0] < both.crossings[0] < energy
    assert both.interval is None
    assert both.bracket_only
    # a call of N = 64: time at 0.36 an hour is 1e-7 a ms; 1.2 a kWh is 1.2 / 3.6e9 a mJ
    p = both.points[0]
    ms = 0.020 + 2e-9 * 16 * 64 * 64
    assert p.baseline_value == pytest.approx((ms * 1e-7 + ms * 300 * 1.2 / 3.6e9) / 64 * 1e9)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"metric": "cost"}, "needs a price"),
        ({"metric": "cost", "price_per_hour": 0.0}, "above 0, got 0"),
        ({"metric": "cost", "price_per_kwh": float("nan")}, "above 0, got nan"),
        ({"metric": "latency", "price_per_hour": 3.0}, "a price is for metric cost"),
        ({"metric": "cost", "price_per_hour": 3.0, "clock": "sundial"}, "unknown clock"),
    ],
)
def test_a_cost_needs_a_price_and_a_price_a_cost(ask: dict[str, object], said: str) -> None:
    """One sentence, with what is wrong."""
    with pytest.raises(InputError, match=said):
        crossovers(frame([]), **ask)
