"""Claims about sweeps that the program writes: they read back the same, and a command needs no file."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import synthetic_case

from profiling import runner
from profiling.case import (
    BACKENDS,
    DIRECTIONS,
    DTYPE_BYTES,
    LAYOUTS,
    MOST_KEPT,
    ROW_BACKENDS,
    ROW_OPERATIONS,
    ROW_VARIANTS,
    TILED_BACKENDS,
    Case,
    InputError,
    Protocol,
)
from profiling.grid import Sweep, load_sweep
from profiling.paths import DATA_DIR
from profiling.sweep_text import command, sweep_of, sweep_toml

SWEEPS = sorted((DATA_DIR / "sweeps").glob("*.toml"))


@st.composite
def row_cases(draw: st.DrawFn) -> Case:
    """Any case of an operation over rows."""
    operation = draw(st.sampled_from(tuple(ROW_OPERATIONS)))
    backend = draw(st.sampled_from(ROW_BACKENDS))
    classes = draw(st.integers(1, 2**20))
    variants = ("", *ROW_VARIANTS[operation].get(backend, ()))
    return Case(
        operation=operation,
        backend=backend,
        variant=draw(st.sampled_from(variants)),
        direction=draw(st.sampled_from(DIRECTIONS)),
        dtype=draw(st.sampled_from(tuple(DTYPE_BYTES))),
        batch=draw(st.integers(0, 2**20)),
        seq_len_q=1,
        seq_len_k=classes,
        head_dim=1,
        head_dim_v=1 if operation == "cross_entropy" else draw(st.integers(1, min(classes, MOST_KEPT))),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case of attention, of a backend that is known here."""
    backend = draw(st.sampled_from([name for name in BACKENDS if name != "online"]))
    kv_heads, groups = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    length, width = st.integers(0, 2**20), st.integers(1, 512)
    causal = draw(st.booleans())
    side = st.none() | length
    tile = draw(st.none() | st.tuples(width, width)) if backend in TILED_BACKENDS else None
    return Case(
        backend=backend,
        variant=draw(st.sampled_from(("", "fill"))) if backend == "naive" else "",
        direction=draw(st.sampled_from(DIRECTIONS)),
        dtype=draw(st.sampled_from(tuple(DTYPE_BYTES))),
        batch=draw(st.integers(0, 64)),
        heads=kv_heads * groups,
        kv_heads=kv_heads,
        seq_len_q=draw(length),
        seq_len_k=draw(length),
        head_dim=draw(width),
        head_dim_v=draw(width),
        layout=draw(st.sampled_from(LAYOUTS)),
        causal=causal,
        window_left=draw(side),
        window_right=None if causal else draw(side),
        softcap=draw(st.none() | st.floats(1e-3, 1e6)),
        bias=draw(st.booleans()),
        sinks=draw(st.booleans()),
        alibi=draw(st.booleans()),
        tile_m=None if tile is None else tile[0],
        tile_n=None if tile is None else tile[1],
    )


def read(text: str, folder: Path) -> Sweep:
    """A sweep as `flashscope run` reads it."""
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return load_sweep(path)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_reads_back_the_same(path: Path, tmp_path: Path) -> None:
    """Axes, protocol, windows, tables of limits: of every committed sweep nothing is lost."""
    sweep = load_sweep(path)
    assert read(sweep_toml(sweep), tmp_path) == sweep


@given(st.text())
def test_any_description_reads_back(text: str) -> None:
    """Quotes, line ends, controls and all of Unicode that a file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return
    sweep = Sweep(name="x", description=text, group=())
    assert Sweep.model_validate(tomllib.loads(sweep_toml(sweep)) | {"group": ()}) == sweep


@given(cases() | row_cases())
def test_the_sweep_of_a_case_has_that_case_alone(case: Case) -> None:
    """Whatever sets a case apart is in its sweep."""
    sweep = sweep_of(case)
    assert sweep.cases() == [case]
    assert Sweep.model_validate(tomllib.loads(sweep_toml(sweep))) == sweep


@pytest.mark.parametrize(
    "case",
    [
        synthetic_case("flash", 128).model_copy(update={"backend": "'; rm -rf / #"}),
        synthetic_case("flash", 128).model_copy(update={"backend": "triton-tutorial"}),
        synthetic_case("flash", 128).model_copy(update={"backend": "sdpa", "tile_m": 64, "tile_n": 64}),
    ],
)
def test_what_no_sweep_can_ask_for_is_said(case: Case) -> None:
    """A backend of an import, or a tile of one that takes none, gives a sentence and no sweep."""
    with pytest.raises(InputError, match="no sweep"):
        sweep_of(case)


def test_the_command_brings_its_sweep_along(tmp_path: Path) -> None:
    """A shell hands the sweep on standard input to the command, which reads it, and plans that one case."""
    case = synthetic_case("flash", 4096, causal=True, window_left=128, softcap=30.0, tile_m=64, tile_n=128)
    protocol = Protocol(clocks=("device",), processes=3)
    line = command(sweep_of(case, protocol), "cuda:0")
    stand_in = tmp_path / "flashscope"
    stand_in.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\nfrom pathlib import Path\nfrom profiling import runner\n"
        "request = runner.Request(Path(sys.argv[2]), sys.argv[4], Path('out'))\n"
        "sweep = runner._sweep(request, None)\n"
        "plan = runner._plan(request, None, runner._cases(sweep, None))\n"
        "print(json.dumps([sys.argv[1:], sweep.model_dump(), [[c.key for c in b] for b in plan]]))\n",
        encoding="utf-8",
    )
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(Path(runner.__file__).parents[1])},
    )
    argv, sweep, plan = json.loads(done.stdout)
    assert argv == ["run", "/dev/stdin", "--device", "cuda:0"]
    assert Sweep.model_validate(sweep).protocol == protocol
    assert plan == [[list(case.key)]]
