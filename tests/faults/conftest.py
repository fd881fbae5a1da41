"""Runs that go wrong on purpose: in this process or in one of their own, with workers that need no torch."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from profiling import runner
from profiling.case import Case, Protocol
from profiling.grid import Sweep
from profiling.measure.client import Client
from profiling.measure.process import Worker
from profiling.records import Run
from profiling.store import load_run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMAND = (sys.executable, str(HERE / "bad_worker.py"))
SWEEP = """
name = "tiny"
[protocol]
clocks = ["wall"]
processes = {processes}
timeout_s = {timeout_s}
[[group]]
backends = ["naive", "{backend}"]
dtype = ["fp32"]
heads = [2]
head_dim = [8]
seq_len = [16, 32, 48]
"""


class Bed:
    """Where a run goes wrong: a folder, with a sweep in it, and the ways to start a run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs" / "r.jsonl"
        self.said = io.StringIO()

    def sweep(self, backend: str, *, processes: int = 1, timeout_s: float = 60) -> Path:
        """A sweep of six cases in three blocks; each has `naive` and a case of the backend."""
        path = self.folder / "tiny.toml"
        path.write_text(SWEEP.format(backend=backend, processes=processes, timeout_s=timeout_s))
        return path

    def run(self, backend: str = "x:good", **fields: Any) -> runner.Result:
        """A run in this process, into `path` if it is a new one."""
        default: dict[str, Any] = {
            "sweep": self.sweep(backend),
            "device": "cpu",
            "out": self.path.parent,
            "run_id": None if "resume" in fields else self.path.stem,
        }
        return runner.run(runner.Request(**(default | fields)), Console(file=self.said, width=1000))

    def start(
        self, *words: str | Path, backend: str = "x:good", fault: str = "", run_id: str = "r"
    ) -> subprocess.Popen[str]:
        """`flashscope run` in a process of its own; a new run unless `words` name another."""
        where = words or ("--out", self.path.parent, "--run-id", run_id)
        script = HERE / "flashscope_with_faults.py"
        command = [sys.executable, script, "run", self.sweep(backend), "--device", "cpu", *where]
        return subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env={**os.environ, "FAULT": fault},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *words: str | Path, **fields: Any) -> tuple[int, str]:
        """The exit code of such a process and what it wrote to stderr."""
        process = self.start(*words, **fields)
        _, said = process.communicate(timeout=120)
        return process.returncode, said

    def check(self, path: Path | None = None, **statuses: str) -> Run:
        """Every planned case has one row and is `ok`, or what `statuses` say of its backend's last word."""
        path = path or self.path
        run = load_run(path)
        assert run.problems == ()
        assert run.end is not None
        assert run.end.status == "finished"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        keys = [json.dumps(row["case"], sort_keys=True) for row in rows if row["kind"] == "case"]
        assert len(set(keys)) == len(keys)
        assert {row.case for row in run.measurements} == set(Sweep.model_validate(run.header.sweep).cases())
        for row in run.measurements:
            assert row.status == statuses.get(row.case.backend.rpartition("_")[2], "ok"), row
        return run


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """A fresh one, with locks of its own; runs in this process have workers of `bad_worker`."""
    found = Bed(tmp_path)
    for name, value in {
        "FAULT_MARKER": tmp_path / "marker",
        "FAULT_FILE": found.path,
        "TMPDIR": tmp_path,
        "PYTHONPATH": ROOT,
        "GIT_DIR": tmp_path,  # whoever commits meanwhile must not make a resume a forced one
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spawn = functools.partial(Worker, command=COMMAND)
    monkeypatch.setattr(runner, "Client", functools.partial(Client, spawn=spawn))
    return found


@pytest.fixture
def client(bed: Bed) -> Callable[..., Client]:
    """Makes a client whose workers are bad ones; keywords are those of the protocol."""

    def make(device: str = "cpu", **protocol: Any) -> Client:
        spawn = functools.partial(Worker, command=COMMAND)
        return Client(device, Protocol(**({"processes": 1} | protocol)), ("wall",), spawn=spawn)

    return make


def block(*backends: str, n: int = 16) -> Sequence[Case]:
    """Cases of one shape."""
    return [Case(backend=name, seq_len_q=n, seq_len_k=n, head_dim=8, head_dim_v=8) for name in backends]


@pytest.fixture
def make_block() -> Callable[..., Sequence[Case]]:
    """`block`."""
    return block
