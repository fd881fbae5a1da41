"""`flashscope trace` and `flashscope safeguards`: what the lab computes on this CPU, with their options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

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


def safeguards(
    inputs: Annotated[
        Literal["random", "large", "long", "outliers", "masked"],
        typer.Option(help="Standard normal; large logits; long rows; a few outliers; queries without a key."),
    ] = "random",
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    format: Annotated[Literal["text", "json"], typer.Option()] = "text",  # noqa: A002 - the option's name
) -> None:
    """Say what each safeguard of the algorithm is for.

    The tile algorithm with one safeguard left out at a time, in every dtype, against fp64; TF32 (imitated by
    rounding) beside true fp32; sums that stall; the order of a sum; and, beside the errors that
    FlashAttention-3 printed, those of the same inputs here.
    """
    from profiling.lab import safeguards as lab
    from profiling.lab import sums

    found: dict[str, Any] = {
        "inputs": inputs,
        "seed": seed,
        "errors": [error._asdict() for error in lab.errors(inputs, seed=seed)],
        "ones": [one._asdict() for one in sums.ones()],
        "orders": [one._asdict() for one in sums.orders(seed)],
        "rmse": lab.rounded_twice(seed),
    }
    print(json.dumps(found, allow_nan=False) if format == "json" else _text(found))


def _text(found: dict[str, Any]) -> str:
    from profiling.terminal import table
    from profiling.units import count_text, number_text

    def shown(error: dict[str, Any]) -> str:
        bad = error["not_finite"]
        return f"{count_text(bad)} not finite" if bad else number_text(error["rel_error"])

    by_row: dict[tuple[str, str], list[str]] = {}
    for error in found["errors"]:
        by_row.setdefault((error["dtype"], error["left_out"]), []).append(shown(error))
    rows = [(*key, *errors) for key, errors in by_row.items()]
    last: dict[tuple[str, str], dict[str, Any]] = {(x["dtype"], x["order"]): x for x in found["ones"]}
    sums = [
        (*key, count_text(x["terms"]), "inf" if x["sum"] is None else number_text(x["sum"]))
        for key, x in last.items()
    ]
    orders = [(x["dtype"], x["order"], number_text(x["rel_error"])) for x in found["orders"]]
    rmse = [(way, number_text(x["total"]), number_text(x["algorithm"])) for way, x in found["rmse"].items()]
    return "\n\n".join(
        (
            f"Relative error against fp64, inputs {found['inputs']}, seed {found['seed']}\n"
            + table(("dtype", "left out", "out", "dq", "dk", "dv"), rows),
            "A sum of ones\n" + table(("dtype", "order", "terms", "sum"), sums),
            "A softmax row's sum of 8192 terms, relative error\n"
            + table(("dtype", "order", "error"), orders),
            "RMSE of fp16 outputs on inputs with outliers (FlashAttention-3, table 3: eager 3.2e-4, "
            "FlashAttention-2 and -3 1.9e-4)\n"
            + table(("way", "from inputs as drawn", "from inputs in fp16"), rmse),
        )
    )
