"""Cases, sweeps, and what is refused of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
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
    Protocol,
    blocks,
    check_backend,
    split_backend,
    split_name,
)
from profiling.grid import Group, Sweep, load_sweep
from profiling.paths import DATA_DIR

SWEEPS = sorted((DATA_DIR / "sweeps").glob("*.toml"))


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


# ------------------------------------------------------------------------------------------------ sweeps


def test_a_group_is_the_product_of_its_axes() -> None:
    """Every combination is there once, whatever the number of axes; kv_heads and keys follow if not given."""
    group = Group(
        backends=("naive", "flash"),
        direction=("fwd", "bwd"),
        heads=(4, 8),
        seq_len=(64, 128, 256),
        causal=(False, True),
    )
    found = group.cases()
    assert len(found) == len(set(found)) == 2 * 2 * 2 * 3 * 2
    assert all(case.kv_heads == case.heads and case.seq_len_k == case.seq_len_q for case in found)


def test_only_backends_with_tiles_get_a_tile_axis() -> None:
    """A tile axis multiplies the portable kernels and tiled, and leaves the others one case each."""
    names = ("naive", "tiled", "flash", "flash_portable", "flash_hopper", "sdpa")
    group = Group(backends=names, seq_len=(64,), tile=((32, 32), (64, 128)))
    assert Counter(case.backend for case in group.cases()) == {
        **dict.fromkeys(("naive", "flash_hopper", "sdpa"), 1),
        **dict.fromkeys(("tiled", "flash", "flash_portable"), 2),
    }
    assert {(c.tile_m, c.tile_n) for c in group.cases() if c.backend == "naive"} == {(None, None)}


def test_the_longest_length_is_a_backends_own() -> None:
    """max_seq_len drops the longer cases of the backend it names, and of that variant alone."""
    group = Group(
        backends=("naive", "naive/fill", "flash"),
        seq_len=(64, 128, 256),
        max_seq_len={"naive": 128, "naive/fill": 0},
    )
    lengths = Counter((case.backend, case.variant) for case in group.cases())
    assert lengths == {("naive", ""): 2, ("flash", ""): 3}


def test_tokens_and_hidden_keep_the_work_of_a_layer() -> None:
    """batch · N and heads · d stay what they are at every N and d; KV heads follow, or are given."""
    group = Group(
        backends=("flash",), seq_len=(512, 4096), head_dim=(64, 128), kv_heads=(4,), tokens=8192, hidden=1024
    )
    found = {(c.seq_len_q, c.batch, c.head_dim, c.heads, c.kv_heads) for c in group.cases()}
    assert found == {(512, 16, 64, 16, 4), (512, 16, 128, 8, 4), (4096, 2, 64, 16, 4), (4096, 2, 128, 8, 4)}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokens": 1000}, "tokens must be a multiple of each seq_len, got 1000 and 512"),
        ({"tokens": 1024, "seq_len": (0,)}, "tokens must be a multiple of each seq_len, got 1024 and 0"),
        ({"hidden": 200}, "hidden must be a multiple of each head_dim, got 200 and 128"),
        ({"tokens": 1024, "batch": (2,)}, "tokens stands in place of batch"),
        ({"hidden": 1024, "heads": (4, 8)}, "hidden stands in place of heads"),
        ({"hidden": 1024, "kv_heads": (3,)}, "heads must be a multiple of kv_heads, got 8 and 3"),
    ],
)
def test_tokens_and_hidden_that_do_not_divide_are_refused(fields: dict[str, Any], said: str) -> None:
    """The message has both numbers; and neither may stand beside what it replaces."""
    with pytest.raises(ValueError, match=re.escape(said)):
        Group(**{"backends": ("flash",), "seq_len": (512,), **fields})


def test_keys_and_queries_are_axes_of_their_own() -> None:
    """With seq_len_k given, every query length meets every key length."""
    group = Group(backends=("flash",), seq_len=(1, 64), seq_len_k=(64, 128))
    assert {(c.seq_len_q, c.seq_len_k) for c in group.cases()} == {(1, 64), (1, 128), (64, 64), (64, 128)}


def test_a_case_of_two_groups_is_in_a_sweep_once() -> None:
    """Groups may overlap; the sweep holds each case once, at its first place."""
    one = Group(backends=("naive",), seq_len=(64, 128))
    two = Group(backends=("flash", "naive"), seq_len=(128, 256))
    sweep = Sweep(name="overlap", group=(one, two))
    assert [(c.backend, c.seq_len_q) for c in sweep.cases()] == [
        ("naive", 64), ("naive", 128), ("flash", 128), ("flash", 256), ("naive", 256)
    ]  # fmt: skip


def test_chosen_backends_keep_their_variant_alone() -> None:
    """`naive` keeps the plain one and not its variants; an unknown name is refused."""
    sweep = Sweep(name="s", group=(Group(backends=("naive", "naive/fill", "flash"), seq_len=(64,)),))
    assert [(c.backend, c.variant) for c in sweep.cases(["naive"])] == [("naive", "")]
    assert [(c.backend, c.variant) for c in sweep.cases(["naive/fill", "flash"])] == [
        ("naive", "fill"),
        ("flash", ""),
    ]
    assert sweep.cases([]) == []
    with pytest.raises(InputError, match="unknown backend 'nave'"):
        sweep.cases(["nave"])


@given(st.lists(cases, max_size=20))
def test_blocks_hold_every_case_once_by_shape(some: list[Case]) -> None:
    """Blocks are a partition: one shape each, no case lost or doubled, first come first."""
    found = blocks(some)
    assert Counter(case for block in found for case in block) == Counter(some)
    shapes = [{case.shape_key for case in block} for block in found]
    assert all(len(shape) == 1 for shape in shapes)
    assert [block[0].shape_key for block in found] == list(dict.fromkeys(case.shape_key for case in some))


# -------------------------------------------------------------------------------------------- TOML files


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_committed_sweeps_load(path: Path) -> None:
    """Each sweep in data/sweeps is named as its file, has cases, and survives the header of a run."""
    sweep = load_sweep(path)
    assert sweep.name == path.stem
    assert sweep.cases()
    assert Sweep.model_validate(sweep.model_dump(mode="json")) == sweep


def test_the_peers_sweep_is_the_layer_of_the_papers() -> None:
    """16384 tokens, hidden 2048: each width, N, mask and direction has ours and SDPA's on one shape."""
    found = load_sweep(DATA_DIR / "sweeps" / "peers.toml").cases()
    layer = [case for case in found if case.batch * case.seq_len_q == 16384]
    assert all(case.heads * case.head_dim == 2048 and case.dtype == "bf16" for case in layer)
    for block in blocks(layer):
        ran = {case.backend for case in block}
        assert ran >= {"flash", "flash_portable", "flash_hopper", "sdpa_flash", "sdpa_cudnn"}
        assert ran >= {f"profiling.measure.peers:fa{n}" for n in (2, 3, 4)}
        assert ("naive" in ran) == (block[0].seq_len_q <= 2048)
    shapes = {(c.direction, c.head_dim, c.seq_len_q, c.causal) for c in layer}
    assert len(shapes) == 2 * 3 * 4 * 2
    assert {c.direction for c in layer if c.variant} == {"bwd"}
    small = [case for case in found if case not in layer]
    assert {(c.batch * c.heads, c.seq_len_q) for c in small} == {(16, 128), (16, 256), (16, 512)}


def test_the_standard_sweep_asks_the_main_question() -> None:
    """It spans N 64 to 16384 with batch and heads fixed along N, both masks, both directions, bf16."""
    found = load_sweep(DATA_DIR / "sweeps" / "standard.toml").cases()
    flash = [case for case in found if case.backend == "flash"]
    assert {case.seq_len_q for case in flash} >= {64 << i for i in range(9)}
    assert {case.head_dim for case in flash} == {64, 128, 256}
    assert {(case.direction, case.causal) for case in flash} == {
        (direction, causal) for direction in ("fwd", "bwd") for causal in (False, True)
    }
    series = {(c.batch, c.heads, c.head_dim, c.direction, c.causal): set() for c in flash}
    for c in flash:
        series[c.batch, c.heads, c.head_dim, c.direction, c.causal].add(c.seq_len_q)
    assert len({frozenset(lengths) for lengths in series.values()}) == 1
    assert {case.dtype for case in found} == {"bf16"}
    assert max(case.seq_len_q for case in found if case.backend == "tiled") <= 1024


GOOD = 'name = "s"\n[[group]]\nbackends = ["naive"]\nseq_len = [64]\n'


def refused(tmp_path: Path, text: str | bytes) -> str:
    """What `load_sweep` says of this file, without the file's own name."""
    path = tmp_path / "s.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as caught:
        load_sweep(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_the_smallest_sweep_loads(tmp_path: Path) -> None:
    """A name and a group with backends and lengths are enough."""
    path = tmp_path / "s.toml"
    path.write_text(GOOD, encoding="utf-8")
    assert load_sweep(path).protocol == Protocol()
    assert [case.label for case in load_sweep(path).cases()] == ["naive fwd bf16 B1 H16 N64 d128"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "not valid TOML: Invalid value (at"),
        (b"\xff\xfe", "not valid TOML"),
        ("x = " + "[" * 5000, "not valid TOML: brackets nested too deeply"),
        ("", "name: Field required (and 1 more)"),
        (GOOD.replace('"s"', '"Not a name"'), "name: String should match pattern"),
        (GOOD.replace("naive", "navie"), "group.0.backends: unknown backend 'navie': must be one of naive"),
        (GOOD.replace("naive", "sdpa/add"), "group.0.backends: backend 'sdpa' has no variants"),
        (GOOD.replace("[64]", "[64, -1]"), "group.0.seq_len.1: Input should be greater than or equal to 0"),
        (GOOD.replace("[64]", "64"), "group.0.seq_len: Input should be a valid"),
        (GOOD.replace("[64]", '["long"]'), "group.0.seq_len.0: Input should be a valid integer"),
        (GOOD + "heads = [0]\n", "group.0.heads.0: Input should be greater than or equal to 1"),
        (GOOD + "head_dim = [0]\n", "group.0.head_dim.0: Input should be greater than or equal to 1"),
        (GOOD + "batch = [-1]\n", "group.0.batch.0: Input should be greater than or equal to 0"),
        (
            GOOD + "heads = [8, 6]\nkv_heads = [4]\n",
            "group.0: heads must be a multiple of kv_heads, got 6 and 4",
        ),
        (
            GOOD + "window = [[-1, 0]]\n",
            'group.0.window.0: a window must be [left, right], each a whole number of at least 0 or "none"',
        ),
        (GOOD + "window = [[512]]\n", "group.0.window.0: a window must be [left, right], each"),
        (GOOD + "window = [512]\n", "group.0.window.0: a window must be [left, right], each"),
        (GOOD + "window = [[0.5, 0]]\n", "group.0.window.0: a window must be [left, right], each"),
        (GOOD + "window = [[true, 0]]\n", "group.0.window.0: a window must be [left, right], each"),
        (
            GOOD + "causal = [false, true]\nwindow = [[8, 64]]\n",
            "group.0: a causal case's window_right must be 0 or left out (it sees no later key), got 64",
        ),
        (GOOD + "softcap = [-1]\n", "group.0.softcap.0: Input should be greater than or equal to 0"),
        (GOOD + "softcap = [inf]\n", "group.0.softcap.0: Input should be a finite number"),
        (GOOD + "bias = ['yes please']\n", "group.0.bias.0: Input should be a valid boolean"),
        (GOOD + "layout = ['ragged']\n", "group.0.layout.0: Input should be 'dense', 'varlen' or 'paged'"),
        (GOOD + "head_dim_v = [0]\n", "group.0.head_dim_v.0: Input should be greater than or equal to 1"),
        (GOOD + "tile = [[64]]\n", "group.0.tile.0.1: Field required"),
        (GOOD + "tile = [[64, 0]]\n", "group.0.tile.0.1: Input should be greater than or equal to 1"),
        (
            GOOD + "max_seq_len = {flash = 64}\n",
            "group.0: max_seq_len names 'flash': must be one of this group's",
        ),
        (GOOD + "dtypes = ['bf16']\n", "group.0.dtypes: Extra inputs are not permitted"),
        (GOOD + "dtype = ['int8']\n", "group.0.dtype.0: Input should be 'fp16', 'bf16', 'fp32' or 'fp64'"),
        (
            "[protocol]\nclocks = ['sundial']\n" + GOOD,
            "protocol.clocks.0: Input should be 'wall', 'pipelined'",
        ),
        ("[protocol]\nclocks = []\n" + GOOD, "protocol.clocks: Tuple should have at least 1 item"),
        ("[protocol]\nclocks = ['wall', 'wall']\n" + GOOD, "protocol.clocks: each clock must be named once"),
        ("[protocol]\nrounds = 0\n" + GOOD, "protocol.rounds: Input should be greater than or equal to 1"),
        ("[protocol]\nwarmup_ms = inf\n" + GOOD, "protocol.warmup_ms: Input should be a finite number"),
        ("[protocol]\ntimeout_s = nan\n" + GOOD, "protocol.timeout_s: Input should be"),
    ],
)
def test_a_wrong_file_gets_one_sentence(tmp_path: Path, text: str | bytes, said: str) -> None:
    """The sentence says where in the file, and what is allowed there."""
    if isinstance(text, str) and text.startswith("[protocol]"):  # TOML wants plain keys before tables
        text = 'name = "s"\n' + text.replace('name = "s"\n', "")
    assert refused(tmp_path, text).startswith(said)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A path that is not there, or is a folder, is refused with its name."""
    with pytest.raises(InputError, match=r"nowhere\.toml: no such sweep file"):
        load_sweep(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load_sweep(tmp_path)


sizes = st.lists(st.integers(-1, 6), max_size=3)


@given(sizes, sizes, sizes, sizes, st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64)), max_size=2))
def test_whatever_loads_can_be_expanded(
    heads: list[int], kv_heads: list[int], batch: list[int], seq_len: list[int], tile: list[tuple[int, int]]
) -> None:
    """A group that is taken never fails later: its axes are checked, alone and together, on loading."""
    axes: Any = {"heads": heads, "kv_heads": kv_heads, "batch": batch, "seq_len": seq_len, "tile": tile}
    try:
        group = Group(backends=("naive", "flash"), **axes)
    except ValidationError:
        return
    n = len(heads) * (len(kv_heads) or 1) * len(batch) * len(seq_len)
    assert len(group.cases()) == n + n * (len(tile) or 1)


def test_a_side_of_a_window_that_reaches_over_all_hides_nothing() -> None:
    """Left is held against the keys, right against the queries; a side that is absent stays so."""

    def hiding(**fields: Any) -> tuple[int | None, int | None]:
        return make(seq_len_q=64, seq_len_k=128, **fields).hiding_window

    assert hiding() == (None, None)
    assert hiding(window_left=127, window_right=63) == (127, 63)
    assert hiding(window_left=128, window_right=64) == (None, None)
    assert hiding(window_left=0, window_right=None) == (0, None)
