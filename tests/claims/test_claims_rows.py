"""The evidence on softmax beyond attention, worked out again from the raw rows of the committed run."""

from __future__ import annotations

import pandas as pd
import pytest

from profiling import store
from profiling.analysis.operations import CLASSES
from profiling.claims.evidence import AtHand, Evidence, LackingError, at_hand
from profiling.claims.rows import MAKERS, gates_and_samplers, vocabulary_loss
from profiling.records import Measurement, Run


def values(found: Evidence) -> dict[str, float]:
    """Numbers by label, without the spaces between thousands."""
    return {fact.label.replace("\N{NO-BREAK SPACE}", ""): fact.value for fact in found.facts}


def raw(runs: list[Run], **fields: object) -> dict[tuple[str, int], Measurement]:
    """Measurements of a shape by backend and classes."""
    (run,) = (run for run in runs if run.run_id == "h200-softmax")
    return {
        (row.case.backend, row.case.seq_len_k): row
        for row in run.measurements
        if row.status == "ok"
        and not row.case.variant
        and all(getattr(row.case, name) == value for name, value in fields.items())
    }


def ms(row: Measurement) -> float:
    """The median on the `device` clock."""
    (found,) = (clock.latency_p50_ms for clock in row.clocks if clock.clock == "device")
    assert found is not None
    return found


def test_the_loss_is_the_raw_rows(runs: list[Run], hand: AtHand) -> None:
    """Times, memory and counted bytes of eager over those of one pass, at the most classes of both."""
    shape = {"operation": "cross_entropy", "batch": 8192}
    forward, backward = (raw(runs, **shape, direction=direction) for direction in ("fwd", "bwd"))
    found = vocabulary_loss(hand)
    facts = values(found)
    classes = sorted(n for name, n in forward if name == "online")
    most = classes[-1]
    ratios = {n: ms(forward["naive", n]) / ms(forward["online", n]) for n in classes}
    assert found.lines[0].points == pytest.approx(ratios)
    assert facts[f"naive / online, forward, {most} classes"] == pytest.approx(ratios[most])
    back = {n: ms(backward["naive", n]) / ms(backward["online", n]) for n in classes}
    assert facts[f"naive / online, backward, {most} classes"] == pytest.approx(back[most])
    assert facts["naive / online, the least of all"] == pytest.approx(min(*ratios.values(), *back.values()))
    eager, one = (backward[name, most].peak_mem_bytes for name in ("naive", "online"))
    assert eager is not None
    assert one is not None
    assert facts["naive / online, peak memory with the gradient"] == pytest.approx(eager / one)
    counted = [n for n in classes if forward["online", n].dram_read_bytes is not None]
    assert counted

    def moved(name: str) -> int:
        row = forward[name, counted[-1]]
        return (row.dram_read_bytes or 0) + (row.dram_write_bytes or 0)

    label = f"naive / online, DRAM bytes, {counted[-1]} classes"
    assert facts[label] == pytest.approx(moved("naive") / moved("online"))
    assert found.along == CLASSES


def test_gates_and_samplers_are_the_raw_rows(runs: list[Run], hand: AtHand) -> None:
    """The widest gate that was measured, and 50 of a vocabulary at every number of classes."""
    facts = values(gates_and_samplers(hand))
    gate = raw(runs, operation="softmax_top_k", direction="fwd", batch=16384, head_dim_v=8)
    widest = max(n for _, n in gate)
    ratio = ms(gate["naive", widest]) / ms(gate["online", widest])
    assert facts[f"naive / online, gate of {widest}"] == pytest.approx(ratio)
    sampler = raw(runs, operation="softmax_top_k", direction="fwd", batch=64, head_dim_v=50)
    for n in sorted({n for _, n in sampler}):
        ratio = ms(sampler["naive", n]) / ms(sampler["online", n])
        assert facts[f"naive / online, 50 of {n}"] == pytest.approx(ratio)


def test_where_it_turns_is_said(rows: pd.DataFrame) -> None:
    """Behind, ahead, or both: the sentence follows the rows, not what they say today."""
    own = rows[rows["run_id"] == "h200-softmax"]
    online = (own["backend"] == "online") & (own["seq_len_k"] > 1024) & (own["operation"] == "softmax_top_k")
    for factor, words in ((1e-3, "one pass is "), (1e3, "one pass is ")):
        changed = own.assign(
            latency_p50_ms=own["latency_p50_ms"].where(~online, own["latency_p50_ms"] * factor)
        )
        found = gates_and_samplers(at_hand(changed, None))
        assert words in found.says
        assert "is behind up to" not in found.says


@pytest.mark.parametrize("maker", MAKERS)
def test_without_such_rows_it_says_what_is_lacking(maker, nothing: AtHand, runs: list[Run]) -> None:
    """No run at hand, or none of rows: which rows are needed."""
    attention = at_hand(store.frame([run for run in runs if run.run_id == "h200-standard"]), None)
    for hand in (nothing, attention):
        with pytest.raises(LackingError, match="online"):
            maker(hand)
