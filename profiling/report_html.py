"""One HTML file that opens offline: a style, texts that stay texts, and charts drawn by plotly.js inside it.

A policy in the file forbids it the network; scripts run only if their digest stands in that policy.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jinja2
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

STYLE = """
:root { color-scheme: light dark; --line: #8888; --ink: light-dark(#1a1a1a, #f0f0f0);
  --paper: light-dark(#fff, #0e1117); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 0.4rem 0.8rem 0.4rem 0;
  border-bottom: 1px solid var(--line); }
dt { font-weight: 600; }
dd { margin: 0 0 0.4rem; overflow-wrap: anywhere; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# What draws: a <select data-group="g"> chooses an entry of group g; a <figure data-group="g" data-chart="c">
# shows chart c of it, its buttons save a picture; a <table data-group="g"> has its rows.
SCRIPT = """
const groups = JSON.parse(document.getElementById("charts").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const config = {displaylogo: false, responsive: true,
  modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"]};
function look() {
  const colours = getComputedStyle(document.body);
  const axis = {gridcolor: dark.matches ? "#3a3f4a" : "#e0e0e0", automargin: true, title: {standoff: 15}};
  return {layout: {paper_bgcolor: colours.backgroundColor, plot_bgcolor: colours.backgroundColor,
    font: {color: colours.color, family: "system-ui, sans-serif"}, xaxis: axis, yaxis: axis}};
}
function chosen(group) {
  const select = document.querySelector(`select[data-group="${group}"]`);
  return groups[group][select ? Number(select.value) : 0];
}
function fill(table, rows) {
  const body = table.tBodies[0];
  body.replaceChildren(...rows.map(row => {
    const line = document.createElement("tr");
    line.append(...row.map(text => {
      const cell = document.createElement("td");
      cell.textContent = text;
      return cell;
    }));
    return line;
  }));
}
function show(group) {
  const entry = chosen(group);
  for (const figure of document.querySelectorAll(`figure[data-group="${group}"]`)) {
    const chart = entry.charts[figure.dataset.chart];
    figure.hidden = !chart;
    if (!chart) continue;
    const {data, layout} = structuredClone(chart);
    const box = figure.querySelector(".chart");
    box.style.minHeight = `${layout.height}px`;
    Plotly.react(box, data, {...layout, template: look()}, config);
  }
  for (const table of document.querySelectorAll(`table[data-group="${group}"]`)) fill(table, entry.rows);
}
function save(button) {
  const figure = button.closest("figure");
  const name = [figure.dataset.chart, chosen(figure.dataset.group).name].join("-");
  const box = figure.querySelector(".chart");
  Plotly.downloadImage(box, {width: 1200, height: box.clientHeight, format: button.dataset.save,
    scale: button.dataset.save === "png" ? 2 : 1, filename: name.replace(/[^A-Za-z0-9.-]+/g, "-")});
}
const all = Object.keys(groups);
for (const select of document.querySelectorAll("select[data-group]"))
  select.addEventListener("change", () => show(select.dataset.group));
for (const button of document.querySelectorAll("button[data-save]"))
  button.addEventListener("click", () => save(button));
dark.addEventListener("change", () => all.forEach(show));
all.forEach(show);
"""
# Macros for the body of a page with charts.
MACROS = """
{%- macro table(name, columns, rows) -%}
<div class="wide" tabindex="0" role="region" aria-label="{{ name }}"><table>
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{%- endmacro -%}
{%- macro choice(group, label, names) -%}
<p><label for="choice-{{ group }}">{{ label }}</label>
<select id="choice-{{ group }}" data-group="{{ group }}">{% for name in names %}
<option value="{{ loop.index0 }}">{{ name }}</option>{% endfor %}</select></p>
{%- endmacro -%}
{%- macro chart(group, name, alt, caption) -%}
<figure data-group="{{ group }}" data-chart="{{ name }}">
<div class="chart" role="group" aria-label="{{ alt }}"></div>
<figcaption>{{ caption }}
<button type="button" data-save="svg">Save as SVG</button>
<button type="button" data-save="png">Save as PNG</button></figcaption>
</figure>
{%- endmacro -%}
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy | safe }}">
<title>{{ title }}</title>
<style>{{ style | safe }}
th, td:first-child { white-space: nowrap; }
figure { margin: 1rem 0; }
figcaption { font-size: 0.9rem; }
button, select { font: inherit; padding: 0.2rem 0.6rem; max-width: 100%; }
.chart { overflow: hidden; }
@media print { button { display: none; } }
</style>
</head>
<body>
<main>
{{ body | safe }}
</main>
<script type="application/json" id="charts">{{ charts | safe }}</script>
<script>{{ plotly | safe }}</script>
<script>{{ script | safe }}</script>
</body>
</html>
"""


def page(title: str, body: str, groups: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """A whole page.

    Args:
        title: of the document.
        body: a Jinja template with `MACROS` at hand; what `values` puts into it is escaped.
        groups: by name, a list of entries `{"name": text, "charts": {name: figure}, "rows": [[text]]}`,
            figures as `chart_of` makes them.
        values: what the body speaks of.

    Returns:
        HTML that asks nothing of a network, in 5 MB: plotly.js is inside, once.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    rendered = environment.from_string(MACROS + body).render(values)
    plotly = get_plotlyjs()
    scripts = " ".join(f"'sha256-{_digest(text)}'" for text in (plotly, SCRIPT))
    return environment.from_string(_PAGE).render(
        title=title,
        style=STYLE,
        policy=f"{POLICY}; img-src data: blob:; script-src {scripts}",
        body=rendered,
        charts=_json(groups),
        plotly=plotly,
        script=SCRIPT,
    )


def chart_of(fig: go.Figure) -> dict[str, Any]:
    """A figure as the page's script draws it; colours of paper, grid and letters are the page's own."""
    drawn = json.loads(str(fig.to_json()))
    drawn["layout"].pop("template", None)
    return {"data": drawn["data"], "layout": drawn["layout"]}


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _digest(text: str) -> str:
    """What a policy names a script by: the SHA-256 of its text in base64."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
