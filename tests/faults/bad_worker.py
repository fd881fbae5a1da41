"""A worker without torch that does to each case what its backend says: `x:<step>_<what>`.

Started as a worker is, with the two pipes' numbers as its last arguments. It says each step as the real one
does, and at `step` of a case (or in `inputs` or `reference` of its block) it does `what`; in a rehearsal it
does FAULT_REHEARSAL. What happens once only, so that a resumed run can get past it, is done where the file
FAULT_MARKER is not there yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from profiling.measure.messages import (
    TO_WORKER,
    BlockRequest,
    BlockResult,
    EnergyResult,
    Hello,
    Outcome,
    Refused,
    RehearsalRequest,
    Rehearsed,
    Stage,
    Start,
    Unclean,
)
from profiling.records import Environment, Sample

SHARED_STEPS = ("clocks", "inputs", "reference")
STEPS = ("prepare", "check", "memory", "warm up", "time")

pipe = -1  # the writing end, once there is one


def say(message):
    """Send a message; a parent that is gone is the end."""
    try:
        os.write(pipe, message.model_dump_json().encode() + b"\n")
    except BrokenPipeError:
        os._exit(0)


def first_time() -> bool:
    """Whether nothing has happened in this test yet."""
    marker = Path(os.environ["FAULT_MARKER"])
    if marker.exists():
        return False
    marker.write_text(str(os.getpid()))
    return True


def do(what: str, index: int | None) -> None:
    """The fault itself."""
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        print("last words", flush=True)
        os._exit(5)
    elif what == "hang" or (what == "hangonce" and first_time()):
        signal.pause()
    elif what == "close":
        os.close(pipe)
        signal.pause()
    elif what == "garbage":
        os.write(pipe, b"Traceback (most recent call last)\n")
    elif what == "binary":
        os.write(pipe, bytes(range(128, 256)) + b"\n")
    elif what == "half":
        os.write(pipe, b'{"kind":"stage","ind')
        os._exit(0)
    elif what == "flood":
        while True:
            os.write(pipe, b"x" * 65536)
    elif what == "beyond":
        say(Stage(index=99, name="prepare"))
    elif what == "hello":
        say(Hello(environment=Environment(device_kind="cpu", device_name="again")))
    elif what == "energies":
        say(EnergyResult(energies=()))
    elif what == "short":
        say(BlockResult(outcomes=()))
    elif what == "poison":
        say(Unclean(index=index, outcome=Outcome(status="oom", reason="poisoned")))
        os._exit(1)
    elif what == "gone" and first_time():
        os._exit(1)  # and `main` refuses to start from now on
    elif what == "killparent" and first_time():
        os.kill(os.getppid(), signal.SIGKILL)
    elif what == "delete" and first_time():
        Path(os.environ["FAULT_FILE"]).unlink()
    elif what == "replace" and first_time():
        path = Path(os.environ["FAULT_FILE"])
        path.rename(path.with_suffix(".old"))
        path.write_text("something else\n")
    elif what == "truncate" and first_time():
        os.truncate(os.environ["FAULT_FILE"], 100)
    elif what == "append" and first_time():
        with Path(os.environ["FAULT_FILE"]).open("a") as file:
            file.write("{}\n")


def fault_of(backend: str) -> tuple[str, str]:
    """The step and the fault that a backend names."""
    step, _, what = backend.partition(":")[2].rpartition("_")
    return step.replace("_", " "), what


def measure(request: BlockRequest, process: int) -> BlockResult:
    """Go through the steps of a block."""
    for step in SHARED_STEPS:
        if step == "reference" and not request.check:
            continue
        say(Stage(index=None, name=step))
        for case in request.cases:
            if fault_of(case.backend)[0] == step:
                do(fault_of(case.backend)[1], None)
    outcomes = []
    for index, case in enumerate(request.cases):
        for step in STEPS:
            say(Stage(index=index, name=step))
            if fault_of(case.backend)[0] == step:
                do(fault_of(case.backend)[1], index)
        sample = Sample(clock="wall", process=process, round=0, order=index, ms=1.0)
        outcomes.append(Outcome(samples=(sample,)))
    return BlockResult(outcomes=tuple(outcomes))


def main() -> None:
    """Serve one parent."""
    global pipe
    reader, pipe = os.fdopen(int(sys.argv[-2])), int(sys.argv[-1])
    start = TO_WORKER.validate_json(reader.readline())
    assert isinstance(start, Start)
    if start.device == "cuda:9" and Path(os.environ["FAULT_MARKER"]).exists():
        say(Refused(message="there is no cuda:9 any more"))
        return
    say(Hello(environment=Environment(device_kind="cpu", device_name="stand-in")))
    for line in reader:
        request = TO_WORKER.validate_json(line)
        if isinstance(request, RehearsalRequest):
            do(os.environ.get("FAULT_REHEARSAL", ""), None)
            say(Rehearsed())
            continue
        assert isinstance(request, BlockRequest)
        say(measure(request, start.process))


if __name__ == "__main__":
    main()
