"""Faults in real workers: killed at each of their steps, and devices that are lost or were never there."""

import os
import sys
from pathlib import Path

import pytest
import torch

from profiling.case import Protocol
from profiling.measure import worker
from profiling.measure.client import Client
from profiling.measure.process import Worker
from tests.faults.bad_worker import STEPS

HERE = Path(__file__).parent
PROTOCOL = Protocol(clocks=("wall",), processes=1, rounds=2, samples_per_round=1, warmup_ms=0)


def spawn(device, process, protocol):
    """Start a faulty worker."""
    return Worker(device, process, protocol, command=(sys.executable, str(HERE / "faulty_worker.py")))


def test_killed_at_each_step_and_lost_devices(make_block, monkeypatch):
    """In one block: a case for every step, and the errors after which a context is lost; all rows say so."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    killed = [f"victims:{step.replace(' ', '_')}_kill" for step in STEPS]
    fatal = ["victims:illegal", "victims:no_memory_for_blas"]
    with Client("cpu", PROTOCOL, ("wall",), spawn=spawn) as client:
        client.start()
        rows = client.measure(make_block("naive", *killed, *fatal, "victims:works"))
    assert [row.status for row in rows] == ["ok", *["crashed"] * 5, "crashed", "oom", "ok"]
    for row, step in zip(rows[1:], STEPS, strict=False):
        assert "SIGKILL" in row.reason
        assert f"at the step {step!r}" in row.reason
    assert "an illegal memory access" in rows[6].reason
    assert "CUBLAS_STATUS_ALLOC_FAILED" in rows[7].reason
    assert len(rows[0].samples) == len(rows[8].samples) == 2


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
            "driver by downloading and installing a new version from the URL: http://www.nvidia.com/",
            "driver on your system is too old",
        ),
        ("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "no NVIDIA"),
        ("No CUDA GPUs are available", "No CUDA GPUs"),
        ("Torch not compiled with CUDA enabled", "not compiled with CUDA"),
        ("CUDA error: no kernel image is available\nCompile with `TORCH_USE_CUDA_DSA`\n", "no kernel image"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "Error 802"),
    ],
)
def test_a_device_that_cannot_be_opened(monkeypatch, said, reason):
    """Whatever torch says of it becomes one sentence, with the way out."""

    def refuse():
        raise (AssertionError if "compiled" in said else RuntimeError)(said)

    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(worker._UnusableError, match=reason) as caught:
        worker._open("cuda:0")
    assert str(caught.value).endswith("--device cpu measures the CPU")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "visible", ["", "-1", "GPU-5a3c1f7e", "MIG-5a3c1f7e-0000-1111-2222-333344445555", "nonsense", "7,8"]
)
def test_the_visible_devices_are_named(monkeypatch, visible):
    """Where CUDA_VISIBLE_DEVICES may be why there is no device, it is quoted."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(worker._UnusableError) as caught:
        worker._open("cuda:0")
    assert f"(with CUDA_VISIBLE_DEVICES={visible!r})" in str(caught.value)


def test_a_gpu_beyond_those_that_are_visible(monkeypatch):
    """Of a machine that shows one GPU, the second is refused by its number."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(worker._UnusableError, match=r"no cuda:1: torch sees 1 CUDA device.*='3'"):
        worker._open("cuda:1")
