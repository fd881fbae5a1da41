"""What the Overview shows of `analysis.summary`: sentences, table, numbers, and the panels of its chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from profiling import units
from profiling.analysis.crossover import Crossover
from profiling.analysis.curves import Slice
from profiling.analysis.operations import Along, along, named
from profiling.analysis.summary import Overview, OverviewRow, Speedup
from profiling.case import ATTENTION, DIRECTIONS, OPERATIONS, rows_text
from profiling.figures import theme
from profiling.figures.series import Failure, Point, Series, status_word
from profiling.figures.speedup import Panel
from profiling.records import STATUSES

# The colour of a verdict's badge; the word beside it says the same.
COLOURS = {
    "clear": "blue",
    "always": "green",
    "never": "red",
    "censored": "red",
    "several": "orange",
    "ambiguous": "orange",
}


def counts_text(found: Overview) -> str:
    """How many cases there are, how many did not run, and which carry a flag; plain text."""
    failed = {s: found.n_by_status[s] for s in STATUSES if s != "ok" and found.n_by_status.get(s)}
    text = f"{units.count_text(found.n_cases)} cases, {units.count_text(found.n_by_status.get('ok', 0))} ran"
    if failed:
        text += "; " + ", ".join(f"{units.count_text(n)} {status_word(s)}" for s, n in failed.items())
    flags = [f"{units.count_text(n)} {flag}" for flag, n in sorted(found.n_by_flag.items())]
    return f"{text}. {'Flags: ' + ', '.join(flags) if flags else 'None flagged'}."


def along_of(rows: Sequence[OverviewRow]) -> Along:
    """What the curves of these shapes run along."""
    return along(row.slice.operation for row in rows)


def verdict_words(words: Along) -> str:
    """What the verdicts mean."""
    return (
        f"always: ahead at every {words.each} measured; never: behind; censored: behind as far as the "
        "baseline ran; several: more than one crossing; ambiguous: the samples do not decide."
    )


def order(s: Slice) -> tuple[Any, ...]:
    """Sort key of the table's shapes: operation, direction, head dim, mask, then batch and heads."""
    return (
        OPERATIONS.index(s.operation),
        DIRECTIONS.index(s.direction),
        s.head_dim,
        s.head_dim_v,
        s.causal,
        s.batch,
        s.heads,
        s.kv_heads,
        s.seq_len_q or 0,
    )


def series_name(where: Slice) -> str:
    """Batch and heads as the filters write them: `B4-H32`, with `-KV8` where heads share keys; `512 rows`."""
    if where.operation != ATTENTION:
        return rows_text(where.batch)
    name = f"B{where.batch}-H{where.heads}"
    return name if where.kv_heads == where.heads else f"{name}-KV{where.kv_heads}"


def shape_name(where: Slice) -> str:
    """Direction, head dim and mask: `fwd · 128 · causal`; over rows direction and operation."""
    parts = (where.direction, str(where.head_dim), "causal" if where.causal else "–")
    if where.operation != ATTENTION:
        parts = (where.direction, rows_name(where))
    return f"{units.GROUP}·{units.GROUP}".join(parts)  # in one line of the table


def unbroken(text: str) -> str:
    """A text that stays in one line of the table."""
    return text.replace("-", "\u2011").replace(" ", units.GROUP)


def rows_name(where: Slice) -> str:
    """An operation over rows, and how many classes it keeps: `cross-entropy`, `softmax top-k, top 8`."""
    kept = f", top {where.head_dim_v}" if where.operation == "softmax_top_k" else ""
    return f"{named(where.operation)}{kept}"


def verdict_text(found: Crossover | None) -> str:
    """N* with its interval where the verdict is clear, else the verdict; `–` without a comparison."""
    if found is None:
        return units.UNKNOWN
    if found.verdict != "clear" or found.crossover_seq_len is None:
        return found.verdict
    text = units.crossover_text(found.crossover_seq_len, found.interval)
    return f"up to {text}" if found.ahead == "below" else text


def link(found: Crossover | None, where: Slice, query: Mapping[str, Any]) -> str:
    """A verdict as a badge that leads to its evidence on the Crossover page (Markdown, all words ours)."""
    text = verdict_text(found)
    if found is None:
        return text
    mask = "causal" if where.causal else "none"
    asked = {
        **query,
        "direction": where.direction,
        "series": series_name(where),
        **({"d": where.head_dim, "mask": mask} if where.operation == ATTENTION else {}),
        "metric": found.metric,
        **({"clock": found.clock} if found.clock else {}),
    }
    label = text.replace("[", "\\[").replace("]", "\\]").replace(" ", units.GROUP)
    return f"[:{COLOURS[found.verdict]}-badge[{label}]](crossover?{urlencode(asked, doseq=True)})"


def speedup_text(speedup: Speedup) -> str:
    """`2.34×`, or why there is none: `naive OOM`; `–` where that N was not measured."""
    if speedup.ratio is not None:
        return units.ratio_text(speedup.ratio)
    if not speedup.reason:
        return units.UNKNOWN
    who, _, status = speedup.reason.split(", ")[0].partition(": ")
    return f"{who}{units.GROUP}{status_word(status)}"


def linked(found: Overview, rows: Sequence[OverviewRow], query: Mapping[str, Any]) -> pd.DataFrame:
    """The table as the page shows it: Markdown texts, each crossover a link to its evidence."""
    return table(found, rows, lambda each, where: link(each, where, query))


def table(
    found: Overview,
    rows: Sequence[OverviewRow],
    cell: Callable[[Crossover | None, Slice], str] = lambda each, where: verdict_text(each),
) -> pd.DataFrame:
    """The table for people, a row a shape.

    Args:
        found: the overview.
        rows: of it, in the order to show them.
        cell: writes a crossover of a shape; plain text by default.
    """
    out = []
    words = along_of(rows)
    at = sorted({speedup.seq_len for row in rows for speedup in row.speedups})
    over_rows = all(row.slice.operation != ATTENTION for row in rows)
    shape, series = ("pass · operation", "rows") if over_rows else ("pass · d · mask", "batch · heads")
    for row in rows:
        line: dict[str, str] = {
            shape: unbroken(shape_name(row.slice)),
            series: unbroken(series_name(row.slice)),
        }
        for clock in found.clocks:
            line[f"{words.crossover} {clock}"] = cell(row.by_clock.get(clock), row.slice)
        line[f"{words.crossover} memory"] = cell(row.memory, row.slice)
        known = {speedup.seq_len: speedup_text(speedup) for speedup in row.speedups}
        line |= {f"× at {units.count_text(n)}": known.get(n, units.UNKNOWN) for n in at}
        longest = row.largest.get(found.baseline, 0)
        line[f"{'largest N' if words.before else 'most classes'} {found.baseline}"] = (
            units.count_text(longest) if longest else "none"
        )
        out.append(line)
    return pd.DataFrame(out)


def numbers(found: Overview, rows: Sequence[OverviewRow]) -> pd.DataFrame:
    """The same as numbers with every digit, one column per quantity."""
    out = []
    for row in rows:
        s = row.slice
        line: dict[str, Any] = {"direction": s.direction, "dtype": s.dtype} | _numbers_of(s)
        line |= {
            "baseline": found.baseline,
            "candidate": found.candidate,
        }
        for name, each in [
            *((clock, row.by_clock.get(clock)) for clock in found.clocks),
            ("memory", row.memory),
        ]:
            line[f"{name}_verdict"] = "" if each is None else each.verdict
            line[f"{name}_crossover_seq_len"] = None if each is None else each.crossover_seq_len
            low, high = (None, None) if each is None or each.interval is None else each.interval
            line[f"{name}_interval_lo"], line[f"{name}_interval_hi"] = low, high
        for speedup in row.speedups:
            line[f"{found.clock}_speedup_{speedup.seq_len}"] = speedup.ratio
        for name, longest in row.largest.items():
            line[f"largest_seq_len_{name}"] = longest
        out.append(line)
    return pd.DataFrame(out)


def _numbers_of(s: Slice) -> dict[str, Any]:
    """What sets a shape apart beside direction and dtype, by column."""
    if s.operation != ATTENTION:
        return {"operation": s.operation, "rows": s.batch, "top_k": s.head_dim_v}
    shape = {"batch": s.batch, "heads": s.heads, "kv_heads": s.kv_heads}
    return shape | {"head_dim": s.head_dim, "causal": s.causal}


def panels(found: Overview, rows: Sequence[OverviewRow], frame: pd.DataFrame) -> tuple[Panel, ...]:
    """One panel per direction and head dim, with a line per mask and the failures of both sides.

    Of operations over rows a panel per direction and operation.
    """
    grouped: dict[tuple[str, str], list[Series]] = {}
    style = theme.style_of(found.candidate)
    for row in rows:
        each = row.by_clock.get(found.clock)
        if each is None:
            continue
        s = row.slice
        over_rows, words = s.operation != ATTENTION, along([s.operation])
        key = (s.direction, rows_name(s) if over_rows else f"d = {s.head_dim}")
        points = tuple(
            Point(p.seq_len, p.ratio, p.ratio_lo, p.ratio_hi, key=s.case(found.candidate, p.seq_len).label)
            for p in each.points
            if p.ratio is not None
        )
        line = Series(
            found.candidate,
            points,
            label=found.candidate if over_rows else "causal" if s.causal else "no mask",
            style=theme.causal_style(style) if s.causal else style,
            along=words,
        )
        own = grouped.setdefault(key, [])
        own.append(line)
        for name in (found.baseline, found.candidate):
            _add_failures(own, name, _failures(frame, s, name, found.clock), words)
    return tuple(Panel(direction, column, tuple(series)) for (direction, column), series in grouped.items())


def _failures(frame: pd.DataFrame, where: Slice, name: str, clock: str) -> tuple[Failure, ...]:
    """The N of a shape at which that backend did not run."""
    rows = frame[
        (frame["name"] == name)
        & (frame["clock"] == clock)
        & (frame["direction"] == where.direction)
        & (frame["operation"] == where.operation)
        & (frame["head_dim"] == where.head_dim)
        & (frame["head_dim_v"] == where.head_dim_v)
        & (frame["causal"] == where.causal)
        & (frame["series"] == series_name(where))
        & (frame["status"] != "ok")
    ]
    return tuple(
        Failure(int(n), str(status), str(reason), where.case(name, int(n)).label)
        for n, status, reason in zip(rows["seq_len"], rows["status"], rows["reason"], strict=True)
    )


def _add_failures(own: list[Series], name: str, failures: tuple[Failure, ...], words: Along) -> None:
    """Crosses of a backend are drawn once a panel: both masks fail at the same N more often than not."""
    if not failures:
        return
    for i, series in enumerate(own):
        if series.name == name and not series.points:
            seen = {failure.seq_len for failure in series.failures}
            more = tuple(failure for failure in failures if failure.seq_len not in seen)
            own[i] = series._replace(failures=series.failures + more)
            return
    own.append(Series(name, (), failures, along=words))


def chart_numbers(found: Overview, shown: Sequence[Panel]) -> pd.DataFrame:
    """The points of all panels, every digit kept."""
    return pd.DataFrame(
        [
            {
                "direction": panel.row,
                **_panel_numbers(panel, series),
                "clock": found.clock,
                "seq_len": point.seq_len,
                "speedup": point.value,
                "speedup_lo": point.low,
                "speedup_hi": point.high,
            }
            for panel in shown
            for series in panel.series
            for point in series.points
        ],
        columns=None
        if any(series.points for panel in shown for series in panel.series)
        else ["direction", "head_dim", "mask", "clock", "seq_len", "speedup", "speedup_lo", "speedup_hi"],
    )


def _panel_numbers(panel: Panel, series: Series) -> dict[str, Any]:
    """What a line of a panel is of: head dim and mask, or the operation."""
    if not panel.column.startswith("d = "):
        return {"operation": panel.column}
    return {"head_dim": int(panel.column.removeprefix("d = ")), "mask": series.label}
