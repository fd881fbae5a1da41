"""The process that Nsight Compute profiles: `python -m profiling.measure.counted REQUEST NOTES`.

It makes each case's call once between cudaProfilerStart and cudaProfilerStop, warm in everything but the
caches, and notes what it is at. On a device that is no GPU nothing is profiled: tests do that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from profiling.case import Case
from profiling.measure.backends import COMPILED, bind, kernel_name, resolve, tile
from profiling.measure.counters import CountRequest, Note
from profiling.measure.failures import classify, forget
from profiling.measure.inputs import inputs_of

_WARM_CALLS = 2
_FLUSH_SHARE = 4  # how many times its size is read to empty an L2: its replacement is not the oldest first
_MARK_CYCLES = 1
_USUAL_L2_BYTES = 2**26


class Gpu:
    """The device between calls: emptied caches, and the range that is profiled."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffer: torch.Tensor | None = None
        if device.type == "cuda":
            torch.cuda.set_device(device)
            l2_bytes = (
                getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or _USUAL_L2_BYTES
            )
            self._buffer = torch.zeros(_FLUSH_SHARE * l2_bytes // 4, dtype=torch.int32, device=device)

    def flush(self) -> None:
        """Fill the L2 with what nobody needs. Read, not written: writing would leave lines to write back."""
        if self._buffer is not None:
            self._buffer.sum()
            torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def profiled(self) -> Iterator[None]:
        """What is launched inside is profiled, after the mark that parts it from the call before."""
        if self.device.type != "cuda":
            yield
            return
        torch.cuda.profiler.start()
        try:
            torch.cuda._sleep(_MARK_CYCLES)
            yield
            torch.cuda.synchronize(self.device)
        finally:
            torch.cuda.profiler.stop()

    def free(self) -> None:
        """Give back what a case held: the next one may need it."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    """Call the cases of the request one after the other."""
    faulthandler.enable()
    request = CountRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
    torch.set_grad_enabled(False)
    with Path(sys.argv[2]).open("ab", buffering=0) as notes:
        gpu = Gpu(torch.device(request.device))
        for index, case in enumerate(request.cases):
            if not _alive(request.parent):
                return

            def note(what: Any, index: int = index, **more: Any) -> None:
                notes.write(Note(index=index, what=what, **more).model_dump_json().encode() + b"\n")

            note("begin")
            fatal = _call(gpu, case, request.seed, note)
            if fatal:
                os._exit(1)  # an orderly exit would touch the device again
            gpu.free()


def _call(gpu: Gpu, case: Case, seed: int, note: Callable[..., None]) -> bool:
    """Make a case's call, and note how it ended; whether the device can no longer be trusted."""
    try:
        fields = _profile(gpu, case, seed, note)
    except Exception as error:
        failure = classify(error, ours=":" not in case.backend)
        forget(error)
        note("done", status=failure.status, reason=failure.reason)
        return failure.fatal
    note("done", **fields)
    return False


def _profile(gpu: Gpu, case: Case, seed: int, note: Callable[..., None]) -> dict[str, Any]:
    if case.backend in COMPILED:
        torch.compiler.reset()  # as in a worker: a compiler that has seen many shapes generalises
    backend = resolve(case, gpu.device)
    inputs = backend.prepare(inputs_of(case, gpu.device, seed))
    call = bind(backend.forward, case, inputs)
    for _ in range(_WARM_CALLS):
        call()
    block_m, block_n = tile(case, inputs)
    fields = {"kernel": kernel_name(case, backend, inputs), "block_m": block_m, "block_n": block_n}
    gpu.flush()
    note("call")
    with gpu.profiled():
        call()
    return fields


def _alive(pid: int) -> bool:
    """Whether the process that asked is there; it may have been killed, and its lock is free then."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
