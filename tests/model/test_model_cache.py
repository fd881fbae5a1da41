"""The cache between tiles and DRAM."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.model.cache import Walk, missed_share, streamed_bytes


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


def walk(rows: list[int], streams: int = 1, row_bytes: int = 100) -> Walk:
    """A walk whose tiles are all whole."""
    return Walk(np.array(rows, dtype=np.int64), row_bytes, len(rows), streams)


def test_one_generation_reads_once() -> None:
    """Thread blocks that all run at once share one read, however large the tensor."""
    assert streamed_bytes(walk([1000] * 8), blocks=8, capacity_bytes=1) == 1000 * 100


def test_generations_read_again_what_no_longer_fits() -> None:
    """Far beyond the cache every generation reads all of its stream; within it only the first does."""
    rows = walk([10_000] * 21)
    far = streamed_bytes(rows, blocks=7, capacity_bytes=1000)
    assert far == 10_000 * 100 * (1 + 20 * (2 / 20))  # three generations of seven, one of them the first
    assert streamed_bytes(rows, blocks=7, capacity_bytes=10_000 * 100) == 10_000 * 100


def test_the_next_heads_blocks_take_room() -> None:
    """What fits alone is evicted in part where a generation reaches into the next head."""
    room = 1_500_000
    short, long = [10_000] * 10, [10_000] * 1000
    assert streamed_bytes(walk(short, 1), blocks=8, capacity_bytes=room) == 1_000_000
    assert streamed_bytes(walk(short, 4), blocks=8, capacity_bytes=room) > 4 * 1_000_000
    assert streamed_bytes(walk(long, 4), blocks=8, capacity_bytes=room) == 4 * 1_000_000


def test_a_causal_walk_reads_again_no_more_than_its_shorter_blocks_do() -> None:
    """The longest walk reads all for the first time; the others re-read what they walk, in generations."""
    rows = [1000, 2000, 3000, 4000]
    alone = streamed_bytes(walk(rows), blocks=1, capacity_bytes=1)
    assert alone == sum(rows) * 100
    assert streamed_bytes(walk(rows), blocks=2, capacity_bytes=1) == (4000 + 6000 / 3) * 100


@given(
    rows=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    streams=st.integers(1, 20),
    blocks=st.integers(1, 300),
    capacity=st.integers(1, 10**7),
)
def test_between_once_and_every_time(rows: list[int], streams: int, blocks: int, capacity: int) -> None:
    """Never less than each head once, never more than each block alone; more cache never reads more."""
    found = streamed_bytes(walk(rows, streams), blocks, capacity)
    assert streams * max(rows) * 100 <= found <= streams * sum(rows) * 100
    assert streamed_bytes(walk(rows, streams), blocks, 2 * capacity) <= found


def test_nothing_is_streamed_by_nobody() -> None:
    """No thread block or no head, no bytes."""
    assert streamed_bytes(walk([]), blocks=2, capacity_bytes=1) == 0
    assert streamed_bytes(walk([10], streams=0), blocks=2, capacity_bytes=1) == 0
