"""Start the app as a user would, on a free port of 127.0.0.1; for the browser tests and the screenshots."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTLED = """() => {
  const app = document.querySelector('[data-testid=stApp]');
  return app && app.getAttribute('data-test-script-state') === 'notRunning'
    && app.getAttribute('data-test-connection-state') === 'CONNECTED'
    && !document.querySelector('[data-testid=stSkeleton]');
}"""


def chromium() -> str | None:
    """The system's Chromium, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def app(data: Path, log: Path, *options: str, port: int | None = None) -> Iterator[str]:
    """The app on this data folder; yields its address, and ends its process.

    Args:
        data: the data folder.
        log: the file for what the app prints.
        options: more of Streamlit's options.
        port: where it listens, if not on a free port.

    Raises:
        RuntimeError: it did not start; the message is what it printed.
    """
    port = free_port() if port is None else port
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), *options]
    command += ["--server.headless", "true", "--server.fileWatcherType", "none", "--", "--data", str(data)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server answers."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(url, timeout=5),
        ):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the app did not start:\n{log.read_text(encoding='utf-8', errors='replace')}")


def settle(page: Any, timeout_s: float = 60) -> None:
    """Wait until the script has run to its end and nothing on the page is a placeholder any more."""
    page.get_by_role("heading").first.wait_for(timeout=timeout_s * 1000)
    page.wait_for_timeout(150)  # until a click has reached the app
    page.wait_for_function(SETTLED, timeout=timeout_s * 1000)
