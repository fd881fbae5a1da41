"""Compile the kernels of a plan before anything is measured, on all cores. No torch in the parent.

A kernel takes seconds to compile, and a sweep asks for dozens. Children that see no GPU compile them for the
one that is there (see `fa_core.ahead`), side by side, into Triton's cache; the workers then only load them.
What a child could not compile, the worker that needs it does.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from profiling.case import COMPILED_AHEAD, Case
from profiling.measure.children import child_environment, die_with_parent
from profiling.model.hopper import forward_tile, keeps_busy, takes
from profiling.records import Environment

LIMIT_S = 300.0
_ROWS = 256  # no tile has more: lengths that leave the same rest are compiled alike
_FEW_QUERIES = 64  # up to so many, how the keys are divided depends on the whole shape
_COMMAND = (sys.executable, "-m", "profiling.measure.precompile")


def representatives(cases: Iterable[Case]) -> list[Case]:
    """A case for each set of kernels that `flash` (by any name) and `online` compile; the longest first.

    Lengths matter by what they leave in a tile, by whether a window reaches over all of them, and where they
    choose the tile.
    """
    found: dict[Any, Case] = {}
    for case in cases:
        if case.backend in COMPILED_AHEAD:
            found.setdefault(_compiled_as(case), case)
    return sorted(
        found.values(), key=lambda case: (case.direction == "fwd", -max(case.head_dim, case.head_dim_v))
    )


def _compiled_as(case: Case) -> tuple[Any, ...]:
    if case.seq_len_q <= _FEW_QUERIES:
        return case.key
    alike = case.model_copy(update={"batch": 0, "window_left": None, "window_right": None})
    lengths = {"seq_len_q": case.seq_len_q % _ROWS, "seq_len_k": case.seq_len_k % _ROWS}
    return (
        alike.model_copy(update=lengths).key,
        *(side is not None for side in case.hiding_window),
        case.seq_len_q == case.seq_len_k,
        # The kernels for sm_90 have another tile for longer sequences, and leave what has few to the others.
        forward_tile(case) if case.backend != "flash_portable" and takes(case) else None,
        case.backend == "flash" and keeps_busy(case),
    )


class Precompiler:
    """Children that wait to be told what to compile: starting them takes as long as starting a worker.

    A context manager; leaving it ends them.
    """

    def __init__(self, cases: Iterable[Case], processes: int, command: Sequence[str] = _COMMAND) -> None:
        self.cases = representatives(cases)
        self._command = command
        self._count = min(processes, len(self.cases))
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Precompiler:
        environment = child_environment(CUDA_VISIBLE_DEVICES="")
        for _ in range(self._count):
            self._children.append(
                subprocess.Popen(
                    [*self._command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                    start_new_session=True,
                )
            )
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children:
            child.kill()
            with contextlib.suppress(BrokenPipeError):
                child.communicate()

    def compile(self, environment: Environment, limit_s: float = LIMIT_S) -> bool:
        """Compile for a GPU and wait: whether all was done in time. Two runs on one host take turns."""
        if not self._children or not (environment.compute_capability and environment.sram_bytes):
            return not self.cases
        gpu = {
            "capability": [int(part) for part in environment.compute_capability.split(".")],
            "shared_bytes": environment.sram_bytes,
            "processors": environment.sm_count or 1,
        }
        deadline = time.monotonic() + limit_s
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # where no lock can be had, a kernel may be compiled twice
                path = Path(tempfile.gettempdir()) / f"flashscope-compile-{os.getuid()}.lock"
                stack.enter_context(FileLock(path))
            for number, child in enumerate(self._children):
                share = self.cases[number :: len(self._children)]
                task = {"gpu": gpu, "cases": [case.model_dump(mode="json") for case in share]}
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # it has died: the workers will do its share
                    child.stdin.write(json.dumps(task))
                    child.stdin.close()
                child.stdin = None
            ended = [self._ended(child, deadline) for child in self._children]
        return all(ended)

    def _ended(self, child: subprocess.Popen[str], deadline: float) -> bool:
        try:
            return child.wait(max(deadline - time.monotonic(), 0.0)) == 0
        except subprocess.TimeoutExpired:
            child.kill()
            return False


# ------------------------------------------------------------------------------------- in the child


def main() -> None:
    """Compile what standard input says; the exit code is the number of cases that could not be."""
    import torch

    from fa_core.ahead import compiling_for
    from fa_core.kernels.tuning import Gpu
    from profiling.measure.backends import bind, resolve
    from profiling.measure.inputs import inputs_of

    die_with_parent()
    meta = torch.device("meta")
    torch.set_grad_enabled(False)
    task = json.load(sys.stdin)
    gpu = task["gpu"]
    failed = 0
    with compiling_for(Gpu(gpu["shared_bytes"], tuple(gpu["capability"]), gpu["processors"])):
        for fields in task["cases"]:
            case = Case.model_validate(fields)
            try:
                backend = resolve(case, meta)
                inputs = backend.prepare(inputs_of(case, meta, 0))
                bind(backend.forward, case, inputs)()
            except Exception as error:  # the worker will meet it again, and make a row of it
                print(f"{case.label}: {error}", file=sys.stderr)
                failed += 1
    sys.exit(min(failed, 100))


if __name__ == "__main__":
    main()
