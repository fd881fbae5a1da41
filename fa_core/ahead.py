"""Compile kernels before they are needed, for a GPU that need not be there.

Within `compiling_for`, attention on tensors of device `meta` (shapes and strides without storage) does all
that it would do on that GPU but launch: its kernels are compiled into Triton's cache on disk, where a
process with the GPU finds them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from fa_core.kernels import tuning
from fa_core.kernels.tuning import Gpu

_WARP_THREADS = 32


class _NoDriver:
    """Answers what Triton asks of a driver in order to compile, for a GPU that is not there."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextlib.contextmanager
def compiling_for(gpu: Gpu) -> Iterator[None]:
    """Let `meta` tensors stand for tensors on `gpu`, an NVIDIA GPU.

    Not for a process that launches kernels, too: Triton holds one driver at a time, and what a kernel has
    compiled so far.
    """
    major, minor = gpu.capability
    target = GPUTarget("cuda", 10 * major + minor, _WARP_THREADS)
    before: Any = getattr(driver, "_active", None)
    driver.set_active(_NoDriver(target))  # pyright: ignore[reportArgumentType]
    tuning.elsewhere = gpu
    try:
        yield
    finally:
        tuning.elsewhere = None
        driver.set_active(before)
