"""A review as a file for a pull request: Markdown, one HTML file that opens offline, CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jinja2

from profiling import export, report_html, step_table
from profiling.analysis.decision import DECIDED, Decision
from profiling.analysis.steps import Steps
from profiling.records import RunHeader
from profiling.review_table import Standing, headline, numbers, sign_off_table, table
from profiling.units import count_text

_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy | safe }}">
<title>Deployment review</title>
<style>{{ style | safe }}.stale td { text-decoration: line-through; }
.stale td.standing { text-decoration: none; }
</style>
</head>
<body>
<main>
<h1>Deployment review</h1>
<p><strong>{{ headline }}</strong></p>
<dl>{% for term, text in facts %}<dt>{{ term }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
<h2>Decision</h2>
<div class="wide" tabindex="0" role="region" aria-label="Decision table"><table>
<thead><tr>{% for name in columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<p>{{ legend }}</p>
{% if steps %}<h2>In a whole model step</h2>
{% if step_sentence %}<p>{{ step_sentence }}</p>{% endif %}
<div class="wide" tabindex="0" role="region" aria-label="Model steps"><table>
<thead><tr>{% for name in step_columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in steps %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<p>{{ step_legend }}</p>{% endif %}
{% if reasons %}<h2>What stands against it</h2>
<ul>{% for text in reasons %}<li>{{ text }}</li>{% endfor %}</ul>{% endif %}
<h2>Sign-offs</h2>
{% if signed %}<div class="wide" tabindex="0" role="region" aria-label="Sign-offs"><table>
<thead><tr><th scope="col">Signed (UTC)</th><th scope="col">Name</th><th scope="col">Decision</th>
<th scope="col">Comment</th><th scope="col">Standing</th></tr></thead>
<tbody>{% for each in signed %}<tr{% if each.stale %} class="stale"{% endif %}>
<td>{{ each.sign_off.signed_at }}</td><td>{{ each.sign_off.name }}</td><td>{{ each.sign_off.decision }}</td>
<td>{{ each.sign_off.comment }}</td><td class="standing">{{ each.text }}</td></tr>
{% endfor %}</tbody></table></div>{% else %}<p>{{ nobody }}</p>{% endif %}
</main>
</body>
</html>
"""
LEGEND = (
    "Ratios are the other's latency over the candidate's: above 1 the candidate is faster. They are "
    "measured; memory left is the device's memory less one attention call's inputs and peak, for weights "
    "and everything else."
)
NOBODY = "Nobody has signed yet."


class Review(NamedTuple):
    """What a report is made of: the decision, the run behind it, its fingerprint, who signed, model steps."""

    decision: Decision
    header: RunHeader
    fingerprint: str
    signed: tuple[Standing, ...]
    steps: Steps | None = None


def to_csv(review: Review) -> str:
    """The decision table with every digit, with the run and the fingerprint in each row.

    Of the model steps, the one that the other files show stands beside its row, in columns with `step_`.
    """
    frame = numbers(review.decision)
    if review.steps is not None and review.steps.rows:
        some = step_table.numbers(review.steps, step_table.shown(review.steps))
        keys = ["model", "batch"]
        held = some.drop(columns=["workload", "dtype", "clock"]).set_index(keys).rename(columns=_of_step)
        frame = frame.join(held, on=keys)
    return export.to_csv(frame.assign(run_id=review.header.run_id, fingerprint=review.fingerprint))


def _of_step(column: str) -> str:
    """`est_other_ms` -> `est_step_other_ms`: what is modelled still says so first."""
    return f"est_step_{column.removeprefix('est_')}" if column.startswith("est_") else f"step_{column}"


def to_markdown(review: Review) -> str:
    """The review for the text of a pull request."""
    lines = ["# Deployment review", "", f"**{export.escaped(headline(review.decision))}**", ""]
    lines += [f"- {term}: {export.escaped(text)}" for term, text in facts(review)]
    lines += ["", export.to_markdown(table(review.decision)), "", LEGEND, ""]
    rows = [] if review.steps is None else step_table.shown(review.steps)
    if review.steps is not None and rows:
        candidate = review.decision.question.candidate
        said = step_table.sentence(rows, candidate)
        lines += ["## In a whole model step", "", *([export.escaped(said), ""] if said else [])]
        lines += [export.to_markdown(step_table.table(rows, candidate)), ""]
        lines += [export.escaped(step_table.legend(review.steps)), ""]
    against = reasons(review.decision)
    if against:
        lines += ["## What stands against it", "", *(f"- {export.escaped(text)}" for text in against), ""]
    lines += ["## Sign-offs", ""]
    lines.append(export.to_markdown(sign_off_table(review.signed)) if review.signed else NOBODY)
    return "\n".join(lines) + "\n"


def to_html(review: Review) -> str:
    """The review as one HTML file without scripts, that asks nothing of a network."""
    shown, candidate = table(review.decision), review.decision.question.candidate
    rows = [] if review.steps is None else step_table.shown(review.steps)
    steps = step_table.table(rows, candidate)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_HTML)
    return template.render(
        style=report_html.STYLE,
        policy=report_html.POLICY,
        headline=headline(review.decision),
        facts=facts(review),
        columns=list(shown.columns),
        rows=shown.to_numpy().tolist(),
        legend=LEGEND,
        steps=steps.to_numpy().tolist(),
        step_columns=list(steps.columns),
        step_sentence=step_table.sentence(rows, candidate),
        step_legend="" if review.steps is None else step_table.legend(review.steps),
        reasons=reasons(review.decision),
        signed=review.signed,
        nobody=NOBODY,
    )


def facts(review: Review) -> list[tuple[str, str]]:
    """What was asked, and where the numbers come from."""
    question = review.decision.question
    shapes = dict.fromkeys(row.shape for row in review.decision.rows)
    return [
        ("Models", "; ".join(f"{shape.name} ({shape.text})" for shape in shapes)),
        ("Asked", _asked(review.decision)),
        *export.provenance(review.header),
        ("Candidate", question.candidate),
        ("Evidence fingerprint", review.fingerprint),
    ]


def reasons(decision: Decision) -> list[str]:
    """Why each row that is not decided is not; models of the same reason share a line."""
    grouped: dict[str, list[str]] = {}
    for row in decision.rows:
        if row.verdict != DECIDED:
            grouped.setdefault(f"{row.verdict}: {row.reason}", []).append(
                f"{row.shape.name}, batch {row.batch}"
            )
    return [f"{'; '.join(names)}: {reason}" for reason, names in grouped.items()]


def _asked(decision: Decision) -> str:
    q = decision.question
    ranges = f"batch {_range(q.batches)}, context {_range(q.seq_lens)} tokens"
    return f"{q.workload}, {ranges}, {q.dtype}, {q.clock} clock"


def _range(limits: Sequence[int]) -> str:
    low, high = limits
    return count_text(low) if low == high else f"{count_text(low)} to {count_text(high)}"
