"""Claims about keeping runs in order on page Data: label, archive, bring back, delete with a second look."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from drawing import draw, texts
from page_runs import cpu_run, gpu_run
from streamlit.testing.v1 import AppTest
from synthetic import write_synthetic

from profiling.pages import jobs, manage, signin, state
from profiling.store import Note, list_runs, read_notes, write_note

NASTY = "=1+1 <b>![x](http://192.0.2.1/p.png)"


@pytest.fixture
def kept(data: Path) -> Path:
    """A data folder with a sample and a run of one's own."""
    write_synthetic(gpu_run(), data / "samples" / "h200-standard.jsonl")
    write_synthetic(cpu_run("mine"), data / "runs" / "mine.jsonl")
    return data


def page(which: str = "runs/mine") -> AppTest:
    """Page Data with that run chosen to be changed."""
    app = draw("data")
    return app.selectbox(key="manage").select(which).run()


def second_look(folder: Path) -> AppTest:
    """What the dialog holds; its buttons rerun it alone, which AppTest does not do."""

    def script(path: str) -> None:
        from pathlib import Path

        from profiling.pages import manage
        from profiling.store import list_runs

        for info in list_runs(Path(path)):
            if info.path.stem == "mine":
                manage.second_look(info)

    return AppTest.from_function(script, kwargs={"path": str(folder)}).run()


def test_a_label_shows_in_the_list_and_on_every_page(kept: Path) -> None:
    """It is text wherever it stands, and the run's file stays as it is."""
    before = (kept / "runs" / "mine.jsonl").read_bytes()
    app = page()
    app.text_input(key="label-runs/mine").set_value(NASTY).run()
    app.button(key="save-label").click().run()
    assert not app.exception
    assert NASTY in app.dataframe[0].value["label"].tolist()
    shown = draw("latency", run="mine")
    read = [str(e.value) for kind in ("markdown", "caption") for e in shown.get(kind)]
    assert f" · {NASTY} · " in texts(shown)
    assert not [text for text in read if "![x]" in text]
    assert (kept / "runs" / "mine.jsonl").read_bytes() == before


def test_an_archived_run_is_listed_and_offered_nowhere_else(kept: Path) -> None:
    """Pickers leave it out, a link to it says where it is, and it can be brought back."""
    app = page()
    app.button(key="archive").click().run()
    assert app.dataframe[0].value.set_index("run")["state"]["mine"] == "finished, archived"
    linked = draw("latency", run="mine")
    assert "mine" not in linked.selectbox(key="run").options
    assert "archived (page Data brings it back)" in linked.warning[0].value.replace("\\", "")
    assert [info.path.stem for info in state.runs()] == ["h200-standard"]
    again = page()
    assert again.button(key="archive").label == "Bring back"
    again.button(key="archive").click().run()
    assert "mine" in draw("latency").selectbox(key="run").options
    assert read_notes(kept) == {}


def test_archiving_keeps_the_label_and_a_label_the_archive(kept: Path) -> None:
    """One does not undo the other."""
    path = kept / "runs" / "mine.jsonl"
    write_note(path, Note("first", archived=True))
    app = page()
    app.text_input(key="label-runs/mine").set_value("second").run()
    app.button(key="save-label").click().run()
    assert read_notes(kept)["mine"] == Note("second", archived=True)
    page().button(key="archive").click().run()
    assert read_notes(kept)["mine"] == Note("second", archived=False)


def test_deleting_asks_again_and_names_the_run(kept: Path) -> None:
    """The first button opens the second look, which can be left; the second deletes the file."""
    app = page()
    app.button(key="delete").click().run()
    assert "mine.jsonl" in texts(app)
    assert "Some CPU, made 2026-01-02T03:00:00Z, 6 cases." in texts(app)
    assert (kept / "runs" / "mine.jsonl").exists()
    look = second_look(kept)
    look.button(key="keep").click().run()
    assert (kept / "runs" / "mine.jsonl").exists()
    look.button(key="delete-for-good").click().run()
    assert not look.exception
    assert [info.path.stem for info in list_runs(kept)] == ["h200-standard"]


def test_what_must_not_go_has_no_button(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample, a run that is written or waits to go on: the button is off, and says why."""
    sample = page("samples/h200-standard")
    assert sample.button(key="delete").disabled
    assert not sample.button(key="archive").disabled
    infos = {info.path.stem: info for info in list_runs(kept)}
    assert manage.why_not_delete(infos["mine"]) == ""
    monkeypatch.setattr(jobs, "is_ours", lambda pid, run_id: pid == os.getpid())
    running = infos["mine"]._replace(end_status="", pid=os.getpid())
    assert "is being written" in manage.why_not_delete(running)
    monkeypatch.setattr(jobs, "living", lambda folder: [jobs.Job("mine", os.getpid(), "cpu", "", True)])
    assert "is being written" in manage.why_not_delete(infos["mine"])


def test_where_there_is_a_sign_in_it_is_needed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are listed for everybody, and changed by users alone."""
    monkeypatch.setattr(signin, "visitor", lambda: signin.Visitor(needed=True))
    app = draw("data")
    assert "mine" in app.dataframe[0].value["run"].tolist()
    assert "Sign in to add, label, archive or delete runs." in app.info[0].value
    assert not [button for button in app.button if button.key in ("save-label", "archive", "delete")]
    monkeypatch.setattr(signin, "visitor", lambda: signin.Visitor(needed=True, name="A"))
    assert page().button(key="delete")


def test_a_run_that_is_written_to_meanwhile_stays(kept: Path) -> None:
    """Between the two looks somebody has gone on with it: one sentence, and nothing is lost."""
    app = second_look(kept)
    path = kept / "runs" / "mine.jsonl"
    with path.open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        app.button(key="delete-for-good").click().run()
    assert "another process writes to it" in app.error[0].value.replace("\\", "")
    assert path.exists()
