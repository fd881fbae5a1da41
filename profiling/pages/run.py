"""Run: choose a sweep, see the plan, start it, watch it, stop it."""

from __future__ import annotations

import shlex
from pathlib import Path

import streamlit as st

from profiling import store, units
from profiling.case import InputError, Sweep, blocks
from profiling.pages import filters, jobs, state, widgets
from profiling.paths import DATA_DIR

CARDS_PER_ROW = 3


def render() -> None:
    """Draw the page."""
    st.title("Run")
    st.caption(
        "Measure this machine: choose a sweep, see its plan, start it. It goes on when this tab is closed."
    )
    folder = state.data_dir()
    lacks = jobs.missing()
    if lacks:
        st.warning(lacks)
        st.markdown(
            'Install the measuring part with `pip install -e ".[measure]"`, or measure on another machine '
            "with `flashscope run` and bring its `.jsonl` file on page Data."
        )
    sweeps = folder / "sweeps" if any((folder / "sweeps").glob("*.toml")) else DATA_DIR / "sweeps"
    chosen = _choose(jobs.presets(sweeps))
    if chosen is not None and chosen.sweep is not None:
        _plan(chosen.path, chosen.sweep, folder, startable=not lacks)
    st.header("Runs of this folder that are not finished")
    _watch(folder / "runs")


def _choose(presets: list[jobs.Preset]) -> jobs.Preset | None:
    """The presets as cards; one is chosen by its button, and stays chosen in the URL."""
    st.header("Presets")
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
    choice = filters.choose_in_page("sweep", "Sweep", stems, stems[0])
    return usable[stems.index(choice.value)]


def _plan(path: Path, sweep: Sweep, folder: Path, *, startable: bool) -> None:
    """What the sweep would measure, on which device, and the button that starts it."""
    st.header("Plan")
    names = list(dict.fromkeys(name for group in sweep.group for name in group.backends))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        device = filters.choose_in_page("device", "Device", jobs.devices(), jobs.devices()[0])
    cases = sweep.cases()
    protocol = sweep.protocol
    lengths = sorted({case.seq_len_q for case in cases})
    span = (
        f"N from {units.count_text(lengths[0])} to {units.count_text(lengths[-1])}" if lengths else "no case"
    )
    st.text(
        f"{units.count_text(len(cases))} cases in {units.count_text(len(blocks(cases)))} shapes, {span}; "
        f"backends {', '.join(names)}; {protocol.rounds} rounds in each of the worker processes "
        f"(there are {protocol.processes})."
    )
    st.text(
        "A backend that this device does not have becomes a row with the status unsupported; "
        "on a CPU the clocks are wall and pipelined."
    )
    run_id = jobs.new_run_id(sweep.name)
    out = folder / "runs"
    if st.button("Start", type="primary", disabled=not startable, key="start"):
        try:
            jobs.start(path, str(device.value), out, run_id)
        except InputError as error:
            st.error(widgets.plain(error))
        else:
            st.session_state["started"] = [*st.session_state.get("started", []), run_id]
            st.toast("Started.")
    st.caption("The same from a terminal:")
    line = ["flashscope", "run", _short(path), "--device", str(device.value), "--out", _short(out)]
    st.code(shlex.join(line), language="bash", wrap_lines=True)


@st.fragment(run_every=1.0)
def _watch(folder: Path) -> None:
    """The unfinished runs of the folder and those started here, drawn again every second from their files."""
    infos = {info.run_id: info for info in state.runs() if info.path.parent == folder and not info.problem}
    started = list(st.session_state.get("started", []))
    open_ids = [run_id for run_id, info in infos.items() if info.end_status != "finished"]
    shown = list(dict.fromkeys([*reversed(started), *open_ids]))
    if not shown:
        st.text("None: every run in this folder has finished.")
    for run_id in shown:
        with st.container(border=True):
            if run_id in infos:
                _one(infos[run_id], folder)
            else:
                st.text(f"{run_id}: starting; its file is written with the first case.")
                _log(folder, run_id, expanded=True)


def _one(info: store.RunInfo, folder: Path) -> None:
    """One run: its bar, the latest case, what can be done with it, and its log."""
    at = jobs.progress(info)
    of = "" if at.planned is None else f" of {units.count_text(at.planned)}"
    times = ""
    if at.elapsed_s is not None:
        times = f", {units.time_text(at.elapsed_s * 1000)} so far"
    if at.left_s is not None:
        times += f", about {units.time_text(at.left_s * 1000)} left"
    st.progress(at.share, text=widgets.plain(f"{info.run_id}: {at.state}, {at.done}{of} cases{times}"))
    failed = {status: n for status, n in info.n_by_status.items() if status != "ok"}
    if failed:
        st.text("Did not run: " + ", ".join(f"{n} {status}" for status, n in failed.items()))
    if at.state == "running":
        _latest(info)
        if st.button(
            "Cancel", key=f"cancel-{info.run_id}", help="Stops after the case at hand; every row is kept"
        ):
            if jobs.cancel(info.pid, info.run_id):
                st.toast("Asked the run to stop.")
            else:
                st.toast("The run is not running any more.")
    elif at.state in ("killed", "interrupted", "out of time"):
        st.text("Its rows are kept. To measure the rest:")
        line = ["flashscope", "run", "--resume", _short(info.path)]
        st.code(shlex.join(line), language="bash", wrap_lines=True)
    if info.n_cases and st.button("Show", key=f"show-{info.run_id}", help="Opens the Overview of this run"):
        st.session_state[state.RUN_KEY] = info.path.stem
        st.switch_page(widgets.page("overview"))
    _log(folder, info.run_id, expanded=False)


def _short(path: Path) -> str:
    """A path as one types it in the checkout; whole if it lies elsewhere."""
    return str(path.relative_to(jobs.ROOT)) if path.is_relative_to(jobs.ROOT) else str(path)


def _latest(info: store.RunInfo) -> None:
    """The case that was measured last, and the GPU's state after it where it is known."""
    try:
        measurements = state.load(info.path).run.measurements
    except (InputError, FileNotFoundError):
        return
    if not measurements:
        return
    last = measurements[-1]
    text = f"latest: {last.case.label} ({last.status})"
    gpu = last.gpu_after
    if gpu is not None:
        parts = [
            *([f"SM clock {gpu.sm_clock_mhz} MHz"] if gpu.sm_clock_mhz is not None else []),
            *([f"{units.number_text(gpu.power_w)} W"] if gpu.power_w is not None else []),
            *([f"{gpu.temperature_c} °C"] if gpu.temperature_c is not None else []),
        ]
        text += "".join(f" · {part}" for part in parts)
    st.text(text)


def _log(folder: Path, run_id: str, *, expanded: bool) -> None:
    tail = jobs.log_tail(folder, run_id)
    if tail:
        with st.expander("Log", expanded=expanded):
            st.code(tail, language=None, wrap_lines=True)
