"""The command line: `flashscope`, or `python -m profiling`. Thin; each command imports what it needs.

Exit codes: 0 done (every planned case has its row, or the budget is used up), 2 rejected input (or a disk
that takes no more rows), 3 interrupted, 4 a row that `compare --fail-on` does not allow.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from profiling.at_hand import DataOption, data_dir, load_all, load_one, reject, run_file
from profiling.comparing import compare
from profiling.evidence import numerics, tiles
from profiling.experiments import safeguards, trace
from profiling.importing import import_
from profiling.inspecting import inspect
from profiling.reporting import report

EXIT_REJECTED = 2
EXIT_INTERRUPTED = 3

app = typer.Typer(
    name="flashscope",
    help="From which sequence length on does FlashAttention pay off, for your shapes on your GPU? "
    "Measure it (run), ask for the answer (crossover), see it (app).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run file, or a run's id (see `list`).")]


@app.command()
def run(
    sweep: Annotated[
        Path | None, typer.Argument(metavar="SWEEP", help="A sweep file, such as data/sweeps/quick.toml.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, cuda:1, ...  [default: cuda:0]")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the new run file.  [default: runs/ of the data folder]")
    ] = None,
    backends: Annotated[
        str | None, typer.Option(help="Only these backends of the sweep, such as naive,flash.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="A run file to go on with: only cases without a row are measured.")
    ] = None,
    force_resume: Annotated[
        bool,
        typer.Option(
            "--force-resume", help="Resume even if device, versions or commit differ; rows say which."
        ),
    ] = False,
    git_commit: Annotated[
        str | None, typer.Option(help="The commit of this code, where there is no .git to ask.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run and its file.  [default: date, sweep and device]")
    ] = None,
    label: Annotated[str, typer.Option(help="A few words to recognise the run by.")] = "",
    executor: Annotated[
        Literal["local", "ray"], typer.Option(help="ray: every GPU of a ray cluster, a series of N each.")
    ] = "local",
    refine: Annotated[
        bool, typer.Option("--refine", help="Then measure further N between those where a sign changes.")
    ] = False,
    refine_to: Annotated[
        float | None,
        typer.Option(
            metavar="WIDTH",
            help="How wide such a bracket may stay, relative to N; implies --refine.  [0.125]",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Stop after 90s, 10m or 1.5h; what tells most of a crossover comes first."
        ),
    ] = None,
    energy: Annotated[
        Literal["all", "brackets"] | None,
        typer.Option(help="Energy per call, a second and more each: of all cases, or around sign changes."),
    ] = None,
    remeasure: Annotated[
        Literal["flagged", "failed"] | None,
        typer.Option(help="With --resume: measure these rows again; the new row counts."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Measure a sweep.

    Every case gets a row, whatever happens to it. Rows are safe as soon as they are made: Ctrl-C ends the
    run and loses nothing finished, --resume goes on with it. A second run on the same device waits for
    the first.
    """
    from profiling.agenda import seconds, width
    from profiling.runner import Request
    from profiling.runner import run as measure
    from profiling.terminal import summary_text

    request = Request(
        sweep=sweep,
        device=device,
        out=out or data_dir(data) / "runs",
        backends=None if backends is None else tuple(filter(None, (x.strip() for x in backends.split(",")))),
        resume=resume,
        force_resume=force_resume,
        git_commit=git_commit,
        run_id=run_id,
        label=label,
        executor=executor,
        argv=tuple(sys.argv),
        refine_to=width(refine_to) if refine or refine_to is not None else None,
        budget_s=None if budget is None else seconds(budget),
        energy=energy,
        remeasure=remeasure,
    )
    result = measure(request)
    print(summary_text(result))
    if result.status != "finished":
        options = {
            "--device": device,
            "--backends": backends,
            "--refine-to": request.refine_to,
            "--energy": energy,
            "--remeasure": remeasure,
            "--executor": None if executor == "local" else executor,
            "--git-commit": git_commit,  # without it, another environment
            "--resume": result.path,
        }
        named = [] if sweep is None else [str(sweep)]
        given = [str(word) for option in options.items() if option[1] is not None for word in option]
        print(f"Go on with: {shlex.join(['flashscope', 'run', *named, *given])}")
    if result.status == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


@app.command("list")
def list_(data: DataOption = None) -> None:
    """List the runs at hand."""
    from profiling.store import list_runs
    from profiling.terminal import run_list

    infos = list_runs(data_dir(data))
    print(run_list(infos) if infos else f"no runs below {data_dir(data)}: make one with `flashscope run`")


@app.command()
def show(
    run: RunArgument,
    clock: Annotated[str, typer.Option(help="Latencies of this clock.  [default: the run's first]")] = "",
    limits: Annotated[
        bool, typer.Option("--limits", help="Instead: how near each case is to what the device allows.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Show every case of a run.

    Latency, memory, error against the fp64 oracle (and relative to eager's own), flags, status and reason.
    """
    from profiling.terminal import roofs_text, run_text

    print((roofs_text if limits else run_text)(load_one(run, data), clock))


@app.command()
def export(
    run: RunArgument,
    format: Annotated[  # noqa: A002 - the option's name
        Literal["csv", "json"], typer.Option(help="csv: one row per case and clock. json: everything.")
    ] = "csv",
    out: Annotated[Path | None, typer.Option(help="File to write.  [default: standard output]")] = None,
    data: DataOption = None,
) -> None:
    """Write a run as CSV or JSON.

    The CSV imports back to the last digit.
    """
    from profiling.export import to_csv, to_json
    from profiling.store import frame

    loaded = load_one(run, data)
    text = to_csv(frame(loaded)) if format == "csv" else to_json(loaded)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        reject(f"--out {out}: cannot be written: {error.strerror}")
    print(f"{out}: {len(loaded.measurements)} cases")


app.command("import")(import_)
app.command("compare")(compare)
app.command("tiles")(tiles)
app.command("numerics")(numerics)
app.command("trace")(trace)
app.command("safeguards")(safeguards)
app.command("inspect")(inspect)
app.command("report")(report)


@app.command()
def estimate(
    batch: Annotated[int, typer.Option(min=0)],
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")],
    seq_len: Annotated[int, typer.Option(min=0, help="Sequence length N.")],
    head_dim: Annotated[int, typer.Option(min=1, help="Head dim d.")],
    dtype: Annotated[Literal["fp16", "bf16", "fp32", "fp64"], typer.Option()] = "bf16",
    kv_heads: Annotated[int | None, typer.Option(min=1, help="KV heads.  [default: heads]")] = None,
    seq_len_k: Annotated[int | None, typer.Option(min=0, help="Keys.  [default: seq-len]")] = None,
    direction: Annotated[Literal["fwd", "bwd", "fwd_bwd"], typer.Option()] = "fwd",
    causal: Annotated[bool, typer.Option("--causal", help="With a causal mask.")] = False,
    gpu: Annotated[str, typer.Option(help="A device of the catalogue.")] = "H200",
    block_m: Annotated[int | None, typer.Option(min=1, help="Query rows of a tile (Br).")] = None,
    block_n: Annotated[int | None, typer.Option(min=1, help="Keys of a tile (Bc).")] = None,
    variant: Annotated[
        str | None, typer.Option(help="Of naive: add, fill or fp32_softmax.  [default: add]")
    ] = None,
) -> None:
    """Say by formulas what a shape costs.

    Score matrix, bytes moved in four models, memory, least time. Needs no GPU and measures nothing.
    """
    from profiling.case import Case
    from profiling.devices import find_device
    from profiling.estimate import estimate as by_formulas
    from profiling.estimate import estimate_text

    if heads % (kv_heads or heads):
        reject(f"--heads must be a multiple of --kv-heads, got {heads} and {kv_heads}")
    case = Case(
        backend="flash",
        direction=direction,
        dtype=dtype,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads or heads,
        seq_len_q=seq_len,
        seq_len_k=seq_len if seq_len_k is None else seq_len_k,
        head_dim=head_dim,
        head_dim_v=head_dim,
        causal=causal,
    )
    print(
        estimate_text(by_formulas(case, find_device(gpu), block_m=block_m, block_n=block_n, variant=variant))
    )


@app.command()
def crossover(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN_OR_FILE...", help="Runs, or comparison CSVs, taken together.")
    ],
    baseline: Annotated[str, typer.Option(help="Backend, or backend/variant, to be overtaken.")] = "naive",
    candidate: Annotated[
        str | None,
        typer.Option(help="Backend, or backend/variant, that may overtake: else flash, and online."),
    ] = None,
    metric: Annotated[Literal["latency", "memory", "energy", "cost"], typer.Option()] = "latency",
    clock: Annotated[
        Literal["wall", "pipelined", "device", "graph", "graph_hot"],
        typer.Option(help="The clock decides the answer; a CPU has wall and pipelined."),
    ] = "device",
    price_per_hour: Annotated[
        float | None, typer.Option(metavar="PRICE", help="With --metric cost: of the device.")
    ] = None,
    price_per_kwh: Annotated[
        float | None, typer.Option(metavar="PRICE", help="With --metric cost: of electricity.")
    ] = None,
    format: Annotated[Literal["text", "json"], typer.Option()] = "text",  # noqa: A002 - the option's name
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="What either side's time consists of there, by a fitted model.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Say from which N on it pays off.

    The sequence length from which the candidate is ahead of the baseline, for every shape, and how sure
    that is.
    """
    import json

    from profiling.analysis.crossover import crossovers
    from profiling.analysis.explain import shares
    from profiling.analysis.latency_fit import fit_latency
    from profiling.case import split_name
    from profiling.store import frame, samples_frame
    from profiling.terminal import crossover_text, fits_text, shares_text

    candidates = ("flash", "online") if candidate is None else (candidate,)
    for name in (baseline, *candidates):
        split_name(name)
    loaded = [run for name in runs for run in load_all(name, data)]
    rows, samples = frame(loaded), samples_frame(loaded)
    prices = {"price_per_hour": price_per_hour, "price_per_kwh": price_per_kwh}
    asked = {"baseline": baseline, "metric": metric, "clock": clock, "seed": seed, **prices}
    found = [x for name in candidates for x in crossovers(rows, samples, candidate=name, **asked)]
    fits = {run.run_id: fit_latency(frame([run]), clock=clock) for run in loaded} if explain else {}
    why = [shares(x, fits.get(x.slice.run_id, {})) for x in found]
    if format == "json":
        told = [{"shares": [one._asdict() for one in own]} if explain else {} for own in why]
        print(json.dumps([x.to_dict() | more for x, more in zip(found, told, strict=True)], indent=2))
        return
    if not found:
        on = f" on clock {clock}" if metric in ("latency", "cost") else ""
        print(f"no shape has both {baseline} and {' or '.join(candidates)}{on} in {', '.join(runs)}")
    for x, own in zip(found, why, strict=True):
        print(crossover_text(x))
        if explain:
            print(shares_text(own))
    if explain:
        print(fits_text(fits))


@app.command()
def whatif(
    run: Annotated[str, typer.Argument(metavar="RUN_OR_FILE", help="What the model is fitted to.")],
    gpu: Annotated[str, typer.Option(help="A device of the catalogue.")],
    baseline: Annotated[str, typer.Option(help="Backend to be overtaken.")] = "naive",
    candidate: Annotated[str, typer.Option(help="Backend that may overtake.")] = "flash",
    clock: Annotated[
        Literal["wall", "pipelined", "device", "graph", "graph_hot"], typer.Option(help="Whose latencies.")
    ] = "device",
    data: DataOption = None,
) -> None:
    """Predict a run on another GPU.

    Latency, crossover and largest N on a GPU of the catalogue, by the latency model fitted to a run and what
    the catalogue knows of both. A prediction, not a measurement: it says how far off the model is here.
    """
    from profiling.analysis.whatif import what_if
    from profiling.devices import find_device
    from profiling.store import frame
    from profiling.terminal import whatif_text

    table = frame([load_one(run, data)])
    found = what_if(table, find_device(gpu), baseline=baseline, candidate=candidate, clock=clock)
    print(whatif_text(found))


@app.command()
def policy(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN_OR_FILE...", help="Runs of one device, or comparison CSVs.")
    ],
    out: Annotated[Path, typer.Option(help="Where the rules go, as JSON.")] = Path("policy.json"),
    clock: Annotated[
        Literal["wall", "pipelined", "device", "graph", "graph_hot"],
        typer.Option(help="Whose latencies decide; a CPU has wall and pipelined."),
    ] = "device",
    margin: Annotated[
        float, typer.Option(min=0, help="How much faster another must be to take over, relative.")
    ] = 0.02,
    data: DataOption = None,
) -> None:
    """Write which implementation to take, and from which N on.

    Rules with their evidence, for this device, dtype, head dim, mask, direction and range of batch · heads;
    `fa_core.attention(..., policy=fa_core.load_policy(FILE))` obeys them.
    """
    from profiling.analysis.policy import make_policy
    from profiling.export import to_policy
    from profiling.store import frame
    from profiling.terminal import policy_text

    loaded = [run for name in runs for run in load_all(name, data)]
    found = make_policy(frame(loaded), clock=clock, margin=margin)
    try:
        out.write_text(to_policy(found), encoding="utf-8")
    except OSError as error:
        reject(f"--out {out}: cannot be written: {error.strerror}")
    print(policy_text(found))
    print(f"{out}: {len(found.rules)} rules")


@app.command()
def counters(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_SWEEP", help="A run whose rows to complete, or a sweep file.")
    ],
    device: Annotated[str, typer.Option(help="cuda:0, cuda:1, ...")] = "cuda:0",
    backends: Annotated[str, typer.Option(help="Only these backends, such as flash,naive.")] = "",
    cases: Annotated[
        str, typer.Option(help="Only cases whose name (see `show`) has these words, such as 'N16384 bwd,N8'.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Of a sweep: folder for the new run file.  [default: data's runs/]")
    ] = None,
    run_id: Annotated[str | None, typer.Option(help="Of a sweep: name of the new run.")] = None,
    label: Annotated[str, typer.Option(help="Of a sweep: a few words to recognise the run by.")] = "",
    git_commit: Annotated[
        str | None, typer.Option(help="The commit of this code, where there is no .git to ask.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Read hardware counters.

    Bytes through DRAM and L2 and the use of the tensor cores, of one call of each case, under NVIDIA's
    Nsight Compute. They complete the rows of a run; those of a sweep become a run without latencies.
    """
    from profiling.counting import Request, count_cases
    from profiling.terminal import counters_text

    is_sweep = target.endswith(".toml")
    request = Request(
        sweep=Path(target) if is_sweep else None,
        run=None if is_sweep else run_file(target, data),
        device=device,
        out=out or data_dir(data) / "runs",
        backends=tuple(filter(None, (x.strip() for x in backends.split(",")))),
        words=cases,
        run_id=run_id,
        label=label,
        git_commit=git_commit,
        argv=tuple(sys.argv),
    )
    result = count_cases(request)
    counted = [found.addition for found in result.counts if found.addition is not None]
    if counted:
        print(counters_text(counted))
    for found in result.failed:
        print(f"{found.case.label}: {found.status}: {found.reason}")
    print(f"{result.path}: {len(counted)} of {len(result.counts)} cases counted")


@app.command()
def doctor() -> None:
    """Say what this machine can measure.

    And how to get what is missing.
    """
    from profiling.measure.doctor import examine
    from profiling.terminal import table

    print(table(("what", "there", "seen", "how to get it"), examine()))


@app.command("app")
def app_(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 8501,
    data: DataOption = None,
) -> None:
    """Open the dashboard in a browser.

    A Streamlit server on this machine; Ctrl-C ends it.
    """
    import importlib.util
    import subprocess

    script = Path(__file__).resolve().parents[1] / "app.py"
    if importlib.util.find_spec("streamlit") is None:
        reject("the dashboard needs streamlit, which is not installed: pip install -e . in the checkout")
    if not script.exists():
        reject(f"{script.name} is not beside the package: install an editable checkout (pip install -e .)")
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.port", str(port)]
    more = [] if data is None else ["--", "--data", str(data.resolve())]
    # Streamlit reads .streamlit/config.toml from where it is started.
    raise typer.Exit(subprocess.run([*command, *more], cwd=script.parent).returncode)


def main() -> None:
    """Run the command line; rejected input becomes one sentence on stderr."""
    try:
        app(prog_name="flashscope")
    except KeyboardInterrupt:
        print("interrupted; nothing under way was kept", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `flashscope show ... | head`
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        from profiling.case import InputError  # not before it is needed: help must come at once

        if not isinstance(error, InputError):
            raise
        print(f"flashscope: {error}", file=sys.stderr)
        sys.exit(EXIT_REJECTED)


if __name__ == "__main__":
    main()
