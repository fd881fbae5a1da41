"""`flashscope tiles` and `flashscope numerics`: their options, and the tables that they print."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from profiling.at_hand import DataOption, load_one, reject


def tiles(
    run: Annotated[str, typer.Argument(metavar="RUN_OR_FILE", help="A run that asked for tiles.")],
    backend: Annotated[Literal["flash", "tiled"], typer.Option(help="Whose tiles.")] = "flash",
    clock: Annotated[
        Literal["wall", "pipelined", "device", "graph", "graph_hot"],
        typer.Option(help="Whose latencies; a CPU has wall and pipelined."),
    ] = "device",
    every: Annotated[
        bool, typer.Option("--all", help="Every tile, with what it costs and asks for.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    data: DataOption = None,
) -> None:
    """Say which tile is fastest, how sure that is, and what another costs.

    For every shape and N of a run that asked for tiles: the best tile, what the backend's own choice costs
    beside it, what a latency model fitted to other shapes would have picked and what that costs, and how near
    the best is to the limits of shared memory, registers and whole waves of blocks.
    """
    from profiling.analysis.tile_choice import tile_choices
    from profiling.evidence_text import tiles_text
    from profiling.store import frame, samples_frame

    loaded = load_one(run, data)
    found = tile_choices(frame(loaded), samples_frame(loaded), backend=backend, clock=clock, seed=seed)
    if not found:
        reject(
            f"{run}: no tile of {backend} was asked for on clock {clock}: measure some with "
            "`flashscope run data/sweeps/tiles.toml`"
        )
    print(tiles_text(found, loaded.run_id, clock, every))


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
        print((evidence_text.errors_text if every else evidence_text.summary_text)(points))
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
