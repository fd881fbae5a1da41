"""The kernels for sm_90 as PyTorch operators: what runs, what a compiler may assume, and the gradient.

They leave the statistics that `fa_core.op`'s kernels leave: so what they cannot send back (the gradient of
sinks, or of some of q, k and v alone) is `fa_core::flash_backward`'s.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fa_core import hopper
from fa_core.band import Band
from fa_core.kernels import tuning
from fa_core.launch import Problem, Saved, device_guard
from fa_core.plan import Plan, PlannedForward

_SHARED = (
    "Tensor q, Tensor k, Tensor v, Tensor? sinks, float scale, int? left, int? right, bool top_left, "
    "bool deterministic"
)
_N_SHARED = 9
_LIBRARY = torch.library.Library("fa_core", "FRAGMENT")
_LIBRARY.define(f"hopper_forward({_SHARED}) -> (Tensor out, Tensor statistics)")
_LIBRARY.define(
    f"hopper_backward({_SHARED}, Tensor dout, Tensor? dlse, Tensor out, Tensor statistics) "
    "-> (Tensor dq, Tensor dk, Tensor dv)"
)


def _ahead(q: torch.Tensor) -> bool:
    """Whether kernels are to be compiled for a GPU that the tensors stand for; see `fa_core.ahead`."""
    return tuning.elsewhere is not None and q.is_meta


def _problem(args: Any) -> Problem:
    """The call as the kernels take it: limits that hide no key are left out."""
    q, k, v, sinks, scale, left, right, top_left = args[:8]
    band = Band(left, right, top_left).needed(q.shape[2], k.shape[2])
    return Problem(q, k, v, None, None, sinks, None, None, None, scale, *band, 0.0)


def _outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Out in q's layout; the statistics (2, B, H, Nq) contiguous."""
    statistics = torch.empty((2, *q.shape[:3]), dtype=torch.float32, device=q.device)
    return torch.empty_like(q), statistics


def _forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    p = _problem(args)
    if reason := hopper.why_not(p):
        raise NotImplementedError(f"the kernels for sm_90 cannot take this call: {reason}")
    out, statistics = _outputs(p.q)
    row_max, log_sum = statistics.unbind()
    with device_guard(p.q):
        hopper.forward_launch(p, out, row_max, log_sum).run()
    return out, statistics


def _fake_forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not _ahead(args[0]):
        return _outputs(args[0])
    p = _problem(args)
    if p.sinks is None and not hopper.why_not(p):
        hopper.forward_launch(p, torch.empty_like(p.q), None, None).compile()  # a plan's, see plan_forward
    return _forward(*args)


def _backward(*args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    deterministic, dout, dlse, out, statistics = args[_N_SHARED - 1 :]
    p = _problem(args)
    grads = (torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v))
    row_max, log_sum = statistics
    with device_guard(p.q):
        dlse = None if dlse is None else dlse.float().contiguous()
        for step in hopper.backward_launches(
            p, Saved(dout, row_max, log_sum, row_max), out, dlse, grads, deterministic
        ):
            step.run()
    most_keys = Band(p.left, p.right, p.top_left).most_keys(p.q.shape[2], p.k.shape[2])
    if most_keys <= 1 and dlse is None and p.sinks is None:
        # A softmax over one key is constant: what dO seems to send to its score is rounding.
        grads[0].zero_()
        grads[1].zero_()
    return grads


def _fake_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    if _ahead(args[0]):
        return _backward(*args)
    return tuple(torch.empty_like(x) for x in args[:3])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.options = inputs[4:]
    ctx.set_materialize_grads(False)


def _gradient(
    ctx: Any, dout: torch.Tensor | None, dstatistics: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    q, k, v, sinks, out, statistics = ctx.saved_tensors
    scale, left, right, top_left, deterministic = ctx.options
    rest = (None,) * (_N_SHARED - 4)
    if dout is None and dstatistics is None:
        return (None, None, None, None, *rest)
    # The log-sum-exp is row_max · scale + log_sum: what comes back on log_sum is its gradient.
    dlse = None if dstatistics is None else dstatistics[1]
    dout = torch.zeros_like(out) if dout is None else dout
    needs = ctx.needs_input_grad
    if all(needs[:3]) and not needs[3]:
        dq, dk, dv = torch.ops.fa_core.hopper_backward.default(
            q, k, v, sinks, scale, left, right, top_left, deterministic, dout, dlse, out, statistics
        )
        return (dq, dk, dv, None, *rest)
    wanted = [needs[0], needs[1] or needs[2], False, needs[3]]
    dq, dk, dv, _, dsinks = torch.ops.fa_core.flash_backward.default(
        q, k, v, None, None, sinks, None, None, None, scale, left, right, top_left, 0.0, None, None,
        dout, dlse, out, statistics, wanted,
    )  # fmt: skip
    grads = (dq, dk, dv, dsinks)
    return (*(grad if needs[i] else None for i, grad in enumerate(grads)), *rest)


def _no_second_gradient(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "flash attention can be differentiated once, not twice: impl='naive' has both derivatives"
    )


def _setup_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    pass


_LIBRARY.impl("hopper_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("hopper_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("fa_core::hopper_forward", _fake_forward, lib=_LIBRARY)
torch.library.register_fake("fa_core::hopper_backward", _fake_backward, lib=_LIBRARY)
torch.library.register_autograd("fa_core::hopper_forward", _gradient, setup_context=_setup, lib=_LIBRARY)
torch.library.register_autograd(
    "fa_core::hopper_backward", _no_second_gradient, setup_context=_setup_nothing, lib=_LIBRARY
)


def why_not(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    band: Band,
    *,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    tile: tuple[int, int] | None = None,
) -> str:
    """Why the kernels for sm_90 cannot take a dense call of checked arguments; "" where they can."""
    if tile is not None:
        return "no tile must be asked for: they have their own"
    band = band.needed(q.shape[2], k.shape[2])
    return hopper.why_not(
        Problem(q, k, v, bias, alibi_slopes, None, None, None, None, 1.0, *band, softcap or 0.0)
    )


def hopper_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    band: Band,
    scale: float,
    sinks: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The kernels for sm_90 on checked arguments: (out, lse or None), both differentiable once.

    Shapes as in `launch.Problem`; lse (B, H, Nq) is natural, fp32. With `deterministic` gradients are the
    same bit for bit on every run.

    Raises:
        NotImplementedError: they cannot take the call; one sentence on why.
    """
    if not 0 < scale < math.inf:  # as in `op.flash_attention`
        q, scale = q * math.copysign(1.0, scale) if scale else q * 0.0, abs(scale) or 1.0
    sinks = None if sinks is None else sinks.contiguous()
    out, statistics = torch.ops.fa_core.hopper_forward.default(q, k, v, sinks, scale, *band, deterministic)
    if not return_lse:
        return out, None
    row_max, log_sum = statistics
    return out, (row_max.detach() * scale + log_sum).float()


def plan_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, band: Band, scale: float
) -> PlannedForward | None:
    """A plan for dense calls like this one; None where these kernels cannot take it."""
    p = _problem((q, k, v, None, scale, *band))
    if not 0 < scale < math.inf or hopper.why_not(p):
        return None
    out = torch.empty_like(q)
    step = hopper.forward_launch(p, out, None, None)
    with device_guard(q):
        compiled = step.compile()
    return PlannedForward(q.device, Plan(step, compiled, {"q": q, "k": k, "v": v, "out": out}))
