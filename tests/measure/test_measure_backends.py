"""Backends: each name resolves to something that computes attention, or says why it cannot."""

import functools

import pytest
import torch

from fa_core import naive_attention
from fa_core.kernels import tuning
from profiling.case import BACKENDS, CPU_BACKENDS
from profiling.devices import find_device
from profiling.measure import backends
from profiling.measure.backends import bind, flash_as_run, kernel_name, resolve, tile
from profiling.measure.failures import classify
from profiling.measure.inputs import make_inputs
from profiling.model.hopper import as_measured, as_run

CPU = torch.device("cpu")
FEATURES = [
    {"window_left": 5, "causal": True},
    {"window_left": 4, "window_right": 3},
    {"softcap": 2.0},
    {"bias": True, "causal": True},
    {"sinks": True, "causal": True},
    {"alibi": True, "heads": 4, "kv_heads": 2},
    {"head_dim_v": 5, "heads": 4, "kv_heads": 2},
    {"window_left": 6, "softcap": 3.0, "bias": True, "sinks": True, "alibi": True},
    {"layout": "varlen", "batch": 3, "causal": True, "sinks": True, "window_left": 7},
    {"layout": "varlen", "batch": 2, "heads": 4, "kv_heads": 2, "alibi": True, "softcap": 5.0},
    {"layout": "paged", "batch": 3, "seq_len_q": 2, "seq_len_k": 150, "causal": True, "alibi": True},
]


def tile_of(case):
    """The tile of a case on tensors without storage."""
    return tile(case, make_inputs(case, torch.device("meta"), 0))


def expected(case, inputs):
    """The output by `naive_attention`, called by hand on each sequence."""
    window = (case.window_left, case.window_right)
    more = {"causal": case.causal, "window": window, "softcap": case.softcap, "bias": inputs.bias}
    more |= {"sinks": inputs.sinks, "alibi_slopes": inputs.slopes}
    if case.layout == "varlen":
        parts = [x.split([n for n, _ in case.lengths]) for x in (inputs.q,)]
        parts += [x.split([n for _, n in case.lengths]) for x in (inputs.k, inputs.v)]
        each = ((x.transpose(0, 1)[None] for x in qkv) for qkv in zip(*parts, strict=True))
        return torch.cat([naive_attention(*qkv, **more)[0].transpose(0, 1) for qkv in each])
    k, v = inputs.k, inputs.v
    if case.layout == "paged":
        rows = [[(int(page), i) for page in table for i in range(64)] for table in inputs.block_table]
        at = torch.tensor([own[: case.seq_len_k] for own in rows])
        k, v = (x[at[..., 0], at[..., 1]].transpose(1, 2) for x in (k, v))
    return naive_attention(inputs.q, k, v, **more)


@pytest.mark.usefixtures("no_grad")
class TestResolve:
    """From names to implementations, or to the reason why not."""

    @pytest.mark.parametrize("name", [n for n in CPU_BACKENDS if n != "naive_compiled"])
    @pytest.mark.parametrize("causal", [False, True])
    def test_cpu_backends_compute_attention(self, make_case, name, causal):
        """Every backend that a CPU has gives naive's output."""
        case = make_case(backend=name, causal=causal, seq_len_q=24, seq_len_k=24)
        inputs = make_inputs(case, CPU, 0)
        expected = naive_attention(*inputs[:3], causal=causal)
        torch.testing.assert_close(resolve(case, CPU).forward(inputs), expected)

    @pytest.mark.parametrize("variant", ["", "add", "fill", "fp32_softmax"])
    def test_naive_variants(self, make_case, variant):
        """A variant is another path to the same numbers, LSE included."""
        case = make_case(variant=variant, causal=True)
        inputs = make_inputs(case, CPU, 0)
        backend = resolve(case, CPU)
        out, lse = backend.forward(inputs), backend.beside(inputs)["lse"]
        expected = naive_attention(*inputs[:3], causal=True, return_lse=True)
        torch.testing.assert_close((out, lse), expected)

    @pytest.mark.parametrize("name", [n for n in BACKENDS if n not in CPU_BACKENDS])
    def test_gpu_backends_refuse_a_cpu(self, make_case, name):
        """What needs a GPU says so, and never falls back to the interpreter."""
        with pytest.raises(NotImplementedError, match="no CPU kernel"):
            resolve(make_case(backend=name), CPU)

    @pytest.mark.parametrize("name", ["naive", "tiled", "sdpa_math", "sdpa_flash"])
    @pytest.mark.parametrize("fields", FEATURES, ids=" ".join)
    def test_features_are_computed_or_refused(self, make_case, name, fields):
        """Whatever a case asks for is in the output, as attention on each sequence has it; or is refused."""
        case = make_case(backend=name, **({"seq_len_q": 24, "seq_len_k": 24} | fields))
        inputs = make_inputs(case, CPU, 0)
        if name.startswith("sdpa") and (case.layout == "varlen" or case.softcap or case.sinks):
            with pytest.raises(NotImplementedError, match="cannot take"):
                resolve(case, CPU)
            return
        backend = resolve(case, CPU)
        try:
            found = backend.forward(backend.prepare(inputs))
        except NotImplementedError:
            assert name == "sdpa_flash"  # PyTorch has no such kernel for unequal widths
            return
        torch.testing.assert_close(found, expected(case, inputs))

    @pytest.mark.parametrize("name", ["naive", "tiled"])
    @pytest.mark.parametrize("layout", ["varlen", "paged"])
    def test_lse_in_every_layout(self, make_case, name, layout):
        """The LSE comes in the layout of the output: (heads, tokens) for packed sequences."""
        case = make_case(backend=name, layout=layout, batch=2, sinks=True)
        lse = resolve(case, CPU).beside(make_inputs(case, CPU, 0))["lse"]
        tokens = sum(n for n, _ in case.lengths)
        assert lse.shape == ((2, tokens) if layout == "varlen" else (2, 2, 16))

    @pytest.mark.parametrize(
        "fields",
        [
            {"layout": "varlen", "batch": 3, "causal": True, "window_left": 6, "sinks": True},
            {"layout": "paged", "batch": 2, "seq_len_q": 1, "seq_len_k": 100, "alibi": True},
            {"bias": True, "softcap": 3.0, "tile_m": 16, "tile_n": 16},
        ],
        ids=" ".join,
    )
    @pytest.mark.parametrize("name", ["flash", "flash_portable"])
    def test_flash_reads_packs_and_pages_itself(self, make_case, name, fields, monkeypatch):
        """Offsets, tables and features reach the kernels (here the interpreter), and the LSE returns."""
        pytest.importorskip("triton")
        monkeypatch.setattr(backends, "CPU_BACKENDS", (name,))
        case = make_case(backend=name, head_dim=16, head_dim_v=16, **fields)
        inputs = make_inputs(case, CPU, 0)
        if torch.cuda.is_available():
            pytest.skip("without an interpreter, tensors on a CPU have no kernel")
        backend = resolve(case, CPU)
        out, lse = backend.forward(inputs), backend.beside(inputs)["lse"]
        torch.testing.assert_close(out, expected(case, inputs), atol=1e-5, rtol=1e-5)
        assert lse.shape == (out.shape[:3] if out.ndim == 4 else (2, len(out)))

    @pytest.mark.parametrize(
        "name", ["flash", "flash_portable", "flash_hopper", "flash_hopper/deterministic"]
    )
    def test_each_name_of_flash_reaches_fa_core(self, make_case, name, monkeypatch):
        """The implementation by its name, and `deterministic` where the variant asks for it."""
        asked = []
        monkeypatch.setattr(backends, "CPU_BACKENDS", (name.partition("/")[0],))
        monkeypatch.setattr(backends.fa_core, "attention", lambda *x, **more: asked.append(more) or x[0])
        backend, _, variant = name.partition("/")
        case = make_case(backend=backend, variant=variant, causal=True)
        resolve(case, CPU).forward(make_inputs(case, CPU, 0))
        (found,) = asked
        assert (found["impl"], found["causal"]) == (backend, True)
        assert found.get("deterministic", False) == bool(variant)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"layout": "varlen"}, "flash_hopper cannot take layout varlen"),
            ({"layout": "paged"}, "flash_hopper cannot take layout paged"),
            ({"tile_m": 64, "tile_n": 64}, "flash_hopper has no tiles"),
        ],
    )
    def test_the_kernels_for_sm_90_read_dense_tensors(self, make_case, fields, said, monkeypatch):
        """Packed and paged cases, and tiles, are refused before anything is run."""
        monkeypatch.setattr(backends, "CPU_BACKENDS", ("flash_hopper",))
        with pytest.raises(NotImplementedError, match=said):
            resolve(make_case(backend="flash_hopper", **fields), CPU)

    def test_what_the_kernels_for_sm_90_cannot_take_is_unsupported(self, make_case, monkeypatch):
        """Their refusal is one sentence, and a row that says so."""
        pytest.importorskip("triton")
        monkeypatch.setattr(backends, "CPU_BACKENDS", ("flash_hopper",))
        case = make_case(backend="flash_hopper", dtype="fp16", head_dim=16, head_dim_v=16)
        with pytest.raises(NotImplementedError) as caught:
            resolve(case, CPU).forward(make_inputs(case, CPU, 0))
        found = classify(caught.value, ours=True)
        assert found.status == "unsupported"
        assert found.reason.startswith("the kernels for sm_90 cannot take this call: ")

    @pytest.mark.parametrize("name", ["naive_compiled", "flex"])
    def test_compiled_backends_compile_every_layout_in_one_piece(self, make_case, name, monkeypatch):
        """fullgraph holds for packed sequences and features too (here without the code generator)."""
        compiled = functools.partial(torch.compile, backend="eager")
        monkeypatch.setattr(torch, "compile", compiled)
        monkeypatch.setattr(backends, "CPU_BACKENDS", (name,))
        features = {
            "layout": "varlen",
            "batch": 2,
            "causal": True,
            "sinks": True,
            "softcap": 4.0,
            "alibi": True,
        }
        case = make_case(backend=name, head_dim=16, head_dim_v=16, **features)
        inputs = make_inputs(case, CPU, 0)
        torch.testing.assert_close(resolve(case, CPU).forward(inputs), expected(case, inputs))

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"layout": "paged", "direction": "bwd"}, "no backward"),
            ({"layout": "varlen", "bias": True}, "have no bias"),
            ({"backend": "sdpa_math", "softcap": 2.0}, "sdpa_math cannot take a softcap"),
            ({"backend": "sdpa_math", "sinks": True}, "sdpa_math cannot take sinks"),
            ({"backend": "sdpa_math", "layout": "varlen"}, "cannot take packed sequences"),
            ({"backend": "stand_ins:plain", "window_left": 4, "sinks": True}, "cannot take window, sinks"),
            ({"backend": "stand_ins:plain", "layout": "paged"}, "cannot take layout paged"),
        ],
    )
    def test_what_cannot_be_taken_is_refused(self, make_case, stand_ins, fields, said):
        """One sentence with the backend or the layout, and what it lacks."""
        with pytest.raises(NotImplementedError, match=said):
            resolve(make_case(**fields), CPU)

    def test_a_custom_backend_gets_what_it_takes(self, make_case, stand_ins):
        """Features come as keywords, under the names of `fa_core.attention`."""
        fields = {"window_left": 3, "softcap": 2.0, "bias": True, "sinks": True, "alibi": True}
        case = make_case(backend=f"{stand_ins}:with_features", causal=True, **fields)
        inputs = make_inputs(case, CPU, 0)
        torch.testing.assert_close(resolve(case, CPU).forward(inputs), expected(case, inputs))

    @pytest.mark.parametrize("name", ["naive", "stand_ins:plain", "sdpa_math"])
    def test_a_tile_is_refused_where_there_are_none(self, make_case, name):
        """A requested tile is never dropped in silence."""
        with pytest.raises(NotImplementedError, match="no tiles"):
            resolve(make_case(backend=name, tile_m=64, tile_n=64), CPU)

    def test_a_custom_backend(self, make_case, stand_ins):
        """`module:function` is imported and called with q, k, v and causal."""
        case = make_case(backend=f"{stand_ins}:plain", causal=True)
        inputs = make_inputs(case, CPU, 0)
        out = resolve(case, CPU).forward(inputs)
        torch.testing.assert_close(out, naive_attention(*inputs[:3], causal=True))

    @pytest.mark.parametrize("name", ["no_such_module:f", "math:no_such_function"])
    def test_a_custom_backend_that_is_not_there(self, make_case, name):
        """A module or function that cannot be found is said so."""
        with pytest.raises(NotImplementedError, match="cannot be imported"):
            resolve(make_case(backend=name), CPU)


@pytest.mark.usefixtures("no_grad")
class TestBind:
    """What one call does, by direction."""

    def test_directions(self, make_case):
        """`fwd` gives the output; `bwd` and `fwd_bwd` the same three gradients, as often as called."""
        case = make_case(direction="bwd", causal=True)
        inputs = make_inputs(case, CPU, 0)
        forward = resolve(case, CPU).forward
        backward = bind(forward, case, inputs)
        both = bind(forward, case.model_copy(update={"direction": "fwd_bwd"}), inputs)
        first, second, third = backward(), backward(), both()
        assert [x.shape for x in first] == [x.shape for x in inputs[:3]]
        for a, b, c in zip(first, second, third, strict=True):
            torch.testing.assert_close(a, b)
            torch.testing.assert_close(a, c)

    @pytest.mark.parametrize("name", ["tiled", "sdpa_math"])
    @pytest.mark.parametrize("causal", [False, True])
    def test_a_bias_has_a_gradient(self, make_case, name, causal):
        """Each backend that takes a bias differentiates by it: SDPA, whose mask it is part of, alike."""
        fields = {"direction": "bwd", "bias": True, "causal": causal, "batch": 2}
        case = make_case(backend=name, **fields)
        inputs = make_inputs(case, CPU, 0)
        backend = resolve(case, CPU)
        naive = bind(resolve(make_case(**fields), CPU).forward, case, inputs)()
        found = bind(backend.forward, case, backend.prepare(inputs))()
        assert len(found) == 4
        for a, b in zip(found, naive, strict=True):
            torch.testing.assert_close(a, b)

    def test_a_mask_alone_has_none(self, make_case):
        """SDPA's mask of a window is an input, and nothing to differentiate by."""
        case = make_case(backend="sdpa_math", direction="bwd", window_left=4)
        backend = resolve(case, CPU)
        inputs = backend.prepare(make_inputs(case, CPU, 0))
        assert inputs.bias.shape == (1, 1, 16, 16)
        assert len(bind(backend.forward, case, inputs)()) == 3

    def test_packed_sinks_have_a_gradient(self, make_case):
        """The gradient of sinks sums over all packed sequences."""
        case = make_case(direction="bwd", layout="varlen", batch=3, sinks=True)
        *_, dsinks = bind(resolve(case, CPU).forward, case, make_inputs(case, CPU, 0))()
        assert dsinks.shape == (2,)
        assert dsinks.abs().min() > 0

    def test_a_backend_without_backward(self, make_case, stand_ins):
        """A detached output fails when it is differentiated, not before."""
        case = make_case(backend=f"{stand_ins}:detached", direction="bwd")
        call = bind(resolve(case, CPU).forward, case, make_inputs(case, CPU, 0))
        with pytest.raises(RuntimeError, match="does not require grad"):
            call()


@pytest.mark.usefixtures("no_grad")
class TestWhatRan:
    """The names of kernels and tiles."""

    def test_sdpa_names_its_operator(self, make_case):
        """The fused operator that answered is named; without one it is `math`."""
        for name, expected in (("sdpa_flash", "scaled_dot_product_flash_attention"), ("sdpa_math", "math")):
            case = make_case(backend=name)
            found = kernel_name(case, resolve(case, CPU), make_inputs(case, CPU, 0))
            assert expected in found

    @pytest.mark.parametrize("name", [n for n in CPU_BACKENDS if n != "naive_compiled"])
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("lengths", [(4, 4), (4, 9), (9, 4), (1, 9)], ids="{0[0]}x{0[1]}".format)
    def test_every_shape_has_a_name(self, make_case, name, causal, lengths):
        """Asking what runs, runs it: no combination of lengths and mask may fail there and not in a call."""
        case = make_case(backend=name, causal=causal, seq_len_q=lengths[0], seq_len_k=lengths[1])
        assert kernel_name(case, resolve(case, CPU), make_inputs(case, CPU, 0))

    def test_tiles(self, make_case):
        """A requested tile is what runs; else the backend's default; else there is none."""
        assert tile_of(make_case(backend="tiled", tile_m=32, tile_n=16)) == (32, 16)
        assert tile_of(make_case(backend="tiled")) == (64, 64)
        assert tile_of(make_case()) == (None, None)
        flash = {"backend": "flash", "dtype": "bf16", "head_dim": 64, "head_dim_v": 64}
        block_m, block_n = tile_of(make_case(**flash, seq_len_q=128))
        assert block_m >= 16
        assert block_n >= 16
        assert tile_of(make_case(**flash, seq_len_q=1)) == (None, None)  # decides when it is launched
        assert tile_of(make_case(**flash, seq_len_q=1, tile_m=32, tile_n=32)) == (32, 32)
        portable = flash | {"backend": "flash_portable"}
        assert tile_of(make_case(**portable, seq_len_q=128)) == (block_m, block_n)

    def test_tiles_of_the_kernels_for_sm_90(self, make_case):
        """The forward's is known; the backward is not what a tile would describe."""
        hopper = {"backend": "flash_hopper", "dtype": "bf16", "head_dim": 128, "head_dim_v": 128}
        hopper |= {"seq_len_q": 4096, "seq_len_k": 4096}
        assert tile_of(make_case(**hopper)) == (128, 128)
        for direction in ("bwd", "fwd_bwd"):
            assert tile_of(make_case(**hopper, direction=direction)) == (None, None)

    @pytest.mark.parametrize("name", ["flash_portable", "flash_hopper"])
    def test_each_name_of_flash_has_a_kernel(self, make_case, name):
        """The name in the row is the implementation's that was asked for."""
        backend = backends.Backend(lambda inputs: inputs.q, None, ours=True)
        assert kernel_name(make_case(backend=name), backend, None) == f"fa_core.{name}"

    @pytest.mark.parametrize(
        ("fields", "capability", "ran"),
        [
            ({}, (9, 0), "flash_hopper"),
            ({"heads": 2, "kv_heads": 2}, (9, 0), "flash_portable"),
            ({"causal": True, "sinks": True, "window_left": 20}, (9, 0), "flash_hopper"),
            ({}, (8, 0), "flash_portable"),
            ({"softcap": 3.0}, (9, 0), "flash_portable"),
            ({"alibi": True}, (9, 0), "flash_portable"),
            ({"bias": True}, (9, 0), "flash_portable"),
            ({"head_dim_v": 32}, (9, 0), "flash_portable"),
            ({"dtype": "fp32"}, (9, 0), "flash_portable"),
            ({"tile_m": 64, "tile_n": 64}, (9, 0), "flash_portable"),
            ({"layout": "varlen"}, (9, 0), "flash_portable"),
            ({"seq_len_q": 1}, (9, 0), "flash_portable"),
            ({"head_dim": 20, "head_dim_v": 20}, (9, 0), "flash_portable"),
        ],
    )
    def test_of_flash_the_row_says_which_kernels_ran(self, make_case, monkeypatch, fields, capability, ran):
        """The row, its tile, and what a model takes for run on such a device agree."""
        monkeypatch.setattr(tuning, "elsewhere", tuning.Gpu(232448, capability, 132))
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        shape = {"dtype": "bf16", "seq_len_q": 512, "seq_len_k": 512, "head_dim": 64, "head_dim_v": 64}
        shape |= {"heads": 64, "kv_heads": 64}  # enough of them to keep a GPU busy
        case = make_case(backend="flash", **(shape | fields))
        inputs = make_inputs(case, torch.device("meta"), 0)
        backend = backends.Backend(lambda inputs: inputs.q, None, ours=True)
        assert kernel_name(case, backend, inputs) == f"fa_core.{ran}"
        assert flash_as_run(case, inputs).backend == ran
        named = case.model_copy(update={"backend": ran})
        assert tile(case, inputs) == tile(named, inputs)
        hopper = ran == "flash_hopper"
        assert tile(case.model_copy(update={"direction": "bwd"}), inputs)[0] is None or not hopper
        device = find_device("H200" if capability == (9, 0) else "A100-SXM-80GB")
        assert as_run(case, device).backend == ran
        assert as_measured(case, f"fa_core.{ran}").backend == ("flash" if ran == "flash_portable" else ran)
