"""Claims about runs with features: each is a filter, none shares a line with another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from drawing import draw, figures, texts
from page_runs import FEATURES, feature_run, gpu_run
from synthetic import LAWS, law_ms, synthetic_case

from profiling import store
from profiling.analysis.crossover import crossovers
from profiling.analysis.curves import by_slice
from profiling.pages import filters, state

Show = Callable[..., Path]
# How each feature is chosen: the query parameters of its filters.
CHOICES: dict[str, dict[str, str]] = {
    "plain": {},
    "window": {"window": "512 before"},
    "softcap": {"softcap": "30"},
    "bias": {"bias": "yes"},
    "sinks": {"sinks": "yes"},
    "alibi": {"alibi": "yes"},
    "varlen": {"layout": "varlen"},
    "paged": {"layout": "paged"},
}


def chips(app) -> set[str]:
    """The labels of the filters that a page draws in its sidebar."""
    return {group.label for group in app.sidebar.get("button_group")}


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_has_lines_of_its_own(show: Show, name: str) -> None:
    """Chosen by its filter, a feature's latencies are its own laws', backend by backend."""
    show("h200-features")
    app = draw("latency", run="h200-features", clock="device", **CHOICES[name])
    fields, slower = FEATURES[name]
    traces = [trace for trace in figures(app)[0]["data"] if trace.get("name") in LAWS]
    drawn = {trace["name"]: trace for trace in reversed(traces)}  # the speed-ups, further down, come last
    for backend in ("naive", "flash"):
        case = synthetic_case(backend, 4096, **fields)
        (value,) = [y for x, y in zip(drawn[backend]["x"], drawn[backend]["y"], strict=True) if x == 4096]
        assert value == pytest.approx(slower * law_ms(case, "device"), rel=0.05)


def test_filters_are_there_for_what_differs(show: Show) -> None:
    """A run with several features has a filter for each; one without has none of them on the page."""
    features = {"Layout", "Window", "Softcap", "Bias", "Sinks", "ALiBi"}
    show("h200-features", "h200-standard")
    assert chips(draw("latency", run="h200-features")) >= features
    assert not chips(draw("latency", run="h200-standard")) & features
    # of the windowed cases, none has another feature: nothing is left to choose
    assert chips(draw("latency", run="h200-features", window="512 before")) & features == {"Layout", "Window"}


def test_the_overview_compares_one_feature_at_a_time(show: Show) -> None:
    """Its rows are of the chosen feature, and its links lead to the same cases."""
    show("h200-features")
    app = draw("overview", run="h200-features", softcap="30")
    (table,) = app.table
    assert len(table.value) == 1
    (link,) = [cell for cell in table.value.iloc[0].astype(str) if "crossover?" in cell][:1]
    assert "softcap=30" in link
    page = draw("crossover", run="h200-features", softcap="30", direction="fwd", mask="causal")
    assert "Verdict" in {metric.label for metric in page.metric}


@pytest.mark.parametrize("page", ["memory", "traffic", "crossover"])
def test_every_page_draws_a_feature_that_has_no_model(show: Show, page: str) -> None:
    """What has no law is drawn as measured; the formulas' page keeps to the cases that they hold for."""
    show("h200-features")
    assert texts(draw(page, run="h200-features", window="512 before"))


def test_tflops_leave_windows_out(show: Show) -> None:
    """The paper's count ignores a window, so there is no rate to draw, and the page says why."""
    show("h200-features")
    app = draw("latency", run="h200-features", window="512 before", show="TFLOP/s")
    assert "A window has no rate" in texts(app)
    assert "A window has no rate" not in texts(draw("latency", run="h200-features", show="TFLOP/s"))


def test_curves_and_crossovers_never_mix_features() -> None:
    """Every feature is a slice of its own, with a label that names it."""
    table = store.frame(feature_run())
    slices = by_slice(table[table["clock"] == "device"])
    assert len(slices) == len(FEATURES)
    assert all(rows["name"].value_counts().to_dict() == {"naive": 3, "flash": 3} for rows in slices.values())
    found = crossovers(table, None, baseline="naive", candidate="flash", clock="device")
    labels = [each.slice.label for each in found]
    assert len(set(labels)) == len(FEATURES)
    assert "fwd bf16 B1 H16 d64 causal window 512 before" in labels
    assert "fwd bf16 B4 H16/2 d64 Nq1 paged" in labels


def test_all_features_of_a_run_are_reached_by_filters() -> None:
    """Going through every filter's values reaches every row, each by one way."""
    table = state.with_axes(store.frame(feature_run()))
    assert set(filters.SLICE) == set(filters.AXES) - {"tokens"}  # which stands for `series`, see ALONG
    columns = [filters.AXES[key].column for key in filters.SLICE]
    groups = table.groupby(columns, dropna=False)
    assert groups.ngroups == len(FEATURES)
    assert table["plain"].sum() == len(table) // len(FEATURES)
    standard = state.with_axes(store.frame(gpu_run(seq_lens=(64,))))
    assert standard["plain"].all()
