"""Run: choose or build a sweep, see its plan, start it, watch it, stop it, go on with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

import plotly.graph_objects as go
import streamlit as st

from profiling import store, units
from profiling.case import InputError
from profiling.figures import gpu_trace
from profiling.grid import Sweep
from profiling.pages import build, filters, jobs, run_model, signin, state, widgets
from profiling.paths import DATA_DIR
from profiling.records import Run
from profiling.sweep_text import sweep_toml

CARDS_PER_ROW = 3


def render() -> None:
    """Draw the page."""
    st.title("Run")
    st.caption(
        "Measure this machine: choose or build a sweep, see its plan, start it. It goes on when this tab is "
        "closed."
    )
    if not signin.admit("measure").admitted:
        return
    folder = state.data_dir()
    lacks = jobs.missing()
    if lacks:
        st.warning(lacks)
        st.markdown(
            'Install the measuring part with `pip install -e ".[measure]"`, or measure on another machine '
            "with `flashscope run` and bring its `.jsonl` file on page Data."
        )
    st.header("What to measure")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        source = filters.choose_in_page("source", "Sweep", ["preset", "my own"], "preset")
        device = str(filters.choose_in_page("device", "Device", jobs.devices(), jobs.devices()[0]).value)
    if source.value == "preset":
        sweeps = folder / "sweeps" if any((folder / "sweeps").glob("*.toml")) else DATA_DIR / "sweeps"
        chosen = _choose(jobs.presets(sweeps), "quick" if device == "cpu" else "standard")
        if chosen is not None and chosen.sweep is not None:
            _plan(chosen.sweep, chosen.path, device, folder / "runs", startable=not lacks)
    else:
        own = build.form(device)
        if own is not None:
            _plan(own, None, device, folder / "runs", startable=not lacks)
    st.page_link(widgets.page("data"), label="Bring in another machine's run: page Data")
    st.header("Runs of this folder that are not finished")
    _watch(folder / "runs", startable=not lacks)


def _choose(presets: list[jobs.Preset], usual: str) -> jobs.Preset | None:
    """The presets as cards; one is chosen by its button, and stays chosen in the URL."""
    usable = [preset for preset in presets if preset.sweep is not None]
    for preset in presets:
        if preset.problem:
            st.error(widgets.plain(preset.problem))
    if not usable:
        st.info("There is no sweep to choose from: put a `.toml` file into the data folder's `sweeps`.")
        return None
    columns = st.columns(min(CARDS_PER_ROW, len(usable)))
    for i, preset in enumerate(usable):
        assert preset.sweep is not None
        cases = preset.sweep.cases()
        with columns[i % len(columns)].container(border=True, height="stretch"):
            st.markdown(f"**{widgets.plain(preset.sweep.name)}**")
            st.text(f"{units.count_text(len(cases))} cases")
            if preset.sweep.description:
                st.caption(widgets.plain(preset.sweep.description))
    stems = [preset.path.stem for preset in usable]
    choice = filters.choose_in_page("sweep", "Preset", stems, usual if usual in stems else stems[0])
    return usable[stems.index(choice.value)]


def _plan(sweep: Sweep, path: Path | None, device: str, out: Path, *, startable: bool) -> None:
    """What the sweep would measure, for how long, and the button that starts it; `path`: of a preset."""
    st.header("Plan")
    cases = sweep.cases()
    st.text(run_model.plan_text(cases, sweep, device))
    seconds = sum(run_model.costs_s(cases, sweep, device))
    st.text(
        f"About {units.duration_text(seconds)} on {device}: a rough guess, without start-up and compiling."
    )
    st.text(
        "A backend that this device does not have becomes a row with the status unsupported; "
        "on a CPU the clocks are wall and pipelined."
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label = st.text_input(
            "Label", key="run-label", max_chars=store.MOST_LETTERS, help="a few words to recognise the run by"
        )
        pressed = st.button("Start", type="primary", disabled=not startable or not cases, key="start")
    if pressed:
        _start(sweep, path, device, out, " ".join(label.split()))
    file = f"{sweep.name}.toml" if path is None else _short(path)
    line = ["flashscope", "run", file, "--device", device, "--out", _short(out)]
    if path is None:
        with st.expander(f"The same from a terminal, with the file {file}"):
            st.code(sweep_toml(sweep), language="toml")
            st.download_button(
                f"Save {file}",
                data=sweep_toml(sweep),
                file_name=file,
                mime="application/toml",
                on_click="ignore",
                key="save-sweep",
            )
            st.code(shlex.join(line), language="bash", wrap_lines=True)
    else:
        st.caption("The same from a terminal:")
        st.code(shlex.join(line), language="bash", wrap_lines=True)


def _start(sweep: Sweep, path: Path | None, device: str, out: Path, label: str) -> None:
    run_id = jobs.new_run_id(sweep.name)
    try:
        if path is None:
            jobs.start_text(sweep, device, out, run_id, label)
        else:
            jobs.start(path, device, out, run_id, label)
    except InputError as error:
        st.error(widgets.plain(error))
    else:
        st.session_state["started"] = [*st.session_state.get("started", []), run_id]
        st.toast("Started.")


@st.fragment(run_every=1.0)
def _watch(folder: Path, *, startable: bool) -> None:
    """The unfinished runs of the folder and those started here, drawn again every second from their files."""
    infos = {info.run_id: info for info in state.runs() if info.path.parent == folder and not info.problem}
    waiting = [job for job in jobs.living(folder) if not _writes(job, infos)]
    started = list(st.session_state.get("started", []))
    open_ids = [run_id for run_id, info in infos.items() if info.end_status != "finished"]
    pending = {job.run_id: job for job in waiting}
    shown = list(dict.fromkeys([*reversed(started), *pending, *open_ids]))
    if not shown:
        st.text("None: every run in this folder has finished.")
    for run_id in shown:
        with st.container(border=True):
            if run_id in pending:
                _pending(pending[run_id], waiting, infos, folder)
            elif run_id in infos:
                _one(infos[run_id], folder, startable=startable)
            else:
                _never_began(run_id, folder)


def _writes(job: jobs.Job, infos: dict[str, store.RunInfo]) -> bool:
    """Whether a process has come to write its run's file, and so waits for nothing any more."""
    return job.run_id in infos and infos[job.run_id].pid == job.pid


def _pending(job: jobs.Job, waiting: list[jobs.Job], infos: dict[str, store.RunInfo], folder: Path) -> None:
    """A process that does not measure yet: it starts up, or waits for another to leave the device."""
    if jobs.waits(folder, job.run_id):
        running = [info for info in infos.values() if jobs.progress(info).state == "running"]
        holders = [
            info.path.stem
            for info in running
            if (grown := _grown(info)) and run_model.device_of(grown.run) == job.device
        ]
        others = [
            other.run_id
            for other in waiting
            if other != job and other.device == job.device and jobs.waits(folder, other.run_id)
        ]
        st.text(run_model.queue_text(job, holders, others))
    elif job.resumed:
        st.text(f"{job.run_id}: starting to go on.")
    else:
        st.text(f"{job.run_id}: starting; its file is written with the first case.")
    _cancel(job.pid, job.run_id, "It has measured nothing yet")
    _log(folder, job.run_id, expanded=True)


def _never_began(run_id: str, folder: Path) -> None:
    st.text(f"{run_id}: it ended before its first case; its log says why.")
    _refusal(folder, run_id)
    if st.button("Dismiss", key=f"dismiss-{run_id}", help="Takes this line and the log away"):
        jobs.forget(folder, run_id)
        st.session_state["started"] = [each for each in st.session_state["started"] if each != run_id]
        st.rerun(scope="fragment")
    _log(folder, run_id, expanded=True)


def _one(info: store.RunInfo, folder: Path, *, startable: bool) -> None:
    """One run: its bar, the case at hand, what can be done with it, and its log."""
    at = jobs.progress(info)
    grown = _grown(info)
    of = "" if at.planned is None else f" of {units.count_text(at.planned)}"
    pace = None
    if at.state == "running" and grown is not None:
        pace = run_model.pace(grown.run, info.began_at, at.planned)
    text = (
        f"{info.run_id}: {at.state}, {at.done}{of} cases{'' if pace is None else run_model.pace_text(pace)}"
    )
    st.progress(at.share, text=widgets.plain(text))
    if info.label:
        st.text(f"label: {info.label}")
    failed = {status: n for status, n in info.n_by_status.items() if status != "ok"}
    if failed:
        st.text("Did not run: " + ", ".join(f"{n} {status}" for status, n in failed.items()))
    if grown is not None and grown.run.measurements:
        _detail(grown, running=at.state == "running")
    ended_early = at.state in ("killed", "interrupted", "out of time")
    with st.container(horizontal=True):
        if at.state == "running":
            _cancel(info.pid, info.run_id, "Stops after the case at hand; every row is kept")
        elif ended_early:
            _resume(info, grown, startable=startable)
        if info.n_cases and st.button("Show", key=f"show-{info.run_id}", help="Opens its Overview"):
            st.session_state[state.RUN_KEY] = info.path.stem
            st.switch_page(widgets.page("overview"))
    if ended_early:
        _refusal(folder, info.run_id)
        st.text("Its rows are kept. To measure the rest from a terminal:")
        line = ["flashscope", "run", "--resume", _short(info.path)]
        st.code(shlex.join(line), language="bash", wrap_lines=True)
    _log(folder, info.run_id, expanded=False)


def _cancel(pid: int | None, run_id: str, hint: str) -> None:
    if st.button("Cancel", key=f"cancel-{run_id}", help=hint):
        asked = jobs.cancel(pid, run_id)
        st.toast("Asked the run to stop." if asked else "The run is not running any more.")


def _refusal(folder: Path, run_id: str) -> None:
    if why := jobs.refusal(folder, run_id):
        st.error(widgets.plain(why))


def _resume(info: store.RunInfo, grown: Grown | None, *, startable: bool) -> None:
    device = "cpu" if grown is None else run_model.device_of(grown.run)
    if st.button("Resume", key=f"resume-{info.run_id}", disabled=not startable, help=f"Goes on on {device}"):
        try:
            jobs.resume(info, device)
        except InputError as error:
            st.error(widgets.plain(error))
        else:
            st.rerun(scope="fragment")


def _short(path: Path) -> str:
    """A path as one types it in the checkout; whole if it lies elsewhere."""
    return str(path.relative_to(jobs.ROOT)) if path.is_relative_to(jobs.ROOT) else str(path)


class Grown(NamedTuple):
    """A run as far as it is, the block at hand, and the chart of what its GPU did, if it has one."""

    run: Run
    at_hand: str
    gpu: go.Figure | None


def _grown(info: store.RunInfo) -> Grown | None:
    """The run as far as it is; None if its file is gone or broken meanwhile."""
    found = state.stamp(info.path)
    try:
        return None if found is None else _read(found)
    except InputError:
        return None


@st.cache_resource(max_entries=4, show_spinner=False)
def _read(key: state.Stamp) -> Grown:
    """Apart from the pages' cache: a file that grows every second would drive all others out of it."""
    run = store.load_run(key.path)
    moments = run_model.moments(run.measurements)
    return Grown(run, run_model.at_hand(run), gpu_trace.figure(moments) if moments else None)


def _detail(grown: Grown, *, running: bool) -> None:
    """The case that was measured last, the one at hand, and what the GPU did so far."""
    last = grown.run.measurements[-1]
    st.text(f"latest: {last.case.label} ({last.status})")
    if not running:
        return
    if grown.at_hand:
        st.text(f"at hand: {grown.at_hand}")
    if grown.gpu is not None:
        st.plotly_chart(
            grown.gpu,
            key=f"gpu-{grown.run.run_id}",
            alt="SM clock, power and temperature of the GPU after each case",
            config={"displayModeBar": False},
        )


def _log(folder: Path, run_id: str, *, expanded: bool) -> None:
    tail = jobs.log_tail(folder, run_id)
    if tail:
        with st.expander("Log", expanded=expanded):
            st.code(tail, language=None, wrap_lines=True)
