"""Data folders for the pages' tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_runs import (
    counters_run,
    cpu_run,
    feature_run,
    gpu_run,
    hostile_run,
    mixed_run,
    rows_run,
    tile_run,
    tokens_run,
)
from synthetic import write_synthetic


@pytest.fixture(autouse=True)
def _main_stays() -> Iterator[None]:
    """AppTest puts its script in `__main__`'s place, where a process that is forked later would look."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, which the app takes as its own."""
    for name in ("samples", "runs"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs above as files, written once."""
    folder = tmp_path_factory.mktemp("files")
    usual = (gpu_run(), counters_run(), cpu_run(), feature_run(), tile_run(), tokens_run(), hostile_run())
    for run in (*usual, rows_run(), mixed_run()):
        write_synthetic(run, folder / f"{run.run_id}.jsonl")
    return folder


@pytest.fixture(scope="session")
def folders(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A data folder with these runs; the same one each time, so that a run is read once."""
    made: dict[tuple[str, ...], Path] = {}

    def folder(*names: str) -> Path:
        if names not in made:
            made[names] = tmp_path_factory.mktemp("data")
            (made[names] / "runs").mkdir()
            (made[names] / "samples").mkdir()
            for name in names:
                (made[names] / "samples" / f"{name}.jsonl").hardlink_to(files / f"{name}.jsonl")
        return made[names]

    return folder


@pytest.fixture
def show(folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make the app's data folder one that holds these runs; nothing may be written to it."""

    def show(*names: str) -> Path:
        monkeypatch.setenv("FLASHSCOPE_DATA", str(folders(*names)))
        return folders(*names)

    return show
