"""Cases, the names in them, and what is refused of them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from profiling.case import (
    BACKENDS,
    CLOCKS,
    CPU_BACKENDS,
    CPU_CLOCKS,
    DIRECTIONS,
    DTYPE_BYTES,
    KEY_FIELDS,
    LAYOUTS,
    NAIVE_VARIANTS,
    SHAPE_FIELDS,
    TILED_BACKENDS,
    Case,
    InputError,
    blocks,
    check_backend,
    split_backend,
    split_name,
)


def make(**changes: Any) -> Case:
    """A small case with some fields changed."""
    fields = {"backend": "flash", "seq_len_q": 64, "seq_len_k": 64, "head_dim": 32, "head_dim_v": 32}
    return Case(**(fields | changes))


cases = st.builds(
    Case,
    backend=st.sampled_from(BACKENDS),
    direction=st.sampled_from(DIRECTIONS),
    dtype=st.sampled_from(list(DTYPE_BYTES)),
    batch=st.integers(0, 8),
    heads=st.just(12),
    kv_heads=st.sampled_from((1, 2, 3, 12)),
    seq_len_q=st.integers(0, 2**20),
    seq_len_k=st.integers(0, 2**20),
    head_dim=st.integers(1, 512),
    head_dim_v=st.integers(1, 512),
    causal=st.booleans(),
    layout=st.sampled_from(LAYOUTS),
    window_left=st.none() | st.integers(0, 4096),
    softcap=st.none() | st.floats(0.1, 100),
    alibi=st.booleans(),
)


# ------------------------------------------------------------------------------------------------- names


def test_names_of_subsets_are_names_of_the_whole() -> None:
    """What a CPU has, and what has tiles, are among the backends and clocks there are."""
    assert set(CPU_BACKENDS) <= set(BACKENDS)
    assert set(TILED_BACKENDS) <= set(BACKENDS)
    assert set(CPU_CLOCKS) <= set(CLOCKS)
    assert set(SHAPE_FIELDS) < set(KEY_FIELDS)


@pytest.mark.parametrize("name", [*BACKENDS, "my.kernels:attend", "kernels:f", "_m:_f"])
def test_known_and_custom_backends_are_taken(name: str) -> None:
    """A known backend, or any module:function, is returned as it is."""
    assert check_backend(name) == name


@pytest.mark.parametrize(
    "name", ["", "Flash", "flash ", "flash_attn", "a.b", ":f", "m:", "1m:f", "m:f:g", "m:f()"]
)
def test_unknown_backends_are_refused_with_the_list(name: str) -> None:
    """The message repeats the name and lists every backend there is."""
    with pytest.raises(InputError) as caught:
        check_backend(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in BACKENDS)


def test_a_backend_splits_into_name_and_variant() -> None:
    """Some backends have variants, each its own; without a slash the variant is empty."""
    assert split_backend("flash") == ("flash", "")
    for variant in NAIVE_VARIANTS:
        assert split_backend(f"naive/{variant}") == ("naive", variant)
        assert split_backend(f"naive_compiled/{variant}") == ("naive_compiled", variant)
    for name in ("flash", "flash_hopper"):
        assert split_backend(f"{name}/deterministic") == (name, "deterministic")
    assert split_backend("my.mod:f") == ("my.mod:f", "")


def test_a_name_is_split_by_whatever_operation_has_it() -> None:
    """`online` is of rows, `flash` of attention; what neither has is refused in attention's words."""
    assert split_name("online") == ("online", "")
    assert split_name("flash/deterministic") == ("flash", "deterministic")
    assert split_name("naive/fp32_softmax") == ("naive", "fp32_softmax")
    with pytest.raises(InputError, match="unknown backend"):
        split_name("cuda")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sdpa/add", "'sdpa' has no variants"),
        ("m:f/add", "'m:f' has no variants"),
        ("flash_portable/deterministic", "only naive, naive_compiled, flash, flash_hopper do"),
        ("flash_hopper/fill", "unknown variant 'fill' of flash_hopper: must be one of deterministic"),
        ("naive/sub", "unknown variant 'sub' of naive: must be one of add, fill, fp32_softmax"),
        ("naive/add/fill", "unknown variant 'add/fill'"),
        ("/add", "unknown backend ''"),
    ],
)
def test_wrong_variants_are_refused(text: str, said: str) -> None:
    """The message says which part is wrong and what is allowed."""
    with pytest.raises(InputError, match=re.escape(said)):
        split_backend(text)


# ------------------------------------------------------------------------------------------------- cases


@given(cases)
def test_a_case_survives_json(case: Case) -> None:
    """Written as JSON and read again a case is equal, has the same key and the same hash."""
    again = Case.model_validate_json(case.model_dump_json())
    assert again == case
    assert again.key == case.key
    assert hash(again) == hash(case)


@given(cases, cases)
def test_the_key_is_the_identity(a: Case, b: Case) -> None:
    """Two cases are equal exactly when their keys are."""
    assert (a == b) == (a.key == b.key)


def test_every_field_of_a_case_is_in_its_key() -> None:
    """No field of a case can differ without making it another case."""
    assert tuple(Case.model_fields) == KEY_FIELDS


def test_defaults_and_their_explicit_values_are_one_case() -> None:
    """Naming a default does not make another case, nor does a number written as 1.0."""
    assert make() == make(causal=False, variant="", tile_m=None, tile_n=None, layout="dense")
    assert len({make(), make(batch=1), make(batch=1.0)}) == 1


def test_backend_variant_and_tile_are_not_the_shape() -> None:
    """Cases that differ in backend, variant or tile alone share a shape; all else sets them apart."""
    shape = make().shape_key
    assert make(backend="naive", variant="fill").shape_key == shape
    assert make(tile_m=64, tile_n=128).shape_key == shape
    for change in (
        {"causal": True},
        {"batch": 2},
        {"seq_len_k": 65},
        {"direction": "bwd"},
        {"dtype": "fp16"},
    ):
        assert make(**change).shape_key != shape


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 3, "kv_heads": 2},
        {"heads": 1, "kv_heads": 2},
        {"heads": 0},
        {"kv_heads": 0},
        {"batch": -1},
        {"seq_len_q": -1},
        {"head_dim": 0},
        {"head_dim_v": 0},
        {"tile_m": 64},
        {"tile_n": 64},
        {"tile_m": 0, "tile_n": 64},
        {"dtype": "int8"},
        {"direction": "forward"},
        {"layout": "sparse"},
        {"softcap": float("nan")},
        {"softcap": 0.0},
        {"softcap": -1.0},
        {"window_left": -1},
        {"window_right": -1},
        {"seq_len": 64},
        {"seq_len_q": 64.5},
        {"seq_len_q": None},
    ],
    ids=str,
)
def test_impossible_cases_are_refused(changes: dict[str, Any]) -> None:
    """Heads that do not divide, half a tile, sizes below zero, unknown names: no such case can be made."""
    with pytest.raises(ValidationError):
        make(**changes)


def test_empty_tensors_are_cases() -> None:
    """Batch 0 and sequence length 0 are shapes like others."""
    assert make(batch=0).batch == 0
    assert make(seq_len_q=0, seq_len_k=0).seq_len_q == 0


def test_a_case_cannot_be_changed() -> None:
    """A key that changed under a dictionary would lose its row."""
    with pytest.raises(ValidationError):
        make().batch = 2  # type: ignore[misc]


def test_the_label_names_what_differs() -> None:
    """The short text has backend, direction, dtype, shape, and mask and tile where there are any."""
    case = make(backend="naive", variant="fill", batch=2, heads=8, kv_heads=2, seq_len_q=1, causal=True)
    assert case.label == "naive/fill fwd bf16 B2 H8/2 N1x64 d32 causal"
    assert make(tile_m=64, tile_n=128).label == "flash fwd bf16 B1 H1 N64 d32 tile 64x128"
    everything = {"window_left": 512, "window_right": 64, "softcap": 30, "bias": True, "sinks": True}
    case = make(**everything, alibi=True, layout="varlen", head_dim_v=16)
    assert case.label == (
        "flash fwd bf16 B1 H1 N64 d32/16 window 512 before, 64 after softcap 30 bias sinks alibi varlen"
    )


@given(st.lists(cases, max_size=20))
def test_blocks_hold_every_case_once_by_shape(some: list[Case]) -> None:
    """Blocks are a partition: one shape each, no case lost or doubled, first come first."""
    found = blocks(some)
    assert Counter(case for block in found for case in block) == Counter(some)
    shapes = [{case.shape_key for case in block} for block in found]
    assert all(len(shape) == 1 for shape in shapes)
    assert [block[0].shape_key for block in found] == list(dict.fromkeys(case.shape_key for case in some))


# -------------------------------------------------------------------------------------------- TOML files


def test_a_side_of_a_window_that_reaches_over_all_hides_nothing() -> None:
    """Left is held against the keys, right against the queries; a side that is absent stays so."""

    def hiding(**fields: Any) -> tuple[int | None, int | None]:
        return make(seq_len_q=64, seq_len_k=128, **fields).hiding_window

    assert hiding() == (None, None)
    assert hiding(window_left=127, window_right=63) == (127, 63)
    assert hiding(window_left=128, window_right=64) == (None, None)
    assert hiding(window_left=0, window_right=None) == (0, None)


# ------------------------------------------------------------------------------- operations over rows


def over_rows(**changes: Any) -> Case:
    """A loss of 10 rows of 100 classes, with some fields changed."""
    fields = {
        "operation": "cross_entropy",
        "backend": "online",
        "batch": 10,
        "seq_len_q": 1,
        "seq_len_k": 100,
    }
    return Case(**(fields | {"head_dim": 1, "head_dim_v": 1} | changes))


def test_a_label_of_rows_speaks_of_rows_and_classes() -> None:
    """The operation with its k, the rows, and the classes last: a case of attention has another label."""
    assert over_rows().label == "online cross-entropy fwd bf16 10 rows 100 classes"
    top = over_rows(operation="softmax_top_k", head_dim_v=8, direction="bwd")
    assert top.label == "online softmax top-k 8 bwd bf16 10 rows 100 classes"
    assert over_rows(batch=1, seq_len_k=1).label == "online cross-entropy fwd bf16 1 row 1 class"
    assert over_rows().shape_key != make(batch=10, seq_len_q=1, seq_len_k=100).shape_key


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": 2, "kv_heads": 2}, "heads is attention's: of cross_entropy it must be 1, got 2"),
        ({"seq_len_q": 2}, "seq_len_q is attention's"),
        ({"causal": True}, "causal is attention's: of cross_entropy it must be False, got True"),
        ({"window_left": 3}, "window_left is attention's: of cross_entropy it must be left out, got 3"),
        ({"layout": "paged"}, "layout is attention's"),
        ({"tile_m": 64, "tile_n": 64}, "tile_m is attention's"),
        ({"head_dim_v": 2}, "a row of cross_entropy has one loss"),
        ({"seq_len_k": 0}, "must have at least 1 class, got 0"),
        (
            {"operation": "softmax_top_k", "head_dim_v": 65},
            "k of softmax_top_k must be from 1 to 64 here, got 65",
        ),
        ({"operation": "softmax_top_k", "seq_len_k": 4, "head_dim_v": 5}, "from 1 to 4 here, got 5"),
    ],
)
def test_what_only_attention_has_is_refused_of_rows(changes: dict[str, Any], said: str) -> None:
    """The field, what it must be, and what it was."""
    with pytest.raises(ValidationError, match=re.escape(said)):
        over_rows(**changes)
