"""One `flashscope report`: its options, and the file that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from profiling.at_hand import DataOption, load_one, reject


def report(
    run: Annotated[str, typer.Argument(metavar="RUN_OR_FILE", help="A run, or a comparison CSV.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    baseline: Annotated[
        str | None, typer.Option(help="Backend, or backend/variant, to be overtaken.  [default: naive]")
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(help="Backend, or backend/variant, that may overtake.  [default: flash]")
    ] = None,
    clock: Annotated[
        Literal["wall", "pipelined", "device", "graph", "graph_hot"] | None,
        typer.Option(help="Of speed-ups and charts.  [default: device where there is one]"),
    ] = None,
    data: DataOption = None,
) -> None:
    """Write a run's overview as one HTML file.

    Sentences, crossovers, charts of speed-up, latency, memory and traffic, flags, failures and where the
    numbers come from. It opens in a browser without a network, and each chart saves as SVG or PNG.
    """
    from profiling import run_report
    from profiling.analysis.axes import (
        clocks,
        names,
        only_counters,
        usual_baseline,
        usual_candidate,
        with_axes,
    )
    from profiling.analysis.curves import untiled
    from profiling.analysis.summary import overview
    from profiling.devices import device_of
    from profiling.store import frame, samples_frame

    loaded = load_one(run, data)
    rows = untiled(with_axes(frame(loaded)))
    if rows.empty or only_counters(rows):
        reject(f"{run}: nothing of it was timed with the backends' own tiles, so there is nothing to compare")
    present = names(rows)
    first = baseline or usual_baseline(present)
    second = candidate or usual_candidate(present, first)
    for option, name in (("--baseline", first), ("--candidate", second)):
        if name not in present:
            reject(f"{option} {name}: {run} has {', '.join(present)}")
    if first == second:
        reject(f"{run}: compares nothing: baseline and candidate are both {first}, of {', '.join(present)}")
    if clock is not None and clock not in clocks(rows):
        reject(f"--clock {clock}: {run} has {', '.join(clocks(rows))}")
    found = overview(rows, samples_frame(loaded), baseline=first, candidate=second, clock=clock)
    text = run_report.to_html(loaded, rows, found, device_of(loaded.header.environment))
    try:
        out.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        reject(f"--out {out}: cannot be written: {error.strerror}")
    print(f"{out}: {len(found.rows)} shapes, {found.candidate} against {found.baseline}")
