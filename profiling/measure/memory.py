"""Peak memory of a case above its inputs, never inside a timing.

CUDA: the caching allocator's peak during one call. CPU: the peak resident size of a fresh child process.
Over the forward alone for `fwd`; over forward and backward for `bwd` and `fwd_bwd`. `retained` is what
is held between the two: the output and whatever the backward will need.

The kernel counts a process' pages to within some for each CPU (128 KiB each, and more where there are
many): what a child needs is unknown below that, as it is for small cases.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from profiling.case import Case
from profiling.measure.backend import Forward
from profiling.measure.backends import resolve
from profiling.measure.inputs import AnyInputs, inputs_of

_SAFE_SHARE = 0.8  # of the available memory that a case may be predicted to need on a CPU
_MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD


class Memory(NamedTuple):
    """Bytes above the inputs, and how they were found; empty method: unknown."""

    peak_bytes: int | None = None
    retained_bytes: int | None = None
    method: str = ""
    reserved_bytes: int | None = None  # inputs included: what the caching allocator held at its peak
    process_bytes: int | None = None  # likewise: what the driver saw of the process then


def cuda_memory(
    forward: Forward,
    case: Case,
    inputs: AnyInputs,
    device: torch.device,
    process_bytes: Callable[[], int | None] = lambda: None,
) -> Memory:
    """Allocator peak of one call minus the value before it (tensor bytes, not what the driver holds).

    A forward alone is called once before, unmeasured: what the second call of a kind makes for those that
    follow, as the plans of `fa_core`, is no part of what a call holds.

    `process_bytes` asks the driver, right after the call: the allocator still holds all that it reserved.
    """
    if case.direction == "fwd":
        with torch.no_grad():
            forward(inputs)
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # else a request may be served by a larger cached block, and count as that
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.set_grad_enabled(case.direction != "fwd"):
        out = forward(inputs)
    torch.cuda.synchronize(device)
    retained = torch.cuda.memory_allocated(device) - before
    if case.direction != "fwd":
        grads = torch.autograd.grad(out, tuple(inputs.leaves.values()), inputs.dout)
        torch.cuda.synchronize(device)
        del grads
    return Memory(
        torch.cuda.max_memory_allocated(device) - before,
        retained,
        "cuda_allocator",
        torch.cuda.max_memory_reserved(device),
        process_bytes(),
    )


def available_bytes() -> int | None:
    """Host memory that can be had without swapping, as far as the container's limit allows."""
    try:
        import psutil

        available = int(psutil.virtual_memory().available)
    except ImportError:
        return None
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())  # "max" is no number: no limit
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        available = min(available, limit - used)
    return available


def cpu_shortage(case: Case) -> str:
    """Why a case cannot run in this machine's memory, or "".

    To be asked first: where memory runs out, the kernel kills instead of refusing.
    """
    from profiling.model.memory import input_bytes, peak_bytes
    from profiling.units import bytes_text

    available = available_bytes()
    # These materialise the scores as naive does, or at least may; a feature takes no less than none.
    eager = case.backend in ("naive", "naive_compiled", "sdpa_math")
    law = _plain(case).model_copy(update={"backend": "naive"}) if eager else case
    needed = input_bytes(case) + (peak_bytes(law, "cpu") or 0)
    if available is None or needed <= _SAFE_SHARE * available:
        return ""
    return f"it needs about {bytes_text(needed)}, and {bytes_text(available)} are available"


def _plain(case: Case) -> Case:
    """The case without features; of packed sequences the longest alone, as eager code takes them in turn."""
    packed = {"batch": min(case.batch, 1)} if case.layout == "varlen" else {}
    none = {"window_left": None, "window_right": None, "softcap": None}
    off = {"layout": "dense", "bias": False, "sinks": False, "alibi": False}
    return case.model_copy(update=packed | none | off)


# ------------------------------------------------------------------------------------ the child of a CPU


def child_memory(case: Case, seed: int, timeout_s: float) -> Memory:
    """Peak resident size of a child that makes one call, minus the size before it.

    Raises:
        MemoryError: the child was killed, as the kernel does when memory runs out.
        RuntimeError: the child failed; its last words.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["profiling.measure.memory"])  # torch is imported once, for all children
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, case, seed), daemon=True)
    child.start()
    theirs.close()
    try:
        answer: Any = ours.recv() if ours.poll(timeout_s) else "no answer in time"
    except EOFError:
        child.join(5)
        if child.exitcode == -9:
            raise MemoryError("the kernel killed it while its memory was measured") from None
        answer = f"exit code {child.exitcode}"
    finally:
        ours.close()
        if child.is_alive():
            child.join(1)
        if child.is_alive():
            child.kill()
            child.join()
    if isinstance(answer, str):
        raise RuntimeError(f"the child that measures memory failed: {answer}")
    return Memory(*answer)


def _child(pipe: Connection, case: Case, seed: int) -> None:
    try:
        pipe.send(tuple(_child_measure(case, seed)))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
        sys.exit(1)


def _child_measure(case: Case, seed: int) -> Memory:
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        # Every tensor gets pages of its own, so that freeing it shows in the resident size.
        libc.mallopt(_MMAP_THRESHOLD, 64 * 1024)
    device = torch.device("cpu")
    torch.set_grad_enabled(False)
    backend = resolve(case, device)
    inputs, forward = backend.prepare(inputs_of(case, device, seed)), backend.forward
    _once(forward, case, inputs)  # threads and library work space are not the algorithm's
    gc.collect()
    with contextlib.suppress(AttributeError):
        libc.malloc_trim(0)
    if not _reset_peak():
        return Memory()
    before = _status_bytes("VmRSS")
    retained = _once(forward, case, inputs) - before
    error_bytes = _rss_error_bytes(os.cpu_count() or 1, len(os.sched_getaffinity(0)))
    return _beyond(error_bytes, _status_bytes("VmHWM") - before, retained)


def _beyond(error_bytes: int, peak_bytes: int, retained_bytes: int) -> Memory:
    """What a child needed, unless all of it is within the counts' error; a peak is no less than its end."""
    peak_bytes = max(peak_bytes, retained_bytes)
    if peak_bytes < error_bytes:
        return Memory()
    return Memory(peak_bytes, max(retained_bytes, 0), "child_rss")


def _rss_error_bytes(online: int, usable: int) -> int:
    """By how much the kernel's count of a process' pages may be off.

    Each CPU keeps max(32, 2 x CPUs online) of them to itself before it tells (percpu_counter_batch; Linux
    before 6.2: each thread 64, about the same).
    """
    return max(32, 2 * online) * usable * mmap.PAGESIZE


def _once(forward: Forward, case: Case, inputs: AnyInputs) -> int:
    """One call as `cuda_memory` makes it; the resident size between forward and backward."""
    with torch.set_grad_enabled(case.direction != "fwd"):
        out = forward(inputs)
    between = _status_bytes("VmRSS")
    if case.direction != "fwd":
        torch.autograd.grad(out, tuple(inputs.leaves.values()), inputs.dout)
    return between


def _reset_peak() -> bool:
    """Set this process' peak resident size back to its present one (Linux only)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(name: str) -> int:
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines() if _LINUX else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


_LINUX = sys.platform.startswith("linux")
