"""The algorithm without one of its safeguards: the same bits with all in place, and what each is for."""

from __future__ import annotations

import math

import pytest
import torch

from fa_core import tiled_attention
from profiling.case import InputError
from profiling.lab import safeguards as lab
from profiling.lab import sums
from profiling.lab.safeguards import SAFEGUARDS, TENSORS, Inputs, errors, tf32, tiles

SHORT = ("random", "large", "outliers", "masked")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Small tensors: more threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def found():
    """Errors by inputs, dtype, what was left out, and tensor."""
    return {(name, e.dtype, e.left_out, e.tensor): e for name in SHORT for e in errors(name)}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("dtype", lab.DTYPES.values(), ids=str)
def test_with_all_in_place_it_is_tiled_attention(name, dtype):
    """Output and gradients have the bits of `fa_core.tiled`, on every kind of inputs and in every dtype."""
    inputs = lab._in_dtype(lab.draw(name, 1), dtype)
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    out = tiled_attention(*leaves, causal=inputs.causal, block_m=lab.BLOCK, block_n=lab.BLOCK)
    expected = (out.detach(), *torch.autograd.grad(out, leaves, inputs.dout))
    for tensor, right in zip(TENSORS, expected, strict=True):
        assert torch.equal(tiles(inputs, "none")[tensor], right), tensor


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("dtype", lab.DTYPES)
def test_with_all_in_place_every_number_is_right(found, name, dtype):
    """No worse than three times eager attention's error, or what fp64 rounds."""
    for tensor in TENSORS:
        own, eager = (found[name, dtype, left_out, tensor].rel_error for left_out in ("none", "eager"))
        assert own <= max(3 * eager, 1e-12)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_without_the_maximum_large_logits_overflow(found, dtype):
    """exp of a score beyond 88.7 is infinite in fp32, and inf / inf is no number; small logits do without."""
    assert found["large", dtype, "maximum", "out"].not_finite > 0
    assert found["large", dtype, "maximum", "out"].rel_error is None
    assert found["random", dtype, "maximum", "out"].not_finite == 0
    assert found["large", "fp64", "maximum", "out"].not_finite == 0


@pytest.mark.parametrize("dtype", lab.DTYPES)
def test_without_rescaling_the_result_is_wrong_in_any_dtype(found, dtype):
    """The figure's O += P V: tens of per cent, where rows have four tiles; none where they have one."""
    assert found["random", dtype, "rescaling", "out"].rel_error > 0.1
    assert (
        found["masked", dtype, "rescaling", "out"].rel_error
        == found["masked", dtype, "none", "out"].rel_error
    )


def test_sums_in_the_dtype_cost_digits_where_it_is_narrow(found):
    """More than twice the error in 16 bits, the same bits in fp32 and fp64."""
    for dtype, more in (("fp16", True), ("bf16", True), ("fp32", False), ("fp64", False)):
        own, intact = (found["random", dtype, x, "dq"].rel_error for x in ("accumulator", "none"))
        assert own > 2 * intact if more else own == intact


def test_tf32_products_have_three_digits(found):
    """In fp32 the error is between 1e-4 and 1e-3; true products have a thousandth of it."""
    assert 1e-4 < found["random", "fp32", "products", "out"].rel_error < 1e-3
    assert found["random", "fp32", "none", "out"].rel_error < 1e-6
    assert found["random", "fp64", "products", "out"] == found["random", "fp64", "none", "out"]._replace(
        left_out="products"
    )


def test_delta_of_a_tile_is_not_a_rows(found):
    """dQ and dK are wrong, the output and dV are not touched."""
    for tensor in TENSORS:
        own, intact = (found["random", "fp32", x, tensor].rel_error for x in ("delta", "none"))
        assert own > 0.05 if tensor in ("dq", "dk") else own == intact


def test_without_the_guard_rows_without_keys_are_no_numbers(found):
    """Each number of the 56 such queries, of both heads; with it none, and other inputs do not need it."""
    for dtype in lab.DTYPES:
        assert found["masked", dtype, "guard", "out"].not_finite == 56 * 64 * 2
        assert found["masked", dtype, "none", "out"].not_finite == 0
        assert found["random", dtype, "guard", "out"].not_finite == 0


def test_long_rows_lose_digits_in_narrow_sums():
    """8192 keys that weigh alike: sums in bf16 lose ten times what sums in fp32 do."""
    found = {(e.left_out, e.tensor): e.rel_error for e in errors("long", dtypes=("bf16",))}
    assert found["accumulator", "out"] > 10 * found["none", "out"]


def test_every_combination_and_the_same_for_the_same_seed(found):
    """Dtypes, what is left out and tensors; another seed has other numbers."""
    assert len(found) == len(SHORT) * 4 * (2 + len(SAFEGUARDS)) * 4
    first, again, other = (errors("masked", seed=seed, dtypes=("fp32",)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ["", "Random", "nothing"])
def test_other_inputs_are_refused(name):
    """One sentence with what there is."""
    with pytest.raises(InputError, match="inputs must be one of random, large, long, outliers, masked"):
        lab.draw(name, 0)


# ------------------------------------------------------------------------------------------------- tf32


@pytest.mark.parametrize(
    ("x", "rounded"),
    [
        (1.0, 1.0),
        (1 + 2**-10, 1 + 2**-10),
        (1 + 2**-11, 1.0),  # half a step: to the even neighbour
        (1 + 3 * 2**-11, 1 + 2**-9),
        (1 + 2**-11 + 2**-20, 1 + 2**-10),
        (-(1 + 2**-11 + 2**-20), -(1 + 2**-10)),
        (0.0, 0.0),
        (math.inf, math.inf),
        (2.0 - 2**-12, 2.0),
    ],
)
def test_tf32_keeps_ten_bits(x, rounded):
    """Nearest, ties to even, carrying into the exponent."""
    assert float(tf32(torch.tensor([x]))[0]) == rounded


def test_tf32_leaves_other_dtypes_and_nan_alone():
    """16 bits have no more than it keeps; fp64 is never multiplied in TF32."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = torch.randn(8, dtype=dtype)
        assert torch.equal(tf32(x), x)
    assert tf32(torch.tensor([math.nan])).isnan().all()
    x = torch.randn(1000)
    assert ((tf32(x) - x).abs() <= x.abs() * 2**-11).all()


# ------------------------------------------------------------------------------------------------- sums


def test_ones_stall_where_half_a_step_exceeds_one():
    """fp16 at 2048 and bf16 at 256 one by one; tiles of 64 put that off 64 times; fp32 is right."""
    at = {(x.dtype, x.order, x.terms): x.sum for x in sums.ones(2**13)}
    assert at["fp16", "one by one", 2048] == at["fp16", "one by one", 8192] == 2048
    assert at["bf16", "one by one", 256] == at["bf16", "one by one", 8192] == 256
    for dtype in ("fp16", "bf16"):
        assert at[dtype, "by tiles", 8192] == at[dtype, "pairwise", 8192] == 8192
    assert {x for (dtype, _, terms), x in at.items() if dtype == "fp32" and terms == 4096} == {4096}


def test_beyond_fp16_there_is_no_number():
    """65536 ones in a tree are infinite, and None."""
    x = torch.ones(2**16, dtype=torch.float16)
    assert float(sums.pairwise(x)) == math.inf
    assert sums.pairwise(x.new_zeros(0)) == 0
    assert float(sums.pairwise(torch.ones(5))) == 5


def test_orders_differ_and_a_tree_is_best():
    """In each dtype pairwise has the least error, and one by one loses much in 16 bits."""
    found = {(x.dtype, x.order): x.rel_error for x in sums.orders()}
    for dtype in ("fp16", "bf16", "fp32"):
        assert min(found[dtype, order] for _, order in found) == found[dtype, "pairwise"]
    assert found["bf16", "one by one"] > 0.1
    assert found["fp32", "one by one"] < 1e-5


def test_beside_the_published_table():
    """Tiles beat eager attention, and rounding the inputs to fp16 is most of the tiles' error."""
    found = lab.rounded_twice(n=256, head_dim=64)
    assert found["tiles"]["algorithm"] < found["eager"]["algorithm"]
    assert found["tiles"]["total"] > 2 * found["tiles"]["algorithm"]
    assert found["eager"]["total"] < 1e-3


def test_inputs_are_what_they_say():
    """Large logits are 32 times as large, masked ones have fewer keys than queries, outliers are rare."""
    random, large, masked, outliers = (
        lab.draw(name, 0) for name in ("random", "large", "masked", "outliers")
    )
    assert isinstance(random, Inputs)
    assert torch.equal(large.q, 32 * random.q)
    assert (masked.q.shape[2], masked.k.shape[2], masked.causal) == (96, 40, True)
    share = (outliers.k.abs() > 6).double().mean()
    assert 0 < share < 0.002
