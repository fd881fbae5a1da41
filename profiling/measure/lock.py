"""One run at a time on a device: a lock file per device in the system's temporary folder."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from profiling.case import InputError

_REMEDY = "make it writable, or set TMPDIR to a folder that every run on this machine uses"


def lock_path(device: str) -> Path:
    """The lock file of a device, named by its UUID, or `cpu`.

    Raises:
        InputError: this machine has no temporary folder that can be written to.
    """
    try:
        folder = tempfile.gettempdir()
    except OSError:
        raise InputError(f"there is no temporary folder for the device's lock file: {_REMEDY}") from None
    return Path(folder) / f"flashscope-{re.sub(r'[^A-Za-z0-9-]', '-', device)}.lock"


@contextlib.contextmanager
def device_lock(device: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a device; where another run has it, say so and wait. The system frees it when a process dies.

    Raises:
        InputError: the lock file cannot be written.
    """
    path = lock_path(device)
    lock = FileLock(path, mode=0o666)  # whoever measures next may be another user
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"Another run is measuring on this device ({path}); waiting for it to end. Ctrl-C gives up.")
            lock.acquire(poll_interval=0.5)
    except OSError as error:
        raise InputError(
            f"{path}: the device's lock file cannot be written ({error.strerror}): {_REMEDY}"
        ) from None
    try:
        yield
    finally:
        lock.release()
