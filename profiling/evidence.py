"""`flashscope tiles` and `flashscope numerics`: their options, and the tables that they print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from profiling.at_hand import DataOption, load_one, reject


def tiles(
    run: Annotated[str, typer.Argument(metavar="RUN_OR_FILE", help="A run that asked for tiles.")],
    backend: Annotated[
        Literal["flash", "flash_portable", "tiled"] | None,
        typer.Option(help="Whose tiles.  [default: flash where it has some]", show_default=False),
    ] = None,
    clock: Annotated[
        Literal["wall", "pipelined", "device", "graph", "graph_hot"] | None,
        typer.Option(help="Whose latencies.  [default: device where there is one]", show_default=False),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every tile, with what it costs and asks for.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    data: DataOption = None,
) -> None:
    """Say which tile is fastest.

    For every shape and N of a run that asked for tiles: the best tile and how sure that is, what the
    backend's own choice costs beside it, what a latency model fitted to other shapes would have picked and
    what that costs, and how near the best is to the limits of shared memory, registers and whole waves.
    """
    from profiling.analysis.tile_choice import tile_choices
    from profiling.analysis.tiles import is_asked
    from profiling.evidence_text import tiles_text
    from profiling.store import frame, samples_frame

    loaded = load_one(run, data)
    table = frame(loaded)
    present = table[is_asked(table)]
    if present.empty:
        reject(
            f"{run}: asked for no tile: measure some with `flashscope run data/sweeps/tiles.toml`, or "
            "another sweep with `tile`"
        )
    chosen = backend or _usual("flash", present["backend"].tolist())
    own = present[present["backend"] == chosen]
    timed = clock or _usual("device", own["clock"].tolist())
    found = tile_choices(table, samples_frame(loaded), backend=chosen, clock=timed, seed=seed)
    if not found:
        pairs = present[["backend", "clock"]].drop_duplicates().itertuples(index=False, name=None)
        there = ", ".join(f"{name} on {each}" for name, each in pairs)
        reject(f"{run}: asked for no tile of {chosen} on clock {timed or 'device'}: there is {there}")
    print(tiles_text(found, loaded.run_id, timed, every))


def _usual(wanted: str, present: Sequence[str]) -> str:
    """What is wanted if it is there, else what comes first; empty where nothing is."""
    return wanted if wanted in present else next(iter(present), "")


def numerics(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN_OR_FILE]", help="Whose errors.", show_default=False)
    ] = None,
    tensor: Annotated[
        Literal["out", "lse", "dq", "dk", "dv", "dbias", "dsinks"] | None,
        typer.Option(help="Only this.  [default: all]"),
    ] = None,
    scales: Annotated[
        str | None,
        typer.Option(
            metavar="S,S,...",
            help="Compute on this CPU, too, how the error grows with the logits, such as 1,4,16,64.",
        ),
    ] = None,
    by: Annotated[
        Literal["seq_len", "head_dim", "both"] | None,
        typer.Option(help="Split the summary by N, by d or by both, too.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every case instead of a summary.")] = False,
    format: Annotated[Literal["text", "json"], typer.Option()] = "text",  # noqa: A002 - the option's name
    data: DataOption = None,
) -> None:
    """Say how right the results are.

    Errors against the fp64 oracle by backend, dtype, direction and tensor, beside eager attention's own on
    the same inputs, and what of the error rule they use up. With --scales also, computed here, what larger
    logits do to eager attention and to the tile algorithm.
    """
    from profiling import evidence_text
    from profiling.analysis.numerics import error_points

    if run is None and scales is None:
        reject("nothing to show: name a run, or logits to compute with, such as --scales 1,4,16,64")
    points = [] if run is None else error_points(load_one(run, data).measurements)
    if run is not None and not points:
        reject(f"{run}: holds no error: no case of it was compared with the oracle")
    points = [point for point in points if tensor in (None, point.tensor)]
    if run is not None and not points:
        reject(f"--tensor {tensor}: no case of {run} has it")
    computed = []
    if scales is not None:
        from profiling.lab.logit_scale import scale_errors

        found = scale_errors(numbers(scales))
        computed = [one for one in found if tensor in (None, one.tensor)]
    if format == "json":
        print(json.dumps(evidence_text.numerics_json(points, computed), indent=1, allow_nan=False))
        return
    if points:
        split = ("seq_len", "head_dim") if by == "both" else () if by is None else (by,)
        print(evidence_text.errors_text(points) if every else evidence_text.summary_text(points, split))
    if computed:
        print(evidence_text.scales_text(computed))


def numbers(text: str) -> list[float]:
    """`1,4,16` as numbers.

    Raises:
        InputError: something in it is no number.
    """
    found = []
    for word in text.split(","):
        try:
            found.append(float(word))
        except ValueError:
            reject(f"--scales must be numbers with commas between them, such as 1,4,16, got {word.strip()!r}")
    return found
