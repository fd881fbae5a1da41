"""Which code a measurement was made with: a hash of the sources that decide a backend's kernel.

It is stored with each measurement and compared with the checkout on load (flag `stale_kernel`).
Comments, docstrings and blank lines do not count, so that explaining a kernel ages no measurement.
The hash is taken over source text, not over an AST, because an AST's dump differs between Python
versions while a run made under one is read under another.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from functools import lru_cache
from pathlib import Path

from profiling.case import ATTENTION

_ROOT = Path(__file__).resolve().parents[1]

# Patterns under the checkout: what decides which instructions run on which tensors, from the mask
# (`band`, which says what pairs are computed at all) to the launch. Checks of arguments do not, nor does
# what is off unless asked for (autotuning). `naive_compiled` is `naive` through a compiler: same source.
_NAIVE = ("fa_core/naive.py", "fa_core/band.py")
# The portable kernels alone: those of one architecture (`kernels/hopper_*`) are another backend's.
_KERNELS = tuple(
    f"fa_core/kernels/{name}.py"
    for name in ("__init__", "backward", "dkdv", "forward", "primitives", "tuning")
)
_CALL = tuple(f"fa_core/{name}.py" for name in ("op", "launch", "packed", "plan", "band"))
_PORTABLE = (*_CALL, *_KERNELS)
# All of the kernels: what sends back to sinks runs on the portable ones. Between them `dispatch` chooses.
_FLASH = (*_CALL, "fa_core/dispatch.py", "fa_core/hopper*.py", "fa_core/kernels/*.py")
# Of the operations over rows; their baselines are PyTorch's own.
_ROWS = {
    "online": tuple(
        f"fa_core/softmax/{name}.py" for name in ("kernels", "selection", "tiles", "launches", "op")
    )
}
_SOURCES: dict[str, tuple[str, ...]] = {
    "naive": _NAIVE,
    "naive_compiled": _NAIVE,
    "tiled": ("fa_core/tiled.py", "fa_core/scores.py", "fa_core/band.py"),
    "flash": _FLASH,
    "flash_portable": _PORTABLE,
    "flash_hopper": _FLASH,
}


def kernel_hash(backend: str, operation: str = ATTENTION, *, root: Path = _ROOT) -> str:
    """12 hex digits of the sources of `backend`, or "" where there are none of ours (PyTorch's own).

    Args:
        backend: a backend's name, without its variant.
        operation: what it computes.
        root: the folder that holds `fa_core/`.
    """
    patterns = (_SOURCES if operation == ATTENTION else _ROWS).get(backend, ())
    found = [sorted(root.glob(pattern)) for pattern in patterns]
    if not found or not all(found):
        return ""
    stamps = []
    for path in (path for paths in found for path in paths):
        stat = path.stat()
        stamps.append((path.relative_to(root).as_posix(), stat.st_mtime_ns, stat.st_size))
    return _hash(root, tuple(stamps))


@lru_cache(maxsize=64)
def _hash(root: Path, stamps: tuple[tuple[str, int, int], ...]) -> str:
    """The hash of the files in `stamps`; their times and sizes are there to outdate the cache."""
    digest = hashlib.sha256()
    for name, _, _ in stamps:
        source = (root / name).read_text(encoding="utf-8")
        digest.update(f"{name}\0{_code(source)}\0".encode())
    return digest.hexdigest()[:12]


def _code(source: str) -> str:
    """`source` without comments, docstrings, blank lines and trailing space."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            assert first.end_lineno is not None
            for row in range(first.lineno, first.end_lineno + 1):
                lines[row - 1] = ""
    return "\n".join(stripped for line in lines if (stripped := line.rstrip()))
