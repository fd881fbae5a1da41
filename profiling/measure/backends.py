"""From a case to something callable: the backend's function, and a call bound to one set of inputs.

A custom backend `module:function` is called as `function(q, k, v, causal=...)` with tensors
(batch, heads, seq_len, head_dim) and returns the output. What else a case asks for comes as a further
keyword, as `fa_core.attention` names it (`window`, `softcap`, `bias`, `sinks`, `alibi_slopes`); a function
without that keyword cannot take the case. It raises NotImplementedError for what it cannot take.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fa_core
from profiling.case import ATTENTION, CPU_BACKENDS, DETERMINISTIC, FLASH_BACKENDS, TILED_BACKENDS, Case
from profiling.measure import flex, rows, sdpa
from profiling.measure.backend import Backend, Beside, Call, Forward, compiled, imported
from profiling.measure.inputs import DTYPES, AnyInputs, Inputs, RowInputs
from profiling.measure.layouts import Dense, in_layout, options, tensors
from profiling.model.hopper import forward_tile

# What runs where PyTorch does not choose for us.
_KERNELS = {
    "naive": "eager",
    "naive_compiled": "inductor",
    "tiled": "fa_core.tiled",
    "flex": "flex",
}
COMPILED = ("naive_compiled", "flex")
_MAX_LSE_BYTES = 2**32
_FEW_QUERIES = 64  # up to so many, `flash` makes its forward's tile to measure


def resolve(case: Case, device: torch.device) -> Backend:
    """The backend of a case.

    Raises:
        NotImplementedError: it cannot take the case, whatever the tensors; one sentence.
    """
    if case.layout == "paged" and case.direction != "fwd":
        raise NotImplementedError("a paged cache is only read: it has no backward")
    if case.layout == "varlen" and case.bias:
        raise NotImplementedError(
            "packed sequences have no bias: its rows and columns belong to one sequence"
        )
    if case.operation != ATTENTION:
        return rows.resolve(case, device)
    if ":" in case.backend:
        return _custom(case)
    if device.type == "cpu" and case.backend not in CPU_BACKENDS:
        raise NotImplementedError(
            f"{case.backend} has no CPU kernel (Triton's interpreter is no measurement): "
            f"a CPU has {', '.join(CPU_BACKENDS)}"
        )
    if case.backend in ("naive", "naive_compiled"):
        return _naive(case)
    if case.backend == "flex":
        flex.check(case)
        return Backend(compiled(flex.forward_of(case, device), case), None, ours=True)
    if case.backend.startswith("sdpa"):
        sdpa.check(case)
        forward = in_layout(functools.partial(sdpa.attention, case), case)
        return Backend(forward, None, ours=True, prepare=functools.partial(sdpa.with_mask, case))
    return _fa_core(case)


def _with_lse(attend: Callable[..., Any]) -> Beside:
    return lambda inputs: {"lse": attend(inputs, return_lse=True)[1]}


def _naive(case: Case) -> Backend:
    if case.tile_m is not None:
        raise NotImplementedError(f"{case.backend} has no tiles")
    dense = functools.partial(fa_core.naive_attention, **options(case), variant=case.variant or "add")
    attend = in_layout(dense, case)
    if case.backend == "naive":
        # The LSE takes the scores in fp32: of a case that just fits, they do not.
        score_bytes = 4 * case.batch * case.heads * case.seq_len_q * case.seq_len_k
        return Backend(attend, _with_lse(attend) if score_bytes <= _MAX_LSE_BYTES else None, ours=True)
    return Backend(compiled(attend, case), None, ours=True)


def _fa_core(case: Case) -> Backend:
    """`tiled`, or `flash` by one of its names; its portable kernels read packed and paged tensors as such."""
    keywords: dict[str, Any] = {**options(case), "impl": case.backend}
    if case.backend == "flash_hopper":
        if case.tile_m is not None:
            raise NotImplementedError("flash_hopper has no tiles to choose: its kernels have their own")
        if case.layout != "dense":
            raise NotImplementedError(
                f"flash_hopper cannot take layout {case.layout}: its kernels read dense tensors alone"
            )
    keywords |= {"deterministic": True} if case.variant == DETERMINISTIC else {}
    if case.tile_m is not None:
        keywords |= {"block_m": case.tile_m, "block_n": case.tile_n}
    attend = in_layout(functools.partial(fa_core.attention, **keywords), case)
    if case.backend in FLASH_BACKENDS and case.layout != "dense":
        attend = functools.partial(_packed if case.layout == "varlen" else _paged, keywords)
    return Backend(attend, _with_lse(attend), ours=True)


def _packed(keywords: dict[str, Any], inputs: Inputs, **more: Any) -> Any:
    """The offsets are known to be right, and looking at them would make the host wait for the device."""
    cu_q, cu_k, more = inputs.cu_seqlens_q, inputs.cu_seqlens_k, keywords | tensors(inputs) | more
    assert cu_q is not None
    assert cu_k is not None
    return fa_core.attention_varlen(inputs.q, inputs.k, inputs.v, cu_q, cu_k, **more, check_lengths=False)


def _paged(keywords: dict[str, Any], inputs: Inputs, **more: Any) -> Any:
    table, lengths, more = inputs.block_table, inputs.seq_lens, keywords | tensors(inputs) | more
    assert table is not None
    assert lengths is not None
    return fa_core.attention_paged(inputs.q, inputs.k, inputs.v, table, lengths, **more, check_table=False)


def _custom(case: Case) -> Backend:
    if case.tile_m is not None:
        raise NotImplementedError(f"{case.backend} has no tiles: only {', '.join(TILED_BACKENDS)} do")
    if case.layout != "dense":
        raise NotImplementedError(
            f"{case.backend} cannot take layout {case.layout}: a function of ours gets dense ones"
        )
    function = imported(case)
    keywords = options(case)
    features = {"bias": case.bias, "sinks": case.sinks, "alibi_slopes": case.alibi}
    asked = [*keywords, *(name for name, present in features.items() if present)]
    if lacking := [name for name in asked if not _takes(function, name)]:
        raise NotImplementedError(f"{case.backend} cannot take {', '.join(lacking)}: it has no such argument")
    return Backend(in_layout(functools.partial(function, **keywords), case), None, ours=False)


def _takes(function: Dense, keyword: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C: it will say so itself
        return True
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def bind(forward: Forward, case: Case, inputs: AnyInputs) -> Call:
    """A call without arguments that does what the case's direction says, and returns it.

    `fwd` returns the output and builds no graph. `bwd` runs the forward now, once; each call is the
    backward of it alone and returns the gradients of `inputs.leaves`: dq, dk, dv, and those of a bias and
    of sinks. `fwd_bwd` does both and returns the gradients.
    """
    if case.direction == "fwd":
        return lambda: forward(inputs)
    leaves = tuple(inputs.leaves.values())
    if case.direction == "bwd":
        with torch.enable_grad():
            out = forward(inputs)
        return lambda: torch.autograd.grad(out, leaves, inputs.dout, retain_graph=True)

    def both() -> Any:
        with torch.enable_grad():
            out = forward(inputs)
        return torch.autograd.grad(out, leaves, inputs.dout)

    return both


class _Recorder(TorchDispatchMode):
    """Notes the fused attention operators that PyTorch dispatches to."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket) if hasattr(func, "overloadpacket") else str(func)
        if "scaled_dot_product" in name and "backward" not in name and name not in self.names:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def flash_as_run(case: Case, inputs: Inputs) -> Case:
    """`flash` under the name of the kernels by which it takes a case here; every other case as it is.

    Of both directions it is that of the backward's kernels: most of the time is theirs.
    """
    if case.backend != "flash":
        return case
    name = "flash_portable"
    if case.layout == "dense":
        more: dict[str, Any] = {name: x for name, x in tensors(inputs).items() if name != "sinks"}
        more |= {**options(case), "block_m": case.tile_m, "block_n": case.tile_n}
        more |= {"backward": case.direction != "fwd"}
        name = fa_core.flash_kernels(inputs.q, inputs.k, inputs.v, **more)
    return case.model_copy(update={"backend": name})


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def kernel_name(case: Case, backend: Backend, inputs: AnyInputs) -> str:
    """What really runs. Of `flash` its kernels; for SDPA the fused operator that answers one call, `math` if
    there is none.
    """
    if isinstance(inputs, RowInputs):
        return rows.KERNELS.get(case.backend, "")
    if case.backend in FLASH_BACKENDS:
        return f"fa_core.{flash_as_run(case, inputs).backend}"
    if not case.backend.startswith("sdpa"):
        return _KERNELS.get(case.backend, "")
    with torch.set_grad_enabled(case.direction != "fwd"), _Recorder() as recorder:
        backend.forward(inputs)
    return recorder.names[0] if recorder.names else "math"


def tile(case: Case, inputs: AnyInputs) -> tuple[int, int] | tuple[None, None]:
    """The (block_m, block_n) that runs, where it is known; in `bwd` that of the dK/dV kernel.

    None with a backward of the kernels for sm_90: theirs is none that a tile alone would describe. None of
    an operation over rows: it has no queries beside keys.
    """
    if isinstance(inputs, RowInputs):
        return None, None
    case = flash_as_run(case, inputs)
    if case.backend == "flash_hopper":
        found = forward_tile(case, _processors(inputs.device)) if case.direction == "fwd" else None
        return found or (None, None)
    if case.backend not in TILED_BACKENDS:
        return None, None
    if case.tile_m is not None and case.tile_n is not None:
        return case.tile_m, case.tile_n
    if case.backend in FLASH_BACKENDS:
        if case.direction != "bwd" and case.seq_len_q <= _FEW_QUERIES:
            return None, None
        direction = "bwd" if case.direction == "bwd" else "fwd"
        limited = case.causal or case.window_left is not None or case.window_right is not None
        width = max(case.head_dim, case.head_dim_v)
        return fa_core.flash_tile(width, DTYPES[case.dtype], direction, limited)
    defaults = inspect.signature(fa_core.tiled_attention).parameters
    return defaults["block_m"].default, defaults["block_n"].default
