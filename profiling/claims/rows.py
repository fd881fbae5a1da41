"""Evidence for what the chapter says of softmax beyond attention: measured losses, gates and samplers."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from profiling import units
from profiling.analysis.operations import CLASSES, named
from profiling.claims.evidence import AtHand, Evidence, Fact, LackingError, Line, Maker, aged, clock_of

PAIR = ("naive", "online")
_SHAPE = ["run_id", "dtype", "batch", "head_dim_v"]
_GATE_CLASSES = 1024  # no gate is known to choose from more
_EACH_WAY = {"fwd": "forward", "bwd": "backward"}


class _Found(NamedTuple):
    """Eager's time over the one-pass kernel's by classes, one shape; `rows` are those of both."""

    shape: dict[str, Any]
    ratios: dict[int, float]
    rows: pd.DataFrame
    clock: str

    @property
    def source(self) -> str:
        """Run, shape and clock."""
        where = self.rows["device_name"].iloc[0]
        return (
            f"run {self.shape['run_id']} on {where}: {self.shape['dtype']}, "
            f"{units.count_text(self.shape['batch'])} rows, {self.clock} clock{aged(self.rows)}"
        )

    def values(self, column: str, name: str) -> dict[int, float]:
        """A column of one of the pair by classes, where it is known."""
        own = self.rows[(self.rows["name"] == name) & self.rows[column].notna()]
        return {int(n): float(x) for n, x in zip(own["seq_len_k"], own[column], strict=True)}


def _measured(hand: AtHand, operation: str, direction: str, **shape: object) -> list[_Found]:
    """Every shape that both of the pair were measured with on the usual clock, the most classes first.

    Raises:
        LackingError: there is none.
    """
    rows = hand.over_rows
    rows = rows[(rows["operation"] == operation) & (rows["direction"] == direction)]
    for name, value in shape.items():
        rows = rows[rows[name] == value]
    clock = clock_of(rows)
    rows = rows[rows["name"].isin(PAIR) & (rows["clock"] == clock) & rows["latency_p50_ms"].notna()]
    found = []
    for values, own in rows.groupby(_SHAPE, sort=True):
        times = own.pivot_table(index="seq_len_k", columns="name", values="latency_p50_ms").dropna()
        if set(PAIR) <= set(times.columns) and len(times):
            ratios = (times["naive"] / times["online"]).tolist()
            by_classes = dict(zip(map(int, times.index.tolist()), ratios, strict=True))
            found.append(_Found(dict(zip(_SHAPE, values, strict=True)), by_classes, own, clock))
    if not found:
        raise LackingError(f"{named(operation)} by {' and '.join(PAIR)}, {_EACH_WAY[direction]}")
    return sorted(found, key=lambda each: (-len(each.ratios), -each.shape["batch"]))


def _ratio(label: str, value: float) -> Fact:
    return Fact(label, value, units.ratio_text(value))


def vocabulary_loss(hand: AtHand) -> Evidence:
    """Cross-entropy of eager code beside one pass over the logits: time along the classes, memory, bytes."""
    forward = _measured(hand, "cross_entropy", "fwd")[0]
    shape = {name: forward.shape[name] for name in ("run_id", "dtype", "batch")}
    backward = _measured(hand, "cross_entropy", "bwd", **shape)[0]
    both = sorted(set(forward.ratios) & set(backward.ratios))
    if not both:
        raise LackingError("cross-entropy forward and backward over the same classes")
    most = both[-1]
    facts = [
        _ratio(f"naive / online, forward, {CLASSES.at(most)}", forward.ratios[most]),
        _ratio(f"naive / online, backward, {CLASSES.at(most)}", backward.ratios[most]),
    ]
    says = (
        f"With {CLASSES.at(most)} one pass over the logits takes the loss "
        f"{units.ratio_text(forward.ratios[most])} as fast as eager code, its gradient "
        f"{units.ratio_text(backward.ratios[most])}"
    )
    eager, one = (backward.values("peak_mem_bytes", name).get(most) for name in PAIR)
    if eager and one:
        facts.append(_ratio("naive / online, peak memory with the gradient", eager / one))
        says += (
            f", in {units.bytes_text(round(one))} of memory where that takes {units.bytes_text(round(eager))}"
        )
    moved = [forward.values("dram_bytes", name) for name in PAIR]
    if counted := sorted(set(moved[0]) & set(moved[1])):
        n = counted[-1]
        eager_bytes, one_bytes = (units.traffic_text(round(each[n])) for each in moved)
        at = CLASSES.at(n)
        facts.append(_ratio(f"naive / online, DRAM bytes, {at}", moved[0][n] / moved[1][n]))
        says += f"; counted over {at}, the loss moves {one_bytes} through DRAM instead of {eager_bytes}"
    least = min(min(forward.ratios.values()), min(backward.ratios.values()))
    facts.append(_ratio("naive / online, the least of all", least))
    return Evidence(
        "measured",
        f"{says}. The least it gains over all classes measured is {units.ratio_text(least)}.",
        forward.source,
        tuple(facts),
        (Line("loss", forward.ratios), Line("its gradient", backward.ratios)),
        title="Eager's time over one pass's",
        along=CLASSES,
    )


def gates_and_samplers(hand: AtHand) -> Evidence:
    """Softmax with top-k: what a gate gains, in time that is small either way; and what a long row gains."""
    found = _measured(hand, "softmax_top_k", "fwd")
    gates = [each for each in found if max(each.ratios) <= _GATE_CLASSES]
    long = [each for each in found if max(each.ratios) > _GATE_CLASSES]
    if not gates or not long:
        raise LackingError("softmax top-k over the classes of gates and over those of vocabularies")
    gate = max(gates, key=lambda each: each.shape["head_dim_v"])
    widest = max(gate.ratios)
    eager, one = (gate.values("latency_p50_ms", name)[widest] for name in PAIR)
    sampler = max(long, key=lambda each: (each.shape["batch"], max(each.ratios)))
    kept, tokens = sampler.shape["head_dim_v"], units.count_text(gate.shape["batch"])
    facts = (
        _ratio(f"naive / online, gate of {widest}", eager / one),
        Fact(f"eager gate of {widest}", eager, units.time_text(eager)),
        *(
            _ratio(f"naive / online, {kept} of {units.count_text(n)}", x)
            for n, x in sorted(sampler.ratios.items())
        ),
    )
    return Evidence(
        "measured",
        f"A gate of {widest} experts for {tokens} tokens takes {units.time_text(eager)} in eager code, "
        f"{units.time_text(one)} in one kernel: {units.ratio_text(eager / one)}, but of microseconds. For "
        f"the {kept} likeliest of a vocabulary one pass {_turn(sampler.ratios)}: the rounds over a row's "
        "best cost the same however long it is.",
        f"{gate.source}; {sampler.source}",
        facts,
        (
            Line(f"gate, top {gate.shape['head_dim_v']}", gate.ratios),
            Line(f"vocabulary, top {kept}", sampler.ratios),
        ),
        title="Eager's time over one pass's",
        along=CLASSES,
    )


def _turn(ratios: dict[int, float]) -> str:
    """Where a ratio passes 1, in words."""
    behind = [n for n, ratio in ratios.items() if ratio <= 1]
    ahead = [n for n, ratio in ratios.items() if ratio > 1]
    most = max(ratios)
    at_most = f"{units.ratio_text(ratios[most])} as fast over {CLASSES.at(most)}"
    if not behind or not ahead or max(behind) > min(ahead):
        return f"is {at_most}"
    return f"is behind up to {CLASSES.at(max(behind))}, and {at_most}"


MAKERS: dict[Maker, str] = {
    vocabulary_loss: "softmax",
    gates_and_samplers: "softmax",
}
