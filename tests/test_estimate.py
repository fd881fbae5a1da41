"""`flashscope estimate`: the numbers and the words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from profiling.case import Case, InputError
from profiling.devices import catalogue, find_device
from profiling.estimate import estimate, estimate_text
from profiling.model.traffic import traffic
from profiling.units import GIB, GROUP, MIB

H200 = find_device("H200")


def make(**changes: Any) -> Case:
    """The chapter's case: batch 8, heads 32, N 8192, d 128, fp32."""
    base = {"backend": "flash", "dtype": "fp32", "batch": 8, "heads": 32, "kv_heads": 32}
    base |= {"seq_len_q": 8192, "seq_len_k": 8192, "head_dim": 128, "head_dim_v": 128}
    return Case(**(base | changes))


def line(text: str, start: str) -> str:
    """The one line of `text` that begins with `start`, its columns one space apart."""
    rows = [re.sub(" +", " ", row.strip()) for row in text.splitlines()]
    (found,) = [row for row in rows if row.startswith(start)]
    return found


def test_the_chapters_case() -> None:
    """256 MiB for one head's score matrix, 64 GiB for all heads', and the four series.

    Tiles of 128 x 64 in fp32 hold 17 MB of queries and outputs beside the keys in flight, and lose some of
    those; with the 32 x 32 of `flash` in fp32 DRAM sees 1 % more than the compulsory bytes.
    """
    result = estimate(make(), H200)
    assert result.scores == (256 * MIB, 64 * GIB)
    text = estimate_text(result)
    assert line(text, "one head") == "one head 256 MiB"
    assert line(text, "all heads") == "all heads 64 GiB"
    assert line(text, "naive 281").startswith("naive 281 GB eager (add)")
    assert line(text, "tile").startswith("tile 140 GB naive moves 2.02×")
    assert line(text, "dram").startswith("dram 5.19 GB naive moves 54.2×")
    narrow = estimate_text(estimate(make(), H200, block_m=32, block_n=32))
    assert line(narrow, "dram").startswith("dram 4.34 GB naive moves 64.8×")
    assert line(text, "compulsory").startswith("compulsory 4.3 GB")


def test_it_says_what_it_is_and_for_what() -> None:
    """The text opens with 'modelled', and names shape, device, tile and direction."""
    text = estimate_text(estimate(make(), H200))
    assert text.startswith("Modelled, not measured")
    assert f"batch 8, heads 32, N 8{GROUP}192, d 128, fp32, forward, no mask" in text
    assert "Device H200: 132 SMs, L2 60 MiB, DRAM 4.8 TB/s, SRAM 227 KiB a block" in re.sub(" +", " ", text)
    assert "128 x 64 (queries x keys)" in line(text, "Tile")
    assert "Bytes moved, forward: four models, modelled" in text


def test_numbers_are_the_models() -> None:
    """The structured result holds what `traffic` gives for the same tile and variant."""
    case = make(direction="bwd", causal=True, dtype="bf16", kv_heads=4)
    result = estimate(case, H200, block_m=32, block_n=64, variant="fp32_softmax")
    assert result.moved == traffic(case, H200, block_m=32, block_n=64, variant="fp32_softmax")
    text = estimate_text(result)
    assert "32 x 64 (queries x keys) in the dK/dV kernel" in text
    assert "(KV heads 4)" in text
    assert "backward, causal" in text
    assert "naive/fp32_softmax" in text


def test_one_side_of_a_tile_may_be_given() -> None:
    """The other side is the default's, or that of the tile the case asks for."""
    assert estimate(make(), H200, block_m=32)[2:4] == (32, 64)
    assert estimate(make(), H200, block_n=32)[2:4] == (128, 32)
    assert estimate(make(direction="bwd"), H200)[2:4] == (64, 128)
    assert estimate(make(tile_m=16, tile_n=8), H200, block_m=32)[2:4] == (32, 8)


def test_a_tile_beyond_sram_is_said() -> None:
    """M of the device is set against the tile's bill, in the forward."""
    text = estimate_text(estimate(make(), H200, block_m=512))
    assert "320 KiB of SRAM: more than the 227 KiB a block can use" in text


@pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("name", list(catalogue()))
def test_every_device_of_the_catalogue(name: str, direction: str) -> None:
    """What the catalogue does not know is said in words; no text shows a None or a NaN."""
    text = estimate_text(estimate(make(direction=direction, seq_len_q=100), find_device(name)))
    assert not re.search(r"\bNone\b|\bnan\b", text)
    assert all(row == row.rstrip() for row in text.splitlines())
    if find_device(name).cache_bytes is None:
        assert "the catalogue has no cache size" in text


@pytest.mark.parametrize("changes", [{"batch": 0}, {"seq_len_q": 0}, {"seq_len_k": 0}, {"seq_len_q": 1}])
def test_empty_and_tiny_cases(changes: dict[str, Any]) -> None:
    """Nothing to move is 0 B, without a ratio to it; one query works."""
    assert "Modelled" in estimate_text(estimate(make(**changes), H200))


def test_what_cannot_be_estimated_is_refused() -> None:
    """A tile without a side, an unknown variant and a window each get a sentence."""
    with pytest.raises(InputError, match="at least 1"):
        estimate(make(), H200, block_m=0)
    with pytest.raises(InputError, match="unknown variant"):
        estimate(make(), H200, variant="magic")
    with pytest.raises(InputError, match="modelled for dense"):
        estimate(make(window_left=1), H200)
