"""Shared by all tests: without a GPU the Triton kernels run under Triton's interpreter.

The variable must be set before triton is first imported, and only tests set it.
"""

import importlib.util
import io
import os
import sys


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


HAS_CUDA = _has_cuda()
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"

import pytest  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU that is not there."""
    if HAS_CUDA:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """The stand-in in the client's place, and locks in a folder of their own."""
    from profiling import runner
    from tests.stand_in_run import StandIn

    fresh = type("Fresh", (StandIn,), {"measured": []})
    monkeypatch.setattr(runner, "Client", fresh)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return fresh


@pytest.fixture
def request_run(tmp_path):
    """Starts a run of the tiny sweep on the CPU, told to a console; keywords replace parts of the request."""
    from rich.console import Console

    from profiling import runner
    from tests.stand_in_run import SWEEP

    path = tmp_path / "tiny.toml"
    path.write_text(SWEEP)

    def start(console=None, **fields):
        default = {"sweep": path, "device": "cpu", "out": tmp_path / "runs", "argv": ("flashscope", "run")}
        return runner.run(runner.Request(**(default | fields)), console or Console(file=io.StringIO()))

    return start


@pytest.fixture
def flashscope(monkeypatch, capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""
    from profiling import __main__ as cli

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["flashscope", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return command
