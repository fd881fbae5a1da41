"""The oracle itself, against a formula that knows nothing of rows, variants or numerical safety."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import BIAS_FORMS, DEVICE, DTYPES, FEATURES, Inputs, make_features, make_inputs

from fa_core import VARIANTS, naive_attention

NEG_INF = float("-inf")


def formula(
    q,
    k,
    v,
    *,
    causal=False,
    causal_align="bottom-right",
    window=None,
    alibi_slopes=None,
    softcap=None,
    bias=None,
    sinks=None,
    scale=None,
):
    """out and lse by the definition: exp, sum, divide. Scores must be small enough for exp."""
    heads, n_q, n_k = q.shape[1], q.shape[2], k.shape[2]
    k_of_head = [head * k.shape[1] // heads for head in range(heads)]
    k, v = k[:, k_of_head], v[:, k_of_head]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(n_q, device=q.device)[:, None].expand(n_q, n_k)
    j = torch.arange(n_k, device=q.device)[None, :].expand(n_q, n_k)
    if causal_align == "bottom-right":
        i = i + n_k - n_q
    if alibi_slopes is not None:
        slopes = alibi_slopes.expand(q.shape[:2])
        scores = scores - torch.einsum("bh,ij->bhij", slopes.to(q.dtype), abs(i - j).to(q.dtype))
    if bias is not None:
        scores = scores + bias
    visible = torch.ones_like(i, dtype=torch.bool)
    if causal:
        visible = visible & (j <= i)
    if window is not None and window[0] is not None:
        visible = visible & (j >= i - window[0])
    if window is not None and window[1] is not None:
        visible = visible & (j <= i + window[1])
    weights = torch.where(visible, scores.exp(), 0.0)
    total = weights.sum(dim=-1)
    if sinks is not None:
        total = total + sinks.exp()[:, None]
    blind = total == 0
    total = torch.where(blind, 1.0, total)
    return weights @ v / total[..., None], torch.where(blind, NEG_INF, total.log())


def derivatives(attend, x: Inputs, **options):
    """out, lse and the gradients of q, k, v, bias and sinks that both send back."""
    leaves = [t.detach().requires_grad_() for t in x[:3]]
    for name in ("bias", "sinks"):
        if name in options:
            options[name] = options[name].detach().requires_grad_()
            leaves.append(options[name])
    out, lse = attend(*leaves[:3], **options)
    seen = torch.isfinite(lse)
    return [out, lse, *torch.autograd.grad((out * x.dout).sum() + (lse * 0.7)[seen].sum(), leaves)]


def agree(x: Inputs, variant="add", **options):
    """Assert that naive gives what the formula gives, forward and backward, to fp64's digits."""

    def naive(*tensors, **given):
        return naive_attention(*tensors, variant=variant, return_lse=True, **given)

    got, expected = derivatives(naive, x, **options), derivatives(formula, x, **options)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(("n_q", "n_k"), [(9, 9), (13, 6), (6, 13), (1, 8), (8, 1)])
def test_each_feature_alone(variant, feature, n_q, n_k):
    """One feature at a time, in every variant, with grouped heads: out, lse and all gradients."""
    x = make_inputs(n_q, n_k, 4, heads=4, kv_heads=2, head_dim_v=3, dtype="fp64")
    agree(x, variant, **make_features(x, feature))


side = st.none() | st.integers(0, 12)


@settings(max_examples=250, deadline=None)
@given(
    lengths=st.tuples(st.integers(0, 10), st.integers(0, 10)),
    heads=st.sampled_from([(1, 1), (2, 1), (6, 3)]),
    names=st.sets(st.sampled_from(FEATURES)),
    window=st.none() | st.tuples(side, side),
    batch_slopes=st.booleans(),
    bias_form=st.sampled_from(BIAS_FORMS),
    hidden=st.floats(0, 1),
    scale=st.sampled_from([None, 0.0, -0.5]),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 2**31),
)
def test_any_combination(
    lengths, heads, names, window, batch_slopes, bias_form, hidden, scale, variant, seed
):
    """Random lengths, windows, alignments and broadcast forms, a share of the biases -inf: the definition."""
    x = make_inputs(*lengths, 3, heads=heads[0], kv_heads=heads[1], dtype="fp64", seed=seed)
    options = make_features(x, *sorted(names), bias_form=bias_form, seed=seed)
    if "window" in names:
        options["window"] = window
    if "alibi" in names and batch_slopes:
        options["alibi_slopes"] = torch.stack([options["alibi_slopes"], options["alibi_slopes"] / 3])
    if "bias" in names:
        g = torch.Generator().manual_seed(seed)
        dropped = torch.rand(options["bias"].shape, generator=g).to(DEVICE) < hidden
        options["bias"] = options["bias"].detach().masked_fill(dropped, NEG_INF)
    agree(x, variant, scale=scale, **options)


BLIND_ROWS = [  # n_q, n_k, options, rows that see no key
    (6, 4, {"causal": True}, [0, 1]),
    (6, 4, {"causal": True, "causal_align": "top-left"}, []),
    (6, 3, {"window": (1, None), "causal_align": "top-left"}, [4, 5]),
    (6, 2, {"window": (0, 1)}, [0, 1, 2]),
    (6, 2, {"window": (1, 0), "causal_align": "top-left"}, [3, 4, 5]),
    (2, 6, {"window": (0, 0)}, []),
    (3, 0, {}, [0, 1, 2]),
    (3, 0, {"window": (1, 1)}, [0, 1, 2]),
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("n_q", "n_k", "options", "blind"), BLIND_ROWS)
@pytest.mark.parametrize("names", [("bias",), ("alibi", "sinks"), ("bias", "alibi", "softcap", "sinks")])
def test_features_beside_rows_that_see_no_key(variant, n_q, n_k, options, blind, names):
    """Cutting such rows off moves neither a bias nor ALiBi's distances against the rows that are left."""
    x = make_inputs(n_q, n_k, 4, dtype="fp64")
    agree(x, variant, **options, **make_features(x, *names))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("n_q", "n_k", "options", "blind"), BLIND_ROWS)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_rows_that_see_no_key(variant, n_q, n_k, options, blind, with_sinks):
    """First or last rows outside the band: out 0, gradient 0, lse -inf, or the sink where there is one."""
    x = make_inputs(n_q, n_k, 4, dtype="fp64")
    options = {**options, **(make_features(x, "sinks") if with_sinks else {})}
    q = x.q.clone().requires_grad_()
    out, lse = naive_attention(q, x.k, x.v, variant=variant, return_lse=True, **options)
    (dq,) = torch.autograd.grad(out, q, x.dout)
    rows = torch.zeros(n_q, dtype=torch.bool, device=DEVICE)
    rows[blind] = True
    assert not out[:, :, rows].any()
    assert not dq[:, :, rows].any()
    assert (out[:, :, ~rows] != 0).all()
    alone = options["sinks"][:, None] if with_sinks else torch.tensor(NEG_INF, device=DEVICE)
    assert (lse[:, :, rows] == alone).all()
    assert (lse[:, :, ~rows] > alone).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_window_wider_than_the_sequence_hides_nothing(variant):
    """A length of any size stands for no limit, sys.maxsize too."""
    x = make_inputs(5, 9, 4)
    plain = naive_attention(*x[:3], variant=variant)
    for far in (9, 2**31, sys.maxsize):
        assert torch.equal(naive_attention(*x[:3], variant=variant, window=(far, far)), plain)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_may_hide_all_keys(variant, dtype):
    """-inf over a whole row gives 0 and finite gradients, and leaves the other rows their bits."""
    x = make_inputs(5, 7, 4, dtype=dtype)
    bias = torch.zeros(2, 1, 5, 7, device=DEVICE, dtype=DTYPES[dtype])
    bias[1, :, 2] = NEG_INF
    leaves = [t.clone().requires_grad_() for t in (*x[:3], bias)]
    out, lse = naive_attention(*leaves[:3], bias=leaves[3], variant=variant, return_lse=True)
    grads = torch.autograd.grad(out.float().sum() + lse[lse.isfinite()].sum(), leaves)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert not out[1, :, 2].any()
    assert not grads[0][1, :, 2].any()
    assert not grads[3][1, :, 2].any()
    assert torch.isneginf(lse).sum() == 3
    expected = naive_attention(*x[:3], bias=torch.zeros_like(bias), variant=variant)
    expected[1, :, 2] = 0
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_the_lowest_finite_bias_is_not_minus_infinity(dtype):
    """finfo.min on all keys swallows the scores: the values are averaged (PyTorch issue 110213)."""
    x = make_inputs(3, 4, 8, dtype=dtype)
    bias = torch.full((1, 1, 3, 4), torch.finfo(DTYPES[dtype]).min, device=DEVICE, dtype=DTYPES[dtype])
    v = x.v.clone().requires_grad_()
    out, lse = naive_attention(x.q, x.k, v, bias=bias, return_lse=True)
    (dv,) = torch.autograd.grad(out, v, torch.ones_like(out))
    mean = x.v.double().mean(dim=2, keepdim=True).expand_as(out)
    torch.testing.assert_close(out, mean.to(out.dtype))
    torch.testing.assert_close(dv, torch.full_like(dv, 0.75))
    assert torch.isfinite(lse).all()


def test_a_wide_bias_is_not_narrowed():
    """fp32's lowest number beside bf16 scores, which would round it to -inf, still averages."""
    x = make_inputs(3, 4, 8, dtype="bf16")
    bias = torch.full((1, 1, 3, 4), torch.finfo(torch.float32).min, device=DEVICE)
    out = naive_attention(x.q, x.k, x.v, bias=bias)
    torch.testing.assert_close(out, x.v.float().mean(dim=2, keepdim=True).expand_as(out).bfloat16())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_keep_the_dtype_of_the_queries(variant, dtype):
    """Whatever the dtype of slopes, bias and sinks, out is in q's, lse in fp32 (fp64 for fp64)."""
    x = make_inputs(5, 7, 4, dtype=dtype)
    for other in DTYPES.values():
        options = {
            "alibi_slopes": torch.full((3,), 0.5, device=DEVICE),
            "bias": torch.zeros(1, 3, 1, 7, device=DEVICE, dtype=other),
            "sinks": torch.zeros(3, device=DEVICE, dtype=other),
        }
        out, lse = naive_attention(*x[:3], variant=variant, return_lse=True, window=(3, 2), **options)
        assert out.dtype == DTYPES[dtype]
        assert lse.dtype == (torch.float64 if dtype == "fp64" else torch.float32)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("names", [(), ("bias",), ("sinks", "softcap"), FEATURES])
def test_nan_is_not_hidden(variant, names):
    """A NaN in a query, or in a bias, makes its row NaN, out and lse: no maximum or sum may lose it."""
    x = make_inputs(6, 6, 4)
    options = make_features(x, *names)
    q = x.q.clone()
    q[0, 1, 3, 2] = float("nan")
    out, lse = naive_attention(q, x.k, x.v, variant=variant, return_lse=True, **options)
    assert torch.isnan(out[0, 1, 3]).all()
    assert torch.isnan(out).sum() == 4
    assert torch.isnan(lse).sum() == 1
    if "bias" in names:
        options["bias"] = options["bias"].detach().clone()
        options["bias"][1, 2, 5, 5] = float("nan")
        assert torch.isnan(naive_attention(*x[:3], variant=variant, **options)[1, 2, 5]).all()


def test_slopes_get_no_gradient():
    """alibi_slopes are constants, also where they ask for a gradient."""
    x = make_inputs(4, 4, 4)
    q, slopes = x.q.clone().requires_grad_(), torch.ones(3, device=DEVICE, requires_grad=True)
    naive_attention(q, x.k, x.v, alibi_slopes=slopes).sum().backward()
    assert q.grad is not None
    assert slopes.grad is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_derivatives(variant):
    """First and second derivatives, of out and lse, agree with finite differences, all features on."""
    x = make_inputs(3, 4, 2, batch=1, heads=2, kv_heads=1, dtype="fp64")
    options = make_features(x, "window", "alibi", "softcap", "bias", "sinks", bias_form="1h1k")
    options["window"] = (2, 1)
    tensors = [*x[:3], options.pop("bias"), options.pop("sinks")]
    leaves = [t.detach().clone().requires_grad_() for t in tensors]

    def attend(q, k, v, bias, sinks):
        return naive_attention(q, k, v, bias=bias, sinks=sinks, variant=variant, return_lse=True, **options)

    assert torch.autograd.gradcheck(attend, leaves)
    assert torch.autograd.gradgradcheck(attend, leaves)


def test_second_derivatives_of_hidden_rows_are_finite():
    """A row that a bias hides stays finite in the second derivative too."""
    x = make_inputs(3, 4, 2, dtype="fp64")
    bias = torch.zeros(1, 1, 3, 4, device=DEVICE, dtype=torch.float64)
    bias[:, :, 1] = NEG_INF
    q, bias = x.q.clone().requires_grad_(), bias.requires_grad_()
    out = naive_attention(q, x.k, x.v, bias=bias)
    first = torch.autograd.grad((out**2).sum(), (q, bias), create_graph=True)
    second = torch.autograd.grad(sum((grad**2).sum() for grad in first), (q, bias))
    assert all(torch.isfinite(grad).all() for grad in (*first, *second))


def test_an_unknown_variant_is_refused():
    """The sentence lists the variants there are."""
    x = make_inputs(2, 2, 4)
    with pytest.raises(ValueError, match="variant must be one of add, fill, fp32_softmax, got 'flash'"):
        naive_attention(*x[:3], variant="flash")
