"""Operations over rows as they are measured: who computes them, and that what is wrong is found out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from profiling.case import Case, Protocol
from profiling.measure import oracle, rows
from profiling.measure.backends import bind, kernel_name, resolve, tile
from profiling.measure.block import Bench
from profiling.measure.inputs import clone_inputs, inputs_of, make_row_inputs
from profiling.measure.messages import BlockRequest
from profiling.measure.telemetry import Telemetry

CPU = torch.device("cpu")
SHAPES = [("cross_entropy", 1), ("softmax_top_k", 1), ("softmax_top_k", 5)]
DIRECTIONS = ("fwd", "bwd", "fwd_bwd")


def row_case(**changes: Any) -> Case:
    """A small case: 80 rows of 33 classes."""
    default: dict[str, Any] = {"operation": "cross_entropy", "backend": "naive", "dtype": "fp32", "batch": 80}
    fixed = {"seq_len_q": 1, "seq_len_k": 33, "head_dim": 1, "head_dim_v": 1}
    return Case(**(default | fixed | changes))


def errors(case: Case, function: Any = None) -> dict[str, tuple[float | None, bool]]:
    """Of each tensor that is checked its relative error, and whether it is within the rule."""
    inputs = inputs_of(case, CPU, 0)
    backend = resolve(case, CPU) if function is None else rows._backend(case, function, None)
    with torch.set_grad_enabled(case.direction != "fwd"):
        out = backend.forward(inputs)
    found = {"out": out.detach()}
    if case.direction != "fwd":
        (found["dlogits"],) = torch.autograd.grad(out, inputs.logits, inputs.dout)
    if backend.beside is not None:
        with torch.no_grad():
            found |= backend.beside(inputs)
    checked = oracle.compare(case, found, oracle.reference(case, inputs, 0))
    return {name: (error.rel_error, within) for name, error, within in checked}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize(("operation", "kept"), SHAPES)
def test_eager_is_within_its_own_rule(operation, kept, dtype, direction):
    """Every tensor that a direction has is compared, each with a finite error."""
    case = row_case(operation=operation, head_dim_v=kept, dtype=dtype, direction=direction, seq_len_k=17)
    found = errors(case)
    beside = "lse" if operation == "cross_entropy" else "picked"
    assert set(found) == {"out", beside, *(["dlogits"] if direction != "fwd" else [])}
    assert all(within and error is not None and math.isfinite(error) for error, within in found.values())


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_wide_logits_are_a_variant_of_cross_entropy(direction):
    """Logits widened first give the loss of the exact sum, which those in bf16 round away."""
    exact = errors(row_case(dtype="bf16", variant="fp32_softmax", direction=direction))
    plain = errors(row_case(dtype="bf16", direction=direction))
    assert all(within for _, within in exact.values())
    assert exact["out"][0] < plain["out"][0] / 10


@pytest.mark.parametrize(
    ("operation", "kept", "wrong"),
    [
        ("cross_entropy", 1, lambda x: cross_entropy(x.logits, x.target.roll(1), reduction="none")),
        ("cross_entropy", 1, lambda x: torch.logsumexp(x.logits, 1)),
        ("softmax_top_k", 2, lambda x: torch.softmax(x.logits, 1).topk(2).values),  # not divided by their sum
        ("softmax_top_k", 2, lambda x: torch.softmax(x.logits.topk(2, largest=False).values, 1)),
        ("softmax_top_k", 2, lambda x: torch.softmax(x.logits.topk(2).values, 1).flip(1)),
    ],
)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_wrong_result_is_found_out(operation, kept, wrong, direction):
    """Another target, no target, no division, the least for the largest, the order reversed."""
    found = errors(row_case(operation=operation, head_dim_v=kept, direction=direction), wrong)
    assert not found["out"][1]


@pytest.mark.parametrize(("operation", "kept"), SHAPES)
def test_a_wrong_gradient_is_found_out(operation, kept):
    """A forward that is right and a gradient that is doubled."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    case = row_case(operation=operation, head_dim_v=kept, direction="bwd", seq_len_k=64)
    right = resolve(case, CPU).forward
    found = errors(case, lambda inputs: right(inputs._replace(logits=Doubled.apply(inputs.logits))))
    assert found["out"][1]
    if kept > 1 or operation == "cross_entropy":  # one weight is always 1: its gradient is 0
        assert not found["dlogits"][1]


def test_wrong_picks_are_found_out(monkeypatch):
    """The right weights beside the indices of other classes."""
    case = row_case(operation="softmax_top_k", head_dim_v=3)
    choose = rows._choice_of(case)
    monkeypatch.setattr(
        rows, "_choice_of", lambda case: lambda logits, k: (choose(logits, k)[0], choose(-logits, k)[1])
    )
    found = errors(case)
    assert found["out"][1]
    assert not found["picked"][1]


def test_rows_with_ties_are_left_out_of_gradients():
    """Where one of two equal logits is chosen, a gradient may go to either: such rows are not compared."""
    case = row_case(operation="softmax_top_k", head_dim_v=2, direction="bwd")
    inputs = make_row_inputs(case, CPU, 0)
    logits = inputs.logits.detach().clone()
    logits[::2, :3] = 9.0
    tied = inputs._replace(logits=logits.requires_grad_())
    sampled = rows.sample_rows(case, tied, 0)
    assert len(sampled) == 40
    assert all(row % 2 for row in sampled)
    assert len(rows.sample_rows(case.model_copy(update={"direction": "fwd"}), tied, 0)) == rows.MAX_ROWS


def test_where_every_row_has_ties_the_row_says_that_nothing_was_checked(monkeypatch):
    """A constant matrix has no gradient to hold a choice against."""
    from profiling.measure import block as block_module

    def constant(case: Case, device: torch.device, seed: int) -> Any:
        inputs = inputs_of(case, device, seed)
        return inputs._replace(logits=torch.ones_like(inputs.logits).requires_grad_())

    monkeypatch.setattr(block_module, "inputs_of", constant)
    case = row_case(operation="softmax_top_k", head_dim_v=2, direction="bwd")
    (outcome,) = measured([case])
    assert outcome.status == "ok"
    assert "tie" in outcome.reason
    assert outcome.rel_error is None


def measured(cases: list[Case]) -> tuple[Any, ...]:
    """The outcomes of a block in a bench on this CPU."""
    protocol = Protocol(rounds=2, samples_per_round=2, warmup_ms=0, memory=False)
    request = BlockRequest(cases=tuple(cases), clocks=("wall", "pipelined"), first=True, check=True)
    with torch.no_grad():
        return Bench(CPU, 0, protocol, Telemetry("")).measure(request, lambda index, name: None).outcomes


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(("operation", "kept"), [("cross_entropy", 1), ("softmax_top_k", 5)])
def test_a_block_is_measured_as_one_of_attention_is(operation, kept, direction):
    """Samples on each clock, errors and the kernel's name; what a CPU has not is refused in a sentence."""
    names = ("naive", "online", "stand_in:none")
    cases = [
        row_case(operation=operation, head_dim_v=kept, direction=direction, backend=name) for name in names
    ]
    eager, online, unknown = measured(cases)
    assert eager.status == "ok"
    assert {sample.clock for sample in eager.samples} == {"wall", "pipelined"}
    assert eager.rel_error == pytest.approx(eager.eager_rel_error)
    assert (eager.kernel, eager.block_m) == ("eager", None)
    assert (online.status, unknown.status) == ("unsupported", "unsupported")
    assert "CPU" in online.reason
    assert "cannot be imported" in unknown.reason


def test_a_function_of_ones_own(monkeypatch, tmp_path):
    """`module:function` gets (logits, target), or (logits, k) and returns weights and indices."""
    (tmp_path / "own_rows.py").write_text(
        "import torch\n"
        "def entropy(logits, target):\n"
        "    return torch.nn.functional.cross_entropy(logits, target, reduction='none')\n"
        "def gate(logits, k):\n"
        "    found = logits.topk(k)\n"
        "    return torch.softmax(found.values, 1), found.indices\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for operation, kept, name in (("cross_entropy", 1, "entropy"), ("softmax_top_k", 5, "gate")):
        case = row_case(operation=operation, head_dim_v=kept, direction="bwd", backend=f"own_rows:{name}")
        assert all(within for _, within in errors(case).values())


def test_inputs_are_the_same_for_every_process_and_backend():
    """A seed gives one set of logits, targets and gradients; a clone has other memory and the same values."""
    case = row_case(direction="bwd", dtype="bf16")
    first, second = (make_row_inputs(case, CPU, 3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first.logits.shape == (80, 33)
    assert first.dout.dtype == torch.float32
    assert 0 <= int(first.target.min()) <= int(first.target.max()) < 33
    copy = clone_inputs(first)
    assert torch.equal(copy.logits, first.logits)
    assert copy.logits.data_ptr() != first.logits.data_ptr()
    assert copy.logits.requires_grad
    assert first.read_bytes("bwd") - first.read_bytes("fwd") == 80 * 4


def test_no_rows_at_all():
    """An empty matrix is measured and has nothing to compare."""
    for operation, direction in (("cross_entropy", "fwd"), ("softmax_top_k", "bwd")):
        (outcome,) = measured([row_case(operation=operation, direction=direction, batch=0)])
        assert (outcome.status, outcome.reason) == ("ok", "")
        assert outcome.rel_error is None


def test_what_runs_has_a_name_and_no_tile():
    """`kernel` says which code ran; queries beside keys, which a tile is of, there are none."""
    case = row_case()
    inputs = inputs_of(case, CPU, 0)
    assert (
        kernel_name(case.model_copy(update={"backend": "online"}), resolve(case, CPU), inputs)
        == "fa_core.online"
    )
    assert tile(case, inputs) == (None, None)
    assert bind(resolve(case, CPU).forward, case, inputs)().shape == (80,)
