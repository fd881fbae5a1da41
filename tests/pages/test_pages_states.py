"""Every page in every state of the data folder: no run, one, several, unreadable ones, hostile ones."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from drawing import draw, figures, texts

from profiling.pages import registry

PATHS = [entry.path for entry in registry.ENTRIES]
# What these show comes of models and of kernels, and not of a run alone.
LAB = [entry.path for entry in registry.ENTRIES if entry.section == "Lab"]
WITH_RUN = ("overview", "crossover", "latency", "memory", "traffic", "tiles", "numerics", "roofline")
Show = Callable[..., Path]


@pytest.mark.parametrize("path", PATHS)
def test_without_a_run_a_page_says_what_to_do(path: str, data: Path) -> None:
    """An empty folder is no error: the page names the next step, and no chart is drawn of nothing."""
    app = draw(path)
    assert app.title[0].value == {entry.path: entry.title for entry in registry.ENTRIES}[path]
    assert not app.error
    said = texts(app)
    if path == "traffic":  # models need no run
        assert "ask the L2 for" in said
    elif path == "run":
        assert "What to measure" in said
        assert "Plan" in said
    elif path not in LAB:
        assert "There is no run to show yet." in said
        assert not figures(app)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("runs", [("cpu-quick",), ("h200-standard", "cpu-quick", "h200-tiles")])
def test_with_runs_a_page_shows_them(path: str, runs: tuple[str, ...], show: Show) -> None:
    """With one run and with several every page draws, and says which run and device its numbers are of."""
    show(*runs)
    app = draw(path)
    said = texts(app)
    if path == "tiles" and "h200-tiles" not in runs:
        assert "No run of this folder asked for tiles." in said
    elif path == "roofline" and runs[0] == "cpu-quick":
        assert "There is no limit to hold these calls against" in said
        assert not figures(app)
    elif path in WITH_RUN:
        assert figures(app)
        shown = "h200-tiles" if path == "tiles" else runs[0]
        assert f"run {shown} (2026-01-02" in said
        assert ("Some CPU" if shown == "cpu-quick" else "NVIDIA H200") in said


@pytest.mark.parametrize("path", PATHS)
def test_a_run_of_counters_alone_leads_to_traffic(path: str, show: Show) -> None:
    """Without a clock there is nothing to time or compare: pages say so, and Traffic shows it."""
    show("h200-counters")
    app = draw(path)
    said = texts(app)
    assert not app.error
    if path == "traffic":
        assert "Points: hardware counters of" in said
    elif path in WITH_RUN and path != "tiles":
        assert "hardware counters only" in said
        assert not figures(app)


@pytest.mark.parametrize("path", WITH_RUN)
def test_a_run_is_chosen_by_the_address(path: str, show: Show) -> None:
    """`?run=` shows that run; a run that is not here is named in a warning, and another one is shown."""
    show("h200-standard", "cpu-quick", "h200-tiles")
    key, chosen = ("tile_run", "h200-tiles") if path == "tiles" else ("run", "cpu-quick")
    assert f"run {chosen} (" in texts(draw(path, **{key: chosen}))
    app = draw(path, **{key: "elsewhere"})
    assert "elsewhere" in app.warning[0].value
    assert figures(app)


@pytest.mark.parametrize("path", PATHS)
def test_nonsense_in_the_address_is_ignored(path: str, show: Show) -> None:
    """Unknown values fall back to the defaults: the page is the same as without them."""
    show("h200-standard", "cpu-quick", "h200-tiles")
    query = {"d": "999", "clock": "<script>", "direction": "sideways", "backends": "x", "n": "-1", "br": "7"}
    assert texts(draw(path, **query)) == texts(draw(path))


@pytest.mark.parametrize("path", PATHS)
def test_texts_of_a_file_are_shown_and_never_obeyed(path: str, show: Show) -> None:
    """A device named like Markdown or HTML reaches no element that reads Markdown unescaped."""
    show("hostile")
    app = draw(path)
    for kind in ("markdown", "caption", "info", "warning", "error", "title", "header"):
        for element in app.get(kind):
            assert "![x](" not in str(element.value), (kind, element.value)
            assert not re.search(r"(?<!\\)<img", str(element.value)), (kind, element.value)
    for chips in app.button_group:
        assert not any("![x](" in option for option in chips.options)
    for table in app.table:
        assert not table.value.astype(str).apply(lambda column: column.str.contains("!\\[")).any().any()


@pytest.mark.parametrize("path", ["overview", "data"])
def test_unreadable_files_do_not_hide_the_readable(path: str, data: Path, files: Path) -> None:
    """A file that is no run, and an empty one, are listed on Data with what is wrong."""
    (data / "samples" / "cpu-quick.jsonl").hardlink_to(files / "cpu-quick.jsonl")
    (data / "runs" / "binary.jsonl").write_bytes(b"\x00\xff\xfe")
    (data / "runs" / "empty.jsonl").write_bytes(b"")
    app = draw(path)
    assert len(app.error) == (2 if path == "data" else 0)
    assert "Some CPU" in texts(app) or len(app.dataframe[0].value) == 3


@pytest.mark.parametrize("path", ["latency", "tiles", "data"])
def test_a_torn_run_shows_what_is_whole(path: str, data: Path, files: Path) -> None:
    """A run killed while writing is shown with a warning; its whole rows count."""
    name = "h200-tiles" if path == "tiles" else "cpu-quick"
    lines = (files / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    (data / "runs" / f"{name}.jsonl").write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    app = draw(path)
    assert "torn" in app.warning[0].value or "could not be read" in app.warning[0].value
    assert path == "data" or figures(app)


@pytest.mark.parametrize("path", PATHS)
def test_a_run_that_has_only_begun_is_no_error(path: str, data: Path, files: Path) -> None:
    """A file with nothing but its header: no page fails, and none draws a measurement."""
    header = (files / "cpu-quick.jsonl").read_bytes().splitlines(keepends=True)[0]
    (data / "runs" / "cpu-quick.jsonl").write_bytes(header)
    app = draw(path)
    assert path == "traffic" or path in LAB or not figures(app)
    assert not app.error


@pytest.mark.parametrize("path", ["overview", "data"])
def test_a_folder_that_is_not_there_is_one_sentence(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data folder that vanished: the page says so, and how to start with another."""
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path / "gone"))
    app = draw(path)
    assert "does not exist" in app.error[0].value
    assert "--data DIR" in texts(app)


ABSENT = """
import importlib.util
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton", "fa_core", "pynvml"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
from streamlit.testing.v1 import AppTest
from profiling.pages import registry

def page(path):
    import streamlit as st
    from profiling.pages import registry
    st.navigation(registry.sections(default=path)).run()

for entry in registry.ENTRIES:
    app = AppTest.from_function(page, kwargs={"path": entry.path}, default_timeout=120).run()
    assert not app.exception, (entry.path, [e.value for e in app.exception])
    if entry.path == "run":
        assert "torch is not installed" in app.warning[0].value
        assert app.button(key="start").disabled
bad = {name for name in sys.modules if name.split(".")[0] in ("torch", "triton", "fa_core")}
bad |= {name for name in sys.modules if name.startswith(("profiling.measure", "profiling.lab"))}
bad -= {"profiling.measure", "profiling.measure.budget"}  # the folder, and the guess of what a case costs
assert not bad, bad
print("opened")
"""


def test_the_app_opens_where_torch_is_absent(show: Show, tmp_path: Path) -> None:
    """No page imports torch, triton, fa_core, what measures or the lab; Run says what is missing."""
    show("cpu-quick", "h200-tiles")
    script = tmp_path / "absent.py"
    script.write_text(ABSENT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip().endswith("opened"), done.stderr[-3000:]
