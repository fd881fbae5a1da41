"""Child processes that measure or compile: what they inherit, and that they end with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

# Triton's interpreter is no measurement, and an autotuned tile would not be the one that a row names.
_NOT_INHERITED = ("TRITON_INTERPRET", "FLASHSCOPE_AUTOTUNE")
_PR_SET_PDEATHSIG = 1


def child_environment(**more: str) -> dict[str, str]:
    """The environment variables of a child: this process' own but for `_NOT_INHERITED`, and `more`."""
    inherited = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    # Compiling in a pool would leave idle processes beside what is measured.
    return inherited | {"TORCHINDUCTOR_COMPILE_THREADS": "1"} | more


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, SIGKILL included; elsewhere, nothing."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)
