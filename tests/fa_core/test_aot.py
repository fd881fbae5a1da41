"""The kernels compile for A100, H200 and B200 on any Linux machine, fit, and spill no more than listed here.

`pytest tests/fa_core/test_aot.py -s` prints what a sample of the default tiles takes; `-m slow` compiles
them all, and `python tests/fa_core/aot.py` prints the same without a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import aot
import pytest
from aot import Point, Taken

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(900)
LEAST_REGISTERS = 16  # fewer hold no kernel of ours: ptxas threw it away (seen: 4, with a tile of no table)


class Spill(NamedTuple):
    """Which compiled kernels may keep how many bytes of stack a thread, and why they do."""

    kernel: str
    dtype: str
    head_dims: tuple[int, ...]
    archs: tuple[int, ...]
    stack_bytes: int
    reason: str
    features: tuple[str, ...] = aot.FEATURES

    def covers(self, point: Point) -> bool:
        """Whether a point is meant."""
        return (
            point.kernel == self.kernel
            and point.dtype == self.dtype
            and point.head_dim in self.head_dims
            and point.arch in self.archs
            and point.feature in self.features
        )


# What any kernel may keep: a dozen words a thread.
TRIVIAL_BYTES = 48
FILLED = "operands of fp64 with d = 256 fill the registers: every larger or smaller tile tried spills more"
UNMEASURED = "the least that was found by compiling; no such GPU was at hand to measure"
ALL_AT_ONCE = "window, softcap, ALiBi, bias and sinks together; with one or two of them it is less"
SPILLS: tuple[Spill, ...] = (
    # Gains over the best candidate without a stack, N = 4096 (fp32: 2048), by tests/benchmarks/tune_tiles.py.
    Spill("dkdv", "bfloat16", (64,), (90,), 1600, "36.3 % faster under a causal mask, 8.5 % without"),
    Spill("dkdv", "bfloat16", (128,), (90,), 96, "no stack at all where heads are not grouped", ("causal",)),
    Spill("dkdv", "bfloat16", (128, 256), (90,), 416, ALL_AT_ONCE, ("everything",)),
    Spill("dkdv", "bfloat16", (256,), (90,), 320, "8.3 % faster", ("plain",)),
    Spill("forward", "bfloat16", (256,), (90,), 384, "8.3 % faster", ("causal", "packed", "everything")),
    Spill("dq", "bfloat16", (256,), (90,), 256, ALL_AT_ONCE, ("everything",)),
    Spill("forward", "bfloat16", (128,), (80,), 128, ALL_AT_ONCE, ("everything",)),
    Spill("forward", "bfloat16", (256,), (80,), 576, UNMEASURED),
    Spill("dkdv", "bfloat16", (64, 128, 256), (80, 100), 192, ALL_AT_ONCE, ("everything",)),
    Spill("dkdv", "bfloat16", (64,), (80, 100), 192, UNMEASURED, ("causal", "packed")),
    Spill("dq", "bfloat16", (64, 256), (80,), 160, ALL_AT_ONCE, ("everything",)),
    Spill("dbias", "bfloat16", (256,), (100,), 192, UNMEASURED),
    Spill(
        "forward",
        "float32",
        (256,),
        (90,),
        576,
        "54.4 % faster without a mask; under one all spill",
    ),
    Spill("forward", "float32", (256,), (80,), 96, UNMEASURED),
    Spill("forward", "float32", (256,), (100,), 576, FILLED, ("decode", "paged")),
    Spill("dkdv", "float32", (64, 128), (80, 90, 100), 320, ALL_AT_ONCE, ("everything",)),
    Spill("dkdv", "float32", (256,), (90,), 704, "35.3 % faster under a causal mask, 39.8 % without"),
    Spill("dkdv", "float32", (256,), (100,), 128, ALL_AT_ONCE, ("everything",)),
    Spill("dq", "float32", (64,), (90,), 128, ALL_AT_ONCE, ("everything",)),
    Spill("dq", "float32", (256,), (90,), 1728, "no candidate does without; 4.2 % faster than the next"),
    Spill("dbias", "float32", (128, 256), (80, 90), 768, FILLED),
)


def sample() -> list[Point]:
    """What is compiled by default, about a seventh of all.

    Causal attention in bf16 with d = 128 for every architecture; every other kernel, dtype and feature
    once, on heads and architectures in turn.
    """
    points = aot.all_points()
    usual = [point for point in points if point[1:4] == ("bfloat16", 128, "causal")]
    kinds = dict.fromkeys((point.kernel, point.dtype, point.feature) for point in points)
    turns = [
        Point(kernel, dtype, aot.HEAD_DIMS[i % 3], feature, aot.ARCHS[(i + i // 3) % 3])
        for i, (kernel, dtype, feature) in enumerate(kinds)
    ]
    return list(dict.fromkeys(usual + turns))


def problems(row: Taken) -> list[str]:
    """What is wrong with a compiled kernel, a sentence each."""
    out = []
    limit = aot.SHARED_LIMITS[row.point.arch]
    if row.shared_bytes > limit:
        out.append(f"{row.point} takes {row.shared_bytes} bytes of shared memory, and there are {limit}")
    if row.estimated_bytes and not row.shared_bytes <= row.estimated_bytes:
        out.append(f"{row.point} takes {row.shared_bytes} bytes, beyond the bound {row.estimated_bytes}")
    allowed = max((spill.stack_bytes for spill in SPILLS if spill.covers(row.point)), default=TRIVIAL_BYTES)
    if row.registers < LEAST_REGISTERS:
        out.append(f"{row.point} takes {row.registers} registers: it has been compiled away")
    if row.stack_bytes > allowed:
        out.append(f"{row.point} keeps {row.stack_bytes} bytes on the stack, and {allowed} are allowed")
    return out


def check(rows: list[Taken]) -> None:
    """Print the table, and fail with every problem at once."""
    print("\n" + aot.markdown(rows))
    assert not [problem for row in rows for problem in problems(row)]


def test_a_sample_of_the_default_tiles_compiles_and_fits():
    """Shared memory fits 163 KiB (A100) or 227 KiB (H200, B200); only what is listed spills."""
    check(aot.measure(sample()))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_default_tile_compiles_and_fits():
    """The same of all of them; and each entry of the list is needed."""
    rows = aot.measure(aot.all_points())
    check(rows)
    spilled = [row.point for row in rows if row.stack_bytes > TRIVIAL_BYTES]
    assert [spill for spill in SPILLS if not any(map(spill.covers, spilled))] == []


def test_the_sample_has_every_kernel_dtype_feature_and_architecture():
    """Nothing is left to the slow test alone but combinations."""
    points = sample()
    for field, every in enumerate((aot.KERNELS, aot.DTYPES, aot.HEAD_DIMS, aot.FEATURES, aot.ARCHS)):
        assert {point[field] for point in points} == set(every)


def test_problems_are_told():
    """A kernel that takes too much, spills unasked or exceeds its bound is named with its numbers."""
    point = Point("delta", "bfloat16", 64, "plain", 80)
    assert not problems(Taken(point, (64, 0, 4, 3), 32, 0, 163 * 1024, 0))
    assert problems(Taken(point, (64, 0, 4, 3), 4, 56, 163 * 1024 + 1, 10)) == [
        f"{point} takes 166913 bytes of shared memory, and there are 166912",
        f"{point} takes 166913 bytes, beyond the bound 10",
        f"{point} takes 4 registers: it has been compiled away",
        f"{point} keeps 56 bytes on the stack, and 48 are allowed",
    ]


TOY = '''
import json, sys
import torch, triton
import triton.language as tl
import aot

@triton.jit(do_not_specialize=["n"])
def toy(X, Y, n, one, sixteens, scale, stride, pair, FLAG: tl.constexpr):
    if FLAG and Y is None:
        at = tl.arange(0, 64) * stride[1]
        tl.store(X + at, (tl.load(X + at) * scale).to(X.dtype.element_ty), mask=at < n * one + sixteens)

x = torch.empty(64, dtype=torch.bfloat16, device="meta")
args = (x, None, 1, 1, 32, 0.5, (48, 1), (x, None))
source, options = aot.specialise(toy, args, {"FLAG": True, "num_warps": 2}, 80)
compiled = aot.compile_for(toy, args, {"FLAG": True, "num_warps": 2}, 80)
print(json.dumps({
    "signature": source.signature,
    "constants": sorted((list(path), value) for path, value in source.constants.items()),
    "divisible": sorted(list(path) for path, attributes in source.attrs.items() if attributes),
    "warps": options.num_warps,
    "elf": compiled.asm["cubin"][:4].hex(),
    "taken": aot.resources(compiled.asm["cubin"]),
}))
'''  # fmt: skip


def test_a_launch_is_specialised_as_triton_does(tmp_path):
    """Tuples too: 1 and None are compiled in, multiples of 16 marked, unspecialised lengths left alone."""
    (tmp_path / "toy.py").write_text(TOY)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(aot.ROOT / "tests" / "fa_core"), str(aot.ROOT)])
    command = [sys.executable, str(tmp_path / "toy.py")]
    found = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert found["signature"] == {
        "X": "*bf16", "Y": "constexpr", "n": "i32", "one": "constexpr", "sixteens": "i32", "scale": "fp32",
        "stride": ["i32", "constexpr"], "pair": ["*bf16", "constexpr"], "FLAG": "constexpr",
    }  # fmt: skip
    assert found["constants"] == [[[1], None], [[3], 1], [[6, 1], 1], [[7, 1], None], [[8], True]]
    assert found["divisible"] == [[0], [4], [6, 0], [7, 0]]
    assert found["warps"] == 2
    assert found["elf"] == b"\x7fELF".hex()
    assert found["taken"][0] > 0
    assert found["taken"][1] == 0
