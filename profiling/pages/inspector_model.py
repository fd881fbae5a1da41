"""What page Inspector shows: the request behind its controls, tables and charts of what came of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiling.assembly import KINDS, Instruction, Source, by_source, kind_of, ptx_lines
from profiling.figures.instructions import Mix, MixChart
from profiling.inspection import DTYPES, KERNELS, TARGETS, Request, Tile, make_request, tile_words
from profiling.inspection_facts import Facts, mix_rows, numbers, rows

OWN = "own"
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 160, 192, 256)
SIDES = (OWN, "16", "32", "64", "128", "192", "256")
WARPS = (OWN, "1", "2", "4", "8", "16")
STAGES = (OWN, "1", "2", "3", "4", "5")
LOOP, WHOLE = "main loop", "whole kernel"

WORDS = """
The kernel is compiled for the target by Triton, `ptxas` and all, as before a run on such a GPU; nothing is
run, and no GPU is needed. Its input is one sequence of 4096 queries and keys, 16 heads, without features.

- **Registers** are those of a thread at launch. A thread can have 255; what does not fit *spills* to local
  memory, and a spill in the main loop is paid at every step. In the sm_90 kernels groups of warps change
  their registers among each other afterwards.
- **Shared memory** is what a block is launched with. The *formula* (`profiling/model/memory.py`) counts what
  stays on chip once and what passes by once a stage; the compiler adds copies between layouts, row
  statistics and barriers, or lets tiles take turns in one place.
- **Occupancy** is how many warps an SM holds of those that it could, by the rules of NVIDIA's occupancy
  calculator: as many blocks as registers, shared memory and warps allow. Few are not bad as such: large
  tiles hide latency within a block.
- **The main loop** is the innermost loop with most matrix instructions, found in the machine code. Its
  instructions run once a step; those outside run once a block.
- **Loads of 16 bytes** are the widest of a thread. On sm_90 and sm_100 tiles may be moved by the copy
  engine (TMA) instead, and matrix instructions read shared memory themselves: then there are few loads.
- Instructions are counted as they stand, each once, however often it runs.
"""


def targets(kernel: str) -> list[str]:
    """The targets that a kernel can be compiled for."""
    return ["sm_90"] if KERNELS[kernel].backend == "flash_hopper" else list(TARGETS)


def dtypes(kernel: str) -> list[str]:
    """The dtypes that a kernel takes."""
    return [d for d in DTYPES if d != "fp32" or KERNELS[kernel].backend != "flash_hopper"]


def tile(block_m: str, block_n: str, warps: str, stages: str) -> Tile:
    """A tile from what the controls hold: numbers as text, or `OWN`."""
    return Tile(*(None if word == OWN else int(word) for word in (block_m, block_n, warps, stages)))


def request(kernel: str, target: str, dtype: str, head_dim: int, causal: bool, asked: Tile) -> Request:
    """The request behind the controls.

    Raises:
        InputError: it cannot be; what is wrong and what is allowed.
    """
    base = {"kernel": kernel, "target": target, "dtype": dtype, "head_dim": head_dim, "causal": causal}
    return make_request(base | asked._asdict())


def labels(found: Sequence[Facts]) -> list[str]:
    """A name for each tile that is no other's: the tile, with A and B before it where there are two."""
    names = []
    for x in found:
        stages = "1 stage" if x.inspection.stages == 1 else f"{x.inspection.stages} stages"
        names.append(f"{x.tile}, {x.warps} warps, {stages}")
    return names if len(names) == 1 else [f"{a}: {name}" for a, name in zip("AB", names, strict=True)]


def takes_table(found: Sequence[Facts]) -> pd.DataFrame:
    """What each kernel takes, as text; with two, what the second is beside the first."""
    out = []
    for row in rows(found):
        line = {"": row.what} | dict(zip(labels(found), row.texts, strict=True))
        out.append(line | ({"B / A": row.difference} if len(found) > 1 else {}))
    return pd.DataFrame(out)


def numbers_table(found: Sequence[Facts]) -> pd.DataFrame:
    """Every figure, a row a kernel; whole numbers stay whole where one is unknown."""
    frame = pd.DataFrame([{"tile": tile_words(x.inspection.request.tile)} | numbers(x) for x in found])
    whole = [c for c in frame.columns if c != "occupancy" and frame[c].map(_is_count).all()]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def _is_count(value: Any) -> bool:
    """Whether a figure is a whole number, or one that is not known."""
    return pd.isna(value) or (not isinstance(value, bool | str) and float(value).is_integer())


def mix_chart(found: Sequence[Facts], part: str) -> MixChart:
    """The kinds of instructions of `part`, one kernel beside the other; kinds that none has are left out."""
    place = 1 if part == LOOP else 0
    kept = [row for row in mix_rows(found) if any(counts[place] for counts in row.counts)]
    mixes = tuple(
        Mix(label, tuple(row.counts[i][place] for row in kept)) for i, label in enumerate(labels(found))
    )
    return MixChart(tuple(row.kind for row in kept), tuple(row.what for row in kept), mixes)


def mix_table(found: Sequence[Facts]) -> pd.DataFrame:
    """The counts of the chart, of the whole kernel and of its main loop."""
    out = []
    for row in mix_rows(found):
        line: dict[str, Any] = {"kind": row.kind, "what": row.what}
        for label, (whole, loop) in zip(labels(found), row.counts, strict=True):
            line |= {label: whole, f"{label}, {LOOP}": loop}
        out.append(line)
    return pd.DataFrame(out)


def shown_kinds(found: Facts) -> list[str]:
    """What the code can be narrowed to: all, the main loop, and each kind that there is."""
    present = {kind_of(x.opcode) for x in found.code}
    loop = [LOOP] if found.loop else []
    return [WHOLE, *loop, *(kind.name for kind in KINDS if kind.name in present)]


def sass_table(found: Facts, shown: str) -> pd.DataFrame:
    """A row an instruction: its address, text, kind, and the source line that it was compiled from."""
    in_loop = {x.address for x in found.loop}

    def wanted(x: Instruction) -> bool:
        return shown == WHOLE or (x.address in in_loop if shown == LOOP else kind_of(x.opcode) == shown)

    return pd.DataFrame(
        [
            {
                "address": f"{x.address:04x}",
                "instruction": x.text,
                "kind": kind_of(x.opcode),
                "loop": x.address in in_loop,
                **_source(found, x.source),
            }
            for x in found.code
            if wanted(x)
        ]
    )


def ptx_table(found: Facts) -> pd.DataFrame:
    """A row a line of the PTX, with its source line."""
    return pd.DataFrame([{"ptx": x.text} | _source(found, x.source) for x in ptx_lines(found.inspection.ptx)])


def source_table(found: Facts) -> pd.DataFrame:
    """A row a source line: how many instructions came of it, of the main loop among them, and which kinds."""
    in_loop = by_source(found.loop)
    out = []
    for source, counts in by_source(found.code).items():
        line: dict[str, Any] = _source(found, source)
        line |= {"instructions": sum(counts.values()), LOOP: sum(in_loop.get(source, {}).values())}
        out.append(line | {kind: n for kind, n in counts.items() if kind != "other"})
    frame = pd.DataFrame(out)
    return frame[[c for c in frame.columns if c in ("line", "source") or frame[c].any()]]


def _source(found: Facts, source: Source | None) -> dict[str, Any]:
    place = "" if source is None else source.place
    return {"line": place, "source": found.inspection.lines.get(place, "")}
