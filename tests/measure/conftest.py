"""Fixtures for tests of measuring: stand-in backends that workers can import, and a pretended GPU."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling.case import Case


@pytest.fixture(autouse=True, scope="session")
def _quick() -> Iterator[None]:
    """Tiny shapes gain nothing from threads; and, as in a worker, what is there need not be collected."""
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with backends that fail in every way, importable here and in workers."""
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return "stand_ins"


@pytest.fixture
def make_case() -> Callable[..., Case]:
    """Makes a small case; keywords override its fields."""

    def make(**fields: Any) -> Case:
        default: dict[str, Any] = {
            "backend": "naive",
            "dtype": "fp32",
            "heads": 2,
            "kv_heads": 2,
            "seq_len_q": 16,
            "seq_len_k": 16,
            "head_dim": 8,
            "head_dim_v": 8,
        }
        return Case(**(default | fields))

    return make


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Gradients off, as they are in a worker."""
    with torch.no_grad():
        yield


class PretendedGpu:
    """What `torch.cuda` is asked for, answered by a clock that only the fake's own work moves."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.behind = False  # whether the GPU catches up with the host while work is enqueued
        self.captured: list[int] = []
        self.replays = 0
        self.fail_capture: Exception | None = None
        self.cycles: list[int] = []
        self.reserved = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it in the place of torch.cuda's functions."""
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0.0

            def record(self) -> None:
                gpu.now_ms += 0.001
                self.at = gpu.now_ms

            def query(self) -> bool:
                return gpu.behind

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        class CUDAGraph:
            def replay(self) -> None:
                gpu.replays += 1
                gpu.now_ms += 5.0

        class Capture:
            def __init__(self, graph: Any, stream: Any) -> None:
                pass

            def __enter__(self) -> None:
                self.before = gpu.now_ms

            def __exit__(self, *error: object) -> None:
                gpu.now_ms = self.before  # capturing runs nothing
                if gpu.fail_capture is not None:
                    raise gpu.fail_capture

        def sleep(cycles: int) -> None:
            gpu.cycles.append(cycles)
            gpu.now_ms += cycles / 1e6

        properties = type("Properties", (), {"L2_cache_size": 1024, "total_memory": 2**30})
        for name, value in {
            "Event": Event,
            "CUDAGraph": CUDAGraph,
            "graph": Capture,
            "_sleep": sleep,
            "synchronize": lambda device=None: None,
            "empty_cache": lambda: None,
            "current_stream": lambda device=None: None,
            "memory_reserved": lambda device=None: gpu.reserved,
            "get_device_properties": lambda device=None: properties,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value, raising=True)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    """A pretended GPU: tensors stay on the CPU, time passes only where the fake says so."""
    pretended = PretendedGpu()
    pretended.install(monkeypatch)
    return pretended
