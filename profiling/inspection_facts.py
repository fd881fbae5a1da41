"""What an inspected kernel takes and consists of, as numbers, as rows beside another's, and in sentences.

Pure: everything is derived from an `Inspection`, whose text of machine code is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from profiling import units
from profiling.assembly import KINDS, Instruction, loads, main_loop, mix, parse_sass, ptx_matrix, spills
from profiling.inspection import KERNELS, Inspection, Request, Tile, formula_bytes, tile_words
from profiling.model.occupancy import (
    MAX_THREAD_REGISTERS,
    TENSOR_MEMORY_COLUMNS,
    WARP_THREADS,
    Occupancy,
    occupancy,
)

Value = int | float | str | None
CONFLICT_METRICS: tuple[str, ...] = tuple(
    f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{way}.sum" for way in ("ld", "st")
)


class Facts(NamedTuple):
    """An inspection with what follows from it.

    Attributes:
        code: the instructions; empty without a disassembly.
        loop: those of the main loop; empty where there is none.
        occupancy: None where registers are not known.
        est_shared_bytes: of a block, by formula.
    """

    inspection: Inspection
    code: list[Instruction]
    loop: list[Instruction]
    occupancy: Occupancy | None
    est_shared_bytes: int

    @property
    def tile(self) -> str:
        """`128×64`, queries by keys."""
        return f"{self.inspection.block_m}×{self.inspection.block_n}"

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.inspection.threads // WARP_THREADS)


def facts(inspection: Inspection) -> Facts:
    """What follows from an inspection."""
    request, code = inspection.request, parse_sass(inspection.sass)
    held = None
    if inspection.registers:
        held = occupancy(
            request.device,
            threads=inspection.threads,
            registers=inspection.registers,
            shared_bytes=inspection.shared_bytes,
            tensor_memory_columns=inspection.tensor_memory_columns,
        )
    formula = formula_bytes(request, inspection.block_m, inspection.block_n, inspection.stages)
    return Facts(inspection, code, main_loop(code), held, formula)


def title(request: Request) -> str:
    """`forward, bf16, d = 128, causal, sm_90`: what is compiled but for its tile."""
    mask = ["causal"] if request.causal else []
    return ", ".join([request.kernel, request.dtype, f"d = {request.head_dim}", *mask, request.target])


def numbers(found: Facts) -> dict[str, Value]:
    """Every figure under a name that ends in its unit, for CSV and JSON; None is unknown.

    `est_shared_bytes` is modelled. `loop_` are instructions of the main loop, `n_` of the whole kernel, each
    counted once.
    """
    x, held = found.inspection, found.occupancy
    spilled = spills(found.code) if found.code else None
    all_loads, loop_loads = (loads(code) if found.code else None for code in (found.code, found.loop))
    counts = {f"n_{_snake(name)}": n for name, n in mix(found.code).items()} if found.code else {}
    counts |= {f"loop_{_snake(name)}": n for name, n in mix(found.loop).items()} if found.loop else {}
    return {
        **x.request.model_dump(include={"kernel", "target", "dtype", "head_dim", "causal"}),
        "block_m": x.block_m,
        "block_n": x.block_n,
        "warps": found.warps,
        "stages": x.stages,
        "threads": x.threads,
        "registers": x.registers,
        "stack_bytes": x.stack_bytes,
        "spill_stores": None if spilled is None else spilled.stores,
        "spill_loads": None if spilled is None else spilled.loads,
        "spill_store_bytes": None if spilled is None else spilled.store_bytes,
        "spill_load_bytes": None if spilled is None else spilled.load_bytes,
        "shared_bytes": x.shared_bytes,
        "est_shared_bytes": found.est_shared_bytes,
        "shared_limit_bytes": x.request.device.sram_bytes,
        "tensor_memory_columns": x.tensor_memory_columns,
        "blocks_per_sm": None if held is None else held.blocks,
        "warps_per_sm": None if held is None else held.warps,
        "occupancy": None if held is None else held.share,
        "limited_by": None if held is None else "; ".join(held.limits),
        "instructions": sum(mix(found.code).values()) if found.code else None,
        "loop_instructions": sum(mix(found.loop).values()) if found.loop else None,
        "loop_instructions_per_score": _per_score(found),
        "loads": None if all_loads is None else all_loads.all,
        "wide_loads": None if all_loads is None else all_loads.wide,
        "loop_loads": None if loop_loads is None else loop_loads.all,
        "loop_wide_loads": None if loop_loads is None else loop_loads.wide,
        **counts,
    }


def _per_score(found: Facts) -> float | None:
    """Instructions of all threads in a step of the main loop, over the scores of a tile.

    Where all warps of a block share each step, as in the portable kernels; None elsewhere.
    """
    x = found.inspection
    if not found.loop or KERNELS[x.request.kernel].backend != "flash_portable":
        return None
    return sum(mix(found.loop).values()) * x.threads / (x.block_m * x.block_n)


def _snake(name: str) -> str:
    return name.replace(" ", "_")


# --------------------------------------------------------------------------------------------- sentences


def verdict(found: Facts) -> str:
    """The answer in a sentence: registers, spills, shared memory, and how full an SM gets."""
    x, held = found.inspection, found.occupancy
    limit = units.bytes_text(x.request.device.sram_bytes)
    parts = [
        f"{units.count_text(x.registers)} registers a thread" if x.registers else "registers unknown",
        spill_text(found),
        f"{units.bytes_text(x.shared_bytes)} of {limit} shared memory",
    ]
    if held is not None and held.blocks:
        blocks = "1 block" if held.blocks == 1 else f"{units.count_text(held.blocks)} blocks"
        parts.append(
            f"{blocks} an SM, {held.warps} of {held.max_warps} warps ({units.percent_text(held.share)}), "
            f"limited by {' and '.join(held.limits)}"
        )
    stages = "1 stage" if x.stages == 1 else f"{units.count_text(x.stages)} stages"
    return f"{found.tile}, {units.count_text(found.warps)} warps, {stages}: {'; '.join(parts)}."


_NEVER = "It compiles but cannot be launched"


def problems(found: Facts) -> list[str]:
    """Why the kernel cannot be launched, or is not what it was asked to be; a sentence each."""
    x, out = found.inspection, []
    limit = x.request.device.sram_bytes
    if limit is not None and x.shared_bytes > limit:
        out.append(
            f"{_NEVER}: it needs {units.bytes_text(x.shared_bytes)} of shared memory, and a block on "
            f"{x.request.target} can have {units.bytes_text(limit)}. Take a smaller tile or fewer stages."
        )
    if x.tensor_memory_columns > TENSOR_MEMORY_COLUMNS:
        columns = units.count_text(x.tensor_memory_columns)
        out.append(
            f"{_NEVER}: it needs {columns} columns of tensor memory, and an SM has {TENSOR_MEMORY_COLUMNS}; "
            "the compiler left a kernel that only stops. Take a smaller tile."
        )
    if found.occupancy is not None and not found.occupancy.by_limit["registers"]:
        out.append(
            f"{_NEVER}: {units.count_text(x.threads)} threads with {units.count_text(x.registers)} registers "
            "each exceed the register file of an SM."
        )
    if x.registers == MAX_THREAD_REGISTERS and spills(found.code).stores:
        out.append("A thread has all 255 registers and spills: a smaller tile or more warps need fewer.")
    return [*out, *x.notes]


def spill_text(found: Facts) -> str:
    """What goes through local memory, and how much of it in the main loop."""
    if not found.code:
        return "spills unknown"
    spilled = spills(found.code)
    if not spilled.stores and not spilled.loads:
        return "no spills"
    inside = mix(found.loop)["spill"] if found.loop else 0
    return (
        f"{units.count_text(spilled.stores)} stores and {units.count_text(spilled.loads)} loads of spilled "
        f"registers ({units.bytes_text(spilled.store_bytes)} and {units.bytes_text(spilled.load_bytes)} a "
        f"thread), {units.count_text(inside)} of them in the main loop"
    )


CONFLICTS = (
    "Bank conflicts of shared memory are counted by a running GPU, and no run file holds them: `flashscope "
    "counters` reads bytes and the use of tensor cores. On a machine with the GPU, this counts those of one "
    "launch:"
)
CONFLICTS_MEANING = (
    "These are conflicts of ordinary loads and stores. Matrix instructions and the copy engine use "
    "shared memory in layouts that the compiler swizzles, which these counters leave out."
)


def conflicts_command(request: Request) -> str:
    """A line for a shell on the GPU's machine: Nsight Compute around one call that launches the kernel."""
    kind = KERNELS[request.kernel]
    dtype = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[request.dtype]
    options = [f"impl='{kind.backend}'"]
    options += ["causal=True"] if request.causal else []
    options += ["deterministic=True"] if request.kernel == "hopper_dq" else []
    if request.block_m is not None and kind.backend == "flash_portable" and request.kernel != "dq":
        options += [f"block_m={request.block_m}, block_n={request.block_n}"]
    backward = "; out.sum().backward()" if kind.direction == "bwd" else ""
    shape = f"1, {request.case.heads}, {request.case.seq_len_q}, {request.head_dim}"
    code = (
        f"import torch, fa_core; q, k, v = (torch.randn({shape}, device='cuda', dtype=torch.{dtype}, "
        f"requires_grad=True) for _ in range(3)); out = fa_core.attention(q, k, v, {', '.join(options)})"
        f"{backward}"
    )
    return (
        f"ncu --metrics {','.join(CONFLICT_METRICS)} --kernel-name {request.kernel}_kernel "
        f'--launch-count 1 python -c "{code}"'
    )


def command_words(request: Request, *tiles: Tile) -> list[str]:
    """The words after `flashscope` that inspect a request, with its own tile or with these instead."""
    words = ["inspect", request.kernel, "--target", request.target, "--dtype", request.dtype]
    words += ["--head-dim", str(request.head_dim), *(["--causal"] if request.causal else [])]
    for tile in tiles or (request.tile,):
        if tile != Tile():
            words += ["--tile", tile_words(tile)]
        elif len(tiles) > 1:
            words += ["--tile", "own"]
    return words


# -------------------------------------------------------------------------------------------------- rows


class Row(NamedTuple):
    """A line of the table: what, the text of each kernel, and what the last is beside the first."""

    what: str
    texts: tuple[str, ...]
    difference: str


def rows(found: Sequence[Facts]) -> list[Row]:
    """What each kernel takes, side by side."""
    of = [numbers(x) for x in found]

    def row(what: str, name: str, text: Callable[[Any], str] = units.count_text) -> Row:
        return Row(what, tuple(text(x.get(name)) for x in of), difference(of[0].get(name), of[-1].get(name)))

    def told(what: str, text: Callable[[Facts], str]) -> Row:
        return _told(what, [text(x) for x in found])

    lines = [
        told("tile Br × Bc", lambda x: x.tile),
        row("warps of a block", "warps"),
        row("stages", "stages"),
        row("registers of a thread, at launch (of 255)", "registers"),
        row("local memory of a thread", "stack_bytes", units.bytes_text),
        row("spill stores", "spill_stores"),
        row("spill loads", "spill_loads"),
        row("shared memory of a block, compiled", "shared_bytes", units.bytes_text),
        row("the same by formula", "est_shared_bytes", units.bytes_text),
        row("what a block can have (M)", "shared_limit_bytes", units.bytes_text),
        *(
            [row("tensor memory of a block (of 512 columns)", "tensor_memory_columns")]
            if any(x["tensor_memory_columns"] for x in of)
            else []
        ),
        row("blocks an SM", "blocks_per_sm"),
        row("warps an SM", "warps_per_sm"),
        row("occupancy", "occupancy", units.percent_text),
        told("limited by", lambda x: units.UNKNOWN if x.occupancy is None else ", ".join(x.occupancy.limits)),
        told("matrix instructions in the PTX", _family),
        row("instructions", "instructions"),
        row("instructions of the main loop", "loop_instructions"),
        *(
            [
                row(
                    "main-loop instructions of all threads, per score",
                    "loop_instructions_per_score",
                    units.number_text,
                )
            ]
            if all(x["loop_instructions_per_score"] for x in of)
            else []
        ),
        told("loads of 16 bytes", lambda x: _wide(x, x.code)),
        told("loads of 16 bytes in the main loop", lambda x: _wide(x, x.loop)),
    ]
    return lines if len(found) > 1 else [line._replace(difference="") for line in lines]


def _told(what: str, texts: Sequence[str]) -> Row:
    return Row(what, tuple(texts), "same" if len(set(texts)) == 1 else "differs")


def _family(found: Facts) -> str:
    families = ptx_matrix(found.inspection.ptx)
    return ", ".join(f"{units.count_text(n)} {name}" for name, n in families.items()) or "none"


def _wide(found: Facts, code: Sequence[Instruction]) -> str:
    if not code:
        return units.UNKNOWN if not found.code else "no loop"
    wide, all_ = loads(code)
    return f"{units.count_text(wide)} of {units.count_text(all_)}"


def difference(first: Value, last: Value) -> str:
    """The last beside the first: `same`, `1.5×`, or `+3` where the first is 0; "" where one is unknown."""
    if not isinstance(first, int | float) or not isinstance(last, int | float):
        return ""
    if first == last:
        return "same"
    return units.ratio_text(last / first) if first else f"+{units.number_text(last)}"


class MixRow(NamedTuple):
    """Instructions of a kind: what belongs to it, and the counts of each kernel as (whole, main loop)."""

    kind: str
    what: str
    counts: tuple[tuple[int, int], ...]


def mix_rows(found: Sequence[Facts]) -> list[MixRow]:
    """The instruction mix of kernels side by side; kinds that none has are left out."""
    pairs = [(mix(x.code), mix(x.loop)) for x in found]
    rows_ = [
        MixRow(kind.name, kind.what, tuple((whole[kind.name], loop[kind.name]) for whole, loop in pairs))
        for kind in KINDS
    ]
    return [row for row in rows_ if any(whole for whole, _ in row.counts)]
