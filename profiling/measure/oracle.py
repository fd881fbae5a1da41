"""How wrong a backend is: its error against an fp64 reference, beside the eager baseline's own.

The reference is `fa_core.naive_attention` in fp64 with autograd, on at most three sampled
(batch, kv head) pairs (each with all query heads that share the KV head) over the full length. It is
computed once for all backends of a shape, by slabs of query rows so that it fits beside what is measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from fa_core import naive_attention
from profiling.case import Case
from profiling.measure.backends import DTYPES, Inputs
from profiling.records import TensorError

MAX_PAIRS = 3
_SLAB_BYTES = {"cuda": 2**28, "cpu": 2**26}  # of one fp64 score slab

Pair = tuple[int, int]
Tensors = dict[str, torch.Tensor]  # by tensor name: out, lse, dq, dk, dv


class Reference(NamedTuple):
    """fp64 tensors per pair, and what the rule of `verdict` needs to know of the eager baseline."""

    pairs: tuple[Pair, ...]
    tensors: tuple[Tensors, ...]
    eager: Mapping[str, Distance]
    rounding: Mapping[str, float]  # max |(ref + 0.3 - 0.3) - ref| in the dtype under test


class Distance(NamedTuple):
    """Distance of one tensor from the reference, over all pairs; infinite if not finite where it is."""

    rel: float  # ‖x - ref‖ / ‖ref‖
    max: float  # max |x - ref|


def sample_pairs(case: Case, seed: int) -> tuple[Pair, ...]:
    """At most `MAX_PAIRS` distinct (batch, kv head) pairs, chosen by `seed`."""
    pairs = [(b, h) for b in range(case.batch) for h in range(case.kv_heads)]
    return tuple(sorted(random.Random(seed).sample(pairs, min(MAX_PAIRS, len(pairs)))))


def slice_pair(tensors: Tensors, pair: Pair, case: Case) -> Tensors:
    """Of each (B, heads, ...) tensor the (1, group or 1, ...) part that belongs to a pair."""
    batch, kv_head = pair
    group = case.heads // case.kv_heads
    out = {}
    for name, x in tensors.items():
        heads = slice(kv_head, kv_head + 1) if name in ("k", "v", "dk", "dv") else None
        heads = heads or slice(kv_head * group, (kv_head + 1) * group)
        out[name] = x.detach()[batch : batch + 1, heads]
    return out


def attention_with_gradients(parts: Tensors, causal: bool, backward: bool, slab_rows: int | None) -> Tensors:
    """Naive attention on q, k, v, dout of one dtype: out, lse and, if asked, dq, dk, dv.

    By slabs of `slab_rows` query rows (None: all at once). A causal slab sees a prefix of the keys, and
    bottom-right alignment makes it the same rows of the whole.
    """
    q, k, v = (parts[name].detach().requires_grad_(backward) for name in ("q", "k", "v"))
    n_q, n_k = q.shape[2], k.shape[2]
    rows = max(n_q, 1) if slab_rows is None else slab_rows
    outs, lses = [], []
    grads = [torch.zeros_like(x) for x in (q, k, v)] if backward else []
    for start in range(0, max(n_q, 1), rows):
        stop = min(start + rows, n_q)
        seen = min(max(stop + n_k - n_q, 0), n_k) if causal else n_k
        with torch.set_grad_enabled(backward):
            # The slab's first rows may see no key at all, as in the whole: naive_attention gives them 0.
            out, lse = naive_attention(
                q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], causal=causal, return_lse=True
            )
        if backward and out.requires_grad:
            slab_grads = torch.autograd.grad(
                out, (q, k, v), parts["dout"][:, :, start:stop], allow_unused=True
            )
            for total, grad in zip(grads, slab_grads, strict=True):
                if grad is not None:
                    total += grad
        outs.append(out.detach())
        lses.append(lse.detach())
    named = {"out": torch.cat(outs, dim=2), "lse": torch.cat(lses, dim=2)}
    return named | dict(zip(("dq", "dk", "dv"), grads, strict=False))


def reference(case: Case, inputs: Inputs, seed: int) -> Reference:
    """The reference of a shape, and the eager baseline's error on the same inputs in the same dtype."""
    backward = case.direction != "fwd"
    whole: Tensors = inputs._asdict()
    pairs = sample_pairs(case, seed)
    group = case.heads // case.kv_heads
    slab = max(16, _SLAB_BYTES[inputs.q.device.type] // max(8 * group * case.seq_len_k, 1))
    tensors, eager = [], []
    for pair in pairs:
        parts = slice_pair(whole, pair, case)
        wide = {name: x.double() for name, x in parts.items()}
        tensors.append(attention_with_gradients(wide, case.causal, backward, slab))
        eager.append(attention_with_gradients(parts, case.causal, backward, None))
    names = tensors[0] if tensors else ()
    return Reference(
        pairs,
        tuple(tensors),
        {name: distance([x[name] for x in eager], [x[name] for x in tensors]) for name in names},
        {name: _rounding([x[name] for x in tensors], DTYPES[case.dtype]) for name in names},
    )


def _rounding(refs: list[torch.Tensor], dtype: torch.dtype) -> float:
    largest = 0.0
    for ref in refs:
        x = ref[ref.isfinite()].to(dtype)
        if x.numel():
            largest = max(largest, ((x + 0.3 - 0.3) - x).abs().max().item())
    return largest


def distance(xs: list[torch.Tensor], refs: list[torch.Tensor]) -> Distance:
    """Distance of tensors from their references, taken together. An infinity that both have is no error."""
    largest = square = norm = 0.0
    for x, ref in zip(xs, refs, strict=True):
        x = x.double()
        finite = ref.isfinite()
        same_elsewhere = torch.equal(x[~finite], ref[~finite])
        if not same_elsewhere or not bool(x[finite].isfinite().all()):
            return Distance(math.inf, math.inf)
        if not bool(finite.any()):
            continue
        delta = x[finite] - ref[finite]
        largest = max(largest, delta.abs().max().item())
        square += delta.square().sum().item()
        norm += ref[finite].square().sum().item()
    if norm:
        return Distance(math.sqrt(square / norm), largest)
    return Distance(0.0 if square == 0 else math.inf, largest)


def compare(case: Case, results: Tensors, ref: Reference) -> Iterator[tuple[str, TensorError, bool]]:
    """Of each tensor in `results` (whole tensors): its name, its error, and whether it is within the rule.

    The rule: max|x - ref| <= 2 max|eager - ref| + 2 max|(ref + 0.3 - 0.3) - ref|.
    """
    for name in ref.eager:
        if name not in results or not ref.pairs:
            continue
        parts = [slice_pair({name: results[name]}, pair, case)[name] for pair in ref.pairs]
        found = distance(parts, [x[name] for x in ref.tensors])
        allowed = 2 * ref.eager[name].max + 2 * ref.rounding[name]
        error = TensorError(
            rel_error=finite_or_none(found.rel),
            eager_rel_error=finite_or_none(ref.eager[name].rel),
            max_error=finite_or_none(found.max),
            max_allowed=finite_or_none(allowed),
        )
        # An eager baseline that is not finite itself cannot judge: fp16 scores may overflow.
        yield name, error, found.max <= allowed or not math.isfinite(allowed)


def finite_or_none(x: float) -> float | None:
    """`x`, or None where JSON has no word for it."""
    return x if math.isfinite(x) else None
