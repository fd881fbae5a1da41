"""Plans: a call of a known kind gives what an unplanned one gives, and whatever must see operators does."""

import gc
import weakref
from functools import partial

import pytest
import torch
from oracle import DEVICE, make_inputs
from torch.utils.flop_counter import FlopCounterMode

from fa_core import api, attention, attention_paged, hopper, op, packed, plan
from fa_core.band import Band
from fa_core.launch import Launch
from fa_core.plan import Plan, Plans, index_key, key_of, watched

HERE = DEVICE == "cuda" and torch.cuda.get_device_capability() == hopper.CAPABILITY
on_sm_90 = [pytest.mark.gpu, pytest.mark.skipif(not HERE, reason="needs a GPU of compute capability 9.0")]
flash = partial(attention, impl="flash_hopper")
KERNELS = pytest.mark.parametrize("impl", ["flash", "flash_hopper", "flash_portable", "auto"])


class TestOnTheGpu:
    """Where there are plans."""

    pytestmark = on_sm_90

    @KERNELS
    @pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 5)}, {"scale": 0.3}])
    def test_from_the_second_call_on_there_is_a_plan_that_gives_the_same(self, options, impl, monkeypatch):
        """Other tensors of the same kind, planned, agree to the bit with the operator on them."""
        monkeypatch.setattr(api, "_PLANS", Plans())
        flash = partial(attention, impl=impl, **options)
        for seed, planned in ((1, False), (2, True)):
            flash(*make_inputs(200, 300, 64, dtype="bf16", seed=seed)[:3])
            assert [p is not None for p in api._PLANS._known.values()] == [planned]
        x = make_inputs(200, 300, 64, dtype="bf16", seed=5)
        out, _ = flash(*x[:3], return_lse=True)
        assert torch.equal(flash(*x[:3]), out)
        assert len(api._PLANS._known) == 1

    def test_another_stream_is_kept_to(self):
        """A planned launch is on the stream that is current."""
        x = make_inputs(300, 300, 64, dtype="bf16")
        expected = _planned(flash, *x[:3])
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10**9)  # half a second
            q = x.q * 1
            out = flash(q, *x[1:3])
            busy = not stream.query()
        assert busy
        stream.synchronize()
        assert torch.equal(out, expected)

    @pytest.mark.parametrize("impl", ["flash_hopper", "flash_portable"])
    @pytest.mark.parametrize("n_q", [300, 1])
    def test_a_capture_after_one_call(self, impl, n_q):
        """A graph captured at the second call of a kind, when it would be planned, replays what is right."""
        if n_q == 1 and impl == "flash_hopper":
            pytest.skip("not for so few queries")
        x = make_inputs(n_q, 1100, 64, dtype="bf16", seed=n_q)
        expected = attention(*x[:3], impl=impl)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attention(*x[:3], impl=impl)
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)

    @pytest.mark.parametrize("impl", ["flash_hopper", "flash_portable"])
    @pytest.mark.parametrize("n_q", [2048, 16])
    def test_the_call_that_makes_a_plan_holds_no_more_than_others(self, impl, n_q, monkeypatch):
        """What a plan is made with is gone before the call begins, whose peak is that of every later one."""
        if n_q == 16 and impl == "flash_hopper":
            pytest.skip("not for so few queries")
        monkeypatch.setattr(api, "_PLANS", Plans())
        x = make_inputs(n_q, 4096, 64, dtype="bf16")
        peaks = []
        for _ in range(3):
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            out = attention(*x[:3], impl=impl)
            peaks.append(torch.cuda.max_memory_allocated() - before)
            del out
        assert peaks[1] <= peaks[0]
        assert peaks[2] <= peaks[0]

    def test_a_gradient_to_come_is_not_planned(self):
        """The same tensors, once they ask for a gradient, get one."""
        x = make_inputs(200, 200, 64, dtype="bf16")
        _planned(flash, *x[:3])
        q = x.q.requires_grad_()
        flash(q, *x[1:3]).sum().backward()
        assert q.grad is not None

    def test_nothing_is_kept_alive(self):
        """A plan holds no tensor."""
        x = make_inputs(512, 512, 64, dtype="bf16")
        _planned(flash, *x[:3])
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        held = x.q.nbytes + x.k.nbytes + x.v.nbytes + x.dout.nbytes
        del x
        assert torch.cuda.memory_allocated() <= before - held

    @pytest.mark.parametrize(("dtype", "d_v"), [("fp32", 64), ("bf16", 32), ("bf16", 100)])
    def test_what_only_the_portable_kernels_take_is_planned_too(self, dtype, d_v, monkeypatch):
        """fp32, and values narrower or wider than keys: planned, and bit for bit what the operator says."""
        monkeypatch.setattr(api, "_PLANS", Plans())
        x = make_inputs(200, 300, 64, head_dim_v=d_v, dtype=dtype)
        out, _ = attention(*x[:3], impl="flash", return_lse=True)
        for _ in range(3):
            assert torch.equal(attention(*x[:3], impl="flash"), out)
        assert list(api._PLANS._known.values()) != [None]

    @pytest.mark.parametrize("n_q", [1, 7, 64])
    @pytest.mark.parametrize("kv_heads", [3, 1])
    def test_few_queries_are_planned_too(self, n_q, kv_heads, monkeypatch):
        """Keys divided between programs and joined by a second kernel: bit for bit what the operator says."""
        monkeypatch.setattr(api, "_PLANS", Plans())
        attend = partial(attention, impl="flash", causal=True)
        _planned(attend, *make_inputs(n_q, 4096, 64, kv_heads=kv_heads, dtype="bf16")[:3])
        x = make_inputs(n_q, 4096, 64, kv_heads=kv_heads, dtype="bf16", seed=5)
        out, _ = attend(*x[:3], return_lse=True)
        assert torch.equal(attend(*x[:3]), out)
        assert None not in api._PLANS._known.values()
        assert len(api._PLANS._known) == 1

    @KERNELS
    def test_one_tensor_in_three_places_is_a_plan_for_three(self, impl, monkeypatch):
        """What was planned for attention(x, x, x) tells q, k and v apart in the next call of its shape."""
        monkeypatch.setattr(api, "_PLANS", Plans())
        x = make_inputs(300, 300, 64, dtype="bf16")
        _planned(partial(attention, impl=impl), x.q, x.q, x.q)
        out, _ = attention(*x[:3], impl=impl, return_lse=True)
        assert torch.equal(attention(*x[:3], impl=impl), out)
        assert len(api._PLANS._known) == 1

    @pytest.mark.parametrize("n_q", [1, 5])
    def test_pages_are_planned_too(self, n_q, monkeypatch):
        """A paged cache: other pages, another table and other lengths, planned, as the operator has them."""
        monkeypatch.setattr(packed, "_PLANS", Plans())
        attend = partial(attention_paged, impl="flash", causal=True)
        for seed in (1, 2, 3):
            q, k, v, table, lengths = _pages(n_q, seed)
            out, _ = attend(q, k, v, table, lengths, return_lse=True)
            assert torch.equal(attend(q, k, v, table, lengths), out)
        (planned,) = packed._PLANS._known.values()
        assert planned is not None
        with pytest.raises(ValueError, match="block_table must name pages"):
            attend(q, k, v, table + k.shape[0], lengths)
        attend(q, k, v, table.long(), lengths)  # which kernels take a copy of
        assert len(packed._PLANS._known) == 1

    def test_unaligned_tensors_are_refused_as_ever(self):
        """A pointer off 16 bytes is of no kind that has a plan."""
        x = make_inputs(200, 200, 64, dtype="bf16")
        _planned(flash, *x[:3])
        room = torch.empty(x.q.numel() + 1, device=DEVICE, dtype=x.q.dtype)
        q = room[1:].view(x.q.shape).copy_(x.q)
        with pytest.raises(NotImplementedError, match="multiple of 16 bytes"):
            flash(q, *x[1:3])


def test_what_is_watched_goes_through_the_operator():
    """A mode that counts, a transform and autocast must see the operator; plain eager need not."""
    assert not watched()
    with FlopCounterMode(display=False):
        assert watched()
    with torch.autocast("cuda", enabled=True) if DEVICE == "cuda" else torch.overrides.TorchFunctionMode():
        assert watched()
    seen = []
    torch.func.vmap(lambda x: seen.append(watched()) or x)(torch.ones(2))
    assert seen == [True]


def test_a_cpu_call_and_one_with_a_gradient_have_no_kind():
    """Nothing is planned for them."""
    x = make_inputs(4, 4, 8)
    assert x.q.is_cuda or key_of(*x[:3], ()) is None
    with torch.enable_grad():
        assert key_of(x.q.clone().requires_grad_(), *x[1:3], ()) is None
    assert key_of(torch.nn.Parameter(x.q, requires_grad=False), *x[1:3], ()) is None


def test_a_kind_is_planned_when_it_comes_again():
    """The first call of a kind makes no plan; a kind that has none is not asked again."""
    plans, made = Plans(), Plan([], [torch.ones(2)], torch.ones(2))
    asked = []
    for _ in range(3):
        plans.learn("a", lambda: asked.append("a") or made)
        plans.learn("b", lambda: asked.append("b"))
    assert asked == ["a", "b"]
    assert (plans.get("a"), plans.get("b"), plans.get("c")) == (made, None, None)


def test_the_second_call_runs_by_the_plan_that_it_makes(monkeypatch):
    """The operator runs once; the call that makes a plan already takes it, and so holds one output."""
    x = make_inputs(20, 20, 16, dtype="fp16")[:3]
    made = torch.ones(3)
    monkeypatch.setattr(api, "_PLANS", Plans())
    monkeypatch.setattr(api, "interpreted", lambda: False)
    monkeypatch.setattr(api, "check_flash", lambda *_: None)  # which would miss the GPU
    monkeypatch.setattr(plan, "key_of", lambda q, k, v, options: options)
    monkeypatch.setattr(op, "plan_forward", lambda *_: lambda *_: made)
    assert attention(*x, impl="flash_portable").shape == x[0].shape
    monkeypatch.setattr(op, "flash_attention", lambda *_, **__: pytest.fail("the operator, though planned"))
    for _ in range(2):
        assert attention(*x, impl="flash_portable") is made


def test_nothing_is_planned_while_a_graph_is_captured(monkeypatch):
    """The kind keeps its place: it is planned at its next call after the capture."""
    plans, made = Plans(), Plan([], [torch.ones(2)], torch.ones(2))
    plans.learn("a", lambda: made)
    with monkeypatch.context() as capturing:
        for name in ("is_initialized", "is_current_stream_capturing"):
            capturing.setattr(torch.cuda, name, lambda: True)
        plans.learn("a", lambda: pytest.fail("a kernel would be loaded"))
    plans.learn("a", lambda: made)
    assert plans.get("a") is made


def test_the_oldest_plan_goes():
    """There are never more than the limit, kinds that came once included; a kind that went starts anew."""
    plans, made = Plans(limit=2), Plan([], [torch.ones(2)], torch.ones(2))
    for key in "aabbcc":
        plans.learn(key, lambda: made)
    assert [plans.get(key) for key in "abc"] == [None, made, made]
    for key in "de":
        plans.learn(key, lambda: pytest.fail("came once"))
    assert [plans.get(key) for key in "bc"] == [None, None]
    plans.learn("b", lambda: pytest.fail("came once since it went"))
    assert len(plans._known) == 2
    assert plans._once == {"e", "b"}
    assert plan.MAX_PLANS > 2


def test_what_is_copied_before_kernels_read_it_has_no_key():
    """int64 lengths, a view with gaps, a pointer off 16 bytes: None."""
    lengths = torch.arange(64, dtype=torch.int32)
    assert index_key(lengths) == index_key(lengths.clone()) is not None
    assert index_key(lengths) != index_key(lengths[:32])
    for other in (lengths.long(), lengths[::2], lengths[1:], [3, 4]):
        assert index_key(other) is None


class _Interpreted:
    """In place of a compiled kernel: Triton's interpreter runs it, on the arguments that a plan gives."""

    def __init__(self, launch: Launch) -> None:
        self.kernel = launch.kernel

    def __getitem__(self, grid):
        return self.kernel[grid]


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU `TestOnTheGpu` says as much of compiled kernels")
class TestInterpreted:
    """Plans as they are made and run anywhere, with the interpreter's kernels in them."""

    @pytest.fixture(autouse=True)
    def _interpret(self, monkeypatch):
        monkeypatch.setattr(Launch, "compile", lambda launch: _Interpreted(launch))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of a CPU

    def _planned(self, q, k, v, **more):
        planned = op.plan_forward(q, k, v, Band(None, 0), 0.3, "", **more)
        assert planned is not None
        return planned

    @pytest.mark.parametrize(("n_q", "n_k"), [(40, 40), (1, 600), (5, 300)])
    @pytest.mark.parametrize("d_v", [16, 24])
    def test_other_tensors_of_the_same_kind(self, n_q, n_k, d_v):
        """What was planned on one set of tensors is right on another, to the bit: one launch, or two."""
        x, y = (make_inputs(n_q, n_k, 16, head_dim_v=d_v, dtype="fp16", seed=seed) for seed in (0, 1))
        got = self._planned(*x[:3])(*y[:3])
        assert torch.equal(got, attention(*y[:3], causal=True, scale=0.3, impl="flash"))

    @pytest.mark.parametrize("places", [(0, 0, 0), (0, 1, 1), (0, 0, 2), (0, 1, 0)])
    def test_one_tensor_in_several_places(self, places):
        """A plan made where one tensor was q, k or v at once tells them apart when they are three."""
        x = make_inputs(20, 20, 16, dtype="fp16")
        got = self._planned(*(x[i] for i in places))(*x[:3])
        assert torch.equal(got, attention(*x[:3], causal=True, scale=0.3, impl="flash"))

    @pytest.mark.parametrize("n_q", [1, 3])
    def test_pages(self, n_q):
        """A paged cache whose keys were its values when it was planned; other pages, table and lengths."""
        (q, k, _, table, lengths), other = _pages(n_q, 0), _pages(n_q, 1)
        by_head = (q, k.transpose(1, 2), k.transpose(1, 2))
        planned = self._planned(*by_head, cu_seqlens_k=lengths, block_table=table)
        q, k, v, table, lengths = other
        expected = attention_paged(q, k, v, table, lengths, causal=True, scale=0.3, impl="flash")
        assert torch.equal(planned(q, k, v, lengths, table), expected)

    def test_nothing_is_kept_alive(self):
        """A plan holds no tensor: not of the call it was made of, not what it makes for each call."""
        x = make_inputs(1, 600, 16, dtype="fp16")
        known = [weakref.ref(t) for t in x]
        planned = self._planned(*x[:3])
        planned(*x[:3])
        del x
        gc.collect()
        assert [ref() for ref in known] == [None] * 4
        held = [t for step in planned._steps for t in step._args if isinstance(t, torch.Tensor | tuple)]
        assert not any(isinstance(t, torch.Tensor) for each in held for t in (each, *each))

    @pytest.mark.parametrize("empty", ["batch", "n_q"])
    def test_nothing_to_launch_has_no_plan(self, empty):
        """An empty output is nobody's work."""
        x = make_inputs(0 if empty == "n_q" else 4, 4, 16, batch=0 if empty == "batch" else 1, dtype="fp16")
        assert op.plan_forward(*x[:3], Band(), 0.3, "") is None

    @pytest.mark.parametrize("scale", [0.0, -1.0])
    def test_a_scale_that_q_must_carry_has_no_plan(self, scale):
        """The kernels take positive scales; the operator folds others into q."""
        assert op.plan_forward(*make_inputs(4, 4, 16)[:3], Band(), scale, "") is None


def test_a_plan_refuses_one_tensor_twice():
    """It could not know which is which later on."""
    x = torch.ones(4)
    with pytest.raises(ValueError, match="different tensor objects"):
        Plan([], [x, x], torch.ones(4))


def _planned(call, *tensors):
    """The output of a call of which there is a plan afterwards."""
    call(*tensors)
    return call(*tensors)


def _pages(n_q: int, seed: int) -> tuple[torch.Tensor, ...]:
    """q (3, 4, n_q, 16), caches of 12 pages of 64 keys, a table of 4 pages each and lengths up to 256."""
    g = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    q = torch.randn(3, 4, n_q, 16, generator=g).to(dtype)
    k, v = (torch.randn(12, 64, 2, 16, generator=g).to(dtype) for _ in range(2))
    table = torch.randperm(12, generator=g).reshape(3, 4).int()
    lengths = torch.tensor([256 - seed, 17, 100 + seed], dtype=torch.int32)
    return tuple(x.to(DEVICE) for x in (q, k, v, table, lengths))
