"""One `flashscope inspect`: its options, the compilation, and what it prints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from profiling.at_hand import DataOption, data_dir, reject

if TYPE_CHECKING:
    from profiling.assembly import Source
    from profiling.inspection import Inspection, Request
    from profiling.inspection_facts import Facts

_SOURCE_ROWS = 20
_CODE_WIDTH = 72


def inspect(
    kernel: Annotated[
        Literal["forward", "dkdv", "dq", "hopper_forward", "hopper_backward", "hopper_dq"],
        typer.Argument(help="Which kernel; those of sm_90 begin with hopper_."),
    ],
    target: Annotated[
        Literal["sm_80", "sm_90", "sm_100"], typer.Option(help="For which GPUs; none need be there.")
    ] = "sm_90",
    dtype: Annotated[Literal["bf16", "fp16", "fp32"], typer.Option(help="Of q, k and v.")] = "bf16",
    head_dim: Annotated[int, typer.Option(help="d, up to 256.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="With a causal mask.")] = False,
    tile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BRxBC[,WARPS[,STAGES]]",
            help="Queries x keys, such as 128x64 or 128x64,8,3; own: the kernel's. Twice: side by side.",
        ),
    ] = None,
    show: Annotated[
        Literal["sass", "ptx", "sources"] | None,
        typer.Option(help="Print the machine code, the PTX, or instructions by source line, too."),
    ] = None,
    format: Annotated[Literal["text", "json"], typer.Option()] = "text",  # noqa: A002 - the option's name
    fresh: Annotated[bool, typer.Option("--fresh", help="Compile although the cache has it.")] = False,
    data: DataOption = None,
) -> None:
    """Say what a kernel takes of a GPU, by compiling it.

    Registers, spills, shared memory beside the formula, occupancy, and the instructions by kind, of the whole
    kernel and of its main loop. No GPU is needed. Two tiles stand side by side. Results are kept in cache/ of
    the data folder.
    """
    from profiling.inspection import cached, keep, make_request, parse_tile
    from profiling.inspection_facts import facts, numbers

    folder = data_dir(data)
    tiles = [parse_tile(text) for text in tile or ["own"]]
    if len(tiles) > 2:
        reject(f"--tile can be given twice, to see two side by side, got {len(tiles)}")
    base = {"kernel": kernel, "target": target, "dtype": dtype, "head_dim": head_dim, "causal": causal}
    found = []
    for request in [make_request(base | one._asdict()) for one in tiles]:
        kept = None if fresh else cached(folder, request)
        if kept is None:
            kept = _compiled(request)
            keep(folder, kept)
        found.append(facts(kept))
    if format == "json":
        whole = [{"numbers": numbers(x), "inspection": x.inspection.model_dump(mode="json")} for x in found]
        print(json.dumps(whole, allow_nan=False))
        return
    print(inspection_text(found))
    if show is not None:
        for x in found:
            print("\n" + _SHOWN[show](x))


def _compiled(request: Request) -> Inspection:
    """Compile here: this command is the process of its own that compilation happens in."""
    from profiling.inspection import tile_words

    # The interpreter is for tests, and would stand in the compiler's place.
    os.environ.pop("TRITON_INTERPRET", None)
    try:
        from profiling.lab.kernels import inspect as compiled
    except ModuleNotFoundError as error:
        reject(f"{error.name} is not installed: kernels are compiled with torch and triton, on Linux")
    print(
        f"compiling {request.kernel}, tile {tile_words(request.tile)}, for {request.target}", file=sys.stderr
    )
    return compiled(request)


# --------------------------------------------------------------------------------------------------- text


def inspection_text(found: Sequence[Facts]) -> str:
    """What one kernel takes, or two side by side: sentences, then tables."""
    from profiling.inspection_facts import (
        CONFLICTS,
        CONFLICTS_MEANING,
        conflicts_command,
        mix_rows,
        problems,
        rows,
        title,
        verdict,
    )
    from profiling.terminal import table
    from profiling.units import count_text

    request = found[0].inspection.request
    lines = [f"{title(request)}, compiled for N = {request.case.seq_len_q}; nothing was run"]
    for x in found:
        lines += [verdict(x), *problems(x)]
    names = [x.tile for x in found]
    several = len(found) > 1
    taken = [(r.what, *r.texts, *([r.difference] if several else [])) for r in rows(found)]
    lines += ["", table(("", *names, *(["last / first"] if several else [])), taken)]
    mixes = mix_rows(found)
    if mixes:
        header = ["instructions", *(word for name in names for word in (name, "main loop")), "what"]
        body = [(r.kind, *(count_text(n) for pair in r.counts for n in pair), r.what) for r in mixes]
        lines += ["", "Counted as they stand, each once", table(header, body)]
    lines += ["", CONFLICTS, f"    {conflicts_command(request)}", CONFLICTS_MEANING]
    return "\n".join(lines)


def sass_text(found: Facts) -> str:
    """The machine code; beside an instruction its source line, where that changes."""
    lines = []
    for x in found.code:
        lines += [(f"{label}:", None) for label in x.labels]
        lines.append((f"{x.address:#06x}  {x.text}", x.source))
    return _beside_source(f"SASS of {found.inspection.name}, tile {found.tile}", lines, found)


def ptx_text(found: Facts) -> str:
    """The PTX; beside a line its source line, where that changes."""
    from profiling.assembly import ptx_lines

    return _beside_source(
        f"PTX of {found.inspection.name}, tile {found.tile}", ptx_lines(found.inspection.ptx), found
    )


def _beside_source(head: str, lines: Iterable[tuple[str, Source | None]], found: Facts) -> str:
    out, last = [head], None
    for text, source in lines:
        told = ""
        if source is not None and source != last:
            last = source
            told = f"  // {source.place}  {found.inspection.lines.get(source.place, '')}"
        out.append(f"{text:{_CODE_WIDTH}}{told}".rstrip())
    return "\n".join(out)


def sources_text(found: Facts) -> str:
    """The source lines that most instructions come from, and the matrix, exp and 16-byte ones among them."""
    from profiling.assembly import by_source
    from profiling.terminal import table
    from profiling.units import count_text

    rows = []
    for source, counts in list(by_source(found.code).items())[:_SOURCE_ROWS]:
        place = "unknown" if source is None else source.place
        kinds = [counts["matrix"], counts["exp"], counts["global"] + counts["shared"], counts["spill"]]
        texts = [count_text(n) for n in (sum(counts.values()), *kinds)]
        rows.append((*texts, place, found.inspection.lines.get(place, "")))
    header = ("instructions", "matrix", "exp", "memory", "spill", "line", "source")
    return f"{found.inspection.name}, tile {found.tile}, by source line\n{table(header, rows)}"


_SHOWN = {"sass": sass_text, "ptx": ptx_text, "sources": sources_text}
