"""The tensors of a case: q, k, v and dO, and what its features bring along (data/README.md says what).

Or, of an operation over rows, logits, targets and the output's gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from profiling.case import ATTENTION, PAGE_SIZE, Case

DTYPES: dict[str, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks")


class Inputs(NamedTuple):
    """What a call reads; None where the case has no such thing.

    `dense`: q (B, H, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv), dout (B, H, Nq, dv).
    `varlen`: sequences one after the other, q (total_q, H, d), k (total_k, Hkv, d) and so on; sequence b
    begins at `cu_seqlens_q[b]` and `cu_seqlens_k[b]` (batch + 1, int32).
    `paged`: q as in `dense`; k and v are caches (pages, PAGE_SIZE, Hkv, d or dv); page p of sequence b is
    `block_table[b, p]` (int32), and `seq_lens` (batch, int32) says how many keys it has.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor  # the output's gradient
    bias: torch.Tensor | None = None  # (1, H, Nq, Nk), the case's dtype
    sinks: torch.Tensor | None = None  # (H,), the case's dtype
    slopes: torch.Tensor | None = None  # (H,), fp32: ALiBi's
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    seq_lens: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.q.device

    @property
    def leaves(self) -> dict[str, torch.Tensor]:
        """What a backward differentiates by: those of `DIFFERENTIABLE` that ask for a gradient."""
        known = {name: getattr(self, name) for name in DIFFERENTIABLE}
        return {name: x for name, x in known.items() if x is not None and x.requires_grad}

    def read_bytes(self, direction: str) -> int:
        """Bytes of what a direction reads: the output's gradient only where there is a backward."""
        return _read_bytes(self, direction)


class RowInputs(NamedTuple):
    """What a call of an operation over rows reads; the names of its properties are those of `Inputs`."""

    logits: torch.Tensor  # (rows, classes)
    dout: torch.Tensor  # the output's gradient: (rows,) fp32 of a loss, (rows, k) of weights
    target: torch.Tensor | None = None  # (rows,) int64, of cross-entropy

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.logits.device

    @property
    def leaves(self) -> dict[str, torch.Tensor]:
        """What a backward differentiates by."""
        return {"logits": self.logits} if self.logits.requires_grad else {}

    def read_bytes(self, direction: str) -> int:
        """Bytes of what a direction reads: the output's gradient only where there is a backward."""
        return _read_bytes(self, direction)


AnyInputs = Inputs | RowInputs


def _read_bytes(inputs: AnyInputs, direction: str) -> int:
    read = (x for x in inputs if x is not None and (direction != "fwd" or x is not inputs.dout))
    return sum(x.numel() * x.element_size() for x in read)


def inputs_of(case: Case, device: torch.device, seed: int) -> AnyInputs:
    """The inputs of a case of any operation; see `make_inputs` and `make_row_inputs`."""
    make = make_inputs if case.operation == ATTENTION else make_row_inputs
    return make(case, device, seed)


def make_row_inputs(case: Case, device: torch.device, seed: int) -> RowInputs:
    """Standard normal logits and output gradients, and targets uniform over the classes; as `make_inputs`."""
    rows, dtype = case.batch, DTYPES[case.dtype]
    generator = None if device.type == "meta" else torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        if generator is None:
            return torch.empty(shape, device=device, dtype=dtype)
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    logits = normal(rows, case.seq_len_k, dtype=dtype).requires_grad_(case.direction != "fwd")
    if case.operation != "cross_entropy":
        return RowInputs(logits, normal(rows, case.head_dim_v, dtype=dtype))
    target = torch.empty(rows, device=device, dtype=torch.int64)
    if generator is not None:
        target.random_(case.seq_len_k, generator=generator)
    return RowInputs(logits, normal(rows, dtype=torch.promote_types(dtype, torch.float32)), target)


def make_inputs(case: Case, device: torch.device, seed: int) -> Inputs:
    """Standard normal inputs in the case's dtype, the same for every process and backend.

    Values matter: constant inputs let a GPU clock higher than real ones do.
    """
    # `meta` tensors have no values to draw, and to pretend it would import torch's compiler.
    generator = None if device.type == "meta" else torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        if generator is None:
            return torch.empty(shape, device=device, dtype=DTYPES[case.dtype])
        return torch.randn(shape, generator=generator, device=device, dtype=DTYPES[case.dtype])

    q_heads, kv_heads, d, dv = case.heads, case.kv_heads, case.head_dim, case.head_dim_v
    offsets: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    table = seq_lens = None
    if case.layout == "varlen":
        total_q, total_k = (sum(n) for n in zip(*case.lengths, strict=True)) if case.batch else (0, 0)
        shapes = ((total_q, q_heads, d), (total_k, kv_heads, d), (total_k, kv_heads, dv))
        shapes += ((total_q, q_heads, dv),)
        offsets = (
            _offsets([n for n, _ in case.lengths], device),
            _offsets([n for _, n in case.lengths], device),
        )
    else:
        keys: tuple[int, ...] = (case.batch, kv_heads, case.seq_len_k)
        if case.layout == "paged":
            pages = case.batch * -(-case.seq_len_k // PAGE_SIZE)
            keys = (pages, PAGE_SIZE, kv_heads)
            # In no order: a cache that has served other sequences before has no neighbours left.
            order = torch.randperm(pages, generator=generator, device=device)
            table = order.to(torch.int32).view(case.batch, -1) if case.batch else order.view(0, 0).int()
            seq_lens = torch.full((case.batch,), case.seq_len_k, dtype=torch.int32, device=device)
        queries = (case.batch, q_heads, case.seq_len_q)
        shapes = ((*queries, d), (*keys, d), (*keys, dv), (*queries, dv))
    q, k, v, dout = (normal(*shape) for shape in shapes)
    inputs = Inputs(
        *(q, k, v, dout),
        bias=normal(1, q_heads, case.seq_len_q, case.seq_len_k) if case.bias else None,
        sinks=normal(q_heads) if case.sinks else None,
        slopes=alibi_slopes(q_heads, device) if case.alibi else None,
        cu_seqlens_q=offsets[0],
        cu_seqlens_k=offsets[1],
        block_table=table,
        seq_lens=seq_lens,
    )
    return require_grad(inputs, case.direction)


def _offsets(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(itertools.accumulate(lengths, initial=0)), dtype=torch.int32, device=device)


def alibi_slopes(heads: int, device: torch.device) -> torch.Tensor:
    """2^(-8(h+1)/heads) for head h, fp32: the paper's slopes for a power of two, and as they are beyond."""
    return torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device, dtype=torch.float32) / heads)


def require_grad(inputs: Inputs, direction: str) -> Inputs:
    """Let what is differentiable ask for gradients where the direction needs them."""
    for name in DIFFERENTIABLE:
        if (x := getattr(inputs, name)) is not None:
            x.requires_grad_(direction != "fwd")
    return inputs


def clone_inputs(inputs: AnyInputs) -> AnyInputs:
    """The same values in other memory, asking for the same gradients."""
    known = {name: x for name, x in inputs._asdict().items() if x is not None}
    copies = {name: x.detach().clone().requires_grad_(x.requires_grad) for name, x in known.items()}
    return type(inputs)(**copies)
