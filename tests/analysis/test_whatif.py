"""Predictions for another GPU: what scales with what, and what is refused."""

from pathlib import Path

import pytest

from profiling.analysis.latency_fit import fit_latency
from profiling.analysis.whatif import moved, what_if
from profiling.case import Case, InputError
from profiling.devices import find_device
from profiling.store import frame, load_run
from profiling.terminal import whatif_text

STANDARD = Path(__file__).parents[2] / "data" / "samples" / "h200-standard.jsonl"
H200 = find_device("H200")


@pytest.fixture(scope="module")
def table():
    """The committed run's table."""
    return frame([load_run(STANDARD)])


@pytest.fixture(scope="module")
def fits(table):
    """The model fitted to it."""
    return fit_latency(table)


def case(backend, n):
    """A plain case."""
    return Case(backend=backend, heads=16, kv_heads=16, seq_len_q=n, seq_len_k=n, head_dim=64, head_dim_v=64)


def test_the_same_gpu_predicts_the_same(table, fits):
    """Moved to the device it was fitted on, nothing changes: neither times nor crossovers."""
    fit = fits["flash", "fwd", "bf16"]
    assert moved(fit, H200).rates == pytest.approx(fit.rates)
    found = what_if(table, H200)
    assert all(one.crossover_seq_len == one.here_crossover_seq_len for one in found.predictions)
    for one in found.predictions:
        for n, (baseline, candidate) in one.est_latency_ms.items():
            assert one.ratio[n] == baseline / candidate


@pytest.mark.parametrize(
    ("backend", "n", "changes", "factor"),
    [
        ("naive", 16384, {"dram_bandwidth_gbs": 2400.0}, 2.0),  # bytes through DRAM are nearly all of it
        ("naive", 64, {"dram_bandwidth_gbs": 2400.0}, 1.0),  # and next to nothing of a short one
        ("flash", 64, {"bf16_tflops": 989.4 / 2}, 1.0),  # as arithmetic is of a short fused call
        ("flash", 16384, {"sm_count": 66, "bf16_tflops": 989.4 / 2}, 2.0),  # half as many of the same SMs
    ],
)
def test_what_a_figure_changes(fits, backend, n, changes, factor):
    """Half the bandwidth doubles long eager calls, half the SMs long fused ones; launches stay."""
    fit = fits[backend, "fwd", "bf16"]
    here = fit.predict_ms(case(backend, n))
    there = moved(fit, H200.model_copy(update=changes)).predict_ms(case(backend, n))
    assert there / here == pytest.approx(factor, rel=0.08)


@pytest.mark.parametrize("name", ["H200", "H100-SXM", "A100-SXM-80GB", "B200"])
def test_other_kernels_there_are_named(table, name):
    """`flash` has kernels of its own on sm_90 alone: elsewhere the model knows others than would run."""
    there = find_device(name)
    sm_90 = there.compute_capability == "9.0"
    found = what_if(table, there)
    assert found.kernels == (None if sm_90 else ("flash_hopper", "flash_portable"))
    assert ("flash goes by flash_portable" in whatif_text(found)) is not sm_90
    assert what_if(table, there, candidate="sdpa_flash").kernels is None


def test_memory_ends_the_baseline(table):
    """The baseline's largest N is that of its memory law: a quarter of the memory, half the N."""
    quarter = H200.model_copy(update={"memory_bytes": (H200.memory_bytes or 0) // 4})
    for large, small in zip(
        what_if(table, H200).predictions, what_if(table, quarter).predictions, strict=True
    ):
        assert small.largest_seq_len == pytest.approx(large.largest_seq_len / 2, rel=0.05)


def test_the_error_on_the_unseen_is_beside_it(table, fits):
    """It is the median over both backends' left-out head dims and batch · heads."""
    found = what_if(table, H200)
    errors = sorted(
        e for (name, _, _), fit in fits.items() if name in ("naive", "flash") for e in fit.unseen.values()
    )
    assert errors[0] < found.unseen_error < errors[-1]


def test_what_cannot_be_predicted_is_refused(table):
    """Each with a sentence: no model of a backend, no figure of a device."""
    with pytest.raises(InputError, match="no latency model of both naive and tiled"):
        what_if(table, H200, candidate="tiled")
    with pytest.raises(InputError, match="no latency model of both"):
        what_if(table.assign(device_name="Abacus"), H200)
    with pytest.raises(InputError, match="the catalogue has no bandwidth"):
        what_if(table, H200.model_copy(update={"dram_bandwidth_gbs": None}))
    with pytest.raises(InputError, match="the catalogue has no bf16 peak"):
        what_if(table, find_device("T4"))
