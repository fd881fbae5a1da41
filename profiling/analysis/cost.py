"""What a call costs, from a price that the user gives: of the device's time, of electricity, or both.

At a price per hour alone a ratio of costs is the ratio of the latencies, and N* is the same: the price says
how much there is to win. A price of electricity moves N*, where the faster backend draws more power.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiling.case import InputError, ragged_lengths

_MS_PER_HOUR = 3.6e6
_MJ_PER_KWH = 3.6e9
# From the cost of one token to thousandths of the currency per million tokens.
_SCALE = 1e9


class Prices(NamedTuple):
    """In one currency: of an hour of the device, and of a kilowatt hour. None: not counted."""

    per_hour: float | None = None
    per_kwh: float | None = None


def check_prices(prices: Prices) -> None:
    """See that a cost can be computed.

    Raises:
        InputError: there is no price, or one that is not above 0.
    """
    given = [price for price in prices if price is not None]
    if not given:
        raise InputError("metric cost needs a price per hour of the device, a price per kWh, or both")
    for price in given:
        if not (price > 0 and math.isfinite(price)):
            raise InputError(f"a price must be a number above 0, got {price:g}")


def token_counts(rows: pd.DataFrame) -> np.ndarray:
    """How many query tokens a call of each row takes: batch times Nq; of packed sequences, their sum.

    Float64, NaN where there are none. A cached token of decoding is a key, and does not count.
    """
    count = rows["batch"].to_numpy(dtype=np.float64) * rows["seq_len_q"].to_numpy(dtype=np.float64)
    for place in np.flatnonzero(rows["layout"] == "varlen"):
        row = rows.iloc[place]
        count[place] = sum(ragged_lengths(int(row["batch"]), int(row["seq_len_q"])))
    return np.where(count > 0, count, np.nan)


def costs(rows: pd.DataFrame, prices: Prices) -> np.ndarray:
    """The cost of each row, in thousandths of the prices' currency per million query tokens: float64.

    Needs the columns `batch`, `seq_len_q`, `layout`, `latency_p50_ms` and, for a price per kWh, `energy_mj`.
    NaN where what a price needs is not known.
    """
    call = np.zeros(len(rows))
    if prices.per_hour is not None:
        call += rows["latency_p50_ms"].to_numpy(dtype=np.float64) / _MS_PER_HOUR * prices.per_hour
    if prices.per_kwh is not None:
        call += rows["energy_mj"].to_numpy(dtype=np.float64) / _MJ_PER_KWH * prices.per_kwh
    return call / token_counts(rows) * _SCALE


def millisecond_costs(rows: pd.DataFrame, prices: Prices) -> np.ndarray:
    """What a millisecond adds to `costs` of each row, at the price per hour alone."""
    return costs(rows.assign(latency_p50_ms=1.0), Prices(prices.per_hour or 0.0))
