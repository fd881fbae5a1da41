"""What a page wants computed with torch: a `flashscope` command in a process of its own, read as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from profiling.case import InputError
from profiling.pages.jobs import ROOT

TIMEOUT_S = 180


def command(words: Sequence[str]) -> list[str]:
    """The command line of `flashscope WORDS`, as a page runs it."""
    return [sys.executable, "-m", "profiling", *words]


def computed(words: Sequence[str]) -> Any:
    """What `flashscope WORDS` prints, read as JSON.

    Raises:
        InputError: the process failed, or took too long; with what it said last.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    # Small tensors: more threads would only wait for one another, and for a measurement on the same CPU.
    environment["OMP_NUM_THREADS"] = "1"
    try:
        done = subprocess.run(
            command(words),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the computation took more than {TIMEOUT_S} s and was ended") from None
    except OSError as error:
        raise InputError(f"the computation could not be started: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        # Compilers have words of their own at the end; what the command itself says comes first.
        said = [line for line in lines if line.startswith("flashscope: ")] or lines
        raise InputError(f"the computation failed: {said[-1] if said else f'status {done.returncode}'}")
    return json.loads(done.stdout)
