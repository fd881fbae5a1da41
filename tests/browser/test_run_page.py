"""A sweep from page Run to its end, another that is cancelled; then the runs are put in order on Data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_server import app, settle
from playwright.sync_api import Page, expect

from profiling.store import list_runs, load_run, read_notes

pytestmark = [
    pytest.mark.browser,
    # pytest-base-url, which pytest-playwright brings, still uses a hook's old argument
    pytest.mark.filterwarnings("ignore::pytest.PytestRemovedIn10Warning")
    if hasattr(pytest, "PytestRemovedIn10Warning")
    else pytest.mark.filterwarnings("default"),
]
TINY = "source=my+own&device=cpu&own_backends=naive&own_n=16&own_processes=1&own_rounds=1&own_name=tiny"
LONG = TINY.replace("own_n=16", "own_n=16..8192").replace("own_name=tiny", "own_name=long")
WAIT_MS = 90_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty data folder."""
    for name in ("samples", "runs"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def url(
    folder: Path, browser_path: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """An app on it, with device locks of its own: no other test's run holds this one up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("locks")))
    with app(folder, tmp_path_factory.mktemp("log") / "app.log") as address:
        yield address


def test_runs_are_made_stopped_and_put_in_order(page: Page, url: str, folder: Path) -> None:
    """One is measured to its end and labelled, one is cancelled with its rows kept, and then deleted."""
    page.set_viewport_size({"width": 1280, "height": 1600})
    main = page.get_by_test_id("stMain")
    for query, text in ((TINY, "1 case in 1 shape, N = 16; backend naive"), (LONG, "10 cases in 10 shapes")):
        page.goto(f"{url}/run?{query}")
        settle(page)
        expect(main).to_contain_text(text)
        main.get_by_role("button", name="Start", exact=True).click()
        if query == TINY:
            expect(main).to_contain_text("finished, 1 of 1 cases", timeout=WAIT_MS)
    expect(main).to_contain_text("cases a minute", timeout=WAIT_MS)
    main.get_by_role("button", name="Cancel").click()
    expect(main).to_contain_text("interrupted", timeout=WAIT_MS)
    expect(main.get_by_role("button", name="Resume")).to_be_enabled()
    tiny, long = (next(i for i in list_runs(folder) if i.run_id.startswith(n)) for n in ("tiny-", "long-"))
    assert tiny.end_status == "finished"
    (row,) = load_run(tiny.path).measurements
    assert row.status == "ok"
    assert 0 < long.n_cases < 10

    page.goto(f"{url}/data")
    settle(page)
    choose(page, tiny.run_id)
    main.get_by_label("Label", exact=True).fill("the first <b>")
    page.keyboard.press("Tab")
    main.get_by_role("button", name="Save label").click()
    expect(main.get_by_role("button", name="Save label")).to_be_disabled()
    settle(page)
    assert read_notes(folder)[tiny.run_id].label == "the first <b>"

    choose(page, long.run_id)
    main.get_by_role("button", name="Delete", exact=True).click()
    look = page.get_by_role("dialog")
    expect(look).to_contain_text(long.path.name)
    look.get_by_role("button", name="Keep it").click()
    expect(look).to_have_count(0)
    assert long.path.exists()
    main.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it for good").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    settle(page)
    assert sorted(os.listdir(folder / "runs")) == sorted(
        f"{tiny.run_id}{suffix}" for suffix in (".jsonl", ".log", ".toml", ".job.json")
    )
    page.goto(f"{url}/latency")
    settle(page)
    expect(main).to_contain_text("the first <b>")
    assert page.get_by_test_id("stException").count() == 0


def choose(page: Page, run_id: str) -> None:
    """Choose the run that is labelled, archived or deleted."""
    page.get_by_test_id("stMain").get_by_role("combobox", name="Run to label, archive or delete").click()
    page.get_by_role("option", name=f"runs/{run_id}").click()
    settle(page)
