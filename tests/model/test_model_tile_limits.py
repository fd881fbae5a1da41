"""What a tile asks of a device: shared memory, registers, waves; by hand, and beside what a run showed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import Case, InputError
from profiling.devices import find_device
from profiling.model.memory import backward_sram_bytes
from profiling.model.tile_limits import register_bytes, sram_bytes, tile_limits
from profiling.paths import DATA_DIR
from profiling.store import load_run
from profiling.units import KIB

H200 = find_device("H200")


def make(**changes: Any) -> Case:
    """A dense case; `n` sets both lengths, `d` both widths."""
    n, d = changes.pop("n", 4096), changes.pop("d", 128)
    base: dict[str, Any] = {"backend": "flash", "dtype": "bf16", "heads": 16, "kv_heads": 16}
    base |= {"seq_len_q": n, "seq_len_k": n, "head_dim": d, "head_dim_v": d}
    return Case(**(base | changes))


def test_a_tile_by_hand() -> None:
    """128 x 128 at d = 128: Q, K and V of 32 KiB each; O and S of 64 KiB, P of 32; 512 blocks on 132 SMs."""
    found = tile_limits(make(), 128, 128, H200)
    assert found.est_sram_bytes == 96 * KIB
    assert found.sram_share == pytest.approx(96 / 227)
    assert found.est_register_bytes == 160 * KIB
    assert found.register_share == pytest.approx(160 / 256)
    assert found.blocks == 512
    assert found.waves == pytest.approx(512 / 132)
    assert found.last_wave_idle == pytest.approx(1 - (512 - 3 * 132) / 132)
    assert found.idle == pytest.approx(1 - 512 / (4 * 132))
    assert found.fits


def test_a_backward_tile_by_hand() -> None:
    """32 queries x 64 keys at d = 128: K, V of 32 KiB, Q, dO of 16; dK, dV of 64 KiB, P and dP of 16."""
    case = make(direction="bwd", kv_heads=4)
    assert sram_bytes(case, 32, 64) == 48 * KIB
    assert sram_bytes(case, 32, 64, stages=3) == 80 * KIB
    assert register_bytes(case, 32, 64) == 80 * KIB
    assert tile_limits(case, 32, 64, H200).blocks == 4 * 64  # a block owns keys of one KV head


def test_both_directions_need_the_larger() -> None:
    """`fwd_bwd` asks for what the hungrier of its directions does."""
    directions = [make(direction=each) for each in ("fwd", "bwd", "fwd_bwd")]
    forward, backward, both = ((sram_bytes(c, 64, 64), register_bytes(c, 64, 64)) for c in directions)
    assert both == (max(forward[0], backward[0]), max(forward[1], backward[1]))


def test_the_backwards_formula_is_what_triton_said() -> None:
    """Tiles of the committed sweep that did not fit name the bytes they needed: the formula gives them."""
    run = load_run(DATA_DIR / "samples" / "h200-tiles.jsonl")
    failed = [m for m in run.measurements if m.status == "unsupported" and m.case.direction == "bwd"]
    assert failed
    for m in failed:
        needed = backward_sram_bytes(m.case, m.case.tile_m or 0, m.case.tile_n or 0)
        assert f"shared memory of {needed} exceeds" in m.reason


def test_every_tile_that_did_not_fit_is_said_not_to() -> None:
    """No tile that the device refused is within the limits by formula."""
    run = load_run(DATA_DIR / "samples" / "h200-tiles.jsonl")
    failed = [m.case for m in run.measurements if m.status == "unsupported"]
    assert len(failed) == 4
    assert not any(tile_limits(c, c.tile_m or 0, c.tile_n or 0, H200).fits for c in failed)


def test_without_a_device_there_are_no_shares() -> None:
    """Bytes and blocks follow from the shape; shares and waves need the device, and nothing is refused."""
    found = tile_limits(make(), 128, 128, None)
    assert found.est_sram_bytes == 96 * KIB
    assert found.blocks == 512
    assert (found.sram_share, found.register_share, found.waves, found.last_wave_idle, found.idle) == (
        None,
    ) * 5
    assert found.fits


def test_few_queries_have_no_blocks_to_count() -> None:
    """Decoding divides keys between blocks: waves of query tiles would say nothing."""
    assert tile_limits(make(seq_len_q=1), 64, 64, H200).blocks is None
    assert tile_limits(make(n=64), 64, 64, H200).blocks == 16


@given(
    st.integers(1, 4096), st.sampled_from([16, 64, 128, 256]), st.sampled_from([16, 64, 256]), st.booleans()
)
def test_waves_hold_all_blocks(n: int, block_m: int, block_n: int, backward: bool) -> None:
    """What the last wave leaves idle and what all waves hold add up to whole waves."""
    case = make(n=n, direction="bwd" if backward else "fwd")
    found = tile_limits(case, block_m, block_n, H200)
    assert found.waves is not None
    assert found.last_wave_idle is not None
    assert 0 <= found.last_wave_idle < 1
    assert (found.waves + found.last_wave_idle) % 1 == pytest.approx(0, abs=1e-9) or (
        found.waves + found.last_wave_idle
    ) % 1 == pytest.approx(1, abs=1e-9)


def test_a_tile_of_nothing_is_refused() -> None:
    """A side below 1 is no tile."""
    with pytest.raises(InputError, match="at least 1, got 0 x 64"):
        tile_limits(make(), 0, 64, H200)
