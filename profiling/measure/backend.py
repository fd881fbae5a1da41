"""A case's implementation: what all kinds of them have, and how a compiled or a stranger's one is made."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from profiling.case import Case

Forward = Callable[[Any], torch.Tensor]
Beside = Callable[[Any], dict[str, torch.Tensor]]
Call = Callable[[], Any]


def _unchanged(inputs: Any) -> Any:
    return inputs


class Backend(NamedTuple):
    """A case's implementation: the forward, and what else of its results is checked, if there is more.

    `beside` makes a call of its own and gives that by name: the LSE. `prepare` turns the inputs that all
    backends share into this one's, once and untimed (SDPA's mask).
    """

    forward: Forward
    beside: Beside | None
    ours: bool  # its ValueErrors say that it cannot take a shape; a stranger's may be any bug
    prepare: Callable[[Any], Any] = _unchanged


def compiled(forward: Forward, case: Case) -> Forward:
    """`forward` through PyTorch's compiler."""
    if case.direction == "bwd":
        # One forward, many backwards: the compiler must not reuse the saved tensors' memory.
        functorch_config: Any = importlib.import_module("torch._functorch.config")
        functorch_config.donated_buffer = False

    def call(inputs: Any) -> torch.Tensor:  # the compiler wants a function with code of its own
        return forward(inputs)

    # fullgraph: past its recompile limit the compiler would otherwise fall back to eager in silence.
    return torch.compile(call, fullgraph=True, dynamic=False)


def imported(case: Case) -> Callable[..., Any]:
    """The function that a `module:function` names.

    Raises:
        NotImplementedError: there is none.
    """
    module_name, _, name = case.backend.partition(":")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise NotImplementedError(f"backend {case.backend!r} cannot be imported: {error}") from None
