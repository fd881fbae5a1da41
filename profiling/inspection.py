"""What of a kernel is inspected, what came of it, and where it is kept. No torch, no triton.

`profiling.lab.kernels` compiles, in a process of its own; here is what goes in (`Request`), what comes out
(`Inspection`), and the cache between the two.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from profiling.case import Case, Dtype, InputError, first_problem
from profiling.devices import Device, find_device
from profiling.fingerprint import kernel_hash
from profiling.model.tile_limits import sram_bytes

SCHEMA = 1
# The problem that a kernel is compiled for: lengths are arguments of a launch, but whether they are whole
# tiles is compiled in, and the sm_90 kernels choose their own tile by them.
SEQ_LEN, HEADS = 4096, 16
MAX_HEAD_DIM, MAX_BLOCK, MAX_STAGES = 256, 256, 8
KEPT = 64  # inspections in the cache

Kernel = Literal["forward", "dkdv", "dq", "hopper_forward", "hopper_backward", "hopper_dq"]
Target = Literal["sm_80", "sm_90", "sm_100"]


class KernelKind(NamedTuple):
    """A kernel that can be inspected: what it does, in which direction, and whose it is."""

    what: str
    direction: Literal["fwd", "bwd"]
    backend: Literal["flash_portable", "flash_hopper"]


KERNELS: dict[str, KernelKind] = {
    "forward": KernelKind("portable forward", "fwd", "flash_portable"),
    "dkdv": KernelKind("portable backward, dK and dV", "bwd", "flash_portable"),
    "dq": KernelKind("portable backward, dQ", "bwd", "flash_portable"),
    "hopper_forward": KernelKind("sm_90 forward", "fwd", "flash_hopper"),
    "hopper_backward": KernelKind("sm_90 backward", "bwd", "flash_hopper"),
    "hopper_dq": KernelKind("sm_90 backward, dQ alone", "bwd", "flash_hopper"),
}
# A GPU of the catalogue for each target: what its kernels may take.
TARGETS: dict[str, str] = {"sm_80": "A100-SXM-80GB", "sm_90": "H200", "sm_100": "B200"}
DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")
# Of a kernel that has its tile chosen for sm_90: rows and keys that its groups can divide.
_HOPPER_SIDES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "hopper_forward": ((64, 128, 192), (32, 64, 128, 256)),
    "hopper_backward": ((64, 128), (64, 128)),
}
WARPS: tuple[int, ...] = (1, 2, 4, 8, 16)


class Tile(NamedTuple):
    """A tile of queries x keys, warps and stages; None is the kernel's own."""

    block_m: int | None = None
    block_n: int | None = None
    warps: int | None = None
    stages: int | None = None


class Request(BaseModel):
    """A kernel to compile: for which GPU, on what input, with which tile (None: its own).

    The input has one sequence of `SEQ_LEN` queries and keys, `HEADS` heads of `head_dim`, no feature.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kernel: Kernel = "forward"
    target: Target = "sm_90"
    dtype: Dtype = "bf16"
    head_dim: int = 128
    causal: bool = False
    block_m: int | None = None
    block_n: int | None = None
    warps: int | None = None
    stages: int | None = None

    @model_validator(mode="after")
    def _can_be_asked_for(self) -> Request:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype}")
        if not 1 <= self.head_dim <= MAX_HEAD_DIM:
            raise ValueError(f"head_dim must be from 1 to {MAX_HEAD_DIM}, got {self.head_dim}")
        if (self.block_m is None) != (self.block_n is None):
            raise ValueError("a tile must have both sides, or neither: then it is the kernel's own")
        if self.stages is not None and not 1 <= self.stages <= MAX_STAGES:
            raise ValueError(f"stages must be from 1 to {MAX_STAGES}, got {self.stages}")
        if self.warps is not None and self.warps not in WARPS:
            raise ValueError(f"warps must be one of {', '.join(map(str, WARPS))}, got {self.warps}")
        if KERNELS[self.kernel].backend == "flash_hopper":
            self._check_hopper()
        else:
            for name, side in (("queries", self.block_m), ("keys", self.block_n)):
                if side is not None and not (16 <= side <= MAX_BLOCK and side.bit_count() == 1):
                    raise ValueError(
                        f"a tile's {name} must be a power of two from 16 to {MAX_BLOCK}, got {side}"
                    )
        return self

    def _check_hopper(self) -> None:
        if self.target != "sm_90":
            raise ValueError(f"{self.kernel} is for sm_90 alone, got {self.target}")
        if self.dtype == "fp32":
            raise ValueError(f"{self.kernel} takes fp16 and bf16, got fp32")
        if self.warps is not None:
            raise ValueError(f"{self.kernel} has four warps for 64 rows, and four that copy: leave warps out")
        if self.kernel not in _HOPPER_SIDES:
            if (self.block_m, self.stages) != (None, None):
                raise ValueError(f"{self.kernel} has its own tile alone")
            return
        rows, keys = _HOPPER_SIDES[self.kernel]
        if self.block_m is not None and (self.block_m not in rows or self.block_n not in keys):
            raise ValueError(
                f"a tile of {self.kernel} must have {_either(rows)} queries and {_either(keys)} keys, got "
                f"{self.block_m} x {self.block_n}"
            )

    @property
    def tile(self) -> Tile:
        """The tile as asked."""
        return Tile(self.block_m, self.block_n, self.warps, self.stages)

    @property
    def device(self) -> Device:
        """The GPU of the catalogue that stands for the target."""
        return find_device(TARGETS[self.target])

    @property
    def case(self) -> Case:
        """The input as a case, for the formulas."""
        kind = KERNELS[self.kernel]
        return Case(
            backend=kind.backend, direction=kind.direction, dtype=self.dtype, heads=HEADS, kv_heads=HEADS,
            seq_len_q=SEQ_LEN, seq_len_k=SEQ_LEN, head_dim=self.head_dim, head_dim_v=self.head_dim,
            causal=self.causal,
        )  # fmt: skip


class Inspection(BaseModel):
    """What the compiler made of a request. None and "" are unknown: see `notes`.

    Attributes:
        name: of the kernel's function.
        block_m, block_n, stages: the tile that it was compiled with.
        threads: of a block.
        registers: of a thread, at launch.
        stack_bytes: of a thread, in local memory.
        shared_bytes: of a block, without what the system reserves.
        tensor_memory_columns: of a block.
        ptx, sass: its text, with paths of files shortened to what is below the checkout or `triton/`.
        lines: the text of each source line that either names, by `file:line`.
        notes: what is missing and why, a sentence each.
        kernel_hash: of the sources, `profiling.fingerprint`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    request: Request
    name: str
    block_m: int
    block_n: int
    stages: int
    threads: int
    registers: int | None
    stack_bytes: int | None
    shared_bytes: int
    tensor_memory_columns: int = 0
    ptx: str
    sass: str
    lines: dict[str, str]
    notes: tuple[str, ...] = ()
    compile_s: float
    triton_version: str
    kernel_hash: str


def make_request(fields: Mapping[str, Any]) -> Request:
    """A request of these fields.

    Raises:
        InputError: one of them is not possible; what, and what is allowed.
    """
    try:
        return Request.model_validate(dict(fields))
    except ValidationError as error:
        raise InputError(first_problem(error).removeprefix("the file: ")) from None


def _either(sides: Sequence[int]) -> str:
    return " or ".join(map(str, sides))


_TILE = re.compile(r"(?:own|(\d+)x(\d+))(?:,(\d*))?(?:,(\d+))?")


def parse_tile(text: str) -> Tile:
    """`128x64`, `128x64,8` (warps), `128x64,8,3` (stages); `own`, or nothing between commas, is the kernel's.

    Raises:
        InputError: it is none of these.
    """
    found = _TILE.fullmatch(text.strip().lower().replace(" ", ""))
    if found is None:
        raise InputError(
            f"a tile must be queries x keys, then warps and stages if you like, such as 128x64 or "
            f"128x64,8,3, or own, got {text!r}"
        )
    return Tile(*(int(side) if side else None for side in found.groups()))


def tile_words(tile: Tile) -> str:
    """The text that `parse_tile` reads back."""
    sides = "own" if tile.block_m is None else f"{tile.block_m}x{tile.block_n}"
    schedule = ["" if x is None else str(x) for x in (tile.warps, tile.stages)]
    return ",".join([sides, *schedule]).rstrip(",")


def formula_bytes(request: Request, block_m: int, block_n: int, stages: int) -> int:
    """Shared memory of a tile by `profiling.model.tile_limits`: what stays lies there once, the rest a stage.

    In dQ queries stay and keys pass, as keys stay and queries pass in dK/dV: its sides change places.
    """
    rows, keys = (block_n, block_m) if request.kernel in ("dq", "hopper_dq") else (block_m, block_n)
    return sram_bytes(request.case, rows, keys, stages)


# -------------------------------------------------------------------------------------------------- cache


def cache_path(folder: Path, request: Request) -> Path:
    """Where an inspection lies below a data folder: by request, kernel sources and Triton's version."""
    kind = KERNELS[request.kernel]
    words = (str(SCHEMA), request.model_dump_json(), kernel_hash(kind.backend), triton_version())
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
    return folder / "cache" / "inspector" / f"{name}.json"


def triton_version() -> str:
    """The version of triton that is installed; "" without one. Triton is not imported."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def cached(folder: Path, request: Request) -> Inspection | None:
    """What an earlier inspection left; None where there is none that is whole."""
    try:
        return Inspection.model_validate_json(cache_path(folder, request).read_bytes())
    except (OSError, ValidationError):
        return None


def keep(folder: Path, inspection: Inspection) -> None:
    """Put an inspection into the cache, the `KEPT` newest stay; a folder that cannot be written has none."""
    path = cache_path(folder, inspection.request)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(inspection.model_dump_json(), encoding="utf-8")
        part.replace(path)  # whole or not at all: a page may be reading
        old = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)[:-KEPT]
        for one in old:
            one.unlink(missing_ok=True)
