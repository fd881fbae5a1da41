"""Laws of operations over rows: closed forms, and what an H200 counted and held of them."""

from __future__ import annotations

from typing import Any

import pytest

from profiling.case import Case
from profiling.model import rows
from profiling.model.memory import input_bytes, peak_bytes, retained_bytes
from profiling.paths import DATA_DIR
from profiling.records import Measurement
from profiling.store import load_run

R, V = 100, 1000


def case(operation: str = "cross_entropy", **changes: Any) -> Case:
    """100 rows of 1000 classes in bf16; four are kept of a top-k."""
    kept = 1 if operation == "cross_entropy" else 4
    shape = {"batch": R, "seq_len_q": 1, "seq_len_k": V, "head_dim": 1, "head_dim_v": kept, "dtype": "bf16"}
    return Case.model_validate({"operation": operation, "backend": "online"} | shape | changes)


def test_one_pass_moves_each_logit_once_and_a_backward_twice() -> None:
    """And a few numbers a row; a gate's backward need not read the logits."""
    logits = 2 * R * V
    assert rows.compulsory_bytes(case()) == logits + R * (8 + 4 + 8)
    assert rows.compulsory_bytes(case(direction="bwd")) == 2 * logits + R * (8 + 4 + 8)
    assert rows.compulsory_bytes(case("softmax_top_k")) == logits + 4 * R * (2 + 8)
    assert rows.compulsory_bytes(case("softmax_top_k", direction="bwd")) == logits + 4 * R * (2 + 8 + 2)
    both = rows.compulsory_bytes(case(direction="fwd_bwd"))
    assert both == sum(rows.compulsory_bytes(case(direction=way)) for way in ("fwd", "bwd"))


def test_a_row_that_outgrows_shared_memory_is_read_again() -> None:
    """Three times in a forward, of the gradient twice in a backward; 48 KiB are 24 576 classes in bf16."""
    for direction, more in (("fwd", 2), ("bwd", 1)):
        fits, longer = (
            case(backend="naive", direction=direction, seq_len_k=n, dtype="bf16") for n in (24576, 24577)
        )
        read = [sum(step.read_bytes for step in rows.naive_passes(one)) for one in (fits, longer)]
        times = 1 if direction == "fwd" else 2
        assert read == [times * 2 * R * 24576, (times + more) * 2 * R * 24577]


def test_inputs_are_logits_targets_and_what_is_sent_back() -> None:
    """A loss is fp32, and so is its gradient; weights have the logits' dtype."""
    assert input_bytes(case()) == 2 * R * V + 8 * R
    assert input_bytes(case(direction="bwd")) == 2 * R * V + 8 * R + 4 * R
    assert input_bytes(case("softmax_top_k", direction="bwd")) == 2 * R * V + 2 * 4 * R


def test_one_pass_holds_a_few_numbers_a_row_and_the_gradient() -> None:
    """Forward: the loss and two statistics; what a backward adds is as large as the logits."""
    assert peak_bytes(case()) == retained_bytes(case()) == R * (4 + 8)
    assert peak_bytes(case(direction="bwd")) == R * (4 + 8) + 2 * R * V
    assert peak_bytes(case(backend="naive_compiled")) is None


def measured() -> list[Measurement]:
    """The rows of the committed run."""
    return list(load_run(DATA_DIR / "samples" / "h200-softmax.jsonl").measurements)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("backend", ["naive", "online"])
def test_what_an_h200_counted_is_what_is_modelled(backend: str, direction: str) -> None:
    """DRAM bytes of a loss over 128 256 classes within 3 %: the eager kernels' passes, one pass of ours."""
    found = [
        row
        for row in measured()
        if row.dram_read_bytes is not None
        and row.case.operation == "cross_entropy"
        and (row.case.backend, row.case.direction) == (backend, direction)
    ]
    assert len(found) == (2 if backend == "naive" else 1)
    for row in found:
        assert row.dram_write_bytes is not None
        model = rows.compulsory_bytes if backend == "online" else rows.naive_bytes
        assert row.dram_read_bytes + row.dram_write_bytes == pytest.approx(model(row.case), rel=0.03)


@pytest.mark.parametrize("operation", ["cross_entropy", "softmax_top_k"])
@pytest.mark.parametrize("backend", ["naive", "online"])
def test_what_an_h200_held_is_what_is_modelled(operation: str, backend: str) -> None:
    """Peaks within 2 % and a few thousand blocks of the allocator, wherever logits are the most of them."""
    own = [
        row
        for row in measured()
        if (row.case.operation, row.case.backend) == (operation, backend)
        and row.peak_mem_bytes is not None
        and row.case.seq_len_k >= 64 * row.case.head_dim_v
        and row.case.batch >= 64
        and not (operation == "softmax_top_k" and row.case.seq_len_k > 1024)
    ]
    assert len(own) >= 4
    for row in own:
        assert row.peak_mem_bytes == pytest.approx(peak_bytes(row.case), rel=0.02, abs=2**20), row.case.label
