"""`flashscope inspect` as a user calls it: kernels that are really compiled, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from profiling.assembly import main_loop, mix, parse_sass
from profiling.inspection import Inspection
from profiling.inspection_facts import facts, numbers

pytest.importorskip("torch")
pytest.importorskip("triton")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; Triton's cache and the data folder are below `folder`."""
    (folder / "data").mkdir(exist_ok=True)
    environment = os.environ | {"TRITON_CACHE_DIR": str(folder / "triton"), "CUDA_VISIBLE_DEVICES": ""}
    line = [sys.executable, "-m", "profiling", "inspect", *words, "--data", str(folder / "data")]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=240, check=False)


def inspected(folder: Path, *words: str) -> list[tuple[dict[str, Any], Inspection]]:
    """What `--format json` prints: figures and inspection of each tile."""
    done = run(folder, *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    return [(x["numbers"], Inspection.model_validate(x["inspection"])) for x in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caches of these tests."""
    return tmp_path_factory.mktemp("inspect")


def products(opcode: str) -> int:
    """Multiplications and additions of a matrix instruction, by the shape in its name, of all its warps."""
    if (found := re.match(r"HGMMA\.(\d+)x(\d+)x(\d+)", opcode)) or (
        found := re.match(r"HMMA\.(16)(8)(16)", opcode)
    ):
        m, n, k = map(int, found.groups())
    else:
        return 0
    return 2 * m * n * k


# Two tiles a target, compiled once: the second of sm_80 spills, that of sm_90 is beyond shared memory.
PAIRS = {"sm_80": ("128x64,8,2", "128x128,4,1"), "sm_90": ("128x64,8,2", "64x128,4,8")}


def pair(target: str) -> tuple[str, ...]:
    """The words that inspect the two tiles of a target."""
    first, second = PAIRS[target]
    return ("forward", "--target", target, "--head-dim", "64", "--tile", first, "--tile", second)


@pytest.mark.parametrize(
    ("target", "family", "warps_of_one"), [("sm_80", "mma.sync", 1), ("sm_90", "wgmma.mma_async", 4)]
)
def test_the_main_loop_multiplies_one_tile(target: str, family: str, warps_of_one: int, folder: Path) -> None:
    """Of 128 x 64 at d = 64 it is 4·Br·Bc·d operations, by the shapes of its matrix instructions.

    It takes an exponential a score, too, and Br rescaling factors that four threads each compute; source
    lines are known, and are those of the kernel.
    """
    (figures, found), _ = inspected(folder, *pair(target))
    loop = main_loop(parse_sass(found.sass))
    groups = found.threads // 32 // warps_of_one
    assert groups * sum(products(x.opcode) for x in loop) == 4 * 128 * 64 * 64
    assert found.threads * mix(loop)["exp"] == 128 * 64 + 4 * 128
    assert family in found.ptx
    assert figures == json.loads(json.dumps(numbers(facts(found))))
    assert (found.block_m, found.block_n, found.stages, found.threads) == (128, 64, 2, 256)
    assert 32 <= (found.registers or 0) <= 255
    assert found.notes == ()
    places = {x.source.place for x in loop if x.source is not None}
    assert places <= set(found.lines)
    assert any("tl.dot" in found.lines[place] for place in places)
    assert all(place.startswith(("fa_core/", "triton/")) for place in found.lines)


def test_places_are_short_wherever_the_environment_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a checkout, of an environment beside it and of one in it: below the nearest of both roots."""
    from profiling.lab import kernels

    for environment in ("/e/site-packages", "/c/.venv/lib/site-packages"):
        monkeypatch.setattr(kernels, "_ROOTS", kernels.deepest_first(Path("/c"), Path(environment)))
        text = f'"/c/fa_core/op.py" "{environment}/triton/language/core.py"'
        assert kernels._shortened(text) == '"fa_core/op.py" "triton/language/core.py"'


def test_blackwell_multiplies_with_tcgen05_and_uses_tensor_memory(folder: Path) -> None:
    """The same source for sm_100: tcgen05 in the PTX, accumulators in tensor memory."""
    ((figures, found),) = inspected(folder, "forward", "--target", "sm_100", "--head-dim", "64", "--causal")
    assert "tcgen05.mma" in found.ptx
    assert found.tensor_memory_columns > 0
    assert figures["n_matrix"] > 0
    assert figures["n_tensor_memory"] > 0


def test_the_kernels_of_sm_90_copy_by_the_engine(folder: Path) -> None:
    """TMA copies instead of loads; groups of warps that compute, and one that copies; more than Q, K, V."""
    ((figures, found),) = inspected(folder, "hopper_forward", "--head-dim", "64", "--tile", "128x128")
    assert figures["n_copy_engine"] > 0
    assert figures["threads"] == 384  # two groups of 64 rows, and one that copies
    assert figures["loop_loads"] == 0
    assert figures["loop_matrix"] == 4 + 8  # d / 16 of 64x128x16, and Bc / 16 of 64x64x16
    assert figures["shared_bytes"] > figures["est_shared_bytes"]  # the output has a place of its own
    assert found.name == "hopper_forward_kernel"


def test_a_tile_that_spills_says_so_and_the_compiler_agrees(folder: Path) -> None:
    """128 x 128 with four warps: ptxas itself counts as many bytes spilled as the disassembly shows."""
    _, (figures, found) = inspected(folder, *pair("sm_80"))
    from triton.backends import nvidia

    ptxas = Path(nvidia.__file__).parent / "bin" / "ptxas"
    ptx = folder / "spills.ptx"
    ptx.write_text(found.ptx, encoding="utf-8")
    line = [str(ptxas), "-v", "-lineinfo", "--gpu-name=sm_80", str(ptx), "-o", str(folder / "spills.cubin")]
    told = subprocess.run(line, capture_output=True, text=True, check=True).stderr
    stack, stores, loads = map(int, re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", told))
    assert stores > 0
    shown = [figures[name] for name in ("stack_bytes", "spill_store_bytes", "spill_load_bytes")]
    assert shown == [stack, stores, loads]


def test_two_tiles_as_text_and_from_the_cache(folder: Path) -> None:
    """Side by side with their ratio, the code beside its source; a second call compiles nothing.

    That the second tile is beyond shared memory no compiler refuses: a sentence says it.
    """
    words = (*pair("sm_90"), "--show", "sass")
    first, second = run(folder, *words), run(folder, *words)
    assert (first.returncode, second.returncode) == (0, 0)
    assert second.stderr == ""
    assert first.stdout == second.stdout
    header = next(line for line in first.stdout.splitlines() if line.endswith("last / first"))
    assert header.split() == ["128×64", "64×128", "last", "/", "first"]
    assert re.search(r"^0x[0-9a-f]{4}  \S.*  // fa_core/kernels/\w+\.py:\d+  \S", first.stdout, re.M)
    assert "ncu --metrics l1tex__data_bank_conflicts" in first.stdout
    (told,) = re.findall(
        r"cannot be launched: it needs (.*?) of shared memory.*can have 227 KiB", first.stdout
    )
    assert float(told.split()[0]) > 227


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("forward", "--tile", "64"), "a tile must be queries x keys"),
        (("forward", "--tile", "own", "--tile", "own", "--tile", "own"), "--tile can be given twice"),
        (("hopper_dq", "--target", "sm_80"), "hopper_dq is for sm_90 alone"),
        (
            ("hopper_forward", "--head-dim", "64", "--tile", "64x256"),
            r"64x256 does not compile for sm_90: ptxas: .*Insufficient registers",
        ),
    ],
)
def test_what_cannot_be_compiled_is_one_sentence(words: tuple[str, ...], said: str, folder: Path) -> None:
    """Nonsense, and a tile that runs out of registers, end in status 2 with a sentence and no traceback."""
    done = run(folder, *words)
    assert done.returncode == 2
    assert re.search(f"^flashscope: .*{said}", done.stderr, re.M)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


CODE = """
from profiling.inspection import Request
from profiling.lab import kernels
kernels.find_tool = lambda name: None if name == "nvdisasm" else "/bin/false"
found = kernels.inspect(Request(head_dim=64, block_m=128, block_n=64, warps=8, stages=2))
assert (found.sass, found.registers, found.stack_bytes) == ("", None, None)
print(*found.notes, sep="\\n")
"""


def test_a_missing_tool_is_a_sentence(folder: Path) -> None:
    """Without nvdisasm there is no disassembly, and one that fails gives no registers; the rest is there."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(folder / "triton"), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nvdisasm is missing: it comes with triton for Linux" in done.stdout
    assert "cuobjdump could not read the compiled kernel: status 1" in done.stdout
