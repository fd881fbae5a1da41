"""Evidence for what the chapter says of memory: measured peaks, and the laws tensor by tensor."""

from __future__ import annotations

from profiling import units
from profiling.case import DTYPE_BYTES
from profiling.claims.evidence import (
    AtHand,
    Evidence,
    Fact,
    LackingError,
    Line,
    Maker,
    curves,
    exponent,
    fused_of,
    tensor_bytes,
)
from profiling.devices import catalogue
from profiling.model.capacity import CHAPTER, Workload, largest_seq_len, tensors, total_bytes
from profiling.model.memory import score_matrix_bytes
from profiling.units import GB, GIB

ONE_HEAD = CHAPTER._replace(batch=1, heads=1, kv_heads=1)
# A model of 7 billion weights as Llama's: 32 layers of 32 heads of 128, in 16 bits; its weights take 13.5 GB.
SEVEN_B = Workload(1, 32, 32, 4096, 128, "fp16", layers=32, causal=True, other_bytes=round(13.5 * GB))
ROOM = 24 * GIB


def _held(label: str, nbytes: float) -> Fact:
    return Fact(label, nbytes, units.bytes_text(nbytes))


def _fused(hand: AtHand, column: str, **fixed: object) -> str:
    rows = hand.plain
    for name, value in fixed.items():
        rows = rows[rows[name] == value]
    return fused_of(rows[rows[column].notna()])


def retained(hand: AtHand) -> Evidence:
    """What a forward leaves for its backward, in tensors of N·d, flash and eager."""
    fused = _fused(hand, "retained_mem_bytes", direction="bwd")
    found = curves(hand, ("naive", fused), "retained_mem_bytes", direction="bwd")
    n = found.shared[-1]
    own = {name: found.by_backend[name][n] / tensor_bytes(found.case, n) for name in ("naive", fused)}
    return Evidence(
        "measured",
        f"At N = {units.count_text(n)} the forward of {fused} left {units.number_text(own[fused])} tensors "
        f"of N·d beside q, k, v: O is one, the rest is statistics of rows. With O at hand only S and P are "
        f"formed again. Eager left {units.number_text(own['naive'])}.",
        found.label,
        (
            Fact(f"{fused}, tensors of N·d", own[fused], units.number_text(own[fused])),
            Fact("naive", own["naive"], units.number_text(own["naive"])),
        ),
    )


def statistics_kept(hand: AtHand) -> Evidence:
    """Bytes a query row that each fused backend keeps beyond the output."""
    rows = hand.plain
    rows = rows[rows["retained_mem_bytes"].notna() & (rows["direction"] == "bwd")]
    rows = rows[rows["device_kind"] == "cuda"]  # a CPU's own kernels keep something else
    facts = []
    label = ""
    for name in ("flash", "sdpa_flash", "sdpa_cudnn"):
        if name not in set(rows["name"]):
            continue
        found = curves(hand, (name,), "retained_mem_bytes", direction="bwd")
        n = found.shared[-1]
        beyond = found.by_backend[name][n] - tensor_bytes(found.case, n)
        each = beyond / (found.case.batch * found.case.heads * n)
        facts.append(Fact(f"{name}, bytes a row", each, f"{units.number_text(each)} B"))
        label = found.label
    if not facts:
        raise LackingError("memory that a fused forward leaves behind")
    said = ", ".join(f"{fact.label.partition(',')[0]} {fact.text}" for fact in facts)
    return Evidence(
        "measured",
        f"Beyond the output a forward kept, a query row: {said}. 4 B is one fp32 number, m + log l; 8 B are "
        "two, as the chapter has it.",
        label,
        tuple(facts),
    )


def growth(hand: AtHand) -> Evidence:
    """Exponents of the measured peaks along N."""
    fused = _fused(hand, "peak_mem_bytes", direction="fwd")
    found = curves(hand, ("naive", fused), "peak_mem_bytes", direction="fwd")
    last = [n for n in found.shared if n >= found.shared[-1] / 8]
    if len(last) < 2:
        raise LackingError("peak memory at two lengths within three octaves")
    slopes = {name: exponent({n: found.by_backend[name][n] for n in last}) for name in ("naive", fused)}
    return Evidence(
        "measured",
        f"Over N = {units.count_text(last[0])} to {units.count_text(last[-1])} the peak above the inputs "
        f"grew as N^{units.number_text(slopes['naive'])} for naive and N^{units.number_text(slopes[fused])} "
        f"for {fused}.",
        found.label,
        tuple(Fact(f"exponent, {name}", slope, units.number_text(slope)) for name, slope in slopes.items()),
        tuple(Line(name, found.by_backend[name]) for name in ("naive", fused)),
        "bytes",
        "Peak above the inputs",
    )


def width_counts(hand: AtHand) -> Evidence:
    """The peak a token and head at several head dims: it follows d, so a total of O(N) leaves d out."""
    fused = _fused(hand, "peak_mem_bytes", direction="fwd")
    rows = hand.plain
    rows = rows[(rows["name"] == fused) & (rows["direction"] == "fwd") & rows["peak_mem_bytes"].notna()]
    each: dict[int, float] = {}
    label = ""
    for d in sorted({int(d) for d in rows["head_dim"].unique()}):
        found = curves(hand, (fused,), "peak_mem_bytes", least=1, direction="fwd", head_dim=d)
        n = found.shared[-1]
        each[d] = found.by_backend[fused][n] / (found.case.batch * found.case.heads * n)
        label = found.label
    if len(each) < 2:
        raise LackingError("peak memory at two head dims")
    narrow, wide = min(each), max(each)
    return Evidence(
        "measured",
        f"A token of a head took {units.number_text(each[narrow])} B at d = {narrow} and "
        f"{units.number_text(each[wide])} B at d = {wide}, "
        f"{units.ratio_text(each[wide] / each[narrow])} for {units.ratio_text(wide / narrow)} the width: "
        "the output. Statistics, where they are kept, do not grow with d.",
        label,
        tuple(
            Fact(f"a token of a head, d = {d}", value, f"{units.number_text(value)} B")
            for d, value in each.items()
        ),
    )


def score_matrix(hand: AtHand) -> Evidence:
    """One head's score matrix at N = 8192 in 4 and in 2 bytes."""
    wide = score_matrix_bytes(CHAPTER.case("naive")).one_head
    half = score_matrix_bytes(CHAPTER._replace(dtype="fp16").case("naive")).one_head
    return Evidence(
        "modelled",
        f"{units.count_text(CHAPTER.seq_len)}² scores of 4 B are {units.bytes_text(wide)}, of 2 B "
        f"{units.bytes_text(half)}.",
        "profiling.model.memory, one head, N = 8192",
        (_held("fp32", wide), _held("fp16", half)),
    )


def one_head(hand: AtHand) -> Evidence:
    """N x N tensors of one head alive at the peak: in inference, and in training."""
    held = {}
    for training in (False, True):
        found = tensors(ONE_HEAD._replace(training=training), "naive")
        score = score_matrix_bytes(ONE_HEAD.case("naive")).one_head
        held[training] = sum(nbytes for nbytes in found.values() if nbytes >= score)
    four = 4 * score_matrix_bytes(ONE_HEAD.case("naive")).one_head
    return Evidence(
        "modelled",
        f"S, P, dP and dS of a head are {units.bytes_text(four)} in fp32. Alive at once are "
        f"{units.bytes_text(held[True])} of such matrices in training, {units.bytes_text(held[False])} in "
        "inference, which has no gradients.",
        "profiling.model.capacity, one head, N = 8192, d = 128, fp32",
        (
            _held("S, P, dP, dS", four),
            _held("at the peak, training", held[True]),
            _held("at the peak, inference", held[False]),
        ),
    )


def all_heads(hand: AtHand) -> Evidence:
    """All heads of the chapter's case, and the GPUs of the catalogue that hold it."""
    score = score_matrix_bytes(CHAPTER.case("naive")).all_heads
    peaks = {dtype: total_bytes(CHAPTER._replace(dtype=dtype), "naive") for dtype in ("fp32", "fp16")}
    memory = {d.name: d.memory_bytes for d in catalogue().values() if d.memory_bytes is not None}
    largest = max(memory, key=lambda name: memory[name])
    fits = {dtype: [name for name, has in memory.items() if has >= need] for dtype, need in peaks.items()}
    return Evidence(
        "modelled",
        f"Four fp32 matrices of all heads are {units.bytes_text(4 * score)}, and {largest} has "
        f"{units.bytes_text(memory[largest])}. An eager forward needs {units.bytes_text(peaks['fp32'])} in "
        f"fp32 ({len(fits['fp32'])} of {len(memory)} GPUs of the catalogue) and "
        f"{units.bytes_text(peaks['fp16'])} in fp16 ({len(fits['fp16'])}).",
        "profiling.model.capacity, the chapter's case, one layer; data/devices.toml",
        (
            _held("four matrices, fp32", 4 * score),
            _held("eager forward, fp32", peaks["fp32"]),
            _held("eager forward, fp16", peaks["fp16"]),
            _held(f"memory of {largest}", memory[largest]),
        ),
    )


def output_alone(hand: AtHand) -> Evidence:
    """The output of the chapter's case, and what a fused forward holds in fp32 and fp16."""
    out = CHAPTER.batch * CHAPTER.heads * CHAPTER.seq_len * CHAPTER.head_dim
    found = {dtype: tensors(CHAPTER._replace(dtype=dtype), "flash") for dtype in ("fp32", "fp16")}
    return Evidence(
        "modelled",
        f"O is {units.bytes_text(out * DTYPE_BYTES['fp32'])} in fp32 and "
        f"{units.bytes_text(out * DTYPE_BYTES['fp16'])} in fp16. With q, k, v and statistics a fused forward "
        f"holds {units.bytes_text(sum(found['fp32'].values()))} and "
        f"{units.bytes_text(sum(found['fp16'].values()))}.",
        "profiling.model.capacity, the chapter's case, one layer",
        (
            _held("O, fp32", found["fp32"]["O"]),
            _held("O, fp16", found["fp16"]["O"]),
            _held("row statistics, fp16", found["fp16"]["row statistics"]),
            _held("all, fp16", sum(found["fp16"].values())),
        ),
    )


def seven_b(hand: AtHand) -> Evidence:
    """The longest prompt of a model of 7 billion weights on a card of 24 GiB, eager and fused."""
    names = ("naive", "naive/fp32_softmax", "flash")
    longest = {name: largest_seq_len(SEVEN_B, name, ROOM) for name in names}
    said = {name: units.count_text(n) for name, n in longest.items()}
    return Evidence(
        "modelled",
        f"With 13.5 GB of weights on a card of {units.bytes_text(ROOM)} the longest causal prompt is N = "
        f"{said['naive']} eager, {said['naive/fp32_softmax']} with a softmax in fp32, and {said['flash']} "
        "fused, by our laws; layers beside attention need room, too. Which card it was is not said.",
        "profiling.model.capacity, B1 H32 d128, 32 layers, fp16, prompt read at once",
        tuple(Fact(f"longest N, {name}", n, said[name]) for name, n in longest.items()),
    )


MAKERS: dict[Maker, str] = {
    retained: "standard",
    statistics_kept: "standard",
    growth: "standard",
    width_counts: "standard",
    score_matrix: "",
    one_head: "",
    all_heads: "",
    output_alone: "",
    seven_b: "",
}
