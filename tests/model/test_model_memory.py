"""Laws of memory: published tables, closed forms, and edges (against PyTorch: test_model_naive)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.case import Case
from profiling.devices import find_device
from profiling.model.memory import (
    forward_sram_bytes,
    input_bytes,
    largest_seq_len,
    peak_bytes,
    retained_bytes,
    score_matrix_bytes,
)
from profiling.paths import DATA_DIR
from profiling.store import load_run
from profiling.units import GIB, KIB, MIB


def make(**changes: Any) -> Case:
    """A dense case; `n` sets both lengths, `d` both widths, `h` heads and KV heads."""
    base: dict[str, Any] = {"backend": "flash", "dtype": "fp16", "batch": 1}
    n, d, h = changes.pop("n", 1024), changes.pop("d", 64), changes.pop("h", 2)
    base |= {"seq_len_q": n, "seq_len_k": n, "head_dim": d, "head_dim_v": d, "heads": h, "kv_heads": h}
    return Case(**(base | changes))


def test_the_chapters_score_matrix() -> None:
    """B=8 H=32 N=8192 fp32: 256 MiB a head, 64 GiB for all; half of both in 16 bits."""
    case = make(n=8192, d=128, h=32, batch=8, dtype="fp32")
    assert score_matrix_bytes(case) == (256 * MIB, 64 * GIB)
    assert score_matrix_bytes(case.model_copy(update={"dtype": "bf16"})) == (128 * MIB, 32 * GIB)


def test_flash_holds_no_score() -> None:
    """Forward: output and two numbers a row. With a backward: also delta and the three gradients."""
    case = make(n=3000, d=80, h=6, kv_heads=2, batch=2)
    out, row, kv = 12 * 3000 * 80 * 2, 12 * 3000 * 4, 2 * 4 * 3000 * 80 * 2
    assert peak_bytes(case) == retained_bytes(case) == out + 2 * row
    for direction in ("bwd", "fwd_bwd"):
        case = case.model_copy(update={"direction": direction})
        assert peak_bytes(case) == 2 * out + 3 * row + kv
        assert retained_bytes(case) == out + 2 * row


def test_what_every_name_of_flash_holds() -> None:
    """A forward leaves the same; `flash_hopper` holds no statistics where no backward follows.

    The backward of `flash_hopper` has two fp32 numbers a padded query for delta's one, and dQ's fp32 sum.

    At d = 80 a head is padded to 128 and steps have 64 queries; where dQ has a kernel of its own, at d = 256
    or by the variant, there is no sum.
    """
    case = make(n=1000, d=80, h=6, batch=2)
    for name, statistics in (("flash_portable", 2), ("flash_hopper", 0)):
        held = 2 * 6 * 1000 * (80 * 2 + 4 * statistics)
        assert peak_bytes(case.model_copy(update={"backend": name})) == held
        assert retained_bytes(case.model_copy(update={"backend": name})) == retained_bytes(case)

    def backward(name: str, **changes: Any) -> int:
        peak = peak_bytes(case.model_copy(update={"backend": name, "direction": "bwd", **changes}))
        assert peak is not None
        return peak

    delta, queries = 4 * 12 * 1000, 12 * 1024
    assert backward("flash_portable") == backward("flash")
    assert backward("flash_hopper") == backward("flash") - delta + 4 * queries * (2 + 128)
    split = backward("flash_hopper", variant="deterministic")
    assert split == backward("flash") - delta + 4 * queries * 2
    wide = {"head_dim": 256, "head_dim_v": 256}
    assert backward("flash_hopper", **wide) == backward("flash", **wide) - delta + 4 * queries * 2


def test_eager_holds_two_score_matrices_and_four_backward() -> None:
    """Large N, no mask: S and P in the forward; P, dP and dS in the backward, and on CUDA their product."""
    case = make(backend="naive", n=8192, d=16)
    scores = score_matrix_bytes(case).all_heads
    assert peak_bytes(case) == pytest.approx(2 * scores, rel=0.01)
    backward = case.model_copy(update={"direction": "bwd"})
    assert peak_bytes(backward, "cpu") == pytest.approx(3 * scores, rel=0.01)
    assert peak_bytes(backward) == pytest.approx(4 * scores, rel=0.01)
    assert retained_bytes(case) == pytest.approx(scores, rel=0.01)


def test_the_eager_law_is_what_an_h200_measured() -> None:
    """Peaks of h200-standard, forward and backward, d = 64 to 256, from N = 4096 on: the law within 1 %."""
    run = load_run(DATA_DIR / "samples" / "h200-standard.jsonl")
    held = {
        row.case: row.peak_mem_bytes
        for row in run.measurements
        if row.case.backend == "naive" and row.case.seq_len_q >= 4096 and row.peak_mem_bytes is not None
    }
    assert {(case.direction, case.head_dim) for case in held} == {
        (direction, d) for direction in ("fwd", "bwd") for d in (64, 128, 256)
    }
    for case, measured in held.items():
        assert peak_bytes(case) == pytest.approx(measured, rel=0.01)


def test_half_is_widened_inside_the_softmax() -> None:
    """On CUDA fp16 skips bf16's separate fp32 copy of the scores: 8 bytes a score held instead of 10."""
    half, brain = (
        peak_bytes(make(backend="naive", variant="fp32_softmax", n=8192, d=16, dtype=dtype))
        for dtype in ("fp16", "bf16")
    )
    assert half is not None
    assert brain is not None
    assert half / (2 * 8192**2) == pytest.approx(8, rel=0.01)
    assert brain / (2 * 8192**2) == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("backend", ["sdpa", "sdpa_cudnn", "naive_compiled", "tiled", "module:function"])
def test_other_peoples_tensors_are_not_guessed(backend: str) -> None:
    """A backend whose tensors are not ours to know has no law."""
    case = make(backend=backend)
    assert peak_bytes(case) is None
    assert retained_bytes(case) is None
    assert largest_seq_len(case, GIB) is None


def test_a_window_is_outside_the_laws() -> None:
    """No law is stretched to what it does not describe."""
    assert peak_bytes(make(backend="naive", window_left=5)) is None
    assert retained_bytes(make(window_left=5)) is None


def test_keys_divided_between_programs_are_outside_the_laws() -> None:
    """Few queries and many keys: what `flash` holds then depends on the device. Eager does not divide."""
    decode = make(n=1).model_copy(update={"seq_len_k": 4096})
    assert peak_bytes(decode) is None
    assert peak_bytes(decode.model_copy(update={"backend": "naive"})) is not None
    assert peak_bytes(decode.model_copy(update={"seq_len_k": 500})) is not None


def test_inputs() -> None:
    """q, k, v; and dO where there is a backward."""
    case = make(n=10, d=8, h=4, kv_heads=2)
    assert input_bytes(case) == (4 + 2 + 2) * 10 * 8 * 2
    assert input_bytes(case.model_copy(update={"direction": "bwd"})) == (4 + 2 + 2 + 4) * 10 * 8 * 2


@given(
    backend=st.sampled_from(["naive", "flash"]),
    direction=st.sampled_from(["fwd", "bwd"]),
    memory=st.integers(0, 2**37),
    causal=st.booleans(),
)
def test_the_largest_length_fits_and_the_next_does_not(
    backend: str, direction: str, memory: int, causal: bool
) -> None:
    """At the returned N inputs and peak fit; at N + 1 they do not."""
    case = make(backend=backend, direction=direction, causal=causal)
    n = largest_seq_len(case, memory)
    assert n is not None
    for length, fits in ((n, True), (n + 1, False)):
        longer = case.model_copy(update={"seq_len_q": length, "seq_len_k": length})
        peak = peak_bytes(longer)
        assert peak is not None
        if length:
            assert (peak + input_bytes(longer) <= memory) == fits


def test_flash_reaches_further_than_eager() -> None:
    """On the H200's memory, at 16 heads and d=128, eager ends near 50 000 keys, flash in the millions."""
    memory = find_device("H200").memory_bytes
    assert memory is not None
    naive, flash = (largest_seq_len(make(backend=b, d=128, h=16), memory) for b in ("naive", "flash"))
    assert naive is not None
    assert flash is not None
    assert 40_000 < naive < 60_000
    assert flash > 5_000_000


def test_a_case_without_heads_never_fills_memory() -> None:
    """An empty batch has no largest N."""
    assert largest_seq_len(make(batch=0), GIB) is None


@pytest.mark.parametrize(
    ("d", "block_m", "block_n", "stages", "kib"),
    [
        (64, 128, 128, 1, 48),
        (128, 128, 64, 1, 64),
        (128, 128, 32, 1, 48),
        (256, 64, 64, 1, 96),
        (64, 128, 64, 2, 48),
    ],
)
def test_sram_of_a_forward_tile(d: int, block_m: int, block_n: int, stages: int, kib: int) -> None:
    """Q and each stage of K and V, as FlashAttention-2's launch templates state for their tiles."""
    assert forward_sram_bytes(make(d=d), block_m, block_n, stages) == kib * KIB
