"""Operations over rows (cross-entropy, softmax with top-k): bytes moved, and memory held.

R rows of V classes make S = R V logits. Eager PyTorch goes over them kernel by kernel; a fused kernel reads
each logit once, by online softmax (Milakov and Gimelshein 2018, sections 3 and 4), and keeps two numbers a
row for the backward, which forms the probabilities anew. There is nothing between those two to count: a tile
of a row is asked for once, so that what tiles ask of L2, what reaches DRAM and what is compulsory are one.
"""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import DTYPE_BYTES, Case
from profiling.model.naive import Pass

# ATen's softmax kernels (aten/src/ATen/native/cuda/SoftMax.cu) keep a row in shared memory while it fits. Of
# a longer one the forward seeks the maximum, sums and writes, reading it each time; the backward sums its
# gradient first, and reads that again with the output.
_HELD_ROW_BYTES = 48 * 1024
_INDEX_BYTES = 8  # of a target, and of a chosen class
_FP32 = 4


class _Sizes(NamedTuple):
    rows: int
    kept: int  # numbers that come out, all rows together
    S: int  # logits
    e: int  # bytes of one
    wide: int  # bytes of one where a softmax is widened to fp32


def _sizes(case: Case) -> _Sizes:
    e = DTYPE_BYTES[case.dtype]
    return _Sizes(case.batch, case.batch * case.head_dim_v, case.batch * case.seq_len_k, e, max(e, _FP32))


def _soft_bytes(case: Case) -> int:
    """Bytes of a probability in eager code: a gate softens in fp32 what comes in 16 bits."""
    widens = case.operation == "softmax_top_k" or case.variant == "fp32_softmax"
    return max(DTYPE_BYTES[case.dtype], _FP32 if widens else 0)


def _casts(case: Case) -> bool:
    """Whether a kernel of its own widens the logits: CUDA's softmax widens fp16 itself, and that alone."""
    wider = _soft_bytes(case) > DTYPE_BYTES[case.dtype]
    return wider and not (case.operation == "softmax_top_k" and case.dtype == "fp16")


def input_bytes(case: Case) -> int:
    """Logits, targets where there are any, and the gradient of what comes out where there is a backward."""
    z = _sizes(case)
    targets = _INDEX_BYTES * z.rows if case.operation == "cross_entropy" else 0
    return z.S * z.e + targets + (0 if case.direction == "fwd" else _out_bytes(case))


def _out_bytes(case: Case) -> int:
    """A loss is fp32 (of fp64 fp64), the weights of a gate have the logits' dtype."""
    z = _sizes(case)
    return z.kept * (z.wide if case.operation == "cross_entropy" else z.e)


def compulsory_bytes(case: Case) -> int:
    """Each input and output once: what one pass over the logits moves, and a backward's pass likewise.

    The backward of a gate need not read the logits: what it chose, and with what weights, says all.
    """
    z = _sizes(case)
    statistics = 2 * z.wide * z.rows
    if case.operation == "cross_entropy":
        forward = z.S * z.e + _INDEX_BYTES * z.rows + _out_bytes(case) + statistics
        backward = 2 * z.S * z.e + _INDEX_BYTES * z.rows + _out_bytes(case) + statistics
    else:
        chosen = _out_bytes(case) + _INDEX_BYTES * z.kept
        forward = z.S * z.e + chosen
        backward = z.S * z.e + chosen + _out_bytes(case)
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[case.direction]


def naive_passes(case: Case) -> list[Pass]:
    """The kernels of eager PyTorch on CUDA, and what each reads and writes.

    What goes over a row alone (the loss, a division by k sums) is left out: R numbers beside R V. Counters of
    an H200 hold the sums for rows of 128 256 classes (`tests/model/test_model_rows.py`).
    """
    passes: list[Pass] = []
    if case.direction != "bwd":
        passes += _forward(case)
    if case.direction != "fwd":
        passes += _backward(case)
    return passes


def naive_bytes(case: Case) -> int:
    """Bytes read and written by `naive_passes`."""
    return sum(step.read_bytes + step.write_bytes for step in naive_passes(case))


def _again(case: Case, itemsize: int) -> int:
    """How often more a softmax kernel reads what it goes over, of so many bytes an element."""
    return 0 if case.seq_len_k * itemsize <= _HELD_ROW_BYTES else 1


def _forward(case: Case) -> list[Pass]:
    z, soft = _sizes(case), _soft_bytes(case)
    casts = _casts(case)
    passes = [Pass("cast logits to fp32", z.S * z.e, z.S * soft)] if casts else []
    read = soft if casts else z.e
    times = 1 + 2 * _again(case, read)
    if case.operation == "cross_entropy":
        return [*passes, Pass("log-softmax", times * z.S * read, z.S * soft)]
    return [*passes, Pass("softmax", times * z.S * read, z.S * soft), Pass("top-k", z.S * soft, 0)]


def _backward(case: Case) -> list[Pass]:
    z, soft = _sizes(case), _soft_bytes(case)
    passes = [Pass("zeros for the gradients of what was chosen", 0, z.S * soft)]
    write = soft if _casts(case) else z.e
    read = (2 + _again(case, soft)) * z.S * soft
    if case.operation == "cross_entropy":
        passes.append(Pass("log-softmax backward", read, z.S * write))
    else:  # two kernels behind one operator, as in attention: see `profiling.model.naive`
        passes += [
            Pass("P ∘ dP", 2 * z.S * soft, z.S * soft),
            Pass("softmax backward", read, z.S * write),
        ]
    return [*passes, Pass("cast dlogits", z.S * soft, z.S * z.e)] if _casts(case) else passes


def peak_tensors(case: Case, device_kind: str = "cuda") -> dict[str, int] | None:
    """The tensors alive at the peak above the inputs, and their bytes; None for a compiler's or a stranger's.

    Of eager code only those as large as the logits.
    """
    z = _sizes(case)
    if case.backend == "online":
        entropy = case.operation == "cross_entropy"
        more = {"statistics": 2 * z.wide * z.rows} if entropy else {"indices": _INDEX_BYTES * z.kept}
        rows = {"out": _out_bytes(case)} | more
        return rows if case.direction == "fwd" else rows | {"dlogits": z.S * z.e}
    if case.backend != "naive":
        return None
    soft, casts = _soft_bytes(case), _casts(case)
    probs = {"probs": z.S * soft}
    if case.direction == "fwd":
        return probs | ({"wide_logits": z.S * soft} if casts else {})
    # beside the probabilities the zeros that become their gradient, and what that becomes
    held = probs | {
        "dprobs": z.S * soft,
        "wide_dlogits" if casts else "dlogits": z.S * (soft if casts else z.e),
    }
    if case.operation == "softmax_top_k" and device_kind == "cuda":
        held["product"] = z.S * soft
    return held


def retained_tensors(case: Case) -> dict[str, int] | None:
    """The tensors that a forward leaves for its backward, and their bytes; None as in `peak_tensors`."""
    z = _sizes(case)
    if case.backend == "online":
        return peak_tensors(case.model_copy(update={"direction": "fwd"}))
    if case.backend != "naive":
        return None
    return {"probs": z.S * _soft_bytes(case)}
