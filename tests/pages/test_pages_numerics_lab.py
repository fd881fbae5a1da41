"""Page Numerics lab: what it says is what the process computed, on request alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from drawing import draw, figures, texts

from profiling import units
from profiling.case import InputError
from profiling.pages import computing, jobs, numerics_lab
from profiling.pages import numerics_lab_model as model

WORDS = ["safeguards", "--inputs", "masked", "--seed", "3", "--format", "json"]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the real process prints, once."""
    return computing.computed(WORDS)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """What one test computed is no other's."""
    numerics_lab._computed.clear()
    yield
    numerics_lab._computed.clear()


@pytest.fixture
def asked(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that the page asks for; each gives the same numbers."""
    commands: list[list[str]] = []
    monkeypatch.setattr(computing, "computed", lambda words: commands.append(list(words)) or found)
    return commands


def computed_page(**query: str) -> Any:
    """The page after its button."""
    app = draw("numerics-lab", **query)
    app.button(key="compute-lab").click().run()
    assert not app.exception
    return app


def test_the_process_gives_what_the_page_reads(found: dict[str, Any]) -> None:
    """Every dtype, left-out safeguard and tensor, sums, orders and both ways beside the published table."""
    keys = {(x["dtype"], x["left_out"], x["tensor"]) for x in found["errors"]}
    assert keys == {
        (dtype, left_out, tensor)
        for dtype in ("fp16", "bf16", "fp32", "fp64")
        for left_out in model.LABELS
        for tensor in numerics_lab.TENSORS
    }
    assert set(found["rmse"]) == {"eager", "tiles"}
    assert (found["inputs"], found["seed"]) == ("masked", 3)


def test_nothing_is_computed_before_it_is_asked_for(asked: list[list[str]]) -> None:
    """The button, the command, and what can be left out; then the command of the address runs once."""
    app = draw("numerics-lab", inputs="masked", seed="3")
    assert asked == []
    assert "flashscope safeguards --inputs masked --seed 3" in texts(app)
    assert "-inf - (-inf) is no number" in texts(app)
    app.button(key="compute-lab").click().run()
    assert asked == [WORDS]
    app.run()
    assert asked == [WORDS]


def test_the_chart_and_the_sentence_are_the_records(found: dict[str, Any], asked: list[list[str]]) -> None:
    """A mark a dtype and thing left out at its error; a cross where numbers are not finite."""
    app = computed_page(inputs="masked", seed="3", lab_tensor="dq")
    traces = figures(app)[0]["data"]
    for trace in traces:
        own = {
            model.LABELS[x["left_out"]]: x
            for x in found["errors"]
            if x["tensor"] == "dq" and x["dtype"] == trace["name"] and x["rel_error"] != 0
        }
        assert set(trace["y"]) == set(own)
        for label, x, symbol in zip(trace["y"], trace["x"], trace["marker"]["symbol"], strict=True):
            assert (symbol == "x") == bool(own[label]["not_finite"])
            assert own[label]["not_finite"] or x == own[label]["rel_error"]
    bad = next(
        x for x in found["errors"] if (x["left_out"], x["tensor"], x["dtype"]) == ("guard", "dq", "fp16")
    )
    said = f"{units.count_text(bad['not_finite'])} of {units.count_text(bad['numbers'])} numbers infinite"
    assert said in texts(app)
    assert "less than 2× on these inputs: no maximum subtracted, O not rescaled" in texts(app)


def test_sums_say_where_they_stop(found: dict[str, Any], asked: list[list[str]]) -> None:
    """2048 and 256 one by one; the lines of the chart are the records."""
    app = computed_page()
    said = texts(app)
    assert f"**fp16, one by one** stops at {units.count_text(2048)}" in said
    assert "**bf16, one by one** stops at 256" in said
    assert "**fp16, pairwise** overflows" in said
    lines = {trace["name"]: trace["y"] for trace in figures(app)[1]["data"]}
    own = [x["sum"] for x in found["ones"] if (x["dtype"], x["order"]) == ("bf16", "by tiles") and x["sum"]]
    assert lines["bf16, by tiles"] == own
    best = min(x["rel_error"] for x in found["orders"] if x["dtype"] == "fp32")
    assert f"fp32 {units.number_text(best)} to" in said
    assert model.stalls({"ones": [{"dtype": "fp32", "order": "pairwise", "terms": 2, "sum": 2.0}]}) == (
        "Every sum is right."
    )


def test_the_published_table_stands_beside_ours(found: dict[str, Any], asked: list[list[str]]) -> None:
    """Seven published lines with their source; ours where the method is computed here, else nothing."""
    app = computed_page()
    table = next(d.value for d in app.dataframe if "published_rmse" in d.value.columns)
    assert list(table["published_rmse"]) == [3.2e-4, 1.9e-4, 1.9e-4, 2.4e-2, 9.1e-3, 9.3e-3, 2.4e-2]
    assert table["rmse_from_drawn"].iloc[0] == found["rmse"]["eager"]["total"]
    assert table["rmse_from_rounded"].iloc[1] == found["rmse"]["tiles"]["algorithm"]
    assert table["rmse_from_drawn"].iloc[3:].isna().all()
    assert "arXiv:2407.08608, table 3" in texts(app)


def test_a_safeguard_that_matters_is_told_with_both_numbers() -> None:
    """The dtype in which it costs most, its error, and the error with it in place."""

    def error(left_out: str, dtype: str, rel_error: float) -> dict[str, Any]:
        return {
            "left_out": left_out,
            "dtype": dtype,
            "tensor": "out",
            "rel_error": rel_error,
            "not_finite": 0,
            "numbers": 10,
        }

    errors = [error(left_out, dtype, 1e-3) for left_out in model.LABELS for dtype in ("fp16", "fp32")]
    errors = [
        error("rescaling", x["dtype"], {"fp16": 0.003, "fp32": 0.5}[x["dtype"]])
        if x["left_out"] == "rescaling"
        else x
        for x in errors
    ]
    said = model.sentence(errors, "random")
    assert "**O not rescaled**: 0.5 in fp32, 0.001 with it" in said
    assert "less than 2× on these inputs: no maximum subtracted, sums in the dtype" in said


def test_without_torch_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No button that could not work."""
    monkeypatch.setattr(jobs, "missing", lambda: "torch is not installed.")
    app = draw("numerics-lab")
    assert "torch is not installed" in app.info[0].value
    assert not any(button.key == "compute-lab" for button in app.button)


def test_a_process_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it can be asked again."""

    def fail(words: Any) -> Any:
        raise InputError("the computation failed: out of memory")

    monkeypatch.setattr(computing, "computed", fail)
    app = computed_page()
    assert "out of memory" in app.error[0].value
    app.run()
    assert any(button.key == "compute-lab" for button in app.button)
