"""`flashscope trace`: what the lab computes on this CPU, with its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from profiling.at_hand import reject


def trace(
    seq_len: Annotated[int, typer.Option(help="Queries and keys N, up to 128.")] = 32,
    head_dim: Annotated[int, typer.Option(help="Head dim d, up to 64.")] = 8,
    block_m: Annotated[int, typer.Option(help="Query rows of a tile (Br).")] = 8,
    block_n: Annotated[int, typer.Option(help="Keys of a tile (Bc).")] = 8,
    causal: Annotated[bool, typer.Option("--causal", help="With a causal mask.")] = False,
    seed: Annotated[int, typer.Option(help="Of the input, drawn from a standard normal.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File to write.  [default: standard output]")] = None,
) -> None:
    """Write what the tile algorithm holds after each tile, as JSON.

    Forward and backward of one head in fp32 on this CPU, as `fa_core.tiled` walks them: scores, running
    maximum and sum, rescale factor, output before and after. Page Algorithm plays it.
    """
    from profiling.lab.trace import Walk
    from profiling.lab.trace import trace as walked

    text = json.dumps(walked(Walk(seq_len, head_dim, block_m, block_n, causal, seed)), allow_nan=False)
    if out is None:
        print(text)
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        reject(f"--out {out}: cannot be written: {error.strerror}")
    print(f"{out}: {len(json.loads(text)['steps'])} steps")
