"""Page Compare: its numbers are the analysis's, it says what else differs, and it holds in every state."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from drawing import draw, figures, texts, values_of
from page_runs import cpu_run, gpu_run
from streamlit.testing.v1 import AppTest
from synthetic import LAWS, synthetic_environment, write_synthetic
from typer.testing import CliRunner

from profiling import export, store
from profiling.__main__ import app as cli
from profiling.analysis import compare as engine
from profiling.analysis.compare import VERDICTS
from profiling.analysis.regressions import summary
from profiling.case import Case
from profiling.model.flops import flops
from profiling.pages import compare_model, compare_sides

Show = Callable[..., Path]

SLOWER = LAWS | {"flash": LAWS["flash"]._replace(pair_ms=0.6e-9, launch_ms=0.042)}
QUIET = {"round_noise": 0.001, "process_noise": 0.0005}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, the same with flash 1.2 times slower and another torch, and one of fewer cases."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "runs").mkdir()
    axes = {
        "seq_lens": (256, 1024, 4096),
        "causals": (False,),
        "head_dims": (64,),
        "clocks": ("wall", "device"),
    }
    newer = synthetic_environment(torch_version="2.12.0")
    for run in (
        gpu_run("before", oom_from={}, **axes, **QUIET),
        gpu_run("after", oom_from={"naive": 4096}, laws=SLOWER, environment=newer, seed=1, **axes, **QUIET),
        gpu_run("half", oom_from={}, seed=2, **{**axes, "directions": ("fwd",)}, **QUIET),
    ):
        write_synthetic(run, folder / "samples" / f"{run.run_id}.jsonl")
    return folder


@pytest.fixture
def pages(pair: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the app's own."""
    monkeypatch.setenv("FLASHSCOPE_DATA", str(pair))
    return pair


def expected(folder: Path, a: str, b: str, **how: object) -> engine.Comparison:
    """The analysis of two files, asked for directly."""
    runs = [store.load_run(folder / "samples" / f"{name}.jsonl") for name in (a, b)]
    frames, samples = [store.frame(run) for run in runs], [store.samples_frame(run) for run in runs]
    return engine.compare(*frames, *samples, **how)  # type: ignore[arg-type]


def counts(app: AppTest) -> dict[str, int]:
    """The verdicts counted on the page."""
    found = {metric.label.lower(): int(metric.value.replace("\u00a0", "")) for metric in app.metric}
    return {verdict: found[verdict] for verdict in VERDICTS}


@pytest.mark.parametrize("clock", ["wall", "device"])
def test_the_numbers_are_those_of_the_analysis(pages: Path, clock: str) -> None:
    """Counts, the chart's ratios and intervals, and every row of the table, on each clock."""
    app = draw("compare", a="before", b="after", clock=clock)
    wanted = expected(pages, "before", "after", metrics=("latency",), clocks=(clock,))
    assert counts(app) == summary(wanted).n_by_verdict["latency"]
    assert counts(app)["slower"] >= 4
    table = app.dataframe[0].value
    by_case = {row.case.label: row for row in wanted.rows}
    assert set(table["case"]) == set(by_case)
    for line in table.to_dict("records"):
        row = by_case[line["case"]]
        assert line["verdict"] == row.verdict
        assert line["ratio"] == pytest.approx(row.ratio, nan_ok=True) if row.ratio else pd.isna(line["ratio"])
        assert (line["a_ms"], line["a_run"]) == (row.a[0].value, "before")
    drawn = sorted(x for trace in figures(app)[0]["data"] for x in values_of(trace["x"]))
    assert drawn == pytest.approx(sorted(row.ratio for row in wanted.rows if row.ratio is not None))


def test_the_command_prints_the_same(pages: Path) -> None:
    """What the page shows as its command, run, counts the same rows."""
    app = draw("compare", a="before", b="after", metric="latency", clock="wall", margin="4", threshold="9")
    command = shlex.split(
        next(code.value for code in app.code if code.value.startswith("flashscope compare"))
    )
    said = CliRunner().invoke(cli, [*command[1:], "--format", "json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert told["summary"]["n_by_verdict"]["latency"] == counts(app)
    assert (told["margin"], told["threshold"]) == pytest.approx((0.04, 0.09))


def test_what_else_differs_is_said_first(pages: Path) -> None:
    """Another torch is a warning that names both; the same environment is said to be the same."""
    app = draw("compare", a="before", b="after")
    (warning,) = app.warning
    assert "torch: A **2\\.11\\.0**, B **2\\.12\\.0**" in warning.value
    assert "driver" not in warning.value
    app = draw("compare", a="before", b="half")
    assert not app.warning
    assert "Nothing else differs between A and B" in texts(app)


def test_failures_and_absences_are_told_apart(pages: Path) -> None:
    """What failed in B has its reason; what B never tried is counted; neither has a ratio or a mean."""
    app = draw("compare", a="before", b="after")
    said = texts(app)
    assert "**Ran in A, does not in B**" in said
    assert re.search(r"naive fwd bf16 B1 H16 N4096 d64: B\\: oom", said)
    groups = app.dataframe[1].value.set_index(["backend", "direction"])
    assert pd.isna(groups.loc[("naive", "fwd"), "mean_ratio"])
    assert groups.loc[("flash", "fwd"), "mean_ratio"] == pytest.approx(1.2, abs=0.01)
    app = draw("compare", a="before", b="half")
    assert "6 cases that are not in B at all" in texts(app)
    assert counts(app)["missing"] == 6


def test_filters_leave_rows_out_and_say_so(pages: Path) -> None:
    """The address chooses verdicts and backends; where nothing is left the page says how to go on."""
    app = draw("compare", a="before", b="after", verdicts="slower", sides_backends="flash", passes="fwd")
    table = app.dataframe[0].value
    assert set(table["verdict"]) == {"slower"}
    assert all(case.startswith("flash fwd") for case in table["case"])
    assert counts(app)["slower"] == len(table) > 0
    app = draw("compare", a="before", b="after", verdicts="faster")
    assert "No row passes the filters at the left" in app.info[0].value
    assert not figures(app)
    assert not app.button(key="reset").disabled


def test_memory_is_compared_exactly(pages: Path) -> None:
    """The laws of memory are the same, so every case that ran on both sides is `same`, without a clock."""
    app = draw("compare", a="before", b="after", metric="memory")
    wanted = expected(pages, "before", "after", metrics=("memory",))
    assert counts(app) == summary(wanted).n_by_verdict["memory"]
    assert counts(app)["same"] == 10
    assert "--clock" not in app.code[-1].value


def test_several_are_held_against_one(pages: Path) -> None:
    """A line of counts for each B; one of them is looked at, and the link keeps all of them."""
    query = {"a": "before", "b": ["after", "half"], "look": "half"}
    app = draw("compare", **query)  # type: ignore[arg-type]
    table = app.dataframe[0].value.set_index("B")
    for name in ("after", "half"):
        wanted = expected(pages, "before", name, metrics=("latency",), clocks=("device",))
        assert dict(table.loc[name]) == summary(wanted).n_by_verdict["latency"]
    assert counts(app) == dict(table.loc["half"])
    assert any("b=after&b=half" in code.value and "look=half" in code.value for code in app.code)


def test_a_margin_above_the_threshold_is_one_sentence(pages: Path) -> None:
    """The analysis refuses it; the page repeats why and draws nothing."""
    app = draw("compare", a="before", b="after", margin="20", threshold="5")
    assert "must be above 0 and at most the threshold" in app.info[0].value
    assert not figures(app)


def test_a_run_that_is_not_here_is_named(pages: Path) -> None:
    """The link's other side is kept, and another run takes the place of the missing one."""
    app = draw("compare", a="elsewhere", b="after")
    assert "elsewhere" in app.warning[0].value
    assert "B: after" in texts(app)


def test_one_run_has_nothing_to_be_compared_with(show: Show) -> None:
    """The page says what to do next."""
    show("cpu-quick")
    app = draw("compare")
    assert "There is one run only" in app.info[0].value
    assert "flashscope run" in texts(app)
    assert not figures(app)


def test_runs_without_a_case_in_common_say_so(show: Show) -> None:
    """A GPU's and a CPU's run: every row is missing, and the device is in the warning."""
    show("h200-standard", "cpu-quick")
    app = draw("compare", a="h200-standard", b="cpu-quick", clock="wall")
    assert "Not one case ran on both sides" in texts(app)
    assert "NVIDIA H200" in app.warning[0].value
    assert "same sweep" in app.info[0].value
    assert not figures(app)


def test_hostile_texts_are_escaped(show: Show) -> None:
    """Device, backend, clock and reason of a file reach no Markdown, and no chips, unescaped."""
    show("hostile", "cpu-quick")
    app = draw("compare", a="cpu-quick", b="hostile")
    for kind in ("markdown", "caption", "info", "warning", "error"):
        for element in app.get(kind):
            assert "![x](" not in str(element.value), (kind, element.value)
            assert not re.search(r"(?<!\\)<img", str(element.value)), (kind, element.value)
    assert not any("![x](" in option for chips in app.button_group for option in chips.options)


def test_a_file_is_compared_without_being_added(pages: Path) -> None:
    """A comparison CSV from the browser is B at once; the folder stays as it was."""
    run = store.load_run(pages / "samples" / "after.jsonl")
    text = export.to_csv(store.frame(run)).encode()
    before = sorted(pages.rglob("*"))
    app = draw("compare", a="before")
    app.file_uploader[0].set_value(("new.csv", text, "text/csv")).run()
    assert not app.exception
    said = texts(app)
    assert "B: file: new.csv: NVIDIA H200" in said
    assert "without samples (hollow), so without interval" in said
    a = store.frame(store.load_run(pages / "samples" / "before.jsonl"))
    wanted = engine.compare(a, store.frame(run), metrics=("latency",), clocks=("device",))
    assert counts(app)["slower"] == summary(wanted).n_by_verdict["latency"]["slower"]
    assert sorted(pages.rglob("*")) == before


def test_a_broken_file_costs_nothing_else(pages: Path) -> None:
    """One error says what is wrong with it; the comparison of the runs stays."""
    app = draw("compare", a="before", b="after")
    app.file_uploader[0].set_value(("![x](http://192.0.2.1/p.png).csv", b"\x00\xff", "text/csv")).run()
    assert len(app.error) == 1
    assert "![x](" not in app.error[0].value
    assert figures(app)


# ------------------------------------------------------------------------------------------ published results


def published(**changes: object) -> pd.DataFrame:
    """Two published rows of one method: a rate and a latency."""
    row = {
        "source": "Paper", "figure": "Table 1", "device_name": "NVIDIA H200", "dtype": "fp16", "batch": 1,
        "heads": 16, "seq_len": 1024, "head_dim": 64, "causal": False, "direction": "fwd", "method": "FA",
        "metric": "paper_tflops", "value": 100.0, "quality": "text", "note": "",
    }  # fmt: skip
    other = {**row, "seq_len": 4096, "metric": "latency_ms", "value": 9.0}
    table = pd.DataFrame([{**row, **changes}, {**other, **changes}])
    whole = dict.fromkeys(("batch", "heads", "seq_len", "head_dim"), "Int64")
    return table.astype(whole | {"causal": "boolean"})


def test_a_published_rate_becomes_a_time() -> None:
    """By the paper's count of FLOPs; a latency stays; both are summaries on the device clock."""
    table = compare_sides.published_frame(published(), "flash", "bf16")
    case = Case(
        backend="flash", direction="fwd", dtype="bf16", batch=1, heads=16, kv_heads=16,
        seq_len_q=1024, seq_len_k=1024, head_dim=64, head_dim_v=64, causal=False,
    )  # fmt: skip
    assert table["latency_p50_ms"].tolist() == pytest.approx([flops(case) / 100e12 * 1e3, 9.0])
    assert set(table["clock"]) == {"device"}
    assert set(table["status"]) == {"ok"}
    assert table["n_samples"].isna().all()


@pytest.mark.parametrize(
    ("dtype", "there", "stands_for"),
    [("fp16", ("bf16",), "bf16"), ("fp16", ("bf16", "fp16"), "fp16"), ("fp32", ("bf16",), "fp32")],
)
def test_only_16_bits_stand_for_each_other(dtype: str, there: tuple[str, ...], stands_for: str) -> None:
    """And only where the run has not the published dtype itself; it is said."""
    side = compare_sides.published_side(
        published(dtype=dtype), f"published: NVIDIA H200 {dtype}, FA", "flash", there
    )
    assert set(side.frame["dtype"]) == {stands_for}
    assert ("set beside" in side.note) == (stands_for != dtype)


@pytest.mark.parametrize("lacking", ["batch", "heads", "seq_len", "head_dim", "causal"])
def test_a_published_result_without_its_whole_shape_is_not_offered(lacking: str) -> None:
    """It could not be joined to a case."""
    assert compare_sides.published_names(published()) == ["published: NVIDIA H200 fp16, FA"]
    assert compare_sides.published_names(published(**{lacking: pd.NA})) == []


def test_a_published_result_stands_beside_a_run(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ratio is the run's median over the published time, and the page says what was assumed."""
    monkeypatch.setattr("profiling.pages.published.table", published)
    app = draw("compare", a="published: NVIDIA H200 fp16, FA", b="before")
    table = app.dataframe[0].value.set_index("case")
    frame = store.frame(store.load_run(pages / "samples" / "before.jsonl"))
    own = frame[(frame["backend"] == "flash") & (frame["clock"] == "device") & (frame["direction"] == "fwd")]
    ms = dict(zip(own["seq_len_k"], own["latency_p50_ms"], strict=True))
    assert table.loc["flash fwd bf16 B1 H16 N4096 d64", "ratio"] == pytest.approx(ms[4096] / 9.0)
    said = texts(app)
    assert "stand in the place of flash" in said
    assert "measured in fp16 and are set beside bf16" in said
    assert "Published results are compared on this page only" in said


# ------------------------------------------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"same": 3, "faster": 1, "slower": 2, "ambiguous": 0, "missing": 9}, "Of 6 cases"),
        ({"same": 0, "faster": 0, "slower": 0, "ambiguous": 0, "missing": 9}, "Not one case"),
        ({"same": 1, "faster": 0, "slower": 0, "ambiguous": 2, "missing": 0}, "of 2 the measurements do not"),
    ],
)
def test_the_headline_counts_what_ran(counts: dict[str, int], said: str) -> None:
    """Missing cases are no part of it."""
    assert said in compare_model.headline(counts, "latency")


def test_the_command_is_quoted() -> None:
    """A name with a blank or a quote stays one word; percentages are as the command line reads them."""
    text = compare_model.command(
        "a b", "it's", "latency", "device", margin=0.02, threshold=0.075, data="/x y"
    )
    assert shlex.split(text)[2:4] == ["a b", "it's"]
    assert shlex.split(text)[-6:] == ["--margin", "2%", "--threshold", "7.5%", "--data", "/x y"]


def test_cpu_runs_compare_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU the clocks are wall and pipelined, and the page needs no device of the catalogue."""
    for run in (cpu_run("one"), cpu_run("two", seed=3)):
        write_synthetic(run, tmp_path / "samples" / f"{run.run_id}.jsonl")
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    app = draw("compare", a="one", b="two")
    assert sum(counts(app).values()) == 6  # two backends, three lengths
    assert counts(app)["missing"] == 0
