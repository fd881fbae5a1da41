"""The kernels for sm_90: there against the fp64 oracle; anywhere, what they take and that they compile."""

import itertools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from oracle import DEVICE, Inputs, assert_as_good_as_eager, make_features, make_inputs, run

from fa_core import attention, explain, flash_kernels, hopper
from fa_core.band import Band
from fa_core.kernels import tuning
from fa_core.launch import Problem

ROOT = Path(__file__).resolve().parents[2]
HERE = DEVICE == "cuda" and torch.cuda.get_device_capability() == hopper.CAPABILITY
on_sm_90 = [pytest.mark.gpu, pytest.mark.skipif(not HERE, reason="needs a GPU of compute capability 9.0")]
flash = partial(attention, impl="flash_hopper")

BANDS = ((None, None), (None, 0), (40, 0), (100, 30), (50, None))
LENGTHS = ((65, 300), (300, 65), (257, 257), (512, 512), (1023, 1025))


def _grid() -> list:
    axes = [
        (dtype, d, kv_heads, lengths, band)
        for d, kv_heads, lengths, band in itertools.product((64, 128, 256, 80, 40), (4, 2), LENGTHS, BANDS)
        for dtype in (("bf16", "fp16") if kv_heads == 4 and lengths[0] != 512 else ("bf16",))
    ]
    return [
        pytest.param(*a, id=f"{a[0]}-d{a[1]}-kv{a[2]}-N{a[3][0]}x{a[3][1]}-{a[4][0]}..{a[4][1]}")
        for a in axes
    ]


class TestAgainstTheOracle:
    """What only the GPU can say."""

    pytestmark = on_sm_90

    @pytest.mark.parametrize(("dtype", "d", "kv_heads", "lengths", "band"), _grid())
    def test_as_good_as_eager(self, dtype, d, kv_heads, lengths, band):
        """out, LSE and gradients, fused and split, stay within twice eager's error on and off the tile."""
        x = make_inputs(*lengths, d, heads=4, kv_heads=kv_heads, dtype=dtype)
        for deterministic in (False, True):
            _poison()
            got = run(partial(flash, deterministic=deterministic), x, window=band)
            assert_as_good_as_eager(got, x, window=band)

    @pytest.mark.parametrize("d", [64, 128, 256])
    @pytest.mark.parametrize("causal", [False, True])
    def test_long_keys(self, d, causal):
        """The tiles taken from 8192 keys on, more tiles than multiprocessors, and heads that share L2."""
        x = make_inputs(8192, 16384 if d < 128 else 8192, d, batch=1, heads=4, kv_heads=2, dtype="bf16")
        portable = run(partial(attention, impl="flash_portable"), x, causal=causal)
        for name, found in run(flash, x, causal=causal).items():
            torch.testing.assert_close(found, portable[name], rtol=2e-2, atol=2e-2, msg=name)

    @pytest.mark.parametrize("d", [64, 128, 256])
    @pytest.mark.parametrize("band", BANDS[:3])
    def test_deterministic_means_the_same_bits(self, d, band):
        """Ten runs with `deterministic` agree to the bit, and so do ten forwards without."""
        x = make_inputs(700, 700, d, heads=4, kv_heads=2, dtype="bf16")
        first = run(partial(flash, deterministic=True), x, window=band)
        for _ in range(9):
            again = run(partial(flash, deterministic=True), x, window=band)
            assert all(torch.equal(first[name], again[name]) for name in first)
            out, lse = flash(*x[:3], window=band, return_lse=True)
            assert torch.equal(out, first["out"])
            assert torch.equal(lse, first["lse"])

    def test_torchs_own_flag_means_deterministic(self):
        """`torch.use_deterministic_algorithms` is heard, too."""
        x = make_inputs(700, 700, 64, dtype="bf16")
        first = run(partial(flash, deterministic=True), x)
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            again = run(flash, x)
        finally:
            torch.use_deterministic_algorithms(before)
        assert all(torch.equal(first[name], again[name]) for name in first)

    @pytest.mark.parametrize("names", [("sinks",), ("sinks", "causal"), ("sinks", "window", "top_left")])
    @pytest.mark.parametrize("sinks_gradient", [False, True])
    def test_sinks(self, names, sinks_gradient):
        """Sinks join the softmax; their own gradient is the portable kernels', from the same statistics."""
        x = make_inputs(300, 340, 64, heads=4, kv_heads=2, dtype="bf16")
        options = make_features(x, *names)
        if not sinks_gradient:
            options["sinks"] = options["sinks"].detach()
        assert_as_good_as_eager(run(flash, x, **options), x, **options)

    @pytest.mark.parametrize("axes", [(0, 2, 1, 3), (2, 0, 1, 3), (1, 0, 2, 3)])
    def test_any_order_of_axes(self, axes):
        """(batch, seq_len, heads, head_dim) and other layouts are read where they lie."""
        x = make_inputs(200, 260, 128, heads=4, kv_heads=2, dtype="bf16")
        back = sorted(range(4), key=axes.__getitem__)
        moved = Inputs(*(t.permute(axes).contiguous().permute(back) for t in x))
        assert_as_good_as_eager(run(flash, moved, causal=True), x, causal=True)

    def test_one_of_everything(self):
        """Axes of length 1 have strides that mean nothing; the copy engine checks them all the same."""
        x = make_inputs(200, 200, 64, batch=1, heads=1, kv_heads=1, dtype="bf16")
        odd = Inputs(*(t.as_strided(t.shape, (7, 3, 64, 1)) for t in x))
        assert_as_good_as_eager(run(flash, odd, causal=True), x, causal=True)

    def test_an_expanded_gradient(self):
        """What `out.sum().backward()` sends back has strides of 0."""
        x = make_inputs(200, 200, 64, dtype="bf16")
        x = x._replace(dout=torch.ones((), dtype=x.q.dtype, device=DEVICE).expand(x.q.shape))
        assert_as_good_as_eager(run(flash, x), x)

    def test_more_heads_than_a_grid_axis_holds(self):
        """batch·heads of 65 538 runs: every grid is flat."""
        x = make_inputs(80, 80, 16, batch=10923, heads=6, kv_heads=6, dtype="fp16")
        assert_as_good_as_eager(run(flash, x), x)

    def test_large_logits(self):
        """Inputs a hundred times as large: exponents are taken from the running maximum."""
        x = make_inputs(300, 300, 64, dtype="bf16")
        x = x._replace(q=x.q * 100)
        assert_as_good_as_eager(run(flash, x, causal=True), x, causal=True)

    def test_a_captured_call_replays(self):
        """A CUDA graph of forward and backward gives what the eager call gives."""
        x = make_inputs(300, 300, 64, dtype="bf16")
        expected = run(partial(flash, deterministic=True), x, causal=True)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                got = run(partial(flash, deterministic=True), x, causal=True)
            graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(got[name], expected[name]) for name in got)

    @pytest.mark.parametrize("names", [("causal",), ("sinks", "window")])
    def test_opcheck(self, names):
        """Schema, fake kernels, autograd and tracing with dynamic shapes agree with what runs."""
        x = make_inputs(70, 90, 16, kv_heads=1, dtype="fp16")
        options = make_features(x, *names)
        left, right = options.get("window", (None, 0))
        sinks = options["sinks"].detach() if "sinks" in options else None
        rest = (
            None,
            None,
            sinks,
            None,
            None,
            None,
            0.25,
            left,
            right,
            False,
            0.0,
            None,
            None,
            "hopper",
            True,
        )
        args = (*(t.requires_grad_() for t in x[:3]), *rest)
        torch.library.opcheck(torch.ops.fa_core.flash_forward.default, (*args, None))
        out, statistics = (t.detach() for t in torch.ops.fa_core.flash_forward.default(*args, None))
        tail = (x.dout, torch.rand_like(statistics[1]), out, statistics, [True, True, False, False])
        args = (*(t.detach() for t in x[:3]), *rest)
        torch.library.opcheck(torch.ops.fa_core.flash_backward.default, (*args, *tail))

    @pytest.mark.parametrize("d", [64, 256])
    def test_flash_is_these_kernels(self, d):
        """With tiles enough for the GPU `flash`, and `auto`, give what `flash_hopper` gives bit for bit.

        The portable kernels do not.
        """
        x = make_inputs(512, 540, d, batch=8, heads=4, kv_heads=4, dtype="bf16")
        runs = {
            impl: run(partial(attention, impl=impl, deterministic=True), x, causal=True)
            for impl in ("flash", "auto", "flash_hopper", "flash_portable")
        }
        for name, expected in runs["flash_hopper"].items():
            assert torch.equal(runs["flash"][name], expected)
            assert torch.equal(runs["auto"][name], expected)
        differ = [not torch.equal(runs["flash"][n], runs["flash_portable"][n]) for n in ("dq", "dk", "dv")]
        assert any(differ)

    @pytest.mark.parametrize("options", [{"softcap": 3.0}, {"block_m": 64, "block_n": 64}])
    def test_flash_is_the_portable_kernels_elsewhere(self, options):
        """What these cannot take `flash` leaves to the portable ones, bit for bit."""
        x = make_inputs(300, 340, 64, dtype="bf16")
        got, expected = (run(partial(attention, impl=i, **options), x) for i in ("flash", "flash_portable"))
        assert all(torch.equal(got[name], expected[name]) for name in got)

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compiles_as_one_graph(self, dynamic):
        """torch.compile(fullgraph=True) gives what eager gives, at two lengths."""
        torch._dynamo.reset()
        attend = partial(flash, causal=True, deterministic=True, return_lse=True)
        compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic)
        for n in (200, 330):
            x = make_inputs(n, n, 64, dtype="bf16")
            got, expected = run(lambda *t, **_: compiled(*t), x), run(lambda *t, **_: attend(*t), x)
            for name, seen in got.items():
                torch.testing.assert_close(seen, expected[name], msg=name)

    def test_a_part_of_the_gradients(self):
        """Where only some of q, k and v ask for one, the portable kernels send back from these statistics."""
        x = make_inputs(200, 260, 64, heads=4, kv_heads=2, dtype="bf16")
        whole = run(flash, x, causal=True)
        for place, name in enumerate(("dq", "dk", "dv")):
            leaves = [t.detach().requires_grad_(i == place) for i, t in enumerate(x[:3])]
            (grad,) = torch.autograd.grad(flash(*leaves, causal=True), leaves[place], x.dout)
            torch.testing.assert_close(grad, whole[name], rtol=2e-2, atol=2e-2)

    def test_a_second_derivative_is_refused(self):
        """As of the portable kernels."""
        x = make_inputs(128, 128, 64, dtype="bf16")
        q, k, v = (t.requires_grad_() for t in x[:3])
        (grad,) = torch.autograd.grad(flash(q, k, v), q, x.dout.requires_grad_(), create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once, not twice"):
            grad.sum().backward()


def _poison() -> None:
    """Leave NaN in the memory that the next tensors get."""
    for size in (2**24, 2**24, 2**18, 2**18, 2**12, 2**12):
        torch.full((size,), float("nan"), device=DEVICE)


# --------------------------------------------------------------------------------------------- what they take


@pytest.fixture
def sm_90(monkeypatch):
    """Tensors without storage stand for an H200's; Triton may be taken for one that compiles."""
    monkeypatch.setattr(tuning, "elsewhere", tuning.Gpu(227 * 1024, (9, 0), 132))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def _problem(n_q: int = 256, n_k: int = 256, d: int = 64, d_v: int | None = None, **more: object) -> Problem:
    def empty(n: int, width: int) -> torch.Tensor:
        return torch.empty(2, 4, n, width, dtype=torch.bfloat16, device="meta")

    q, k, v = empty(n_q, d), empty(n_k, d), empty(n_k, d if d_v is None else d_v)
    return Problem(q, k, v, *[None] * 6, 1.0, *Band(), 0.0)._replace(**more)


def test_plain_calls_are_taken(sm_90):
    """Any band, grouped heads, lengths off the tile."""
    assert hopper.why_not(_problem()) == ""
    assert hopper.why_not(_problem(n_q=300, n_k=257, d=80, left=5, right=0, top_left=True)) == ""
    k = torch.empty(2, 2, 256, 64, dtype=torch.bfloat16, device="meta")
    assert hopper.why_not(_problem(k=k, v=k)) == ""


BF16 = partial(torch.empty, dtype=torch.bfloat16, device="meta")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.empty(2, 4, 256, 64, device="meta")}, "dtype must be fp16 or bf16, got torch.float32"),
        ({"d_v": 32}, "head_dim and head_dim_v must be the same, at most 256, got 64 and 32"),
        ({"softcap": 3.0}, "bias, ALiBi and softcap must be absent"),
        ({"slopes": torch.empty(4, device="meta")}, "bias, ALiBi and softcap must be absent"),
        ({"cu_k": torch.empty(3, device="meta")}, "neither packed nor paged"),
        ({"n_k": 0}, "must not be empty"),
        ({"n_q": 4}, "queries must be more"),
        ({"q": BF16(2, 4, 64, 256).transpose(2, 3)}, "q must have its head_dim side by side"),
        ({"k": BF16(2, 4, 256, 68)[..., :64]}, "k must have strides that are multiples of 16 bytes"),
        ({"v": BF16(1, 4, 256, 64).expand(2, 4, 256, 64)}, "v must have strides"),
        (
            {"q": BF16(2, 4, 256, 36), "k": BF16(2, 4, 256, 36), "v": BF16(2, 4, 256, 36)},
            "q must have strides",
        ),
    ],
)
def test_what_they_cannot_take_is_said_in_a_sentence(sm_90, change, words):
    """The reason names what must be otherwise."""
    made = {name: change[name] for name in ("n_q", "n_k", "d", "d_v") if name in change}
    more = {name: value for name, value in change.items() if name not in made}
    assert words in hopper.why_not(_problem(**made, **more))


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_get_the_portable_kernels(sm_90, monkeypatch, capability):
    """wgmma exists on sm_90 alone."""
    monkeypatch.setattr(tuning, "elsewhere", tuning.Gpu(227 * 1024, capability, 132))
    assert "compute capability 9.0" in hopper.why_not(_problem())


def test_an_old_triton_gets_the_portable_kernels(sm_90, monkeypatch):
    """Without Gluon as these kernels know it there is nothing to compile."""
    monkeypatch.setattr(hopper, "HAS_GLUON", False)
    assert "triton must be 3.6 or newer, got" in hopper.why_not(_problem())


def test_explain_says_which_kernels(sm_90):
    """`explain` names the kernels, and why not those for sm_90."""
    q = torch.empty(2, 32, 256, 64, dtype=torch.bfloat16, device="meta")
    assert explain(q, q, q, impl="flash_hopper") == "flash_hopper: asked for; the kernels for sm_90"
    assert explain(q, q, q) == "flash: it can take these tensors; the kernels for sm_90"
    assert explain(q, q, q, impl="flash_portable") == "flash_portable: asked for"
    assert explain(q, q, q, softcap=2.0) == (
        "flash: it can take these tensors; the portable kernels, because for those of sm_90 "
        "bias, ALiBi and softcap must be absent"
    )
    assert "but for those of sm_90 queries must be more" in explain(q[:, :, :4], q, q, impl="flash_hopper")
    assert "no tile must be asked for" in explain(q, q, q, impl="flash", block_m=64, block_n=64)


def test_which_kernels_flash_goes_by(sm_90):
    """Where those for sm_90 can take a call, by them; a tile, or what they cannot take, by the others."""
    q = BF16(2, 32, 256, 64)
    assert flash_kernels(q, q, q, causal=True) == "flash_hopper"
    assert flash_kernels(q, q, q, window=(10, None)) == "flash_hopper"
    for options in ({"block_m": 64, "block_n": 64}, {"softcap": 2.0}, {"alibi_slopes": BF16(32)}):
        assert flash_kernels(q, q, q, **options) == "flash_portable"
        assert flash_kernels(q, q, q, **options, backward=True) == "flash_portable"
    assert flash_kernels(q[:, :, :1], q, q) == "flash_portable"


@pytest.mark.parametrize(
    ("batch", "heads", "n_q", "n_k", "d", "forward"),
    [
        (1, 16, 512, 512, 128, "flash_portable"),  # 64 tiles for 132 multiprocessors
        (1, 16, 768, 768, 128, "flash_portable"),  # 96
        (1, 16, 896, 896, 128, "flash_hopper"),  # 112
        (8, 16, 128, 128, 64, "flash_hopper"),
        (1, 16, 512, 65536, 128, "flash_portable"),  # a part of a long prompt: keys do not count
        (1, 16, 128, 128, 192, "flash_hopper"),  # wide heads
        (1, 4, 4096, 4096, 64, "flash_hopper"),  # with tiles of 128 rows: of 192 there were 88
    ],
)
def test_a_forward_with_few_tiles_is_the_portable_ones(sm_90, batch, heads, n_q, n_k, d, forward):
    """Where three quarters of the multiprocessors would not have a tile; the backward stays, and so does a
    name that is asked for.
    """
    q, k = BF16(batch, heads, n_q, d), BF16(batch, heads, n_k, d)
    assert flash_kernels(q, k, k) == forward
    assert flash_kernels(q, k, k, backward=True) == "flash_hopper"
    assert explain(q, k, k, impl="flash_hopper") == "flash_hopper: asked for; the kernels for sm_90"
    few = "; the portable kernels, because for those of sm_90 tiles must keep 75% of the multiprocessors busy"
    assert (few in explain(q, k, k)) == (forward == "flash_portable")


@pytest.mark.skipif(HERE, reason="here they run")
def test_asked_for_where_they_cannot_run():
    """`flash_hopper` never falls back in silence."""
    x = make_inputs(128, 128, 64, dtype="fp16", batch=1, heads=1, kv_heads=1)
    with pytest.raises(NotImplementedError, match="the kernels for sm_90 cannot take this call: "):
        flash(*x[:3])


def test_tiles_follow_the_shape(sm_90):
    """192 queries only where few are left over and no wave is lost, narrow tiles for short masked heads, the
    hardware's order for long ones.
    """
    assert hopper.forward_tile(_problem(n_q=512)).block_m == 128
    assert hopper.forward_tile(_problem(n_q=3072, n_k=4096)).block_m == 192  # 128 tiles in one wave, not two
    assert hopper.forward_tile(_problem(n_q=4096, n_k=4096)).block_m == 128  # two waves in either case
    assert hopper.forward_tile(_problem(n_q=3072, n_k=4096, right=0)).block_m == 192
    assert hopper.forward_tile(_problem(n_q=1536, n_k=2048, right=0)).block_m == 128
    assert hopper.forward_tile(_problem(n_q=6144, n_k=8192)).block_m == 192  # two waves of it, three of 128
    assert hopper.forward_tile(_problem(n_q=512, n_k=512, right=0)).block_n == 64
    assert hopper.forward_tile(_problem(n_q=4096, n_k=8192, d=128, right=0)).persistent is False
    assert hopper.forward_tile(_problem(n_q=4096, n_k=8192, d=128)).persistent is True


# ------------------------------------------------------------------------------------------------- compiling

# Triton's interpreter replaces the compiler in the whole process, so a child without it compiles.
SCRIPT = """
import sys
sys.path[:0] = ["tests/benchmarks", "tests/fa_core"]
from tune_hopper import Kind, compile_kind
print(compile_kind(Kind({kind})))
"""


@pytest.mark.parametrize(
    "kind",
    [
        "'bf16', 64, 4, 4, 256, 256, None, None",
        "'fp16', 128, 4, 2, 300, 300, None, 0",
        "'bf16', 256, 4, 4, 256, 300, 100, 30",
    ],
)
def test_they_compile_for_sm_90(kind):
    """Forward, fused and split backward, with and without edges and grouped heads, on the Triton at hand."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(kind=kind)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == ""
