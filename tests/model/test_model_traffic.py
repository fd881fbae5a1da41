"""The four series: closed forms, orderings, edges. Counters of a real H200: test_model_traffic_counters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import Case, InputError
from profiling.devices import find_device
from profiling.model.naive import naive_passes
from profiling.model.traffic import (
    BACKWARD_TILE,
    DQ_TILE,
    FORWARD_TILE,
    Bytes,
    kv_fits_l2_until,
    traffic,
)

H200 = find_device("H200")


def make(**changes: Any) -> Case:
    """A dense case; `n` sets both lengths, `d` both widths, `h` heads and KV heads."""
    base: dict[str, Any] = {"backend": "flash", "dtype": "bf16", "batch": 1}
    n, d, h = changes.pop("n", 1024), changes.pop("d", 64), changes.pop("h", 2)
    base |= {"seq_len_q": n, "seq_len_k": n, "head_dim": d, "head_dim_v": d, "heads": h, "kv_heads": h}
    return Case(**(base | changes))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any shape that the formulas take: tails, Nq != Nk, d != dv, groups, empty sides."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Case(
        backend="flash",
        direction=draw(st.sampled_from(["fwd", "bwd", "fwd_bwd"])),
        dtype=draw(st.sampled_from(["fp16", "bf16", "fp32"])),
        batch=draw(st.integers(0, 3)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_len_q=draw(st.integers(0, 600)),
        seq_len_k=draw(st.integers(0, 600)),
        head_dim=draw(st.integers(1, 256)),
        head_dim_v=draw(st.integers(1, 256)),
        causal=draw(st.booleans()),
    )


TILES = st.tuples(st.integers(1, 256), st.integers(1, 256))


@given(case=cases(), tile=TILES, dq_tile=TILES)
def test_no_series_is_below_the_compulsory_bytes(
    case: Case, tile: tuple[int, int], dq_tile: tuple[int, int]
) -> None:
    """compulsory <= dram <= tile, for every shape, tile and direction, bytes read and bytes written alike."""
    moved = traffic(case, H200, block_m=tile[0], block_n=tile[1], dq_tile=dq_tile)
    assert moved.dram is not None
    for low, high in ((moved.compulsory, moved.dram), (moved.dram, moved.tile)):
        assert low.read <= high.read
        assert low.write <= high.write
    assert moved.tile_bytes == moved.tile.read + moved.tile.write


def test_another_backends_variant_is_none_of_eager() -> None:
    """`deterministic` asks for another backward of ours; the eager baseline beside it is the plain one."""
    case = make(backend="flash_hopper", variant="deterministic", direction="bwd")
    assert traffic(case, H200) == traffic(case.model_copy(update={"variant": ""}), H200)


@given(case=cases(), step=st.integers(1, 300), variant=st.sampled_from(["add", "fill", "fp32_softmax"]))
def test_longer_sequences_move_more(case: Case, step: int, variant: str) -> None:
    """naive, tile and compulsory never fall when Nq = Nk grows; dram neither, one KV head a query head."""
    n = case.seq_len_q
    small = case.model_copy(update={"seq_len_k": n})
    large = case.model_copy(update={"seq_len_q": n + step, "seq_len_k": n + step})
    a, b = (traffic(x, H200, variant=variant) for x in (small, large))
    assert a.naive_bytes <= b.naive_bytes
    assert a.tile_bytes <= b.tile_bytes
    assert a.compulsory_bytes <= b.compulsory_bytes
    if case.heads == case.kv_heads:
        assert a.dram_bytes is not None
        assert b.dram_bytes is not None
        assert a.dram_bytes <= b.dram_bytes


@given(case=cases(), tile=TILES)
def test_both_directions_are_the_sum(case: Case, tile: tuple[int, int]) -> None:
    """fwd_bwd is fwd plus bwd in each series, when the forward's tile alone is given."""
    both, fwd, bwd = (case.model_copy(update={"direction": d}) for d in ("fwd_bwd", "fwd", "bwd"))
    total = traffic(both, H200, block_m=tile[0], block_n=tile[1])
    parts = traffic(fwd, H200, block_m=tile[0], block_n=tile[1]), traffic(bwd, H200)
    for name in ("naive", "tile", "dram", "compulsory"):
        assert getattr(total, name) == getattr(parts[0], name).plus(getattr(parts[1], name))


@given(
    n=st.integers(4096, 8192),
    tile=st.tuples(st.integers(16, 128), st.integers(16, 128)),
    d=st.integers(16, 128),
)
def test_causal_moves_about_half(n: int, tile: tuple[int, int], d: int) -> None:
    """A causal mask halves what tiles stream, up to the diagonal's tiles; compulsory bytes stay."""
    full, half = (
        traffic(make(n=n, d=d, causal=causal), None, block_m=tile[0], block_n=tile[1])
        for causal in (False, True)
    )
    q = 2 * n * d * 2
    assert 0.5 < (half.tile.read - q) / (full.tile.read - q) < 0.5 + (tile[0] + tile[1]) / n
    assert half.compulsory == full.compulsory
    # The eager baseline saves nothing: it computes what it then masks.
    assert half.naive_bytes > full.naive_bytes


def test_closed_form_of_the_forward() -> None:
    """read = q + heads · (Nq/Br) · Nk·(d+dv)·e and write = o + LSE, where tiles divide the lengths."""
    case = make(n=4096, d=128, h=4, batch=2)
    q = 8 * 4096 * 128 * 2
    assert traffic(case, None, block_m=128, block_n=64).tile == Bytes(
        q + (4096 // 128) * 2 * q, q + 4 * 8 * 4096
    )
    # Only Br moves bytes in this loop order; Bc does not.
    assert (
        traffic(case, None, block_m=128, block_n=32).tile == traffic(case, None, block_m=128, block_n=64).tile
    )
    wide, narrow = (traffic(case, None, block_m=m, block_n=64).tile.read - q for m in (128, 64))
    assert narrow == 2 * wide


def test_closed_form_of_the_split_backward() -> None:
    """delta: 2o -> r; dK/dV: K, V and per key tile Q, dO, LSE, delta -> dK, dV; dQ: as a forward -> dQ."""
    n, d, e = 2048, 64, 2
    t = n * d * e
    r = 4 * n
    moved = traffic(make(n=n, d=d, h=1, direction="bwd"), None, block_m=64, block_n=128, dq_tile=(256, 32))
    delta = Bytes(2 * t, r)
    dkdv = Bytes(2 * t + (n // 128) * (2 * t + 2 * r), 2 * t)
    dq = Bytes(2 * t + 2 * r + (n // 256) * 2 * t, t)
    assert moved.tile == delta.plus(dkdv).plus(dq)
    assert moved.compulsory == Bytes(5 * t + r, 3 * t)


def test_two_backward_kernels_move_13_nd_through_dram() -> None:
    """Where streams fit the cache but tensors do not, DRAM sees 13 N·d of the split backward (and 5 rows).

    To a thousandth: the step between kept and lost is smooth, so that even there a few lines are lost.
    """
    case = make(n=1024, d=128, h=64, batch=4, direction="bwd")
    t, r = 256 * 1024 * 128 * 2, 4 * 256 * 1024
    assert traffic(case, H200).dram_bytes == pytest.approx(13 * t + 5 * r, rel=1e-3)


def test_textbook_eager_passes() -> None:
    """Without a mask the eager baseline passes 4 times over the scores forward, and 10 times backward.

    The textbook has 7 backward: it leaves out the product that CUDA's softmax backward writes and reads.
    """
    case = make(n=1000, d=40, h=3, direction="fwd_bwd")
    scores, t = 3 * 1000**2 * 2, 3 * 1000 * 40 * 2
    # 12 N·d of the textbook, and 4 for scaling q and its gradient
    assert traffic(case, None).naive_bytes == 14 * scores + 16 * t


@pytest.mark.parametrize(
    ("variant", "dtype", "causal", "per_score"),
    [
        ("add", "fp16", False, 8),
        ("add", "fp16", True, 12),
        ("fill", "fp16", True, 16),
        ("fp32_softmax", "fp16", False, 16),
        ("fp32_softmax", "bf16", False, 24),
        ("fp32_softmax", "bf16", True, 28),
        ("add", "fp32", False, 16),
        ("fp32_softmax", "fp32", False, 16),
        ("add", "fp64", False, 32),
    ],
)
def test_bytes_per_score_of_each_variant(variant: str, dtype: str, causal: bool, per_score: int) -> None:
    """A naive baseline is not one thing: 8 to 28 bytes a score in 16 bits, by mask and softmax."""
    case = make(n=4096, d=16, h=16, batch=16, dtype=dtype, causal=causal)
    moved = traffic(case, None, variant=variant).naive_bytes
    assert moved / (256 * 4096**2) == pytest.approx(per_score, rel=0.05)


def test_the_chapters_case() -> None:
    """B=8 H=32 N=8192 d=128 fp16: naive 140 GB, tiles 69.8 GB, DRAM and compulsory 2.16 GB."""
    moved = traffic(make(n=8192, d=128, h=32, batch=8, dtype="fp16"), H200)
    assert moved.naive_bytes / 1e9 == pytest.approx(139.6, rel=0.01)
    assert moved.tile_bytes / 1e9 == pytest.approx(69.8, rel=0.001)
    assert moved.compulsory_bytes == 4 * 2**29 + 2**23
    assert moved.dram_bytes == pytest.approx(moved.compulsory_bytes, rel=1e-3)


def test_grouped_heads() -> None:
    """Fewer KV heads: compulsory K/V fall, what tiles stream does not, and eager repeats them."""
    many, few = (traffic(make(n=2048, d=128, h=8, kv_heads=kv), H200) for kv in (8, 2))
    kv = 2 * 8 * 2048 * 128 * 2
    assert many.compulsory_bytes - few.compulsory_bytes == kv * 3 // 4
    assert many.tile == few.tile
    names = [step.name for step in naive_passes(make(h=8, kv_heads=2))]
    assert names[:2] == ["repeat K", "repeat V"]
    assert few.naive_bytes > many.naive_bytes


@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize(("n_q", "n_k", "batch"), [(0, 0, 1), (0, 64, 1), (64, 0, 1), (64, 64, 0)])
def test_empty_cases_only_write_their_outputs(n_q: int, n_k: int, batch: int, direction: str) -> None:
    """Where no query meets a key nothing is read, and outputs are filled."""
    case = make(seq_len_q=n_q, seq_len_k=n_k, batch=batch, direction=direction)
    moved = traffic(case, H200)
    rows = batch * 2 * n_q
    written = 0
    if direction != "bwd":
        written += rows * (64 * 2 + 4)
    if direction != "fwd":
        written += rows * 64 * 2 + batch * 2 * n_k * 2 * 64 * 2
    assert moved.tile == moved.dram == moved.compulsory == Bytes(0, written)


def test_a_tile_larger_than_the_sequence_is_read_once() -> None:
    """With N below the tile, tiles ask for the compulsory bytes: padding loads nothing."""
    moved = traffic(make(n=100), H200, block_m=128, block_n=128)
    assert moved.tile == moved.compulsory


def test_one_query() -> None:
    """A decoding step reads K and V once a head: the tile model has nothing to re-read."""
    case = make(seq_len_q=1, seq_len_k=5000, causal=True)
    assert traffic(case, H200).tile == traffic(case, H200).compulsory


def test_queries_that_see_nothing_still_move_their_own_bytes() -> None:
    """Causal with Nq > Nk: the first queries load q and store 0, but no key; the last see all keys."""
    case = make(seq_len_q=1024, seq_len_k=128, d=64, h=1, causal=True)
    q, kv = 1024 * 64 * 2, 2 * 128 * 64 * 2
    assert traffic(case, None, block_m=128, block_n=128).tile.read == q + kv


def test_the_requested_tile_is_the_default() -> None:
    """A case's own tile holds for both directions; a given one wins; without either the model's stands."""
    asked = make(tile_m=32, tile_n=16, direction="fwd_bwd")
    parts = [traffic(make(direction=d), None, block_m=32, block_n=16).tile_bytes for d in ("fwd", "bwd")]
    assert traffic(asked, None).tile_bytes == sum(parts)
    wins = traffic(make(tile_m=32, tile_n=16), None, block_m=64, block_n=64)
    assert wins == traffic(make(), None, block_m=64, block_n=64)
    for direction, tile in (("fwd", FORWARD_TILE), ("bwd", BACKWARD_TILE)):
        case = make(direction=direction)
        given_tile = traffic(case, None, block_m=tile[0], block_n=tile[1], dq_tile=DQ_TILE)
        assert traffic(case, None) == given_tile


def test_without_a_device_there_is_no_dram_series() -> None:
    """An unknown cache gives None, not a guess; the other series do not need one."""
    for device in (None, find_device("MLU370-X8")):
        moved = traffic(make(), device)
        assert moved.dram is None
        assert moved.dram_bytes is None
        assert moved.tile_bytes > 0


@pytest.mark.parametrize(
    ("changes", "arguments", "says"),
    [
        ({}, {"block_m": 64}, "given together"),
        ({}, {"block_m": 0, "block_n": 64}, "at least 1"),
        ({}, {"block_m": 64, "block_n": 64, "dq_tile": (0, 1)}, "at least 1"),
        ({}, {"blocks_per_sm": 0}, "at least 1"),
        ({}, {"variant": "magic"}, "unknown variant 'magic'"),
        ({"window_left": 128}, {}, "modelled for dense"),
        ({"layout": "varlen"}, {}, "modelled for dense"),
        ({"bias": True}, {}, "modelled for dense"),
    ],
)
def test_what_is_not_modelled_is_refused(
    changes: dict[str, Any], arguments: dict[str, Any], says: str
) -> None:
    """Half a tile, a tile without a side, an unknown variant, a window: each says what is allowed."""
    with pytest.raises(InputError, match=says):
        traffic(make(**changes), H200, **arguments)


def test_where_a_head_stops_fitting() -> None:
    """Alone, K and V at d = 128 fill what an H200 keeps at 69 000 keys: half in fp32, twice at d = 64."""
    until = kv_fits_l2_until(H200, 128, "bf16")
    assert until is not None
    assert 65536 <= until < 72000
    assert kv_fits_l2_until(H200, 128, "fp32") == until // 2
    assert kv_fits_l2_until(H200, 64, "bf16") in (2 * until, 2 * until + 1)
    assert kv_fits_l2_until(H200, 128, "bf16", head_dim_v=384) == until // 2
    assert kv_fits_l2_until(find_device("MLU370-X8"), 128, "bf16") is None
    # One head has no neighbour: half of it stays from one generation to the next, and next to nothing of two.
    for n, least, most in ((until // 2, 0, 0.03), (until, 0.5, 1), (2 * until, 0.99, 1)):
        case = make(n=n, d=128, h=1)
        moved = traffic(case, H200)
        assert moved.dram is not None
        generations = -(-n // FORWARD_TILE[0] // 132)
        again = (moved.dram.read - moved.compulsory.read) / (2 * n * 128 * 2)
        assert least <= again / (generations - 1) <= most


@pytest.mark.parametrize(
    ("direction", "d", "n", "tile", "in_step"),
    [
        ("fwd", 64, 114688, (64, 64), {1}),
        ("fwd", 128, 65536, (64, 64), {2}),
        ("fwd", 128, 65536, (128, 64), {1}),
        ("fwd", 128, 65536, (64, 128), {1}),
        ("fwd", 256, 32768, (64, 64), {1}),
        ("bwd", 64, 98304, (128, 64), {2}),
        ("bwd", 256, 32768, (32, 64), {1}),
    ],
)
def test_generations_of_blocks_are_those_of_the_kernel_that_walks(
    direction: str, d: int, n: int, tile: tuple[int, int], in_step: set[int]
) -> None:
    """Two blocks an SM in forwards of 64 x 64 at d = 128 and in the backward at d = 64, else one.

    What a caller says holds for all kernels.
    """
    case = make(n=n, d=d, h=16, direction=direction)
    plain, one, two = (
        traffic(case, H200, block_m=tile[0], block_n=tile[1], blocks_per_sm=k).dram for k in (None, 1, 2)
    )
    assert one != two
    assert {k for k, moved in ((1, one), (2, two)) if moved == plain} == in_step


def test_at_d_128_two_blocks_of_dkdv_walk_in_step_and_one_of_dq() -> None:
    """The backward lies between one block and two in both kernels, by what dK/dV and dQ read again."""
    case = make(n=65536, d=128, h=16, direction="bwd")
    plain, one, two = (
        traffic(case, H200, block_m=32, block_n=64, blocks_per_sm=k).dram for k in (None, 1, 2)
    )
    assert plain is not None
    assert one is not None
    assert two is not None
    assert two.read < plain.read < one.read
