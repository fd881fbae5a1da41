"""Compiles one kernel for a GPU that need not be there, and reads what came out: for `flashscope inspect`.

The launch is the one that `fa_core` would make, on tensors without storage, compiled by the way that fills
Triton's cache before a run (`fa_core.ahead`). One target a process: Triton keeps what it compiled by device,
and all targets are device 0 here.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
import triton.backends.nvidia as nvidia

import fa_core
from fa_core import hopper, launch
from fa_core.ahead import compiling_for
from fa_core.kernels.tuning import Gpu, TileConfig
from fa_core.launch import Launch, Problem, Saved
from profiling.assembly import Source, parse_resources, parse_sass, ptx_lines, ptx_threads
from profiling.case import InputError
from profiling.fingerprint import kernel_hash
from profiling.inspection import HEADS, KERNELS, SEQ_LEN, Inspection, Request, tile_words

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_TOOL_LIMIT_S = 120
_PTXAS = re.compile(r"ptxas\S*\s+(?:fatal|error)\s*:\s*(.*)")
_WORDS = 400  # characters of a compiler's error that are told
# Registers of a thread in a computing group and in the group that copies, by rows of the sm_90 forward's
# tile: what is left of the file where two groups and three share it (those of `fa_core.hopper`'s tiles).
_HOPPER_REGISTERS = {64: (240, 24), 128: (240, 24), 192: (160, 32)}


class Tool(NamedTuple):
    """What a program printed, or the sentence that says why it did not."""

    text: str
    problem: str = ""


def inspect(request: Request) -> Inspection:
    """Compile a request's kernel and read its resources and its text.

    Raises:
        InputError: it does not compile, with the compiler's own words; or `fa_core` refuses the call.
    """
    device = request.device
    assert device.sram_bytes is not None  # of every GPU that stands for a target
    assert device.sm_count is not None
    major, minor = (int(part) for part in device.compute_capability.split("."))
    began = time.monotonic()
    with compiling_for(Gpu(device.sram_bytes, (major, minor), device.sm_count)):
        try:
            made = _launch(request)
            with contextlib.redirect_stdout(io.StringIO()):  # where Triton prints all PTX that ptxas refused
                compiled = made.compile()
        except InputError:
            raise
        except Exception as error:  # whatever a compiler may raise: it is told, not a traceback
            raise InputError(
                f"{request.kernel} with tile {tile_words(request.tile)} does not compile for "
                f"{request.target}: {_words(error)}"
            ) from error
    compile_s = time.monotonic() - began
    ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
    resources = _run_on(cubin, "cuobjdump", "--dump-resource-usage")
    sass = _run_on(cubin, "nvdisasm", "-c", "-g")
    used = parse_resources(resources.text)
    block_m, block_n, stages = _tile_of(made.constants)
    threads = ptx_threads(ptx) or 32 * compiled.metadata.num_warps
    short_ptx, short_sass = _shortened(ptx), _shortened(sass.text)
    return Inspection(
        request=request,
        name=compiled.metadata.name,
        block_m=block_m,
        block_n=block_n,
        stages=stages,
        threads=threads,
        registers=None if used is None else used.registers,
        stack_bytes=None if used is None else used.stack_bytes,
        shared_bytes=compiled.metadata.shared,
        tensor_memory_columns=getattr(compiled.metadata, "tmem_size", 0) or 0,
        ptx=short_ptx,
        sass=short_sass,
        lines=_source_lines(ptx, sass.text),
        notes=tuple(tool.problem for tool in (resources, sass) if tool.problem),
        compile_s=round(compile_s, 3),
        triton_version=triton.__version__,
        kernel_hash=kernel_hash(KERNELS[request.kernel].backend),
    )


# ------------------------------------------------------------------------------------------------ launches


def _launch(request: Request) -> Launch:
    """The launch of the request's kernel on tensors of device `meta`."""
    shape = (1, HEADS, SEQ_LEN, request.head_dim)
    q, k, v, out = (torch.empty(shape, dtype=_DTYPES[request.dtype], device="meta") for _ in range(4))
    problem = Problem(
        q=q, k=k, v=v, bias=None, slopes=None, sinks=None, cu_q=None, cu_k=None, table=None,
        scale=request.head_dim**-0.5, left=None, right=0 if request.causal else None, top_left=False,
        softcap=0.0,
    )  # fmt: skip
    rows = torch.empty(shape[:3], dtype=problem.statistics_dtype, device="meta")
    saved = Saved(out, rows, rows, rows)
    if KERNELS[request.kernel].backend == "flash_hopper":
        if reason := hopper.why_not(problem):
            raise InputError(f"{request.kernel} cannot be compiled: {reason}")
        return _hopper_launch(request, problem, saved, out)
    tile = _portable_tile(request, problem)
    if request.kernel == "forward":
        return launch.forward_launches(problem, out, rows, rows, tile)[0]
    if request.kernel == "dkdv":
        return launch.dkdv_launch(problem, saved, torch.empty_like(k), torch.empty_like(v), tile)
    return launch.dq_launch(problem, saved, torch.empty_like(q), None, tile)


def _portable_tile(request: Request, problem: Problem) -> TileConfig:
    """The tile that `fa_core` would take, or what was asked for in its place."""
    asked = None
    if request.block_m is not None and request.block_n is not None:
        asked = request.block_m, request.block_n
    tile = problem.tile(request.kernel, asked)
    return tile._replace(
        num_warps=request.warps or tile.num_warps, num_stages=request.stages or tile.num_stages
    )


def _hopper_launch(request: Request, problem: Problem, saved: Saved, out: torch.Tensor) -> Launch:
    if request.kernel == "hopper_forward":
        tile = hopper.forward_tile(problem)
        if request.block_m is not None and request.block_n is not None:
            compute, copy = _HOPPER_REGISTERS[request.block_m]
            tile = tile._replace(
                block_m=request.block_m,
                block_n=request.block_n,
                compute_registers=compute,
                copy_registers=copy,
            )
        tile = tile._replace(stages=request.stages or tile.stages)
        return hopper.forward_launch(problem, out, saved.row_max, saved.log_sum, tile)
    tile = hopper.backward_tile(problem)
    if request.block_m is not None and request.block_n is not None:
        tile = tile._replace(block_m=request.block_m, keys=request.block_n)
    tile = tile._replace(stages=request.stages or tile.stages)
    grads = (torch.empty_like(problem.q), torch.empty_like(problem.k), torch.empty_like(problem.v))
    alone = request.kernel == "hopper_dq"  # launched where gradients are to be the same bit for bit
    launches = hopper.backward_launches(problem, saved, out, None, grads, deterministic=alone, tile=tile)
    return launches[2 if alone else 1]


def _tile_of(constants: dict[str, Any]) -> tuple[int, int, int]:
    """Queries, keys and stages of a launch, whatever its kernel calls them."""
    keys = constants["KEYS"] if "KEYS" in constants else constants["BLOCK_N"]
    stages = constants["STAGES"] if "STAGES" in constants else constants["num_stages"]
    return constants["BLOCK_M"], keys, stages


# ------------------------------------------------------------------------------------- what the tools say


def _words(error: BaseException) -> str:
    """A compiler's error in one line: ptxas' own where it is its, else the last line with words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_ptxas = [found[1] for line in lines if (found := _PTXAS.match(line))]
    if of_ptxas:
        return f"ptxas: {of_ptxas[0]}"
    return f"{type(error).__name__}: {(lines or [''])[-1]}"[:_WORDS]


def find_tool(name: str) -> str | None:
    """The path of one of NVIDIA's tools: the one that comes with triton, else the one on PATH."""
    own = Path(nvidia.__file__).parent / "bin" / name
    return str(own) if own.is_file() else shutil.which(name)


def _run_on(cubin: bytes, name: str, *options: str) -> Tool:
    """What a tool prints of a compiled kernel."""
    path = find_tool(name)
    if path is None:
        return Tool("", f"{name} is missing: it comes with triton for Linux, or with the CUDA toolkit")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [path, *options, file.name],
                capture_output=True,
                text=True,
                timeout=_TOOL_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Tool("", f"{name} could not read the compiled kernel: {error}")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return Tool("", f"{name} could not read the compiled kernel: {said.replace(file.name, 'it')}")
    return Tool(done.stdout)


def deepest_first(*roots: Path) -> list[Path]:
    """Folders in the order to look for a file's: an environment may lie in the checkout."""
    return sorted(roots, key=lambda root: len(root.parts), reverse=True)


_ROOTS = deepest_first(Path(fa_core.__file__).parents[1], Path(triton.__file__).parents[1])


def _shortened(text: str) -> str:
    """The text with the paths of source files from the checkout, or from `triton`, on."""
    for root in _ROOTS:
        text = text.replace(f'"{root}/', '"')
    return text


def _source_lines(ptx: str, sass: str) -> dict[str, str]:
    """The text of each source line that the compiled kernel names."""
    named: set[Source | None] = {x.source for x in parse_sass(sass)} | {x.source for x in ptx_lines(ptx)}
    found = {}
    for source in named:
        if source is not None:
            text = linecache.getline(source.file, source.line).strip()
            found[_shortened(f'"{source.place}').removeprefix('"')] = text
    return found
