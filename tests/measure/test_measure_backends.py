"""Backends: each name resolves to something that computes attention, or says why it cannot."""

import pytest
import torch

from fa_core import naive_attention
from profiling.case import BACKENDS, CPU_BACKENDS
from profiling.measure.backends import (
    bind,
    clone_inputs,
    kernel_name,
    make_inputs,
    resolve,
    tile,
)

CPU = torch.device("cpu")


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
        torch.testing.assert_close(resolve(case, CPU).forward(*inputs[:3]), expected)

    @pytest.mark.parametrize("variant", ["", "add", "fill", "fp32_softmax"])
    def test_naive_variants(self, make_case, variant):
        """A variant is another path to the same numbers, LSE included."""
        case = make_case(variant=variant, causal=True)
        inputs = make_inputs(case, CPU, 0)
        out, lse = resolve(case, CPU).forward_lse(*inputs[:3])
        expected = naive_attention(*inputs[:3], causal=True, return_lse=True)
        torch.testing.assert_close((out, lse), expected)

    @pytest.mark.parametrize("name", [n for n in BACKENDS if n not in CPU_BACKENDS])
    def test_gpu_backends_refuse_a_cpu(self, make_case, name):
        """What needs a GPU says so, and never falls back to the interpreter."""
        with pytest.raises(NotImplementedError, match="no CPU kernel"):
            resolve(make_case(backend=name), CPU)

    @pytest.mark.parametrize(
        "extra",
        [{"layout": "varlen"}, {"window_left": 4}, {"softcap": 30.0}, {"bias": True}, {"alibi": True}],
    )
    def test_what_is_not_built_yet_is_refused(self, make_case, extra):
        """A feature of the key that no backend has is refused, by name, rather than ignored."""
        with pytest.raises(NotImplementedError, match=next(iter(extra))):
            resolve(make_case(**extra), CPU)

    @pytest.mark.parametrize("name", ["naive", "stand_ins:plain"])
    def test_a_tile_is_refused_where_there_are_none(self, make_case, name):
        """A requested tile is never dropped in silence."""
        with pytest.raises(NotImplementedError, match="no tiles"):
            resolve(make_case(backend=name, tile_m=64, tile_n=64), CPU)

    def test_a_custom_backend(self, make_case, stand_ins):
        """`module:function` is imported and called with q, k, v and causal."""
        case = make_case(backend=f"{stand_ins}:plain", causal=True)
        inputs = make_inputs(case, CPU, 0)
        out = resolve(case, CPU).forward(*inputs[:3])
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

    def test_a_backend_without_backward(self, make_case, stand_ins):
        """A detached output fails when it is differentiated, not before."""
        case = make_case(backend=f"{stand_ins}:detached", direction="bwd")
        call = bind(resolve(case, CPU).forward, case, make_inputs(case, CPU, 0))
        with pytest.raises(RuntimeError, match="does not require grad"):
            call()


class TestInputs:
    """Seeds, gradients and copies."""

    def test_the_same_for_all_processes(self, make_case):
        """The seed alone decides the values; another seed gives others."""
        case = make_case(direction="bwd", dtype="bf16")
        a, b, c = (make_inputs(case, CPU, seed) for seed in (1, 1, 2))
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        assert not torch.equal(a.q, c.q)
        assert not torch.equal(a.q, a.dout)

    def test_gradients_only_where_asked_for(self, make_case):
        """A forward alone must not build a graph."""
        assert not make_inputs(make_case(), CPU, 0).q.requires_grad
        assert make_inputs(make_case(direction="bwd"), CPU, 0).v.requires_grad

    def test_clones_are_elsewhere(self, make_case):
        """A clone has the values and the need for gradients, in other memory."""
        case = make_case(direction="bwd")
        inputs = make_inputs(case, CPU, 0)
        other = clone_inputs(inputs, case)
        assert torch.equal(inputs.k, other.k)
        assert inputs.k.data_ptr() != other.k.data_ptr()
        assert other.k.is_leaf
        assert other.k.requires_grad

    def test_read_bytes(self, make_case):
        """A forward does not read the output's gradient."""
        inputs = make_inputs(make_case(), CPU, 0)
        one = 2 * 16 * 8 * 4
        assert inputs.read_bytes("fwd") == 3 * one
        assert inputs.read_bytes("bwd") == 4 * one


@pytest.mark.usefixtures("no_grad")
class TestWhatRan:
    """The names of kernels and tiles."""

    def test_sdpa_names_its_operator(self, make_case):
        """The fused operator that answered is named; without one it is `math`."""
        for name, expected in (("sdpa_flash", "scaled_dot_product_flash_attention"), ("sdpa_math", "math")):
            case = make_case(backend=name)
            found = kernel_name(case, resolve(case, CPU), make_inputs(case, CPU, 0))
            assert expected in found

    def test_tiles(self, make_case):
        """A requested tile is what runs; else the backend's default; else there is none."""
        assert tile(make_case(backend="tiled", tile_m=32, tile_n=16)) == (32, 16)
        assert tile(make_case(backend="tiled")) == (64, 64)
        assert tile(make_case()) == (None, None)
        block_m, block_n = tile(make_case(backend="flash", dtype="bf16", head_dim=64, head_dim_v=64))
        assert block_m >= 16
        assert block_n >= 16
