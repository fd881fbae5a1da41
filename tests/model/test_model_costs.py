"""What a call's time is made of: kernels, bytes and pairs, and where the busiest SM's pairs come from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import Case
from profiling.devices import find_device
from profiling.model.costs import REASONS, Amount, amounts, tile_amounts
from profiling.model.naive import naive_passes
from profiling.model.traffic import default_tile

H200, A100 = find_device("H200"), find_device("A100-SXM-80GB")


def case(n=4096, backend="flash_portable", **changes):
    """A plain case of N queries and keys."""
    fields = {"heads": 16, "kv_heads": 16, "head_dim": 64, "head_dim_v": 64, "dtype": "bf16"}
    return Case(backend=backend, seq_len_q=n, seq_len_k=n, **(fields | changes))


def pairs(found: tuple[Amount, ...], rate: str = "softmax") -> dict[str, float]:
    """By reason, of one rate."""
    return {one.reason: one.amount * 1e6 for one in found if one.rate == rate}


def test_a_full_machine_has_little_but_arithmetic():
    """132 heads on 132 SMs, tiles that divide: every pair is wanted, and no SM waits."""
    found = pairs(amounts(case(heads=132, kv_heads=132), H200))
    assert found == pytest.approx({"arithmetic": 4096**2, "padding": 0.0, "waves": 0.0}, abs=1)


def test_one_head_leaves_most_sms_idle():
    """The time is that of the longest tile: 128 queries against all keys."""
    found = pairs(amounts(case(n=1024, heads=1, kv_heads=1), H200))
    assert sum(found.values()) == pytest.approx(128 * 1024)
    assert found["waves"] > 10 * found["arithmetic"]


def test_a_mask_pads():
    """Half of the pairs on the diagonal's tiles are computed and thrown away."""
    found = pairs(amounts(case(n=1024, heads=132, kv_heads=132, causal=True), H200))
    assert found["arithmetic"] == pytest.approx(1024 * 1025 / 2)
    assert found["padding"] > 0


def test_the_kernels_for_sm_90_have_their_own_tiles():
    """A causal forward at d = 64 from 4096 queries on: 192 x 128, so that longer tiles pad more."""
    full = {"heads": 132, "kv_heads": 132, "causal": True}
    assumed, own = (
        pairs(amounts(case(6144, name, **full), H200)) for name in ("flash_portable", "flash_hopper")
    )
    tiles = 6144 // 192
    executed = sum(-(-(192 * (i + 1)) // 128) * 128 for i in range(tiles)) * 192
    assert own["arithmetic"] + own["padding"] == pytest.approx(executed)
    assert own["padding"] > assumed["padding"]
    assert pairs(amounts(case(6144, "flash", **full), H200)) == own
    assert amounts(case(6144, "flash", **full), A100) == amounts(case(6144, "flash_portable", **full), A100)
    wide = {"head_dim": 512, "head_dim_v": 512}
    assert amounts(case(6144, "flash_hopper", **wide), H200) == ()


def test_the_products_grow_with_d_and_the_softmax_does_not():
    """d = 128 has twice the product of d = 64 and the same softmax."""
    narrow, wide = (amounts(case(head_dim=d, head_dim_v=d), H200) for d in (64, 128))
    assert pairs(wide) == pairs(narrow)
    assert pairs(wide, "product") == pytest.approx({k: 2 * v for k, v in pairs(narrow, "product").items()})


def test_eager_kernels_are_counted():
    """A launch for each kernel of `naive_passes`; all bytes, in the cache where scores are small."""
    one = case(backend="naive", causal=True)
    found = {x.rate: x.amount for x in amounts(one, H200)}
    steps = naive_passes(one)
    assert found["launch"] == len(steps)
    moved = sum(step.read_bytes + step.write_bytes for step in steps)
    assert found["dram"] + found["cache"] == pytest.approx(moved / 1e9)
    small = {x.rate: x.amount for x in amounts(case(n=128, backend="naive"), H200)}
    assert small["cache"] > 100 * small["dram"]
    assert found["dram"] > found["cache"]


@given(
    n=st.integers(1, 5000),
    heads=st.integers(1, 300),
    d=st.sampled_from([16, 64, 128]),
    backend=st.sampled_from(["flash", "flash_hopper", "naive", "sdpa_cudnn"]),
    direction=st.sampled_from(["fwd", "bwd"]),
    causal=st.booleans(),
)
def test_no_amount_is_negative(n, heads, d, backend, direction, causal):
    """Every amount is 0 or more, for one of the reasons, and longer sequences take no fewer wanted pairs."""
    options = {"heads": heads, "kv_heads": heads, "head_dim": d, "head_dim_v": d}
    found, longer = (
        amounts(case(m, backend, direction=direction, causal=causal, **options), H200) for m in (n, n + 7)
    )
    assert found
    assert all(x.amount >= -1e-9 for x in found)
    assert {x.reason for x in found} <= set(REASONS)
    wanted, more = (sum(x.amount for x in own if x.reason == "arithmetic") for own in (found, longer))
    assert more > wanted


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": "varlen"}, {"window_left": 3}, {"bias": True}, {"direction": "fwd_bwd"},
        {"backend": "tiled"},
        {"backend": "flex"}, {"batch": 0}, {"tile_m": 64, "tile_n": 64}, {"seq_len_q": 1},
    ],
)  # fmt: skip
def test_of_what_it_does_not_know_it_says_nothing(changes):
    """No amounts, rather than wrong ones."""
    assert amounts(case().model_copy(update=changes), H200) == ()


def test_an_unknown_machine():
    """Without the number of SMs, or the cache's size, there is nothing to divide by."""
    unknown = H200.model_copy(update={"sm_count": None, "l2_bytes": None, "llc_bytes": None})
    assert amounts(case(), unknown) == ()
    assert amounts(case(backend="naive"), unknown) == ()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_requested_tile_is_counted_as_itself(direction, causal):
    """With the default's size asked for, the pairs are those of a call that asks for none."""
    free = case(direction=direction, causal=causal)
    block_m, block_n = default_tile(direction)
    asked = free.model_copy(update={"tile_m": block_m, "tile_n": block_n})
    assert amounts(asked, H200) == ()
    found = tile_amounts(asked, H200)
    assert found[:-2] == amounts(free, H200)
    assert [one.rate for one in found[-2:]] == ["step", "cache"]


def test_steps_and_bytes_of_a_tile_by_hand():
    """132 heads of N = 1024 by 128 x 64: each SM walks 8 times 16 tiles; K and V are asked for 8 times."""
    asked = case(n=1024, heads=132, kv_heads=132, tile_m=128, tile_n=64)
    steps, cache = tile_amounts(asked, H200)[-2:]
    assert steps.amount == pytest.approx(8 * 16 / 1e3)
    rows = 132 * 1024 * 64 * 2
    statistics = cache.amount * 1e9 - (8 * 2 * rows + 2 * rows)
    assert 0 <= statistics <= 8 * 132 * 1024  # a row's statistics: at most two of 4 bytes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tile_m": 64, "tile_n": 64, "direction": "fwd_bwd"},
        {"tile_m": 64, "tile_n": 64, "softcap": 30.0},
        {"tile_m": 64, "tile_n": 64, "batch": 0},
        {"tile_m": 64, "tile_n": 64, "seq_len_k": 512},
    ],
    ids=str,
)
def test_tiles_that_no_formula_is_about_have_no_amounts(changes):
    """No requested tile, both directions at once, a feature, an empty batch, other keys than queries."""
    one = case()
    assert tile_amounts(one.model_copy(update=changes), H200) == ()
