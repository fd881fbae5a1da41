"""Evidence for what the chapter says of bytes moved: models of traffic, and hardware counters."""

from __future__ import annotations

from profiling import units
from profiling.case import Case
from profiling.claims.evidence import (
    AtHand,
    Curves,
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
from profiling.devices import Device, find_device
from profiling.model.latency import est_flash
from profiling.model.naive import naive_passes
from profiling.model.orders import tile_bytes_for
from profiling.model.traffic import traffic

# The chapter's shape in 16 bits, which is what kernels take.
CHAPTER = Case(
    backend="flash",
    dtype="fp16",
    batch=8,
    heads=32,
    kv_heads=32,
    seq_len_q=8192,
    seq_len_k=8192,
    head_dim=128,
    head_dim_v=128,
)
CHAPTER_GPU = "A100-SXM-80GB"
SHAPE = "B8 H32 N8192 d128 fp16"


def _gpu(hand: AtHand) -> Device:
    """The device of the runs if it is a GPU whose caches are known, else the chapter's."""
    device = hand.device
    return device if device is not None and device.usable_cache_bytes else find_device(CHAPTER_GPU)


def _traffic(label: str, nbytes: float) -> Fact:
    return Fact(label, nbytes, units.traffic_text(nbytes))


def _ratio(label: str, value: float) -> Fact:
    return Fact(label, value, units.ratio_text(value))


def _fused(hand: AtHand, column: str) -> str:
    rows = hand.plain
    return fused_of(rows[rows[column].notna()])


def four_series(hand: AtHand) -> Evidence:
    """The chapter's shape by the four models: what each would call its traffic."""
    device = _gpu(hand)
    found = traffic(CHAPTER, device)
    dram = found.dram_bytes or found.compulsory_bytes
    return Evidence(
        "modelled",
        f"The chapter's shape in fp16 on {device.name}: eager moves {units.traffic_text(found.naive_bytes)}, "
        f"the tiles ask L2 for {units.traffic_text(found.tile_bytes)}, of which DRAM sees "
        f"{units.traffic_text(dram)}; each input and output once is "
        f"{units.traffic_text(found.compulsory_bytes)}. The bound speaks of the second number.",
        f"profiling.model.traffic, forward, {SHAPE}, tile 128 x 128",
        (
            _traffic("naive", found.naive_bytes),
            _traffic("tile (asked of L2)", found.tile_bytes),
            _traffic("dram", dram),
            _traffic("compulsory", found.compulsory_bytes),
        ),
    )


def counted_growth(hand: AtHand) -> Evidence:
    """DRAM bytes by hardware counters along N, with the exponents of both, and the tile model beside them."""
    fused = _fused(hand, "dram_bytes")
    both = curves(hand, ("naive", fused), "dram_bytes", direction="fwd")
    n = both.shared
    counted = {name: {k: both.by_backend[name][k] for k in n} for name in ("naive", fused)}
    asked = curves(hand, (fused,), "est_tile_bytes", direction="fwd", **both.shape).by_backend[fused]
    tile = {k: asked[k] for k in n}
    slopes = {name: exponent(points) for name, points in counted.items()}
    tiled = exponent(tile)
    last = n[-1]
    return Evidence(
        "measured",
        f"From N = {units.count_text(n[0])} to {units.count_text(last)} counters saw DRAM bytes grow as "
        f"N^{units.number_text(slopes['naive'])} for naive and N^{units.number_text(slopes[fused])} for "
        f"{fused}; what its tiles ask of L2 grows as N^{units.number_text(tiled)}. At N = "
        f"{units.count_text(last)} naive moves "
        f"{units.ratio_text(counted['naive'][last] / counted[fused][last])} as much.",
        both.label,
        (
            Fact("exponent, naive", slopes["naive"], units.number_text(slopes["naive"])),
            Fact(f"exponent, {fused}", slopes[fused], units.number_text(slopes[fused])),
            Fact("exponent, tiles (modelled)", tiled, units.number_text(tiled)),
            _ratio(f"naive / {fused} at N = {units.count_text(last)}",
                   counted["naive"][last] / counted[fused][last]),
        ),
        (Line("naive", counted["naive"]), Line(fused, counted[fused]), Line("tile", tile, True)),
        "bytes moved",
        "DRAM bytes, read and written",
    )  # fmt: skip


def two_causes(hand: AtHand) -> Evidence:
    """Kernels and FLOP per byte of eager attention beside the balance of the device, and flash's bound."""
    device = _gpu(hand)
    steps = naive_passes(CHAPTER)
    moved = sum(step.read_bytes + step.write_bytes for step in steps)
    intensity = sum(step.flops for step in steps) / moved
    flash = est_flash(CHAPTER, device)
    balance = (device.fp16_tflops or 0) / (device.dram_peak_gbs or 1) * 1e3
    return Evidence(
        "modelled",
        f"Eager attention is {units.count_text(len(steps))} kernels at {units.number_text(intensity)} FLOP a "
        f"byte; {device.name} needs {units.number_text(balance)} to keep its matrix units busy. One fused "
        f"kernel is bound by {'arithmetic' if flash.bound_by == 'compute' else 'bytes'}. Not writing S and P "
        "is the fewer bytes, not a second saving beside them.",
        f"profiling.model.naive and latency, forward, {SHAPE}",
        (
            Fact("kernels of eager attention", len(steps), units.count_text(len(steps))),
            Fact("eager, FLOP per byte", intensity, units.number_text(intensity)),
            Fact(f"balance of {device.name}", balance, units.number_text(balance)),
        ),
    )


def loop_orders(hand: AtHand) -> Evidence:
    """What the tiles of both loop orders ask for at the chapter's shape and the same SRAM."""
    device = _gpu(hand)
    sram = device.sram_bytes or find_device(CHAPTER_GPU).sram_bytes or 1
    first, second = (tile_bytes_for(CHAPTER, order=order, sram_bytes=sram) for order in ("fa1", "fa2"))
    halved = tile_bytes_for(CHAPTER, order="fa2", sram_bytes=sram, block_m=second.block_m, block_n=32)
    return Evidence(
        "modelled",
        f"With {units.bytes_text(sram)} on chip, keys outside (FlashAttention 1) ask for "
        f"{units.traffic_text(first.tile_bytes)}, queries outside (FlashAttention 2, the chapter's text) "
        f"for {units.traffic_text(second.tile_bytes)} with Br = {second.block_m}. Another Bc leaves the "
        f"latter at {units.traffic_text(halved.tile_bytes)}: there only Br counts.",
        f"profiling.model.orders, forward, {SHAPE}",
        (
            _traffic(f"keys outside, {first.block_m} x {first.block_n}", first.tile_bytes),
            _traffic(f"queries outside, {second.block_m} x {second.block_n}", second.tile_bytes),
            _traffic(f"queries outside, {halved.block_m} x {halved.block_n}", halved.tile_bytes),
        ),
    )


def counted_l2(hand: AtHand) -> Evidence:
    """Bytes through L2 by counters against the formula with queries outside."""
    fused = _fused(hand, "l2_bytes")
    found = curves(hand, (fused,), "l2_bytes", direction="fwd")
    n = found.shared[-1]
    counted = found.by_backend[fused][n]
    model = curves(hand, (fused,), "est_tile_bytes", direction="fwd", **found.shape).by_backend[fused][n]
    return Evidence(
        "measured",
        f"At N = {units.count_text(n)} counters saw {units.traffic_text(counted)} pass through L2 for "
        f"{fused}; 2Nd + 2N²d/Br with its Br says {units.traffic_text(model)}.",
        found.label,
        (
            _traffic("counted", counted),
            _traffic("modelled", model),
            _ratio("counted / modelled", counted / model),
        ),
    )


def keys_outside(hand: AtHand) -> Evidence:
    """What adding up dK and dV costs in either loop order of the backward, for one head of the chapter."""
    n, d, block = CHAPTER.seq_len_q, CHAPTER.head_dim, 128
    once = 2 * n * d * 2
    tiles = n // block
    again = tiles * 2 * n * d * 4 * 2  # fp32, read and written for each query tile
    return Evidence(
        "modelled",
        f"Keys outside, dK and dV of a head stay on chip and are written once: {units.traffic_text(once)}. "
        f"Queries outside, each of {tiles} query tiles would read and write fp32 sums of both: "
        f"{units.traffic_text(again)}. For dQ it is the other way round, so a split backward has one kernel "
        "of each order.",
        f"counted for one head, N = {units.count_text(n)}, d = {d}, tile {block}, fp16",
        (
            _traffic("keys outside", once),
            _traffic("queries outside", again),
            _ratio("more", again / once),
        ),
    )


def _tensors(found: Curves, name: str, n: int) -> float:
    return found.by_backend[name][n] / tensor_bytes(found.case, n)


def gradients_written(hand: AtHand) -> Evidence:
    """What the backward of each fused backend writes to DRAM, in tensors of N·d, at the longest N."""
    facts, label, n = [], "", 0
    for name in ("flash", "flash_portable", "sdpa_cudnn", "sdpa_flash"):
        try:
            found = curves(hand, (name,), "dram_write_bytes", least=1, direction="bwd")
        except LackingError:
            continue
        n = found.shared[-1]
        written = _tensors(found, name, n)
        facts.append(Fact(f"{name}, tensors of N·d written", written, units.number_text(written)))
        label = found.label
    if not facts:
        raise LackingError("DRAM bytes that a fused backward writes")
    again = 2 * -(-n // 128)
    said = ", ".join(f"{fact.label.partition(',')[0]} {fact.text}" for fact in facts)
    return Evidence(
        "measured",
        f"Counters saw the backward write so many tensors of N·d at the longest N: {said}. dQ, dK and dV "
        "once each are 3, an fp32 sum of dQ is 2 more, and 2 again each time it leaves the L2 and returns; "
        f"dQ and dK added to once per tile of 128 would be some {units.count_text(again)} at N = "
        f"{units.count_text(n)}.",
        label,
        (*facts, Fact("dQ and dK added to per tile", again, units.count_text(again))),
    )


def backward_over_forward(hand: AtHand) -> Evidence:
    """DRAM bytes of the backward over the forward's, counted, and each tensor once."""
    fused = _fused(hand, "dram_bytes")
    forward = curves(hand, (fused,), "dram_bytes", direction="fwd")
    backward = curves(hand, (fused,), "dram_bytes", direction="bwd", **forward.shape)
    both = sorted(set(forward.shared) & set(backward.shared))
    ratios = {n: backward.by_backend[fused][n] / forward.by_backend[fused][n] for n in both}
    if not ratios:
        raise LackingError("DRAM bytes of a forward and a backward at one N")
    n = both[-1]
    case = forward.at(fused, n)
    once = {
        way: traffic(case.model_copy(update={"direction": way}), None).compulsory_bytes
        for way in ("fwd", "bwd")
    }
    floor = once["bwd"] / once["fwd"]
    return Evidence(
        "measured",
        f"Counters saw the backward of {fused} move {units.ratio_text(min(ratios.values()))} to "
        f"{units.ratio_text(max(ratios.values()))} the forward's DRAM bytes, N = {units.count_text(both[0])} "
        f"to {units.count_text(n)}. Each tensor once is {units.ratio_text(floor)} already.",
        backward.label,
        (
            *(_ratio(f"N = {units.count_text(k)}", value) for k, value in ratios.items()),
            _ratio("each tensor once", floor),
        ),
    )


MAKERS: dict[Maker, str] = {
    four_series: "",
    counted_growth: "counters",
    two_causes: "",
    loop_orders: "",
    counted_l2: "counters",
    keys_outside: "",
    gradients_written: "counters",
    backward_over_forward: "counters",
}
