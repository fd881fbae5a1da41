"""Packed batches: each sequence as if it were alone, empty ones among them."""

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import DEVICE, Inputs, assert_as_good_as_eager, assert_within_rule

from fa_core import attention_varlen

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
GPU = DEVICE == "cuda"
DTYPES = {"fp16": torch.float16, "fp32": torch.float32} | ({"bf16": torch.bfloat16} if GPU else {})
# Empty of queries, of keys, of both; of one row; longer than a tile; ragged.
LENGTHS_Q = (5, 0, 37, 1, 64, 0, 130)
LENGTHS_K = (9, 4, 0, 1, 40, 0, 200)
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top_left": {"causal": True, "causal_align": "top-left"},
    "window": {"window": (6, 2)},
    "softcap": {"softcap": 1.5, "causal": True},
    "alibi": {"alibi_slopes": torch.rand(7, 4, generator=torch.Generator().manual_seed(0)).to(DEVICE)},
    "sinks": {"sinks": torch.randn(4, generator=torch.Generator().manual_seed(1)).to(DEVICE)},
}


def cumulative(lengths) -> torch.Tensor:
    """int32 (sequences + 1,) from 0."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=DEVICE)


def packed(lengths_q, lengths_k, dtype, d=16, dv=16, heads=4, kv_heads=2, seed=0) -> Inputs:
    """q, k, v and dout with the sequences end to end: (total, heads, width)."""
    g = torch.Generator(device=DEVICE).manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, device=DEVICE).to(dtype)

    n_q, n_k = sum(lengths_q), sum(lengths_k)
    return Inputs(draw(n_q, heads, d), draw(n_k, kv_heads, d), draw(n_k, kv_heads, dv), draw(n_q, heads, dv))


def run_packed(x: Inputs, cu_q, cu_k, impl, **options) -> dict[str, torch.Tensor]:
    """out, lse and gradients of one implementation."""
    leaves = {f"d{name}": t.detach().requires_grad_() for name, t in zip("qkv", x[:3], strict=True)}
    if "sinks" in options:
        options["sinks"] = leaves["dsinks"] = options["sinks"].detach().to(x.q.dtype).requires_grad_()
    out, lse = attention_varlen(
        *(leaves[f"d{n}"] for n in "qkv"), cu_q, cu_k, impl=impl, return_lse=True, **options
    )
    grads = torch.autograd.grad(out, list(leaves.values()), x.dout)
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(leaves, grads, strict=True))}


def assert_right(x: Inputs, cu_q, cu_k, **options) -> None:
    """The error rule of CONTRIBUTING.md over the whole batch, eager and oracle run sequence by sequence."""
    got = run_packed(x, cu_q, cu_k, "flash", **options)
    eager = run_packed(x, cu_q, cu_k, "naive", **options)
    ref = run_packed(Inputs(*(t.double() for t in x)), cu_q, cu_k, "naive", **options)
    for name in ref:
        assert got[name].shape == ref[name].shape, name
        assert_within_rule(name, got[name], ref[name], eager[name], x.q.dtype)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_sequences_are_as_good_as_eager_ones(options, dtype):
    """Ragged sequences, empty ones among them, obey the error rule with every option that varlen has."""
    x = packed(LENGTHS_Q, LENGTHS_K, DTYPES[dtype])
    assert_right(x, cumulative(LENGTHS_Q), cumulative(LENGTHS_K), **OPTIONS[options])


@pytest.mark.parametrize("d", [16, 256] if GPU else [16])
def test_sequences_of_no_length(d):
    """A batch of nothing but empty sequences, or of no sequence, gives empty results and zero gradients."""
    for lengths in ((0, 0, 0), ()):
        x = packed(lengths, lengths, torch.float16, d=d, dv=d)
        got = run_packed(x, cumulative(lengths), cumulative(lengths), "flash", causal=True)
        assert got["out"].shape == (0, 4, d)
        assert got["dk"].shape == (0, 2, d)
    x = packed((3, 4), (0, 0), torch.float16, d=d, dv=d)
    got = run_packed(x, cumulative((3, 4)), cumulative((0, 0)), "flash")
    assert not got["out"].any()
    assert not got["dq"].any()
    assert torch.isneginf(got["lse"]).all()


def test_many_short_sequences():
    """More sequences than the kernels look at together, of 0 to 3 rows."""
    lengths = [i % 4 for i in range(150 if GPU else 80)]
    x = packed(lengths, lengths[::-1], torch.float16, heads=2, kv_heads=1)
    assert_right(x, cumulative(lengths), cumulative(lengths[::-1]), causal=True)


def test_one_sequence_is_a_dense_batch():
    """A packed batch of one sequence gives the bits of the dense call's formula, whatever the layout."""
    from fa_core import attention

    x = packed((50,), (60,), torch.float32)
    cu_q, cu_k = cumulative((50,)), cumulative((60,))
    dense = attention(*(t.transpose(0, 1)[None] for t in x[:3]), impl="flash", causal=True)
    out = attention_varlen(*x[:3], cu_q, cu_k, impl="flash", causal=True)
    torch.testing.assert_close(out, dense[0].transpose(0, 1))
    spaced = [torch.stack([t, t], dim=1).flatten(1, 2)[:, : t.shape[1]] for t in x[:3]]
    torch.testing.assert_close(attention_varlen(*spaced, cu_q, cu_k, impl="flash", causal=True), out)


@settings(
    max_examples=100 if GPU else 4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=9),
    st.sampled_from([(None, None), (0, None), (3, 5), (None, 0)]),
    st.booleans(),
)
def test_any_lengths_and_windows(lengths, window, causal):
    """Random lengths and windows stay within the rule."""
    lengths_q, lengths_k = zip(*lengths, strict=True)
    x = packed(lengths_q, lengths_k, torch.float16, heads=2, kv_heads=1)
    assert_right(x, cumulative(lengths_q), cumulative(lengths_k), window=window, causal=causal)


X = packed((3, 4), (3, 4), torch.float32)
CU = cumulative((3, 4))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            {"cu_seqlens_q": torch.tensor([0, 5, 3])},
            ValueError,
            "cu_seqlens_q must not decrease, got 5 then 3 at 2",
        ),
        (
            {"cu_seqlens_k": torch.tensor([0, 3, 9])},
            ValueError,
            "cu_seqlens_k must end with the 7 rows .* got 9",
        ),
        ({"cu_seqlens_k": torch.tensor([1, 3, 7])}, ValueError, "cu_seqlens_k must start with 0, got 1"),
        ({"cu_seqlens_k": torch.tensor([0, 7])}, ValueError, "must have one length"),
        (
            {"cu_seqlens_q": torch.tensor([0.0, 3.0, 7.0])},
            TypeError,
            "int32 or int64 tensor, got torch.float32",
        ),
        ({"cu_seqlens_q": torch.tensor([[0, 3, 7]])}, ValueError, r"must have shape \(any\), got \(1, 3\)"),
        (
            {"cu_seqlens_q": torch.tensor([], dtype=torch.int32)},
            ValueError,
            "must start with 0, got an empty tensor",
        ),
        ({"q": X.q[0]}, ValueError, r"q must be \(total, heads, head_dim\), got 2 dimensions"),
        ({"v": X.v[:5]}, ValueError, "k and v must agree in total and heads"),
        ({"window": (-1, 0)}, ValueError, "window's left must be at least 0"),
        (
            {"alibi_slopes": torch.ones(3)},
            ValueError,
            r"alibi_slopes must have shape \(4,\) or \(2, 4\), got \(3,\)",
        ),
    ],
)
def test_lengths_that_do_not_fit_are_refused(change, kind, message):
    """Each misfit is one sentence, before anything is launched."""
    arguments = {"q": X.q, "k": X.k, "v": X.v, "cu_seqlens_q": CU, "cu_seqlens_k": CU} | {
        name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in change.items()
    }
    with pytest.raises(kind, match=message):
        attention_varlen(**arguments, impl="flash")


@pytest.mark.gpu
def test_packed_batches_can_be_captured():
    """A CUDA graph records the call, the lengths unread, and replays it on other lengths."""
    x = packed((30, 70), (30, 70), torch.float16)
    cu = cumulative((30, 70))
    attend = partial(attention_varlen, impl="flash", causal=True)
    attend(*x[:3], cu, cu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(*x[:3], cu, cu)
    cu.copy_(cumulative((60, 40)))
    graph.replay()
    assert torch.equal(out, attend(*x[:3], cu, cu))


def test_no_second_opinion_is_needed():
    """The rule's helper here and the dense one agree: one sequence, same verdict."""
    x = packed((40,), (40,), torch.float32)
    dense = Inputs(*(t.transpose(0, 1)[None] for t in x))
    got = run_packed(x, cumulative((40,)), cumulative((40,)), "flash")
    got = {name: t[None] if name == "lse" else t.transpose(0, 1)[None] for name, t in got.items()}
    assert_as_good_as_eager(got, dense)
