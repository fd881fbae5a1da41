"""What `flashscope compare` prints: the same tables as plain text or Markdown, or everything as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence

import pandas as pd

from profiling.analysis.compare import CLOCK_DRIFT, VERDICTS, Comparison, Row, Side
from profiling.analysis.differences import Difference
from profiling.analysis.operations import beyond_attention, named
from profiling.analysis.regressions import Group, Summary
from profiling.export import to_markdown
from profiling.terminal import table
from profiling.units import UNKNOWN, bytes_text, count_text, number_text, percent_text, ratio_text, time_text

_CHANGED = ("slower", "faster")
_SHORT = 12  # characters of a commit or a hash that are shown
_NAMED = 5  # rows in the line on what is broken
_NO_SAMPLES = ("summary",)

Rows = Sequence[Sequence[str]]
Render = Callable[[Sequence[str], Rows], str]


def json_text(comparison: Comparison, summary: Summary, broken: Sequence[Row], names: tuple[str, str]) -> str:
    """Everything: what A and B are, how they differ, summary, rows, and which rows break a limit."""
    return json.dumps(
        {
            "a": names[0],
            "b": names[1],
            "margin": comparison.margin,
            "threshold": comparison.threshold,
            "differences": [each._asdict() for each in comparison.differences],
            "summary": summary.to_dict(),
            "broken": [row.to_dict() for row in broken],
            "rows": [row.to_dict() for row in comparison.rows],
        },
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )


def plain_text(comparison: Comparison, summary: Summary, names: tuple[str, str], whole: bool = False) -> str:
    """For a terminal; `whole` lists every row, else what is slower, lost or faster, and counts the others."""
    return "\n\n".join(_parts(comparison, summary, names, whole, table, "", "!"))


def markdown_text(
    comparison: Comparison, summary: Summary, names: tuple[str, str], whole: bool = False
) -> str:
    """For a comment on a pull request."""
    return "\n\n".join(_parts(comparison, summary, names, whole, _markdown, "### ", ">"))


def broken_text(broken: Sequence[Row], limits: Sequence[str]) -> str:
    """One line on which rows break which limits."""
    named = [
        f"{row.case.label} ({row.clock or row.metric}) {row.verdict}"
        + (f" {ratio_text(row.ratio)}" if row.ratio is not None else "")
        for row in broken[:_NAMED]
    ]
    more = f" and {count_text(len(broken) - _NAMED)} more" if len(broken) > _NAMED else ""
    return f"flashscope: {count_text(len(broken))} row(s) break {', '.join(limits)}: {'; '.join(named)}{more}"


def _parts(
    comparison: Comparison,
    summary: Summary,
    names: tuple[str, str],
    whole: bool,
    render: Render,
    heading: str,
    mark: str,
) -> list[str]:
    """The paragraphs, from what must be known first to the single rows."""
    parts = [f"{heading}A: {names[0]}, B: {names[1]}; ratios are B / A"]
    if banner := _banner(comparison):
        # two blanks end a line in Markdown, and nothing trails in plain text
        end = "  \n" if heading else "\n"
        parts.append(end.join(f"{mark} {line}" for line in ("A and B differ in more than time:", *banner)))
    rows = [(metric, *map(count_text, counts.values())) for metric, counts in summary.n_by_verdict.items()]
    parts.append(render(("metric", *VERDICTS), rows))
    parts.append(_rule(comparison))
    parts.append(_groups(summary, render))
    header = ("case", "of", "A", "B", "ratio", "interval", "verdict", "why")
    slower, faster = ([row for row in comparison.rows if row.verdict == verdict] for verdict in _CHANGED)
    chosen = [
        ("Slower, the worst first:", sorted(slower, key=_ratio, reverse=True)),
        ("Ran in A, not in B:", summary.lost),
        ("Faster, the best first:", sorted(faster, key=_ratio)),
    ]
    for title, rows_of in [("All rows:", comparison.rows)] if whole else chosen:
        if rows_of:
            parts += [f"{heading}{title}", render(header, list(map(_row, rows_of)))]
    if states := Counter(
        (_state(row.a), _state(row.b)) for row in comparison.rows if row.verdict == "missing"
    ):
        lines = [(first, second, count_text(n)) for (first, second), n in states.items()]
        parts += [f"{heading}Missing:", render(("in A", "in B", "rows"), lines)]
    listed = len(comparison.rows) if whole else len(slower) + len(faster) + len(summary.lost)
    if left := len(comparison.rows) - listed:
        parts.append(f"{count_text(left)} more row(s) are counted above; --all lists them.")
    return parts


def _markdown(header: Sequence[str], rows: Rows) -> str:
    columns = {name: pd.array([row[k] for row in rows], dtype="string") for k, name in enumerate(header)}
    return to_markdown(pd.DataFrame(columns))


def _rule(comparison: Comparison) -> str:
    """The two limits, and how many rows had no samples to be judged by."""
    text = f"Same: within {percent_text(comparison.margin)}, at 95 % for each row."
    if any(row.metric != "latency" for row in comparison.rows):
        text += " Of memory and energy, faster means less and slower more."
    bare = sum(row.basis in _NO_SAMPLES for row in comparison.rows)
    few = sum(row.basis == "rounds" for row in comparison.rows)
    beyond = percent_text(comparison.threshold)
    if bare:
        text += f" {count_text(bare)} row(s) have no samples: faster or slower only beyond {beyond}."
    if few:
        text += f" {count_text(few)} row(s) have too few processes: faster or slower only if all of "
        text += f"their rounds differ by {beyond}."
    return text


def _banner(comparison: Comparison) -> list[str]:
    """What differs besides: where the rows come from, and how fast the GPUs ran."""
    lines = list(map(_difference, comparison.differences))
    both = [row for row in comparison.rows if row.metric == "latency" and row.verdict != "missing"]
    apart = sum(row.sm_clocks_apart_mhz is not None for row in both)
    if apart:
        rows = f"{count_text(apart)} of {count_text(len(both))} rows"
        lines.append(f"SM clock: more than {percent_text(CLOCK_DRIFT)} apart in {rows}")
    return lines


def _difference(each: Difference) -> str:
    return f"{each.what}: A {_values(each.a)}, B {_values(each.b)}"


def _values(values: Sequence[str]) -> str:
    shortened = [value[:_SHORT] if _is_hash(value) else value for value in values]
    return " and ".join(value or "unknown" for value in shortened)


def _is_hash(text: str) -> bool:
    return len(text) > _SHORT and all(letter in "0123456789abcdef" for letter in text)


def _groups(summary: Summary, render: Render) -> str:
    """The counts of each group, with its operation where not all are attention."""
    header = ("backend", "pass", "of", *VERDICTS, "mean ratio", "over")
    rows = list(map(_group, summary.groups))
    if beyond_attention(group.operation for group in summary.groups):
        header = ("operation", *header)
        rows = [(named(group.operation), *row) for group, row in zip(summary.groups, rows, strict=True)]
    return render(header, rows)


def _group(group: Group) -> tuple[str, ...]:
    over = count_text(group.n_ratio) + (" row" if group.n_ratio == 1 else " rows")
    counts = (count_text(group.n_by_verdict[verdict]) for verdict in VERDICTS)
    return (
        group.backend,
        group.direction,
        group.clock or group.metric,
        *counts,
        ratio_text(group.ratio),
        over if group.n_ratio else "",
    )


def _ratio(row: Row) -> float:
    return math.inf if row.ratio is None else row.ratio


def _state(sides: Sequence[Side]) -> str:
    """How a side of a missing row ended; what is not in it is told from what no value was measured of."""
    return ", ".join(
        f"{side.status}, {side.reason}" if side.status == "missing" else side.status for side in sides
    )


def _row(row: Row) -> tuple[str, ...]:
    between = UNKNOWN if row.interval is None else " to ".join(number_text(x) for x in row.interval)
    return (
        row.case.label,
        row.clock or row.metric,
        _sides(row.a, row.metric),
        _sides(row.b, row.metric),
        ratio_text(row.ratio),
        between,
        row.verdict,
        "; ".join(filter(None, (row.why, *_clocks(row), *_flags("A", row.a), *_flags("B", row.b)))),
    )


def _clocks(row: Row) -> list[str]:
    apart = row.sm_clocks_apart_mhz
    if apart is None or row.metric != "latency" or row.verdict == "missing":
        return []
    return [f"SM at {' and '.join(map(number_text, apart))} MHz"]


def _flags(name: str, sides: Sequence[Side]) -> list[str]:
    """What a side's rows are flagged with: a GPU that slowed down explains more than a kernel does."""
    found = dict.fromkeys(flag for side in sides for flag in side.flags)
    return [f"{name} {' '.join(found)}"] if found else []


def _sides(sides: Sequence[Side], metric: str) -> str:
    """The value or the status; of a case that is there several times, each."""
    return ", ".join(_value(side, metric) for side in sides)


def _value(side: Side, metric: str) -> str:
    if side.value is None:
        return side.status
    if metric == "latency":
        return time_text(side.value)
    return bytes_text(side.value) if metric == "memory" else f"{number_text(side.value)} mJ"
