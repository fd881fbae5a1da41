"""`flashscope`, with workers of `bad_worker` and faults of its own, as the variable FAULT says.

`die_in_write=K,PARTS`: SIGKILL in the K-th write to the run file, when PARTS tenths of it are written.
`max_bytes=N`: no file grows beyond so many bytes, as on a full disk.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
from pathlib import Path

from profiling import runner
from profiling.__main__ import main
from profiling.measure.client import Client
from profiling.measure.process import Worker
from profiling.store.journal import Journal

COMMAND = (sys.executable, str(Path(__file__).with_name("bad_worker.py")))


def die_in_write(which: int, tenths: int) -> None:
    """Be killed in the middle of a write."""
    whole, count = Journal.write, 0

    def write(journal: Journal, lines: list[str]) -> None:
        nonlocal count
        count += 1
        if count == which:
            data = "".join(line + "\n" for line in lines).encode()
            os.lseek(journal._handle.fileno(), 0, os.SEEK_END)
            os.write(journal._handle.fileno(), data[: len(data) * tenths // 10])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(journal, lines)

    Journal.write = write


if __name__ == "__main__":
    runner.Client = functools.partial(Client, spawn=functools.partial(Worker, command=COMMAND))
    fault, _, value = os.environ.get("FAULT", "").partition("=")
    if fault == "die_in_write":
        die_in_write(*map(int, value.split(",")))
    elif fault == "max_bytes":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), int(value)))
    main()
