"""How wrong a backend is: its error against an fp64 reference, beside the eager baseline's own.

The reference is `fa_core.naive_attention` in fp64 with autograd, on at most three sampled
(batch, kv head) pairs (each with all query heads that share the KV head) over the full length. It is
computed once for all backends of a shape, by slabs of query rows so that it fits beside what is measured;
masks and ALiBi are written out here and handed over as a bias, so that no implementation checks itself.
Gradients that all sequences share (of a bias, of sinks) need every sequence of a sampled head.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fa_core import naive_attention
from profiling.case import ATTENTION, Case
from profiling.measure import rows
from profiling.measure.inputs import DTYPES, AnyInputs, Inputs, RowInputs
from profiling.measure.layouts import gather_pages, options
from profiling.measure.masks import added_scores, keys_in_reach
from profiling.records import TensorError

MAX_PAIRS = 3
_ALL_TIED = "not checked: every row has a tie among its largest, and either may be chosen"
SHARED = ("dbias", "dsinks")  # gradients summed over the batch
_SLAB_BYTES = {"cuda": 2**28, "cpu": 2**26}  # of one fp64 score slab

Pair = tuple[int, int]
Place = tuple[int | None, int]  # a pair, or (None, kv head) for what all sequences share
Tensors = dict[str, torch.Tensor]  # by tensor name: out, lse, dq, dk, dv, dbias, dsinks


class Reference(NamedTuple):
    """fp64 tensors by place, and what the rule of `compare` needs to know of the eager baseline."""

    tensors: Mapping[Place, Tensors]
    eager: Mapping[str, Distance]
    rounding: Mapping[str, float]  # max |(ref + 0.3 - 0.3) - ref| in the dtype under test
    unchecked: str = ""  # why there is nothing to compare with, where that is no matter of course


class Distance(NamedTuple):
    """Distance of one tensor from the reference, over all pairs; infinite if not finite where it is."""

    rel: float  # ‖x - ref‖ / ‖ref‖
    max: float  # max |x - ref|


def sample_pairs(case: Case, seed: int) -> tuple[Pair, ...]:
    """At most `MAX_PAIRS` distinct (batch, kv head) pairs, chosen by `seed`.

    Where a gradient is shared, whole heads instead: of every sequence of the batch, one head at least.
    """
    chance = random.Random(seed)
    if case.direction != "fwd" and (case.bias or case.sinks):
        heads = min(max(MAX_PAIRS // max(case.batch, 1), 1), case.kv_heads)
        drawn = chance.sample(range(case.kv_heads), heads)
        return tuple(sorted(itertools.product(range(case.batch), drawn)))
    pairs = [(b, h) for b in range(case.batch) for h in range(case.kv_heads)]
    return tuple(sorted(chance.sample(pairs, min(MAX_PAIRS, len(pairs)))))


def slice_place(tensors: Mapping[str, torch.Tensor | None], place: Place, case: Case) -> Tensors:
    """Of each tensor the part that belongs to a place, as (1, group or 1, ...); per head (group,).

    Takes the tensors of `Inputs` by name, and results (out, lse, gradients); what is None, and what only
    says where things lie, is left out. Of an operation over rows a place is (row, 0).
    """
    batch, kv_head = place
    if case.operation != ATTENTION and batch is not None:
        return {name: x.detach()[batch : batch + 1] for name, x in tensors.items() if x is not None}
    group = case.heads // case.kv_heads
    own = slice(kv_head * group, (kv_head + 1) * group)
    out: Tensors = {}
    for name, x in tensors.items():
        of = name.removeprefix("d")
        if x is None or name in ("cu_seqlens_q", "cu_seqlens_k", "block_table", "seq_lens"):
            continue
        x = x.detach()
        heads = slice(kv_head, kv_head + 1) if of in ("k", "v") else own
        if of == "bias":
            out[name] = x[:, heads]
        elif of in ("sinks", "slopes"):
            out[name] = x[heads]
        elif batch is None:
            raise ValueError(f"{name} belongs to one sequence")
        elif case.layout == "varlen":
            rows = _packed_rows(case, batch, keys=of in ("k", "v"))
            part = x[heads, rows] if name == "lse" else x[rows, heads].transpose(0, 1)
            out[name] = part.unsqueeze(0)
        elif case.layout == "paged" and name in ("k", "v"):
            table = tensors["block_table"]
            own_pages = None if table is None else table[batch : batch + 1]
            out[name] = gather_pages(x[:, :, heads], own_pages, case.seq_len_k)
        else:
            out[name] = x[batch : batch + 1, heads]
    return out


def _packed_rows(case: Case, batch: int, *, keys: bool) -> slice:
    """Where a sequence lies in the pack."""
    lengths = [n_k if keys else n_q for n_q, n_k in case.lengths]
    start = sum(lengths[:batch])
    return slice(start, start + lengths[batch])


def attention_with_gradients(parts: Tensors, case: Case, slab_rows: int | None) -> Tensors:
    """Naive attention on the parts of one place, of one dtype: out, lse and, with a backward, gradients.

    At once (`slab_rows` None), as the eager baseline runs; or by slabs of query rows, each with the keys in
    its reach, and a mask and ALiBi written out for it.
    """
    backward = case.direction != "fwd"
    n_q, n_k = parts["q"].shape[2], parts["k"].shape[2]
    rows = max(n_q, 1) if slab_rows is None else slab_rows
    totals = {
        f"d{name}": torch.zeros_like(parts[name])
        for name in ("q", "k", "v", "bias", "sinks")
        if backward and name in parts
    }
    everything, outs, lses = slice(None), [], []
    for start in range(0, max(n_q, 1), rows):
        queries = range(start, min(start + rows, n_q))
        keys = range(n_k) if slab_rows is None else keys_in_reach(case, queries, n_q, n_k)
        own_rows, own_keys = slice(queries.start, queries.stop), slice(keys.start, keys.stop)
        where = {
            "q": (everything, everything, own_rows),
            "k": (everything, everything, own_keys),
            "v": (everything, everything, own_keys),
            "bias": (everything, everything, own_rows, own_keys),
            "sinks": (everything,),
        }
        leaves = {name: parts[name][at].detach() for name, at in where.items() if name in parts}
        for x in leaves.values():
            x.requires_grad_(backward)
        with torch.set_grad_enabled(backward):
            if slab_rows is None:
                slopes = {"alibi_slopes": parts["slopes"]} if "slopes" in parts else {}
                out, lse = _naive(leaves, **options(case), **slopes)
            else:
                added = added_scores(case, parts.get("slopes"), parts["q"], n_q, n_k, queries, keys)
                out, lse = _naive(_with_added(leaves, added), softcap=case.softcap)
        if backward and out.requires_grad:
            dout = parts["dout"][:, :, own_rows]
            found = torch.autograd.grad(out, tuple(leaves.values()), dout, allow_unused=True)
            for name, grad in zip(leaves, found, strict=True):
                if grad is not None:
                    totals[f"d{name}"][where[name]] += grad
        outs.append(out.detach())
        lses.append(lse.detach())
    return {"out": torch.cat(outs, dim=2), "lse": torch.cat(lses, dim=2)} | totals


def _with_added(leaves: Tensors, added: torch.Tensor | None) -> Tensors:
    if added is None:
        return leaves
    return leaves | {"bias": leaves["bias"] + added if "bias" in leaves else added}


def _naive(leaves: Tensors, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return naive_attention(**leaves, **keywords, return_lse=True)


def reference(case: Case, inputs: AnyInputs, seed: int) -> Reference:
    """The reference of a shape, and the eager baseline's error on the same inputs in the same dtype."""
    refs, eager = (
        _of_heads(case, inputs, seed) if isinstance(inputs, Inputs) else _of_rows(case, inputs, seed)
    )
    names = dict.fromkeys(name for tensors in refs.values() for name in tensors)

    def both(name: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        places = [place for place in refs if name in refs[place]]
        return [eager[place][name] for place in places], [refs[place][name] for place in places]

    return Reference(
        refs,
        {name: distance(*both(name)) for name in names},
        {name: _rounding(both(name)[1], DTYPES[case.dtype]) for name in names},
        _ALL_TIED if case.operation != ATTENTION and case.batch and not refs else "",
    )


_Places = dict[Place, Tensors]


def _of_rows(case: Case, inputs: RowInputs, seed: int) -> tuple[_Places, _Places]:
    """Reference and eager baseline of sampled rows, a place each."""
    sampled = rows.sample_rows(case, inputs, seed)
    own = rows.chosen(inputs, sampled)
    found = rows.results(case, rows.widened(own)), rows.results(case, own)

    def placed(tensors: Tensors) -> _Places:
        return {
            (row, 0): {name: x[i : i + 1] for name, x in tensors.items()} for i, row in enumerate(sampled)
        }

    return placed(found[0]), placed(found[1])


def _of_heads(case: Case, inputs: Inputs, seed: int) -> tuple[_Places, _Places]:
    """Reference and eager baseline of sampled heads, and of what all sequences share."""
    whole = inputs._asdict()
    group = case.heads // case.kv_heads
    slab = max(16, _SLAB_BYTES[inputs.q.device.type] // max(8 * group * case.seq_len_k, 1))
    refs: _Places = {}
    eager: _Places = {}
    for pair in sample_pairs(case, seed):
        parts = slice_place(whole, pair, case)
        wide = {name: x.double() for name, x in parts.items()}
        _add(refs, pair, attention_with_gradients(wide, case, slab))
        _add(eager, pair, attention_with_gradients(parts, case, None))
    return refs, eager


def _add(to: dict[Place, Tensors], pair: Pair, tensors: Tensors) -> None:
    """Keep a pair's tensors; what all sequences share is summed up, in fp64."""
    to[pair] = {name: x for name, x in tensors.items() if name not in SHARED}
    shared = to.setdefault((None, pair[1]), {})
    for name in SHARED:
        if name in tensors:
            part = tensors[name].double()
            shared[name] = shared[name] + part if name in shared else part


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
        places = [place for place, tensors in ref.tensors.items() if name in tensors]
        if name not in results or not places:
            continue
        parts = [slice_place({name: results[name]}, place, case)[name] for place in places]
        found = distance(parts, [ref.tensors[place][name] for place in places])
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
