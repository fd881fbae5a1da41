"""A PostgreSQL of the tests' own: a new cluster in a temporary folder, on 127.0.0.1, ended with the tests."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

TIMEOUT_S = 60


def programs() -> Path | None:
    """The folder with `initdb` and `postgres`: on PATH, or where Debian puts the newest version."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    places = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
    return max(places, key=lambda path: int(path.parent.name), default=None)


def user() -> str | None:
    """Who runs the server, which refuses to run as root: None for the tests' own user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database; its server is ended afterwards and its folder removed.

    Raises:
        subprocess.CalledProcessError: it could not be made or started; the log is printed.
    """
    bin_folder, as_user = programs(), user()
    assert bin_folder is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a socket's path has at most 107 characters
    try:
        if as_user:
            shutil.chown(folder, as_user)
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
        )
        cluster, log = folder / "cluster", folder / "log"

        def run(program: str, *arguments: str) -> None:
            subprocess.run(
                [str(bin_folder / program), "-D", str(cluster), *arguments],
                cwd=folder, user=as_user, env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
                timeout=TIMEOUT_S, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip

        run("initdb", "--auth=trust", "--username=tester", "--encoding=UTF8", "--no-sync")
        try:
            run("pg_ctl", "start", "-w", "-l", str(log), "-o", options)
        except subprocess.CalledProcessError:
            print(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "no log")
            raise
        try:
            yield f"postgresql+psycopg://tester@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
