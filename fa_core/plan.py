"""A forward of which all but the tensors is known: planned at the second call of its kind, then only run.

Checking arguments, choosing tiles, and what Triton does to find the compiled kernel take ten times as long as
SDPA takes for a whole call, and come to the same every time. A plan holds the compiled kernels and their
arguments; a call of the same kind puts its tensors in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:  # plans are looked up where Triton need not be
    from fa_core.launch import Launch

MAX_PLANS = 1024


class _Step:
    """A launch that was made once, to be made again on tensors of the same shapes, strides and alignment.

    `number` says of a tensor which of those that the launch is made on later takes its place.
    """

    def __init__(self, launch: Launch, compiled: Any, number: Callable[[torch.Tensor], int]) -> None:
        kernel: Any = launch.kernel
        constants = [launch.constants[name] for name in kernel.arg_names[len(launch.args) :]]
        self._args = [*launch.args, *constants]
        self._tensors: list[tuple[int, int]] = []
        self._groups: list[tuple[int, list[int]]] = []
        self._descriptors: list[tuple[int, int, dict[str, Any]]] = []
        self._type: type = object
        for place, arg in enumerate(launch.args):
            base = getattr(arg, "base", None)
            if isinstance(arg, torch.Tensor):
                self._tensors.append((place, number(arg)))
            elif isinstance(base, torch.Tensor):
                self._type = type(arg)
                self._descriptors.append((place, number(base), {**vars(arg), "base": None}))
            elif isinstance(arg, tuple) and any(isinstance(x, torch.Tensor) for x in arg):
                self._groups.append((place, [number(x) for x in arg]))
            else:
                continue
            self._args[place] = None  # a plan keeps no tensor alive
        self._run = compiled[(*launch.grid, 1, 1)[:3]]

    def run(self, tensors: Sequence[torch.Tensor]) -> None:
        """Launch on the current stream of the current device."""
        args = self._args.copy()
        for place, i in self._tensors:
            args[place] = tensors[i]
        for place, group in self._groups:
            args[place] = tuple([tensors[i] for i in group])
        for place, i, fields in self._descriptors:
            # What its constructor checks was checked when the plan was made.
            descriptor = object.__new__(self._type)
            descriptor.__dict__.update(fields, base=tensors[i])
            args[place] = descriptor
        self._run(*args)


class Plan:
    """The forward of one kind of call, without a gradient to come.

    Args:
        launches: what is launched, one after another, and the compiled kernel of each.
        inputs: the tensors of the call that the launches were made on, q (B, H, Nq, d) first; each another
            object. Memory may be shared.
        out: what they write the output to. All else that they write and read is their own, and made anew for
            each call.

    Raises:
        ValueError: one tensor stands in two places, so that the launches do not say which is which.
    """

    def __init__(
        self,
        launches: Sequence[tuple[Launch, Any]],
        inputs: Sequence[torch.Tensor],
        out: torch.Tensor,
    ) -> None:
        numbers = {id(x): i for i, x in enumerate((*inputs, out))}
        if len(numbers) <= len(inputs):
            raise ValueError("inputs must be different tensor objects, got one of them in two places")
        own: list[torch.Tensor] = []

        def number(x: torch.Tensor) -> int:
            if id(x) not in numbers:
                numbers[id(x)] = len(numbers)
                own.append(x)
            return numbers[id(x)]

        q = inputs[0]
        self._device = q.device
        self._steps = [_Step(launch, compiled, number) for launch, compiled in launches]
        self._own = [(x.shape, x.dtype) for x in own]
        self._out_shape = None if out.shape == q.shape else out.shape

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The output for other tensors of the same kind; statistics are not kept."""
        q = inputs[0]
        out = torch.empty_like(q) if self._out_shape is None else q.new_empty(self._out_shape)
        tensors = [*inputs, out, *[q.new_empty(shape, dtype=dtype) for shape, dtype in self._own]]
        if torch.cuda.current_device() == self._device.index:
            self._run(tensors)
        else:  # Triton launches on the current device
            with torch.cuda.device(self._device):
                self._run(tensors)
        return out

    def _run(self, tensors: Sequence[torch.Tensor]) -> None:
        for step in self._steps:
            step.run(tensors)


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
    for x in options:
        if isinstance(x, (list, torch.Tensor)):  # no hash, or no value without waiting
            return None
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.device, k.device, v.device, *options,
    )  # fmt: skip


def index_key(x: Any) -> Any:
    """What belongs to a kind of a tensor of lengths or page numbers; None where kernels take only a copy."""
    if type(x) is not torch.Tensor or x.dtype != torch.int32 or not x.is_contiguous() or x.data_ptr() % 16:
        return None
    return (x.shape, x.device)


class Plans:
    """Plans by the kind of call; the oldest go when there are many.

    A kind is planned when it comes for the second time: where keys grow by one from call to call (decoding
    without pages, in one layer), no kind comes twice, and a plan would cost as much as the call.
    """

    def __init__(self, limit: int = MAX_PLANS) -> None:
        self._limit = limit
        self._known: dict[Any, Plan | None] = {}
        self._once: set[Any] = set()  # of these, the kinds that came once

    def get(self, key: Any) -> Plan | None:
        """The plan of a kind, if there is one."""
        return self._known.get(key)

    def learn(self, key: Any, make: Callable[[], Plan | None]) -> None:
        """Note a call of a kind; at the second make and keep its plan, or keep in mind that it has none.

        Not while a CUDA graph is captured, in which no kernel can be loaded.
        """
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        if key in self._once:
            self._known[key] = make()
            self._once.discard(key)
        elif key not in self._known:
            while len(self._known) >= self._limit:
                oldest = next(iter(self._known))
                self._known.pop(oldest, None)
                self._once.discard(oldest)
            self._known[key] = None
            self._once.add(key)
