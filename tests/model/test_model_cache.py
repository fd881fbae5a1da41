"""The cache between tiles and DRAM."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.model import cache
from profiling.model.cache import Walk, missed_share, streamed_bytes


def share(ratio: float) -> float:
    """Missed where `ratio` capacities went by."""
    return float(missed_share(np.array(ratio), 1.0))


@given(x=st.floats(min_value=0, max_value=1e9), more=st.floats(min_value=0, max_value=100))
def test_the_share_is_one_and_grows(x: float, more: float) -> None:
    """In [0, 1], never less for more bytes in between."""
    assert 0 <= share(x) <= share(x + more) <= 1


def test_the_share_steps_where_the_capacity_is_reached() -> None:
    """Half at the capacity, a hundredth at 0.68 of it, all but a hundredth at 1.47; at nothing none."""
    assert share(1) == 0.5
    assert share(0.68) == pytest.approx(0.01, abs=0.001)
    assert share(1 / 0.68) == pytest.approx(0.99, abs=0.001)
    assert share(0) == 0
    assert share(1e300) == 1


def walk(rows: list[int], streams: int = 1, row_bytes: int = 100, own: int = 0, members: int = 1) -> Walk:
    """A walk of blocks with so many rows each."""
    return Walk(np.array(rows, dtype=np.int64), row_bytes, streams, own, members)


def simulated_rows(blocks_of_head: int, heads: int, blocks: int, rows: int, own: int, room: int) -> int:
    """Rows fetched by blocks in step through a cache of `room` rows that evicts the least recently used.

    Each generation walks row by row the tensors of the heads that it touches; then it touches `own` rows a
    block that nobody asks for again.
    """
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    fetched = 0

    def touch(line: tuple[int, int]) -> bool:
        missed = line not in kept
        kept[line] = None
        kept.move_to_end(line)
        if len(kept) > room:
            kept.popitem(last=False)
        return missed

    total = blocks_of_head * heads
    for generation, begin in enumerate(range(0, total, blocks)):
        touched = sorted({block // blocks_of_head for block in range(begin, min(begin + blocks, total))})
        for row in range(rows):
            fetched += sum(touch((head, row)) for head in touched)
        for row in range(own * blocks):
            touch((-1 - generation, row))
    return fetched


@pytest.mark.parametrize("own", [0, 10])
@pytest.mark.parametrize(
    ("blocks_of_head", "heads", "blocks"),
    [(20, 8, 7), (16, 8, 10), (20, 6, 20), (40, 5, 20), (9, 12, 20), (21, 1, 7)],
)
@pytest.mark.parametrize("room", [300, 700, 1100, 1700, 2500, 4000])
def test_the_bytes_are_those_of_a_cache_that_evicts_the_least_recently_used(
    monkeypatch: pytest.MonkeyPatch, blocks_of_head: int, heads: int, blocks: int, room: int, own: int
) -> None:
    """With a sharp step instead of the smooth one, a simulated cache fetches the same to 1/8 of a walk.

    Within a head and across heads, with generations that end where a head does and that touch three heads,
    with and without rows that blocks hold for themselves.
    """
    monkeypatch.setattr(cache, "missed_share", lambda between, capacity: 1.0 * (between > capacity))
    rows = 1000
    said = streamed_bytes(walk([rows] * blocks_of_head, heads, 1, own), blocks, room)
    generations = -(-blocks_of_head * heads // blocks)
    seen = simulated_rows(blocks_of_head, heads, blocks, rows, own, room)
    assert abs(said - seen) <= rows / 8 * generations


def test_one_generation_reads_once() -> None:
    """Thread blocks that all run at once share one read, however large the tensor."""
    assert streamed_bytes(walk([1000] * 8), blocks=8, capacity_bytes=1) == 1000 * 100


def test_generations_read_again_what_no_longer_fits() -> None:
    """Far beyond the cache every generation reads all of its stream; well within it only the first does."""
    rows = walk([10_000] * 21)
    assert streamed_bytes(rows, blocks=7, capacity_bytes=1000) == 3 * 10_000 * 100
    assert streamed_bytes(rows, blocks=7, capacity_bytes=10 * 10_000 * 100) == 10_000 * 100


def test_generations_that_end_with_their_head_read_nothing_again() -> None:
    """A head of as many blocks as run at once meets one generation; with one block more, two."""
    assert streamed_bytes(walk([1000] * 8, 5), blocks=8, capacity_bytes=1) == 5 * 1000 * 100
    assert streamed_bytes(walk([1000] * 9, 5), blocks=8, capacity_bytes=1) == (5 + 5) * 1000 * 100


def test_the_next_heads_blocks_take_room() -> None:
    """What survives alone is evicted where generations reach into the next head, and stays where few do."""
    room = 1_500_000
    short, long = [10_000] * 10, [10_000] * 1000
    alone = streamed_bytes(walk(short, 1), blocks=8, capacity_bytes=room)
    assert alone < 1.01 * 1_000_000
    assert streamed_bytes(walk(short, 4), blocks=8, capacity_bytes=room) > 1.5 * 4 * 1_000_000
    again = streamed_bytes(walk(long, 4), blocks=8, capacity_bytes=room) - 4 * 1_000_000
    assert again < 0.02 * 4 * 124 * 1_000_000


def test_what_blocks_hold_for_themselves_takes_room() -> None:
    """The more a block holds and writes beside the stream, the more of the stream is lost."""
    found = [streamed_bytes(walk([10_000] * 20, 1, 100, own), 4, 1_500_000) for own in (0, 10**5, 10**6)]
    assert found[0] < found[1] < found[2] <= 5 * 10_000 * 100
    assert found[2] == pytest.approx(5 * 10_000 * 100, rel=1e-5)


def test_a_causal_walk_reads_again_no_more_than_its_longest_block_does() -> None:
    """The first generation has the longest walks; each later one reads again what its own longest walks."""
    rows = [1000, 2000, 3000, 4000]
    assert streamed_bytes(walk(rows), blocks=1, capacity_bytes=1) == sum(rows) * 100
    assert streamed_bytes(walk(rows), blocks=2, capacity_bytes=1) == (4000 + 2000) * 100


def test_a_groups_members_walk_the_same_tensor() -> None:
    """A group's heads read it as one head with all their blocks does; each begins with its longest."""
    together = streamed_bytes(walk([1000] * 6, 3, members=4), blocks=5, capacity_bytes=50_000)
    assert together == streamed_bytes(walk([1000] * 24, 3), blocks=5, capacity_bytes=50_000)
    # blocks 3 2 | 1 3 | 2 1 of two members: each generation's longest, of which the first is new
    assert streamed_bytes(walk([10, 20, 30], members=2), 2, 1) == (30 + 30 + 20) * 100


def test_of_very_many_generations_some_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of 30 000 generations is as if all were looked at, to a thousandth."""
    rows = walk([1000] * 37, 100_000, 1, 5)
    some = streamed_bytes(rows, 123, 2000)
    monkeypatch.setattr(cache, "_MOST_GENERATIONS", 10**6)
    assert some == pytest.approx(streamed_bytes(rows, 123, 2000), rel=1e-3)


@given(
    rows=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    streams=st.integers(1, 20),
    members=st.integers(1, 4),
    own=st.integers(0, 10**5),
    blocks=st.integers(1, 300),
    capacity=st.integers(1, 10**7),
)
def test_between_once_and_every_time(
    rows: list[int], streams: int, members: int, own: int, blocks: int, capacity: int
) -> None:
    """Never less than each head once, never more than each block alone; more cache never reads more."""
    one = walk(rows, streams, 100, own, members)
    found = streamed_bytes(one, blocks, capacity)
    assert streams * max(rows) * 100 <= found <= streams * members * sum(rows) * 100
    assert streamed_bytes(one, blocks, 2 * capacity) <= found


def test_nothing_is_streamed_by_nobody() -> None:
    """No thread block or no head, no bytes."""
    assert streamed_bytes(walk([]), blocks=2, capacity_bytes=1) == 0
    assert streamed_bytes(walk([10], streams=0), blocks=2, capacity_bytes=1) == 0
