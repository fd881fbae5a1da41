"""The texts say what the code does: commands, columns, words, dependencies, links."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import typer.main

from profiling import __version__
from profiling.__main__ import app
from profiling.analysis.compare import VERDICTS as COMPARED
from profiling.analysis.crossover import VERDICTS, crossovers
from profiling.case import BACKENDS, CLOCKS
from profiling.grid import Sweep, load_sweep
from profiling.model.traffic import Traffic
from profiling.records import COLUMNS, FLAGS, MEM_METHODS, STATUSES
from profiling.store import frame, load_run, samples_frame

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md")
# How a column's unit may be written in the text, by the last word of its name.
UNITS = {"ms": ("ms",), "mj": ("mJ",), "bytes": ("bytes", "byte", "B"), "tflops": ("TFLOP/s",)}


def read(name: str) -> str:
    """A text of the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of that language in a text."""
    return re.findall(rf"^```{language}\n(.*?)^```", read(name), re.MULTILINE | re.DOTALL)


def command_lines(name: str) -> list[str]:
    """Every line of a text's shell blocks."""
    return [line for block in blocks(name, "sh") for line in block.splitlines() if line.strip()]


def section(name: str, title: str) -> str:
    """The part of a text under a heading of second level."""
    return read(name).split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


# ------------------------------------------------------------------------------------- the two commands


def test_the_readme_has_its_lines_and_each_makes_its_own_environment() -> None:
    """One line opens the dashboard with `measure`, one without torch, one tests; each is complete."""
    lines = [line for line in command_lines("README.md") if ".venv" in line]
    start = "test -d .venv || python3 -m venv .venv; .venv/bin/pip install -q -e "
    made = [line.removeprefix(start) for line in lines]
    assert made == [
        "'.[measure]' && .venv/bin/streamlit run app.py",
        ". && .venv/bin/streamlit run app.py",
        "'.[test]' && .venv/bin/python -m pytest",
    ]


def test_ci_runs_the_readmes_own_test_line() -> None:
    """What .ci/run calls is the README's line, taken from there and not copied."""
    printed = subprocess.run(
        ["bash", ".ci/run", "--test-line"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert printed in command_lines("README.md")
    assert printed.endswith("-m pytest")
    assert printed not in read(".ci/run")


def test_ci_is_executable_and_pins_exact_versions() -> None:
    """Each constraint is one exact version, without hashes, addresses or local versions."""
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    lines = [line for line in read(".ci/constraints.txt").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", line)] == []
    assert len({line.partition("==")[0] for line in lines}) == len(lines)
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(lines)


def test_every_dependency_is_constrained() -> None:
    """CI resolves nothing anew: each direct dependency but those of `cluster` has its exact version."""
    pinned = {line.partition("==")[0] for line in read(".ci/constraints.txt").splitlines()}
    assert dependencies() - {"ray"} - pinned == set()


# --------------------------------------------------------------------------------------------- commands


COMMANDS: dict[str, click.Command] = typer.main.get_group(app).commands  # pyright: ignore[reportAssignmentType]


def flashscope_lines() -> list[list[str]]:
    """The words of every `flashscope ...` line in the shell blocks of the texts."""
    lines = [shlex.split(line) for name in ("README.md", "CONTRIBUTING.md") for line in command_lines(name)]
    return [words[1:] for words in lines if words[0] == "flashscope"]


@pytest.mark.parametrize("words", flashscope_lines(), ids=" ".join)
def test_every_command_line_of_the_texts_is_valid(words: list[str]) -> None:
    """The command exists and takes these arguments and options, and sweeps that are named are there."""
    command = COMMANDS[words[0]]
    with command.make_context(words[0], words[1:]):
        pass
    assert [word for word in words if word.startswith("data/sweeps/") and not (ROOT / word).exists()] == []


def test_the_readme_lists_every_command() -> None:
    """The table under Commands has each subcommand once, and none that does not exist."""
    listed = re.findall(r"^\| `flashscope ([a-z]+)", section("README.md", "Commands"), re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_the_readmes_sweep_loads(tmp_path: Path) -> None:
    """The example of an own sweep is one, and has every combination of its axes."""
    (text,) = blocks("README.md", "toml")
    path = tmp_path / "ours.toml"
    path.write_text(text, encoding="utf-8")
    sweep = load_sweep(path)
    assert isinstance(sweep, Sweep)
    assert len(sweep.cases()) == 3 * 2 * 7


def test_the_readmes_python_runs() -> None:
    """The examples of fa_core run as they stand, one after the other, and give what their comments say."""
    torch = pytest.importorskip("torch")
    text, of_rows = blocks("README.md", "python")
    names: dict[str, object] = {}
    exec(compile(text, "README.md", "exec"), names)
    assert names["q"].grad is not None  # type: ignore[attr-defined]
    assert names["out"].shape == names["q"].shape  # type: ignore[attr-defined]
    assert names["lse"].shape == names["q"].shape[:3]  # type: ignore[attr-defined]
    exec(compile(of_rows, "README.md", "exec"), names)
    assert names["loss"].dtype == torch.float32  # type: ignore[attr-defined]
    assert names["logits"].grad is not None  # type: ignore[attr-defined]
    torch.testing.assert_close(names["weights"].sum(1), torch.ones_like(names["loss"]).expand(8))  # type: ignore[attr-defined]
    assert names["experts"].shape == (8, 8)  # type: ignore[attr-defined]


def test_modules_named_as_commands_exist() -> None:
    """Each `python FILE` of the texts is there."""
    found = re.findall(r"\bpython ((?:tests|profiling)/\S+\.py)", "\n".join(read(name) for name in TEXTS))
    assert found
    assert [name for name in found if not (ROOT / name).exists()] == []


# ------------------------------------------------------------------------------------- columns and words


def column_rows() -> dict[str, str]:
    """Column name to the rest of its table row in data/README.md; a row may name several columns."""
    found = {}
    for line in read("data/README.md").splitlines():
        if line.startswith("|"):
            first, _, rest = line.strip("|").partition("|")
            found |= dict.fromkeys(re.findall(r"`([a-z0-9_]+)`", first), rest)
    return found


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_is_documented_with_its_unit(name: str) -> None:
    """data/README.md has a row that describes the column, and names the unit that its name ends in."""
    rest = column_rows().get(name, "")
    assert len(rest.strip(" |")) > 5, f"{name} is not described"
    unit = UNITS.get(name.rsplit("_", 1)[-1])
    assert unit is None or any(re.search(rf"\b{re.escape(word)}\b", rest) for word in unit), rest


@pytest.mark.parametrize("word", [*CLOCKS, *STATUSES, *FLAGS, *VERDICTS, *COMPARED, *MEM_METHODS])
def test_every_word_is_explained(word: str) -> None:
    """Clocks, statuses, flags, verdicts and methods are under Words of CONTRIBUTING.md."""
    assert f"`{word}`" in section("CONTRIBUTING.md", "Words")


def test_the_readme_names_the_backends_and_the_four_models() -> None:
    """Each way to call attention, and each traffic model, is in the README."""
    text = read("README.md")
    assert [name for name in BACKENDS if name != "naive_compiled" and f"`{name}`" not in text] == []
    models = Traffic._fields
    assert set(models) == {"naive", "tile", "dram", "compulsory"}
    assert [name for name in models if f"| `{name}` bytes |" not in text] == []


# --------------------------------------------------------------------------------------------- features


def feature_rows() -> list[list[str]]:
    """The cells of each row of the README's feature table, its head first."""
    lines = [line for line in section("README.md", "Features").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def test_every_feature_names_its_tests() -> None:
    """A cell of ours that is not a plain `no` has a test in the last column; no row lacks a cell."""
    head, *rows = feature_rows()
    assert len(rows) >= 25
    assert [row[0] for row in rows if len(row) != len(head) or "" in row[:-1]] == []
    assert [row[0] for row in rows if (row[1] == "no") == ("::" in row[-1])] == []


def test_the_tests_that_features_name_exist() -> None:
    """Each `file::test` of the table is a test function of that file, and nothing else stands there."""
    for name, *_, tests in feature_rows()[1:]:
        named = re.findall(r"`([^`]*)`", tests)
        assert re.sub(r"`[^`]*`|, ", "", tests) == "", name
        for place in named:
            file, _, test = place.partition("::")
            tree = ast.parse(read(f"tests/fa_core/{file}"))
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


def test_the_table_of_speeds_is_the_committed_runs() -> None:
    """Every number of the README's table comes from `h200-standard`, and its commit is named."""
    made = runpy.run_path(str(ROOT / "tests" / "benchmarks" / "readme_table.py"))
    run = made["load_run"](made["RUN"])
    text = section("README.md", "How fast `flash` is")
    assert made["table"](run) in text
    assert f"commit {run.header.environment.git_commit[:7]}" in text


def test_the_table_of_peers_is_the_committed_runs() -> None:
    """Every number of the table beside others comes from `h200-peers`, and its commit is named."""
    made = runpy.run_path(str(ROOT / "tests" / "benchmarks" / "peers_table.py"))
    run = made["load_run"](ROOT / "data" / "samples" / "h200-peers.jsonl")
    text = section("README.md", "How fast `flash` is")
    assert made["table"](run) in text
    assert f"commit {run.header.environment.git_commit[:7]}" in text
    below = [
        float(cell)
        for line in made["shapes_table"](run).splitlines()
        if "each shape" in line
        for cell in line.split("|")[5:-1]
        if cell.strip() and float(cell) < 1.15
    ]
    assert sorted(below) == [0.98]  # as the text says


def test_the_table_beyond_attention_is_the_committed_run() -> None:
    """Every number of the table of losses, gates and samplers comes from `h200-softmax`."""
    made = runpy.run_path(str(ROOT / "tests" / "benchmarks" / "readme_table.py"))
    run = made["load_run"](made["ROWS_RUN"])
    text = section("README.md", "How fast `flash` is").split("\n### Beyond attention\n", 1)[1]
    assert made["rows_table"](run) in text
    assert f"commit {run.header.environment.git_commit[:7]}" in text


def test_what_is_said_of_decoding_is_the_committed_run() -> None:
    """How many points of `h200-decode` are ahead, behind and undecided, beside FlashAttention-2 and SDPA."""
    run = load_run(ROOT / "data" / "samples" / "h200-decode.jsonl")
    rows, samples = frame([run]), samples_frame([run])

    def signs(baseline: str) -> tuple[int, int, int]:
        found = crossovers(rows, samples, baseline=baseline, candidate="flash", clock="wall")
        of_points = [point.sign for x in found for point in x.points]
        return of_points.count(1), of_points.count(-1), len(of_points)

    assert (signs("sdpa_flash"), signs("sdpa")) == ((22, 0, 34), (12, 5, 24))
    text = section("README.md", "How fast `flash` is")
    assert "at 22 of 34 points, and behind at none" in text
    assert "it is ahead at 12 of 24, and behind at 5" in text


# ------------------------------------------------------------------------------- dependencies and version


def project() -> dict:
    """pyproject.toml's table `project`."""
    return tomllib.loads(read("pyproject.toml"))["project"]


def dependencies() -> set[str]:
    """The names of all direct dependencies, of the extras too."""
    extras = [spec for specs in project()["optional-dependencies"].values() for spec in specs]
    names = {re.split(r"[\s<>=!~;\[]", spec, maxsplit=1)[0] for spec in [*project()["dependencies"], *extras]}
    return names - {"flashscope"}


def test_every_dependency_has_its_reason() -> None:
    """CONTRIBUTING.md's table has each dependency once with a reason, and none that is not one."""
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (.+) \|$", section("CONTRIBUTING.md", "Dependencies"), re.MULTILINE
    )
    assert sorted(name for name, _ in rows) == sorted(dependencies())
    assert [name for name, reason in rows if len(reason) < 5] == []


def test_the_version_is_one() -> None:
    """pyproject.toml, the package and the changelog's newest release name the same version."""
    newest = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", read("CHANGELOG.md"), re.MULTILINE)[0]
    assert __version__ == project()["version"] == newest


def test_the_python_cap_has_its_reason() -> None:
    """The cap below 3.15 is in pyproject.toml, and both places say why."""
    assert project()["requires-python"] == ">=3.11,<3.15"
    assert "PEP 799" in read("pyproject.toml")
    assert "PEP 799" in read("CONTRIBUTING.md")


# ----------------------------------------------------------------------------------------------- links


def anchor(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", TEXTS)
def test_local_links_resolve(name: str) -> None:
    """Each picture and link to a file of this checkout, and each anchor, is there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", read(name)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, place = target.partition("#")
        found = (ROOT / name).parent / path if path else ROOT / name
        if not found.exists() or (
            place
            and place not in map(anchor, re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.M))
        ):
            broken.append(target)
    assert broken == []


def test_what_is_committed_names_no_machine() -> None:
    """Texts, sweeps and run files hold no path of somebody's home, temporary or system folder."""
    paths = [ROOT / name for name in TEXTS]
    paths += [
        *(ROOT / "data").glob("samples/*"),
        *(ROOT / "data").glob("sweeps/*"),
        *(ROOT / ".ci").iterdir(),
    ]
    machine = re.compile(r"(?<![\w.:/~!-])/(?:home|root|Users|tmp|mnt|opt|usr|var)/\w")
    found = {p.relative_to(ROOT).as_posix(): machine.findall(p.read_text(encoding="utf-8")) for p in paths}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_memory_from_another_run_says_from_which() -> None:
    """data/README.md counts the rows of committed runs whose peak memory is another's; each line names it."""
    lines = [
        json.loads(line)
        for path in sorted((ROOT / "data" / "samples").glob("h200-*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith('{"kind":"addition"')
    ]
    sources = [line["source"] for line in lines if line.get("peak_mem_bytes") is not None]
    assert all(re.match(r"the run h200-\w+ of commit [0-9a-f]{7}: ", source) for source in sources)
    assert f"{len(sources)} rows, forwards of `flash`" in read("data/README.md")
