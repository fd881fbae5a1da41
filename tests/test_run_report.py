"""A run's report: its numbers are those of the raw rows, its texts stay texts, and it may ask nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic import (
    ROW_LAWS,
    failed_measurement,
    synthetic_case,
    synthetic_environment,
    synthetic_measurement,
    synthetic_row_case,
    synthetic_run,
    write_synthetic,
)

from profiling import run_report, store, units
from profiling.__main__ import main
from profiling.analysis.axes import with_axes
from profiling.analysis.curves import untiled
from profiling.analysis.summary import overview
from profiling.devices import find_device
from profiling.records import Run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> ![x](http://192.0.2.1/p.png) =1+1"


def gpu_run() -> Run:
    """Two directions, two masks, naive out of memory at the end, every text of it hostile."""
    run = synthetic_run(
        seq_lens=(64, 256, 1024, 4096, 16384),
        directions=("fwd", "bwd"),
        causals=(False, True),
        head_dims=(64, 128),
        clocks=("wall", "device"),
        oom_from={"naive": 16384},
        environment=synthetic_environment("NVIDIA H200", argv=("flashscope", "run", HOSTILE)),
    )
    odd = failed_measurement(synthetic_case("sdpa_flash", 64), "crashed", HOSTILE)
    header = run.header.model_copy(update={"label": HOSTILE})
    return Run(header, (*run.measurements, odd), run.environments, (HOSTILE,), run.end)


def report_of(run: Run, **options: Any) -> str:
    """The report of a whole run, by few replicates."""
    rows = untiled(with_axes(store.frame(run)))
    found = overview(rows, store.samples_frame(run), replicates=100)
    return run_report.to_html(run, rows, found, find_device("h200"), **options)


@pytest.fixture(scope="module")
def run() -> Run:
    """One run for all."""
    return gpu_run()


@pytest.fixture(scope="module")
def text(run: Run) -> str:
    """Its report."""
    return report_of(run, kept=(("dtype", "bf16"),))


def charts(text: str) -> dict[str, list[dict[str, Any]]]:
    """What the file's script draws from."""
    (found,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def cells(text: str, name: str) -> list[list[str]]:
    """The rows of the table of that name."""
    part = text.split(f'aria-label="{name}"', 1)[1].split("</table>", 1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)
    return [[html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)] for row in rows]


def test_charts_hold_the_medians_and_peaks_of_the_raw_rows(run: Run, text: str) -> None:
    """Every point of every shape's latency and memory chart is a row's own number, to the last digit."""
    expected: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in run.measurements:
        case = row.case
        shape = f"{case.direction} bf16 B1 H16 d{case.head_dim}{' causal' * case.causal}"
        for clock in row.clocks:
            if row.status == "ok" and clock.clock == "device" and clock.latency_p50_ms is not None:
                own = expected.setdefault((shape, case.backend), {"latency": {}, "memory": {}})
                own["latency"][case.seq_len_k] = clock.latency_p50_ms
                own["memory"][case.seq_len_k] = float(row.peak_mem_bytes or 0)
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for entry in charts(text)["shapes"]:
        for chart in ("latency", "memory"):
            for line in entry["charts"][chart]["data"]:
                if line["mode"] == "lines+markers" and line.get("yaxis", "y") == "y":
                    own = found.setdefault((entry["name"], line["name"]), {})
                    own[chart] = dict(zip(line["x"], line["y"], strict=True))
    assert found == expected


def test_the_rows_under_the_charts_say_what_the_file_says(run: Run, text: str) -> None:
    """A shape's rows have status, median and ratio of both medians, and name what did not run."""
    (entry,) = [e for e in charts(text)["shapes"] if e["name"] == "fwd bf16 B1 H16 d128"]
    medians = {}
    for row in run.measurements:
        c = row.case
        if (c.direction, c.head_dim, c.causal) == ("fwd", 128, False):
            own = {clock.clock: clock.latency_p50_ms for clock in row.clocks}
            medians[c.seq_len_k, c.backend] = own.get("device")
    assert [row[:2] for row in entry["rows"]] == [
        [units.count_text(n), name] for n in (64, 256, 1024, 4096, 16384) for name in ("naive", "flash")
    ]
    for length, name, status, latency, _, faster, *_ in entry["rows"]:
        n = int(length.replace(units.GROUP, ""))
        ms, naive = medians[n, name], medians[n, "naive"]
        assert status == ("OOM" if ms is None else "ok")
        assert latency == units.time_text(ms)
        ratio = None if name == "naive" or naive is None or ms is None else naive / ms
        assert faster == units.ratio_text(ratio)


def test_the_crossovers_and_sentences_are_the_overviews(run: Run, text: str) -> None:
    """A line a shape, its N* on each clock as the analysis has it, and the headline letter for letter."""
    rows = untiled(with_axes(store.frame(run)))
    found = overview(rows, store.samples_frame(run), replicates=100)
    assert html.escape(found.headline) in text
    lines = {line[0]: line[1:] for line in cells(text, "Crossovers") if line}
    assert set(lines) == {row.slice.label for row in found.rows}
    for row in found.rows:
        for clock, cell in zip(("wall", "device"), lines[row.slice.label], strict=False):
            each = row.by_clock[clock]
            at = each.crossover_seq_len
            assert cell == each.verdict if at is None else cell.startswith(units.count_text(round(at)))


def test_failures_flags_and_origin_are_told(run: Run, text: str) -> None:
    """Every case that did not run with its reason, and what a reader needs to measure it again."""
    failed = [row for row in run.measurements if row.status != "ok"]
    listed = [line for line in cells(text, "Failures") if line]
    assert sorted(line[0] for line in listed) == sorted(row.case.label for row in failed)
    assert [line[2] for line in listed if line[1] == "crashed"] == [HOSTILE]
    for said in ("NVIDIA H200", "torch", run.run_id, "dtype bf16", "flash against naive"):
        assert said in text


def test_nothing_of_a_file_becomes_html_and_scripts_are_those_of_the_policy(text: str) -> None:
    """Three script elements, two that run, each by its digest; no address, no handler of the file's."""
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [' type="application/json" id="charts"', "", ""]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    allowed = set(re.findall(r"sha256-([A-Za-z0-9+/=]+)", policy))
    digests = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for _, code in scripts[1:]]
    assert allowed == set(digests)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "unsafe" not in policy.split("script-src")[1]
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(img|link|iframe|object|a|form)\b", outside)
    assert not re.search(r"<[^>]*\s(on\w+|src|href)=", outside)
    assert html.escape(HOSTILE) in outside


def test_plotly_is_in_it_once(text: str) -> None:
    """One copy of plotly.js for all charts, and some 30 kB a shape beside it."""
    assert text.count("plotly.js v") == 1
    assert 4_500_000 < len(text) < 6_000_000


def test_a_run_without_latency_or_memory_has_what_it_has() -> None:
    """Without memory there is no memory chart; one that has a single shape has one entry."""
    run = synthetic_run(seq_lens=(64, 256, 1024), clocks=("wall",))
    bare = tuple(
        row.model_copy(update={"peak_mem_bytes": None, "mem_method": ""}) for row in run.measurements
    )
    (entry,) = charts(report_of(Run(run.header, bare, run.environments)))["shapes"]
    assert set(entry["charts"]) == {"latency", "traffic"}
    assert {row[6] for row in entry["rows"]} == {units.UNKNOWN}


def test_many_shapes_are_cut_with_a_word(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Beyond the most shapes with charts, the file says how many have none; the crossovers stay whole."""
    monkeypatch.setattr(run_report, "MOST_SHAPES", 3)
    text = report_of(run)
    assert len(charts(text)["shapes"]) == 3
    assert "5 further shapes have no charts here" in text
    assert len([line for line in cells(text, "Crossovers") if line]) == 8


# -------------------------------------------------------------------------------------- the command


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Call the command in a folder with a data folder; returns status, standard output and error."""
    run = synthetic_run(run_id="two", seq_lens=(64, 256, 1024))
    write_synthetic(run, tmp_path / "data" / "runs" / "two.jsonl")
    only = synthetic_run(run_id="one", backends=("flash",), seq_lens=(64, 256))
    write_synthetic(only, tmp_path / "data" / "runs" / "one.jsonl")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["flashscope", "report", *words, "--data", str(tmp_path / "data")])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_the_command_writes_the_file_that_the_page_gives(called: Any, tmp_path: Path) -> None:
    """One function makes both; the options choose baseline, candidate and clock."""
    status, out, _ = called("two", "--out", "r.html", "--clock", "wall")
    assert (status, out) == (0, "r.html: 1 shapes, flash against naive\n")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    run = store.load_run(tmp_path / "data" / "runs" / "two.jsonl")
    rows = untiled(with_axes(store.frame(run)))
    found = overview(rows, store.samples_frame(run), clock="wall")
    assert text == run_report.to_html(run, rows, found, find_device("h200"))
    assert called("two", "--baseline", "flash", "--candidate", "naive")[0] == 0
    assert "naive against flash" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one",), "baseline and candidate are both flash"),
        (("two", "--candidate", "sdpa"), "--candidate sdpa: two has naive, flash"),
        (("two", "--clock", "graph"), "--clock graph: two has wall, device"),
        (("two", "--out", "none/such/r.html"), "cannot be written"),
        (("three",), "no run of that id"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(
    called: Any, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """Status 2, what and where, and no file."""
    status, out, err = called(*words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_a_report_on_rows_speaks_of_classes() -> None:
    """Headings, axes and tables are those of rows; beside attention a table heads both."""
    cases = [synthetic_row_case(name, n) for n in (100, 400, 1600) for name in ("naive", "online")]
    measured = tuple(synthetic_measurement(case, laws=ROW_LAWS) for case in cases)
    plain = synthetic_run(seq_lens=(256, 1024))
    for rows, heading in ((measured, "Classes"), ((*plain.measurements, *measured), "N or classes")):
        run = Run(header=plain.header, measurements=rows, environments=plain.environments, end=plain.end)
        table = untiled(with_axes(store.frame(run)))
        found = overview(table, store.samples_frame(run), candidate="online", clock="device")
        text = run_report.to_html(run, table, found, None)
        assert f'<th scope="col">{heading}</th>' in text
        assert "bf16 4096 rows cross-entropy" in text
        assert "cross-entropy fwd bf16 4096 rows" in text
        assert "Classes of a row" in text
        assert ("Sequence length N (tokens)" in text) is (heading != "Classes")
        if heading == "Classes":
            assert "Measured. A crossover is where online overtakes naive" in text
            assert "Speed-up against classes of a row" in text
