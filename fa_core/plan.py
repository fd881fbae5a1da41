"""A forward of which all but the tensors is known: planned at the first call of its kind, then only run.

Checking arguments, choosing tiles, and what Triton does to find the compiled kernel take ten times as long as
SDPA takes for a whole call, and come to the same every time. A plan holds the compiled kernel and its
arguments; a call of the same kind puts its tensors in their places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:  # plans are looked up where Triton need not be
    from fa_core.launch import Launch

MAX_PLANS = 1024
# A name of a tensor that a plan is run with, or what a call's output is called.
Tensors = dict[str, torch.Tensor]


class Plan:
    """A launch that was made once, to be made again on tensors of the same shapes, strides and alignment."""

    def __init__(self, launch: Launch, compiled: Any, tensors: Tensors) -> None:
        self.names = frozenset(tensors)
        names = {id(x): name for name, x in tensors.items()}
        kernel: Any = launch.kernel
        constants = [launch.constants[p.name] for p in kernel.params[len(launch.args) :]]
        self._args = [*launch.args, *constants]
        self._tensors: list[tuple[int, str]] = []
        self._descriptors: list[tuple[int, str, dict[str, Any]]] = []
        self._type: type = object
        for place, arg in enumerate(launch.args):
            base = getattr(arg, "base", None)
            if isinstance(arg, torch.Tensor):
                self._tensors.append((place, names[id(arg)]))
            elif isinstance(base, torch.Tensor):
                self._type = type(arg)
                self._descriptors.append((place, names[id(base)], {**vars(arg), "base": None}))
            if isinstance(arg, torch.Tensor) or base is not None:
                self._args[place] = None  # a plan keeps no tensor alive
        self._run = compiled[(*launch.grid, 1, 1)[:3]]

    def run(self, tensors: Tensors) -> None:
        """Launch on the current stream of the current device."""
        args = self._args.copy()
        for place, name in self._tensors:
            args[place] = tensors[name]
        for place, name, fields in self._descriptors:
            # What its constructor checks was checked when the plan was made.
            descriptor = object.__new__(self._type)
            descriptor.__dict__.update(fields, base=tensors[name])
            args[place] = descriptor
        self._run(*args)


class PlannedForward:
    """The forward of one kind of call, without a gradient to come.

    Args:
        device: of the tensors.
        plan: of q, k, v and out; of row_max and log_sum, too, where the kernel leaves them in any case.
        dtype: of row_max and log_sum.
    """

    def __init__(self, device: torch.device, plan: Plan, dtype: torch.dtype = torch.float32) -> None:
        self._device = device
        self._plan = plan
        self._statistics = dtype if "row_max" in plan.names else None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The output; statistics are not kept."""
        out = torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty((*q.shape[:3], v.shape[3]))
        tensors = {"q": q, "k": k, "v": v, "out": out}
        if self._statistics is not None:
            shape = q.shape[:3]
            tensors["row_max"] = q.new_empty(shape, dtype=self._statistics)
            tensors["log_sum"] = q.new_empty(shape, dtype=self._statistics)
        if torch.cuda.current_device() == self._device.index:
            self._plan.run(tensors)
        else:  # Triton launches on the current device
            with torch.cuda.device(self._device):
                self._plan.run(tensors)
        return out


def watched() -> bool:
    """Whether something stands between a call and its kernels that must see operators: a compiler, a mode."""
    internals: Any = torch._C
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cuda")
        or internals._len_torch_dispatch_stack() > 0
        or internals._len_torch_function_stack() > 0
        or internals._functorch.peek_interpreter_stack() is not None
        or internals._is_tracing()
    )


def key_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: tuple[Any, ...]) -> Any:
    """What two calls must share to be of one kind; None if a call cannot be planned.

    A plan is made of shapes, strides, dtypes and device, and Triton compiles for whether pointers are
    multiples of 16 bytes, so those that are not are left out.
    """
    if not (type(q) is type(k) is type(v) is torch.Tensor):
        return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return None
    if not q.is_cuda or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        return None
    if any(isinstance(x, (list, torch.Tensor)) for x in options):  # no hash, or no value without waiting
        return None
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.device, k.device, v.device, *options,
    )  # fmt: skip


class Plans:
    """Plans by the kind of call; the oldest go when there are many."""

    def __init__(self, limit: int = MAX_PLANS) -> None:
        self._limit = limit
        self._known: dict[Any, PlannedForward | None] = {}

    def __contains__(self, key: Any) -> bool:
        return key in self._known

    def get(self, key: Any) -> PlannedForward | None:
        """The plan of a kind, if there is one."""
        return self._known.get(key)

    def put(self, key: Any, make: Callable[[], PlannedForward | None]) -> PlannedForward | None:
        """Make and keep a plan, or keep in mind that the kind has none."""
        planned = make()
        while len(self._known) >= self._limit:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = planned
        return planned
