"""FLOP conventions: the paper's by definition, the others by counting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import Case, InputError
from profiling.model.flops import CONVENTIONS, flops


def make(**changes: Any) -> Case:
    """A case of our standard sweep."""
    base = {"backend": "flash", "batch": 4, "heads": 16, "kv_heads": 16, "seq_len_q": 2048, "seq_len_k": 2048}
    return Case(**({**base, "head_dim": 128, "head_dim_v": 128} | changes))


@pytest.mark.parametrize(("direction", "times"), [("fwd", 1.0), ("bwd", 2.5), ("fwd_bwd", 3.5)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_papers_convention(direction: str, times: float, causal: bool) -> None:
    """Forward 4·B·H·N²·d, halved when causal; backward 2.5 times, both 3.5 times."""
    forward = 4 * 4 * 16 * 2048**2 * 128 / (2 if causal else 1)
    assert flops(make(direction=direction, causal=causal)) == forward * times


def test_exact_counts_what_is_visible() -> None:
    """Without a mask, exact is the paper's count; causal it is a little more, by the diagonal."""
    for direction in ("fwd", "bwd", "fwd_bwd"):
        assert flops(make(direction=direction), "exact") == flops(make(direction=direction), "paper")
    causal = make(causal=True)
    assert flops(causal, "exact") / flops(causal, "paper") == 2049 / 2048


def test_a_split_backward_does_seven_matmuls() -> None:
    """Where tiles divide the lengths and nothing is masked, executed is 7/5 of exact in the backward."""
    case = make(direction="bwd")
    assert 5 * flops(case, "executed") == 7 * flops(case, "exact")
    assert flops(make(), "executed") == flops(make(), "exact")


def test_a_window_counts_what_it_leaves() -> None:
    """Exact: 512 keys before and the query's own, fewer at the start; the paper's count knows no window."""
    case = make(causal=True, window_left=512)
    pairs = sum(min(i, 512) + 1 for i in range(2048))
    assert flops(case, "exact") == 4 * 4 * 16 * 128 * pairs
    assert flops(case, "paper") == flops(make(causal=True), "paper")
    assert flops(case, "exact") <= flops(case, "executed") < flops(make(causal=True), "executed")
    both_sides = make(window_left=100, window_right=28, direction="bwd")
    pairs = sum(min(2047, i + 28) - max(0, i - 100) + 1 for i in range(2048))
    assert flops(both_sides, "exact") == 10 * 4 * 16 * 128 * pairs


def test_packed_sequences_count_each_for_itself() -> None:
    """The FLOPs of a pack are those of its sequences, in every convention."""
    pack = make(layout="varlen", causal=True, seq_len_k=3000, direction="fwd_bwd")
    assert len(set(pack.lengths)) == 4
    each = [
        make(batch=1, causal=True, seq_len_q=q, seq_len_k=k, direction="fwd_bwd") for q, k in pack.lengths
    ]
    for convention in CONVENTIONS:
        assert flops(pack, convention) == sum(flops(case, convention) for case in each)


def test_group_heads_cost_nothing_less() -> None:
    """Fewer KV heads save bytes, not FLOPs."""
    for convention in CONVENTIONS:
        assert flops(make(kv_heads=2), convention) == flops(make(), convention)


def test_values_of_another_width() -> None:
    """With d != dv every matmul counts the width it has: Q Kᵀ has d, P V has dv."""
    case = make(head_dim=192, head_dim_v=128, causal=False)
    pairs = 4 * 16 * 2048**2
    assert flops(case, "exact") == 2 * pairs * (192 + 128)
    backward = case.model_copy(update={"direction": "bwd"})
    assert flops(backward, "exact") == 2 * pairs * (3 * 192 + 2 * 128)


@given(
    n_q=st.integers(0, 300),
    n_k=st.integers(0, 300),
    d=st.integers(1, 256),
    dv=st.integers(1, 256),
    causal=st.booleans(),
    direction=st.sampled_from(["fwd", "bwd", "fwd_bwd"]),
    left=st.none() | st.integers(0, 300),
)
def test_executed_is_never_less_than_exact(
    n_q: int, n_k: int, d: int, dv: int, causal: bool, direction: str, left: int | None
) -> None:
    """Tiles run whole, so they never do less than the visible pairs ask for; no length is too odd."""
    lengths, widths = {"seq_len_q": n_q, "seq_len_k": n_k}, {"head_dim": d, "head_dim_v": dv}
    case = make(**lengths, **widths, causal=causal, direction=direction, window_left=left)
    assert flops(case, "executed") >= flops(case, "exact") >= 0
    assert isinstance(flops(case), int)


def test_an_unknown_convention_is_refused() -> None:
    """The message lists the three."""
    with pytest.raises(InputError, match="paper, exact, executed"):
        flops(make(), "fused")
