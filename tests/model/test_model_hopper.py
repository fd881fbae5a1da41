"""What the models know of the kernels for sm_90 is what `fa_core.hopper` does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from fa_core import hopper
from fa_core.kernels import tuning
from fa_core.launch import Problem, Saved
from profiling.case import Case
from profiling.model.hopper import backward_tile, forward_tile, keeps_busy, padded_width, sums_dq
from profiling.model.memory import peak_bytes

H200 = tuning.Gpu(232448, (9, 0), 132)
FULL, CAUSAL = (None, None), (None, 0)


def case(n_q: int, n_k: int, d: int, **fields: Any) -> Case:
    """Two sequences of six heads, bf16."""
    shape = {"batch": 2, "heads": 6, "kv_heads": 6, "seq_len_q": n_q, "seq_len_k": n_k}
    return Case(backend="flash_hopper", **(shape | fields), head_dim=d, head_dim_v=d)


@contextlib.contextmanager
def on_h200() -> Iterator[None]:
    """Tensors without storage stand for an H200's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "elsewhere", H200)
        yield


def problem(of: Case) -> Problem:
    """The same as `fa_core` sees it, without storage."""
    q, k = (
        torch.empty(of.batch, of.heads, n, of.head_dim, dtype=torch.bfloat16, device="meta")
        for n in (of.seq_len_q, of.seq_len_k)
    )
    limits = (of.window_left, of.window_right) if of.window_left is not None else FULL
    left, right = CAUSAL if of.causal else limits
    return Problem(q, k, k, None, None, None, None, None, None, 1.0, left, right, False, 0.0)


@given(
    st.integers(1, 64),
    st.integers(65, 20000),
    st.integers(65, 20000),
    st.integers(1, 256),
    st.sampled_from("fcw"),
)
def test_tiles_are_those_of_fa_core(batch: int, n_q: int, n_k: int, d: int, mask: str) -> None:
    """At every length, width and mask: forward, and the backward's main kernel (queries x keys); and which
    forwards have too few tiles.
    """
    fields = {"f": {}, "c": {"causal": True}, "w": {"window_left": 3, "window_right": 5}}[mask]
    one = case(n_q, n_k, d, batch=batch, **fields)
    p = problem(one)
    with on_h200():
        ours, rather_not = hopper.forward_tile(p), hopper.why_rather_not(p)
    backward = hopper.backward_tile(p)
    assert forward_tile(one) == (ours.block_m, ours.block_n)
    assert keeps_busy(one) == (rather_not == "")
    assert keeps_busy(one.model_copy(update={"direction": "bwd"}))
    assert backward_tile(one) == (backward.block_m, backward.keys)
    assert padded_width(one) == hopper.padded_width(d)


@pytest.mark.parametrize("n", [1023, 1024, 1025, 3071, 3072, 3073, 8191, 8192, 16383, 16384])
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_at_the_lengths_that_choose_them(n: int, d: int, causal: bool) -> None:
    """On either side of each length at which a tile changes."""
    one = case(n, n, d, causal=causal)
    with on_h200():
        ours = hopper.forward_tile(problem(one))
    assert forward_tile(one) == (ours.block_m, ours.block_n)


def test_wider_heads_have_no_tile() -> None:
    """Beyond 256 they are refused."""
    one = case(1024, 1024, 257)
    assert forward_tile(one) is None
    assert backward_tile(one) is None
    assert not sums_dq(one)
    assert peak_bytes(one.model_copy(update={"direction": "bwd"})) is None


class _Held(TorchDispatchMode):
    """Counts the bytes of what is made."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "empty" in str(func):
            self.nbytes += out.numel() * out.element_size()
        return out


@pytest.mark.parametrize("d", [40, 64, 128, 256])
@pytest.mark.parametrize("n", [256, 300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["", "deterministic"])
def test_a_backward_holds_what_its_launches_make(
    d: int, n: int, causal: bool, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte: the padded statistics, and the fp32 sum of dQ where there is one."""
    if hopper._kernels() is None:
        pytest.skip("this Triton has no Gluon")
    monkeypatch.setattr(tuning, "elsewhere", H200)
    one = case(n, n + 64, d, causal=causal, variant=variant, direction="bwd")
    p = problem(one)
    rows = p.q.new_empty(2, 6, n, dtype=torch.float32)
    out, dq, dk, dv = (torch.empty_like(x) for x in (p.q, p.q, p.k, p.v))
    saved = Saved(torch.empty_like(out), rows, rows, rows)
    with _Held() as held:
        hopper.backward_launches(p, saved, out, None, (dq, dk, dv), deterministic=variant != "")
    outside = sum(x.numel() * x.element_size() for x in (out, dq, dk, dv)) + 2 * 4 * rows.numel()
    assert peak_bytes(one) == outside + held.nbytes
    assert sums_dq(one) == (held.nbytes > 2 * 4 * 12 * (n + 128))
