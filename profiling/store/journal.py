"""A file that one process appends to, line by line, and what can befall it meanwhile.

The process holds it: a second one is refused, and the system lets go of it when the process dies, however
it dies. Lines are synced before `write` returns. What the disk did not take whole is cut off again, so that
the file always ends with the last line that is safe.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from profiling.case import InputError


class WriteError(InputError):
    """The file takes no more lines, because of `why`: its disk is full, say, or it was deleted."""

    def __init__(self, path: Path, why: str, then: str) -> None:
        super().__init__(f"{path}: {why}: {then}")
        self.why = why


class Journal:
    """An open file of lines. Make one with `create` or `open`."""

    def __init__(self, path: Path, handle: IO[bytes]) -> None:
        self.path = path
        self._handle: Any = handle
        self._size = os.fstat(handle.fileno()).st_size  # up to here everything is synced

    @classmethod
    def create(cls, path: Path, first: str) -> Journal:
        """Make the file and the folders above it, and write its first line; if that fails, there is no file.

        Raises:
            InputError: the file exists already, or cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("x+b", buffering=0)
        except FileExistsError:
            raise InputError(f"{path}: exists already; resume it or choose another run id") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        journal = cls(path, handle)
        try:
            _claim(handle, path)
            journal.write([first])
            _sync_folder(path.parent)
        except BaseException as error:  # without its first line nobody could go on with it
            journal.close()
            with contextlib.suppress(OSError):
                path.unlink()
            if isinstance(error, WriteError):
                raise InputError(f"{path}: cannot be written: {error.why}") from None
            raise
        return journal

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Take hold of a file that is there. Nothing in it is changed yet, see `cut_torn_tail`.

        Raises:
            InputError: it is not there, cannot be written, or another process holds it.
        """
        try:
            handle = path.open("r+b", buffering=0)
        except FileNotFoundError:
            raise InputError(f"{path}: no such run file") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            _claim(handle, path)
        except BaseException:
            handle.close()
            raise
        return cls(path, handle)

    def write(self, lines: Sequence[str]) -> None:
        """Append lines, and return when they are on the disk.

        Raises:
            WriteError: they are not, and the file is as long as before (or no longer the same file).
        """
        try:
            self._check_unchanged()
            data = memoryview("".join(line + "\n" for line in lines).encode("utf-8"))
            size = self._size + len(data)
            self._handle.seek(self._size)
            while data:  # an unbuffered write may take only a part
                data = data[self._handle.write(data) :]
            os.fsync(self._handle.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # what cannot be cut off now, is when the run is resumed
                self._handle.truncate(self._size)
                os.fsync(self._handle.fileno())
            then = "the run ends here, the rows written before are safe, and --resume goes on with them"
            raise WriteError(self.path, error.strerror or str(error), then) from None
        self._size = size

    def cut_torn_tail(self) -> None:
        """Let the file end in a newline: what follows the last one is cut.

        A last line that lacks only its newline is whole, and keeps its place.

        Raises:
            WriteError: the disk does not take it.
        """
        self._handle.seek(0)
        data = self._handle.read()
        whole = data.rfind(b"\n") + 1
        if whole == len(data):
            return
        if _is_object(data[whole:]):
            self.write([""])
            return
        try:
            self._handle.truncate(whole)
        except OSError as error:
            then = "its last line is torn and cannot be cut off"
            raise WriteError(self.path, error.strerror or str(error), then) from None
        self._size = whole

    def close(self) -> None:
        """Let go of the file; nothing is lost without it."""
        self._handle.close()

    def _check_unchanged(self) -> None:
        ours = os.fstat(self._handle.fileno())
        try:
            same = os.path.samestat(os.stat(self.path), ours)
        except FileNotFoundError:
            same = False
        if not same:
            why = "was deleted or replaced while this run wrote to it"
            raise WriteError(self.path, why, "the run ends here, and its rows are gone")
        if ours.st_size != self._size:
            why = "was changed by another program while this run wrote to it"
            raise WriteError(self.path, why, "the run ends here, and --resume goes on with what is in it")


def _is_object(line: bytes) -> bool:
    """Whether a line is a whole JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _claim(handle: IO[bytes], path: Path) -> None:
    """Hold a file for as long as it is open."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where nothing is measured
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"{path}: another process writes to it: wait until that run has ended, or stop it"
        ) from None
    except OSError:  # a file system that knows no locks
        return


def _sync_folder(folder: Path) -> None:
    """Make a new file's name as safe as what is in it; not every file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
