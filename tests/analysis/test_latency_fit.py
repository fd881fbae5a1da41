"""The fitted latency model: it finds the rates behind made-up times, and predicts what it has not seen."""

from pathlib import Path

import numpy as np
import pytest

from profiling.analysis.crossover import crossovers
from profiling.analysis.explain import shares
from profiling.analysis.latency_fit import FEWEST, fit_latency
from profiling.case import Case
from profiling.devices import find_device
from profiling.model.costs import amounts
from profiling.records import Run
from profiling.store import frame, load_run, samples_frame

STANDARD = Path(__file__).parents[2] / "data" / "samples" / "h200-standard.jsonl"
RATES = {"launch": 0.008, "product": 0.001, "softmax": 0.012, "dram": 0.4, "cache": 0.3, "flops": 0.5}


@pytest.fixture(scope="module")
def standard() -> Run:
    """The committed run."""
    return load_run(STANDARD)


@pytest.fixture(scope="module")
def made_up(standard):
    """The committed table, its latencies replaced by what `RATES` make of each case."""
    table = frame([standard])
    device = find_device("H200")
    times = []
    for row in standard.measurements:
        known = sum(RATES[x.rate] * x.amount for x in amounts(row.case, device))
        times += [known or np.nan] * len(row.clocks)
    assert len(times) == len(table)
    return table.assign(latency_p50_ms=times)


def test_the_rates_behind_the_times_are_found(made_up):
    """Times made of rates give these rates back, and the model is exact, also where it was left out."""
    fits = fit_latency(made_up)
    for name in ("flash", "naive"):
        fit = fits[name, "fwd", "bf16"]
        assert fit.rates == pytest.approx({rate: RATES[rate] for rate in fit.rates}, rel=1e-3)
        assert fit.error < 1e-6
        assert max(error for what, error in fit.unseen.items() if what.startswith("d = ")) < 1e-3
        # One head dim alone, as at batch · heads = 64, cannot tell products from softmax.
        assert max(fit.unseen.values()) < 0.05


def test_what_it_has_not_seen(standard):
    """A whole head dim, or a whole batch · heads, left out: off by under 20 % in the median, as asked."""
    fits = fit_latency(frame([standard]))
    assert {"naive", "flash", "sdpa_flash", "sdpa_cudnn"} <= {backend for backend, _, _ in fits}
    unseen = [error for fit in fits.values() for error in fit.unseen.values()]
    assert len(unseen) >= 30
    assert np.median(unseen) < 0.2
    assert max(unseen) < 0.3
    ours = fits["flash", "fwd", "bf16"]
    assert set(ours.unseen) == {"d = 64", "d = 128", "d = 256", "batch · heads = 16", "batch · heads = 64"}


def test_a_prediction_has_its_parts(standard):
    """Parts add up to the whole; of a case that the model does not know there is neither."""
    fit = fit_latency(frame([standard]))["flash", "fwd", "bf16"]
    case = Case(
        backend="flash", heads=32, kv_heads=32, seq_len_q=3000, seq_len_k=3000, head_dim=96, head_dim_v=96
    )
    assert fit.predict_ms(case) == pytest.approx(sum(fit.parts_ms(case).values()))
    assert fit.predict_ms(case.model_copy(update={"bias": True})) is None


def test_too_few_points_or_an_unknown_device_have_no_model(standard):
    """Below six points, and on a device that is not in the catalogue, there is none rather than a bad one."""
    table = frame([standard])
    few = table[(table["backend"] == "flash") & (table["seq_len_q"] == 64) & (table["head_dim"] == 64)]
    assert 0 < len(few[few["clock"] == "device"]) < FEWEST
    assert fit_latency(few) == {}
    assert fit_latency(table.assign(device_name="Abacus")) == {}
    assert fit_latency(table[:0]) == {}


def test_a_crossover_is_explained_by_both_sides(standard):
    """At N*, or at both ends where there is none: a backend a line, its shares the whole of it."""
    table = frame([standard])
    fits = fit_latency(table)
    found = crossovers(table, samples_frame([standard]))
    clear = next(x for x in found if x.verdict == "clear")
    always = next(x for x in found if x.verdict == "always")
    assert [(one.backend, one.seq_len) for one in shares(clear, fits)] == [
        ("naive", round(clear.crossover_seq_len)),
        ("flash", round(clear.crossover_seq_len)),
    ]
    ends = (always.points[0].seq_len, always.points[-1].seq_len)
    assert [one.seq_len for one in shares(always, fits)] == [ends[0]] * 2 + [ends[1]] * 2
    for x in (clear, always):
        for one in shares(x, fits):
            assert sum(one.shares.values()) == pytest.approx(1)
            assert list(one.shares.values()) == sorted(one.shares.values(), reverse=True)
    short, long = shares(always, fits)[1], shares(always, fits)[3]
    assert next(iter(short.shares)) == "launch"
    assert next(iter(long.shares)) == "arithmetic"
    assert shares(clear, {}) == ()
