"""One `flashscope compare`: its options, what it prints, and the status it ends with."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from profiling.at_hand import DataOption, load_all

EXIT_BROKEN = 4


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, or a comparison CSV: what was before.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is in question; ratios are B / A.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERDICT[=PERCENT]",
            help="Such as slower=5%, faster=5%, ambiguous, or missing (ran in A, not in B); a row that is so "
            f"ends in status {EXIT_BROKEN}. May be given several times.",
        ),
    ] = None,
    metric: Annotated[
        Literal["latency", "memory", "energy"] | None,
        typer.Option(help="Only this.  [default: all that were measured]"),
    ] = None,
    clock: Annotated[
        Literal["wall", "pipelined", "device", "graph", "graph_hot"] | None,
        typer.Option(help="Only latencies of this clock.  [default: all]"),
    ] = None,
    margin: Annotated[
        str, typer.Option(metavar="PERCENT", help="Within this two values are the same.")
    ] = "2%",
    threshold: Annotated[
        str,
        typer.Option(
            metavar="PERCENT", help="Beyond this they differ, where there are no samples or few processes."
        ),
    ] = "5%",
    format: Annotated[Literal["text", "json", "markdown"], typer.Option()] = "text",  # noqa: A002
    every: Annotated[bool, typer.Option("--all", help="List every row, not only what differs.")] = False,
    data: DataOption = None,
) -> None:
    """Compare two runs, GPUs or versions.

    Every case of either, on every clock: same, faster, slower, ambiguous or missing. What else differs
    between the two is told on top.
    """
    from profiling import compare_text
    from profiling.analysis import compare as engine
    from profiling.analysis.regressions import broken, compares_nothing, limit, percent, summary
    from profiling.store import frame, samples_frame

    limits = [limit(text) for text in fail_on or ()]
    limits_of = {"margin": percent(margin, "--margin"), "threshold": percent(threshold, "--threshold")}
    first, second = (load_all(name, data) for name in (a, b))
    found = engine.compare(
        frame(first),
        frame(second),
        samples_frame(first),
        samples_frame(second),
        metrics=tuple(engine.METRICS) if metric is None else (metric,),
        clocks=() if clock is None else (clock,),
        **limits_of,
    )
    told, off = summary(found), broken(found, limits)
    if format == "json":
        print(compare_text.json_text(found, told, off, (a, b)))
    else:
        render = compare_text.plain_text if format == "text" else compare_text.markdown_text
        print(render(found, told, (a, b), every))
    if not limits:
        return
    if off:
        print(compare_text.broken_text(off, fail_on or ()), file=sys.stderr)
    elif compares_nothing(found):
        print("flashscope: not one case ran on both sides, so --fail-on holds nothing", file=sys.stderr)
    else:
        return
    raise typer.Exit(EXIT_BROKEN)
