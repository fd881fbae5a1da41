"""The cache between tiles and DRAM."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.model.cache import missed_share, streamed_bytes


def simulated_share(lines: int, capacity: int, rounds: int) -> float:
    """Misses of a cyclic stream in a simulated cache with random replacement, the first rounds left out."""
    rng = random.Random(7)
    slots: list[int] = []
    where: dict[int, int] = {}
    missed = 0
    for turn in range(rounds):
        for line in range(lines):
            if line in where:
                continue
            missed += turn >= rounds // 2
            if len(slots) < capacity:
                where[line] = len(slots)
                slots.append(line)
                continue
            victim = rng.randrange(capacity)
            del where[slots[victim]]
            slots[victim] = line
            where[line] = victim
    return missed / (lines * (rounds - rounds // 2))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.25, 1.8, 3.0, 7.0])
def test_the_formula_is_what_random_replacement_does(ratio: float) -> None:
    """A simulated cache misses the share that the formula says, to 3 points."""
    assert simulated_share(round(1000 * ratio), 1000, 40) == pytest.approx(missed_share(ratio, 1), abs=0.03)


@given(x=st.floats(min_value=0, max_value=1e6), more=st.floats(min_value=0, max_value=100))
def test_the_share_solves_its_equation_and_grows(x: float, more: float) -> None:
    """m = 1 - exp(-m x), in [0, 1], 0 up to x = 1, never less for a longer stream."""
    m = missed_share(x, 1)
    assert 0 <= m <= 1
    assert m == pytest.approx(1 - math.exp(-m * x), abs=1e-9)
    assert missed_share(x + more, 1) >= m - 1e-9
    if x <= 1:
        assert m == 0


def test_one_wave_reads_once() -> None:
    """Thread blocks that all run at once share one read, however large the tensor."""
    assert streamed_bytes(np.array([1000] * 8), 512, blocks=8, capacity_bytes=1) == 1000 * 512


def test_waves_read_again_what_no_longer_fits() -> None:
    """Far beyond the cache every wave reads all of its stream; within it only the first does."""
    rows = np.array([10_000] * 20)
    assert streamed_bytes(rows, 512, blocks=8, capacity_bytes=1000) == 3 * 10_000 * 512
    assert streamed_bytes(rows, 512, blocks=8, capacity_bytes=10_000 * 512) == 10_000 * 512


def test_a_causal_wave_reads_as_far_as_its_longest_block() -> None:
    """A wave's blocks share the longest prefix among them; shorter waves re-read less."""
    rows = np.array([4000, 3000, 2000, 1000])
    assert streamed_bytes(rows, 100, blocks=2, capacity_bytes=1) == (4000 + 2000) * 100


def test_nothing_is_streamed_by_nobody() -> None:
    """No thread block, no bytes."""
    assert streamed_bytes(np.array([], dtype=np.int64), 100, blocks=2, capacity_bytes=1) == 0
