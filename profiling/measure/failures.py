"""From an exception to a status, a reason, and whether the worker may go on."""

from __future__ import annotations

import re
import traceback
from typing import NamedTuple

import torch

from profiling.records import Status

_MAX_REASON = 300
# How torch, Triton, cuBLAS and cuDNN pass on what the driver or a library reported. After most of these
# the device's context answers every call with the same error, and nothing tells the others apart.
_DEVICE_ERROR = re.compile(
    r"CUDA (driver )?error|Triton Error \[CUDA\]|CUBLAS_STATUS_|CUDNN_STATUS_(EXECUTION|INTERNAL)|"
    r"device-side assert|cudaError|CUDA_ERROR_"
)
_NO_MEMORY = re.compile(r"out of memory|ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation")


class Failure(NamedTuple):
    """What became of a case. `fatal`: the device's context can no longer be trusted."""

    status: Status
    reason: str
    fatal: bool = False


def one_line(text: str) -> str:
    """The first sentence-worth of a message: one line, bounded."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 1]}…"


def classify(error: BaseException, *, ours: bool) -> Failure:
    """The failure an exception means.

    Args:
        error: what a backend raised.
        ours: it came from fa_core, whose ValueError and TypeError say that it cannot take a case. From
            a stranger they may be any bug.
    """
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, NotImplementedError):
        return Failure("unsupported", text)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Failure("oom", text)
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # the CPU allocator
        return Failure("oom", text)
    if type(error).__name__ == "OutOfResources":  # Triton: a tile beyond the device's shared memory
        return Failure("unsupported", text)
    if isinstance(error, RuntimeError) and "does not require grad" in str(error):
        return Failure("unsupported", f"it has no backward: {text}")
    if ours and isinstance(error, ValueError | TypeError):
        return Failure("unsupported", text)
    accelerator = getattr(torch, "AcceleratorError", ())
    fatal = isinstance(error, accelerator) or _DEVICE_ERROR.search(str(error)) is not None
    if fatal and _NO_MEMORY.search(str(error)):
        return Failure("oom", text, fatal=True)
    return Failure("crashed", f"{type(error).__name__}: {text}", fatal)


def forget(error: BaseException) -> None:
    """Let go of the tensors that the frames of a traceback hold."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen.__traceback__ = None
        seen = seen.__context__
