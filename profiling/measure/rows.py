"""Operations over rows: who computes a cross-entropy or a softmax with top-k, and whether it is right.

A custom backend `module:function` is called as `function(logits, target)`, which returns a loss a row, or as
`function(logits, k)`, which returns (weights, indices); logits (rows, classes), target (rows,) int64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import fa_core
from profiling.case import Case
from profiling.measure.backend import Backend, Beside, Forward, compiled, imported
from profiling.measure.inputs import RowInputs

KERNELS: dict[str, str] = {
    "naive": "eager",
    "naive_compiled": "inductor",
    "online": "fa_core.online",
}
MAX_ROWS = 64  # that are compared with the reference
_MOST_LOGITS = 2**28  # that are looked through for ties at a time

# (logits, target, return_lse=False) -> a loss a row, or (loss, lse); (logits, k) -> (weights, indices)
RowFunction = Callable[..., Any]


def resolve(case: Case, device: torch.device) -> Backend:
    """The backend of a case over rows.

    Raises:
        NotImplementedError: it cannot take the case; one sentence.
    """
    own = ":" not in case.backend
    if own and case.backend not in KERNELS:
        raise NotImplementedError(f"{case.backend} does not take {case.operation}: {', '.join(KERNELS)} do")
    if device.type == "cpu" and case.backend == "online":
        raise NotImplementedError(
            "online has no CPU kernel (Triton's interpreter is no measurement): "
            "a CPU has naive, naive_compiled"
        )
    if case.operation == "cross_entropy":
        return _cross_entropy(case, _entropy_of(case) if own else imported(case))
    return _top_k(case, _choice_of(case) if own else imported(case))


def _cross_entropy(case: Case, function: RowFunction) -> Backend:
    def forward(inputs: RowInputs) -> torch.Tensor:
        return function(inputs.logits, inputs.target)

    def beside(inputs: RowInputs) -> dict[str, torch.Tensor]:
        return {"lse": function(inputs.logits, inputs.target, return_lse=True)[1]}

    return _backend(case, forward, beside if case.backend in ("naive", "online") else None)


def _top_k(case: Case, function: RowFunction) -> Backend:
    def forward(inputs: RowInputs) -> torch.Tensor:
        return function(inputs.logits, case.head_dim_v)[0]

    def beside(inputs: RowInputs) -> dict[str, torch.Tensor]:
        return {"picked": inputs.logits.gather(1, function(inputs.logits, case.head_dim_v)[1])}

    return _backend(case, forward, None if case.backend == "naive_compiled" else beside)


def _backend(case: Case, forward: Forward, beside: Beside | None) -> Backend:
    if case.backend == "naive_compiled":
        forward = compiled(forward, case)
    return Backend(forward, beside, ours=":" not in case.backend)


def _entropy_of(case: Case) -> RowFunction:
    impl = "online" if case.backend == "online" else "naive"
    function = functools.partial(fa_core.cross_entropy, impl=impl, reduction="none")
    if case.variant != "fp32_softmax":
        return function
    return lambda logits, target, **more: function(logits.float(), target, **more)


def _choice_of(case: Case) -> RowFunction:
    return functools.partial(fa_core.softmax_top_k, impl="online" if case.backend == "online" else "naive")


# ------------------------------------------------------------------------------------------- reference


def sample_rows(case: Case, inputs: RowInputs, seed: int) -> list[int]:
    """At most `MAX_ROWS` rows, chosen by `seed`; where a gradient goes by what is chosen, rows without ties.

    Of two classes with the same logit at the edge of the k largest either may be chosen.
    """
    rows = torch.randperm(len(inputs.logits), generator=torch.Generator().manual_seed(seed))
    if case.operation == "cross_entropy" or case.direction == "fwd":
        return sorted(rows[:MAX_ROWS].tolist())
    found: list[int] = []
    step = max(1, _MOST_LOGITS // case.seq_len_k)
    for start in range(0, len(rows), step):
        part = rows[start : start + step].to(inputs.device)
        largest = inputs.logits.detach()[part].topk(min(case.head_dim_v + 1, case.seq_len_k), dim=1).values
        found += part[(largest.diff(dim=1) != 0).all(dim=1)].tolist()
        if len(found) >= MAX_ROWS:
            break
    return sorted(found[:MAX_ROWS])


def results(case: Case, inputs: RowInputs) -> dict[str, torch.Tensor]:
    """What eager PyTorch gives in the dtype of the inputs, by tensor name."""
    logits = inputs.logits.detach().requires_grad_(case.direction != "fwd")
    with torch.set_grad_enabled(case.direction != "fwd"):
        if inputs.target is not None:
            out, lse = fa_core.cross_entropy(
                logits, inputs.target, impl="naive", reduction="none", return_lse=True
            )
            found = {"out": out, "lse": lse}
        else:
            out, indices = fa_core.softmax_top_k(logits, case.head_dim_v, impl="naive")
            found = {"out": out, "picked": logits.gather(1, indices)}
    if case.direction != "fwd":
        (found["dlogits"],) = torch.autograd.grad(out, logits, inputs.dout.to(out.dtype))
    return {name: x.detach() for name, x in found.items()}


def chosen(inputs: RowInputs, rows: list[int]) -> RowInputs:
    """The inputs of some rows."""
    return RowInputs(*(None if x is None else x.detach()[rows] for x in inputs))  # type: ignore[arg-type]


def widened(inputs: RowInputs) -> RowInputs:
    """The same in fp64."""
    return inputs._replace(logits=inputs.logits.double(), dout=inputs.dout.double())
