"""A comparison as the page Compare shows it: sentences, tables, the chart's rows, the command."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from profiling import units
from profiling.analysis.axes import NO_NAME
from profiling.analysis.compare import CLOCK_DRIFT, VERDICTS, Comparison, Row
from profiling.analysis.compare import Side as Cell
from profiling.analysis.operations import beyond_attention, named
from profiling.analysis.regressions import Summary
from profiling.case import ATTENTION
from profiling.figures.ratios import Ratio, thinned
from profiling.pages import widgets

_HASH = 12  # characters of a commit or a hash that are shown
WORDS = {
    "device": "the GPU (or CPU)",
    "device UUID": "the very card, by its UUID",
    "driver": "the driver",
    "torch": "torch",
    "triton": "triton",
    "git commit": "the commit of FlashScope",
}
# What makes a ratio say something of two machines, and not of two kernels.
GRAVE = ("device", "device UUID", "driver", "torch", "triton")
SAME = "the GPU, the driver, torch, triton, the commit and the kernel sources"
COLUMNS = {"latency": "ms", "memory": "bytes", "energy": "mj"}
# What is told first of a table: what got worse, what is not known, what got better.
ORDER = ("slower", "ambiguous", "faster", "same", "missing")


def name_of(row: Row) -> str:
    """The backend, with its variant if one was asked for, as the pages' filters call it."""
    name = f"{row.case.backend}/{row.case.variant}" if row.case.variant else row.case.backend
    return re.sub(NO_NAME, "?", name)


def chosen(
    comparison: Comparison,
    metric: str,
    clock: str,
    *,
    backends: Sequence[str] = (),
    directions: Sequence[str] = (),
    head_dims: Sequence[int] = (),
    verdicts: Sequence[str] = (),
    operations: Sequence[str] = (),
) -> Comparison:
    """The rows of one metric (of latency, on one clock) that pass every filter; an empty one passes all.

    `operations` are as people call them; a head dim is attention's.
    """
    rows = tuple(
        row
        for row in comparison.rows
        if row.metric == metric
        and (metric != "latency" or row.clock == clock)
        and (not backends or name_of(row) in backends)
        and (not directions or row.case.direction in directions)
        and (not operations or named(row.case.operation) in operations)
        and (not head_dims or (row.case.operation == ATTENTION and row.case.head_dim in head_dims))
        and (not verdicts or row.verdict in verdicts)
    )
    return comparison._replace(rows=rows)


def headline(counts: dict[str, int], metric: str) -> str:
    """What B is, in one sentence of counts."""
    ran = sum(counts.values()) - counts["missing"]
    if not ran:
        return "**Not one case ran on both sides**, so nothing can be said of faster or slower."
    less, more = ("faster", "slower") if metric == "latency" else ("less", "more")
    parts = [
        f"{less} in {units.count_text(counts['faster'])}",
        f"{more} in {units.count_text(counts['slower'])}",
        f"the same in {units.count_text(counts['same'])}",
    ]
    text = (
        f"Of {units.count_text(ran)} cases that ran on both sides B is {parts[0]}, {parts[1]} and {parts[2]}"
    )
    if counts["ambiguous"]:
        text += f"; of {units.count_text(counts['ambiguous'])} the measurements do not tell"
    return f"**{text}.**"


def differences(comparison: Comparison) -> list[str]:
    """What else A and B differ in, a line each (Markdown, escaped)."""
    lines = []
    for each in comparison.differences:
        word = WORDS.get(each.what, each.what)
        lines.append(f"{widgets.plain(word)}: A {_values(each.a)}, B {_values(each.b)}")
    timed = [row for row in comparison.rows if row.metric == "latency" and row.verdict != "missing"]
    apart = sum(row.sm_clocks_apart_mhz is not None for row in timed)
    if apart:
        lines.append(
            f"the SM clock: more than {units.percent_text(CLOCK_DRIFT)} apart in {units.count_text(apart)} "
            f"of {units.count_text(len(timed))} rows"
        )
    return lines


def is_grave(comparison: Comparison) -> bool:
    """Whether machine or software differ, so that a ratio is not of the kernels alone."""
    apart = any(row.sm_clocks_apart_mhz is not None for row in comparison.rows if row.metric == "latency")
    return apart or any(each.what in GRAVE for each in comparison.differences)


def _values(values: Sequence[str]) -> str:
    return " and ".join(f"**{widgets.plain(_short(value))}**" if value else "unknown" for value in values)


def _short(value: str) -> str:
    is_hash = len(value) > _HASH and all(letter in "0123456789abcdef" for letter in value)
    return value[:_HASH] if is_hash else value


def basis_text(comparison: Comparison) -> str:
    """What the verdicts rest on (Markdown)."""
    rows = [row for row in comparison.rows if row.verdict != "missing"]
    beyond = units.percent_text(comparison.threshold)
    parts = [f"Shaded: within {units.percent_text(comparison.margin)} two values are the same."]
    for basis, text in (
        ("processes", "by the spread between processes, at 95 % a row"),
        ("rounds", f"with fewer than three processes on a side, so told apart only beyond {beyond}"),
        ("summary", f"without samples (hollow), so without interval and told apart only beyond {beyond}"),
        ("exact", "by exact values"),
    ):
        if n := sum(row.basis == basis for row in rows):
            parts.append(f"{units.count_text(n)} {'row is' if n == 1 else 'rows are'} judged {text}.")
    return " ".join(parts)


def advice(comparison: Comparison) -> str:
    """What to measure where the rows do not tell; empty where nothing would help (Markdown)."""
    unsure = [row for row in comparison.rows if row.verdict == "ambiguous"]
    if not unsure:
        return ""
    bases = Counter(row.basis for row in unsure)
    if 2 * bases["rounds"] >= len(unsure):
        return (
            "**Next.** Measure with at least three processes on both sides: with fewer nobody knows how much "
            "two runs of the same code differ."
        )
    if 2 * bases["summary"] >= len(unsure):
        return "**Next.** A side has no samples: two runs that kept theirs would give intervals."
    return "**Next.** Column `why` of the table says what each lacks; more rounds narrow the intervals."


def missing_text(comparison: Comparison) -> str:
    """How many rows have no ratio because a side lacks them, and how that came."""
    rows = [row for row in comparison.rows if row.verdict == "missing"]
    if not rows:
        return ""
    lost = sum(row.is_lost for row in rows)
    return (
        f"{units.count_text(len(rows))} rows are missing on a side and not drawn"
        + (f", {units.count_text(lost)} of them ran in A and not in B" if lost else "")
        + "."
    )


def ratios(comparison: Comparison) -> tuple[Ratio, ...]:
    """The chart's rows: those with a ratio, no more than can be told apart."""
    return tuple(
        Ratio(
            row.case.label,
            row.ratio,
            row.interval,
            row.verdict,
            tuple(filter(None, (_pair(row), row.why, _clocks(row)))),
            row.basis == "summary",
        )
        for row in thinned(comparison.rows)
        if row.ratio is not None
    )


def rows_table(comparison: Comparison) -> pd.DataFrame:
    """Every row, every digit: both values, ratio, interval, verdict and what it rests on; the worst first.

    Of a case that a side has several times the value is empty, and `why` says so.
    """
    rows = sorted(comparison.rows, key=_rank)
    unit = COLUMNS[rows[0].metric] if rows else "ms"
    return pd.DataFrame(
        [
            {
                "case": row.case.label,
                "verdict": row.verdict,
                "ratio": row.ratio,
                "ratio_lo": row.interval[0] if row.interval else None,
                "ratio_hi": row.interval[1] if row.interval else None,
                f"a_{unit}": _one(row.a),
                f"b_{unit}": _one(row.b),
                "clock": row.clock,
                "basis": row.basis,
                "why": "; ".join(filter(None, (row.why, _clocks(row)))),
                "a_status": _joined(row.a, "status"),
                "b_status": _joined(row.b, "status"),
                "a_flags": _flags(row.a),
                "b_flags": _flags(row.b),
                "a_run": _joined(row.a, "run_id"),
                "b_run": _joined(row.b, "run_id"),
            }
            for row in rows
        ]
    ).astype(dict.fromkeys(("ratio", "ratio_lo", "ratio_hi"), "float64") if rows else {})


def groups_table(told: Summary) -> pd.DataFrame:
    """Counts by backend, direction and clock. A mean only where no case is missing on a side.

    The operation stands before them where not all are attention.
    """
    several = beyond_attention(group.operation for group in told.groups)
    return pd.DataFrame(
        [
            {
                **({"operation": named(group.operation)} if several else {}),
                "backend": group.backend,
                "direction": group.direction,
                **{verdict: group.n_by_verdict[verdict] for verdict in VERDICTS},
                "mean_ratio": group.ratio if not group.n_by_verdict["missing"] else None,
                "rows_in_mean": group.n_ratio if not group.n_by_verdict["missing"] else 0,
            }
            for group in told.groups
        ]
    ).astype({"mean_ratio": "float64"} if told.groups else {})


def worst_text(told: Summary) -> list[str]:
    """The worst regressions and what no longer runs, a line each (Markdown, escaped)."""
    lines = []
    for row in told.worst:
        ratio = units.ratio_interval_text(row.ratio, row.interval)
        lines.append(f"{widgets.plain(row.case.label)}: {widgets.plain(ratio)} ({_pair(row)})")
    return lines


def lost_text(told: Summary, most: int = 10) -> list[str]:
    """The cases that ran in A and do not in B (Markdown, escaped).

    What failed in B has its reason; what B never tried is counted alone.
    """
    failed = [row for row in told.lost if any(side.run_id for side in row.b)]
    lines = [f"{widgets.plain(row.case.label)}: {widgets.plain(row.why)}" for row in failed[:most]]
    if len(failed) > most:
        lines.append(f"and {units.count_text(len(failed) - most)} more that failed, in the table above")
    if untried := len(told.lost) - len(failed):
        lines.append(f"{units.count_text(untried)} cases that are not in B at all")
    return lines


def command(
    a: str, b: str, metric: str, clock: str, *, margin: float, threshold: float, data: str = ""
) -> str:
    """The command line that prints the same rows; margin and threshold are relative."""
    words = ["flashscope", "compare", a, b, "--metric", metric]
    if metric == "latency":
        words += ["--clock", clock]
    words += ["--margin", _percent(margin), "--threshold", _percent(threshold)]
    return shlex.join([*words, *(["--data", data] if data else [])])


def _percent(fraction: float) -> str:
    return f"{round(100 * fraction, 6):g}%"


def _rank(row: Row) -> tuple[int, float]:
    return ORDER.index(row.verdict), -(row.ratio or 0.0)


def _one(sides: Sequence[Cell]) -> float | None:
    return sides[0].value if len(sides) == 1 else None


def _joined(sides: Sequence[Cell], field: str) -> str:
    return ", ".join(dict.fromkeys(str(getattr(side, field)) for side in sides if getattr(side, field)))


def _flags(sides: Sequence[Cell]) -> str:
    return " ".join(dict.fromkeys(flag for side in sides for flag in side.flags))


def _clocks(row: Row) -> str:
    apart = row.sm_clocks_apart_mhz
    if apart is None or row.metric != "latency" or row.verdict == "missing":
        return ""
    return f"SM at {' and '.join(map(units.number_text, apart))} MHz"


def _pair(row: Row) -> str:
    """Both values, such as `A 1.23 ms, B 1.31 ms`."""
    return f"A {_value(row.a, row.metric)}, B {_value(row.b, row.metric)}"


def _value(sides: Sequence[Cell], metric: str) -> str:
    value = _one(sides)
    if metric == "latency":
        return units.time_text(value)
    return units.bytes_text(value) if metric == "memory" else f"{units.number_text(value)} mJ"
