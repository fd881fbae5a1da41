"""What a reader takes along: each chart as a picture, its numbers as a table, safe in a spreadsheet."""

from __future__ import annotations

import ast
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawing import draw, figures, values_of
from streamlit.testing.v1 import AppTest

from profiling.pages import registry

ROOT = Path(registry.__file__).resolve().parents[2]
Show = Callable[..., Path]
VIEWS: list[tuple[str, dict[str, str]]] = [
    ("overview", {}),
    ("crossover", {}),
    ("crossover", {"metric": "memory"}),
    ("latency", {}),
    ("latency", {"show": "TFLOP/s"}),
    ("latency", {"show": "time per token"}),
    ("memory", {}),
    ("memory", {"held": "retained"}),
    ("traffic", {}),
    ("traffic", {"per_head": "false"}),
    ("tiles", {}),
    ("roofline", {}),
    ("numerics", {}),
    ("compare", {}),
    ("what-if", {}),
]
# What is drawn and is no data: crosses of failures lie at the edge, a map's colours are the table's ratios
# on a scale of their own, ceilings are drawn from edge to edge and stand in their table by their level.
_PLACED = {"markers+text", "text"}


def drawn(figure: dict[str, Any], page: str) -> list[float]:
    """The values of a figure that are data."""
    found: list[float] = []
    for trace in figure["data"]:
        ceiling = page == "roofline" and trace.get("mode") == "lines"
        if trace.get("mode") in _PLACED or trace["type"] == "heatmap" or ceiling:
            continue
        axis = "x" if page == "compare" else "y"  # a case a line there
        for value in np.array(values_of(trace.get(axis, [])), dtype=object).ravel():
            if isinstance(value, int | float) and math.isfinite(value):
                found.append(float(value))
    return found


def numbers(app: AppTest) -> set[str]:
    """Every number in the tables of a page, to nine digits."""
    out: set[str] = set()
    for table in app.dataframe:
        for name in table.value.columns:
            column = pd.to_numeric(table.value[name], errors="coerce")
            out |= {f"{value:.9g}" for value in column.dropna().astype(float)}
    return out


@pytest.mark.parametrize(("page", "query"), VIEWS, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_every_number_of_a_chart_stands_in_a_table_of_its_page(
    show: Show, page: str, query: dict[str, str]
) -> None:
    """Points, whisker-less lines and models alike: what is drawn can be taken along as CSV and Markdown."""
    show("h200-standard", "h200-tiles", "h200-counters", "cpu-quick")
    app = draw(page, **query)
    values = [value for figure in figures(app) for value in drawn(figure, page)]
    assert values
    there = numbers(app)
    assert [value for value in values if f"{value:.9g}" not in there] == []


@pytest.mark.parametrize("page", sorted({page for page, _ in VIEWS}))
def test_every_chart_has_its_pictures_and_every_table_its_csv(show: Show, page: str) -> None:
    """A chart has the buttons that save it; each expander of a table has a CSV and Markdown."""
    show("h200-standard", "h200-tiles", "h200-counters", "cpu-quick")
    app = draw(page)
    assert len(app.get("bidi_component")) >= len(figures(app)) > 0
    named = [(str(getattr(expander, "label", "")), expander) for expander in app.expander]
    tables = [expander for label, expander in named if label.startswith("Table, CSV, Markdown")]
    assert len(tables) >= len(figures(app)) or page == "overview"
    for table in tables:
        assert [getattr(button, "label", "") for button in table.get("download_button")] == ["CSV"]
        assert [code.language for code in table.code] == ["markdown"]


def test_streamlits_own_csv_of_a_table_is_switched_off() -> None:
    """It writes `=1+1` as it stands; what leaves a table goes through `export.to_csv`."""
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    assert settings["client"]["disableDataExport"] is True


def test_no_page_writes_a_csv_but_by_the_one_function() -> None:
    """`export.to_csv` alone guards cells against spreadsheets: no page calls pandas' own or csv.writer."""
    for path in Path(registry.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("to_csv", "writer", "DictWriter"):
                assert ast.unparse(node) in ("export.to_csv", "report.to_csv"), path.name
