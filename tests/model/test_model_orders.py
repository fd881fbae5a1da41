"""The loop orders behind the sliders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import Case, InputError
from profiling.model.orders import ORDERS, tile_bytes_for
from profiling.model.traffic import traffic
from profiling.units import KIB


def make(**changes: Any) -> Case:
    """One head of the chapter's case."""
    base = {"backend": "flash", "dtype": "fp16", "seq_len_q": 8192, "seq_len_k": 8192}
    return Case(**({**base, "head_dim": 128, "head_dim_v": 128} | changes))


@pytest.mark.parametrize(("columns", "passes"), [(64, 50), (128, 26), (256, 14), (512, 8)])
def test_fa1_counts_its_algorithm(columns: int, passes: int) -> None:
    """Algorithm 1 at N=1024: K and V once, Q, O read and O written once a key tile: 2 + 3·Tc of N·d."""
    case = make(seq_len_q=1024, seq_len_k=1024, head_dim=64, head_dim_v=64)
    result = tile_bytes_for(case, order="fa1", sram_bytes=columns * 4 * 64 * 2)
    assert (result.block_m, result.block_n) == (min(columns, 64), columns)
    rows = 4 * 4 * 1024 * (1024 // columns)  # two statistics, read and written once a key tile
    assert result.tile_bytes - rows == passes * 1024 * 64 * 2


def test_fa2_is_the_tile_series() -> None:
    """The FA2 order is what `traffic` counts, for any mask and grouping."""
    for changes in ({}, {"causal": True}, {"heads": 8, "kv_heads": 2, "seq_len_k": 5000}):
        case = make(**changes)
        result = tile_bytes_for(case, order="fa2", sram_bytes=227 * KIB, block_m=128, block_n=64)
        assert result.moved == traffic(case, None, block_m=128, block_n=64).tile


def test_more_sram_moves_less_in_fa1_and_nothing_in_fa2() -> None:
    """M drives FA1; in FA2 a fixed Br moves the same bytes whatever M is."""
    a, b = (tile_bytes_for(make(), order="fa1", sram_bytes=m * KIB) for m in (48, 192))
    assert a.tile_bytes > 3 * b.tile_bytes
    c, d = (tile_bytes_for(make(), order="fa2", sram_bytes=m * KIB, block_m=64) for m in (48, 192))
    assert c.moved == d.moved
    assert c.sram_needed_bytes == d.sram_needed_bytes == 48 * KIB
    assert c.fits
    assert not tile_bytes_for(make(), order="fa2", sram_bytes=48 * KIB - 1, block_m=64).fits


def test_only_the_outer_side_moves_bytes_in_fa2() -> None:
    """Halving Br doubles what is streamed; Bc changes the SRAM bill alone."""
    q = 8192 * 128 * 2
    read = {
        (m, n): tile_bytes_for(make(), order="fa2", sram_bytes=227 * KIB, block_m=m, block_n=n).moved.read - q
        for m in (64, 128)
        for n in (32, 128)
    }
    assert read[64, 32] == read[64, 128] == 2 * read[128, 32] == 2 * read[128, 128]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_formula_is_the_count_at_large_n(order: str, causal: bool) -> None:
    """Counted and asymptotic bytes agree to 5 % where N is far above the tile."""
    case = make(seq_len_q=65536, seq_len_k=65536, causal=causal)
    result = tile_bytes_for(case, order=order, sram_bytes=128 * KIB)
    assert result.asymptotic_bytes == pytest.approx(result.tile_bytes, rel=0.05)


def test_the_constant_decides() -> None:
    """fp32, d=128, M=192 KiB: FA1's 12 N²d²/M is eager's 4 N², no saving at all; fp16 halves it."""
    for dtype, saving in (("fp32", 1.0), ("fp16", 2.0)):
        case = make(dtype=dtype, seq_len_q=65536, seq_len_k=65536)
        fa1 = tile_bytes_for(case, order="fa1", sram_bytes=192 * KIB)
        assert traffic(case, None).naive_bytes / fa1.asymptotic_bytes == pytest.approx(saving, rel=0.02)


def test_element_size_is_free() -> None:
    """A slider may ask for fp8: elements of one byte halve what two bytes move, statistics apart."""
    one, two = (
        tile_bytes_for(make(), order="fa2", sram_bytes=227 * KIB, block_m=128, element_bytes=e)
        for e in (1, 2)
    )
    assert two.moved.read == 2 * one.moved.read


def test_a_tile_too_large_is_counted_and_flagged() -> None:
    """A tile beyond M still has its bytes, and says that it does not fit."""
    result = tile_bytes_for(make(), order="fa2", sram_bytes=48 * KIB, block_m=1024)
    assert not result.fits
    assert result.sram_needed_bytes > 48 * KIB
    small = tile_bytes_for(make(), order="fa2", sram_bytes=1)
    assert (small.block_m, small.fits) == (16, False)


@given(
    order=st.sampled_from(ORDERS),
    n_q=st.integers(0, 300),
    n_k=st.integers(0, 300),
    sram=st.integers(1, 10**6),
    causal=st.booleans(),
)
def test_any_shape_and_memory(order: str, n_q: int, n_k: int, sram: int, causal: bool) -> None:
    """No length and no M is too odd, and nothing moves less than its outputs."""
    case = make(seq_len_q=n_q, seq_len_k=n_k, causal=causal)
    result = tile_bytes_for(case, order=order, sram_bytes=sram)
    assert result.block_m >= 1
    assert result.block_n >= 1
    if n_q and n_k and not causal:
        assert result.moved.write >= n_q * 128 * 2
        assert result.moved.read >= (n_q + 2 * n_k) * 128 * 2


@pytest.mark.parametrize(
    ("changes", "arguments", "says"),
    [
        ({}, {"order": "fa3", "sram_bytes": 1}, "unknown loop order 'fa3'"),
        ({}, {"order": "fa1", "sram_bytes": 0}, "sram_bytes must be at least 1"),
        ({}, {"order": "fa2", "sram_bytes": 1, "element_bytes": 0}, "element_bytes must be at least 1"),
        ({}, {"order": "fa2", "sram_bytes": 1, "block_m": 0}, "block_m must be at least 1"),
        ({"window_left": 3}, {"order": "fa2", "sram_bytes": 1}, "dense attention"),
    ],
)
def test_bad_sliders_are_refused(changes: dict[str, Any], arguments: dict[str, Any], says: str) -> None:
    """Each names the value and what is allowed."""
    with pytest.raises(InputError, match=says):
        tile_bytes_for(make(**changes), **arguments)
