"""What other attention kernels got wrong, by the numbers of the project's table of public reports.

`COVERED` says which test guards against which report; a test that a row names must exist. The rows that
are tested nowhere else are tested here.
"""

import ast
from functools import partial
from pathlib import Path

import pytest
import torch
from oracle import DEVICE, Inputs, assert_as_good_as_eager, make_inputs, run

from fa_core import attention, naive_attention

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
flash = partial(attention, impl="flash")
tiled = partial(attention, impl="tiled")
IMPLS = [pytest.param(flash, id="flash"), pytest.param(tiled, id="tiled")]
GPU = DEVICE == "cuda"
HALVES = ("fp16", "bf16") if GPU else ("fp16",)
INF = float("inf")

COVERED = {
    "1 a row that a mask hides whole": "test_rows_and_sequences_that_a_bias_hides",
    "2 a hidden sequence poisons its neighbours": "test_rows_and_sequences_that_a_bias_hides",
    "3 a mask of the least finite number": "test_the_least_finite_bias_hides_nothing",
    "4 the pivot 0 enters the running maximum": "test_masked_block_before_negative_logits",
    "6 a fused multiply-add of huge values": "test_huge_equal_logits_average_nothing_away",
    "7 products beyond fp16": "test_products_beyond_fp16",
    "8 scale 0 or below": "test_scale_may_be_zero_or_negative",
    "10 scaling fused into the exponent": "test_inputs_a_hundred_times_as_large",
    "11 tanh of inf over inf": "test_softcap_of_huge_logits",
    "12 NaN in becomes 0": "test_nan_in_nan_out",
    "12 NaN under a softcap or a bias": "test_nan_survives_every_modifier",
    "13 NaN beyond the tensor": "test_nan_around_a_tensor_stays_outside",
    "15 which corner causal is aligned to": "test_causal_is_aligned_bottom_right",
    "16 few queries, keys past a tile": "test_few_queries_beside_many_keys",
    "17 no batch": "test_empty_tensors_give_empty_or_zero_results",
    "18 no keys": "test_empty_tensors_give_empty_or_zero_results",
    "18 a packed sequence of no length": "test_sequences_of_no_length",
    "19 shorter than a matrix instruction": "test_few_queries_beside_many_keys",
    "20 lengths off the tile": "test_flash_is_as_good_as_eager",
    "21 one row past the tile": "test_flash_is_as_good_as_eager",
    "22 a head_dim other than the compiled one": "test_every_head_dim",
    "23 values wider or narrower than keys": "test_values_may_be_wider_or_narrower_than_keys",
    "25 dO in another layout than O": "test_strides_do_not_matter",
    "26 a padded key outweighs logits below -89": "test_logits_far_below_zero",
    "27 the expanded gradient of a sum": "test_gradient_of_a_sum",
    "29 expanded and transposed K and V": "test_expanded_keys_and_values",
    "30 strides that the fake kernel does not know": "test_opcheck_forward",
    "31 offsets beyond 32 bits": "test_strides_beyond_32_bits",
    "31 tensors beyond 2^31 elements": "test_more_elements_than_32_bits_count",
    "32 more heads than a grid axis": "test_more_heads_than_a_grid_axis_holds",
    "33 fp32 in three digits": "test_fp32_is_not_rounded_to_tf32",
    "33b fp32 on tiles for fp16": "test_flash_is_as_good_as_eager",
    "34 gradients compared by an absolute tolerance": "test_flash_is_as_good_as_eager",
    "35 dK and dV of a group": "test_grouped_heads_sum_their_gradients",
    "36 other bits at each run": "test_same_bits_every_time",
    "37 tuning changes the first result": "test_a_gpu_finds_a_tile_and_keeps_it",
    "39 tuning anew for every length": "test_lengths_of_a_bucket_share_an_entry",
    "40 launched on the current device": "test_tensors_of_another_device_than_the_current_one",
    "41 a gradient that nobody wants": "test_only_the_wanted_gradients",
    "42 the LSE without a gradient": "test_lse_has_a_gradient",
    "43 a second derivative, silently": "test_double_backward_is_refused",
    "44 mixed dtypes under autocast": "test_autocast_takes_mixed_inputs",
    "46 graph breaks": "test_fullgraph_compile",
    "47 zeros for every batch but the first": "test_flash_is_as_good_as_eager",
    "48 windows off by one": "test_windows_include_both_ends",
    "49 more than 32 768 keys": "test_sequences_past_16_bits",
    "50 bf16 under the interpreter": "test_interpreter_refuses_bf16",
    "51 what the interpreter cannot show": "test_fp32_is_not_rounded_to_tf32",
    "52 a tile that does not fit": "test_a_tile_that_does_not_fit_says_so",
    "53 a tile hidden by -inf": "test_a_tile_hidden_by_a_bias",
    "54 bases and strides off 16 bytes": "test_strides_do_not_matter",
    "55 wide heads on structured values": "test_values_beyond_randn_in_wide_heads",
    "56 two parts of nothing": "test_split_keys_are_as_good_as_eager",
}


def test_every_report_has_its_test():
    """Each test that the table names is defined in this folder."""
    defined = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(COVERED.values()) <= defined


def _exactly(attend, x: Inputs) -> Inputs:
    """In fp64 for the plain version, whose rounding in fp32 is of eager's own size."""
    return Inputs(*(t.double() for t in x)) if attend is tiled else x


@pytest.mark.parametrize("attend", IMPLS)
def test_rows_and_sequences_that_a_bias_hides(attend):
    """A row whose bias is -inf throughout is 0, with gradients 0 and LSE -inf; the others do not notice."""
    x = _exactly(attend, make_inputs(20, 70, 16))
    bias = torch.zeros(2, 1, 20, 70, device=DEVICE, dtype=x.q.dtype)
    bias[0, :, 7] = -INF
    bias[1] = -INF
    got = run(attend, x, bias=bias.requires_grad_())
    assert_as_good_as_eager(got, x, bias=bias)
    assert not got["out"][1].any()
    assert not got["dq"][0, :, 7].any()
    for name in ("dq", "dk", "dv", "dbias"):
        assert not got[name][1].any()
        assert torch.isfinite(got[name]).all()
    assert torch.isneginf(got["lse"][1]).all()
    assert torch.isneginf(got["lse"][0, :, 7]).all()


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("dtype", [*HALVES, "fp32"])
def test_the_least_finite_bias_hides_nothing(attend, dtype):
    """A row of finfo.min is a row of equals: the mean of V, and the gradients of a mean."""
    x = make_inputs(20, 70, 16, dtype=dtype)
    x = _exactly(attend, x) if dtype == "fp32" else x
    bias = torch.zeros(2, 1, 20, 70, device=DEVICE, dtype=torch.float32)
    bias[0, :, 3] = torch.finfo(torch.float32).min
    bias[1, :, :, 40:] = torch.finfo(torch.float32).min
    got = run(attend, x, bias=bias.requires_grad_())
    assert_as_good_as_eager(got, x, bias=bias)
    torch.testing.assert_close(got["out"][0, :, 3], x.v[0].mean(dim=1), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("attend", IMPLS)
def test_products_beyond_fp16(attend):
    """q of 576 and k of 383 in fp16: their product overflows fp16, the fp32 sum does not."""
    x = make_inputs(20, 40, 16, dtype="fp16")
    x = x._replace(q=torch.full_like(x.q, 576), k=torch.full_like(x.k, 383))
    got = run(attend, x)
    reference = run(naive_attention, Inputs(*(t.double() for t in x)))
    torch.testing.assert_close(got["out"].double(), reference["out"], rtol=2e-3, atol=2e-3)
    assert all(torch.isfinite(t).all() for t in got.values())


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("dtype", [*HALVES, "fp32"])
@pytest.mark.parametrize("causal", [False, True])
def test_inputs_a_hundred_times_as_large(attend, dtype, causal):
    """Logits in the tens of thousands keep their differences: out and LSE obey the rule.

    A row's softmax is then one key, or two that tie, and how they share rests on the last digits of an fp32
    sum of 1e5: the gradients are rounding, and stay below what rounding of their terms can be.
    """
    x = make_inputs(40, 70, 16, dtype=dtype)
    x = x._replace(q=x.q * 100, k=x.k * 100)
    x = _exactly(attend, x) if dtype == "fp32" else x
    got = run(attend, x, causal=causal)
    reference = run(naive_attention, Inputs(*(t.double() for t in x)), causal=causal)
    eps = torch.finfo(x.q.dtype).eps
    for name, operand in (("dq", x.k), ("dk", x.q), ("dv", x.dout)):
        rounding = 16 * eps * (x.dout.abs().amax() * x.v.abs().amax() * operand.abs().amax()).double()
        assert (got[name].double() - reference[name]).abs().max() <= rounding, name
    exact = {name: reference[name].to(x.q.dtype) for name in ("dq", "dk", "dv")}
    assert_as_good_as_eager(got | exact, x, causal=causal)


@pytest.mark.parametrize("attend", IMPLS)
def test_softcap_of_huge_logits(attend):
    """Logits of ±10 000 and more under a cap of 50 are ±50, without inf / inf, and pass no gradient."""
    x = make_inputs(20, 40, 16)
    sign = torch.where(torch.arange(40, device=DEVICE) % 2 == 0, 1.0, -1.0)[:, None]
    x = x._replace(q=torch.full_like(x.q, 60.0), k=torch.full_like(x.k, 60.0) * sign)
    x = _exactly(attend, x)
    got = run(attend, x, softcap=50.0)
    assert_as_good_as_eager(got, x, softcap=50.0)
    assert all(torch.isfinite(t).all() for t in got.values())
    assert not got["dq"].any()
    lse = torch.tensor(20.0).log().item() + 50.0
    torch.testing.assert_close(got["lse"].double(), torch.full_like(got["lse"].double(), lse))


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize(
    "options",
    [{"softcap": 5.0}, {"bias": "zeros"}, {"bias": "nan"}, {"sinks": "zeros"}, {"window": (3, 3)}],
    ids=str,
)
def test_nan_survives_every_modifier(attend, options):
    """A NaN, in a query or in its bias, stays NaN in its row, and in no other."""
    x = make_inputs(20, 20, 16)
    q, options = x.q.clone(), dict(options)
    poisoned = options.get("bias") == "nan"
    if "bias" in options:
        options["bias"] = torch.zeros(2, 3, 20, 20, device=DEVICE)
    if "sinks" in options:
        options["sinks"] = torch.zeros(3, device=DEVICE)
    if poisoned:
        options["bias"][0, 1, 3, 3] = float("nan")
    else:
        q[0, 1, 3, 2] = float("nan")
    out = attend(q, x.k, x.v, **options)
    assert torch.isnan(out[0, 1, 3]).all()
    assert torch.isnan(out).sum() == 16


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("causal", [False, True])
def test_nan_around_a_tensor_stays_outside(attend, causal):
    """Memory past the last key, query and column may hold anything."""
    x = make_inputs(37, 41, 10)
    padded = []
    for t in x:
        around = torch.full((*t.shape[:2], t.shape[2] + 100, 32), float("nan"), device=DEVICE)
        around[:, :, : t.shape[2], :10] = t
        padded.append(around[:, :, : t.shape[2], :10])
    got = run(attend, Inputs(*padded), causal=causal)
    for name, expected in run(attend, x, causal=causal).items():
        torch.testing.assert_close(got[name], expected)


@pytest.mark.parametrize("attend", IMPLS)
@pytest.mark.parametrize("n_q", [1, 2, 7, 8, 15, 63])
@pytest.mark.parametrize("n_k", [20, 150])
def test_few_queries_beside_many_keys(attend, n_q, n_k):
    """From one query to a tile less one, keys within and past a tile, aligned bottom-right."""
    x = _exactly(attend, make_inputs(n_q, n_k, 16, kv_heads=1))
    assert_as_good_as_eager(run(attend, x, causal=True), x, causal=True)


@pytest.mark.parametrize("d", [1, 3, 8, 31, 80, 96, 160, 192, 203, 255] if GPU else [1, 3, 31, 80])
def test_every_head_dim(d):
    """head_dim need be neither a power of two nor a multiple of anything."""
    x = make_inputs(40, 50, d, dtype="fp16")
    assert_as_good_as_eager(run(flash, x, causal=True), x, causal=True)
    if GPU:
        y = make_inputs(100, 150, 192, head_dim_v=128, dtype="bf16")
        assert_as_good_as_eager(run(flash, y), y)


def test_fp32_is_not_rounded_to_tf32():
    """N 128, d 32 in fp32: errors of 1e-6, where TF32 has 1e-3."""
    x = make_inputs(128, 128, 32, batch=1, heads=1, kv_heads=1)
    got = run(flash, x)
    for name, ref in run(naive_attention, Inputs(*(t.double() for t in x))).items():
        assert (got[name].double() - ref).abs().max() < 1e-5, name


@pytest.mark.parametrize("attend", IMPLS)
def test_a_tile_hidden_by_a_bias(attend):
    """The first 64 keys hidden by -inf: a first tile of nothing, and then all that counts."""
    x = _exactly(attend, make_inputs(70, 130, 16))
    bias = torch.zeros(1, 1, 70, 130, device=DEVICE, dtype=x.q.dtype)
    bias[..., :64] = -INF
    assert_as_good_as_eager(run(attend, x, bias=bias), x, bias=bias)


@pytest.mark.gpu
def test_a_tile_that_does_not_fit_says_so():
    """A requested tile beyond the device's shared memory is refused with its need and the limit."""
    x = make_inputs(300, 300, 256, dtype="bf16")
    with pytest.raises(NotImplementedError, match=r"tile 256 x 256 must fit the device: .* exceeds its"):
        flash(*x[:3], block_m=256, block_n=256)


@pytest.mark.gpu
@pytest.mark.parametrize("values", ["constant", "ramp", "one-hot", "negative"])
def test_values_beyond_randn_in_wide_heads(values):
    """d = 256 in bf16 on structured values, whose faults random ones average away."""
    x = make_inputs(300, 300, 256, dtype="bf16")
    made = {
        "constant": lambda t: torch.full_like(t, 0.5),
        "ramp": lambda t: torch.linspace(-2, 2, t.numel(), device=DEVICE).reshape(t.shape).to(t.dtype),
        "one-hot": lambda t: torch.eye(300, 256, device=DEVICE, dtype=t.dtype).expand_as(t).contiguous(),
        "negative": lambda t: -t.abs() - 1,
    }[values]
    x = Inputs(*(made(t) for t in x))
    assert_as_good_as_eager(run(flash, x, causal=True), x, causal=True)


@pytest.mark.gpu
def test_sequences_past_16_bits():
    """33 728 and 65 600 keys of zeros: the mean of V, which is 0; of ones, 1."""
    for n in (33728, 65600):
        x = torch.zeros(1, 1, n, 64, device=DEVICE, dtype=torch.float16)
        assert torch.equal(flash(x, x, x), x)
        torch.testing.assert_close(flash(x[:, :, :100], x, x + 1), x[:, :, :100] + 1)


@pytest.mark.gpu
def test_more_elements_than_32_bits_count():
    """q, k, v and dO of 2.2e9 elements each: the last head is as right as the first."""
    batch, heads, n, d = 1040, 16, 1024, 128
    g = torch.Generator(device=DEVICE).manual_seed(0)
    q, k, v, dout = (
        torch.empty(batch, heads, n, d, device=DEVICE, dtype=torch.bfloat16).normal_(generator=g)
        for _ in range(4)
    )
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = flash(*leaves, causal=True)
    grads = torch.autograd.grad(out, leaves, dout)
    last = Inputs(*(t.detach()[-1:, -3:] for t in (q, k, v, dout)))
    again = run(flash, last, causal=True)
    for name, whole in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True):
        assert torch.equal(whole[-1:, -3:].detach(), again[name]), name


@pytest.mark.gpu
def test_many_short_batches():
    """8 300 sequences of one token and 16 heads, backward too."""
    x = make_inputs(1, 1, 128, batch=8300, heads=16, kv_heads=16, dtype="fp16")
    got = run(flash, x)
    torch.testing.assert_close(got["out"], x.v)
    torch.testing.assert_close(got["dv"], x.dout)
    assert not got["dq"].any()
