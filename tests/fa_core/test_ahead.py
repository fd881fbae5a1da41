"""Attention on tensors without storage: shapes without a GPU, and kernels compiled for one elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fa_core import attention, attention_paged, attention_varlen
from fa_core.kernels import tuning
from fa_core.kernels.tuning import Gpu

A100 = Gpu(163 * 1024, (8, 0), 108)


def meta(*shape, dtype=torch.float16):
    """A tensor without storage."""
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("impl", ["flash", "naive", "auto"])
def test_shapes_need_no_storage(impl):
    """Out, LSE and gradients of `meta` tensors have the shapes and dtypes that real ones would have."""
    q, k, v = meta(2, 6, 50, 40), meta(2, 3, 70, 40), meta(2, 3, 70, 24)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = attention(*leaves, causal=True, impl=impl, return_lse=True)
    grads = torch.autograd.grad(out, leaves, torch.empty_like(out))
    assert (out.shape, out.dtype, out.device.type) == ((2, 6, 50, 24), torch.float16, "meta")
    assert (lse.shape, lse.dtype) == ((2, 6, 50), torch.float32)
    assert [g.shape for g in grads] == [x.shape for x in leaves]


def test_packed_and_paged_shapes():
    """The other two doors, likewise."""
    whole = {"dtype": torch.int32}
    packed = attention_varlen(
        meta(90, 4, 32), meta(80, 2, 32), meta(80, 2, 32), meta(4, **whole), meta(4, **whole),
        impl="flash", check_lengths=False,
    )  # fmt: skip
    assert packed.shape == (90, 4, 32)
    paged = attention_paged(
        meta(3, 4, 1, 32), meta(9, 16, 2, 32), meta(9, 16, 2, 32), meta(3, 5, **whole), meta(3, **whole),
        impl="flash", check_table=False,
    )  # fmt: skip
    assert paged.shape == (3, 4, 1, 32)


def test_elsewhere_decides_tiles_and_precision(monkeypatch):
    """While compiling ahead, `meta` stands for the GPU that was named, and for nothing else."""
    x = meta(1, 1, 16, 256, dtype=torch.float32)
    assert tuning.gpu(x.device) is None
    monkeypatch.setattr(tuning, "elsewhere", A100)
    assert tuning.gpu(x.device) == A100
    assert tuning.exact(x)
    monkeypatch.setattr(tuning, "elsewhere", A100._replace(capability=(8, 6)))
    assert not tuning.exact(x)
    assert tuning.gpu(torch.device("cpu")) is None


CODE = """
import torch
from triton.runtime.driver import driver
from fa_core import attention
from fa_core.ahead import compiling_for
from fa_core.kernels import tuning
before = driver._active
x = torch.empty(1, 2, 64, 16, dtype=torch.float16, device="meta")
with compiling_for(tuning.Gpu(163 * 1024, (8, 0), 108)):
    assert driver.active.get_current_target().arch == 80
    out = attention(x, x, x, impl="flash")
assert tuning.elsewhere is None
assert driver._active is before
print(*out.shape)
"""


def test_compiling_leaves_the_process_as_it_was(tmp_path):
    """Driver and target are put back; the kernel lies in the cache, for the architecture that was named."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    told = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["1", "2", "64", "16"]
    assert len(list(tmp_path.rglob("forward_kernel.cubin"))) == 1
