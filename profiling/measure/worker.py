"""A worker process: reads requests, measures on its device, writes answers.

Started as `python -m profiling.measure.worker READ_FD WRITE_FD` by `client`. The two pipes are its own:
whatever a library prints goes elsewhere and cannot be mistaken for an answer. It ends when its parent
does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
from typing import IO, Any

from profiling.measure.children import die_with_parent
from profiling.measure.messages import (
    TO_WORKER,
    BlockRequest,
    Hello,
    Refused,
    RehearsalRequest,
    Rehearsed,
    Stage,
    Start,
    Unclean,
)
from profiling.records import Environment


def main() -> None:
    """Serve one parent until it closes its pipe."""
    reader = os.fdopen(int(sys.argv[1]), encoding="utf-8")
    writer = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8", buffering=1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    faulthandler.enable()
    die_with_parent()
    start = TO_WORKER.validate_json(reader.readline())
    assert isinstance(start, Start)
    with contextlib.suppress(BrokenPipeError):  # the parent is gone: nobody wants the answer
        _serve(start, reader, writer)


def _serve(start: Start, reader: IO[str], writer: IO[str]) -> None:
    def say(message: Any) -> None:
        writer.write(message.model_dump_json() + "\n")

    try:
        device, environment = _open(start.device)
    except _UnusableError as error:
        say(Refused(message=str(error)))
        return
    # Torch is known to be there from here on.
    import torch

    from profiling.measure.block import Bench, PoisonedError
    from profiling.measure.energy import energy_of_block
    from profiling.measure.telemetry import Telemetry

    torch.set_grad_enabled(False)
    bench = Bench(device, start.process, start.protocol, Telemetry(environment.device_uuid))
    gc.collect()
    gc.freeze()  # what is there now stays: later collections need not look at it
    say(Hello(environment=environment))

    for line in reader:
        request = TO_WORKER.validate_json(line)
        assert not isinstance(request, Start)

        def stage(index: int | None, name: str) -> None:
            say(Stage(index=index, name=name))

        try:
            if isinstance(request, BlockRequest):
                say(bench.measure(request, stage))
            elif isinstance(request, RehearsalRequest):
                bench.rehearse(request)
                say(Rehearsed())
            else:
                say(energy_of_block(bench, request, stage))
        except PoisonedError as error:
            say(Unclean(index=error.index, outcome=error.outcome))
            writer.flush()
            os._exit(1)  # an orderly exit would touch the device again


class _UnusableError(Exception):
    """Why this worker cannot measure on the device it was asked for."""


def _open(name: str) -> tuple[Any, Environment]:
    """The torch.device of that name, made this process' own, and the environment."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
        raise _UnusableError(
            f"measuring needs torch, which cannot be imported ({error}): install flashscope[measure]"
        ) from None
    from profiling.measure.environment import worker_environment
    from profiling.measure.failures import one_line

    device = torch.device(name)
    if device.type == "cpu":
        return device, worker_environment(device)
    try:
        torch.cuda.init()  # says why there is none, where `is_available` says only that
        count = torch.cuda.device_count()
        if (device.index or 0) < count:
            torch.cuda.set_device(device)
            # Not the default stream: a CUDA graph can only be captured on another, and a backward runs on
            # the stream of its forward. So everything is measured on the same one.
            torch.cuda.set_stream(torch.cuda.Stream(device))
            return device, worker_environment(device)
    except (RuntimeError, AssertionError) as error:  # no or too old a driver, no GPU, a build for CPUs
        why = one_line(str(error)).rstrip(".")
        raise _UnusableError(
            f"{name} cannot be used: {why}{_visible_devices()}; --device cpu measures the CPU"
        ) from None
    raise _UnusableError(
        f"there is no {name}: torch sees {count} CUDA device(s), counted from cuda:0{_visible_devices()}"
    )


def _visible_devices() -> str:
    """What the user has chosen of the machine's GPUs, since that may hide the one that was asked for."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if chosen is None else f" (with CUDA_VISIBLE_DEVICES={chosen!r})"


if __name__ == "__main__":
    main()
