"""The kernel hash: what it covers, what it ignores, and that every backend of ours has one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.case import BACKENDS
from profiling.fingerprint import kernel_hash

FLASH = {"flash", "flash_portable", "flash_hopper"}
OURS = {"naive", "naive_compiled", "tiled", *FLASH}
SOURCE = '''"""Module."""
# a comment
X = "# not a comment"


def f(a):
    """What f does."""
    return a + 1  # why
'''


def checkout(folder: Path, source: str = SOURCE) -> Path:
    """A folder with one file for every pattern."""
    (folder / "fa_core" / "kernels").mkdir(parents=True, exist_ok=True)
    names = ("naive.py", "band.py", "tiled.py", "scores.py", "op.py", "launch.py", "packed.py")
    portable = ("__init__", "backward", "dkdv", "forward", "primitives", "tuning")
    kernels = (f"kernels/{name}.py" for name in (*portable, "hopper_walk"))
    for name in (*names, "hopper.py", "dispatch.py", "plan.py", *kernels):
        (folder / "fa_core" / name).write_text(source, encoding="utf-8")
    return folder


def edit(path: Path, text: str) -> None:
    """Write `text`, with a time of change that differs even on a coarse clock."""
    later = path.stat().st_mtime_ns + 10**9
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(later, later))


@pytest.mark.parametrize("backend", [*BACKENDS, "module:function", ""])
def test_our_backends_have_a_hash_and_no_other(backend: str) -> None:
    """12 hex digits for what stands in fa_core, nothing for PyTorch's own or a stranger's function."""
    pattern = "[0-9a-f]{12}" if backend in OURS else ""
    assert re.fullmatch(pattern, kernel_hash(backend))


@pytest.mark.parametrize(
    "same",
    [
        SOURCE.replace("# a comment", "# another\n# on two lines"),
        SOURCE.replace("  # why", ""),
        SOURCE.replace("What f does.", "What f does,\n\n    on three lines."),
        SOURCE.replace("Module.", "Changed."),
        SOURCE.replace("\n\n\n", "\n"),
        SOURCE.replace("\n", "\r\n"),
    ],
)
def test_words_about_the_code_do_not_count(tmp_path: Path, same: str) -> None:
    """Comments, docstrings, blank lines and line endings leave the hash as it is."""
    root = checkout(tmp_path)
    before = kernel_hash("naive", root=root)
    edit(root / "fa_core" / "naive.py", same)
    assert kernel_hash("naive", root=root) == before


@pytest.mark.parametrize(
    "other",
    [
        SOURCE.replace("a + 1", "a + 2"),
        SOURCE.replace("# not a comment", "# a string"),
        SOURCE.replace("    return", "    pass\n    return"),
    ],
)
def test_code_counts(tmp_path: Path, other: str) -> None:
    """A changed operator, string or statement changes the hash."""
    root = checkout(tmp_path)
    before = kernel_hash("naive", root=root)
    edit(root / "fa_core" / "naive.py", other)
    assert kernel_hash("naive", root=root) != before


def test_each_backend_has_its_own_files(tmp_path: Path) -> None:
    """A kernel's change outdates all names of `flash` that may run it, a mask's all; a gone source leaves no
    hash.
    """
    root = checkout(tmp_path)
    before = {name: kernel_hash(name, root=root) for name in OURS}
    assert before["naive"] == before["naive_compiled"]
    edit(root / "fa_core" / "kernels" / "backward.py", "x = 1\n")
    after = {name: kernel_hash(name, root=root) for name in OURS}
    assert {name for name in OURS if after[name] != before[name]} == FLASH
    edit(root / "fa_core" / "kernels" / "hopper_walk.py", "y = 1\n")
    walked = {name: kernel_hash(name, root=root) for name in OURS}
    assert {name for name in OURS if walked[name] != after[name]} == {"flash", "flash_hopper"}
    edit(root / "fa_core" / "band.py", "z = 1\n")
    masked = {name: kernel_hash(name, root=root) for name in OURS}
    assert all(masked[name] != after[name] for name in OURS)  # which pairs are computed is everybody's
    edit(root / "fa_core" / "scores.py", "z = 1\n")
    assert {name for name in OURS if kernel_hash(name, root=root) != masked[name]} == {"tiled"}
    for name in ("hopper.py", "dispatch.py"):  # the choice between kernels is not the portable ones' either
        before_it = kernel_hash("flash_hopper", root=root)
        edit(root / "fa_core" / name, "z = 2\n")
        assert kernel_hash("flash_hopper", root=root) != before_it
        assert kernel_hash("flash", root=root) == kernel_hash("flash_hopper", root=root)
        assert kernel_hash("flash_portable", root=root) == masked["flash_portable"]
    (root / "fa_core" / "op.py").unlink()
    assert kernel_hash("flash", root=root) == ""


def test_renaming_a_file_counts(tmp_path: Path) -> None:
    """Names are part of the hash: moving code from one kernel to another is a change."""
    root = checkout(tmp_path)
    before = kernel_hash("flash_hopper", root=root)
    (root / "fa_core" / "kernels" / "hopper_walk.py").rename(root / "fa_core" / "kernels" / "hopper_steps.py")
    assert kernel_hash("flash_hopper", root=root) not in (before, "")


def test_it_needs_no_torch() -> None:
    """The dashboard computes hashes where torch is absent: none of it is imported."""
    code = (
        "import sys; from profiling.fingerprint import kernel_hash; kernel_hash('flash'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'triton', 'fa_core')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
