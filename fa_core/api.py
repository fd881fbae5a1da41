"""The public door: validate, choose an implementation, call it. Kernels are imported when first needed."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from fa_core import plan
from fa_core.band import make_band
from fa_core.naive import naive_attention
from fa_core.policy import NAMED_IMPLS, SDPA_IMPLS, Choice, Policy, call_of, rule_text
from fa_core.tiled import tiled_attention
from fa_core.validation import (
    HAS_TRITON,
    check_bias,
    check_scale,
    check_scores,
    check_tensors,
    check_tile,
    interpreted,
    why_not_flash,
)

IMPLS: tuple[str, ...] = ("auto", *NAMED_IMPLS)
_PLANS = plan.Plans()
# By which of its kernels `flash` goes, as `fa_core.dispatch` has it: "" where the call decides.
_KERNELS: dict[str, str] = {"flash": "", "flash_portable": "portable", "flash_hopper": "hopper"}
_TILED_IMPLS = ("flash", "flash_portable", "tiled")


def _why_not_flash(q: torch.Tensor, v: torch.Tensor) -> str | None:
    if not HAS_TRITON:
        return "flash must have the triton package, which is not installed here (it exists for Linux)"
    return why_not_flash(q, v, interpreted=interpreted())


def check_flash(q: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse what the Triton kernels cannot take.

    Raises:
        NotImplementedError: one sentence on why.
    """
    if reason := _why_not_flash(q, v):
        raise NotImplementedError(reason)


def resolve_impl(impl: str, q: torch.Tensor, v: torch.Tensor, block_m: int | None) -> str:
    """The implementation that `impl` stands for.

    Raises:
        ValueError: an unknown one, or a tile asked of one that has none.
    """
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    if impl == "auto":
        impl = "naive" if interpreted() or _why_not_flash(q, v) else "flash"
    if block_m is not None and impl not in _TILED_IMPLS:
        raise ValueError(
            f"block_m and block_n must be left out for impl {impl!r}: "
            f"only {', '.join(_TILED_IMPLS)} have tiles"
        )
    return impl


def _policy_choice(
    policy: Policy,
    impl: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    features: tuple[object, ...],
    tiled: bool,
    return_lse: bool,
) -> Choice:
    """The rule for a checked call.

    `features`: window, ALiBi, softcap, bias and sinks, None if absent; `tiled`: a tile was asked for.
    """
    if impl != "auto":
        raise ValueError(f"policy must go with impl 'auto', got {impl!r}, which leaves nothing to choose")
    policy.check_device(q.device)
    if any(x is not None for x in features):
        return Choice(None, "rules are about calls without window, ALiBi, softcap, bias and sinks")
    if tiled:
        return Choice(None, "a tile was asked for")
    call = call_of(q, k, v, causal)
    if isinstance(call, str):
        return Choice(None, call)
    choice = policy.choose(call, q.shape[0] * q.shape[1], q.shape[2])
    if return_lse and choice.rule is not None and choice.rule.impl in SDPA_IMPLS:
        return Choice(None, f"the rule says {choice.rule.impl}, which returns no lse")
    return choice


def explain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    impl: str = "auto",
    policy: Policy | None = None,
    block_m: int | None = None,
    block_n: int | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> str:
    """Which implementation `attention` would take with these arguments, and why, in one line.

    Of `flash` it is the forward's kernels that are named; see `flash_kernels`.

    Raises:
        TypeError, ValueError: as `attention`, for what decides it; `scale` and `deterministic` do not.
    """
    del scale, deterministic
    extra: dict[str, Any] = {
        "alibi_slopes": alibi_slopes, "softcap": softcap, "bias": bias,
        "tile": None if block_m is None or block_n is None else (block_m, block_n),
    }  # fmt: skip
    q, k, v = autocast_together(q, k, v)
    check_tensors(q, k, v)
    check_tile(block_m, block_n)
    why = ""
    if policy is not None:
        features = (window, alibi_slopes, softcap, bias, sinks)
        choice = _policy_choice(policy, impl, q, k, v, causal, features, block_m is not None, return_lse)
        if choice.rule is not None:
            return rule_text(choice.rule)
        why = f"; policy: {choice.why}"
    found = resolve_impl(impl, q, v, block_m)
    if found in ("flash", "flash_hopper") and not (interpreted() or _why_not_flash(q, v)):
        from fa_core import dispatch

        band = make_band(causal, causal_align, window)
        reason = dispatch.why_not_hopper(q, k, v, band, **extra, by_choice=found == "flash")
        why = f"; {_kernels_text(found, reason)}{why}"
    if impl != "auto":
        return f"{impl}: asked for{why}"
    if found == "flash":
        return f"flash: it can take these tensors{why}"
    reason = "the interpreter is for tests only" if interpreted() else _why_not_flash(q, v)
    return f"naive: {reason}{why}"


def _kernels_text(impl: str, reason: str) -> str:
    if not reason:
        return "the kernels for sm_90"
    kept = "but" if impl == "flash_hopper" else "the portable kernels, because"
    return f"{kept} for those of sm_90 {reason}"


def flash_kernels(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    block_m: int | None = None,
    block_n: int | None = None,
    backward: bool = False,
) -> str:
    """By which kernels `impl="flash"` takes a call of `attention`: `flash_hopper` or `flash_portable`.

    With `backward` those of its backward, which may be others: a forward whose tiles would leave much of the
    GPU idle is the portable ones'.
    """
    from fa_core import dispatch

    tile = None if block_m is None or block_n is None else (block_m, block_n)
    reason = dispatch.why_not_hopper(
        q, k, v, make_band(causal, causal_align, window),
        alibi_slopes=alibi_slopes, softcap=softcap, bias=bias, tile=tile, by_choice=not backward,
    )  # fmt: skip
    return "flash_portable" if reason else "flash_hopper"


def autocast_together(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Under autocast the tensors in its dtype, as PyTorch's own attention takes them; fp64 is left alone."""
    first = tensors[0]
    if not isinstance(first, torch.Tensor) or first.is_meta:  # of `meta` autocast knows nothing
        return tensors
    if not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def flash_tile(
    head_dim: int, dtype: torch.dtype, direction: str = "fwd", causal: bool = False
) -> tuple[int, int]:
    """The (block_m, block_n) that `flash_portable` takes on a GPU with room for it when none is asked for.

    `causal` is whether a causal mask or a window limits the keys; `direction` is `fwd`, or `bwd` for the
    query x key tile of the kernel that forms dK and dV.
    """
    from fa_core.kernels import tuning

    config = tuning.seeded_config("forward" if direction == "fwd" else "dkdv", head_dim, dtype, causal)
    return config.block_m, config.block_n


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    causal_align: str = ...,
    window: tuple[int | None, int | None] | None = ...,
    alibi_slopes: torch.Tensor | None = ...,
    softcap: float | None = ...,
    bias: torch.Tensor | None = ...,
    sinks: torch.Tensor | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    policy: Policy | None = ...,
    block_m: int | None = ...,
    block_n: int | None = ...,
    deterministic: bool = ...,
    return_lse: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    causal_align: str = ...,
    window: tuple[int | None, int | None] | None = ...,
    alibi_slopes: torch.Tensor | None = ...,
    softcap: float | None = ...,
    bias: torch.Tensor | None = ...,
    sinks: torch.Tensor | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    policy: Policy | None = ...,
    block_m: int | None = ...,
    block_n: int | None = ...,
    deterministic: bool = ...,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    impl: str = "auto",
    policy: Policy | None = None,
    block_m: int | None = None,
    block_n: int | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention, softmax(cap(scale · q kᵀ) + alibi + bias + mask) v, by the implementation named.

    Query i stands on the diagonal at key i + shift; shift is seq_len_k - seq_len_q, so that the last query
    stands on the last key, or 0 with `causal_align="top-left"`. Under autocast q, k and v are taken in its
    dtype.

    Args:
        q: (batch, heads, seq_len_q, head_dim), any strides.
        k: (batch, kv_heads, seq_len_k, head_dim); kv_heads divides heads.
        v: (batch, kv_heads, seq_len_k, head_dim_v).
        causal: query i sees no key past the diagonal: j <= i + shift.
        causal_align: `bottom-right` or `top-left`; it places windows and ALiBi distances too.
        window: (left, right), both sides counted from the diagonal and included: i + shift - left <= j <=
            i + shift + right. None is no limit on that side; `causal` makes right 0.
        alibi_slopes: (heads,) or (batch, heads), no gradient: -slope · |i + shift - j| joins a score.
        softcap: scores become softcap · tanh(score / softcap), before anything is added to them.
        bias: (batch, heads, seq_len_q, seq_len_k), or 1 in any of these places, added to the scores; -inf
            hides a pair. Differentiable.
        sinks: (heads,), for each head one more score in the softmax whose key has no value. Differentiable.
        scale: factor on q kᵀ; 1/sqrt(head_dim) when None.
        impl: `flash` (Triton; fp16, bf16, fp32; head_dim to 256), which is `flash_hopper` (kernels for sm_90
            alone; plain scores in fp16 and bf16) where those can take the call and have enough to do, and
            `flash_portable` where not; `tiled` (the same algorithm in plain PyTorch), `naive` (eager, any
            dtype), `sdpa` (PyTorch's own choice) or a pinned `sdpa_flash`, `sdpa_cudnn`, `sdpa_efficient`,
            `sdpa_math`.
            `auto` is what `policy` says, and without a rule `flash` where it can run and `naive` elsewhere;
            `explain` says which and why.
        policy: rules for `auto`, from `load_policy`; they must have been measured on a device of q's kind.
        block_m: query rows of the tile of `flash` (then by its portable kernels) or `tiled`; with block_n,
            16, 32, 64, 128 or 256.
        block_n: keys of the tile. In the backward the tile is that of the kernel that forms dK and dV.
        deterministic: ask for bitwise equal results on every run, as `torch.use_deterministic_algorithms`
            does for all. `flash` without it adds dQ in no fixed order on sm_90 where head_dim is at most
            128, and is slower with it there; all else of ours is so anyway. For SDPA it switches PyTorch's
            own flag for the length of the call.
        return_lse: also return the natural log-sum-exp of each row (batch, heads, seq_len_q), sink included.

    Returns:
        out (batch, heads, seq_len_q, head_dim_v) in q's dtype; a row that sees no key is 0, its lse -inf.
        A NaN in k or v reaches every row that sees it, and may reach rows to which a mask hides it.

    Raises:
        TypeError, ValueError: arguments that do not fit together, an unknown `impl`, a tile asked of an
            implementation that has none, or a policy of another device.
        NotImplementedError: the named implementation cannot take these tensors or options, or return an lse.
    """
    kind = None
    if (impl == "auto" or impl in _KERNELS) and not plan.watched():
        if (
            alibi_slopes is softcap is bias is sinks is policy is block_m is block_n is None
            and not return_lse
        ):
            kind = plan.key_of(q, k, v, (causal, causal_align, window, scale, impl))
        if kind is not None and (planned := _PLANS.get(kind)) is not None:
            return planned(q, k, v)
    q, k, v = autocast_together(q, k, v)
    check_tensors(q, k, v)
    check_scores(q, q.shape[0], q.shape[1], softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks)
    check_bias(bias, q, k.shape[2])
    band = make_band(causal, causal_align, window)
    scale = check_scale(scale, q.shape[3])
    check_tile(block_m, block_n)
    tile = None if block_m is None or block_n is None else (block_m, block_n)
    if policy is not None:
        features = (window, alibi_slopes, softcap, bias, sinks)
        choice = _policy_choice(policy, impl, q, k, v, causal, features, tile is not None, return_lse)
        if choice.rule is not None:
            impl, tile = choice.rule.impl, choice.rule.tile
            block_m, block_n = tile or (None, None)
    impl = resolve_impl(impl, q, v, block_m)
    rules: dict[str, Any] = {
        "alibi_slopes": alibi_slopes,
        "softcap": softcap,
        "bias": bias,
        "sinks": sinks,
        "scale": scale,
    }
    masks: dict[str, Any] = {"causal": causal, "causal_align": causal_align, "window": window}

    if impl == "naive":
        eager: Any = naive_attention
        return eager(q, k, v, **masks, **rules, return_lse=return_lse)
    if impl == "tiled":
        asked = {} if tile is None else {"block_m": tile[0], "block_n": tile[1]}
        tiled: Any = tiled_attention
        return tiled(q, k, v, **masks, **rules, return_lse=return_lse, **asked)
    if impl in _KERNELS:
        check_flash(q, v)
        from fa_core import op

        if kind is not None and not interpreted():
            # Before the call, not after it: a plan is made with an output of its own, which is gone by then.
            _PLANS.learn(kind, lambda: op.plan_forward(q, k, v, band, scale, _KERNELS[impl]))
            if (planned := _PLANS.get(kind)) is not None:
                return planned(q, k, v)
        if bias is not None:
            # Rows and columns broadcast by strides of 0; autograd sums their gradients again.
            bias = bias.expand(*bias.shape[:2], q.shape[2], k.shape[2])
        out, lse = op.flash_attention(
            q, k, v, band=band, **{**rules, "bias": bias}, tile=tile, kernels=_KERNELS[impl],
            deterministic=deterministic or torch.are_deterministic_algorithms_enabled(),
            return_lse=return_lse,
        )  # fmt: skip
        return (out, lse) if lse is not None else out
    if return_lse:
        raise NotImplementedError(
            f"impl {impl!r} must be called without return_lse: PyTorch's SDPA returns none"
        )
    from fa_core.sdpa import sdpa_attention

    return sdpa_attention(q, k, v, band=band, **rules, impl=impl, deterministic=deterministic)
