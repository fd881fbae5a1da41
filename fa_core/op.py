"""The Triton kernels as PyTorch operators: what runs, what a compiler may assume, and the gradient.

`fa_core::flash_forward` returns, beside the output, what the backward needs of each row: statistics (2, B,
H, Nq), its maximum and the logarithm of its sum (see `forward_kernel`). Of these `flash_attention` makes the
log-sum-exp, so that its gradient comes back to the operator as the logarithm's.

Which kernels run is settled inside the operators, where tensors are real (`fa_core.dispatch`). Those for
sm_90 and the portable ones leave the same statistics, so that one can send back what the other has formed:
the gradient of sinks, or of some of q, k and v alone, is the portable ones'.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fa_core import autotune, dispatch, hopper, launch
from fa_core.band import Band
from fa_core.kernels import tuning
from fa_core.launch import Problem, Saved
from fa_core.plan import Plan

_SHARED = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? slopes, Tensor? sinks, Tensor? cu_q, Tensor? cu_k, "
    "Tensor? table, float scale, int? left, int? right, bool top_left, float softcap, "
    "int? block_m, int? block_n, str kernels, bool deterministic"
)
_LIBRARY = torch.library.Library("fa_core", "DEF")
_LIBRARY.define(f"flash_forward({_SHARED}, int? n_splits) -> (Tensor out, Tensor statistics)")
_LIBRARY.define(
    f"flash_backward({_SHARED}, Tensor dout, Tensor? dlse, Tensor out, Tensor statistics, bool[] wanted) "
    "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)"
)
_N_SHARED, _N_PROBLEM, _N_TENSORS = 18, 14, 9
# The tables ask here first, where autotuning is on; they themselves know nothing of a GPU.
tuning.finder = autotune.find


def _ahead(q: torch.Tensor) -> bool:
    """Whether kernels are to be compiled for a GPU that the tensors stand for; see `fa_core.ahead`."""
    return tuning.elsewhere is not None and q.is_meta


def _asked(block_m: int | None, block_n: int | None) -> tuple[int, int] | None:
    return None if block_m is None or block_n is None else (block_m, block_n)


def _forward_outputs(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Out in q's layout; the statistics contiguous."""
    q, d_v = p.q, p.v.shape[3]
    out = torch.empty_like(q) if q.shape[3] == d_v else q.new_empty(*q.shape[:3], d_v)
    return out, q.new_empty((2, *q.shape[:3]), dtype=p.statistics_dtype)


def _flash_forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    *tensors, block_m, block_n, kernels, _deterministic, n_splits = args
    p = Problem(*tensors).needed()
    out, statistics = _forward_outputs(p)
    row_max, log_sum = statistics.unbind()
    asked = _asked(block_m, block_n)
    with launch.device_guard(p.q):
        for step in dispatch.forward(p, out, row_max, log_sum, asked, kernels, n_splits):
            step.run()
    return out, statistics


def _fake_forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if _ahead(args[0]):
        p = Problem(*args[:_N_PROBLEM]).needed()
        kernels, tile = args[_N_SHARED - 2], _asked(*args[_N_PROBLEM : _N_PROBLEM + 2])
        if tile is None and p.sinks is None:
            _plan(p, kernels)  # has kernels of its own
        return _flash_forward(*args)
    return _forward_outputs(Problem(*args[:_N_PROBLEM]))


def _backward_outputs(p: Problem, wanted: list[bool]) -> list[torch.Tensor]:
    """Gradients in the layout of their tensors, and nothing where none is wanted."""
    want_dq, want_dkdv, want_dbias, want_dsinks = wanted
    nothing = p.q.new_empty
    return [
        torch.empty_like(p.q) if want_dq else nothing(0),
        torch.empty_like(p.k) if want_dkdv else nothing(0),
        torch.empty_like(p.v) if want_dkdv else nothing(0),
        p.bias.new_empty(p.bias.shape) if want_dbias and p.bias is not None else nothing(0),
        torch.empty_like(p.sinks) if want_dsinks and p.sinks is not None else nothing(0),
    ]


def _sink_gradient(p: Problem, s: Saved, row_dot: torch.Tensor, dlse: torch.Tensor | None) -> torch.Tensor:
    """dsink = -sum over rows of p_sink · (row_dot - dLSE): the sink is a key without a value.

    Not from delta, which is row_dot as the rounded output has it: what rounding leaves of each row would
    add up over all of them.
    """
    assert p.sinks is not None
    lse = s.row_max * p.unit + s.log_sum
    share = torch.exp(p.sinks.to(lse.dtype)[:, None] - lse)
    # A row without keys whose sink is -inf too has no share to give.
    share = torch.where(torch.isneginf(lse), 0.0, share)
    sent = row_dot if dlse is None else row_dot - dlse
    return -(share * sent).sum(dim=(0, 2)).to(p.sinks.dtype)


def _flash_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    shared, (dout, dlse, out, statistics, wanted) = args[:_N_SHARED], args[_N_SHARED:]
    *tensors, block_m, block_n, kernels, deterministic = shared
    p, asked = Problem(*tensors).needed(), _asked(block_m, block_n)
    want_dq, want_dkdv, want_dbias, want_dsinks = wanted
    dq, dk, dv, dbias, dsinks = grads = _backward_outputs(p, wanted)
    if out.numel() == 0:
        return tuple(x.zero_() for x in grads)
    row_max, log_sum = statistics
    dlse = None if dlse is None else dlse.to(row_max.dtype).contiguous()
    with launch.device_guard(p.q):
        if wanted == [True, True, False, False] and dispatch.is_for_hopper(p, asked, kernels, backward=True):
            # Delta has its place among what that backward holds for itself.
            s = Saved(dout, row_max, log_sum, row_max)
            for step in hopper.backward_launches(p, s, out, dlse, (dq, dk, dv), deterministic):
                step.run()
        else:
            s = Saved(dout, row_max, log_sum, torch.empty_like(row_max))
            launch.delta_launch(out, dout, dlse, s.delta, tuning.exact(p.q)).run()
            if want_dkdv:
                launch.dkdv_launch(p, s, dk, dv, p.tile("dkdv", asked)).run()
            if want_dq or want_dsinks:
                row_dot = torch.empty_like(s.delta) if want_dsinks else None
                into = dq if want_dq else torch.empty_like(p.q)
                launch.dq_launch(p, s, into, row_dot, p.tile("dq")).run()
                if row_dot is not None:
                    dsinks.copy_(_sink_gradient(p, s, row_dot, dlse))
            if want_dbias:
                launch.dbias_launch(p, s, dbias, p.tile("dbias")).run()
    band = Band(p.left, p.right, p.top_left)
    one_key = p.left == p.right == 0 or (p.cu_k is None and band.most_keys(p.q.shape[2], p.k.shape[2]) <= 1)
    if one_key and dlse is None and p.sinks is None:
        # A softmax over one key is constant: what dO seems to send to its score is rounding.
        for grad in (dq, dk, dbias):
            grad.zero_()
    return tuple(grads)


def _fake_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    if _ahead(args[0]):
        return _flash_backward(*args)
    return tuple(_backward_outputs(Problem(*args[:_N_PROBLEM]), args[-1]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_N_TENSORS], *output)
    ctx.options = inputs[_N_TENSORS:_N_SHARED]
    ctx.set_materialize_grads(False)


def _gradient(
    ctx: Any, dout: torch.Tensor | None, dstatistics: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    *tensors, out, statistics = ctx.saved_tensors
    p = Problem(*tensors, *ctx.options[:5])
    if p.table is not None:
        raise NotImplementedError("attention over a paged cache has no backward: call it without gradients")
    none = (None,) * (_N_SHARED + 1)
    if dout is None and dstatistics is None:
        return none
    # The log-sum-exp is row_max · unit + log_sum: what comes back on log_sum is its gradient.
    dlse = None if dstatistics is None else dstatistics[1]
    dout = torch.zeros_like(out) if dout is None else dout
    needs = ctx.needs_input_grad
    wanted = [needs[0], needs[1] or needs[2], needs[3], needs[5]]
    dq, dk, dv, dbias, dsinks = torch.ops.fa_core.flash_backward.default(
        *tensors, *ctx.options, dout, dlse, out, statistics, wanted
    )
    grads = {0: dq, 1: dk, 2: dv, 3: dbias, 5: dsinks}
    return tuple(grads[i] if i in grads and needs[i] else None for i in range(len(none)))


def _no_second_gradient(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "flash attention can be differentiated once, not twice: impl='naive' has both derivatives"
    )


def _setup_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    pass


_LIBRARY.impl("flash_forward", _flash_forward, "CompositeExplicitAutograd")
_LIBRARY.impl("flash_backward", _flash_backward, "CompositeExplicitAutograd")
torch.library.register_fake("fa_core::flash_forward", _fake_forward, lib=_LIBRARY)
torch.library.register_fake("fa_core::flash_backward", _fake_backward, lib=_LIBRARY)
torch.library.register_autograd("fa_core::flash_forward", _gradient, setup_context=_setup, lib=_LIBRARY)
torch.library.register_autograd(
    "fa_core::flash_backward", _no_second_gradient, setup_context=_setup_nothing, lib=_LIBRARY
)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    band: Band,
    scale: float,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    tile: tuple[int, int] | None = None,
    n_splits: int | None = None,
    kernels: str = "",
    deterministic: bool = False,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The Triton kernels on checked arguments: (out, lse or None), both differentiable once.

    Shapes as in `launch.Problem`; lse (B, H, Nq) is natural, fp32. `n_splits` None: as many parts of the
    keys as fill the device, where queries are few. `kernels`: as in `dispatch`, "" for what the call allows.
    With `deterministic` gradients are the same bit for bit on every run.

    Raises:
        NotImplementedError: a requested tile does not fit the device; the kernels asked for cannot take the
            call.
    """
    if not 0 < scale < math.inf:
        # The kernels take the maximum before they scale, which is right for positive scales only; the
        # sign (or the zero) is as well carried by q.
        q, scale = q * math.copysign(1.0, scale) if scale else q * 0.0, abs(scale) or 1.0
    block_m, block_n = tile or (None, None)
    alibi_slopes = None if alibi_slopes is None else alibi_slopes.float().contiguous()
    cu_seqlens_q, cu_seqlens_k, block_table = (
        None if x is None else x.to(torch.int32).contiguous()
        for x in (cu_seqlens_q, cu_seqlens_k, block_table)
    )
    sinks = None if sinks is None else sinks.contiguous()
    out, statistics = torch.ops.fa_core.flash_forward.default(
        q, k, v, bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, block_table,
        scale, *band, softcap or 0.0, block_m, block_n, kernels, deterministic, n_splits,
    )  # fmt: skip
    if not return_lse:
        return out, None
    row_max, log_sum = statistics
    unit = 1.0 if softcap or alibi_slopes is not None or bias is not None else scale
    return out, (row_max.detach() * unit + log_sum).float()


def plan_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    band: Band,
    scale: float,
    kernels: str,
    *,
    cu_seqlens_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> Plan | None:
    """A plan for calls like this one, dense or on a paged cache; None where nothing is launched."""
    if not 0 < scale < math.inf:
        return None
    # A call may have one tensor in several places, and the next of its kind another in each: told apart here.
    q, k, v = (x.detach() for x in (q, k, v))
    tensors = (q, k, v, None, None, None, None, cu_seqlens_k, block_table)
    return _plan(Problem(*tensors, scale, *band, 0.0).needed(), kernels)


def _plan(p: Problem, kernels: str) -> Plan | None:
    """The compiled forward without a gradient or an LSE to come, for which sm_90's keep no statistics."""
    out, statistics = _forward_outputs(p)
    row_max, log_sum = statistics.unbind()
    with launch.device_guard(p.q):
        launches = dispatch.forward(p, out, row_max, log_sum, None, kernels, statistics=False)
        compiled = [each.compile() for each in launches]
    if p.q.is_meta or not launches:
        return None
    inputs = [x for x in (p.q, p.k, p.v, p.cu_k, p.table) if x is not None]
    return Plan(list(zip(launches, compiled, strict=True)), inputs, out)
