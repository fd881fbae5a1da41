"""The softmax kernels compile for A100, H200 and B200 on any Linux machine, fit, spill nothing, load wide.

`pytest tests/fa_core/test_softmax_aot.py -s` prints what each takes. The launches are those that
`fa_core.softmax.launches` makes, on tensors without storage, in a child process without Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import aot
import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(900)
TRIVIAL_BYTES = 16  # of stack a thread
LEAST_REGISTERS = 12  # fewer hold no kernel of ours
# A vocabulary and a row of few classes that divide by 16, and some that do not.
LONG, SHORT, ODD = 128256, 64, 50257


class Point(NamedTuple):
    """One operator's launches to compile: `rows` x `classes` logits, `k` of a top-k, for sm_`arch`."""

    operator: str
    dtype: str
    rows: int
    classes: int
    k: int
    renormalize: bool
    arch: int


class Taken(NamedTuple):
    """What one launch of a point takes: of registers and stack a thread, of shared memory a program."""

    point: Point
    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    wide_loads: int  # of 16 bytes
    wide_stores: int


def points() -> list[Point]:
    """Every kernel in bf16 for every architecture, and in fp32 for one of them in turn."""
    shapes = [
        ("cross_entropy", 8192, LONG, 0, True),
        ("cross_entropy", 8192, SHORT, 0, True),
        ("cross_entropy", 8192, ODD, 0, True),
        ("cross_entropy", 16, LONG, 0, True),
        ("top_k", 16384, 8, 2, True),
        ("top_k", 16384, SHORT, 6, False),
        ("top_k", 16384, 256, 8, True),
        ("top_k", 64, LONG, 50, False),
        ("top_k", 64, ODD, 64, True),
    ]
    half = [Point(name, "bfloat16", *rest, arch) for name, *rest in shapes for arch in aot.ARCHS]
    single = [
        Point(name, "float32", *rest, aot.ARCHS[i % len(aot.ARCHS)]) for i, (name, *rest) in enumerate(shapes)
    ]
    return half + single


# ------------------------------------------------------------------------------------- in the child


def launches(point: Point) -> list:
    """Forward and backward, as the operators launch them."""
    import torch

    from fa_core.kernels import tuning
    from fa_core.softmax import launches as made

    tuning.elsewhere = tuning.Gpu(
        aot.SHARED_LIMITS[point.arch], (point.arch // 10, point.arch % 10), processors=132
    )
    shape = (point.rows, point.classes)
    logits = torch.empty(shape, dtype=getattr(torch, point.dtype), device="meta")
    dlogits = torch.empty_like(logits)
    if point.operator == "cross_entropy":
        target = torch.empty(point.rows, dtype=torch.int64, device="meta")
        loss, row_max, log_sum = (torch.empty(point.rows, device="meta") for _ in range(3))
        backward = made.backward_launch(logits, target, (row_max, log_sum), (loss, log_sum), dlogits, -100)
        return [*made.forward_launches(logits, target, (loss, row_max, log_sum), -100), backward]
    chosen = (point.rows, point.k)
    weights = torch.empty(chosen, dtype=logits.dtype, device="meta")
    indices = torch.empty(chosen, dtype=torch.int64, device="meta")
    statistics = torch.empty(0 if point.renormalize else (2, point.rows), device="meta")
    backward = made.top_k_backward_launch(logits, indices, statistics, weights, dlogits)
    return [*made.top_k_launches(logits, weights, indices, statistics), backward]


def take(point: Point) -> list[Taken]:
    """Compile a point's launches."""
    taken = []
    for launch in launches(point):
        compiled = aot.compile_for(launch.kernel, launch.args, launch.constants, point.arch)
        registers, stack = aot.resources(compiled.asm["cubin"])
        ptx = compiled.asm["ptx"]
        wide = [len(re.findall(rf"{what}\.global[\w.:]*\.v4\.", ptx)) for what in ("ld", "st")]
        taken.append(Taken(point, launch.kernel.__name__, registers, stack, compiled.metadata.shared, *wide))
    return taken


def _serve() -> None:
    for line in sys.stdin:
        print(json.dumps(take(Point(*json.loads(line)))), flush=True)


# ------------------------------------------------------------------------------------- in the parent


def measure(wanted: list[Point]) -> list[Taken]:
    """Compile the points in a child process."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(aot.ROOT), str(aot.ROOT / "tests" / "fa_core")])
    asked = "".join(json.dumps(point) + "\n" for point in wanted)
    child = subprocess.run(
        [sys.executable, __file__], input=asked, capture_output=True, text=True, env=environment
    )
    assert child.returncode == 0, child.stderr[-2000:]
    rows = [row for line in child.stdout.splitlines() for row in json.loads(line)]
    return [Taken(Point(*point), *numbers) for point, *numbers in rows]


def problems(row: Taken) -> list[str]:
    """What is wrong with a compiled kernel, a sentence each."""
    out = []
    limit = aot.SHARED_LIMITS[row.point.arch]
    if row.shared_bytes > limit:
        out.append(f"{row.kernel} {row.point} takes {row.shared_bytes} bytes of shared memory of {limit}")
    if row.stack_bytes > TRIVIAL_BYTES:
        out.append(f"{row.kernel} {row.point} keeps {row.stack_bytes} bytes on the stack")
    if row.registers < LEAST_REGISTERS:
        out.append(f"{row.kernel} {row.point} takes {row.registers} registers: it has been compiled away")
    # Rows of a cross-entropy are shifted to where they can be read so; those of a top-k are not.
    wide = row.point.classes % 16 == 0 or row.point.operator == "cross_entropy"
    reads = row.kernel in ("cross_entropy_kernel", "cross_entropy_backward_kernel", "top_k_groups_kernel")
    if wide and reads and not row.wide_loads:
        out.append(f"{row.kernel} {row.point} loads logits piece by piece")
    if wide and row.kernel.endswith("backward_kernel") and not row.wide_stores:
        out.append(f"{row.kernel} {row.point} stores its gradient piece by piece")
    return out


def test_the_default_tiles_compile_and_fit():
    """Nothing spills, shared memory fits, and what divides by 16 goes to and from memory 16 bytes at once."""
    rows = measure(points())
    for row in rows:
        print(*row.point, *row[1:])
    assert {row.kernel for row in rows} == {
        "cross_entropy_kernel", "cross_entropy_join_kernel", "cross_entropy_backward_kernel",
        "top_k_few_kernel", "top_k_groups_kernel", "top_k_selection_kernel", "top_k_backward_kernel",
    }  # fmt: skip
    assert not [problem for row in rows for problem in problems(row)]


CODE = """
import torch
from fa_core import cross_entropy, softmax_top_k
from fa_core.ahead import compiling_for
from fa_core.kernels import tuning
x = torch.zeros(4, 2048, dtype=torch.bfloat16, device="meta", requires_grad=True)
target = torch.empty(4, dtype=torch.int64, device="meta")
with compiling_for(tuning.Gpu(163 * 1024, (8, 0), 108)):
    cross_entropy(x, target, impl="online").backward()
    softmax_top_k(x, 8, impl="online")[0].sum().backward()
"""


def test_kernels_can_be_compiled_ahead(tmp_path):
    """Within `compiling_for` a call on `meta` tensors fills Triton's cache, forward and backward."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", CODE], env=environment, check=True, cwd=aot.ROOT)
    assert {path.stem for path in tmp_path.rglob("*.cubin")} == {
        "cross_entropy_kernel", "cross_entropy_backward_kernel", "top_k_groups_kernel",
        "top_k_selection_kernel", "top_k_backward_kernel",
    }  # fmt: skip


def test_importing_the_doors_imports_no_triton():
    """Nor does a naive call: the kernels are imported when first needed."""
    code = (
        "import sys, torch, fa_core\n"
        "x, t = torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)\n"
        "fa_core.cross_entropy(x, t), fa_core.softmax_top_k(x, 2)\n"
        "assert 'triton' not in sys.modules and 'fa_core.softmax.op' not in sys.modules"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=aot.ROOT)


if __name__ == "__main__":
    _serve()
