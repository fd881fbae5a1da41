"""Runs at hand for the claims' tests: the committed ones, whatever they say today."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from profiling import store
from profiling.claims.evidence import AtHand, at_hand
from profiling.devices import device_of
from profiling.records import Run

SAMPLES = Path(__file__).parents[2] / "data" / "samples"


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    """The committed runs of the GPU."""
    return [store.load_run(path) for path in sorted(SAMPLES.glob("h200-*.jsonl"))]


@pytest.fixture(scope="session")
def rows(runs: list[Run]) -> pd.DataFrame:
    """Their comparison tables, one below the other."""
    return store.frame(runs)


@pytest.fixture(scope="session")
def hand(rows: pd.DataFrame, runs: list[Run]) -> AtHand:
    """What evidence is made of."""
    return at_hand(rows, device_of(runs[0].header.environment))


@pytest.fixture(scope="session")
def nothing() -> AtHand:
    """A data folder without runs."""
    return at_hand(store.frame([]), None)
