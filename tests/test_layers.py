"""Who may import whom: the table of CONTRIBUTING.md, held against every import in the code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE_FOLDERS = ("fa_core", "profiling", "tests")
CODE_SUFFIXES = {".py", ".pyi", ".ipynb", ".cu", ".cuh", ".cpp", ".c", ".h", ".js", ".ts", ".rs"}
MAX_LINES = 500


class Row(NamedTuple):
    """A row of the table. `lazy` holds what may be imported inside functions only."""

    modules: tuple[str, ...]
    libraries: tuple[str, ...]
    ours: tuple[str, ...]
    lazy: tuple[str, ...]


class Import(NamedTuple):
    """One import: the module asked for, whether it runs on import of its file, and the line."""

    target: str
    eager: bool
    line: int


def table() -> list[Row]:
    """The import table of CONTRIBUTING.md, top to bottom."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## What may import what", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [
        Row(*(tuple(re.findall(r"`([^`]+)`", cell)) for cell in line.strip("|").split("|"))) for line in lines
    ]


def code_files() -> list[Path]:
    """Every file of code that git tracks; without git, every one that lies here outside of environments."""
    if (ROOT / ".git").exists():
        git = ["git", "ls-files", "-z"]
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = []
        for folder, folders, names in os.walk(ROOT):
            here = Path(folder)
            folders[:] = [
                f for f in folders if not f.startswith(".") and not (here / f / "pyvenv.cfg").exists()
            ]
            paths += [here / name for name in names]
    return sorted(path for path in paths if path.suffix in CODE_SUFFIXES and path.exists())


def module_name(path: Path) -> str:
    """`profiling/model/flops.py` -> `profiling.model.flops`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_name(path): path
    for path in (ROOT / "app.py", *(ROOT / "fa_core").rglob("*.py"), *(ROOT / "profiling").rglob("*.py"))
}
ROWS = {name: row for row in table() for name in row.modules}


def within(module: str, name: str) -> bool:
    """Whether a module is the named one or inside it."""
    return module == name or module.startswith(f"{name}.")


def owner(module: str) -> str:
    """The table's longest name that a module is within; `profiling` and `fa_core` are only themselves."""
    names = [name for name in ROWS if module == name or ("." in name and within(module, name))]
    return max(names, key=len, default="")


def imports(path: Path, module: str) -> Iterator[Import]:
    """All imports in a file, also by `importlib.import_module("literal")`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def visit(node: ast.AST, eager: bool) -> Iterator[Import]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            eager = False
        if isinstance(node, ast.If) and ast.unparse(node.test).removeprefix("typing.") == "TYPE_CHECKING":
            for child in node.body:
                yield from visit(child, False)
            for child in node.orelse:
                yield from visit(child, eager)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, eager, node.lineno)
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in FILES else base, eager, node.lineno)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield Import(str(first.value), eager, node.lineno)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, eager)

    yield from visit(tree, True)


def problems(module: str) -> list[str]:
    """What a module imports and may not, a sentence each."""
    row = ROWS[owner(module)]
    out = []
    for target, eager, line in imports(FILES[module], module):
        top = target.partition(".")[0]
        name = owner(target) if target in FILES else top
        if name == owner(module) or (top in sys.stdlib_module_names and target not in FILES):
            continue
        if name not in (*row.libraries, *row.ours) and (eager or name not in row.lazy):
            how = "at import" if eager else "inside a function"
            out.append(f"{FILES[module].relative_to(ROOT)}:{line} imports {target} {how}")
    return out


# ------------------------------------------------------------------------------------------------- table


def test_every_module_has_a_row_and_every_row_a_module() -> None:
    """The table speaks of all modules of fa_core and profiling and of app.py, and of no others."""
    assert [module for module in FILES if not owner(module)] == []
    assert set(ROWS) <= set(FILES)


def test_modules_are_imported_from_rows_above() -> None:
    """The arrows point one way: what a row lists of ours stands in an earlier row."""
    seen: set[str] = set()
    for row in table():
        listed = {*row.ours, *(name for name in row.lazy if name in FILES)}
        assert listed <= seen, row.modules
        seen |= set(row.modules)


def test_every_library_of_a_row_is_used_there() -> None:
    """A permission that nobody needs any more is taken out of the table."""
    for row in table():
        mine = [module for module in FILES if owner(module) in row.modules]
        used = {x.target.partition(".")[0] for module in mine for x in imports(FILES[module], module)}
        listed = {name for name in (*row.libraries, *row.lazy) if name not in FILES}
        assert listed <= used, row.modules


# ------------------------------------------------------------------------------------------------ arrows


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_module_imports_what_its_row_lists(module: str) -> None:
    """Libraries and modules of ours, eager and lazy, are those of the table."""
    assert problems(module) == []


def test_the_kernels_know_nothing_of_profiling() -> None:
    """No module of fa_core imports profiling, however lazily."""
    found = [(m, x.target) for m in FILES if within(m, "fa_core") for x in imports(FILES[m], m)]
    assert [pair for pair in found if within(pair[1], "profiling")] == []


def test_implementations_do_not_import_one_another() -> None:
    """naive, tiled, sdpa and the kernels share no more than the band: one cannot lend another its fault."""
    alone = {
        "fa_core.naive": ("fa_core.band",),
        "fa_core.tiled": ("fa_core.band", "fa_core.scores"),
        "fa_core.sdpa": ("fa_core.band",),
        "fa_core.kernels": (),
    }
    for name, shared in alone.items():
        for module in (m for m in FILES if within(m, name)):
            targets = [x.target for x in imports(FILES[module], module) if within(x.target, "fa_core")]
            assert all(any(within(target, free) for free in (name, *shared)) for target in targets), module


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import torch", ["profiling/case.py:1 imports torch at import"]),
        ("def f():\n    import torch", ["profiling/case.py:2 imports torch inside a function"]),
        ("from profiling import store", ["profiling/case.py:1 imports profiling.store at import"]),
        ("from profiling.store import frame", ["profiling/case.py:1 imports profiling.store at import"]),
        ("from . import store", ["profiling/case.py:1 imports profiling.store at import"]),
        ("from .model import flops", ["profiling/case.py:1 imports profiling.model.flops at import"]),
        (
            "import importlib\nimportlib.import_module('torch')",
            ["profiling/case.py:2 imports torch at import"],
        ),
        ("if TYPE_CHECKING:\n    import pandas", ["profiling/case.py:2 imports pandas inside a function"]),
        (
            "try:\n    import torch\nexcept ImportError:\n    pass",
            ["profiling/case.py:2 imports torch at import"],
        ),
        ("class A:\n    import torch", ["profiling/case.py:2 imports torch at import"]),
        ("import pydantic.fields, json, os.path", []),
    ],
)
def test_a_forbidden_import_is_seen(
    source: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However an import is written, in whatever block, it is held against the table."""
    (tmp_path / "profiling").mkdir()
    path = tmp_path / "profiling" / "case.py"
    path.write_text(source, encoding="utf-8")
    monkeypatch.setitem(FILES, "profiling.case", path)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert problems("profiling.case") == said


# --------------------------------------------------------------------------------- what really gets loaded


def loaded(statement: str, blocked: tuple[str, ...] = ()) -> set[str]:
    """The top-level modules in `sys.modules` after a statement in a fresh interpreter."""
    script = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
{statement}
print(*{{name.partition(".")[0] for name in sys.modules}})
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


WITHOUT_MEASURE = ("torch", "triton", "pynvml", "psutil")


def test_the_dashboard_loads_without_torch() -> None:
    """Every page imports where torch, triton, NVML and psutil are not installed."""
    every = """
import importlib
from profiling.pages import registry
assert len(registry.ENTRIES) >= 8
for entry in registry.ENTRIES:
    assert importlib.import_module(f"profiling.pages.{entry.module}").render
"""
    found = loaded(every, WITHOUT_MEASURE)
    assert "streamlit" in found
    assert not found & {*WITHOUT_MEASURE, "fa_core"}


def test_the_parent_of_the_workers_needs_no_torch() -> None:
    """What `flashscope run` and `doctor` import is without torch: only a worker loads it."""
    names = "profiling.__main__, profiling.runner, profiling.measure.doctor"
    assert not loaded(f"import {names}", WITHOUT_MEASURE) & {*WITHOUT_MEASURE, "fa_core", "streamlit"}


def test_the_command_line_starts_light() -> None:
    """`flashscope --help` waits for no table, chart, dashboard or torch."""
    heavy = {"torch", "pandas", "numpy", "scipy", "plotly", "streamlit", "fa_core", "pydantic"}
    assert not loaded("import profiling.__main__") & heavy


def test_fa_core_loads_without_triton() -> None:
    """`import fa_core` needs torch alone, and brings nothing of profiling."""
    pytest.importorskip("torch")
    assert not loaded("import fa_core", ("triton",)) & {"triton", "profiling", "streamlit", "pandas"}


# ------------------------------------------------------------------------------------------------- shape


def test_there_is_no_code_outside_the_fixed_top_level() -> None:
    """Code lies in app.py, fa_core, profiling and tests, and nowhere else."""
    strange = [
        path.relative_to(ROOT).as_posix()
        for path in code_files()
        if path != ROOT / "app.py" and path.relative_to(ROOT).parts[0] not in CODE_FOLDERS
    ]
    assert strange == []


def test_modules_are_short() -> None:
    """No module has 500 lines: a longer one lacks a noun."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in code_files()}
    assert {path.relative_to(ROOT).as_posix(): n for path, n in lengths.items() if n >= MAX_LINES} == {}


def test_only_tests_switch_the_interpreter_on() -> None:
    """No module sets TRITON_INTERPRET: what it computes is for tests, never a measurement."""
    assignment = re.compile(r"""TRITON_INTERPRET(["']\]?\s*[=,:]\s*["']|=)1""")
    assert [m for m, path in FILES.items() if assignment.search(path.read_text(encoding="utf-8"))] == []
