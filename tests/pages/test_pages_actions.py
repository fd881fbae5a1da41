"""Claims about what the Run and Data pages do: start, watch, stop; bring a file in, take a run out."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from drawing import draw, figures, texts, values_of
from page_runs import cpu_run, gpu_run
from synthetic import write_synthetic

from profiling import export, store
from profiling.pages import jobs
from profiling.records import COLUMNS, Run


def unfinished(run: Run, n_cases: int, **header: Any) -> Run:
    """The first cases of a run that has no end line yet."""
    changed = run.header.model_copy(update={"planned_cases": len(run.measurements), **header})
    return dataclasses.replace(run, header=changed, measurements=run.measurements[:n_cases], end=None)


@pytest.fixture
def begun(data: Path) -> Path:
    """A run file with 2 of 6 cases, said to be written by this very process."""
    write_synthetic(unfinished(cpu_run("begun"), 2, pid=os.getpid()), data / "runs" / "begun.jsonl")
    return data


def test_start_runs_the_chosen_sweep(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The button starts one process for the sweep of the page, into the data folder's runs."""
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jobs, "start", lambda *args: started.append(args) or 1)
    monkeypatch.setattr(jobs, "missing", lambda: "")
    app = draw("run", sweep="quick")
    app.button(key="start").click().run()
    ((sweep, device, folder, run_id, label),) = started
    assert label == ""
    assert sweep.name == "quick.toml"
    assert device == jobs.devices()[0]
    assert folder == data / "runs"
    assert run_id.startswith("quick-")
    assert f"{run_id}: it ended before its first case" in texts(app)  # nothing was started in truth


def test_a_growing_file_is_shown_as_progress(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 of 6 cases: a third of the bar, the latest case by name, and a button to stop."""
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: (pid, run_id) == (os.getpid(), "begun"))
    app = draw("run")
    bar = app.get("progress")[0].proto  # type: ignore[attr-defined]
    assert bar.value == 33
    assert "begun: running, 2 of 6 cases" in bar.text.replace("\\", "")
    assert "latest: tiled fwd fp32 B1 H4 N64 d64 (ok)" in texts(app)


def test_cancel_asks_that_process_and_no_other(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The button passes the pid of the file's header and the run's id."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: True)
    monkeypatch.setattr(jobs, "cancel", lambda *args: asked.append(args) or True)
    draw("run").button(key="cancel-begun").click().run()
    assert asked == [(os.getpid(), "begun")]


def test_a_killed_run_says_how_to_go_on(begun: Path) -> None:
    """This process is no run: the file's writer counts as killed, and nothing can be cancelled."""
    app = draw("run")
    assert "begun: killed, 2 of 6 cases" in app.get("progress")[0].proto.text.replace("\\", "")  # type: ignore[attr-defined]
    assert any("--resume" in code.value and "begun.jsonl" in code.value for code in app.code)
    assert not [button for button in app.button if button.key == "cancel-begun"]


def test_a_finished_run_is_not_watched(data: Path) -> None:
    """Only runs without an end, or interrupted ones, are listed under the plan."""
    write_synthetic(cpu_run("done"), data / "runs" / "done.jsonl")
    assert "every run in this folder has finished" in texts(draw("run"))


def test_an_uploaded_run_is_shown_before_it_is_added(data: Path, files: Path) -> None:
    """The second look: what the file holds; the button then writes it, readable, to the folder's runs."""
    content = (files / "cpu-quick.jsonl").read_bytes()
    app = draw("data")
    app.file_uploader[0].set_value(("whatever.jsonl", content, "application/json")).run()
    assert "cpu-quick: Some CPU, 6 cases" in texts(app)
    assert not (data / "runs" / "cpu-quick.jsonl").exists()
    app.button(key="add").click().run()
    assert not app.exception
    added = store.load_run(data / "runs" / "cpu-quick.jsonl")
    assert added.measurements == store.load_run(files / "cpu-quick.jsonl").measurements


def test_an_uploaded_csv_comes_back_to_the_last_digit(data: Path, files: Path) -> None:
    """What page Data exports, page Data takes in again."""
    run = store.load_run(files / "cpu-quick.jsonl")
    text = export.to_csv(store.frame(run))
    app = draw("data")
    app.file_uploader[0].set_value(("table.csv", text.encode(), "text/csv")).run()
    app.button(key="add").click().run()
    (path,) = (data / "runs").glob("*.jsonl")
    assert export.to_csv(store.frame(store.load_run(path))) == text


def test_an_uploaded_table_of_others_is_accounted_for(data: Path) -> None:
    """A known family is taken in; what was set aside is said, counted, and can be downloaded."""
    content = (Path(__file__).parents[1] / "importers" / "data" / "liger.csv").read_bytes()
    app = draw("data")
    app.file_uploader[0].set_value(("liger.csv", content, "text/csv")).run()
    assert not app.exception
    assert "18 rows read, 14 used, 4 set aside because" in texts(app)
    assert "Rows set aside" in str(app.main)
    app.button(key="add").click().run()
    assert len(list((data / "runs").glob("liger-*.jsonl"))) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"N,ms\n128,1.5\n"),
        ("a.csv", b"\xff\xfe\x00\x00binary"),
        ("a.jsonl", b"{}\n"),
        ("a.jsonl", b""),
        ("../../evil.jsonl", b"[1, 2]\n"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_in_one_sentence(name: str, content: bytes, data: Path) -> None:
    """No traceback, nothing written, and the message speaks of the file, not of a path on the server."""
    app = draw("data")
    app.file_uploader[0].set_value((name, content, "text/csv")).run()
    assert not app.exception
    assert app.error
    assert "/tmp" not in app.error[0].value.replace("\\", "")
    assert "Nothing was written." in texts(app)
    assert not list((data / "runs").iterdir())


def test_a_run_that_is_there_is_not_added_twice(data: Path, files: Path) -> None:
    """Uploading it again changes nothing."""
    content = (files / "cpu-quick.jsonl").read_bytes()
    (data / "runs" / "cpu-quick.jsonl").write_bytes(content)
    app = draw("data")
    app.file_uploader[0].set_value(("x.jsonl", content, "application/json")).run()
    assert "already" in app.info[0].value
    assert not [button for button in app.button if button.key == "add"]


def test_columns_are_described(data: Path) -> None:
    """The page explains every column of the CSV it exports."""
    said = texts(draw("data"))
    missing = [name for name in COLUMNS if f"`{name}`" not in said]
    assert not missing


def test_the_json_of_a_crossover_is_json(show: Any) -> None:
    """A comparison can be taken out as JSON, numbers unrounded."""
    from profiling.pages import crossover, filters, state

    folder = show("h200-standard", "cpu-quick", "h200-tiles")
    stamp = state.stamp(folder / "samples" / "h200-standard.jsonl")
    assert stamp is not None
    asked = {"baseline": "naive", "candidate": "flash", "metric": "latency", "clock": "wall"}
    choices = [filters.Choice(key, key, value, value) for key, value in asked.items()]
    found = crossover.find(stamp, choices)
    assert len(found) == 8
    again = json.loads(json.dumps(found[0].to_dict()))
    assert again["crossover_seq_len"] == found[0].crossover_seq_len


def test_reset_sets_every_filter_back(show: Any) -> None:
    """After a reset the page is the one without filters, and the button has nothing left to do."""
    show("h200-standard", "cpu-quick", "h200-tiles")
    app = draw("latency", d="64", mask="causal", clock="wall", backends="flash")
    assert not app.button(key="reset").disabled
    app.button(key="reset").click().run()
    assert not app.exception
    assert app.button(key="reset").disabled
    assert texts(app) == texts(draw("latency"))


def test_a_process_that_waits_says_for_whom(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody sees it, whoever started it: the run that has the device, and a button to give up."""
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: pid == os.getpid())
    job = jobs.Job("second", os.getpid(), "cpu", "2026-01-01T00:00:00Z")
    jobs.job_path(begun / "runs", "second").write_text(json.dumps(job._asdict()))
    (begun / "runs" / "second.log").write_text("Another run ...; waiting for it to end. Ctrl-C gives up.\n")
    app = draw("run")
    assert "second waits for cpu: begun has it." in texts(app)
    assert app.button(key="cancel-second")
    (begun / "runs" / "second.log").write_text("Starting 3 worker process(es) on cpu ...\n")
    assert "second: starting; its file is written with the first case." in texts(draw("run"))


def test_a_killed_run_is_gone_on_with_by_a_button(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own device; a refusal of the last try is told, in the words of the process."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jobs, "missing", lambda: "")
    monkeypatch.setattr(jobs, "resume", lambda info, device: asked.append((info.path.name, device)) or 1)
    (begun / "runs" / "begun.log").write_text("flashscope: x cannot be resumed here <b>\n")
    app = draw("run")
    assert app.error[0].value.replace("\\", "") == "x cannot be resumed here <b>"
    app.button(key="resume-begun").click().run()
    assert asked == [("begun.jsonl", "cpu")]
    assert not [button for button in app.button if button.key == "cancel-begun"]


def test_a_run_of_a_gpu_shows_clock_power_and_temperature(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small charts from the growing file, whose last values are those of its last row."""
    run = unfinished(gpu_run("begun"), 5, pid=os.getpid())
    write_synthetic(run, data / "runs" / "begun.jsonl")
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: True)
    (figure,) = figures(draw("run"))
    last = run.measurements[-1].gpu_after
    assert last is not None
    assert [values_of(trace["y"])[-1] for trace in figure["data"]] == [
        *(last.sm_clock_mhz, last.power_w, last.temperature_c)
    ]
    assert [len(values_of(trace["x"])) for trace in figure["data"]] == [5, 5, 5]
