"""The table of tiles, its pruning to a GPU, and what becomes of a tile that the caller asks for."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fa_core.kernels import tuning
from fa_core.kernels.tuning import Gpu, TileConfig

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CPU = torch.device("cpu")
A100 = Gpu(163 * 1024, (8, 0))
H200 = Gpu(227 * 1024, (9, 0))
B200 = Gpu(227 * 1024, (10, 0))
GEFORCE = Gpu(99 * 1024, (8, 9))
RTX5090 = Gpu(99 * 1024, (12, 0))
GPUS = (A100, H200, B200, GEFORCE, RTX5090)
CELLS = list(itertools.product(tuning.KERNELS, DTYPES, (1, 16, 40, 64, 65, 96, 128, 200, 256), (False, True)))


@pytest.fixture
def on(monkeypatch):
    """A function that puts a GPU behind every device."""
    monkeypatch.setattr(tuning, "finder", None)
    return lambda target: monkeypatch.setattr(tuning, "gpu", lambda device: target)


def test_every_cell_of_the_table_holds_a_tile_that_a_matrix_instruction_takes():
    """Each kernel, dtype, head, mask and GPU has one: powers of two from 16 on, four or eight warps."""
    for (kernel, dtype, head_dim, masked), target in itertools.product(CELLS, (None, *GPUS)):
        m, n, warps, stages = tuning.seeded_config(kernel, head_dim, dtype, masked, target)
        assert m & (m - 1) == n & (n - 1) == 0
        assert min(m, n) >= 16
        assert warps in (4, 8)
        assert 1 <= stages <= 3


def test_heads_share_a_tile_with_those_of_the_same_padded_size():
    """What a head of 65 is padded to decides, not 65; below 64 all are as 64."""
    for kernel, dtype, masked in itertools.product(tuning.KERNELS, DTYPES, (False, True)):
        tiles = [tuning.seeded_config(kernel, d, dtype, masked, A100) for d in (1, 64, 65, 128)]
        assert tiles[0] == tiles[1]
        assert tiles[2] == tiles[3]


def test_only_the_generation_at_hand_counts():
    """Without a GPU the table is the H200's; another generation may have tiles of its own."""
    for kernel, dtype, head_dim, masked in CELLS:
        plain = tuning.seeded_config(kernel, head_dim, dtype, masked)
        assert tuning.seeded_config(kernel, head_dim, dtype, masked, H200) == plain
    there = tuning.seeded_config("forward", 64, torch.float32, False, B200)
    assert there != tuning.seeded_config("forward", 64, torch.float32, False)


def test_without_a_gpu_the_table_is_taken_as_it_is():
    """On a CPU (under the interpreter) no tile is too large, and nothing is looked up."""
    for kernel, dtype, head_dim, masked in CELLS:
        assert tuning.choose(kernel, head_dim, dtype, masked, CPU, 4096) == tuning.seeded_config(
            kernel, head_dim, dtype, masked
        )


@pytest.mark.parametrize(
    "target", GPUS, ids=lambda target: f"sm_{target.capability[0]}{target.capability[1]}"
)
def test_what_is_chosen_fits_the_shared_memory(on, target):
    """On every GPU, with and without a bias, down to 99 KiB."""
    on(target)
    for kernel, dtype, head_dim, masked in CELLS:
        for bias_bytes in (0, 4):
            tile = tuning.choose(kernel, head_dim, dtype, masked, CPU, 4096, bias_bytes=bias_bytes)
            needed = tuning.shared_bytes(tile, kernel, head_dim, dtype, target, bias_bytes=bias_bytes)
            assert needed <= target.shared_bytes


def test_on_the_gpu_of_the_table_nothing_is_pruned(on):
    """The table was found on an H200: its tiles run there as they stand."""
    on(H200)
    for kernel, dtype, head_dim, masked in CELLS:
        seeded = tuning.seeded_config(kernel, head_dim, dtype, masked)
        assert tuning.choose(kernel, head_dim, dtype, masked, CPU, 4096) == seeded


def test_stages_go_first_then_keys_then_rows():
    """A tile gives up what costs least: its stages, then its keys, and its rows last."""
    start = TileConfig(128, 128, 8, 3)
    seen = [
        tuning.fit(start, "forward", 128, torch.bfloat16, Gpu(kib * 1024, (9, 0)))
        for kib in range(240, 8, -1)
    ]
    assert seen[0] == start
    steps = [(-tile.num_stages, -tile.block_n, -tile.block_m) for tile in seen]
    assert steps == sorted(steps)
    assert {tile.block_n for tile in seen if tile.num_stages > 1} == {128}
    assert {tile.block_m for tile in seen if tile.block_n > 16} == {128}
    assert seen[-1].block_m < 128


@given(
    st.sampled_from(tuning.KERNELS),
    st.sampled_from(DTYPES),
    st.sampled_from((16, 64, 128, 256)),
    st.sampled_from((16, 32, 64, 128, 256)),
    st.sampled_from((16, 32, 64, 128, 256)),
    st.sampled_from(GPUS),
)
def test_an_asked_tile_keeps_its_blocks(kernel, dtype, head_dim, block_m, block_n, target):
    """Whatever the GPU: only stages are given up, and what cannot run is left to be refused."""
    asked = tuning.requested_config(block_m, block_n, tuning.seeded_config(kernel, head_dim, dtype, False))
    tile = tuning.fit(asked, kernel, head_dim, dtype, target, keep_blocks=True)
    assert tile[:3] == asked[:3]
    assert tile.num_stages <= asked.num_stages
    fits = tuning.shared_bytes(tile, kernel, head_dim, dtype, target) <= target.shared_bytes
    assert fits or tile.num_stages == 1


def test_choose_honours_an_asked_tile(on):
    """A tile of the caller's choice comes back with its own blocks, autotuned or not."""
    on(A100)
    tile = tuning.choose("forward", 256, torch.bfloat16, True, CPU, 64, asked=(128, 128))
    assert (tile.block_m, tile.block_n) == (128, 128)
    assert tuning.choose("forward", 64, torch.bfloat16, True, CPU, 64, asked=(16, 32))[:2] == (16, 32)


def test_fp32_counts_double_where_it_is_computed_in_fp64():
    """A GPU with fast fp64 widens fp32 operands; one for graphics keeps them."""
    tile = TileConfig(32, 32, 4, 1)
    narrow = tuning.shared_bytes(tile, "forward", 128, torch.float32, Gpu(A100.shared_bytes, (8, 6)))
    assert tuning.shared_bytes(tile, "forward", 128, torch.float32, A100) > 1.9 * narrow


def test_a_found_tile_goes_before_the_table(on, monkeypatch):
    """What the finder knows is taken, still pruned; else the table's. On a CPU it is not asked."""
    on(H200)
    calls = []
    answer: TileConfig | None = TileConfig(32, 16, 4, 2)
    monkeypatch.setattr(tuning, "finder", lambda *call: calls.append(call) or answer)

    def choose():
        return tuning.choose("dq", 64, torch.float16, True, CPU, 100)

    assert choose() == TileConfig(32, 16, 4, 2)
    assert calls == [("dq", 64, torch.float16, True, CPU, 100)]
    answer = TileConfig(256, 256, 8, 3)
    assert choose().num_stages < 3
    answer = None
    seeded = tuning.seeded_config("dq", 64, torch.float16, True)
    assert choose() == seeded
    on(None)
    answer = TileConfig(32, 16, 4, 2)
    assert choose() == seeded
    assert len(calls) == 3


def test_a_tile_can_be_named_without_triton():
    """The dashboard and the catalogue of tiles need no compiler."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from fa_core import autotune; from fa_core.kernels import tuning\n"
        "print(*tuning.choose('forward', 64, torch.float16, False, torch.device('cpu'), 1)[:2])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["64", "64"]
