"""Masks, score modifiers and sinks in the Triton kernels: each alone, together, and drawn at random."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import BIAS_FORMS, DEVICE, FEATURES, assert_as_good_as_eager, make_features, make_inputs, run

from fa_core import attention

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
flash = partial(attention, impl="flash")
GPU = DEVICE == "cuda"
DTYPES = ("fp16", "bf16", "fp32") if GPU else ("fp16", "fp32")
HEAD_DIMS = (64, 256) if GPU else (16,)
# Off the tile on both sides, one way and the other.
SHAPES = ((129, 129), (65, 257), (257, 65)) if GPU else ((65, 97), (97, 65))
# What is on together. The score's steps must keep their order, and every mask its own edge.
TOGETHER = (
    ("causal", "window"),
    ("causal", "top_left"),
    ("window", "top_left"),
    ("causal", "alibi"),
    ("causal", "softcap"),
    ("causal", "bias"),
    ("causal", "sinks"),
    ("window", "sinks", "softcap"),
    FEATURES,
)
ALONE = tuple((name,) for name in FEATURES if name != "top_left")


def _grid() -> list:
    """On a GPU every combination; under the interpreter each feature on each dtype, in turns on the rest."""
    axes = list(itertools.product(DTYPES, HEAD_DIMS, SHAPES, (1, 3)))
    together = [*ALONE, *TOGETHER]
    if GPU:
        cases = [(names, *axis) for names in together for axis in axes]
    else:
        cases = [
            (names, *axes[(i + 3 * j) % len(axes)]) for i, names in enumerate(together) for j in range(2)
        ]
    return [
        pytest.param(
            names,
            dtype,
            d,
            *shape,
            kv_heads,
            id=f"{'-'.join(names)}-{dtype}-d{d}-N{shape[0]}x{shape[1]}-kv{kv_heads}",
        )
        for names, dtype, d, shape, kv_heads in cases
    ]


@pytest.mark.parametrize(("names", "dtype", "d", "n_q", "n_k", "kv_heads"), _grid())
def test_features_are_as_good_as_eager(names, dtype, d, n_q, n_k, kv_heads):
    """Every feature, alone and with others: out, LSE and all gradients, dBias and dSinks among them."""
    x = make_inputs(n_q, n_k, d, kv_heads=kv_heads, dtype=dtype)
    options = make_features(x, *names)
    assert_as_good_as_eager(run(flash, x, **options), x, **options)


@pytest.mark.parametrize("form", BIAS_FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_broadcasts_and_sums_its_gradient(form, dtype):
    """A bias of length 1 in any place acts on all of that axis, and its gradient is their sum."""
    x = make_inputs(40, 70, 16, kv_heads=1, dtype=dtype)
    options = make_features(x, "bias", "causal", bias_form=form)
    got = run(flash, x, **options)
    assert got["dbias"].shape == options["bias"].shape
    assert_as_good_as_eager(got, x, **options)


def test_bias_may_be_wider_than_the_inputs():
    """An fp32 bias beside fp16 inputs keeps its digits, and its gradient has its dtype."""
    x = make_inputs(40, 70, 16, dtype="fp16")
    bias = torch.randn(1, 3, 40, 70, device=DEVICE).requires_grad_()
    got = run(flash, x, bias=bias)
    assert got["dbias"].dtype == torch.float32
    assert_as_good_as_eager(got, x, bias=bias)


def test_slopes_may_differ_between_sequences():
    """ALiBi slopes (batch, heads) give each sequence its own."""
    x = make_inputs(40, 70, 16)
    slopes = torch.rand(2, 3, device=DEVICE)
    both = run(flash, x, alibi_slopes=slopes, causal=True)
    assert_as_good_as_eager(both, x, alibi_slopes=slopes, causal=True)
    first = flash(*(t[:1] for t in x[:3]), alibi_slopes=slopes[0], causal=True)
    torch.testing.assert_close(both["out"][:1], first)


@pytest.mark.parametrize("left", [0, 1, 39, None])
@pytest.mark.parametrize("right", [0, 1, 39, None])
def test_windows_include_both_ends(left, right):
    """Query i sees keys i - left to i + right, both ends included: 0, 1, N - 1 and no limit."""
    x = make_inputs(40, 40, 16, batch=1, heads=1, kv_heads=1)
    i = torch.arange(40, device=DEVICE)
    seen = torch.ones(40, 40, dtype=torch.bool, device=DEVICE)
    if left is not None:
        seen &= i[None, :] >= i[:, None] - left
    if right is not None:
        seen &= i[None, :] <= i[:, None] + right
    hidden = torch.zeros(1, 1, 40, 40, device=DEVICE).masked_fill(~seen, float("-inf"))
    torch.testing.assert_close(flash(*x[:3], window=(left, right)), flash(*x[:3], bias=hidden))


@pytest.mark.parametrize(("n_q", "n_k"), [(40, 70), (70, 40), (1, 40)])
def test_causal_may_be_aligned_top_left(n_q, n_k):
    """On request the diagonal starts at the first key, as PyTorch's is_causal has it."""
    x = make_inputs(n_q, n_k, 16)
    got = run(flash, x, causal=True, causal_align="top-left")
    assert_as_good_as_eager(got, x, causal=True, causal_align="top-left")
    torch.testing.assert_close(
        got["out"],
        torch.nn.functional.scaled_dot_product_attention(*x[:3], is_causal=True),
        rtol=1e-4,
        atol=1e-5,
    )


def test_sinks_take_their_share():
    """A sink equal to the only score halves the output; one of -inf changes nothing."""
    x = make_inputs(5, 1, 16, heads=3)
    score = (x.q @ x.k.transpose(-1, -2)).squeeze(-1)[0, :, 0] * 16**-0.5
    halved = flash(x.q[:1, :, :1], x.k[:1], x.v[:1], sinks=score)
    torch.testing.assert_close(halved, x.v[:1] / 2)
    nothing = torch.full((3,), float("-inf"), device=DEVICE)
    torch.testing.assert_close(flash(*x[:3], sinks=nothing), flash(*x[:3]))


def test_a_row_without_keys_leaves_all_to_its_sink():
    """With sinks such a row is 0 too; its log-sum-exp is the sink, and dSinks what its LSE asks."""
    x = make_inputs(5, 3, 16)
    sinks = torch.randn(3, device=DEVICE).requires_grad_()
    out, lse = flash(*x[:3], causal=True, sinks=sinks, return_lse=True)
    assert not out[:, :, :2].any()
    torch.testing.assert_close(lse[:, :, :2], sinks.detach()[None, :, None].expand(2, 3, 2))
    (grad,) = torch.autograd.grad(lse[:, :, :2].sum(), sinks)
    torch.testing.assert_close(grad, torch.full_like(sinks, 4.0))


@st.composite
def _cases(draw):
    heads, kv_heads = draw(st.sampled_from([(1, 1), (3, 1), (4, 2), (3, 3)]))
    longest = 300 if GPU else 70
    return {
        "n_q": draw(st.integers(1, longest)),
        "n_k": draw(st.integers(0, longest)),
        "d": draw(st.integers(1, 256 if GPU else 24)),
        "dv": draw(st.integers(1, 256 if GPU else 24)),
        "batch": draw(st.integers(1, 2)),
        "heads": heads,
        "kv_heads": kv_heads,
        "dtype": draw(st.sampled_from(DTYPES)),
        "names": draw(st.sets(st.sampled_from(FEATURES))),
        "form": draw(st.sampled_from(BIAS_FORMS)),
        "axes": draw(st.permutations(range(4))),
        "seed": draw(st.integers(0, 2**16)),
    }


@settings(
    max_examples=25 if GPU else 8,  # each compiles its own kernels there
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(_cases())
def test_any_shape_strides_and_features(case):
    """Random shapes, layouts, masks and modifiers stay within the rule."""
    x = make_inputs(
        case["n_q"], case["n_k"], case["d"], head_dim_v=case["dv"], batch=case["batch"], heads=case["heads"],
        kv_heads=case["kv_heads"], dtype=case["dtype"], seed=case["seed"],
    )  # fmt: skip
    back = sorted(range(4), key=case["axes"].__getitem__)
    x = type(x)(*(t.permute(case["axes"]).contiguous().permute(back) for t in x))
    options = make_features(x, *sorted(case["names"]), bias_form=case["form"], seed=case["seed"])
    assert_as_good_as_eager(run(flash, x, **options), x, **options)


@pytest.mark.parametrize("names", [("causal",), ("window",), ("bias", "causal", "sinks")], ids="-".join)
def test_features_give_the_same_bits_every_time(names):
    """Same inputs, same bits with `deterministic`: every gradient has one owner, dBias and dSinks too."""
    x = make_inputs(200, 200, 32, kv_heads=1, dtype="fp16")
    options = make_features(x, *names, bias_form="11qk")
    first = run(flash, x, **options, deterministic=True)
    for _ in range(9 if GPU else 1):
        again = run(flash, x, **options, deterministic=True)
        assert all(torch.equal(first[name], again[name]) for name in first)
