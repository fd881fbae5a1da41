"""The eager baseline's memory traffic, kernel by kernel, for each variant of `fa_core.naive`.

Counted as on a CUDA device with no cache between kernels: each kernel reads its inputs once and writes
its outputs once, a broadcast input once. The list follows the eager code statement by statement; a test
records the operators PyTorch really runs and compares. Hardware counters of an H200 hold the sums, once
a score matrix outgrows the L2: within 3 %, forward and backward
(`tests/model/test_model_traffic_counters.py`). Below that size kernels find in the L2 what the one before
left, and less reaches DRAM.
"""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import DETERMINISTIC, DTYPE_BYTES, NAIVE_VARIANTS, Case, InputError


class Pass(NamedTuple):
    """One kernel: what it reads, what it writes, and its matmul FLOPs (0 for anything but a matmul)."""

    name: str
    read_bytes: int
    write_bytes: int
    flops: int = 0


class Sizes(NamedTuple):
    """Bytes of the eager code's tensors, all heads together; `S` and `hidden` count elements, not bytes."""

    e: int  # bytes of an element
    rows: int  # queries that see at least one key, per head
    q: int  # of the rows above
    out: int  # of the rows above
    q_all: int
    out_all: int
    k: int  # as given
    v: int
    k_wide: int  # repeated for every query head
    v_wide: int
    S: int  # scores of all heads
    hidden: int  # elements of one mask


def sizes(case: Case) -> Sizes:
    """The sizes for a case. Rows that see no key are left out of the eager code's products, and of `rows`."""
    e = DTYPE_BYTES[case.dtype]
    n_q, n_k, d, dv = case.seq_len_q, case.seq_len_k, case.head_dim, case.head_dim_v
    empty = n_q if n_k == 0 else max(0, n_q - n_k) if case.causal else 0
    rows = n_q - empty
    heads, kv_heads = case.batch * case.heads, case.batch * case.kv_heads
    return Sizes(
        e=e,
        rows=rows,
        q=heads * rows * d * e,
        out=heads * rows * dv * e,
        q_all=heads * n_q * d * e,
        out_all=heads * n_q * dv * e,
        k=kv_heads * n_k * d * e,
        v=kv_heads * n_k * dv * e,
        k_wide=heads * n_k * d * e,
        v_wide=heads * n_k * dv * e,
        S=heads * rows * n_k,
        hidden=rows * n_k,
    )


def naive_passes(case: Case, variant: str | None = None) -> list[Pass]:
    """The kernels of the eager baseline in the order they run, for the case's direction.

    Args:
        case: the shape; `case.direction` chooses forward, backward, or one after the other.
        variant: one of `NAIVE_VARIANTS`; the case's own if it is eager, or `add`, when None.

    Raises:
        InputError: unknown variant.
    """
    own = "" if case.variant == DETERMINISTIC else case.variant  # another backend's, and none of eager
    variant = variant or own or "add"
    if variant not in NAIVE_VARIANTS:
        raise InputError(f"unknown variant {variant!r}: must be one of {', '.join(NAIVE_VARIANTS)}")
    passes: list[Pass] = []
    if case.direction != "bwd":
        passes += _forward(case, variant)
    if case.direction != "fwd":
        passes += _backward(case, variant)
    return passes


def _forward(case: Case, variant: str) -> list[Pass]:
    z = sizes(case)
    S, e = z.S, z.e
    passes = []
    if case.kv_heads != case.heads:
        passes += [Pass("repeat K", z.k, z.k_wide), Pass("repeat V", z.v, z.v_wide)]
    passes += [
        Pass("scale Q", z.q, z.q),
        Pass("S = Q Kᵀ", z.q + z.k_wide, S * e, 2 * S * case.head_dim),
    ]
    if case.causal and z.rows:
        passes += [Pass("mask: ones", 0, z.hidden), Pass("mask: triu", z.hidden, z.hidden)]
        if variant == "fill":  # out of place: PyTorch copies the scores, then fills the copy
            passes += [
                Pass("mask: clone S", S * e, S * e),
                Pass("mask: fill", S * e + z.hidden, S * e),
            ]
        else:
            passes += [
                Pass("mask: zeros", 0, z.hidden * e),
                Pass("mask: fill", z.hidden * (e + 1), z.hidden * e),
                Pass("mask: add to S", S * e + z.hidden * e, S * e),
            ]
    passes += _softmax(case, variant, S, e)
    passes.append(Pass("O = P V", S * e + z.v_wide, z.out, 2 * S * case.head_dim_v))
    if z.rows < case.seq_len_q:
        passes += [
            Pass("zero rows that see no key", 0, z.out_all - z.out),
            Pass("join rows", z.out_all, z.out_all),
        ]
    return passes


def _softmax(case: Case, variant: str, S: int, e: int) -> list[Pass]:
    if variant != "fp32_softmax" or e >= 4:
        return [Pass("softmax", S * e, S * e)]
    if case.dtype == "fp16":  # ATen fuses the widening into the softmax for half, and for half alone
        return [Pass("softmax to fp32", S * 2, S * 4), Pass("cast P", S * 4, S * 2)]
    return [
        Pass("cast S to fp32", S * 2, S * 4),
        Pass("softmax in fp32", S * 4, S * 4),
        Pass("cast P", S * 4, S * 2),
    ]


def _softmax_backward(case: Case, variant: str, S: int, e: int) -> list[Pass]:
    """dS = P ∘ dP - P · rowsum(P ∘ dP), for which CUDA writes the product P ∘ dP to memory first.

    `softmax_backward_cuda_out` (PyTorch, aten/src/ATen/native/cuda/SoftMax.cu) calls an elementwise
    product, in the dtype of P and dP, and hands it with P to the softmax kernel: two kernels behind one
    operator, where a CPU has one. Counters (2 reads and a write of S more than without) and the measured
    peak (one S more) both show it. The softmax kernel goes over a row twice, to sum it and to write it; a
    row is some KiB, so the second time is served by caches and is no DRAM traffic.
    """
    if variant != "fp32_softmax" or e >= 4:
        return [
            Pass("P ∘ dP", 2 * S * e, S * e),
            Pass("softmax backward", 2 * S * e, S * e),
        ]
    if case.dtype == "fp16":  # fused here as in the forward: reads fp32, writes half
        return [
            Pass("cast dP to fp32", S * 2, S * 4),
            Pass("P ∘ dP in fp32", S * 8, S * 4),
            Pass("softmax backward to fp16", S * 8, S * 2),
        ]
    return [
        Pass("cast dP to fp32", S * 2, S * 4),
        Pass("P ∘ dP in fp32", S * 8, S * 4),
        Pass("softmax backward in fp32", S * 8, S * 4),
        Pass("cast dS", S * 4, S * 2),
    ]


def _backward(case: Case, variant: str) -> list[Pass]:
    z = sizes(case)
    S, e = z.S, z.e
    # Transposed operands are views: cuBLAS takes either order, so nothing is copied to be contiguous.
    passes = [
        Pass("dV = Pᵀ dO", S * e + z.out, z.v_wide, 2 * S * case.head_dim_v),
        Pass("dP = dO Vᵀ", z.out + z.v_wide, S * e, 2 * S * case.head_dim_v),
    ]
    passes += _softmax_backward(case, variant, S, e)
    if case.causal and z.rows and variant == "fill":
        passes += [Pass("mask: clone dS", S * e, S * e), Pass("mask: fill", S * e + z.hidden, S * e)]
    # A mask that was added has no gradient of its own, and dS passes through the sum as it is.
    passes += [
        Pass("dK = dSᵀ Q", S * e + z.q, z.k_wide, 2 * S * case.head_dim),
        Pass("dQ = dS K", S * e + z.k_wide, z.q, 2 * S * case.head_dim),
        Pass("scale dQ", z.q, z.q),
    ]
    if z.rows < case.seq_len_q:
        passes += [Pass("zero dQ", 0, z.q_all), Pass("place dQ", z.q, z.q)]
    if case.kv_heads != case.heads:
        passes += [Pass("sum dV over the group", z.v_wide, z.v), Pass("sum dK over the group", z.k_wide, z.k)]
    return passes
