"""A run's overview as one HTML file: sentences, crossovers, charts, provenance, flags and failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiling import export, lines, overview_table, report_html, units
from profiling.analysis.axes import records
from profiling.analysis.curves import Slice, by_slice, cases
from profiling.analysis.operations import along, along_of, named
from profiling.analysis.summary import Overview, OverviewRow
from profiling.case import ATTENTION, feature_words
from profiling.devices import Device
from profiling.figures import latency, memory, speedup, traffic
from profiling.figures.series import LATENCY, PEAK_MEMORY, status_word
from profiling.records import FLAGS, Run

MOST_SHAPES = 120  # with charts: some 30 kB each
MOST_ROWS = 500  # of a list of failures or flags
FLAG_WORDS = {
    "thermal": "the GPU slowed down for heat",
    "clock_drift": "the median SM clock differed by more than 3 % between processes, or halves of a lone one",
    "noisy": "an interquartile range above 10 % of the median",
    "timer_limited": "a latency within what the clock itself takes: in no crossover",
    "stale_kernel": "measured with other kernel sources than those at hand",
}
COLUMNS = ("Backend", "Status", "Latency p50", "p20 to p80", "Speed-up", "Peak memory", "Flags")
BODY = """
<h1>FlashScope: {{ run_id }}</h1>
<p><strong>{{ found.headline }}</strong></p>
<p>{{ counts }}</p>
<h2>From which {{ each }} on it pays off</h2>
{{ table("Crossovers", columns, crossovers) }}
<p>Measured. {{ star }} is where {{ found.candidate }} overtakes {{ found.baseline }}, with its 95 %
interval where the verdict is clear, else the verdict. {{ words }} Speed-up at {{ each }} on the
{{ found.clock }} clock: {{ found.baseline }} / {{ found.candidate }}, higher is better.</p>
{% if speedups %}
<h2>Speed-up against {{ noun }}</h2>
{{ choice("speedups", series, speedups) }}
{{ chart("speedups", "speed-up", "Speed-up against " ~ noun ~ ", a panel for each " ~ panels,
"Measured. Ratio of paired rounds with its 95 % interval; shaded: the candidate is slower. Crosses: a side did
not run.") }}
{% endif %}
{% if shapes %}
<h2>Latency, memory and traffic of one shape</h2>
{{ choice("shapes", "Shape", shapes) }}
{% if left_out %}
<p>{{ left_out }} further shapes have no charts here; their crossovers are above.</p>
{% endif %}
{{ chart("shapes", "latency", "Latency against " ~ noun ~ " per backend, and the speed-up over "
~ found.baseline, "Measured, " ~ found.clock ~ " clock. Median; whiskers from p20 to p80.") }}
{{ chart("shapes", "memory", "Peak memory against " ~ noun ~ " per backend",
"Measured: bytes above the inputs, unless the run says otherwise (column mem_method of its CSV).") }}
{{ chart("shapes", "traffic", "Bytes moved against " ~ noun ~ ": models dashed, hardware counters as points",
"Modelled: dashed. Points, where there are any, are hardware counters.") }}
<div class="wide" tabindex="0" role="region" aria-label="Rows of this shape"><table data-group="shapes">
<thead><tr>{% for name in rows %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody></tbody></table></div>
{% endif %}
<h2>What to be careful about</h2>
{% if flags %}
{{ table("Flags", ["Flag", "Cases", "Meaning"], flags) }}
{% else %}
<p>No case is flagged.</p>
{% endif %}
{% for text in problems %}<p>{{ text }}</p>{% endfor %}
<h2>What did not run</h2>
{% if failures %}
{{ table("Failures", ["Case", "Status", "Reason"], failures) }}
{% else %}
<p>Every case ran.</p>
{% endif %}
{% if more_failures %}<p>{{ more_failures }} further cases did not run.</p>{% endif %}
<h2>Where the numbers come from</h2>
<dl>{% for term, text in facts %}<dt>{{ term }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
"""


def to_html(
    run: Run,
    rows: pd.DataFrame,
    found: Overview,
    device: Device | None,
    *,
    kept: Sequence[tuple[str, str]] = (),
) -> str:
    """The report.

    Args:
        run: the run.
        rows: those of its rows that it speaks of, without requested tiles, with `analysis.axes.with_axes`.
        found: `analysis.summary.overview` of them.
        device: the run's, for the lines of its limits; None if unknown.
        kept: which rows these are, if not all: filters and their values.

    Returns:
        HTML as `report_html.page` makes it.
    """
    timed = rows[rows["clock"] == found.clock]
    # of `timed` itself: a slice's own rows have lost the number of queries where it is that of the keys
    tables = {_bare(each): timed.loc[own.index] for each, own in by_slice(timed).items()}
    answered = sorted(found.rows, key=lambda row: overview_table.order(row.slice))
    several = _speedups(found, answered, tables)
    shown = sorted(tables, key=overview_table.order)[:MOST_SHAPES]
    shapes = [_shape(each, tables[each], found, device) for each in shown]
    failed = rows[rows["status"] != "ok"]
    failures = failed.assign(label=[case.label for case in cases(failed)])
    failures = failures.drop_duplicates(["label", "status"])
    crossovers = _crossovers(found, answered)
    words = along_of(rows)
    over_rows = not (rows["operation"] == ATTENTION).any()
    values: dict[str, Any] = {
        "run_id": run.run_id,
        "found": found,
        "counts": overview_table.counts_text(found),
        "columns": list(crossovers.columns),
        "crossovers": crossovers.to_numpy().tolist(),
        "words": overview_table.verdict_words(words),
        "each": words.each,
        "noun": words.each if words.before else words.noun,
        "star": words.crossover if words.before else "A crossover",
        "series": "Rows" if over_rows else "Batch and heads",
        "panels": "direction and operation" if over_rows else "direction and head dim",
        "speedups": [entry["name"] for entry in several],
        "shapes": [entry["name"] for entry in shapes],
        "left_out": len(tables) - len(shown),
        "rows": (words.column[0].upper() + words.column[1:], *COLUMNS),
        "flags": [
            (flag, found.n_by_flag[flag], FLAG_WORDS[flag]) for flag in FLAGS if flag in found.n_by_flag
        ],
        "problems": run.problems,
        "failures": failures[["label", "status", "reason"]].head(MOST_ROWS).to_numpy().tolist(),
        "more_failures": max(0, len(failures) - MOST_ROWS),
        "facts": [*_asked(found, kept), *export.provenance(run.header), *_end(run)],
    }
    groups = {"speedups": several, "shapes": shapes}
    charts = {name: entries for name, entries in groups.items() if entries}
    return report_html.page(f"FlashScope: {run.run_id}", BODY, charts, values)


def _bare(each: Slice) -> Slice:
    return each._replace(clock="", mem_method="")


def _asked(found: Overview, kept: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    which = ", ".join(f"{name} {value}" for name, value in kept)
    asked = f"{found.candidate} against {found.baseline}"
    return [("Compared", asked), *([("Only rows with", which)] if which else [])]


def _end(run: Run) -> list[tuple[str, str]]:
    """How the run ended, and what one environment cannot say."""
    told = [("Cases", f"{len(run.measurements)} of {run.planned_cases} planned")]
    if run.end is not None:
        took = "" if run.end.took_s is None else f", after {units.duration_text(run.end.took_s)}"
        told.append(("Ended", f"{run.end.status}, {run.end.at}{took}"))
    if len(run.environments) > 1:
        told.append(("Environments", f"{len(run.environments)}: it was resumed with others"))
    return told


def _crossovers(found: Overview, rows: Sequence[OverviewRow]) -> pd.DataFrame:
    """The overview's table with the whole shape in its first column."""
    table = overview_table.table(found, rows)
    if table.empty:
        return table
    table = table.drop(columns=list(table.columns[:2]))
    table.insert(0, "shape", [row.slice.label for row in rows])
    return table


def _speedups(
    found: Overview, rows: Sequence[OverviewRow], tables: dict[Slice, pd.DataFrame]
) -> list[dict[str, Any]]:
    """A chart for each batch, heads and features, with a panel a direction and head dim, a line a mask."""
    together: dict[Slice, list[OverviewRow]] = {}
    for row in rows:
        if found.clock in row.by_clock:
            key = row.slice._replace(direction="", head_dim=0, head_dim_v=0, causal=False)
            together.setdefault(key, []).append(row)
    out = []
    for key, own in together.items():
        frame = pd.concat([tables[row.slice] for row in own])
        panels = overview_table.panels(found, own, frame)
        chart = speedup.SpeedupChart(panels, f"{found.baseline} / {found.candidate}")
        name = " ".join([key.dtype, overview_table.series_name(key), *_more_of(key)])
        out.append({"name": name, "charts": {"speed-up": report_html.chart_of(speedup.figure(chart))}})
    return out


def _more_of(key: Slice) -> list[str]:
    """What sets the shapes of a chart apart beside dtype, batch and heads."""
    if key.operation != ATTENTION:
        return [named(key.operation)]
    queries = [] if key.seq_len_q is None else [f"Nq {key.seq_len_q}"]
    return [*queries, *feature_words(key)]


def _shape(where: Slice, rows: pd.DataFrame, found: Overview, device: Device | None) -> dict[str, Any]:
    """The charts and rows of one shape; a chart whose numbers were not measured is left out."""
    times, held = lines.series(rows, lines.LATENCY), lines.series(rows, lines.PEAK_MEMORY)
    ratios = lines.ratios(times, found.baseline)
    charts: dict[str, Any] = {}
    if any(each.points for each in times):
        figure = latency.figure(latency.LatencyChart(LATENCY, times, ratios, found.baseline))
        charts["latency"] = report_html.chart_of(figure)
    if any(each.points for each in held):
        capacity = None if device is None else device.memory_bytes
        label = "" if device is None else memory.capacity_label(device.name, capacity)
        chart = memory.MemoryChart(PEAK_MEMORY, held, (), capacity, label)
        charts["memory"] = report_html.chart_of(memory.figure(chart))
    modelled = _models(rows, found.candidate)
    if modelled:
        chart = traffic.TrafficChart(modelled, lines.counted(rows), along=along([where.operation]))
        charts["traffic"] = report_html.chart_of(traffic.figure(chart))
    faster = {(s.name, p.seq_len): p.value for s in ratios for p in s.points}
    return {
        "name": where.label,
        "charts": charts,
        "rows": [_line(row, faster) for row in records(rows)],
    }


def _models(rows: pd.DataFrame, candidate: str) -> tuple[traffic.Modelled, ...]:
    """The modelled bytes at each N of the candidate, whose tiles they are of."""
    own = rows[rows["name"] == candidate]
    out = []
    roles = traffic.LABELS
    if (rows["operation"] != ATTENTION).any():  # of which a fused kernel reads each logit once
        roles = {name: traffic.LABELS[name] for name in ("naive", "compulsory")}
    for role, label in roles.items():
        column = f"est_{role}_bytes"
        known = own[own[column].notna()]
        points = tuple(zip(known["seq_len"].astype(int), known[column].astype(float), strict=True))
        if points:
            out.append(traffic.Modelled(role, label, points))
    return tuple(out)


def _line(row: Any, faster: dict[tuple[str, int], float]) -> list[str]:
    """A row of the comparison table as people read it."""
    ran = row.status == "ok"
    spread = f"{units.time_text(row.latency_p20_ms)} to {units.time_text(row.latency_p80_ms)}"
    return [
        units.count_text(row.seq_len),
        str(row.name),
        status_word(row.status),
        units.time_text(row.latency_p50_ms) if ran else units.UNKNOWN,
        spread if ran and not pd.isna(row.latency_p20_ms) else units.UNKNOWN,
        units.ratio_text(faster.get((row.name, row.seq_len))),
        units.bytes_text(row.peak_mem_bytes) if ran else units.UNKNOWN,
        str(row.flags or ""),
    ]
