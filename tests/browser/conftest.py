"""A real Chromium and the real app. Without a Chromium these tests skip, but in CI they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_server import CHROMIUM_ARGS, app, chromium
from synthetic import synthetic_environment, synthetic_run, write_synthetic

from profiling.paths import DATA_DIR


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The Chromium to drive."""
    path = chromium()
    if path is None:
        reason = "needs a Chromium on PATH (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any], browser_path: str) -> dict[str, Any]:
    """What pytest-playwright starts: the system's browser, which asks nothing of the network by itself."""
    return {**browser_type_launch_args, "executable_path": browser_path, "args": CHROMIUM_ARGS}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with runs made from formulas (a GPU's, a tile sweep, a CPU's), and the committed one of
    operations over rows.
    """
    folder = tmp_path_factory.mktemp("data")
    (folder / "runs").mkdir()
    axes: dict[str, Any] = {"rounds": 3, "samples_per_round": 2, "seq_lens": (64, 256, 1024, 4096, 16384)}
    runs = [
        synthetic_run(
            run_id="h200-standard",
            backends=("naive", "flash", "sdpa_flash"),
            directions=("fwd", "bwd"),
            causals=(False, True),
            head_dims=(64, 128),
            clocks=("wall", "device", "graph"),
            oom_from={"naive": 16384},
            **axes,
        ),
        synthetic_run(
            run_id="h200-tiles",
            backends=("flash",),
            tiles=tuple((m, n) for m in (64, 128, 256) for n in (64, 128, 256)),
            **axes,
        ),
        synthetic_run(
            run_id="h200-before",
            directions=("fwd",),
            clocks=("wall", "device"),
            environment=synthetic_environment(torch_version="2.10.0"),
            seed=7,
            **{**axes, "seq_lens": (64, 256, 1024, 2048)},
        ),
        synthetic_run(
            run_id="cpu-quick",
            backends=("naive", "tiled"),
            dtypes=("fp32",),
            environment=synthetic_environment("Some CPU", device_kind="cpu"),
            **{**axes, "seq_lens": (64, 128, 256)},
        ),
    ]
    for run in runs:
        write_synthetic(run, folder / "samples" / f"{run.run_id}.jsonl")
    shutil.copy(DATA_DIR / "samples" / "h200-softmax.jsonl", folder / "samples")
    return folder


@pytest.fixture(scope="session")
def app_url(data: Path, browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app on that folder; not even started when there is no browser to look at it."""
    with app(data, tmp_path_factory.mktemp("log") / "app.log") as url:
        yield url
