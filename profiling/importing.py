"""One `flashscope import`: its options, what it writes, and what it says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from profiling.at_hand import DataOption, data_dir

Family = Literal[
    "comparison",
    "liger",
    "attention_gym",
    "perf_report",
    "tritonbench",
    "sdpa_script",
    "flash_log",
    "tile_log",
    "generic",
]


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="A table, or a run file. Several are taken for one run."),
    ],
    family: Annotated[
        Family | None, typer.Option("--as", help="Whose format it is.  [default: by its header]")
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=ROLE",
            help="What a column holds: a field (N=seq_len), 'tuple(batch,heads,_)', 'json(B=batch)', a value "
            "with metric and unit ('latency us, backend=flash, direction=fwd', 'memory MiB, above=nothing', "
            "'throughput TFLOP/s, flops=paper'), 'speedup naive/flash', extra, or ignore.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="What the file does not say, such as heads=16."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="WORD=OURS", help="What a word stands for, such as aten=naive."),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between columns: , ; tab or |.  [default: as the rows show]")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Of numbers: . or ,  [default: as they show, else asked for]")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the new run.  [default: the file's, and a hash of it]")
    ] = None,
    set_aside: Annotated[
        Path | None, typer.Option(help="File for the rows that are not used, each with its reason.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Take in a table or a run file.

    It becomes a run of its own in the data folder. Nothing is guessed and nothing dropped: what the file
    does not say is asked for, and the last line says how many rows were read, used and set aside.
    """
    from profiling.case import InputError
    from profiling.importers import Settings, aside_csv, import_tables
    from profiling.store import run_path, save_run

    folder = data_dir(data) / "runs"
    settings = Settings(
        maps=tuple(maps or ()),
        sets=tuple(sets or ()),
        names=tuple(names or ()),
        delimiter={"tab": "\t", "\\t": "\t"}.get(delimiter or "", delimiter),
        decimal=decimal,
        run_id=run_id,
    )
    found = import_tables(files, family, settings)
    if set_aside is not None:
        try:
            set_aside.write_text(aside_csv(found), encoding="utf-8", newline="")
        except OSError as error:
            raise InputError(f"--set-aside {set_aside}: cannot be written: {error.strerror}") from None
    for path in (run_path(folder, run.run_id) for run in found.runs):
        if path.exists():  # before any of several is written
            raise InputError(f"{path}: exists already; nothing was written (--run-id gives another name)")
    for run in found.runs:
        path = save_run(run, folder)
        for problem in run.problems:
            if problem != found.summary:  # which comes last
                print(f"note: {problem}")
        print(f"{path}: {len(run.measurements)} cases")
    print(found.summary)
