"""FlashAttention's packages, here stood in for: layouts, what is passed, and what is said without them."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from fa_core import naive_attention
from profiling.measure import peers
from profiling.measure.backends import bind, resolve
from profiling.measure.inputs import make_inputs

CPU = torch.device("cpu")
MODULES = {"fa2": "flash_attn", "fa3": "flash_attn_interface", "fa4": "flash_attn.cute.interface"}


class Stub:
    """A package that computes eagerly in its own layout, and notes what it got."""

    def __init__(self, with_lse: bool) -> None:
        self.with_lse = with_lse
        self.calls: list[tuple[tuple[int, ...], bool]] = []

    def flash_attn_func(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> Any:
        """(batch, seq_len, heads, d) in and out; the log-sum-exp too if it is of that kind."""
        self.calls.append((tuple(q.shape), causal))
        heads = (x.transpose(1, 2) for x in (q, k, v))
        out, lse = naive_attention(*heads, causal=causal, return_lse=True)
        return (out.transpose(1, 2), lse) if self.with_lse else out.transpose(1, 2)


def install(monkeypatch: pytest.MonkeyPatch, module: str, stub: object) -> None:
    """Make `module`, and the packages above it, importable: `flash_attn_func` is the stub's."""
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        made = ModuleType(".".join(parts[:i]))
        made.__path__ = []
        monkeypatch.setitem(sys.modules, made.__name__, made)
    if hasattr(stub, "flash_attn_func"):
        sys.modules[module].flash_attn_func = stub.flash_attn_func  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_they_are_backends(make_case, name, with_lse, causal, monkeypatch):
    """A case reaches the package in its layout, grouped heads as they are; output and gradients come back."""
    stub = Stub(with_lse)
    install(monkeypatch, MODULES[name], stub)
    fields = {"heads": 4, "kv_heads": 2, "seq_len_q": 10, "seq_len_k": 17, "causal": causal}
    case = make_case(backend=f"profiling.measure.peers:{name}", direction="bwd", batch=3, **fields)
    inputs = make_inputs(case, CPU, 0)
    found = bind(resolve(case, CPU).forward, case, inputs)()
    plain = bind(resolve(make_case(batch=3, direction="bwd", **fields), CPU).forward, case, inputs)()
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        out = resolve(case, CPU).forward(inputs)
    torch.testing.assert_close(out, naive_attention(inputs.q, inputs.k, inputs.v, causal=causal))
    assert stub.calls == [((3, 10, 4, 8), causal)] * 2


@pytest.mark.parametrize(("name", "module"), MODULES.items())
def test_without_the_package_it_is_one_sentence(make_case, name, module, monkeypatch):
    """Nothing of it, or another version's package beside it: not installed, and which package it would be."""
    if importlib.util.find_spec(module.partition(".")[0]) is not None:
        pytest.skip("it is installed here")
    case = make_case(backend=f"profiling.measure.peers:{name}")
    inputs = make_inputs(case, CPU, 0)
    with pytest.raises(NotImplementedError, match=rf"^FlashAttention-{name[-1]} is not installed \(package "):
        resolve(case, CPU).forward(inputs)
    if name == "fa4":
        install(monkeypatch, "flash_attn", Stub(False))
        with pytest.raises(NotImplementedError, match="FlashAttention-4 is not installed"):
            resolve(case, CPU).forward(inputs)


def test_a_package_that_lacks_something_says_what(monkeypatch, tmp_path):
    """A library that it needs, or the function itself."""
    (tmp_path / "flash_attn_interface.py").write_text("import no_such_library_of_ours\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    q = torch.zeros(1, 1, 2, 8)
    with pytest.raises(NotImplementedError, match="it lacks module no_such_library_of_ours"):
        peers.fa3(q, q, q)
    install(monkeypatch, "flash_attn", object())
    with pytest.raises(NotImplementedError, match=r"FlashAttention-2 cannot be imported: .*flash_attn_func"):
        peers.fa2(q, q, q)


def test_they_take_no_more_than_a_mask(make_case):
    """A window or a softcap is refused, and not left out."""
    case = make_case(backend="profiling.measure.peers:fa2", window_left=4, softcap=2.0)
    with pytest.raises(NotImplementedError, match="cannot take window, softcap"):
        resolve(case, CPU)
