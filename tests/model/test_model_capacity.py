"""What attention holds as a whole: the chapter's case, sums over layers, and what fits."""

from __future__ import annotations

import pytest

from profiling.model.capacity import (
    BACKENDS,
    CHAPTER,
    TENSORS,
    Workload,
    largest_seq_len,
    tensors,
    total_bytes,
)
from profiling.model.memory import input_bytes, peak_bytes, peak_tensors, retained_bytes

GIB = 2**30
# Grouped heads, half precision, a mask: what the chapter's case has none of.
GROUPED = Workload(2, 8, 2, 1024, 64, "bf16", layers=3, causal=True)


def test_the_chapters_case() -> None:
    """S and P of 256 heads are 128 GiB in fp32, q, k, v and O a GiB each; flash holds no N x N tensor."""
    naive, flash = (tensors(CHAPTER, name) for name in BACKENDS)
    scores = 8 * 32 * 8192 * 8192 * 4
    assert naive["S, scores"] == naive["P, probabilities"] == scores == 64 * GIB
    assert naive["K, V"] == 2 * GIB
    assert naive["Q"] == GIB
    assert flash == {"K, V": 2 * GIB, "Q": GIB, "O": GIB, "row statistics": 2 * 8 * 8 * 32 * 8192}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("load", [CHAPTER, GROUPED._replace(layers=1), Workload(1, 1, 1, 1, 1, "fp16")])
def test_one_layer_is_a_call_with_its_inputs(load: Workload, training: bool, backend: str) -> None:
    """For one layer the total is the call's peak and its inputs."""
    load = load._replace(training=training)
    case = load.case(backend)
    assert total_bytes(load, backend) == peak_bytes(case) + input_bytes(case)  # type: ignore[operator]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_further_layer_adds_what_it_keeps(backend: str) -> None:
    """Inference: its keys and values. Training: q, k, v and what the forward leaves behind."""
    for training in (False, True):
        load = GROUPED._replace(training=training)
        more = total_bytes(load._replace(layers=4), backend) - total_bytes(load, backend)
        keys = 2 * 2 * 2 * 1024 * 64 * 2
        queries = 2 * 8 * 1024 * 64 * 2
        kept = retained_bytes(load.case(backend))
        assert more == (keys + queries + (kept or 0) if training else keys)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", [False, True])
def test_the_largest_n_is_the_last_that_fits(backend: str, training: bool) -> None:
    """It fits and the next does not; with other bytes in the way it is smaller, and 0 where nothing fits."""
    load = GROUPED._replace(training=training)
    room = 10 * GIB
    n = largest_seq_len(load, backend, room)
    assert total_bytes(load._replace(seq_len=n), backend) <= room
    assert total_bytes(load._replace(seq_len=n + 1), backend) > room
    full = load._replace(other_bytes=room - 2**20)
    assert 0 < largest_seq_len(full, backend, room) < n
    assert largest_seq_len(load._replace(other_bytes=room), backend, room) == 0


def test_every_tensor_has_a_kind() -> None:
    """No tensor of any law is left out, for each dtype, mask, direction and grouping."""
    for dtype in ("bf16", "fp16", "fp32"):
        for causal in (False, True):
            for training in (False, True):
                load = GROUPED._replace(dtype=dtype, causal=causal, training=training)
                for backend in BACKENDS:
                    found = tensors(load, backend)
                    assert set(found) <= set(TENSORS)
                    assert all(nbytes > 0 for nbytes in found.values())


@pytest.mark.parametrize("variant", ["", "fill", "fp32_softmax"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_tensors_at_the_peak_are_the_peak(direction: str, variant: str) -> None:
    """Their bytes add up to `peak_bytes`, and eager's hold at least two score matrices."""
    case = GROUPED.case("naive").model_copy(update={"direction": direction, "variant": variant})
    held = peak_tensors(case)
    assert held is not None
    assert sum(held.values()) == peak_bytes(case)
    assert sum(nbytes >= 2 * 8 * 1024 * 1024 * 2 for nbytes in held.values()) >= 2
