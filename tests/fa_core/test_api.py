"""The public door: what is refused, with which sentence, and what each `impl` dispatches to."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from oracle import DEVICE, make_inputs
from torch.utils.flop_counter import FlopCounterMode

from fa_core import IMPLS, VARIANTS, attention, flash_tile, naive_attention, tiled_attention

X = make_inputs(8, 8, 16)


def _zeros(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("q", "k", "v", "kind", "message"),
    [
        (
            _zeros(8, 16),
            X.k,
            X.v,
            ValueError,
            r"q must be \(batch, heads, seq_len, head_dim\), got 2 dimensions",
        ),
        (X.q, X.k.half(), X.v, TypeError, "must have one dtype"),
        (X.q.int(), X.k.int(), X.v.int(), TypeError, "must be floating point"),
        (X.q, X.k[:, :, :4], X.v, ValueError, "k and v must agree"),
        (X.q[:1], X.k, X.v, ValueError, "one batch size"),
        (X.q, _zeros(2, 3, 8, 32), X.v, ValueError, "one head_dim, got 16 and 32"),
        (X.q, X.k[:, :2], X.v[:, :2], ValueError, "multiple of the heads of k and v, got 3 and 2"),
        ("q", X.k, X.v, TypeError, "q must be a tensor, got str"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(q, k, v, kind, message):
    """Each misfit names the argument, what it must be and what it was."""
    with pytest.raises(kind, match=message):
        attention(q, k, v)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"impl": "magic"}, "impl must be one of auto, flash"),
        ({"scale": float("nan")}, "scale must be finite"),
        ({"impl": "tiled", "block_m": 64}, "given together"),
        ({"impl": "flash", "block_m": 48, "block_n": 64}, "block_m must be 16, 32"),
        ({"impl": "naive", "block_m": 64, "block_n": 64}, "only flash, flash_portable, tiled have tiles"),
        ({"impl": "sdpa", "block_m": 64, "block_n": 64}, "only flash, flash_portable, tiled have tiles"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    """An unknown or meaningless option raises before anything runs."""
    with pytest.raises(ValueError, match=message):
        attention(*X[:3], **options)


def test_flash_says_what_it_cannot_take():
    """fp64 and head_dim beyond 256 are refused by name, as something flash cannot do."""
    with pytest.raises(NotImplementedError, match=r"fp16, bf16 or fp32 tensors, got torch\.float64"):
        attention(*(t.double() for t in X[:3]), impl="flash")
    wide = _zeros(1, 1, 4, 288)
    with pytest.raises(NotImplementedError, match="at most 256, got 288"):
        attention(wide, wide, wide, impl="flash")


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter is for machines without a GPU")
def test_interpreter_refuses_bf16():
    """Triton's interpreter multiplies bf16 bit patterns; flash refuses rather than return them."""
    with pytest.raises(NotImplementedError, match="interpreter"):
        attention(*(t.bfloat16() for t in X[:3]), impl="flash")


@pytest.mark.skipif(DEVICE == "cuda", reason="auto is flash on a GPU")
def test_auto_never_interprets():
    """Without a GPU `auto` is the eager baseline, also where the interpreter is switched on."""
    assert torch.equal(attention(*X[:3]), naive_attention(*X[:3]))


@pytest.mark.parametrize("impl", [i for i in IMPLS if i not in ("sdpa_cudnn", "sdpa_efficient")])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_every_impl_computes_the_same_attention(impl, causal, kv_heads):
    """All implementations agree, with grouped heads, Nq != Nk and the bottom-right causal mask."""
    x = make_inputs(20, 33, 16, kv_heads=kv_heads, dtype="fp16" if DEVICE == "cuda" else "fp32")
    try:
        out = attention(*x[:3], impl=impl, causal=causal)
    except NotImplementedError as refusal:
        assert impl in ("sdpa_flash", "flash_hopper")
        pytest.skip(str(refusal))
    expected = naive_attention(*(t.double() for t in x[:3]), causal=causal)
    torch.testing.assert_close(out.double(), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("causal_align", ["bottom-right", "top-left"])
@pytest.mark.parametrize("lengths", [(4, 9), (9, 9), (9, 4)], ids="{0[0]}x{0[1]}".format)
def test_sdpa_under_a_mode_and_compiled(causal_align, lengths):
    """Counting FLOPs (a TorchDispatchMode) and one compiled graph meet the output of a plain call."""
    x = make_inputs(*lengths, 16, dtype="fp32")
    attend = partial(attention, impl="sdpa", causal=True, causal_align=causal_align)
    plain = attend(*x[:3])
    with FlopCounterMode(display=False):
        torch.testing.assert_close(attend(*x[:3]), plain, equal_nan=True)
    compiled = torch.compile(attend, fullgraph=True, backend="eager")(*x[:3])
    torch.testing.assert_close(compiled, plain, equal_nan=True)


def test_sdpa_has_no_lse():
    """PyTorch's SDPA returns no log-sum-exp, and says so instead of returning something else."""
    with pytest.raises(NotImplementedError, match="without return_lse"):
        attention(*X[:3], impl="sdpa", return_lse=True)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU the backend exists")
def test_a_pinned_backend_that_is_missing_says_so():
    """cuDNN on a CPU: refused with the dtype and shapes."""
    with pytest.raises(NotImplementedError, match="sdpa_cudnn must be given"):
        attention(*X[:3], impl="sdpa_cudnn")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("causal", [False, True])
def test_naive_variants_are_one_function(variant, causal):
    """The declared variants differ in bytes, not in the result (fp64)."""
    x = [t.double() for t in make_inputs(9, 7, 8)[:3]]
    out, lse = naive_attention(*x, causal=causal, variant=variant, return_lse=True)
    other, other_lse = naive_attention(*x, causal=causal, return_lse=True)
    torch.testing.assert_close(out, other)
    torch.testing.assert_close(lse, other_lse)


def test_naive_is_softmax_of_scores():
    """The oracle equals the formula written out, on a case small enough to read."""
    x = [t.double() for t in make_inputs(5, 6, 4)[:3]]
    scores = torch.einsum("bhid,bhjd->bhij", x[0], x[1]) / 2.0
    mask = torch.ones(5, 6, dtype=torch.bool, device=DEVICE).tril(diagonal=1)
    probs = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    torch.testing.assert_close(naive_attention(*x, causal=True), torch.einsum("bhij,bhjd->bhid", probs, x[2]))


def test_naive_has_a_second_derivative():
    """The eager baseline supports double backward (gradgradcheck in fp64)."""
    x = [t[:1, :1, :3, :4].double().requires_grad_() for t in X[:3]]
    assert torch.autograd.gradgradcheck(lambda *t: naive_attention(*t, causal=True), x)


def test_unknown_variant_is_refused():
    """A variant that does not exist is refused with the list."""
    with pytest.raises(ValueError, match="variant must be one of add, fill, fp32_softmax, got 'x'"):
        naive_attention(*X[:3], variant="x")


def test_tiled_in_fp64_is_exact():
    """The chapter's algorithm loses nothing: in fp64 it matches the oracle to 1e-12, gradients too."""
    x = [t.double().requires_grad_() for t in make_inputs(33, 20, 8, kv_heads=1)[:3]]
    out, lse = tiled_attention(*x, causal=True, block_m=8, block_n=5, return_lse=True)
    ref, ref_lse = naive_attention(*x, causal=True, return_lse=True)
    torch.testing.assert_close(out, ref, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, ref_lse, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad((out * weights).sum(), x),
        torch.autograd.grad((ref * weights).sum(), x),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_flash_tile_names_a_real_tile(direction):
    """The default tile is one that can be asked for, for every head_dim and dtype."""
    for d in (1, 16, 80, 128, 256):
        for dtype in (torch.float16, torch.float32):
            block_m, block_n = flash_tile(d, dtype, direction)
            assert {block_m, block_n} <= {16, 32, 64, 128, 256}


def test_import_leaves_triton_alone():
    """Importing fa_core, and asking for a tile, imports no triton: it works where none is installed."""
    code = (
        "import sys, torch, fa_core; fa_core.flash_tile(64, torch.float16); "
        "sys.exit('triton.language' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
