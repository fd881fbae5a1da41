"""The tiled algorithm: every feature by the rule, and its own state, which is what the lab will show."""

import itertools
import sys
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    BIAS_FORMS,
    DEVICE,
    DTYPES,
    FEATURES,
    assert_as_good_as_eager,
    make_features,
    make_inputs,
    run,
)

from fa_core import naive_attention, tiled_attention
from fa_core.band import make_band
from fa_core.scores import ScoreRule
from fa_core.tiled import backward_tiles, forward_tiles

NEG_INF = float("-inf")
tiled = partial(tiled_attention, block_m=4, block_n=8)


def _drain(tiles):
    states = []
    while True:
        try:
            states.append(next(tiles))
        except StopIteration as end:
            return states, end.value


def _visited(states, block_m, block_n):
    return [(s.rows.start // block_m, s.cols.start // block_n) for s in states]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    "names",
    [
        *((name,) for name in FEATURES if name != "top_left"),
        ("causal", "top_left"),
        ("causal", "window", "alibi"),
        ("softcap", "bias", "sinks"),
        FEATURES,
    ],
    ids="+".join,
)
@pytest.mark.parametrize(("n_q", "n_k"), [(33, 33), (40, 21), (21, 40), (1, 30)])
def test_features_are_as_good_as_eager(dtype, names, n_q, n_k):
    """Each feature and some together: out, lse and all gradients by the error rule, with grouped heads."""
    x = make_inputs(n_q, n_k, 16, heads=4, kv_heads=2, head_dim_v=8, dtype=dtype)
    options = make_features(x, *names, bias_form="b1qk")
    assert_as_good_as_eager(run(tiled, x, **options), x, **options)


side = st.none() | st.integers(0, 24)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    tile=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    heads=st.sampled_from([(1, 1), (2, 1), (6, 3)]),
    names=st.sets(st.sampled_from(FEATURES)),
    window=st.none() | st.tuples(side, side),
    batch_slopes=st.booleans(),
    bias_form=st.sampled_from(BIAS_FORMS),
    hidden=st.floats(0, 1),
    scale=st.sampled_from([None, 0.0, -0.5]),
    seed=st.integers(0, 2**31),
)
def test_any_combination_in_any_tile(
    lengths, tile, heads, names, window, batch_slopes, bias_form, hidden, scale, seed
):
    """Random lengths, tiles, windows and broadcast forms, a share of the biases -inf: ten digits of naive."""
    x = make_inputs(*lengths, 3, heads=heads[0], kv_heads=heads[1], dtype="fp64", seed=seed)
    options = make_features(x, *sorted(names), bias_form=bias_form, seed=seed) | {"scale": scale}
    if "window" in names:
        options["window"] = window
    if "alibi" in names and batch_slopes:
        options["alibi_slopes"] = torch.stack([options["alibi_slopes"], options["alibi_slopes"] / 3])
    if "bias" in names:
        g = torch.Generator().manual_seed(seed)
        dropped = torch.rand(options["bias"].shape, generator=g).to(DEVICE) < hidden
        options["bias"] = options["bias"].detach().masked_fill(dropped, NEG_INF).requires_grad_()
    attend = partial(tiled_attention, block_m=tile[0], block_n=tile[1])
    assert_as_good_as_eager(run(attend, x, **options), x, **options)


@pytest.mark.parametrize("names", [(), ("sinks",), ("window", "softcap", "bias"), FEATURES], ids="+".join)
@pytest.mark.parametrize(("n_q", "n_k"), [(12, 20), (20, 12), (9, 1)])
def test_lse_has_a_gradient_under_every_feature(names, n_q, n_k):
    """What the log-sum-exp sends back, alone or beside the output, is naive's, to q, k, v, bias and sinks."""
    x = make_inputs(n_q, n_k, 4, dtype="fp64")
    options = make_features(x, *names)
    leaves = [t.clone().requires_grad_() for t in x[:3]]
    leaves += [options[name] for name in ("bias", "sinks") if name in options]
    for share in (0.0, 1.0):
        grads = []
        for attend in (tiled, naive_attention):
            out, lse = attend(*leaves[:3], return_lse=True, **options)
            total = lse[torch.isfinite(lse)].sin().sum() + share * (out * x.dout).sum()
            grads.append(torch.autograd.grad(total, leaves))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_the_lowest_finite_bias_averages(dtype):
    """finfo.min on all keys: values and their gradients are averaged, though lse cannot hold log(n)."""
    x = make_inputs(5, 20, 4, dtype=dtype)
    bias = torch.full((1, 1, 5, 20), torch.finfo(DTYPES[dtype]).min, device=DEVICE, dtype=DTYPES[dtype])
    got = run(tiled, x, bias=bias.requires_grad_())
    torch.testing.assert_close(got["out"], x.v.mean(dim=2, keepdim=True).expand_as(got["out"]))
    mean = x.dout.sum(dim=2, keepdim=True) / 20
    torch.testing.assert_close(got["dv"], mean.expand_as(got["dv"]))
    assert all(torch.isfinite(t).all() for t in got.values())


def test_a_wide_bias_is_not_narrowed():
    """fp64's lowest number beside fp32 scores, which would make it -inf, still averages; lse stays fp32."""
    x = make_inputs(3, 12, 4)
    bias = torch.full((1, 1, 1, 12), torch.finfo(torch.float64).min, device=DEVICE, dtype=torch.float64)
    out, lse = tiled(*x[:3], bias=bias, return_lse=True)
    torch.testing.assert_close(out, x.v.mean(dim=2, keepdim=True).expand_as(out))
    assert lse.dtype == torch.float32


@pytest.mark.parametrize("sink", [NEG_INF, -1e4, 1e4])
def test_extreme_sinks(sink):
    """A sink far below every score, or at -inf, changes nothing; one far above takes everything."""
    x = make_inputs(9, 12, 4, dtype="fp64")
    sinks = torch.full((3,), sink, device=DEVICE, dtype=torch.float64, requires_grad=True)
    got = run(tiled, x, causal=True, causal_align="top-left", sinks=sinks)
    assert_as_good_as_eager(got, x, causal=True, causal_align="top-left", sinks=sinks)
    assert not got["dsinks"].any()
    plain = run(tiled, x, causal=True, causal_align="top-left")
    for name, value in plain.items():
        if sink < 0:
            torch.testing.assert_close(got[name], value)
        else:
            assert (got[name] == (sink if name == "lse" else 0.0)).all()


def test_a_window_wider_than_the_sequence_hides_nothing():
    """A length of any size stands for no limit, sys.maxsize too."""
    x = make_inputs(9, 5, 4)
    for far in (9, 2**31, sys.maxsize):
        assert torch.equal(tiled(*x[:3], window=(far, far)), tiled(*x[:3]))


@pytest.mark.parametrize("names", [("bias",), ("softcap", "sinks"), FEATURES], ids="+".join)
def test_nan_is_not_hidden(names):
    """A NaN in a query makes its own row NaN, out, lse and dq, and no other."""
    x = make_inputs(9, 9, 4)
    x.q[0, 1, 5, 2] = float("nan")
    options = make_features(x, *names)
    got = run(tiled, x, **options)
    for name in ("out", "dq"):
        assert torch.isnan(got[name][0, 1, 5]).all()
        assert torch.isnan(got[name]).sum() == 4
    assert torch.isnan(got["lse"]).sum() == 1


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=5)))
def test_only_the_wanted_gradients(wanted):
    """Any choice of q, k, v, bias and sinks gets its gradient, the others none."""
    x = make_inputs(9, 9, 4)
    options = make_features(x, "bias", "sinks")
    every = run(tiled, x, **options)
    tensors = (*x[:3], options["bias"], options["sinks"])
    leaves = [t.detach().requires_grad_(flag) for t, flag in zip(tensors, wanted, strict=True)]
    out = tiled(*leaves[:3], bias=leaves[3], sinks=leaves[4])
    assert out.requires_grad == any(wanted)
    if any(wanted):
        out.backward(x.dout)
    for leaf, flag, name in zip(leaves, wanted, ("dq", "dk", "dv", "dbias", "dsinks"), strict=True):
        assert torch.equal(leaf.grad, every[name]) if flag else leaf.grad is None


def test_a_second_derivative_of_bias_or_sinks_is_refused():
    """Bias and sinks, too, can be differentiated once only."""
    x = make_inputs(5, 5, 4)
    options = make_features(x, "bias", "sinks")
    dout = x.dout.clone().requires_grad_()
    out = tiled(*x[:3], **options)
    grads = torch.autograd.grad(out, list(options.values()), dout, create_graph=True)
    for grad in grads:
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward(retain_graph=True)


def test_forward_states_tell_the_online_softmax():
    """Each tile's sum and output are the previous ones rescaled plus this tile's share; m never falls."""
    x = [t.double() for t in make_inputs(12, 20, 4)[:3]]
    options = {"causal": True, "window": (9, None), "softcap": 2.0, "scale": 0.5}
    rule = ScoreRule(12, 20, 0.5, make_band(True, "bottom-right", (9, None)), softcap=2.0)
    states, result = _drain(forward_tiles(*x, rule, block_m=4, block_n=8))
    for s in states:
        probs = torch.exp(s.scores - torch.where(s.row_max.isneginf(), 0.0, s.row_max)[..., None])
        torch.testing.assert_close(s.row_sum, s.row_sum_before * s.rescale + probs.sum(-1))
        torch.testing.assert_close(s.out, s.out_before * s.rescale[..., None] + probs @ x[2][:, :, s.cols])
        assert (s.row_max >= s.row_max_before).all()
        assert ((s.rescale >= 0) & (s.rescale <= 1)).all()
    out, lse = naive_attention(*x, return_lse=True, **options)
    torch.testing.assert_close(result.out, out)
    torch.testing.assert_close(result.row_max + result.row_log_sum, lse)


@pytest.mark.parametrize(
    ("window", "count"),
    [
        (None, 16),
        ((None, 0), 10),  # on or below the diagonal
        ((0, None), 10),
        ((0, 0), 4),
        ((1, 0), 7),  # a diagonal tile, and the one before it
        ((4, 0), 7),
        ((5, 0), 9),
        ((4, 4), 10),
        ((5, 5), 14),
        ((100, 100), 16),
    ],
)
def test_tiles_that_see_nothing_are_skipped(window, count):
    """Of 16 x 16 scores in 4 x 4 tiles those, and only those, with a visible pair are visited, both ways."""
    x = make_inputs(16, 16, 4)
    rule = ScoreRule(16, 16, 1.0, make_band(False, "bottom-right", window))
    states, forward = _drain(forward_tiles(*x[:3], rule, block_m=4, block_n=4))
    back, _ = _drain(backward_tiles(*x[:3], forward, x.dout, None, rule, block_m=4, block_n=4))
    assert len(states) == count
    assert len(set(_visited(states, 4, 4))) == count
    assert sorted(_visited(back, 4, 4)) == sorted(_visited(states, 4, 4))
    assert all((s.scores != NEG_INF).any() for s in states)


@pytest.mark.parametrize("align", ["bottom-right", "top-left"])
@pytest.mark.parametrize(("n_q", "n_k"), [(30, 13), (13, 30), (1, 30)])
@pytest.mark.parametrize("window", [(3, 2), (0, 0), (None, 1), (6, None)])
def test_visited_tiles_hold_every_visible_pair(align, n_q, n_k, window):
    """Off the diagonal too: a tile is visited exactly when the mask, written out, has a pair in it."""
    x = make_inputs(n_q, n_k, 4)
    rule = ScoreRule(n_q, n_k, 1.0, make_band(False, align, window))
    states, forward = _drain(forward_tiles(*x[:3], rule, block_m=4, block_n=8))
    back, _ = _drain(backward_tiles(*x[:3], forward, x.dout, None, rule, block_m=4, block_n=8))
    i = torch.arange(n_q)[:, None] + (n_k - n_q if align == "bottom-right" else 0)
    j = torch.arange(n_k)[None, :]
    left, right = (n_q + n_k if side is None else side for side in window)
    seen = (j >= i - left) & (j <= i + right)
    expected = {(int(a) // 4, int(b) // 8) for a, b in seen.nonzero()}
    assert set(_visited(states, 4, 8)) == expected
    assert set(_visited(back, 4, 8)) == expected


def test_backward_states_sum_to_the_gradients():
    """The tiles' dscores, multiplied out, are the gradients that the backward returns; dbias is their sum."""
    x = make_inputs(9, 7, 4, dtype="fp64")
    q, k, v, dout = x
    bias = make_features(x, "bias", bias_form="1h1k")["bias"].detach()
    rule = ScoreRule(9, 7, 0.5, bias=bias)
    _, forward = _drain(forward_tiles(q, k, v, rule, block_m=4, block_n=4))
    states, grads = _drain(backward_tiles(q, k, v, forward, dout, None, rule, block_m=4, block_n=4))
    total = torch.zeros(2, 3, 9, 7, dtype=torch.float64, device=q.device)
    probs = torch.zeros_like(total)
    for s in states:
        total[:, :, s.rows, s.cols] = s.dscores
        probs[:, :, s.rows, s.cols] = s.probs
    torch.testing.assert_close(grads.dq, 0.5 * total @ k)
    torch.testing.assert_close(grads.dk, 0.5 * total.transpose(-1, -2) @ q)
    torch.testing.assert_close(grads.dv, probs.transpose(-1, -2) @ dout)
    torch.testing.assert_close(grads.dbias, total.sum(dim=(0, 2), keepdim=True))
    torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]))
