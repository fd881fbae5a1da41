"""The operators as PyTorch has them: opcheck, compilers, autocast, checkpoints, graphs, devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from oracle import DEVICE, make_features, make_inputs, run
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from fa_core import attention, attention_paged, attention_varlen

pytest.importorskip("triton")
import fa_core.launch
import fa_core.op

flash = partial(attention, impl="flash")
BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
# Three calls that together have every option; what is compiled or traced is tried with each.
FEATURES = (("causal",), ("window", "alibi", "sinks"), ("causal", "top_left", "softcap", "bias"))


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def _assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        torch.testing.assert_close(
            got[name], x, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


# ---------------------------------------------------------------------------------------------- opcheck


def _leaf(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach().requires_grad_()


def _dense(*names: str, kv_heads: int = 3, head_dim_v: int = 16, transposed: bool = False) -> tuple[Any, ...]:
    """Arguments of `fa_core::flash_forward` for a batch with some of oracle's features."""
    x = make_inputs(17, 23, 16, kv_heads=kv_heads, head_dim_v=head_dim_v)
    options = make_features(x, *names)
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) if transposed else t for t in x[:3])
    left, right = options.get("window", (None, None))
    return (
        *map(_leaf, (q, k, v, options.get("bias"))),
        options.get("alibi_slopes"),
        _leaf(options.get("sinks")),
        *(None, None, None),
        *(0.25, left, 0 if "causal" in names else right, "top_left" in names, options.get("softcap", 0.0)),
        *(None, None, "", True, None),
    )


def _packed() -> tuple[Any, ...]:
    """Arguments for three packed sequences, one of them without a query."""
    x = make_inputs(20, 26, 16, batch=1, kv_heads=1)
    lengths = (_ints(0, 9, 9, 20), _ints(0, 7, 12, 26))
    rest = (0.25, None, 0, False, 0.0, None, None, "", False, None)
    return (*map(_leaf, x[:3]), None, None, None, *lengths, None, *rest)


def _paged(n_splits: int | None) -> tuple[Any, ...]:
    """Arguments for the next query of two sequences, whose keys lie in pages of 16."""
    q, cache = make_inputs(1, 1, 16, heads=4).q, make_inputs(16, 16, 16, batch=5, kv_heads=2)
    table = _ints(3, 1, 0, 4, 2, 0).view(2, 3)
    rest = (0.25, None, 0, False, 0.0, None, None, "", False, n_splits)
    return (q, cache.k, cache.v, None, None, None, None, _ints(30, 17), table, *rest)


OPCHECKS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "grouped": partial(_dense, "causal", kv_heads=1),
    "transposed-other-value-width": partial(_dense, head_dim_v=24, transposed=True),
    "everything": partial(_dense, "causal", "top_left", "window", "alibi", "softcap", "bias", "sinks"),
    "packed": _packed,
}


@pytest.mark.parametrize("case", OPCHECKS)
def test_opcheck_forward(case):
    """Schema, fake kernel, autograd and tracing with dynamic shapes all agree with what runs."""
    torch.library.opcheck(torch.ops.fa_core.flash_forward.default, OPCHECKS[case]())


@pytest.mark.parametrize("n_splits", [None, 2])
def test_opcheck_paged(n_splits):
    """The read of a paged cache, with its keys undivided and divided."""
    torch.library.opcheck(torch.ops.fa_core.flash_forward.default, _paged(n_splits))


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ("everything", [True, True, True, True]),
        ("everything", [False, True, False, True]),
        ("packed", [True, True, False, False]),
    ],
)
def test_opcheck_backward(case, wanted):
    """The backward is an operator of its own, whichever gradients are wanted of it."""
    args = [x.detach() if isinstance(x, torch.Tensor) else x for x in OPCHECKS[case]()]
    out, statistics = torch.ops.fa_core.flash_forward.default(*args)
    tail = (torch.randn_like(out), torch.randn_like(statistics[0]), out, statistics, wanted)
    torch.library.opcheck(torch.ops.fa_core.flash_backward.default, (*args[:-1], *tail))


# ---------------------------------------------------------------------------------------------- compile


@pytest.mark.parametrize(("names", "dynamic"), list(zip(FEATURES, (False, False, True), strict=True)))
def test_fullgraph_compile(names, dynamic):
    """One graph, forward and backward: out, log-sum-exp and gradients are those without a compiler."""
    x = make_inputs(17, 23, 16, kv_heads=1)
    options = make_features(x, *names)
    compiled = torch.compile(flash, fullgraph=True, dynamic=dynamic, backend=BACKEND)
    _assert_same(run(compiled, x, **options), run(flash, x, **options))


def test_dynamic_shapes_compile_once():
    """With dynamic=True a new batch and new lengths reuse the graph that is there."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(flash, fullgraph=True, dynamic=True, backend=counter)
    for batch, n_q, n_k in ((2, 17, 23), (3, 33, 41), (2, 40, 29)):
        x = make_inputs(n_q, n_k, 16, batch=batch)
        torch.testing.assert_close(
            compiled(*x[:3], causal=True), flash(*x[:3], causal=True), rtol=1e-6, atol=1e-6
        )
    assert counter.frame_count == 1


def test_fullgraph_compile_of_packed_sequences():
    """attention_varlen in one graph, lengths unread; forward and backward."""
    q, k, v, *_, cu_q, cu_k, _ = _packed()[:9]
    leaves = [x[0].transpose(0, 1).detach().requires_grad_() for x in (q, k, v)]
    attend = partial(attention_varlen, impl="flash", causal=True, check_lengths=False)
    compiled = torch.compile(attend, fullgraph=True, backend=BACKEND)
    found = []
    for call in (attend, compiled):
        out = call(*leaves, cu_q, cu_k)
        found.append(
            dict(zip(("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out.sum(), leaves)), strict=True))
        )
    _assert_same(found[1], found[0])


def test_fullgraph_compile_of_a_paged_cache():
    """attention_paged in one graph, its table unread."""
    q, k_cache, v_cache, *_, lengths, table = _paged(None)[:9]
    caches = [x.transpose(1, 2) for x in (k_cache, v_cache)]
    attend = partial(attention_paged, impl="flash", causal=True, check_table=False)
    compiled = torch.compile(attend, fullgraph=True, backend=BACKEND)
    torch.testing.assert_close(compiled(q, *caches, table, lengths), attend(q, *caches, table, lengths))


def test_export_keeps_the_operator():
    """torch.export gives a program that calls the operator, for any length."""

    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return flash(q, k, v, causal=True)

    length = torch.export.Dim("length", min=2, max=512)
    first, second = make_inputs(17, 17, 16), make_inputs(40, 40, 16)
    shapes = ({2: length},) * 3
    program = torch.export.export(Layer(), tuple(first[:3]), dynamic_shapes=shapes)
    assert "fa_core.flash_forward" in program.graph_module.code
    torch.testing.assert_close(program.module()(*second[:3]), flash(*second[:3], causal=True))


# --------------------------------------------------------------------------------------------- autograd


def test_autocast_takes_mixed_inputs():
    """Under autocast q and k in fp32 join v in fp16: out is fp16, and each gradient in its tensor's dtype."""
    x = make_inputs(17, 23, 16)
    leaves = [x.q.requires_grad_(), x.k.requires_grad_(), x.v.half().requires_grad_()]
    with torch.autocast(DEVICE, dtype=torch.float16):
        out = flash(*leaves, causal=True)
    halves = [t.detach().half().requires_grad_() for t in leaves]
    expected = flash(*halves, causal=True)
    assert torch.equal(out, expected)
    grads = torch.autograd.grad(out, leaves, x.dout.half())
    assert [g.dtype for g in grads] == [torch.float32, torch.float32, torch.float16]
    for got, wanted in zip(grads, torch.autograd.grad(expected, halves, x.dout.half()), strict=True):
        assert torch.equal(got.half(), wanted)


@pytest.mark.parametrize("wanted", [w for w in itertools.product((False, True), repeat=5) if any(w)][::5])
def test_only_wanted_gradients_are_computed(wanted, monkeypatch):
    """Tensors that ask for no gradient get none, and the kernels that only they need do not run."""
    ran = []
    for name in ("dq_launch", "dkdv_launch", "dbias_launch"):
        launch = getattr(fa_core.launch, name)
        monkeypatch.setattr(
            fa_core.launch, name, lambda *args, name=name, launch=launch: ran.append(name) or launch(*args)
        )
    x = make_inputs(17, 23, 16)
    options = make_features(x, "bias", "sinks")
    tensors = [*x[:3], options["bias"].detach(), options["sinks"].detach()]
    for tensor, want in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(want)
    flash(*tensors[:3], bias=tensors[3], sinks=tensors[4]).sum().backward()
    assert [t.grad is not None for t in tensors] == list(wanted)
    dq, dk, dv, dbias, dsinks = wanted
    needed = {"dq_launch": dq or dsinks, "dkdv_launch": dk or dv, "dbias_launch": dbias}
    assert sorted(ran) == sorted(name for name, need in needed.items() if need)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_second_derivative_is_refused(compiled):
    """Differentiating twice raises a sentence that names what can do it, instead of giving a wrong number."""
    x = make_inputs(17, 23, 16)
    q = x.q.requires_grad_()
    attend = torch.compile(flash, backend="aot_eager") if compiled else flash

    def twice() -> None:
        (dq,) = torch.autograd.grad(attend(q, x.k, x.v).square().sum(), q, create_graph=True)
        dq.sum().backward()

    with pytest.raises(RuntimeError, match=r"once, not twice|double backward"):
        twice()


def test_a_checkpointed_call_has_the_same_gradients():
    """Recomputed in the backward, the call gives the same bits."""
    x = make_inputs(17, 23, 16)
    leaves = [t.requires_grad_() for t in x[:3]]
    plain = torch.autograd.grad(flash(*leaves, causal=True), leaves, x.dout)
    again = torch.autograd.grad(checkpoint(flash, *leaves, causal=True, use_reentrant=False), leaves, x.dout)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


# ---------------------------------------------------------------------------------------------- devices


@pytest.mark.gpu
@pytest.mark.parametrize("names", FEATURES, ids="-".join)
def test_a_captured_graph_replays_on_new_inputs(names):
    """Forward and backward captured in one CUDA graph give, replayed, what the new contents call for."""
    x, other = (make_inputs(150, 170, 64, kv_heads=1, dtype="bf16", seed=seed) for seed in (0, 1))
    options = make_features(x, *names)
    leaves = [t.clone().requires_grad_() for t in x[:3]]
    dout = x.dout.clone()

    def step() -> tuple[torch.Tensor, ...]:
        out = flash(*leaves, **options)
        return out, *torch.autograd.grad(out, leaves, dout)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # compiles, which no capture may contain
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for old, new in zip((*leaves, dout), other, strict=True):
            old.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    replayed = [t.clone() for t in captured]
    assert all(torch.equal(a, b) for a, b in zip(replayed, step(), strict=True))


@pytest.mark.gpu
def test_packed_and_paged_calls_can_be_captured():
    """While a graph is captured nothing is read back from the device, even where checks are asked for."""
    packed, paged = _packed(), _paged(None)
    rows = [x[0].transpose(0, 1).detach() for x in packed[:3]]
    caches = [x.transpose(1, 2) for x in paged[1:3]]

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        return (
            attention_varlen(*rows, *packed[6:8], causal=True, impl="flash"),
            attention_paged(paged[0], *caches, paged[8], paged[7], causal=True, impl="flash"),
        )

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_tensors_of_another_device_than_the_current_one():
    """Kernels run where the tensors are, and the current device stays the current one."""
    x = make_inputs(150, 170, 64, dtype="bf16")
    expected = run(flash, x, causal=True)
    with torch.cuda.device(0):
        moved = type(x)(*(t.to("cuda:1") for t in x))
        got = run(flash, moved, causal=True)
        assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in got.values())
    assert all(torch.equal(got[name].to("cuda:0"), t) for name, t in expected.items())


@pytest.mark.gpu
def test_tensors_of_two_devices_are_refused():
    """q on the GPU and k on the CPU: one sentence, and nothing is launched."""
    x = make_inputs(17, 23, 16)
    with pytest.raises(ValueError, match="must be on one device"):
        flash(x.q, x.k.cpu(), x.v)
