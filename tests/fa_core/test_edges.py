"""Where attention kernels break: degenerate shapes, odd strides, extreme values. Same rule, same oracle.

Each test names the fault it guards against; most come from public reports on other kernels.
"""

from functools import partial

import pytest
import torch
from oracle import DEVICE, DTYPES, Inputs, assert_as_good_as_eager, make_inputs, run

from fa_core import attention, naive_attention

flash = partial(attention, impl="flash")
tiled = partial(attention, impl="tiled")
IMPLS = [pytest.param(flash, id="flash"), pytest.param(tiled, id="tiled")]


def exactly(attend, x: Inputs) -> Inputs:
    """The inputs on which an implementation can be held to the rule.

    The plain tiled version sums in the inputs' dtype: in fp32 its error is of eager's own size, and which
    of the two is larger is chance. Its algorithm is tested in fp64 instead, to ten digits.
    """
    return Inputs(*(t.double() for t in x)) if attend is tiled and x.q.dtype == torch.float32 else x


pytestmark = pytest.mark.usefixtures("poisoned_outputs")
HALVES = ("fp16", "bf16") if DEVICE == "cuda" else ("fp16",)


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("shape", [(0, 3, 3, 5, 5), (2, 3, 1, 0, 5), (2, 3, 3, 5, 0), (2, 3, 3, 0, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_empty_tensors_give_empty_or_zero_results(attend, shape, causal):
    """No batch, no queries or no keys: outputs and gradients are 0, the LSE of a row without keys is -inf."""
    batch, heads, kv_heads, n_q, n_k = shape
    x = make_inputs(n_q, n_k, 16, batch=batch, heads=heads, kv_heads=kv_heads)
    got = run(attend, x, causal=causal)
    assert got["out"].shape == (batch, heads, n_q, 16)
    for name in ("out", "dq", "dk", "dv"):
        assert not got[name].any(), name
    assert torch.isneginf(got["lse"]).all()


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize(("n_q", "n_k"), [(1, 1), (1, 40), (40, 1), (33, 20), (20, 33), (70, 65)])
def test_causal_is_aligned_bottom_right(attend, n_q, n_k):
    """The last query sees every key; with fewer keys than queries the first rows see none and are 0."""
    x = exactly(attend, make_inputs(n_q, n_k, 16))
    got = run(attend, x, causal=True)
    assert_as_good_as_eager(got, x, causal=True)
    mask = torch.ones(n_q, n_k, dtype=torch.bool, device=DEVICE).tril(diagonal=n_k - n_q)
    blind = ~mask.any(dim=1)
    assert not got["out"][:, :, blind].any()
    assert torch.isneginf(got["lse"][:, :, blind]).all()
    assert torch.isfinite(got["lse"][:, :, ~blind]).all()


LAYOUTS = {
    "bnhd": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "sliced": lambda t: torch.cat([t, t], dim=-1)[..., : t.shape[-1]],
    "offset": lambda t: torch.cat([t[..., :1], t], dim=-1)[..., 1:],
    "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_matter(layout, causal):
    """Any layout of q, k, v and of the incoming gradient is read where it lies.

    Rows that are contiguous give the same bits; others are loaded, and so summed, in another order.
    """
    x = make_inputs(40, 50, 16, kv_heads=1, dtype="fp16")
    got = run(flash, Inputs(*(LAYOUTS[layout](t) for t in x)), causal=causal)
    assert_as_good_as_eager(got, x, causal=causal)
    if layout != "transposed":
        expected = run(flash, x, causal=causal)
        assert all(torch.equal(got[name], value) for name, value in expected.items())


def test_expanded_keys_and_values():
    """Keys and values expanded over heads (stride 0) give what their copies give."""
    x = make_inputs(33, 40, 16, kv_heads=1)
    out = flash(x.q, x.k.expand(2, 3, 40, 16), x.v.expand(2, 3, 40, 16))
    assert torch.equal(out, flash(x.q, x.k.repeat(1, 3, 1, 1), x.v.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("attend", IMPLS)
def test_gradient_of_a_sum(attend):
    """`.sum().backward()` sends an expanded gradient of stride 0; it counts as a tensor of ones."""
    x = make_inputs(40, 40, 16)
    leaves = [t.clone().requires_grad_() for t in x[:3]]
    summed = torch.autograd.grad(attend(*leaves).sum(), leaves)
    ones = torch.autograd.grad(attend(*leaves), leaves, torch.ones_like(x.dout))
    for a, b in zip(summed, ones, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("attend", IMPLS)
def test_grouped_heads_sum_their_gradients(attend):
    """dK and dV of a KV head are the sums over its query heads, in the shape of K and V."""
    x = exactly(attend, make_inputs(40, 30, 16, heads=6, kv_heads=2))
    got = run(attend, x)
    assert got["dk"].shape == x.k.shape
    assert_as_good_as_eager(got, x)


def test_values_may_be_wider_or_narrower_than_keys():
    """head_dim_v is free: 8 to 80 beside a head_dim of 32."""
    for dv in (8, 80):
        x = make_inputs(40, 30, 32, head_dim_v=dv)
        assert_as_good_as_eager(run(flash, x, causal=True), x, causal=True)


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0])
@pytest.mark.parametrize("causal", [False, True])
def test_scale_may_be_zero_or_negative(attend, scale, causal):
    """Scale 0 averages the visible values; a negative scale is exact, not masked into NaN."""
    x = exactly(attend, make_inputs(20, 40, 16))
    assert_as_good_as_eager(run(attend, x, causal=causal, scale=scale), x, causal=causal, scale=scale)


def _one_hot(t: torch.Tensor) -> torch.Tensor:
    rows = torch.eye(t.shape[-1], device=t.device, dtype=t.dtype)
    return rows[torch.arange(t.shape[-2], device=t.device) % t.shape[-1]].expand_as(t).contiguous()


def _ramp(t: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-2, 2, t.numel(), device=t.device).reshape(t.shape).to(t.dtype)


VALUES = {
    "constant": lambda t: torch.full_like(t, 0.5),
    "all-negative": lambda t: -t.abs() - 1,
    "large": lambda t: t * 30,
    "tiny": lambda t: t * 1e-3,
    "one-hot": _one_hot,
    "ramp": _ramp,
}


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", [*HALVES, "fp32"])
def test_values_beyond_randn(attend, values, dtype):
    """Constant, negative, large, tiny and structured inputs obey the rule too."""
    x = exactly(attend, Inputs(*(VALUES[values](t) for t in make_inputs(33, 49, 16, dtype=dtype))))
    assert_as_good_as_eager(run(attend, x, causal=True), x, causal=True)


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize(("n_q", "n_k"), [(20, 37), (70, 130)])
def test_logits_far_below_zero(attend, n_q, n_k):
    """Every logit below -89: a padded key would score 0 and outweigh all; no gradient becomes NaN."""
    x = make_inputs(n_q, n_k, 16)
    x = x._replace(q=torch.full_like(x.q, 8.0), k=torch.full_like(x.k, -8.0) + 0.01 * x.k)
    x = exactly(attend, x)
    got = run(attend, x)
    assert all(torch.isfinite(t).all() for t in got.values())
    assert_as_good_as_eager(got, x)


@pytest.mark.parametrize("attend", IMPLS)
def test_masked_block_before_negative_logits(attend):
    """A first key tile that a row cannot see must not leave 0 as the running maximum (GQA 7:1)."""
    x = make_inputs(88, 30, 16, batch=1, heads=7, kv_heads=1)
    x = exactly(attend, x._replace(q=x.q.abs() + 1, k=-x.k.abs() - 1))
    got = run(attend, x, causal=True)
    assert_as_good_as_eager(got, x, causal=True)


@pytest.mark.parametrize("attend", IMPLS)
def test_nan_in_nan_out(attend):
    """A NaN in a query reaches its own row and no other; one in a key reaches every row that sees it."""
    x = make_inputs(20, 20, 16)
    q = x.q.clone()
    q[0, 1, 3, 2] = float("nan")
    out = attend(q, x.k, x.v)
    assert torch.isnan(out[0, 1, 3]).all()
    assert torch.isnan(out).sum() == 16
    k = x.k.clone()
    k[0, 0, 10, 0] = float("nan")
    seen = torch.isnan(attend(x.q, k, x.v, causal=True)[0, 0]).all(dim=-1)
    assert torch.equal(seen, torch.arange(20, device=DEVICE) >= 10)


def test_huge_equal_logits_average_nothing_away():
    """One key, scores near the limit of the dtype: the output is the value itself."""
    x = torch.full((1, 1, 1, 64), 133120.0, device=DEVICE)
    for attend in (flash, tiled):
        assert torch.equal(attend(x, x, x), x)


@pytest.mark.parametrize("attend", IMPLS)
def test_lse_has_a_gradient(attend):
    """The returned log-sum-exp is differentiable, alone and beside the output."""
    x = make_inputs(20, 30, 16)
    wide = [t.double().requires_grad_() for t in x[:3]]
    out, lse = naive_attention(*wide, return_lse=True)
    expected = torch.autograd.grad(lse.sum() + (out * x.dout).sum(), wide)
    leaves = [t.clone().requires_grad_() for t in x[:3]]
    out, lse = attend(*leaves, return_lse=True)
    got = torch.autograd.grad(lse.sum() + (out * x.dout).sum(), leaves)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
    (alone,) = torch.autograd.grad(attend(*leaves, return_lse=True)[1].sum(), leaves[:1])
    (oracle,) = torch.autograd.grad(naive_attention(*wide, return_lse=True)[1].sum(), wide[:1])
    torch.testing.assert_close(alone.double(), oracle, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_the_wanted_gradients(attend, wanted):
    """Gradients of one input alone are those of all three together."""
    x = make_inputs(20, 30, 16)
    every = run(attend, x)
    leaves = [t.clone().requires_grad_(flag) for t, flag in zip(x[:3], wanted, strict=True)]
    out = attend(*leaves)
    out.backward(x.dout)
    for leaf, flag, name in zip(leaves, wanted, ("dq", "dk", "dv"), strict=True):
        assert torch.equal(leaf.grad, every[name]) if flag else leaf.grad is None


@pytest.mark.parametrize("attend", IMPLS)
def test_double_backward_is_refused(attend):
    """A second derivative raises instead of being silently wrong; the eager baseline has one."""
    x = make_inputs(8, 8, 16)
    q, dout = x.q.clone().requires_grad_(), x.dout.clone().requires_grad_()
    (grad,) = torch.autograd.grad(attend(q, x.k, x.v), q, dout, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiable|differentiated"):
        grad.sum().backward()


@pytest.mark.parametrize("tile", [(16, 16), (16, 64), (64, 16), (64, 32), (128, 64)])
@pytest.mark.parametrize("attend", IMPLS)
def test_every_requested_tile_is_right(attend, tile):
    """A requested tile changes the order of work, never the result beyond rounding."""
    x = make_inputs(70, 130, 32, dtype="fp16", batch=1, heads=2, kv_heads=1)
    options = {"block_m": tile[0], "block_n": tile[1]}
    assert_as_good_as_eager(run(partial(attend, **options), x, causal=True), x, causal=True)


def test_same_bits_every_time():
    """Ten runs on the same inputs give the same bits: the portable kernels have no atomics at all."""
    x = make_inputs(200, 200, 32, kv_heads=1, dtype="fp16", batch=1)
    attend = partial(attention, impl="flash_portable")
    first = run(attend, x, causal=True)
    for _ in range(9 if DEVICE == "cuda" else 1):
        again = run(attend, x, causal=True)
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.gpu
def test_more_heads_than_a_grid_axis_holds():
    """batch·heads of 65 538 runs: the grid is flat, where its second axis would end at 65 535."""
    x = make_inputs(16, 16, 16, batch=10923, heads=6, kv_heads=6, dtype="fp16")
    assert_as_good_as_eager(run(flash, x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_strides_beyond_32_bits(dim):
    """A small tensor spread over more than 2^31 elements is read where it lies."""
    x = make_inputs(3, 3, 16, batch=3, heads=3, dtype="fp16")
    sizes = list(x.k.shape)
    strides = [48, 16, 16, 1]
    strides[0], strides[1], strides[2] = 3 * 48, 48, 16
    strides[dim] = 2**30 + 64
    buffer = torch.zeros(2 * strides[dim] + 4096, device=DEVICE, dtype=torch.float16)
    k = torch.as_strided(buffer, sizes, strides)
    k.copy_(x.k)
    assert torch.equal(flash(x.q, k, x.v, causal=True), flash(x.q, x.k, x.v, causal=True))


@pytest.mark.gpu
def test_head_dims_of_long_sequences_match_on_the_gpu():
    """N of 4096 with 5 heads in 1 group stays within the rule: long sums are the ones that drift."""
    for dtype in DTYPES:
        if dtype != "fp64":
            x = make_inputs(4096, 4096, 64, batch=1, heads=5, kv_heads=1, dtype=dtype)
            assert_as_good_as_eager(run(flash, x, causal=True), x, causal=True)
