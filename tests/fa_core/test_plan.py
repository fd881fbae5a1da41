"""Plans: a call of a known kind gives what an unplanned one gives, and whatever must see operators does."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracle import DEVICE, make_inputs
from torch.utils.flop_counter import FlopCounterMode

from fa_core import api, attention, hopper, plan
from fa_core.plan import PlannedForward, Plans, key_of, watched

HERE = DEVICE == "cuda" and torch.cuda.get_device_capability() == hopper.CAPABILITY
on_sm_90 = [pytest.mark.gpu, pytest.mark.skipif(not HERE, reason="needs a GPU of compute capability 9.0")]
flash = partial(attention, impl="flash_hopper")
KERNELS = pytest.mark.parametrize("impl", ["flash", "flash_hopper", "flash_portable", "auto"])


class TestOnTheGpu:
    """Where there are plans."""

    pytestmark = on_sm_90

    @KERNELS
    @pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 5)}, {"scale": 0.3}])
    def test_the_second_call_is_planned_and_the_same(self, options, impl, monkeypatch):
        """Other tensors of the same kind, planned, agree to the bit with the operator on them."""
        monkeypatch.setattr(api, "_PLANS", Plans())
        flash = partial(attention, impl=impl)
        flash(*make_inputs(200, 300, 64, dtype="bf16")[:3], **options)
        assert len(api._PLANS._known) == 1
        x = make_inputs(200, 300, 64, dtype="bf16", seed=5)
        out, _ = flash(*x[:3], **options, return_lse=True)
        assert torch.equal(flash(*x[:3], **options), out)
        assert len(api._PLANS._known) == 1

    def test_another_stream_is_kept_to(self):
        """A planned launch is on the stream that is current."""
        x = make_inputs(300, 300, 64, dtype="bf16")
        expected = flash(*x[:3])
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10**9)  # half a second
            q = x.q * 1
            out = flash(q, *x[1:3])
            busy = not stream.query()
        assert busy
        stream.synchronize()
        assert torch.equal(out, expected)

    def test_a_gradient_to_come_is_not_planned(self):
        """The same tensors, once they ask for a gradient, get one."""
        x = make_inputs(200, 200, 64, dtype="bf16")
        flash(*x[:3])
        q = x.q.requires_grad_()
        flash(q, *x[1:3]).sum().backward()
        assert q.grad is not None

    def test_nothing_is_kept_alive(self):
        """A plan holds no tensor."""
        x = make_inputs(512, 512, 64, dtype="bf16")
        flash(*x[:3])
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
        for _ in range(2):
            assert torch.equal(attention(*x[:3], impl="flash"), out)
        assert list(api._PLANS._known.values()) != [None]

    def test_few_queries_have_no_plan_and_are_asked_once(self, monkeypatch):
        """Where keys are divided between programs there is no plan, and that is kept in mind."""
        monkeypatch.setattr(api, "_PLANS", Plans())
        x = make_inputs(1, 4096, 64, dtype="bf16")
        first = attention(*x[:3], impl="flash")
        assert list(api._PLANS._known.values()) == [None]
        monkeypatch.setattr(Plans, "put", lambda *_: pytest.fail("asked again"))
        assert torch.equal(attention(*x[:3], impl="flash"), first)

    def test_unaligned_tensors_are_refused_as_ever(self):
        """A pointer off 16 bytes is of no kind that has a plan."""
        x = make_inputs(200, 200, 64, dtype="bf16")
        flash(*x[:3])
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


def test_the_oldest_plan_goes():
    """There are never more than the limit."""
    some: Any = SimpleNamespace(names=())
    plans, made = Plans(limit=2), PlannedForward(torch.device("cpu"), some)
    for key in "abc":
        assert plans.put(key, lambda: made) is made
    assert [plans.get(key) for key in "abc"] == [None, made, made]
    assert plans.put("d", lambda: None) is None
    assert plans.get("d") is None
    assert ["d" in plans, "b" in plans, "a" in plans] == [True, False, False]
    assert plan.MAX_PLANS > 2
