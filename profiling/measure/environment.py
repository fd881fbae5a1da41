"""The machine and the software a run is made with: what the worker sees, and what the checkout knows.

Nothing here names a host, a user or an absolute path.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiling.case import InputError
from profiling.records import Environment

CHECKOUT = Path(__file__).resolve().parents[2]
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def check_device(name: str) -> str:
    """Return a device's name, `cuda` spelt out as `cuda:0`.

    Raises:
        InputError: neither `cpu` nor `cuda:<number>`.
    """
    if not _DEVICE.fullmatch(name):
        raise InputError(f"device {name!r} is not known: must be cpu or cuda:0, cuda:1, ...")
    return "cuda:0" if name == "cuda" else name


def package_version(name: str) -> str:
    """The installed version of a distribution, or ""."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _own_version() -> str:
    if version := package_version("flashscope"):
        return version
    try:  # run from a checkout that was never installed
        return tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return ""


def worker_environment(device: Any) -> Environment:
    """What a worker with torch knows of its torch.device and of the software around it."""
    import torch

    shared: dict[str, Any] = {
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "triton_version": package_version("triton"),
        "flashscope_version": _own_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_name": cpu_name(),
        "cpu_count": cpu_count(),
    }
    if device.type == "cpu":
        return Environment(device_kind="cpu", device_name=shared["cpu_name"] or platform.machine(), **shared)

    from profiling.measure.telemetry import Telemetry, normal_uuid

    properties = torch.cuda.get_device_properties(device)
    uuid = normal_uuid(getattr(properties, "uuid", ""))
    return Environment(
        device_kind="cuda",
        device_name=properties.name,
        device_uuid=uuid,
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=properties.multi_processor_count,
        l2_bytes=getattr(properties, "L2_cache_size", None) or None,
        sram_bytes=getattr(properties, "shared_memory_per_block_optin", None),
        memory_bytes=properties.total_memory,
        cuda_version=torch.version.cuda or "",
        **Telemetry(uuid).limits(),
        **shared,
    )


def cpu_count() -> int:
    """The cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def git_state(checkout: Path = CHECKOUT) -> tuple[str, bool | None]:
    """(commit, whether the tree was clean) of a checkout; ("", None) where there is no git to ask.

    Untracked files count as unclean only where git does not ignore them.
    """
    if not (checkout / ".git").exists():
        return "", None
    try:
        commit = _git(checkout, "rev-parse", "HEAD")
        status = _git(checkout, "status", "--porcelain")
    except (OSError, subprocess.SubprocessError):
        return "", None
    return commit, not status


def _git(checkout: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()


def relative_arguments(argv: Sequence[str], checkout: Path = CHECKOUT, cwd: Path | None = None) -> list[str]:
    """The command line, with paths relative to the checkout and of others only the last name.

    `argv[0]` becomes the command's name, so that the line can be typed again in a checkout.
    """
    return ["flashscope", *(_relative(word, checkout, cwd or Path.cwd()) for word in argv[1:])]


def _relative(word: str, checkout: Path, cwd: Path) -> str:
    option, equals, value = word.partition("=")
    if option.startswith("--") and equals:
        return f"{option}={_relative(value, checkout, cwd)}"
    path = Path(word)
    if word.startswith("~"):
        return path.name
    if not path.is_absolute() and ".." not in path.parts and not (cwd / path).exists():
        return word
    whole = Path(os.path.normpath(cwd / path))
    if whole.is_relative_to(checkout):
        return whole.relative_to(checkout).as_posix()
    return whole.name if path.is_absolute() or ".." in path.parts else word


def with_provenance(
    environment: Environment, argv: Sequence[str], git_commit: str | None, checkout: Path = CHECKOUT
) -> Environment:
    """A worker's environment with what the parent adds.

    `git_commit` is for a copy without `.git`; where git can be asked it must agree.

    Raises:
        InputError: it disagrees, or is no commit id.
    """
    if git_commit is not None and not re.fullmatch(r"[0-9a-fA-F]{7,40}", git_commit):
        raise InputError(f"--git-commit {git_commit!r} is no commit id: must be 7 to 40 hex digits")
    commit, clean = git_state(checkout)
    if git_commit is not None:
        if commit and not commit.startswith(git_commit.lower()):
            raise InputError(f"--git-commit {git_commit} is not this checkout's: git says {commit}")
        commit = commit or git_commit.lower()
    return environment.model_copy(
        update={
            "git_commit": commit,
            "git_clean": clean,
            "argv": tuple(relative_arguments(argv, checkout)),
        }
    )
