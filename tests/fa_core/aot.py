"""Compile the kernels' default tiles for GPUs that are not there, and say what each takes of one.

    python tests/fa_core/aot.py [--all] [--arch 80,90,100] [--kernel dkdv] [--head-dim 256]

prints the table in Markdown: registers a thread, bytes of stack a thread (what spills, most of all), and
shared memory a program. The launches are those that `fa_core.launch` would make, on tensors without
storage. Triton's interpreter replaces the compiler in the whole process, so each compilation runs in a
child that does without.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ARCHS: tuple[int, ...] = (80, 90, 100)
# Shared memory that one program may take: A100, H100 and H200, B200 (CUDA C++ Programming Guide, table of
# technical specifications per compute capability).
SHARED_LIMITS: dict[int, int] = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
HEAD_DIMS: tuple[int, ...] = (64, 128, 256)
DTYPES: tuple[str, ...] = ("bfloat16", "float32")
# What a launch is compiled with. `everything`: window, softcap, ALiBi, bias and sinks at once.
FEATURES: tuple[str, ...] = ("plain", "causal", "everything", "packed", "decode", "paged")
KERNELS: tuple[str, ...] = ("forward", "delta", "dkdv", "dq", "dbias", "combine")


class Point(NamedTuple):
    """One kernel to compile: `kernel` of KERNELS, `feature` of FEATURES, `arch` of ARCHS."""

    kernel: str
    dtype: str
    head_dim: int
    feature: str
    arch: int


class Taken(NamedTuple):
    """What a compiled kernel takes, and the tile it was compiled with."""

    point: Point
    tile: tuple[int, ...]  # block_m, block_n, warps, stages
    registers: int  # a thread
    stack_bytes: int  # a thread
    shared_bytes: int  # a program
    estimated_bytes: int  # tuning.shared_bytes, 0 for kernels without a table


def all_points() -> list[Point]:
    """Every default tile, for every architecture, with what each kernel can be asked for."""
    features = {
        "forward": FEATURES,
        "delta": ("plain",),
        "dkdv": ("plain", "causal", "everything", "packed"),
        "dq": ("plain", "causal", "everything", "packed"),
        "dbias": ("everything",),
        "combine": ("decode",),
    }
    return [
        Point(kernel, dtype, head_dim, feature, arch)
        for kernel in KERNELS
        for dtype in DTYPES
        for head_dim in HEAD_DIMS
        for feature in features[kernel]
        for arch in ARCHS
    ]


# ------------------------------------------------------------------------------------- in the child


def specialise(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], arch: int) -> tuple[Any, Any]:
    """(ASTSource, options) as Triton would make them for a launch with these arguments on `arch`.

    Triton's own binder does it, given a target instead of the device at hand: pointers and whole numbers
    get their type, 1 and None become constants, and what is divisible by 16 is marked so.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(GPUTarget("cuda", arch, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(*args, **constants)
    options, signature, constexprs, attrs = kernel._pack_args(
        backend, dict(constants), bound, specialization, options
    )
    return ASTSource(kernel, signature, constexprs, attrs), options


def compile_for(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any], arch: int) -> Any:
    """The compiled kernel of a launch; its machine code is `.asm["cubin"]`."""
    import triton
    from triton.backends.compiler import GPUTarget

    source, options = specialise(kernel, args, constants, arch)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options.__dict__)


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) a thread, as the cuobjdump that comes with Triton reads them."""
    import triton.backends.nvidia as nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", text)
    if found is None:
        raise ValueError(f"cuobjdump's text must hold REG, STACK and LOCAL, got {text!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def launch_of(point: Point) -> Any:
    """The launch that fa_core makes for a point, on tensors without storage (device `meta`)."""
    import torch

    from fa_core import launch
    from fa_core.launch import Problem, Saved

    own = getattr(torch, point.dtype)

    def empty(*shape: int, dtype: torch.dtype = own) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def whole(*shape: int) -> torch.Tensor:
        return empty(*shape, dtype=torch.int32)

    d, feature = point.head_dim, point.feature
    batch, heads, kv_heads, n, page = 2, 8, 4, 4096, 64
    n_q = 1 if feature in ("decode", "paged") else n
    everything, packed, paged = feature == "everything", feature == "packed", feature == "paged"
    cells = (batch * n // page, kv_heads, page, d) if paged else (batch, kv_heads, n, d)
    if packed:
        batch, cells = 1, (1, kv_heads, 2 * n, d)
    rows = 2 * n if packed else n_q
    problem = Problem(
        q=empty(batch, heads, rows, d),
        k=empty(*cells),
        v=empty(*cells),
        bias=empty(batch, 1, n, n) if everything else None,
        slopes=empty(heads, dtype=torch.float32) if everything else None,
        sinks=empty(heads) if everything else None,
        cu_q=whole(3) if packed else None,
        cu_k=whole(3) if packed else whole(batch) if paged else None,
        table=whole(batch, n // page) if paged else None,
        scale=d**-0.5,
        left=1000 if everything else None,
        right=None if feature == "plain" else 0,
        top_left=False,
        softcap=30.0 if everything else 0.0,
    )
    wide = problem.statistics_dtype
    out, statistics = empty(batch, heads, rows, d), empty(batch, heads, rows, dtype=wide)
    log_sum = empty(batch, heads, rows, dtype=wide)
    saved = Saved(out, statistics, log_sum, statistics)
    if point.kernel in ("forward", "combine"):
        few = launch.decoding(problem)
        tile = launch.decode_tile(problem) if few else problem.tile("forward")
        steps = launch.forward_launches(problem, out, statistics, log_sum, tile, 4 if few else 1)
        return steps[1 if point.kernel == "combine" else 0]
    if point.kernel == "delta":
        return launch.delta_launch(out, out, statistics, statistics, wide == torch.float64)
    tile = problem.tile(point.kernel)
    if point.kernel == "dkdv":
        return launch.dkdv_launch(problem, saved, empty(*cells), empty(*cells), tile)
    if point.kernel == "dq":
        return launch.dq_launch(
            problem, saved, empty(*problem.q.shape), statistics if everything else None, tile
        )
    assert problem.bias is not None
    return launch.dbias_launch(problem, saved, empty(*problem.bias.shape), tile)


def take(point: Point) -> Taken:
    """Compile a point, with the tile that its architecture would get."""
    import torch

    from fa_core.kernels import tuning

    target = tuning.Gpu(SHARED_LIMITS[point.arch], (point.arch // 10, point.arch % 10))
    tuning.gpu = lambda device: target
    launch = launch_of(point)
    compiled = compile_for(launch.kernel, launch.args, launch.constants, point.arch)
    constants = launch.constants
    tile = tuning.TileConfig(
        constants["BLOCK_M"],
        constants.get("BLOCK_N", 0),
        compiled.metadata.num_warps,
        compiled.metadata.num_stages,
    )
    estimate = 0
    if point.kernel in tuning.KERNELS:
        dtype = getattr(torch, point.dtype)
        bias_bytes = dtype.itemsize if point.feature == "everything" else 0
        estimate = tuning.shared_bytes(
            tile, point.kernel, point.head_dim, dtype, target, bias_bytes=bias_bytes
        )
    registers, stack = resources(compiled.asm["cubin"])
    return Taken(point, tile, registers, stack, compiled.metadata.shared, estimate)


def _serve() -> None:
    """Points come in, a JSON list each line; what they take goes out, in the same manner."""
    for line in sys.stdin:
        print(json.dumps(take(Point(*json.loads(line)))), flush=True)


# ------------------------------------------------------------------------------------- in the parent


def measure(points: list[Point], workers: int = 2) -> list[Taken]:
    """Compile the points in child processes; the result is in the points' order.

    Raises:
        RuntimeError: a child failed; its last words are in the text.
    """
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    shares = [points[i::workers] for i in range(min(workers, len(points)))]
    children = []
    for share in shares:
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
            text=True,
            env=environment,
            cwd=ROOT,
        )
        assert child.stdin is not None
        child.stdin.write("".join(json.dumps(point) + "\n" for point in share))
        child.stdin.close()
        child.stdin = None
        children.append(child)
    taken = {}
    for child, share in zip(children, shares, strict=True):
        output, errors = child.communicate()
        lines = output.splitlines()
        if child.returncode:
            raise RuntimeError(f"{share[len(lines)]} must compile, got:\n{errors[-2000:]}")
        for line in lines:
            point, tile, *numbers = json.loads(line)
            taken[Point(*point)] = Taken(Point(*point), tuple(tile), *numbers)
    return [taken[point] for point in points]


def markdown(rows: list[Taken]) -> str:
    """The rows as a table."""
    lines = [
        "| kernel | dtype | d | compiled with | sm | tile, warps, stages | registers | stack (B) "
        "| shared (KiB) |",
        "|---|---|--:|---|--:|---|--:|--:|--:|",
    ]
    for row in rows:
        point = row.point
        m, n, warps, stages = row.tile
        lines.append(
            f"| {point.kernel} | {point.dtype} | {point.head_dim} | {point.feature} | {point.arch} "
            f"| {m} x {n}, {warps}, {stages} | {row.registers} | {row.stack_bytes} "
            f"| {row.shared_bytes / 1024:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table of the asked points."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--arch", help="only these, separated by commas")
    parser.add_argument("--kernel", help="only these")
    parser.add_argument("--dtype", help="only these")
    parser.add_argument("--head-dim", help="only these")
    parser.add_argument("--feature", help="only these")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.serve:
        _serve()
        return

    def chosen(point: Point) -> bool:
        asked = (options.kernel, options.dtype, options.head_dim, options.feature, options.arch)
        return all(not only or str(is_) in only.split(",") for only, is_ in zip(asked, point, strict=True))

    print(markdown(measure([point for point in all_points() if chosen(point)], options.workers)))


if __name__ == "__main__":
    main()
