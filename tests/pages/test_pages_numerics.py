"""Numerics and the tables of Tiles: what they say is what the run file holds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from drawing import draw, figures, texts
from page_runs import cpu_run, gpu_run, tile_run
from synthetic import write_synthetic

from profiling.analysis.tile_choice import tile_choices
from profiling.case import InputError
from profiling.pages import computing, logits, numerics, tiles_model
from profiling.records import Measurement, Run, TensorError
from profiling.store import frame, samples_frame

Show = Callable[..., Path]


def with_errors(run: Run, change: Callable[[Measurement], dict[str, TensorError]]) -> Run:
    """The run with other errors, by case."""
    rows = [
        row.model_copy(update={"tensor_errors": change(row)}) if row.tensor_errors else row
        for row in run.measurements
    ]
    return Run(header=run.header, measurements=tuple(rows), environments=run.environments, end=run.end)


def errors_of(row: Measurement) -> dict[str, TensorError]:
    """Eager's error is 1e-3 at any N, flash's N times 1e-6; both twice that in the LSE."""
    n = row.case.seq_len_k
    rel = 1e-3 if row.case.backend == "naive" else 1e-6 * n
    out = TensorError(rel_error=rel, eager_rel_error=1e-3, max_error=2 * rel, max_allowed=8e-3)
    lse = TensorError(rel_error=2 * rel, eager_rel_error=2e-3, max_error=4 * rel, max_allowed=8e-3)
    return {"out": out, "lse": lse}


@pytest.fixture
def made(data: Path) -> Path:
    """A data folder with one run of these errors."""
    write_synthetic(with_errors(gpu_run(), errors_of), data / "samples" / "h200-standard.jsonl")
    return data


def traces(app: Any, index: int = 0) -> list[dict[str, Any]]:
    """The traces of a page's figure."""
    return figures(app)[index]["data"]


def test_the_chart_is_the_files_errors_and_their_ratio(made: Path) -> None:
    """One line a backend above, its ratio to eager below: at N = 256 flash has a quarter of eager's error."""
    found = [(t["name"], dict(zip(t["x"], t["y"], strict=True))) for t in traces(draw("numerics"))]
    ns = (64, 256, 1024, 4096)
    lines = [(name, at) for name, at in found if 256 in at]
    assert [name for name, _ in lines] == ["naive", "flash", "naive", "flash"]
    assert {n: lines[0][1][n] for n in ns} == pytest.approx(dict.fromkeys(ns, 1e-3))
    assert {n: lines[1][1][n] for n in ns} == pytest.approx({n: 1e-6 * n for n in ns})
    assert {n: lines[2][1][n] for n in ns} == pytest.approx(dict.fromkeys(ns, 1.0))
    assert {n: lines[3][1][n] for n in ns} == pytest.approx({n: 1e-3 * n for n in ns})


def test_the_sentence_is_the_median_and_the_worst(made: Path) -> None:
    """Over five N: median 1.02 times eager's, worst 16.4 at the last; the rule is broken at two of them."""
    said = texts(draw("numerics"))
    ratios = [1e-3 * n for n in (64, 256, 1024, 4096, 16384)]
    assert f"{median(ratios):.3g}× in the median" in said
    assert "at most 16.4× (N = 16\u00a0384)" in said
    assert "**2 of 9 cases break the error rule.**" in said
    assert "1 OOM" in said  # naive at the longest N


def test_the_share_of_the_rule(made: Path) -> None:
    """The other view: largest error over what is allowed, the limit drawn at 1."""
    app = draw("numerics", errors="share", tensor="lse")
    flash = next(t for t in traces(app) if t["name"] == "flash")
    assert dict(zip(flash["x"], flash["y"], strict=True))[1024] == pytest.approx(4 * 1e-6 * 1024 / 8e-3)
    labels = [a.get("text") for a in figures(app)[0]["layout"]["annotations"]]
    assert "allowed" in labels


def test_without_eager_its_error_is_drawn_from_the_others(data: Path) -> None:
    """Each case carries eager's error along: a run of flash alone has the yardstick, too."""
    run = with_errors(gpu_run(backends=("flash",), oom_from={}), errors_of)
    write_synthetic(run, data / "samples" / "h200-standard.jsonl")
    eager = next(t for t in traces(draw("numerics")) if t["name"] == "eager")
    assert set(eager["y"]) == {1e-3}


def test_each_dtype_has_its_line(data: Path) -> None:
    """Two dtypes on one chart: named, and drawn unlike."""
    run = with_errors(gpu_run(dtypes=("fp16", "bf16"), oom_from={}), errors_of)
    write_synthetic(run, data / "samples" / "h200-standard.jsonl")
    lines = {t["name"]: t for t in traces(draw("numerics"))}
    assert {"flash fp16", "flash bf16", "naive fp16", "naive bf16"} <= set(lines)
    assert lines["flash fp16"]["marker"]["symbol"] != lines["flash bf16"]["marker"]["symbol"]
    assert lines["flash fp16"]["line"]["color"] != lines["flash bf16"]["line"]["color"]


def test_what_a_log_axis_cannot_show_is_counted(data: Path) -> None:
    """An exact result and one that is not finite are no points, and the caption says so."""

    def change(row: Measurement) -> dict[str, TensorError]:
        if row.case.backend == "flash" and row.case.seq_len_k in (64, 256):
            rel = 0.0 if row.case.seq_len_k == 64 else None
            return {"out": TensorError(rel_error=rel, eager_rel_error=1e-3, max_error=rel, max_allowed=1e-2)}
        return errors_of(row)

    write_synthetic(with_errors(gpu_run(), change), data / "samples" / "h200-standard.jsonl")
    app = draw("numerics")
    flash = next(t for t in traces(app) if t["name"] == "flash")
    assert list(flash["x"]) == [1024, 4096, 16384]
    assert "2 point(s) are 0 or not finite" in texts(app)


def test_a_run_without_errors_says_what_to_do(data: Path) -> None:
    """No chart of nothing; larger logits can still be computed."""
    bare = [row.model_copy(update={"tensor_errors": {}, "rel_error": None}) for row in gpu_run().measurements]
    run = gpu_run()
    run = Run(header=run.header, measurements=tuple(bare), environments=run.environments, end=run.end)
    write_synthetic(run, data / "samples" / "h200-standard.jsonl")
    app = draw("numerics")
    assert "No case here was compared with the oracle" in texts(app)
    assert not figures(app)
    assert any(button.key == "compute-logits" for button in app.button)


# ---------------------------------------------------------------------------------------- larger logits


def records(growth: float = 10.0) -> list[dict[str, Any]]:
    """What the command gives for two scales: eager's error grows by `growth`, the tiles' stays."""
    return [
        {
            "dtype": "bf16",
            "scale": scale,
            "tensor": "out",
            "rel_error": 1e-3,
            "eager_rel_error": eager,
            "ratio_to_eager": 1e-3 / eager,
            "max_error": 1e-2,
            "max_allowed": 2e-2,
            "share_of_allowed": 0.5,
        }
        for scale, eager in ((1.0, 2e-3), (64.0, growth * 2e-3))
    ]


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing computed before, and nothing left for the next test."""
    numerics._computed.clear()
    yield
    numerics._computed.clear()


def test_larger_logits_are_computed_on_request(
    made: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs before the button; then a sentence, a chart and a table of what came back."""
    asked: list[int] = []
    monkeypatch.setattr(logits, "compute", lambda: asked.append(1) or records())
    app = draw("numerics")
    assert (len(figures(app)), asked) == (1, [])
    app.button(key="compute-logits").click().run()
    assert not app.exception
    assert asked == [1]
    assert "bf16: eager's error × 10, the tiles' × 1" in texts(app)
    eager, tiled = figures(app)[1]["data"]
    assert (eager["name"], list(eager["y"])) == ("eager bf16", [2e-3, 2e-2])
    assert (tiled["name"], list(tiled["y"])) == ("tiled bf16", [1e-3, 1e-3])


def test_a_computation_that_fails_says_why(made: Path, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the page stays, and the button comes back."""

    def fail() -> list[dict[str, Any]]:
        raise InputError("the computation failed: no [torch] here")

    monkeypatch.setattr(logits, "compute", fail)
    app = draw("numerics")
    app.button(key="compute-logits").click().run()
    assert "no \\[torch\\] here" in app.error[0].value
    assert len(figures(app)) == 1
    app.run()
    assert any(button.key == "compute-logits" for button in app.button)


def test_the_command_gives_what_the_page_reads() -> None:
    """The real process, one scale: every column, for every dtype and tensor."""
    found = logits.compute((2,))
    assert {tuple(x) for x in found} == {tuple(found[0])}
    assert set(logits.COLUMNS) <= set(found[0])
    assert {x["scale"] for x in found} == {2.0}
    assert len(logits.lines(found, "dq")) == 2 * 3


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (
            subprocess.CompletedProcess([], 2, "", "one\nflashscope: a scale must be\n"),
            "flashscope: a scale must be",
        ),
        (subprocess.CompletedProcess([], 1, "", ""), "status 1"),
        (subprocess.TimeoutExpired([], 180), "more than 180 s"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
    ],
    ids=["said", "silent", "slow", "not started"],
)
def test_a_process_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch, done: Any, said: str) -> None:
    """Its last line, its status, its time or the system's reason."""

    def run(*_: Any, **__: Any) -> Any:
        if isinstance(done, Exception):
            raise done
        return done

    monkeypatch.setattr(computing.subprocess, "run", run)
    with pytest.raises(InputError, match=said):
        logits.compute()


# ------------------------------------------------------------------------------------------------- tiles


def test_tiles_says_what_each_choice_costs(show: Show) -> None:
    """The table under the map is the analysis of the file's samples, and the words say how sure it is."""
    show("h200-tiles")
    run = tile_run()
    found = {c.grid.seq_len: c for c in tile_choices(frame(run), samples_frame(run))}[1024]
    app = draw("tiles", at="1024")
    table = next(d.value for d in app.dataframe if "choice" in d.value.columns)
    assert list(table["tile"]) == [
        tiles_model.name(t) for t in (found.grid.best, found.grid.default, found.picked and found.picked.tile)
    ]
    assert found.best_share is not None
    said = texts(app)
    assert f"It is the fastest in {100 * found.best_share:.3g} %" in said
    assert "fitted to" in said


def test_tiles_opens_on_the_run_with_most_tiles(data: Path) -> None:
    """Not on the newest one, which asked for two tiles beside its other cases."""
    few = cpu_run("few", tiles=((64, 64), (128, 128)))
    newer = few.header.model_copy(update={"created_at": "2026-02-01T00:00:00Z"})
    for run in (tile_run(), Run(newer, few.measurements, few.environments, end=few.end)):
        write_synthetic(run, data / "runs" / f"{run.run_id}.jsonl")
    assert "run h200-tiles (" in texts(draw("tiles"))
    assert "run few (" in texts(draw("tiles", tile_run="few"))


def test_tiles_marks_the_models_pick(show: Show) -> None:
    """A frame of its own, with an entry in the legend."""
    show("h200-tiles")
    names = [t.get("name", "") for t in figures(draw("tiles"))[0]["data"]]
    assert sum(name.startswith("model's pick: ") for name in names) == 1


def test_the_table_of_tiles_has_what_each_asks_for(show: Show) -> None:
    """Every tile of the map with bytes by formula: 128 x 64 at d = 64 is 32 KiB."""
    show("h200-tiles")
    app = draw("tiles")
    table = next(d.value for d in app.dataframe if "est_sram_bytes" in d.value.columns)
    own = table[(table["tile_m"] == 128) & (table["tile_n"] == 64)].iloc[0]
    assert own["est_sram_bytes"] == 32 * 1024
    assert own["sram_share"] == pytest.approx(32 / 227)
    assert len(table) == 9


def test_the_sentences_cover_every_outcome() -> None:
    """Default as fast, slower, faster, not measured; no samples; no pick; a pick that did not run."""
    run = tile_run()
    (choice, *_) = tile_choices(frame(run), samples_frame(run))
    price = choice.default
    assert price is not None
    best = choice.grid.best
    as_fast = choice._replace(grid=choice.grid._replace(default=(64, 64)))
    assert "as fast within the noise" in tiles_model.sentence(as_fast)
    assert "own choice." in tiles_model.sentence(choice._replace(grid=choice.grid._replace(default=best)))
    slower = as_fast._replace(default=price._replace(ratio=1.5, interval=(1.4, 1.6)))
    assert "takes 1.5× [1.4, 1.6] its time" in tiles_model.sentence(slower)
    faster = as_fast._replace(default=price._replace(ratio=0.9, interval=(0.8, 0.95)))
    assert "the same size asked for takes" in tiles_model.sentence(faster)
    assert "was not measured" in tiles_model.sentence(choice._replace(default=None))
    nothing = choice._replace(grid=choice.grid._replace(best=None))
    assert "no tile that was asked for ran" in tiles_model.sentence(nothing)
    assert tiles_model.certainty(nothing) == ""
    assert "no samples" in tiles_model.certainty(choice._replace(best_share=None))
    assert "one process" in tiles_model.certainty(choice._replace(processes=1))
    assert "has no pick" in tiles_model.picked(choice._replace(picked=None))
    assert choice.picked is not None
    lost = choice._replace(picked=choice.picked._replace(tile=(512, 512)))
    assert "did not run" in tiles_model.picked(lost)
    assert best is not None
    right = choice._replace(picked=choice.picked._replace(tile=best))
    assert "that very tile" in tiles_model.picked(right)
