"""Nonsense in the address, hostile and broken files, folders and databases that go away: a clear message.

Claims: no page ever ends in an exception, text from elsewhere stays text, nothing that was there is lost, and
what is not concerned goes on.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drawing import draw, texts
from hostile_files import BROKEN, EXTREME, FILE_NAMES, MARKUP, UNTIMED, run_file
from page_runs import cpu_run, gpu_run, tile_run
from streamlit.testing.v1 import AppTest
from synthetic import write_synthetic

from profiling.pages import registry, review_signing

PATHS = [entry.path for entry in registry.ENTRIES]
DATA_PATHS = ("overview", "crossover", "review", "latency", "memory", "tiles", "roofline", "numerics", "data")
MARKDOWN = ("markdown", "caption", "info", "warning", "error", "title", "header", "subheader")
MARKS = re.compile(r"(?<!\\)(<img|<script|!\[x\]\()")
Show = Callable[..., Path]

# ------------------------------------------------------------------------------------------------ the address

# What shows further parameters, kept while the others are nonsense.
OPENED: dict[str, dict[str, str | list[str]]] = {
    "review": {"own": "true"},
    "compare": {"b": ["cpu-quick", "h200-tiles"]},
}
NONSENSE: dict[str, str | list[str]] = {
    "markup": f"../../etc/passwd\0`\u202e{MARKUP}" + "x" * 20_000,
    "infinite": "inf",
    "not a number": "nan",
    "below": "-1",
    "several": ["x", "1e999", MARKUP],
}
MISSED = ("The link asks for", "This chart has no point")  # said of what is not here


def elements(app: AppTest) -> Iterator[Any]:
    """Every element of a page, in all its containers."""

    def walk(block: Any) -> Iterator[Any]:
        for child in block.children.values():
            yield from walk(child) if hasattr(child, "children") else (child,)

    return walk(app._tree)


def bound(app: AppTest) -> list[str]:
    """The query parameters that the widgets of a page take."""
    keys = (getattr(each.proto, "query_param_key", "") for each in elements(app))
    return [key for key in keys if key]


def is_text(app: AppTest) -> None:
    """No element that reads Markdown has any of the hostile marks unescaped."""
    for kind in MARKDOWN:
        for element in app.get(kind):
            assert not MARKS.search(str(element.value)), (kind, str(element.value)[:300])


@pytest.mark.parametrize("path", PATHS)
def test_nonsense_in_every_parameter_is_ignored(path: str, show: Show) -> None:
    """Whatever stands in all parameters of a page at once: it is drawn as without, and a run is missed."""
    show("h200-standard", "cpu-quick", "h200-tiles")
    opened = OPENED.get(path, {})
    usual = draw(path, **opened)
    keys = [key for key in bound(usual) if key not in opened]
    assert keys or path not in DATA_PATHS[:-1]
    for kind, value in NONSENSE.items():
        app = draw(path, **opened, **dict.fromkeys(keys, value))
        is_text(app)
        said = [line for line in texts(app).splitlines() if not line.startswith(MISSED)]
        assert said == texts(usual).splitlines(), kind
        assert all(len(warning.value) < 400 for warning in app.warning), kind


# ------------------------------------------------------------------------------------------------- uploads

UPLOADERS = [(path, k) for path, count in (("data", 1), ("compare", 1)) for k in range(count)]


def test_every_uploader_is_known_here(show: Show) -> None:
    """The pages with a place for files are those that the tests below feed, and each limits their size."""
    show("h200-standard", "cpu-quick", "h200-tiles")
    found = []
    for path in PATHS:
        for k, uploader in enumerate(draw(path).file_uploader):
            found.append((path, k))
            assert 0 < uploader.proto.max_upload_size_mb <= 20
    assert sorted(found) == sorted(UPLOADERS)


def brought(path: str, k: int, name: str, content: bytes) -> AppTest:
    """A page after a file was dropped on it."""
    app = draw(path)
    app.file_uploader[k].set_value((name, content, "text/csv")).run()
    assert not app.exception, [error.value for error in app.exception]
    is_text(app)
    return app


@pytest.mark.parametrize(("path", "k"), UPLOADERS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_message(path: str, k: int, name: str, data: Path) -> None:
    """One sentence, without a path of the server; nothing is written, and the page below stands."""
    for run in (gpu_run(), cpu_run()):
        write_synthetic(run, data / "samples" / f"{run.run_id}.jsonl")
    before = sorted(data.rglob("*"))
    app = brought(path, k, name, BROKEN[name])
    add = [button for button in app.button if button.key == "add"]
    if add:  # a whole run under a name that no file may have: refused when it is to be written
        add[0].click().run()
        assert not app.exception
        is_text(app)
    if name.removesuffix(".jsonl") not in ("path", "absolute", "nul", "markup") or path == "data":
        (error,) = app.error
        assert str(data) not in error.value.replace("\\", "")
        assert "/upload" not in error.value.replace("\\", "")
        assert len(error.value) < 1500
    assert sorted(data.rglob("*")) == before
    assert not (data.parent / "evil.jsonl").exists()
    assert any("h200-standard" in str(box.options) for box in app.selectbox)


@pytest.mark.parametrize(("path", "k"), UPLOADERS)
@pytest.mark.parametrize("name", FILE_NAMES)
def test_a_files_name_is_never_a_path_nor_markup(path: str, k: int, name: str, data: Path) -> None:
    """It appears as text, without folders and control characters; nothing is written under it."""
    for run in (gpu_run(), cpu_run()):
        write_synthetic(run, data / "samples" / f"{run.run_id}.jsonl")
    app = brought(path, k, name, b"N,ms\n1,2\n")
    (error,) = app.error
    said = error.value.replace("\\", "")
    assert ".." not in said.partition(":")[0]
    assert "\n" not in said
    assert not list((data / "runs").iterdir())


@pytest.mark.parametrize("name", UNTIMED)
def test_cases_that_no_device_gave_are_left_out_one_by_one(name: str, data: Path) -> None:
    """A line with a latency of 0, a length beyond every memory: the line is named, the rest would stay."""
    write_synthetic(gpu_run(), data / "samples" / "h200-standard.jsonl")
    app = brought("data", 0, name, UNTIMED[name])
    assert "line 2 could not be read" in app.warning[0].value
    assert "brought: Some CPU, 0 cases" in texts(app)


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an ordinary run and every run of `EXTREME`."""
    folder = tmp_path_factory.mktemp("extremes")
    (folder / "samples").mkdir()
    (folder / "runs").mkdir()
    write_synthetic(gpu_run(), folder / "samples" / "h200-standard.jsonl")
    for name, content in EXTREME.items():
        (folder / "runs" / f"{name}.jsonl").write_bytes(content)
    return folder


@pytest.mark.parametrize("name", EXTREME)
def test_no_page_breaks_of_a_hostile_run(name: str, extremes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup, half characters, lengths and times beyond all measure: every page draws, and text is text."""
    monkeypatch.setenv("FLASHSCOPE_DATA", str(extremes))
    for path in PATHS:
        query: dict[str, str] = {"run": name, "tile_run": name} if path != "compare" else {"b": name}
        is_text(draw(path, **query))


def test_a_hostile_run_is_added_and_leaves_as_text(data: Path) -> None:
    """On page Data the second look shows its markup as text, and written under its plain id."""
    app = brought(
        "data", 0, "x.jsonl", run_file(lambda row: row["environment"].update(device_name=MARKUP), "header")
    )
    assert f"brought: {MARKUP}, 6 cases" in texts(app)
    app.button(key="add").click().run()
    assert not app.exception
    assert [path.name for path in (data / "runs").iterdir()] == ["brought.jsonl"]


# ----------------------------------------------------------------------------------------- files and folders

LINES = run_file().splitlines(keepends=True)
ODD_FILES: dict[str, bytes] = {
    "torn": b"".join(LINES[:-1]) + LINES[-1][:40],
    "torn-header": LINES[0][:40],
    "pid": b"".join(LINES) + b'{"kind":"resumed","at":"x","pid":"evil"}\n',
    "pids": b"".join(LINES) + b'{"kind":"resumed","at":[1],"pid":[1]}\n',
    "kinds": b"".join(LINES) + b'{"kind":["case"]}\n{"kind":"case","case":[],"status":{}}\n[]\nnull\n',
    "headers": b"".join(LINES) + LINES[0],
    "additions": b"".join(LINES) + b'{"kind":"addition","case":{}}\n',
    "ends": b"".join(LINES) + b'{"kind":"end","status":"never","at":7}\n',
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_no_page_breaks_of_a_file_that_is_being_written(name: str, data: Path) -> None:
    """A torn last line or header, lines out of place: what is whole is shown; the file stays."""
    write_synthetic(gpu_run(), data / "samples" / "h200-standard.jsonl")
    (data / "runs" / "brought.jsonl").write_bytes(ODD_FILES[name])
    for path in ("overview", "latency", "compare", "run", "data"):
        draw(path, **({"a": "brought"} if path == "compare" else {"run": "brought"}))
    assert (data / "runs" / "brought.jsonl").read_bytes() == ODD_FILES[name]


@pytest.mark.parametrize("path", PATHS)
def test_a_folder_that_vanishes_under_an_open_page(path: str, data: Path) -> None:
    """The next click says that it is gone, no page fails, and what was chosen is there when it is back."""
    for run in (gpu_run(), cpu_run(), tile_run()):
        write_synthetic(run, data / "samples" / f"{run.run_id}.jsonl")
    app = draw(path, d="64")
    before = texts(app)
    shutil.move(data, data.with_name("away"))
    app.run()
    assert not app.exception, [error.value for error in app.exception]
    gone = [error for error in app.error if "does not exist" in error.value]
    assert gone or path not in DATA_PATHS
    shutil.move(data.with_name("away"), data)
    app.run()
    assert not app.exception
    assert texts(app) == before


def test_a_run_that_vanishes_under_an_open_page(data: Path) -> None:
    """It leaves the list; the page goes on with another and says so."""
    for run in (gpu_run(), cpu_run()):
        write_synthetic(run, data / "samples" / f"{run.run_id}.jsonl")
    app = draw("latency", run="cpu-quick")
    (data / "samples" / "cpu-quick.jsonl").unlink()
    app.run()
    assert not app.exception
    assert "run h200-standard (" in texts(app)


# ---------------------------------------------------------------------------------------------- the database


@pytest.mark.parametrize("kind", ["corrupt", "a folder", "read-only", "elsewhere"])
def test_a_database_that_cannot_be_used_costs_nothing_but_signing(
    kind: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision table and its exports stay; one message says what is wrong, and what was typed is kept."""
    write_synthetic(gpu_run(), data / "samples" / "h200-standard.jsonl")
    file = data / "reviews.db"
    if kind == "corrupt":
        file.write_bytes(b"no database" * 1000)
    elif kind == "a folder":
        file.mkdir()
    elif kind == "elsewhere":
        monkeypatch.setenv(review_signing.URL_VARIABLE, "sqlite:////nowhere/reviews.db")
    app = draw("review")
    if kind == "read-only":
        monkeypatch.setenv(review_signing.URL_VARIABLE, f"sqlite:///file:{file}?mode=ro&uri=true")
        import sqlite3

        sqlite3.connect(file).close()
        app = draw("review")
        app.text_input[0].set_value("Ada")
        app.radio[0].set_value("approved")
        next(button for button in app.button if button.label == "Sign").click().run()
        assert app.text_input[0].value == "Ada"
    assert not app.exception
    assert len(app.error) == 1
    assert "database of sign-offs" in app.error[-1].value.replace("\\", "")
    assert app.table
    assert {button.label for button in app.get("download_button")} >= {"Markdown", "HTML", "CSV"}


# ------------------------------------------------------------------------------------------------ the server


def test_the_server_is_closed_until_told_otherwise() -> None:
    """Localhost, XSRF and CORS guarded, small uploads, no traceback on the page, no statistics sent."""
    root = Path(__file__).resolve().parents[2]
    config = tomllib.loads((root / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    assert config["server"]["address"] == "127.0.0.1"
    assert config["server"]["enableXsrfProtection"] is True
    assert config["server"]["enableCORS"] is True
    assert config["server"]["maxUploadSize"] <= 20
    assert config["client"]["showErrorDetails"] == "type"
    assert config["browser"]["gatherUsageStats"] is False
