"""A decision and its sign-offs as tables: for people, and with every digit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from profiling import units
from profiling.analysis import decision_fingerprint as prints
from profiling.analysis.decision import VERDICTS, Comparison, Decision, DecisionRow, Memory, Use
from profiling.reviews import SignOff

WORDS = {"always": "ahead", "never": "behind", "crosses": "crosses", "undecided": "undecided"}


class Standing(NamedTuple):
    """A sign-off today: whether it is of this very evidence, and which rows of the table are others now."""

    sign_off: SignOff
    stale: bool
    changed: tuple[str, ...]

    @property
    def text(self) -> str:
        """`valid`, or `stale` with what changed."""
        if not self.stale:
            return "valid"
        some = ", ".join(self.changed[:3]) + (" and others" if len(self.changed) > 3 else "")
        return f"stale: the evidence changed for {some}" if self.changed else "stale: the question changed"


def standings(
    sign_offs: Sequence[SignOff], fingerprint: str, found: Mapping[str, str]
) -> tuple[Standing, ...]:
    """Each sign-off against the evidence at hand.

    Args:
        sign_offs: of this question.
        fingerprint: of the question and its evidence now.
        found: the digests by row of the decision table now (`decision_fingerprint.parts`).
    """
    return tuple(
        Standing(each, each.fingerprint != fingerprint, prints.changes(each.evidence, found))
        for each in sign_offs
    )


def headline(decision: Decision) -> str:
    """How many rows have which verdict, and what the decided ones use."""
    counts = {verdict: sum(row.verdict == verdict for row in decision.rows) for verdict in VERDICTS}
    parts = [f"{n} {verdict}" for verdict, n in counts.items() if n]
    n = len(decision.rows)
    text = f"Of {n} {'row' if n == 1 else 'rows'}: {', '.join(parts)}."
    used = dict.fromkeys(use.backend for row in decision.rows for use in row.uses)
    return text + (
        f" Where something was measured, the table says to use {' or '.join(used)}." if used else ""
    )


def uses_text(uses: Sequence[Use]) -> str:
    """`flash`, or `flash to 992, sdpa_cudnn from 993`."""
    if len(uses) < 2:
        return uses[0].backend if uses else units.UNKNOWN
    parts = [f"{uses[0].backend} to {units.count_text(uses[0].seq_lens[1])}"]
    parts += [f"{use.backend} from {units.count_text(use.seq_lens[0])}" for use in uses[1:]]
    return ", ".join(parts)


def comparison_text(found: Comparison | None, last: int | None = None) -> str:
    """`ahead, 5.44× to 16×`: above 1 the candidate is the faster one; `last`: the row's last measured N."""
    if found is None:
        return units.UNKNOWN
    word = WORDS[found.verdict]
    if found.crossover_seq_len is not None:
        side = "up to" if found.ahead == "below" else "from"
        word = f"ahead {side} N* {units.crossover_text(found.crossover_seq_len, found.interval)}"
    elif found.verdict == "crosses":
        word = _turn_text(found)
    ratios = [each.ratio for each in found.ratios]
    span = units.ratio_text(min(ratios))
    if len(ratios) > 1:
        span += f" to {units.ratio_text(max(ratios))}"
    end = found.ratios[-1].seq_len
    return f"{word}, {span}" + (f" (to N = {units.count_text(end)})" if last and end < last else "")


def _turn_text(found: Comparison) -> str:
    """Where the candidate gets ahead or falls behind, as far as the lengths tell; `crosses` if twice or more.

    There is no N* for a sum of forward and backward: its curve was not measured as one.
    """
    turns = [(a, b) for a, b in itertools.pairwise(found.ratios) if a.sign != b.sign]
    if len(turns) != 1:
        return WORDS["crosses"]
    ((before, after),) = turns
    place = f"between {units.count_text(before.seq_len)} and {units.count_text(after.seq_len)}"
    return f"ahead from {place} on" if after.sign > 0 else f"ahead up to {place}"


def memory_text(held: Memory | None) -> str:
    """What the device has left, and whether the peak was measured; what exceeds it says so."""
    if held is None or held.headroom_bytes is None:
        return units.UNKNOWN
    kind = "modelled" if held.peak_mem_bytes is None else "measured"
    if held.headroom_bytes < 0:
        return f"does not fit, {units.bytes_text(-held.headroom_bytes)} too much ({kind})"
    return f"{units.bytes_text(held.headroom_bytes)} ({kind})"


def evidence_text(row: DecisionRow) -> str:
    """Which rows stand behind it: size, lengths, how many, and their flags."""
    if row.measured is None or not row.seq_lens:
        return "none"
    batch, heads = row.measured
    lengths = units.count_text(row.seq_lens[0])
    if len(row.seq_lens) > 1:
        lengths += f" to {units.count_text(row.seq_lens[-1])}"
    near = "" if batch * heads == row.batch * row.shape.heads else "nearest "
    text = f"{near}B{batch} H{heads}, N {lengths}, {units.count_text(len(row.rows))} rows"
    return text + "".join(f", {n} {flag}" for flag, n in row.flags)


def table(decision: Decision) -> pd.DataFrame:
    """The table for people: texts, a line for each row of the decision."""
    name = decision.question.candidate
    longest = units.count_text(decision.question.seq_lens[1])
    return pd.DataFrame(
        [
            {
                "model": row.shape.name,
                "batch": units.count_text(row.batch),
                "verdict": row.verdict,
                "use": uses_text(row.uses),
                f"{name} against naive": comparison_text(row.naive, _last(row)),
                f"{name} against SDPA": _sdpa_text(row),
                f"memory left at N = {longest}": memory_text(row.memory),
                "evidence": evidence_text(row),
            }
            for row in decision.rows
        ],
        dtype="string",
    )


def numbers(decision: Decision) -> pd.DataFrame:
    """The same with every digit, one quantity a column; empty where it is not known."""
    return pd.DataFrame([_numbers(row, decision) for row in decision.rows]).convert_dtypes()


def sign_off_table(found: Sequence[Standing]) -> pd.DataFrame:
    """The signatures, the newest first."""
    columns = ["signed_at", "name", "decision", "comment", "standing", "run_id", "fingerprint"]
    lines = [
        {
            **{name: getattr(each.sign_off, name) for name in columns if name != "standing"},
            "standing": each.text,
        }
        for each in found
    ]
    return pd.DataFrame(lines, columns=columns, dtype="string")


def _last(row: DecisionRow) -> int | None:
    return row.seq_lens[-1] if row.seq_lens else None


def _sdpa_text(row: DecisionRow) -> str:
    text = comparison_text(row.sdpa, _last(row))
    return text if row.sdpa is None else f"{row.sdpa.other}: {text}"


def _numbers(row: DecisionRow, decision: Decision) -> dict[str, Any]:
    q, held = decision.question, row.memory
    line: dict[str, Any] = {
        "model": row.shape.name,
        **{k: v for k, v in row.shape._asdict().items() if k != "name"},
        "dtype": q.dtype,
        "workload": q.workload,
        "clock": q.clock,
        "batch": row.batch,
        "seq_len_from": q.seq_lens[0],
        "seq_len_to": q.seq_lens[1],
        "verdict": row.verdict,
        "use": uses_text(row.uses).replace(units.GROUP, ""),
        "candidate": q.candidate,
    }
    for word, found in (("naive", row.naive), ("sdpa", row.sdpa)):
        ratios = [] if found is None else [each.ratio for each in found.ratios]
        low, high = (None, None) if found is None or found.interval is None else found.interval
        line |= {
            f"{word}_backend": None if found is None else found.other,
            f"{word}_comparison": None if found is None else WORDS[found.verdict],
            f"{word}_ratio_min": min(ratios, default=None),
            f"{word}_ratio_max": max(ratios, default=None),
            f"{word}_crossover_seq_len": None if found is None else found.crossover_seq_len,
            f"{word}_ahead": None if found is None else found.ahead,
            f"{word}_interval_lo": low,
            f"{word}_interval_hi": high,
        }
    return line | {
        "peak_mem_bytes": None if held is None else held.peak_mem_bytes,
        "est_peak_mem_bytes": None if held is None else held.est_peak_mem_bytes,
        "input_bytes": None if held is None else held.input_bytes,
        "device_bytes": None if held is None else held.device_bytes,
        "headroom_bytes": None if held is None else held.headroom_bytes,
        "est_naive_largest_seq_len": None if held is None else held.est_naive_largest,
        "measured_batch": None if row.measured is None else row.measured[0],
        "measured_heads": None if row.measured is None else row.measured[1],
        "measured_seq_lens": " ".join(map(str, row.seq_lens)),
        "n_rows": len(row.rows),
        "flags": ";".join(f"{flag}:{n}" for flag, n in row.flags),
        "reason": row.reason,
    }
