"""Sweeps: groups of axes and the cases they make, files, and what is refused of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from profiling.case import InputError, Protocol, blocks
from profiling.grid import Group, Sweep, load_sweep
from profiling.paths import DATA_DIR

SWEEPS = sorted((DATA_DIR / "sweeps").glob("*.toml"))

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


# ------------------------------------------------------------------------------- operations over rows

ROWS = {"operation": "softmax_top_k", "backends": ("naive", "online"), "rows": (10, 20), "classes": (4, 8)}


def test_a_group_of_rows_is_the_product_of_its_own_axes() -> None:
    """Rows, classes and k are batch, keys and the width of what comes out; the rest is one."""
    found = Group.model_validate(ROWS | {"top_k": (2,), "direction": ("fwd", "bwd")}).cases()
    assert len(found) == 16
    assert {(c.batch, c.seq_len_k, c.head_dim_v) for c in found} == {
        (rows, classes, 2) for rows in (10, 20) for classes in (4, 8)
    }
    assert {(c.operation, c.heads, c.kv_heads, c.seq_len_q, c.head_dim) for c in found} == {
        ("softmax_top_k", 1, 1, 1, 1)
    }
    assert len(blocks(found)) == 8


def test_the_most_classes_are_a_backends_own() -> None:
    """`max_classes` leaves out what one backend is not to be asked."""
    group = Group.model_validate(ROWS | {"top_k": (2,), "max_classes": {"naive": 4}})
    assert {c.seq_len_k for c in group.cases() if c.backend == "naive"} == {4}
    assert {c.seq_len_k for c in group.cases() if c.backend == "online"} == {4, 8}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top_k": (2,), "seq_len": (1,)}, "seq_len is no axis of softmax_top_k"),
        ({"top_k": (2,), "causal": (True,)}, "causal is no axis of softmax_top_k"),
        ({}, "top_k must be given"),
        ({"top_k": (2,), "rows": ()}, "rows must be given"),
        ({"top_k": (2,), "backends": ("flash",)}, "backend 'flash' does not take softmax_top_k"),
        ({"top_k": (2,), "backends": ("naive/add",)}, "backend 'naive' has no variants for softmax_top_k"),
        ({"operation": "cross_entropy", "top_k": (2,)}, "top_k is of softmax_top_k alone"),
        ({"operation": "attention", "backends": ("naive",)}, "rows is no axis of attention"),
        ({"top_k": (2,), "max_classes": {"flash": 4}}, "max_classes names 'flash'"),
    ],
)
def test_axes_of_another_operation_are_refused(changes: dict[str, Any], said: str) -> None:
    """What the operation has not, and what it lacks, is named."""
    with pytest.raises(ValidationError, match=re.escape(said)):
        Group.model_validate(ROWS | changes)
