"""Claims about runs with operations over rows, alone and beside attention: every page, and its words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawing import draw, figures, texts
from page_runs import mixed_run
from streamlit.testing.v1 import AppTest
from synthetic import ROW_LAWS, law_ms, synthetic_row_case, write_synthetic

from profiling import store, units
from profiling.pages import compare, filters, memory, registry, state
from profiling.paths import DATA_DIR
from profiling.records import Run

Show = Callable[..., Path]
PATHS = [entry.path for entry in registry.ENTRIES]
# Pages about attention alone that need a run, and those that show every operation.
OF_ATTENTION = ("review", "roofline", "what-if", "traffic")
OF_ALL = ("overview", "crossover", "latency", "memory", "numerics")
ALONE = "This run holds cross-entropy and softmax top-k alone"


def chips(app: AppTest) -> dict[str, list[str]]:
    """The filters that a page draws in its sidebar, with what each offers."""
    return {group.label: list(group.options) for group in app.sidebar.get("button_group")}


def axis_titles(app: AppTest) -> set[str]:
    """The titles of the horizontal axes of a page's charts; small multiples have one in common, as a note."""
    found = set()
    for figure in figures(app):
        layout = figure["layout"]
        found |= {
            axis.get("title", {}).get("text", "") for k, axis in layout.items() if k.startswith("xaxis")
        }
        found |= {note["text"] for note in layout.get("annotations", ()) if "lasses of" in note["text"]}
    return found - {""}


def spaced(text: str) -> str:
    """A text whose groups of digits are set apart by plain blanks."""
    return text.replace(units.GROUP, " ")


def alts(app: AppTest) -> list[str]:
    """What screen readers hear of a page's charts."""
    return [element.proto.alt for element in app.get("plotly_chart")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", PATHS)
def test_every_page_draws_a_mixed_run(path: str, show: Show) -> None:
    """Beside attention rows are a choice on pages that show them, and on no other."""
    show("h200-mixed", "h200-tiles")
    app = draw(path, run="h200-mixed")
    assert not app.error
    assert ALONE not in texts(app)
    if path in OF_ALL:
        assert chips(app)["Operation"] == ["attention", "cross-entropy", "softmax top-k"]
    elif path in OF_ATTENTION:
        assert "Operation" not in chips(app)


@pytest.mark.parametrize("path", PATHS)
def test_every_page_draws_a_run_of_rows_alone(path: str, show: Show) -> None:
    """Pages of all operations draw; a page of attention says in one sentence which others to look at."""
    show("h200-softmax")
    app = draw(path)
    assert not app.error
    said = texts(app)
    assert (ALONE in said) is (path in OF_ATTENTION)
    if path in OF_ALL:
        assert figures(app)
        assert "Sequence length" not in " ".join(axis_titles(app))
        assert "sequence length" not in " ".join(alts(app))
    if path == "tiles":
        assert "No run of this folder asked for tiles." in said


@pytest.mark.parametrize("path", OF_ALL)
def test_charts_of_rows_run_along_classes(path: str, show: Show) -> None:
    """The axis, the alt text and the hovers speak of classes; of attention they speak of N."""
    show("h200-mixed")
    rows = draw(path, run="h200-mixed", operation="cross-entropy")
    assert "Classes of a row" in axis_titles(rows)
    assert any("classes of a row" in alt for alt in alts(rows))
    hovers = [trace.get("hovertemplate", "") for figure in figures(rows) for trace in figure["data"]]
    assert any("%{x:,d} classes" in hover for hover in hovers)
    assert not any("N = " in hover for hover in hovers)
    plain = draw(path, run="h200-mixed")
    assert "Sequence length N (tokens)" in str(figures(plain))
    assert "lasses" not in str(axis_titles(plain))


def test_filters_of_rows_are_rows_and_classes_kept(show: Show) -> None:
    """Heads, head dims and masks are none of theirs."""
    show("h200-mixed")
    entropy = chips(draw("latency", run="h200-mixed", operation="cross-entropy"))
    assert entropy["Rows"] == ["1024 rows", "4096 rows"]
    assert not {"Batch · heads", "Head dim d", "Mask", "Other", "Classes kept"} & set(entropy)
    gate = chips(draw("latency", run="h200-mixed", operation="softmax top-k"))
    assert gate["Classes kept"] == ["top 2", "top 8"]
    assert "Head dim d" in chips(draw("latency", run="h200-mixed"))


def test_latency_of_rows_is_their_law_s(show: Show) -> None:
    """The points of a line are the medians of these rows; `online` is the usual candidate."""
    show("h200-mixed")
    query = {"operation": "cross-entropy", "series": "4096 rows", "clock": "device"}
    (figure,) = figures(draw("latency", run="h200-mixed", **query))
    drawn = {trace["name"]: trace for trace in reversed(figure["data"])}
    for name in ("naive", "online"):
        (ms,) = [y for x, y in zip(drawn[name]["x"], drawn[name]["y"], strict=True) if x == 5000]
        expected = law_ms(synthetic_row_case(name, 5000), "device", ROW_LAWS)
        assert ms == pytest.approx(expected, rel=0.02)


def test_a_rate_is_not_offered_of_rows(show: Show) -> None:
    """There are no FLOPs to speak of; a token is a row."""
    show("h200-mixed")
    app = draw("latency", run="h200-mixed", operation="cross-entropy", show="TFLOP/s")
    (control,) = [group for group in app.main.get("button_group") if group.label == "Show"]
    assert list(control.options) == ["latency", "time per row"]
    each = draw("latency", run="h200-mixed", operation="cross-entropy", show="time per row")
    assert "Latency divided by the number of rows." in texts(each)
    assert figures(each)[0]["layout"]["yaxis"]["title"]["text"].startswith("Latency per row (ns)")
    table = each.dataframe[-1].value
    assert {"rows", "classes", "latency_per_row_ns"} <= set(table.columns)
    assert "paper_tflops" not in table.columns


def test_a_crossover_of_rows_speaks_of_classes(show: Show) -> None:
    """Verdict, place and sentences; there is no latency model of rows, so no reasons are given."""
    show("h200-mixed")
    query = {"operation": "cross-entropy", "series": "4096 rows", "clock": "device", "candidate": "online"}
    app = draw("crossover", run="h200-mixed", **query)
    labels = {metric.label: metric.value for metric in app.metric}
    assert labels["Verdict"] == "clear"
    # 13 333 · 64 / 4096 = 208, found by a spline through few points
    assert 150 < int(labels["Ahead from (classes)"]) < 280
    said = spaced(texts(app))
    assert "online is behind up to 100 classes and ahead from 1 000 classes on" in said
    assert "N = " not in said
    assert "Why here" not in said


@pytest.mark.parametrize("down", ["rows", "classes kept"])
def test_a_map_of_rows(down: str, show: Show) -> None:
    """Down the map are rows, or how many classes are kept."""
    show("h200-softmax")
    app = draw("crossover", view="map", down=down, operation="softmax top-k", candidate="online")
    (figure,) = figures(app)
    assert figure["layout"]["xaxis"]["title"]["text"] == "Classes of a row"
    assert figure["layout"]["yaxis"]["title"]["text"] == ("Rows" if down == "rows" else "Classes kept")


def test_the_overview_of_rows_links_to_their_crossovers(show: Show) -> None:
    """The headline, the table and its links are of the operation chosen."""
    show("h200-mixed")
    app = draw("overview", run="h200-mixed", operation="cross-entropy", candidate="online", clock="device")
    (table,) = app.table
    assert list(table.value.columns[:3]) == ["pass · operation", "rows", "crossover wall"]
    cell = next(text for text in table.value.iloc[0].astype(str) if "crossover?" in text)
    assert "operation=cross-entropy" in cell
    assert "series=1024+rows" in cell
    assert "&d=" not in cell
    said = texts(app)
    assert "classes on" in said
    assert "N*" not in said
    assert "× at 50 257" in {spaced(str(name)) for name in table.value.columns}


def test_memory_of_rows_has_its_own_words(show: Show) -> None:
    """What fits is told in classes."""
    show("h200-softmax")
    app = draw("memory", operation="cross-entropy", series="4096 rows")
    assert "above the logits" in texts(app)
    fits = app.dataframe[0].value
    assert list(fits.columns)[1:] == [
        "most classes that ran",
        "out of memory from (classes)",
        "most classes that fit (modelled)",
    ]
    own = fits[fits["backend"] == "naive"].iloc[0]
    assert own["out of memory from (classes)"] == 50257
    assert own["most classes that fit (modelled)"] > 50257


def test_numerics_of_rows_leave_attention_out(show: Show) -> None:
    """No line that is quoted of attention, and no larger logits of it."""
    show("h200-softmax")
    app = draw("numerics", operation="cross-entropy")
    assert "Larger logits" not in texts(app)
    assert "often quoted" not in str(figures(app))


def test_a_point_of_rows_is_told_as_one(show: Show) -> None:
    """Rows, classes and what is kept; and the command that measures it again."""
    show("h200-softmax")
    label = synthetic_row_case("online", 64, rows=16384, top_k=8).label
    app = draw("latency", operation="softmax top-k", other="top 8", case=label)
    facts = next(table.value for table in app.dataframe if "what" in table.value.columns)
    told = dict(zip(facts["what"], facts["value"], strict=True))
    assert told["operation"] == "softmax top-k"
    assert told["classes kept"] == "8"
    assert "heads, KV heads" not in told
    assert any("softmax_top_k" in str(code.value) for code in app.code)


def test_compare_sets_operations_apart(show: Show) -> None:
    """A mean is of one operation; head dims are attention's alone."""
    show("h200-mixed", "h200-softmax")
    app = draw("compare", a="h200-mixed", b=["h200-softmax"])
    offered = chips(app)
    assert offered["Operation"] == ["attention", "cross-entropy", "softmax top-k"]
    assert "1" not in offered["Head dim d"]
    groups = next(table.value for table in app.dataframe if "mean_ratio" in table.value.columns)
    assert set(groups["operation"]) == {"attention", "cross-entropy", "softmax top-k"}
    one = draw("compare", a="h200-mixed", b=["h200-softmax"], operations=["cross-entropy"])
    groups = next(table.value for table in one.dataframe if "mean_ratio" in table.value.columns)
    assert set(groups["operation"]) == {"cross-entropy"}


def test_traffic_shows_counters_of_rows(data: Path) -> None:
    """Beside what must move; a run of rows alone has its counters, too."""
    run = mixed_run("rows-counted")
    bytes_of = {"dram_read_bytes": 3 * 10**9, "dram_write_bytes": 10**9}
    counted = [
        row.model_copy(update=bytes_of | {"clocks": (), "samples": ()})
        for row in run.measurements
        if row.case.operation == "cross_entropy" and row.status == "ok"
    ]
    run = Run(header=run.header, measurements=tuple(counted), environments=run.environments, end=run.end)
    write_synthetic(run, data / "runs" / "rows-counted.jsonl")
    app = draw("traffic")
    assert "Operations over rows" in [header.value for header in app.header]
    tables = [frame.value for frame in app.dataframe]
    table = next(each for each in tables if {"dram_over_model", "rows"} <= set(each.columns))
    assert len(table) == len(counted)
    online = table[(table["backend"] == "online") & (table["direction"] == "fwd")].iloc[0]
    assert online["dram_bytes"] == 4 * 10**9
    logits = 2 * int(online["rows"]) * int(online["classes"])
    assert logits <= online["est_bytes"] < 1.5 * logits + 100 * int(online["rows"])


def test_all_rows_of_a_mixed_run_are_reached_by_filters() -> None:
    """Going through every filter's values reaches every row, each by one way."""
    table = state.with_axes(store.frame(mixed_run()))
    columns = [filters.AXES[key].column for key in filters.SLICE]
    where: Any = table.groupby([*columns, "name", "seq_len", "clock"], dropna=False).ngroup()
    assert where.nunique() == len(table)
    assert not table.loc[table["operation"] != "attention", "plain"].any()
    assert table.loc[table["operation"] == "attention", "plain"].all()


def test_a_sweep_of_rows_is_planned_in_classes(show: Show) -> None:
    """Page Run offers the sweep of the project, and says what it would measure."""
    show("h200-softmax")
    said = spaced(texts(draw("run", sweep="softmax")))
    assert re.search(r"shapes, [0-9 ]+ to [0-9 ]+ classes; backends ", said)
    assert "N from" not in said


def test_what_does_not_grow_has_exponent_zero() -> None:
    """A fit to a constant leaves rounding errors, which are no exponent; a small one is shown as it is."""
    assert [memory._exponent(x) for x in (-4.5e-16, 7e-15, 0.0)] == ["0", "0", "0"]
    assert memory._exponent(0.0123) == "0.0123"


def test_the_overview_opens_on_the_rows_with_most_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the committed run's 16 and 8192 rows on those that have a backward, too."""
    monkeypatch.setenv("FLASHSCOPE_DATA", str(DATA_DIR))
    app = draw("overview", run="h200-softmax", operation_name="cross-entropy")
    (chosen,) = (group for group in app.main.get("button_group") if group.label == "Rows")
    assert list(chosen.options) == ["16 rows", "8192 rows"]
    assert chosen.value == "8192 rows"


def test_a_run_is_compared_with_one_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest run of the project is of rows: it is not what a run of attention is held against."""
    monkeypatch.setenv("FLASHSCOPE_DATA", str(DATA_DIR))
    infos = {info.path.stem: info for info in store.list_runs(DATA_DIR)}
    rest = sorted(infos.values(), key=lambda info: info.created_at, reverse=True)
    assert set(infos["h200-softmax"].operations) == {"cross_entropy", "softmax_top_k"}
    chosen = infos[
        compare._usual_b(infos["h200-standard"], [each for each in rest if "standard" not in each.run_id])
    ]
    assert chosen.operations == ("attention",)
