"""What a call costs: prices, tokens, and what is not known."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import synthetic_run

from profiling.analysis.cost import Prices, check_prices, costs, token_counts
from profiling.case import InputError, ragged_lengths
from profiling.store import frame


def test_tokens_are_queries() -> None:
    """Batch times Nq; the keys of a cache do not count; a packed batch counts what it holds; none is NaN."""
    rows = frame(synthetic_run(seq_lens=(1024,), backends=("flash",), batch_heads=((4, 16),)))
    assert token_counts(rows).tolist() == [4096.0, 4096.0]
    assert token_counts(rows.assign(seq_len_q=16)).tolist() == [64.0, 64.0]
    assert np.isnan(token_counts(rows.assign(seq_len_q=0))).all()
    packed = sum(ragged_lengths(4, 1024))
    assert token_counts(rows.assign(layout="varlen")).tolist() == [packed, packed]
    assert packed < 4096


def test_a_cost_adds_time_and_energy() -> None:
    """An hour at 3.6 and a kWh at 0.36, by hand: 2 ms and 500 mJ of 1024 tokens."""
    rows = frame(synthetic_run(seq_lens=(1024,), backends=("flash",), clocks=("device",)))
    rows = rows.assign(latency_p50_ms=2.0, energy_mj=500.0)
    time, energy = 2 * 1e-6 / 1024 * 1e9, 500 * 1e-10 / 1024 * 1e9
    assert costs(rows, Prices(3.6)).tolist() == pytest.approx([time])
    assert costs(rows, Prices(None, 0.36)).tolist() == pytest.approx([energy])
    assert costs(rows, Prices(3.6, 0.36)).tolist() == pytest.approx([time + energy])


def test_what_is_not_known_has_no_cost() -> None:
    """A case whose energy was not measured has no cost of electricity."""
    run = synthetic_run(seq_lens=(64,), backends=("flash",), clocks=("device",))
    rows = frame(run)
    assert np.isnan(costs(rows, Prices(1.0, 1.0))).all()
    assert np.isfinite(costs(rows, Prices(1.0))).all()


@pytest.mark.parametrize("price", [0.0, -1.0, float("inf"), float("nan")])
def test_a_price_is_a_number_above_zero(price: float) -> None:
    """Either of the two, and one of them there must be."""
    for prices in (Prices(price), Prices(1.0, price), Prices()):
        with pytest.raises(InputError, match="price"):
            check_prices(prices)
    check_prices(Prices(3.5))
    check_prices(Prices(None, 0.3))
