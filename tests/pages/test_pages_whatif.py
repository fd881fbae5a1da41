"""Page What-if: its numbers are the model's, what is modelled is dashed, and what it cannot say it says."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from drawing import draw, figures, texts, values_of
from typer.testing import CliRunner

from profiling import store, units
from profiling.__main__ import app as cli
from profiling.analysis.curves import Slice
from profiling.analysis.whatif import Prediction, WhatIf, what_if
from profiling.devices import catalogue
from profiling.model.memory import input_bytes, peak_bytes
from profiling.pages import whatif_model

SAMPLES = Path(__file__).parents[2] / "data" / "samples"


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the committed runs of an H200 and of a CPU: the model needs real times."""
    folder = tmp_path_factory.mktemp("committed")
    for name in ("samples", "runs"):
        (folder / name).mkdir()
    for name in ("h200-standard", "cpu-quick"):
        (folder / "samples" / f"{name}.jsonl").symlink_to(SAMPLES / f"{name}.jsonl")
    return folder


@pytest.fixture
def pages(committed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the app's own."""
    monkeypatch.setenv("FLASHSCOPE_DATA", str(committed))
    return committed


@pytest.fixture(scope="module")
def table(committed: Path) -> pd.DataFrame:
    """The committed run's comparison table."""
    return store.frame(store.load_run(committed / "samples" / "h200-standard.jsonl"))


def predicted(
    table: pd.DataFrame, gpu: str, clock: str = "device", **shape: object
) -> tuple[Prediction, WhatIf]:
    """The analysis asked directly, for one shape."""
    found = what_if(table, catalogue()[gpu], clock=clock)
    wanted = {"direction": "fwd", "batch": 1, "head_dim": 128, "causal": False} | shape
    (one,) = (
        each
        for each in found.predictions
        if all(getattr(each.slice, name) == value for name, value in wanted.items())
    )
    return one, found


def traces(figure: dict, *, dashed: bool) -> dict[str, dict]:
    """The lines of a figure's upper panel by legend name: modelled ones are dashed and have no markers."""
    return {
        trace["name"]: trace
        for trace in figure["data"]
        if (trace["line"]["dash"] == "dash") is dashed and trace.get("yaxis", "y") == "y"
    }


@pytest.mark.parametrize(("gpu", "clock"), [("L4", "device"), ("A100-SXM-80GB", "wall")])
def test_the_numbers_are_those_of_the_model(pages: Path, table: pd.DataFrame, gpu: str, clock: str) -> None:
    """N*, the error on what was not seen, each predicted time in the table and on the dashed lines."""
    app = draw("what-if", gpu=gpu, clock=clock)
    one, found = predicted(table, gpu, clock)
    shown = {metric.label: metric.value for metric in app.metric}
    assert one.crossover_seq_len is not None
    plain = gpu.replace("-", "\\-")
    assert shown[f"N* on {plain}"] == whatif_model.crossover_text(one, one.crossover_seq_len)
    (told,) = (text for text in texts(app).split("\n") if "How sure is that?" in text)
    assert "flash goes by flash\\_portable, and the model was fitted to flash\\_hopper" in told
    assert shown["Model off by, unseen"] == units.percent_text(found.unseen_error)
    assert shown["Its interval"] == "not modelled"
    lines = app.dataframe[0].value
    for place, backend in enumerate(("naive", "flash")):
        own = lines[lines["backend"] == backend].set_index("seq_len")
        assert own["est_latency_ms"].to_dict() == {n: pair[place] for n, pair in one.est_latency_ms.items()}
        dashed = traces(figures(app)[0], dashed=True)[f"{backend} on {gpu} (modelled)"]
        assert dashed["mode"] == "lines"
        drawn = dict(zip(values_of(dashed["x"]), values_of(dashed["y"]), strict=True))
        assert drawn == {n: pair[place] for n, pair in one.est_latency_ms.items()}
        measured = table[
            (table["backend"] == backend) & (table["variant"] == "") & (table["clock"] == clock)
            & (table["direction"] == "fwd") & (table["head_dim"] == 128) & (table["batch"] == 1)
            & ~table["causal"] & (table["status"] == "ok") & table["tile_m"].isna()
        ]  # fmt: skip
        solid = traces(figures(app)[0], dashed=False)[backend]
        assert sorted(values_of(solid["y"])) == sorted(measured["latency_p50_ms"])
        assert "markers" in solid["mode"]


def test_the_command_says_the_same(pages: Path, table: pd.DataFrame) -> None:
    """What the page shows as its command, run, names the same N* for the same shape."""
    app = draw("what-if", gpu="L4")
    command = shlex.split(next(code.value for code in app.code if code.value.startswith("flashscope whatif")))
    said = CliRunner().invoke(cli, command[1:])
    assert said.exit_code == 0, said.output
    one, _ = predicted(table, "L4")
    (line,) = (line for line in said.stdout.splitlines() if line.startswith(f"{one.slice.label}  "))
    there = one.crossover_seq_len
    assert ("always" if there == min(one.ratio) else f"N* = {units.count_text(there)}") in line


def test_what_does_not_fit_is_told_and_not_drawn(pages: Path, table: pd.DataFrame) -> None:
    """naive at N = 16 384 for four sequences: beyond 24 GiB by its law; the dashed line ends before it."""
    app = draw("what-if", gpu="L4", series="B4-H16")
    one, _ = predicted(table, "L4", batch=4)
    memory = catalogue()["L4"].memory_bytes
    assert memory is not None
    beyond = [
        n
        for n in one.est_latency_ms
        if (peak_bytes(one.slice.case("naive", n)) or 0) + input_bytes(one.slice.case("naive", n)) > memory
    ]
    assert beyond == [16384]
    said = texts(app)
    assert f"N = {units.count_text(16384)} does not fit" in said
    assert f"fits up to N = {units.count_text(one.largest_seq_len)}" in said
    assert "weights" in said
    drawn = traces(figures(app)[0], dashed=True)
    assert max(values_of(drawn["naive on L4 (modelled)"]["x"])) < 16384
    assert max(values_of(drawn["flash on L4 (modelled)"]["x"])) == 16384
    fits = app.dataframe[0].value.set_index(["backend", "seq_len"])["fits"]
    assert fits[("naive", 16384)] == "no"
    assert fits[("flash", 16384)] == fits[("naive", 8192)] == "yes"
    assert any("L4 has 24 GiB" in note["text"] for note in figures(app)[1]["layout"]["annotations"])


def test_a_price_becomes_a_cost(pages: Path, table: pd.DataFrame) -> None:
    """Milliseconds times the price of an hour over the tokens of a call; without a price nothing is said."""
    assert "million query tokens" not in texts(draw("what-if", gpu="L4"))
    app = draw("what-if", gpu="L4", price="0.8", price_here="4")
    one, _ = predicted(table, "L4")
    there = one.est_latency_ms[16384][1] / 3.6e6 * 0.8 / 16384 * 1e6 * 1000
    here_ms = app.dataframe[0].value.set_index(["backend", "seq_len"]).loc[("flash", 16384), "latency_p50_ms"]
    here = here_ms / 3.6e6 * 4 / 16384 * 1e6 * 1000
    said = texts(app)
    assert f"cost {units.number_text(there)} thousandths of the currency on L4 (modelled)" in said
    assert f"{units.number_text(here)} on H200 (measured): {units.ratio_text(there / here)} as much" in said
    assert "price=0.8&price_here=4" in app.code[0].value


def test_an_unknown_figure_is_not_guessed(pages: Path) -> None:
    """A GPU of which the catalogue has no peak: which figure lacks, what to do, and no chart."""
    app = draw("what-if", gpu="MLU370-X8")
    assert "Not modelled" in app.info[0].value
    assert "has no bf16 peak" in app.info[0].value
    assert "Choose another GPU" in texts(app)
    assert not figures(app)


def test_a_cpu_is_not_carried_over(pages: Path) -> None:
    """Its run has no device of the catalogue: the page says so and what would help."""
    app = draw("what-if", run="cpu-quick")
    assert "no latency model" in app.info[0].value
    assert "is not in the catalogue" in texts(app)
    assert not figures(app)


def test_nonsense_in_the_address_is_the_default(pages: Path) -> None:
    """A GPU that is none, a price that is no number."""
    assert texts(draw("what-if", gpu="abacus", price="free")) == texts(draw("what-if"))
    assert "A100" in draw("what-if").metric[0].label


def test_the_same_gpu_is_allowed_as_a_check(pages: Path) -> None:
    """Chosen for itself, the model is drawn beside the measurements it was fitted to."""
    app = draw("what-if", gpu="H200")
    assert app.metric[0].label == "N* on H200"
    assert figures(app)


# --------------------------------------------------------------------------------------------- sentences


def prediction(ratios: dict[int, float], crossover: int | None = None) -> Prediction:
    """A prediction with these ratios, the candidate at 1 ms."""
    values = dict.fromkeys(Slice._fields, "") | {
        "direction": "fwd", "dtype": "bf16", "batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 64,
        "head_dim_v": 64, "layout": "dense", "causal": False, "window_left": None, "window_right": None,
        "softcap": None, "bias": False, "sinks": False, "alibi": False, "seq_len_q": None,
    }  # fmt: skip
    pairs = {n: (ratio, 1.0) for n, ratio in ratios.items()}
    return Prediction(Slice(**values), "naive", "flash", pairs, crossover, None, None)


@pytest.mark.parametrize(
    ("ratios", "error", "sure"),
    [
        ({64: 0.5, 128: 1.1, 256: 1.3, 512: 2.0}, 0.1, 256),  # 1.1 / 0.9 = 1.22
        ({64: 0.5, 128: 1.3, 256: 1.1, 512: 2.0}, 0.1, 512),  # only what stays beyond counts
        ({64: 1.5, 128: 1.5}, 0.1, 64),
        ({64: 1.5, 128: 1.2}, 0.1, None),
        ({64: 100.0}, 1.0, None),  # off by all of it: nothing is sure
        ({64: 1.0001}, 0.0, 64),
    ],
)
def test_a_lead_is_sure_beyond_the_error_of_both(
    ratios: dict[int, float], error: float, sure: int | None
) -> None:
    """The candidate may be slower by the error and the baseline faster by it, and still be behind."""
    assert whatif_model.sure_from(prediction(ratios), error) == sure


@pytest.mark.parametrize(
    ("crossover", "word", "said"),
    [
        (None, "never", "is not expected to get ahead"),
        (64, "always", "at every N from"),
        (100, "100", "from N\\* = 100 on"),
    ],
)
def test_a_crossover_in_words(crossover: int | None, word: str, said: str) -> None:
    """Never, always, or a length: within the lengths of the run, which are named."""
    one = prediction({64: 0.9, 128: 1.2}, crossover)
    devices = catalogue()
    found = WhatIf(devices["L4"], devices["H200"], "device", (one,), math.nan)
    assert whatif_model.crossover_text(one, crossover) == word
    assert said in whatif_model.sentence(one, found)
    assert "too few cases to test" in whatif_model.error_text(one, found)


@pytest.mark.parametrize(("ratio", "said"), [(0.9, False), (1.3, True)])
def test_a_lead_that_is_lost_between_the_lengths_drawn_is_explained(ratio: float, said: bool) -> None:
    """Where every shorter length drawn is ahead, the sentence says why N* is not the first of them."""
    one = prediction({64: ratio, 128: 1.2}, 100)
    devices = catalogue()
    found = WhatIf(devices["L4"], devices["H200"], "device", (one,), 0.1)
    assert ("not between them" in whatif_model.sentence(one, found)) is said


def test_unknown_memory_is_said() -> None:
    """A device without its memory fits nothing and everything: nobody knows."""
    device = catalogue()["L4"].model_copy(update={"memory_bytes": None})
    one = prediction({64: 2.0, 128: 2.0})
    assert whatif_model.memory_text(one, device) == ["How much memory L4 has is not in the catalogue."]
    assert [fit.beyond for fit in whatif_model.fits(one, device)] == [(), ()]


def test_the_catalogue_source_is_escaped() -> None:
    """A device's texts are a file's: no Markdown in them is obeyed."""
    device = catalogue()["L4"].model_copy(update={"source": "![x](http://192.0.2.1/p.png)", "note": "<img>"})
    text = whatif_model.source_text(device)
    assert "![x](" not in text
    assert not re.search(r"(?<!\\)<img", text)
