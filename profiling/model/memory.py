"""Memory held: the peak that a call adds to its inputs, what a forward leaves behind, SRAM of a tile.

The eager laws replay which tensors of `fa_core.naive` are alive statement by statement; a test lets
PyTorch run and compares to the byte. A softmax's backward holds one more on CUDA than on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from profiling.case import ATTENTION, DTYPE_BYTES, FLASH_BACKENDS, PAGE_SIZE, Case
from profiling.model import hopper, rows
from profiling.model.naive import sizes
from profiling.model.traffic import is_modelled

# With no more queries than this `flash` divides the keys between programs, if there are as many as that.
FEW_QUERIES, DIVIDED_KEYS = 64, 512


class ScoreMatrix(NamedTuple):
    """Bytes of one N x N score matrix, in the case's dtype: of one head, and of all heads of the batch."""

    one_head: int
    all_heads: int


def score_matrix_bytes(case: Case) -> ScoreMatrix:
    """The matrix that eager attention materialises, several times over, and flash never does."""
    one = case.seq_len_q * case.seq_len_k * DTYPE_BYTES[case.dtype]
    return ScoreMatrix(one, one * case.batch * case.heads)


def input_bytes(case: Case) -> int:
    """q, k and v, dO where there is a backward, and what a feature brings; or an operation's logits.

    What a feature brings is a bias of one value a head, query and key; sinks and slopes, one a head; the
    offsets of packed sequences; the pages of a cache in full, with their table and the sequences' lengths.
    """
    if case.operation != ATTENTION:
        return rows.input_bytes(case)
    e = DTYPE_BYTES[case.dtype]
    queries, keys = (sum(lengths) for lengths in zip(*case.lengths, strict=True)) if case.batch else (0, 0)
    beside = case.heads * (e * case.sinks + 4 * case.alibi)
    if case.layout == "varlen":
        beside += 2 * 4 * (case.batch + 1)
    if case.layout == "paged":
        pages = case.batch * -(-case.seq_len_k // PAGE_SIZE)
        keys = pages * PAGE_SIZE
        beside += 4 * pages + 4 * case.batch
    if case.bias:
        beside += case.heads * case.seq_len_q * case.seq_len_k * e
    per_query = case.head_dim + (0 if case.direction == "fwd" else case.head_dim_v)
    per_key = case.head_dim + case.head_dim_v
    return (queries * case.heads * per_query + keys * case.kv_heads * per_key) * e + beside


def peak_bytes(case: Case, device_kind: str = "cuda") -> int | None:
    """The most that is held above q, k, v (and dO): in the forward for `fwd`, else in forward and backward.

    For `naive` in each variant, and for `flash` by any of its names; by that one alone as its portable
    kernels hold it (`model.hopper.as_run` says which a device takes). An allocator's rounding (512 B a
    tensor on CUDA) and a library's workspaces come on top. None for a backend whose tensors are not ours
    to know, for a case outside the formulas, and for `flash` with few queries and many keys: how many
    programs share those, each with a partial output, depends on the device.

    Args:
        case: the shape; its backend and direction choose the law.
        device_kind: `cuda` or `cpu`. An eager backward on CUDA holds the product P ∘ dP, which a CPU does
            not form (see `profiling.model.naive`).
    """
    held = peak_tensors(case, device_kind)
    return None if held is None else sum(held.values())


def peak_tensors(case: Case, device_kind: str = "cuda") -> dict[str, int] | None:
    """The tensors alive at the peak, and their bytes; arguments, and None, as in `peak_bytes`.

    Names are those of the code: `scores`, `probs`, `out`, `dscores`; a softmax widened to fp32 has its own
    with `wide_`; `rows` are flash's statistics, `beside` what its backward holds in fp32.
    """
    if case.operation != ATTENTION:
        return rows.peak_tensors(case, device_kind)
    if not is_modelled(case):
        return None
    if case.backend == "naive":
        return _naive(case, device_kind).at_peak
    if case.backend in FLASH_BACKENDS:
        s, row = sizes(case), _flash_row_bytes(case)
        if case.seq_len_q <= FEW_QUERIES and case.seq_len_k >= DIVIDED_KEYS:
            return None
        forward = {"out": s.out_all, "rows": 2 * row}
        if case.direction == "fwd":  # the kernels for sm_90 write statistics only where a backward reads them
            return {"out": s.out_all} if case.backend == "flash_hopper" else forward
        delta = row if s.out_all else 0
        beside = _hopper_backward_bytes(case) if case.backend == "flash_hopper" else delta
        if beside is None:
            return None
        return forward | {"beside": beside, "dq": s.q_all, "dk": s.k, "dv": s.v}
    return None


def retained_bytes(case: Case) -> int | None:
    """What a forward leaves for its backward, its output included; `None` as in `peak_bytes`."""
    held = retained_tensors(case)
    return None if held is None else sum(held.values())


def retained_tensors(case: Case) -> dict[str, int] | None:
    """The tensors that a forward leaves for its backward, and their bytes; names as in `peak_tensors`."""
    if case.operation != ATTENTION:
        return rows.retained_tensors(case)
    if not is_modelled(case):
        return None
    if case.backend == "naive":
        return _naive(case.model_copy(update={"direction": "fwd_bwd"}), "cuda").retained
    if case.backend in FLASH_BACKENDS:
        return {"out": sizes(case).out_all, "rows": 2 * _flash_row_bytes(case)}
    return None


def _flash_row_bytes(case: Case) -> int:
    """One number a query row: fp32, or fp64 where flash computes in fp64.

    The forward leaves two, the row's maximum and the logarithm of its sum. It computes in fp64
    for fp32 inputs on CPUs and data-centre GPUs (fa_core.kernels.tuning.exact).
    """
    return (8 if case.dtype == "fp32" else 4) * case.batch * case.heads * case.seq_len_q


def _hopper_backward_bytes(case: Case) -> int | None:
    """What the backward for sm_90 holds beside: of each query two fp32 numbers (delta, LSE), and dQ's sum.

    Queries are padded to whole steps. The sum has the padded width of a head, in fp32; there is none where a
    kernel of its own forms dQ. None for a head_dim that it cannot take.
    """
    tile, width = hopper.backward_tile(case), hopper.padded_width(case)
    if tile is None or width is None:
        return None
    queries = case.batch * case.heads * -(-case.seq_len_q // tile[0]) * tile[0]
    return 4 * queries * (2 + (width if hopper.sums_dq(case) else 0))


def largest_seq_len(case: Case, memory_bytes: int) -> int | None:
    """The largest N = Nq = Nk whose inputs and peak fit a GPU's `memory_bytes`; None as in `peak_bytes`.

    Of an operation over rows it is the largest number of classes.
    """

    def needed(n: int) -> int | None:
        queries = n if case.operation == ATTENTION else 1
        longer = case.model_copy(update={"seq_len_q": queries, "seq_len_k": n})
        peak = peak_bytes(longer)
        return None if peak is None else peak + input_bytes(longer)

    return largest_that_fits(needed, memory_bytes)


def largest_that_fits(needed: Callable[[int], int | None], memory_bytes: int) -> int | None:
    """The largest N for which `needed`, which grows with it, fits `memory_bytes`.

    None where `needed` is, and where nothing grows with N.
    """
    if needed(1) is None:
        return None
    low, high = 0, 1
    while (need := needed(high)) is not None and need <= memory_bytes:
        low, high = high, 2 * high
        if high > 2**40:  # no heads, or no batch
            return None
    while high - low > 1:
        middle = (low + high) // 2
        need = needed(middle)
        low, high = (middle, high) if need is not None and need <= memory_bytes else (low, middle)
    return low


def forward_sram_bytes(case: Case, block_m: int, block_n: int, stages: int = 1) -> int:
    """Shared memory of one block of a fused forward: Q (O takes its place), `stages` tiles of K and V.

    Scores and accumulators live in registers. As in FlashAttention-2's launch templates; a compiled
    kernel's own figure (Triton: `metadata.shared`) adds padding and staging copies.
    """
    d, dv = case.head_dim, case.head_dim_v
    return (block_m * max(d, dv) + stages * block_n * (d + dv)) * DTYPE_BYTES[case.dtype]


def backward_sram_bytes(case: Case, block_m: int, block_n: int, stages: int = 1) -> int:
    """Shared memory of one block of the dK/dV kernel: its K and V, `stages` tiles of Q and dO.

    What stays on chip lies there once, what passes by once a stage. With one stage it is what Triton asked
    for on an H200 (`h200-tiles`, d = 256, 128 x 128); statistics of rows, a few KiB, are left out.
    """
    return (block_n + stages * block_m) * (case.head_dim + case.head_dim_v) * DTYPE_BYTES[case.dtype]


class _Held(NamedTuple):
    at_peak: dict[str, int]
    retained: dict[str, int]  # after the forward


class _Ledger:
    """Tensors alive, by name, and those that were when there were most bytes."""

    def __init__(self) -> None:
        self.alive: dict[str, int] = {}
        self.at_peak: dict[str, int] = {}

    def hold(self, **tensors: int) -> None:
        """Allocate in the order given."""
        for name, size in tensors.items():
            self.alive[name] = size
            if sum(self.alive.values()) > sum(self.at_peak.values()):
                self.at_peak = dict(self.alive)

    def drop(self, *names: str) -> None:
        for name in names:
            self.alive.pop(name, None)


def _naive(case: Case, device_kind: str) -> _Held:
    """Replay `fa_core.naive`: what is alive when. The backward keeps scaled q, k, v, P, a fill's mask."""
    z, e = sizes(case), DTYPE_BYTES[case.dtype]
    variant = case.variant or "add"
    training = case.direction != "fwd"
    widens = variant == "fp32_softmax" and e < 4
    on_cuda = device_kind == "cuda"
    fused = case.dtype == "fp16"  # half is widened inside the softmax kernel, on CUDA
    S = z.S * e
    masked = case.causal and z.rows > 0
    held = _Ledger()

    if case.kv_heads != case.heads:
        held.hold(k=z.k_wide, v=z.v_wide)
    held.hold(q=z.q, scores=S)
    if not training:
        held.drop("q")
    if masked:
        held.hold(ones=z.hidden, hidden=z.hidden)
        held.drop("ones")
        if variant != "fill":
            held.hold(mask=z.hidden * e)
        held.hold(masked=S)
        held.drop("scores")
    if widens:
        if not fused:
            held.hold(wide_scores=4 * z.S)
        held.hold(wide_probs=4 * z.S)
        held.drop("wide_scores")
    held.hold(probs=S)
    if not training:
        held.drop("wide_probs")
    held.hold(out=z.out)
    if z.rows < case.seq_len_q:
        held.hold(zeros=z.out_all - z.out, all_out=z.out_all)
        held.drop("zeros", "out")
    held.drop("scores", "masked", "mask")
    if variant != "fill" or not masked:
        held.drop("hidden")
    retained = dict(held.alive)
    if not training:
        return _Held(held.at_peak, retained)

    held.hold(dv=z.v_wide, dprobs=S)
    held.drop("v")
    if widens:
        held.drop("probs")
        held.hold(wide_dprobs=4 * z.S)
        held.drop("dprobs")
        if fused:
            held.hold(dscores=S, product=4 * z.S if on_cuda else 0)
            held.drop("wide_dprobs", "wide_probs", "product")
        else:
            held.hold(wide_dscores=4 * z.S, product=4 * z.S if on_cuda else 0)
            held.drop("wide_dprobs", "wide_probs", "product")
            held.hold(dscores=S)
            held.drop("wide_dscores")
    else:
        held.hold(dscores=S, product=S if on_cuda else 0)
        held.drop("probs", "dprobs", "product")
    if variant == "fill" and masked:
        held.hold(filled=S)
        held.drop("dscores", "hidden")
    held.hold(dk=z.k_wide, dscaled_q=z.q)
    held.drop("dscores", "filled", "q", "k")
    held.hold(dq=z.q)
    held.drop("dscaled_q")
    if z.rows < case.seq_len_q:
        held.hold(dq_all=z.q_all)
        held.drop("dq")
    if case.kv_heads != case.heads:
        held.hold(dv_sum=z.v)
        held.drop("dv")
        held.hold(dk_sum=z.k)
    return _Held(held.at_peak, retained)
