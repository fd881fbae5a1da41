"""Claims about picked points: what is said of one is the row's own, on every page with a chart of points."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawing import draw, figures, texts, values_of
from page_runs import gpu_run
from streamlit.testing.v1 import AppTest
from synthetic import failed_measurement, synthetic_case

from profiling import store
from profiling.grid import Sweep
from profiling.pages import point, point_model
from profiling.records import GpuState, Run

Show = Callable[..., Path]
CASE = "flash fwd bf16 B1 H16 N1024 d128"
PAGES = {
    "latency": CASE,
    "crossover": CASE,
    "memory": CASE,
    "overview": CASE,
    "roofline": CASE,
    "tiles": "flash fwd bf16 B1 H16 N4096 d64 tile 64x128",
}


def value(app: AppTest, what: str) -> str:
    """What a page says of its point."""
    for element in app.dataframe:
        table = element.value
        if list(table.columns) == ["what", "value"] and (table["what"] == what).any():
            return str(table.set_index("what").loc[what, "value"])
    raise AssertionError(f"{what} is not said")


def shown(app: AppTest, name: str) -> Any:
    """The data of a chart that is known by a column of its table."""
    return next(e.value for e in app.dataframe if name in e.value.columns)


@pytest.mark.parametrize("where", PAGES)
def test_a_link_opens_the_point_on_every_page(where: str, show: Show) -> None:
    """`case` in the address draws the ring, the samples, the facts and the command."""
    folder = show("h200-standard", "h200-tiles")
    app = draw(where, case=PAGES[where])
    assert app.selectbox(key="case").value == PAGES[where]
    assert any(trace.get("marker", {}).get("size") == 18 for trace in figures(app)[0]["data"])
    name = "h200-tiles" if where == "tiles" else "h200-standard"
    run = store.load_run(folder / "samples" / f"{name}.jsonl")
    (row,) = [m for m in run.measurements if m.case.label == PAGES[where]]
    # the numbers of the panel against the raw rows
    samples = shown(app, "order")
    assert samples["ms"].tolist() == [s.ms for s in row.samples]
    clocks = next(e.value for e in app.dataframe if list(e.value.columns)[:2] == ["clock", "status"])
    for line in clocks.itertuples():
        raw = [s.ms for s in row.samples if s.clock == line.clock]
        assert line.latency_p50_ms == pytest.approx(np.quantile(raw, 0.5), abs=0, rel=1e-12)
        assert line.n_samples == len(raw)
    strip = next(f for f in figures(app) if "process 0" in f["layout"]["xaxis"].get("ticktext", ()))
    ours = np.array([s.ms for s in row.samples if s.clock == "device"])
    unit = strip["layout"]["yaxis"]["title"]["text"].rpartition("(")[2]
    drawn = np.array(values_of(strip["data"][0]["y"])) / {"µs)": 1e3, "ms)": 1.0}[unit]
    assert drawn == pytest.approx(ours, rel=1e-12)
    assert value(app, "commit") == "0" * 40
    assert value(app, "run") == f"{name} (synthetic: made from formulas, not measured)"
    assert value(app, "device") == "NVIDIA H200"
    assert value(app, "torch") == "2.11.0"
    assert "GPU-synthetic" not in " ".join(str(e.value) for e in app.dataframe)
    (command,) = [code.value for code in app.code if "/dev/stdin" in code.value]
    text = command.partition("\n")[2].rpartition("\n")[0]
    assert Sweep.model_validate(tomllib.loads(text)).cases() == [row.case]


def test_choosing_in_the_box_stands_in_the_link(show: Show) -> None:
    """The keyboard's way: the box has every point of the chart, and the view's link has the chosen one."""
    show("h200-standard")
    app = draw("latency")
    assert not [code for code in app.code if "/dev/stdin" in code.value]
    box = app.selectbox(key="case")
    assert CASE in box.options
    assert len(box.options) == len(set(box.options)) == 10
    box.select(CASE).run()
    assert not app.exception
    assert any("case=flash+fwd" in code.value for code in app.code)
    app.selectbox(key="case").select(None).run()
    assert not any("case=" in code.value for code in app.code)


def test_a_filter_that_takes_the_point_away_says_so(show: Show) -> None:
    """The point is no longer of the chart: one line, and nothing of it is left."""
    show("h200-standard")
    app = draw("latency", case=CASE)
    app.session_state["d"] = 64
    app.run()
    assert not app.exception
    assert f"This chart has no point {CASE}." in texts(app)
    assert app.selectbox(key="case").value is None
    assert "This chart has no point nonsense <b>." in texts(draw("memory", case="nonsense <b>"))


def test_a_case_that_did_not_run_says_why(show: Show) -> None:
    """Failures are points too: status and reason, no samples, and the command all the same."""
    show("h200-standard")
    app = draw("latency", case="naive fwd bf16 B1 H16 N16384 d128")
    assert "It did not run: oom" in texts(app).replace("\\", "")
    assert "There are no raw samples of this point" in texts(app)
    assert any("seq_len = [16384]" in code.value for code in app.code)


@pytest.mark.parametrize(("where", "marks"), [("latency", "=cmd"), ("memory", "http")])
def test_texts_of_a_file_stay_text(where: str, marks: str, show: Show) -> None:
    """Names and reasons from a hostile file are no Markdown; what no sweep can ask for has no command."""
    run = store.load_run(show("hostile") / "samples" / "hostile.jsonl")
    (row,) = [m for m in run.measurements if marks in m.case.backend or m.reason.startswith(marks)]
    app = draw(where, run="hostile", case=row.case.label)
    assert app.selectbox(key="case").value == row.case.label
    read = [str(e.value) for kind in ("markdown", "subheader", "warning") for e in app.get(kind)]
    assert any(marks in text.replace("\\", "") for text in read)
    assert not [text for text in read if re.search(r"(?<!\\)(!\[|<img)", text)]
    commands = [code for code in app.code if "/dev/stdin" in code.value]
    assert bool(commands) == (row.case.backend == "naive")
    assert ("no sweep can ask for backend" in texts(app)) == (not commands)


class _Session(dict[str, Any]):
    """What a callback sees of the session."""


@pytest.mark.parametrize(
    ("points", "left"),
    [
        ([{"customdata": CASE}], CASE),
        ([{"customdata": [CASE]}], CASE),
        ([{"x": 1}, {"customdata": CASE}], CASE),
        ([], "before"),
        ([{"x": 1}], "before"),
        ([{"customdata": None}, {"customdata": []}, {"customdata": 3}], "before"),
    ],
)
def test_a_click_chooses_and_a_click_beside_leaves(
    points: list[dict[str, Any]], left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamlit reports an empty selection whenever a figure changes: that must not take the choice away."""
    session = _Session(chart=SimpleNamespace(selection=SimpleNamespace(points=points)), case="before")
    monkeypatch.setattr(point.st, "session_state", session)
    point.take("chart")
    assert session["case"] == left


# --------------------------------------------------------------------------------------------- the model


def _run(**changes: Any) -> Run:
    return gpu_run(seq_lens=(64,), directions=("fwd",), causals=(False,), head_dims=(64,), **changes)


def test_the_rows_of_a_case_are_found_by_its_whole_key() -> None:
    """A requested tile, a window or a variant sets cases apart; unknown fields equal only unknown ones."""
    plain = synthetic_case("flash", 128)
    others = [
        plain.model_copy(update=update)
        for update in ({"tile_m": 64, "tile_n": 64}, {"window_left": 64}, {"softcap": 1.0}, {"bias": True})
    ]
    run = _run()
    rows = tuple(failed_measurement(case) for case in (plain, *others))
    frame = store.frame(Run(header=run.header, measurements=rows, environments=run.environments))
    for case in (plain, *others):
        found = point_model.rows_of(frame, case)
        assert found.index.tolist() == frame.index[: len(found)].tolist() or len(found) == len(
            run.header.clocks
        )
        assert len(found) == len(run.header.clocks)


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        (None, ""),
        (GpuState(), ""),
        (
            GpuState(sm_clock_mhz=1980, power_w=700.0, event_reasons=0x4 | 0x40),
            "SM clock 1980 MHz, 700 W, held back by: software power cap, hardware thermal slowdown",
        ),
        (GpuState(temperature_c=61, event_reasons=0x10000), "61 °C, held back by: reason 0x10000"),
    ],
)
def test_the_state_of_the_gpu_in_words(gpu: GpuState | None, text: str) -> None:
    """NVML's bits become words, one that is not known its number; what is unknown is left out."""
    assert point_model.gpu_text(gpu) == text


def test_a_flag_says_on_which_clock_and_what_it_means() -> None:
    """`noisy` belongs to a clock; one of the case is told once, without clocks."""
    rows = pd.DataFrame({"clock": ["wall", "device"], "flags": ["noisy;thermal", "thermal"]})
    noisy, thermal = point_model.flags(rows)
    assert noisy == "noisy (wall clock): an interquartile range above 10 % of the median"
    assert thermal == "thermal: the GPU slowed down for heat"


def test_the_command_has_the_runs_protocol_and_kind_of_device() -> None:
    """A run's own protocol comes along; an import's, or one that this version cannot read, is the usual."""
    run = _run()
    header = run.header.model_copy(update={"sweep": {"protocol": {"clocks": ["wall"], "processes": 7}}})
    asked = Run(header=header, measurements=run.measurements, environments=run.environments)
    assert "processes = 7" in point_model.command(asked, run.measurements[0])
    assert "--device cuda:0" in point_model.command(asked, run.measurements[0])
    odd = header.model_copy(update={"sweep": {"protocol": {"clocks": ["sundial"]}}})
    odd_run = Run(header=odd, measurements=run.measurements, environments=run.environments)
    assert "[protocol]" not in point_model.command(odd_run, run.measurements[0])
    assert json.dumps("flash") in point_model.command(odd_run, run.measurements[1])
