"""Cases with features: one key for one mask, lengths of packed sequences, axes of a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from profiling.case import LAYOUTS, Case
from profiling.grid import Group, Sweep, load_sweep
from profiling.paths import DATA_DIR


def make(**changes: Any) -> Case:
    """A small case with some fields changed."""
    fields = {"backend": "flash", "seq_len_q": 64, "seq_len_k": 64, "head_dim": 32, "head_dim_v": 32}
    return Case(**(fields | changes))


def test_one_mask_has_one_key() -> None:
    """Causal, a window that ends at the query's own place, and both: one case, written as causal."""
    case = make(causal=True, window_left=8)
    assert case == make(causal=True, window_left=8, window_right=0) == make(window_left=8, window_right=0)
    assert len({case.key, make(window_left=8, window_right=0).key}) == 1
    assert (make(window_right=0).causal, make(window_right=0).window_right) == (True, None)
    assert make(window_right=1).window_right == 1
    with pytest.raises(ValidationError, match="window_right must be 0 or left out"):
        make(causal=True, window_right=3)


def test_packed_sequences_have_lengths_of_their_own() -> None:
    """The longest comes first, the others lie between a quarter of it and it; no two runs differ."""
    lengths = make(layout="varlen", batch=16, seq_len_q=4096, seq_len_k=1000).lengths
    assert lengths[0] == (4096, 1000)
    assert all(1024 <= n_q <= 4096 and 250 <= n_k <= 1000 for n_q, n_k in lengths)
    assert len(set(lengths)) == 16
    assert [n for n, _ in lengths] != sorted((n for n, _ in lengths), reverse=True)
    assert [n for n, _ in lengths][:4] == [4096, 2923, 1749, 3648]
    assert make(layout="varlen", batch=0).lengths == ()
    assert make(layout="varlen", batch=3, seq_len_q=0, seq_len_k=1).lengths[0] == (0, 1)
    assert make(batch=3).lengths == ((64, 64),) * 3


def test_features_are_axes_too() -> None:
    """Windows, softcaps, layouts, switches and value widths multiply like any other axis."""
    group = Group(
        backends=("flash",),
        seq_len=(64,),
        causal=(True,),
        window=(("none", "none"), (512, 0), (8, "none")),
        softcap=(0, 30),
        bias=(False, True),
        sinks=(False, True),
        alibi=(False, True),
        layout=("dense", "varlen", "paged"),
        head_dim_v=(64, 128),
    )
    found = group.cases()
    assert len(found) == len(set(found)) == 3 * 2 * 2 * 2 * 2 * 3 * 2
    assert {(c.window_left, c.window_right) for c in found} == {(None, None), (512, None), (8, None)}
    assert {c.softcap for c in found} == {None, 30.0}
    assert {(c.head_dim, c.head_dim_v) for c in found} == {(128, 64), (128, 128)}


def test_a_window_that_is_causal_is_one_case_with_it() -> None:
    """Both ways of asking for the same mask give it once."""
    group = Group(backends=("flash",), seq_len=(64,), causal=(False, True), window=((512, 0),))
    assert len(Sweep(name="s", group=(group,)).cases()) == 1


def test_the_features_sweep_has_every_feature_beside_naive() -> None:
    """Each feature has `flash`, `naive` and, forward at least, what PyTorch has for it."""
    found = load_sweep(DATA_DIR / "sweeps" / "features.toml").cases()
    assert 100 <= len(found) <= 200
    assert {case.dtype for case in found} == {"bf16"}
    compared: dict[tuple[Any, ...], set[str]] = {}
    for c in found:
        feature = (c.window_left, c.softcap, c.bias, c.sinks, c.alibi, c.layout, c.kv_heads, c.head_dim_v)
        compared.setdefault((*feature, c.direction), set()).add(c.backend)
    assert all({"naive", "flash"} <= backends for backends in compared.values())
    assert all(len(backends) > 2 for shape, backends in compared.items() if shape[-1] == "fwd")
    forward, backward = ({shape[:-1] for shape in compared if shape[-1] == way} for way in ("fwd", "bwd"))
    assert {(shape[5], shape[6]) for shape in forward - backward} == {("dense", 2), ("paged", 2)}  # decoding
    wanted = {"window_left", "softcap", "bias", "sinks", "alibi"}
    assert {name for c in found for name in wanted if getattr(c, name)} == wanted
    assert {c.layout for c in found} == set(LAYOUTS)
    assert max(c.seq_len_q for c in found if c.backend == "naive") <= 4096
