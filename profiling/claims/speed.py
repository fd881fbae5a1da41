"""Evidence for what the chapter says of time, work and errors: measured rows, counts of products."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from profiling import units
from profiling.case import CLOCKS, Case
from profiling.claims.evidence import (
    AtHand,
    Curves,
    Evidence,
    Fact,
    LackingError,
    Line,
    Maker,
    aged,
    curves,
    fused_of,
)
from profiling.model.capacity import Workload
from profiling.model.flops import flops
from profiling.model.naive import naive_passes
from profiling.model.tiles import executed_pairs
from profiling.units import GB

SHORT = 512  # the chapter: below it flash may be slower
CLAIMED_ERROR = 1e-6
CLAIMED_SAVING = 0.35  # of the time of a token
LATENCY = "latency_p50_ms"
# A model of 7 billion weights in 16 bits at one token a step, as Llama's.
WEIGHTS_BYTES = round(13.5 * GB)
DECODE = Workload(1, 32, 32, 16384, 128, "fp16", layers=32)


def _ratio(label: str, value: float) -> Fact:
    return Fact(label, value, units.ratio_text(value))


def _percent(label: str, value: float) -> Fact:
    return Fact(label, value, units.percent_text(value))


def _fused(rows: pd.DataFrame, column: str = LATENCY) -> str:
    return fused_of(rows[rows[column].notna()])


def errors_by_dtype(hand: AtHand) -> Evidence:
    """The median relative error of fused forwards and of eager ones, by dtype, beside 1e-6."""
    rows = hand.plain
    rows = rows[(rows["direction"] == "fwd") & rows["rel_error"].notna() & rows["eager_rel_error"].notna()]
    name = _fused(rows, "rel_error")
    rows = rows[rows["name"] == name]
    facts = []
    for dtype in ("fp64", "fp32", "bf16", "fp16"):
        own = rows[rows["dtype"] == dtype]
        if len(own):
            mid, eager = float(own["rel_error"].median()), float(own["eager_rel_error"].median())
            facts += [
                Fact(f"{dtype}, {name}", mid, units.number_text(mid)),
                Fact(f"{dtype}, eager", eager, units.number_text(eager)),
            ]
    if not facts:
        raise LackingError("errors of a forward")
    said = "; ".join(f"{fact.label} {fact.text}" for fact in facts)
    return Evidence(
        "measured",
        f"Median relative error of a forward: {said}; the chapter says {units.number_text(CLAIMED_ERROR)}.",
        f"{units.count_text(len(rows))} rows, worst tensor, against fp64 on the same inputs{aged(rows)}",
        tuple(facts),
    )


def short_sequences(hand: AtHand) -> Evidence:
    """The share of cases up to N = 512 in which flash was slower than naive, clock by clock."""
    rows = hand.plain
    rows = rows[(rows["seq_len_k"] <= SHORT) & (rows["direction"] == "fwd") & rows[LATENCY].notna()]
    name = _fused(rows)
    keys = ["run_id", "clock", "dtype", "batch", "heads", "kv_heads", "head_dim", "seq_len_k", "causal"]
    both = (
        rows[rows["name"].isin(["naive", name])]
        .pivot_table(index=keys, columns="name", values=LATENCY, aggfunc="first")
        .reindex(columns=["naive", name])
        .dropna()
    )
    if not len(both):
        raise LackingError(f"naive and {name} up to N = {SHORT}")
    ratio = both["naive"] / both[name]
    clocks = ratio.index.get_level_values("clock")
    facts = []
    for clock in (c for c in CLOCKS if c in set(clocks)):
        own = ratio[clocks == clock]
        facts.append(
            Fact(
                f"{clock} clock, share slower",
                float((own < 1).mean()),
                f"{units.count_text(int((own < 1).sum()))} of {units.count_text(len(own))}, "
                f"median {units.ratio_text(own.median())}",
            )
        )
    said = "; ".join(f"{fact.label.partition(' ')[0]} clock {fact.text}" for fact in facts)
    return Evidence(
        "measured",
        f"Forwards up to N = {SHORT} in which {name} was slower than naive: {said} (naive over {name}). A "
        "forward forms nothing again: what counts there is the launch, and blocks too few to fill the GPU.",
        f"runs {', '.join(sorted(set(ratio.index.get_level_values('run_id'))))}{aged(rows)}",
        tuple(facts),
    )


def training_speed(hand: AtHand) -> Evidence:
    """Forward and backward together, naive over flash, along N."""
    rows = hand.plain
    name = _fused(rows[(rows["direction"] == "bwd")])
    forward, backward = _both_ways(hand, ("naive", name))
    sums = {
        each: {n: forward.by_backend[each][n] + backward.by_backend[each][n]
               for n in sorted(set(forward.shared) & set(backward.shared))}
        for each in ("naive", name)
    }  # fmt: skip
    ratio = {n: sums["naive"][n] / sums[name][n] for n in sums[name]}
    last = max(ratio)
    return Evidence(
        "measured",
        f"Forward and backward together, {name} was {units.ratio_text(min(ratio.values()))} to "
        f"{units.ratio_text(max(ratio.values()))} as fast as naive from N = {units.count_text(min(ratio))} "
        f"to {units.count_text(last)}, and {units.ratio_text(ratio[last])} at the longest.",
        f"{forward.label}, and bwd",
        (
            _ratio("least", min(ratio.values())),
            _ratio("most", max(ratio.values())),
            _ratio(f"at N = {units.count_text(last)}", ratio[last]),
        ),
        (Line("naive", dict.fromkeys(ratio, 1.0)), Line(name, ratio)),
        "",
        "Speed-up over naive",
    )


def _both_ways(hand: AtHand, names: tuple[str, ...]) -> tuple[Curves, Curves]:
    """Latency curves of the forward and of the backward at the same shape."""
    backward = curves(hand, names, LATENCY, direction="bwd")
    forward = curves(hand, names, LATENCY, least=1, direction="fwd", **backward.shape)
    if not set(forward.shared) & set(backward.shared):
        raise LackingError("a forward and a backward at one N")
    return forward, backward


def work_ratio(hand: AtHand) -> Evidence:
    """Products of the backward over the forward's: eager, fused in one kernel, split in two."""
    ratios = products()
    return Evidence(
        "modelled",
        f"Products of the backward over the forward's: {units.ratio_text(ratios['naive'])} for eager, which "
        f"forms nothing again, {units.ratio_text(ratios['fused'])} fused in one kernel, "
        f"{units.ratio_text(ratios['split'])} split in two.",
        "profiling.model.flops, N = 8192, d = 128",
        tuple(_ratio(name, ratio) for name, ratio in ratios.items()),
    )


def products() -> dict[str, float]:
    """FLOPs of the backward over the forward's for one head of the chapter."""
    case = Case(backend="naive", dtype="fp16", seq_len_q=8192, seq_len_k=8192, head_dim=128, head_dim_v=128)
    back = case.model_copy(update={"direction": "bwd"})
    eager = sum(p.flops for p in naive_passes(back)) / sum(p.flops for p in naive_passes(case))
    found = {"naive": eager}
    for name, convention in (("fused", "exact"), ("split", "executed")):
        found[name] = flops(back, convention) / flops(case, convention)
    return found


def recompute_share(hand: AtHand) -> Evidence:
    """What forming S (and dP) again adds, of the backward and of a training step."""
    ratios = products()
    facts = []
    for name in ("fused", "split"):
        facts += [
            _percent(f"{name}, of the backward", ratios[name] / ratios["naive"] - 1),
            _percent(f"{name}, of both", (1 + ratios[name]) / (1 + ratios["naive"]) - 1),
        ]
    said = {fact.label: fact.text for fact in facts}
    return Evidence(
        "modelled",
        f"One product again adds {said['fused, of the backward']} to the backward and "
        f"{said['fused, of both']} to forward and backward; split in two kernels it is two products, "
        f"{said['split, of the backward']} and {said['split, of both']}.",
        "profiling.model.flops, matrix products alone",
        tuple(facts),
    )


def time_ratio(hand: AtHand) -> Evidence:
    """Measured time of the backward over the forward's, at the longest N."""
    rows = hand.plain
    name = _fused(rows[rows["direction"] == "bwd"])
    forward, backward = _both_ways(hand, (name,))
    ratio = {
        n: backward.by_backend[name][n] / forward.by_backend[name][n]
        for n in sorted(set(forward.shared) & set(backward.shared))
    }
    last = max(ratio)
    return Evidence(
        "measured",
        f"The backward of {name} took {units.ratio_text(ratio[last])} the forward's time at N = "
        f"{units.count_text(last)}.",
        f"{forward.label}, and bwd",
        tuple(_ratio(f"N = {units.count_text(n)}", value) for n, value in list(ratio.items())[-4:]),
    )


def decode_bytes(hand: AtHand) -> Evidence:
    """What a token of a model of 7 billion weights reads, and the share of eager's score vectors."""
    load = DECODE
    cache = 2 * load.layers * load.kv_heads * load.seq_len * load.head_dim * 2
    # One query: scores written, read and written by the softmax, read again, 2 B each.
    scores = 4 * load.layers * load.heads * load.seq_len * 2
    share = scores / (WEIGHTS_BYTES + cache + scores)
    return Evidence(
        "modelled",
        f"At N = {units.count_text(load.seq_len)} a token reads {units.traffic_text(WEIGHTS_BYTES)} of "
        f"weights and {units.traffic_text(cache)} of keys and values; eager's scores of one query are "
        f"{units.traffic_text(scores)}, {units.percent_text(share)} of it all. There is no N x N matrix when "
        "one token is made.",
        "counted for 32 layers of 32 heads, d = 128, fp16, batch 1",
        (
            Fact("weights", WEIGHTS_BYTES, units.traffic_text(WEIGHTS_BYTES)),
            Fact("keys and values", cache, units.traffic_text(cache)),
            Fact("scores, eager", scores, units.traffic_text(scores)),
            _percent("share of the scores", share),
        ),
    )


def decode_speed(hand: AtHand) -> Evidence:
    """One query beside many keys, naive over flash, measured."""
    rows = hand.rows
    rows = rows[(rows["seq_len_q"] == 1) & (rows["status"] == "ok") & (rows["layout"] == "dense")]
    rows = rows[rows["tile_m"].isna() & (rows["clock"] == "device") & (rows["variant"] == "")]
    rows = rows[rows["backend"].isin(["naive", "flash"]) & rows[LATENCY].notna()]
    keys = ["run_id", "dtype", "batch", "heads", "kv_heads", "head_dim", "causal", "seq_len_k"]
    both = rows.pivot_table(index=keys, columns="backend", values=LATENCY, aggfunc="first")
    both = both.reindex(columns=["naive", "flash"]).dropna()
    if not len(both):
        raise LackingError("one query beside many keys, naive and flash")
    ratio = both["naive"] / both["flash"]
    equal = both.index.get_level_values("heads") == both.index.get_level_values("kv_heads")
    # By Amdahl a part f of the time that gets S times as fast saves f (1 - 1/S).
    share = CLAIMED_SAVING / (1 - 1 / float(ratio.median()))
    facts = [
        _ratio("median", float(ratio.median())),
        _ratio("most", float(ratio.max())),
        _percent("attention's share for a saving of 35 %", share),
    ]
    if equal.any():
        facts.append(_ratio("median where no keys are repeated", float(ratio[equal].median())))
    return Evidence(
        "measured",
        f"With one query naive took {units.ratio_text(ratio.median())} the time of flash at the median of "
        f"{units.count_text(len(ratio))} shapes (at most {units.ratio_text(ratio.max())}). Eager copies keys "
        "that heads share and fills few multiprocessors; it moves no matrix of scores. To save "
        f"{units.percent_text(CLAIMED_SAVING)} of a token that way, attention would have to be "
        f"{units.percent_text(share)} of it.",
        f"runs {', '.join(sorted(set(ratio.index.get_level_values('run_id'))))}, device clock{aged(rows)}",
        tuple(facts),
    )


def causal_speed(hand: AtHand) -> Evidence:
    """The full forward over the causal one at the longest N, measured and by the tiles that run."""
    rows = hand.plain
    name = _fused(rows[rows["causal"]])
    masked = curves(hand, (name,), LATENCY, direction="fwd", causal=True)
    full = curves(hand, (name,), LATENCY, direction="fwd", **masked.shape | {"causal": False})
    both = sorted(set(masked.shared) & set(full.shared))
    if not both:
        raise LackingError("a forward with and without a causal mask")
    n = both[-1]
    ratio = full.by_backend[name][n] / masked.by_backend[name][n]
    tiles = executed_pairs(n, n, 128, 128, False) / executed_pairs(n, n, 128, 128, True)
    return Evidence(
        "measured",
        f"At N = {units.count_text(n)} the causal forward of {name} was {units.ratio_text(ratio)} as fast as "
        f"the full one, in the same kernel; tiles of 128 x 128 that need not run would allow "
        f"{units.ratio_text(tiles)}.",
        masked.label,
        (_ratio("measured", ratio), _ratio("by the tiles", tiles)),
    )


def alibi_cost(hand: AtHand) -> Evidence:
    """A forward with ALiBi over the same without."""
    rows = hand.rows
    rows = rows[(rows["backend"] == "flash") & (rows["variant"] == "") & (rows["direction"] == "fwd")]
    rows = rows[(rows["status"] == "ok") & (rows["layout"] == "dense") & rows["tile_m"].isna()]
    rows = rows[rows["window_left"].isna() & rows["softcap"].isna() & ~rows["bias"] & ~rows["sinks"]]
    rows = rows[rows["clock"] == "device"]
    keys = ["run_id", "dtype", "batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "causal"]
    both = rows.pivot_table(index=keys, columns="alibi", values=LATENCY, aggfunc="first")
    both = both.reindex(columns=[False, True]).dropna()
    if not len(both):
        raise LackingError("flash with and without ALiBi")
    ratio: Mapping[int, float] = {
        int(n): float(x)
        for n, x in zip(both.index.get_level_values("seq_len_k"), both[True] / both[False], strict=True)
    }
    last = max(ratio)
    ran = rows.pivot_table(index=keys, columns="alibi", values="kernel", aggfunc="first").loc[both.index]
    other = " With it other kernels ran than without." if (ran[True] != ran[False]).any() else ""
    return Evidence(
        "measured",
        f"ALiBi inside the kernel made the forward take {units.ratio_text(ratio[last])} the time at N = "
        f"{units.count_text(last)}; no kernel of its own, no matrix of biases.{other}",
        f"runs {', '.join(sorted(set(both.index.get_level_values('run_id'))))}, device clock{aged(rows)}",
        tuple(_ratio(f"N = {units.count_text(n)}", x) for n, x in sorted(ratio.items())),
    )


MAKERS: dict[Maker, str] = {
    errors_by_dtype: "standard",
    short_sequences: "standard",
    training_speed: "standard",
    work_ratio: "",
    recompute_share: "",
    time_ratio: "standard",
    decode_bytes: "",
    decode_speed: "decode",
    causal_speed: "standard",
    alibi_cost: "features",
}
