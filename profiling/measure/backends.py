"""From a case to something callable: the backend's function, and a call bound to one set of inputs.

A custom backend `module:function` is called as `function(q, k, v, causal=...)` with tensors
(batch, heads, seq_len, head_dim) and returns the output. It raises NotImplementedError for what it
cannot take.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fa_core
from profiling.case import CPU_BACKENDS, Case

DTYPES: dict[str, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
# What runs where PyTorch does not choose for us.
_KERNELS = {
    "naive": "eager",
    "naive_compiled": "inductor",
    "tiled": "fa_core.tiled",
    "flash": "fa_core.flash",
}
_MAX_LSE_BYTES = 2**32
_RETURNS_LSE = ("naive", "tiled", "flash")

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
ForwardLse = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Call = Callable[[], Any]


class Inputs(NamedTuple):
    """q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv) and the output's gradient (B, H, Nq, dv)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor

    def read_bytes(self, direction: str) -> int:
        """Bytes of what a direction reads: the output's gradient only where there is a backward."""
        return sum(x.numel() * x.element_size() for x in (self[:3] if direction == "fwd" else self))


class Backend(NamedTuple):
    """A case's implementation: the forward, and the forward that also returns the LSE if there is one."""

    forward: Forward
    forward_lse: ForwardLse | None
    ours: bool  # its ValueErrors say that it cannot take a shape; a stranger's may be any bug


def make_inputs(case: Case, device: torch.device, seed: int) -> Inputs:
    """Standard normal inputs in the case's dtype, the same for every process and backend.

    Values matter: constant inputs let a GPU clock higher than real ones do.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    shapes = (
        (case.batch, case.heads, case.seq_len_q, case.head_dim),
        (case.batch, case.kv_heads, case.seq_len_k, case.head_dim),
        (case.batch, case.kv_heads, case.seq_len_k, case.head_dim_v),
        (case.batch, case.heads, case.seq_len_q, case.head_dim_v),
    )
    dtype = DTYPES[case.dtype]
    q, k, v, dout = (torch.randn(x, generator=generator, device=device, dtype=dtype) for x in shapes)
    return require_grad(Inputs(q, k, v, dout), case)


def require_grad(inputs: Inputs, case: Case) -> Inputs:
    """Let q, k and v ask for gradients where the case's direction needs them."""
    for x in inputs[:3]:
        x.requires_grad_(case.direction != "fwd")
    return inputs


def clone_inputs(inputs: Inputs, case: Case) -> Inputs:
    """The same values in other memory."""
    return require_grad(Inputs(*(x.detach().clone() for x in inputs)), case)


def resolve(case: Case, device: torch.device) -> Backend:
    """The backend of a case.

    Raises:
        NotImplementedError: it cannot take the case, whatever the tensors; one sentence.
    """
    extras = {
        "layout": case.layout != "dense",
        "window_left": case.window_left is not None,
        "window_right": case.window_right is not None,
        "softcap": case.softcap is not None,
        "bias": case.bias,
        "sinks": case.sinks,
        "alibi": case.alibi,
    }
    if asked := [name for name, present in extras.items() if present]:
        raise NotImplementedError(f"{case.backend} cannot take {', '.join(asked)}: not built yet")
    if ":" in case.backend:
        return _custom(case)
    if device.type == "cpu" and case.backend not in CPU_BACKENDS:
        raise NotImplementedError(
            f"{case.backend} has no CPU kernel (Triton's interpreter is no measurement): "
            f"a CPU has {', '.join(CPU_BACKENDS)}"
        )
    if case.backend in ("naive", "naive_compiled"):
        if case.tile_m is not None:
            raise NotImplementedError(f"{case.backend} has no tiles")
        return _naive(case)
    return _fa_core(case)


def _naive(case: Case) -> Backend:
    options = {"causal": case.causal, "variant": case.variant or "add"}

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return fa_core.naive_attention(q, k, v, **options)

    def forward_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return fa_core.naive_attention(q, k, v, **options, return_lse=True)

    if case.backend == "naive":
        # The LSE takes the scores in fp32: of a case that just fits, they do not.
        score_bytes = 4 * case.batch * case.heads * case.seq_len_q * case.seq_len_k
        return Backend(forward, forward_lse if score_bytes <= _MAX_LSE_BYTES else None, ours=True)
    if case.direction == "bwd":
        # One forward, many backwards: the compiler must not reuse the saved tensors' memory.
        functorch_config: Any = importlib.import_module("torch._functorch.config")
        functorch_config.donated_buffer = False
    # fullgraph: past its recompile limit the compiler would otherwise fall back to eager in silence.
    return Backend(torch.compile(forward, fullgraph=True, dynamic=False), None, ours=True)


def _fa_core(case: Case) -> Backend:
    options: dict[str, Any] = {"causal": case.causal, "impl": case.backend}
    if case.tile_m is not None:
        options |= {"block_m": case.tile_m, "block_n": case.tile_n}

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return fa_core.attention(q, k, v, **options)

    def forward_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return fa_core.attention(q, k, v, **options, return_lse=True)

    return Backend(forward, forward_lse if case.backend in _RETURNS_LSE else None, ours=True)


def _custom(case: Case) -> Backend:
    if case.tile_m is not None:
        raise NotImplementedError(f"{case.backend} has no tiles: only tiled and flash do")
    module_name, _, name = case.backend.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise NotImplementedError(f"backend {case.backend!r} cannot be imported: {error}") from None

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return function(q, k, v, causal=case.causal)

    return Backend(forward, None, ours=False)


def bind(forward: Forward, case: Case, inputs: Inputs) -> Call:
    """A call without arguments that does what the case's direction says, and returns it.

    `fwd` returns the output and builds no graph. `bwd` runs the forward now, once; each call is the
    backward of it alone and returns (dq, dk, dv). `fwd_bwd` does both and returns the gradients.
    """
    q, k, v, dout = inputs
    if case.direction == "fwd":
        return lambda: forward(q, k, v)
    if case.direction == "bwd":
        with torch.enable_grad():
            out = forward(q, k, v)
        return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    def both() -> Any:
        with torch.enable_grad():
            out = forward(q, k, v)
        return torch.autograd.grad(out, (q, k, v), dout)

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


def kernel_name(case: Case, backend: Backend, inputs: Inputs) -> str:
    """What really runs. For SDPA: the fused operator that answers one call, `math` if there is none."""
    if not case.backend.startswith("sdpa"):
        return _KERNELS.get(case.backend, "")
    with torch.set_grad_enabled(case.direction != "fwd"), _Recorder() as recorder:
        backend.forward(*inputs[:3])
    return recorder.names[0] if recorder.names else "math"


def tile(case: Case) -> tuple[int, int] | tuple[None, None]:
    """The (block_m, block_n) that runs, where there is one; in `bwd` that of the dK/dV kernel."""
    if case.backend not in ("tiled", "flash"):
        return None, None
    if case.tile_m is not None and case.tile_n is not None:
        return case.tile_m, case.tile_n
    if case.backend == "flash":
        direction = "bwd" if case.direction == "bwd" else "fwd"
        return fa_core.flash_tile(case.head_dim, DTYPES[case.dtype], direction, case.causal)
    defaults = inspect.signature(fa_core.tiled_attention).parameters
    return defaults["block_m"].default, defaults["block_n"].default
