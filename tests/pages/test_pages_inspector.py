"""Page Inspector: what it says is what the disassembly holds; what is lacking it compiles when asked to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from drawing import draw, figures, texts, values_of
from test_inspection import made

from profiling import units
from profiling.assembly import kind_of, main_loop, parse_sass
from profiling.case import InputError
from profiling.inspection import Inspection, Request, keep, make_request
from profiling.inspection_facts import facts, numbers
from profiling.pages import computing, inspector_model

SECOND = {"block_m": 64, "block_n": 64}


def second() -> Inspection:
    """The second tile: half the queries, threads and registers."""
    return made(make_request(SECOND), block_m=64, threads=128, registers=48)


@pytest.fixture
def one(data: Path) -> Path:
    """A data folder with the default request compiled."""
    keep(data, made())
    return data


@pytest.fixture
def two(one: Path) -> Path:
    """The same, and another tile."""
    keep(one, second())
    return one


TWO = {"ins_beside": "two", "ins_b_br": "64", "ins_b_bc": "64"}


def frame(app: Any, alt: str) -> Any:
    """The table of that accessible name."""
    return next(x.value for x in app.dataframe if alt in x.proto.alt)


def test_before_a_compilation_it_says_what_it_would_do(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the page compiles nothing: there are a button, what it costs, and the command."""
    monkeypatch.setattr(computing, "computed", lambda words: pytest.fail("compiled unasked"))
    app = draw("inspector", ins_kernel="dkdv", ins_target="sm_80", ins_mask="causal", ins_a_stages="2")
    assert "Not compiled yet" in texts(app)
    assert [button.label for button in app.button if button.label == "Compile"] == ["Compile"]
    assert app.code[-1].value == (
        "flashscope inspect dkdv --target sm_80 --dtype bf16 --head-dim 128 --causal --tile own,,2"
    )
    assert not figures(app)


def test_the_numbers_are_those_of_the_disassembly(one: Path) -> None:
    """Table, chart and code of a kernel, recomputed here from its text."""
    app = draw("inspector")
    code = parse_sass(made().sass)
    takes = frame(app, "What each kernel takes").set_index("").iloc[:, 0]
    assert takes["registers of a thread, at launch (of 255)"] == "96"
    assert takes["shared memory of a block, compiled"] == "96 KiB"
    assert takes["instructions"] == str(sum(x.opcode != "NOP" for x in code))
    assert takes["instructions of the main loop"] == str(len(main_loop(code)))
    (drawn,) = figures(app)[0]["data"]
    counts = dict(zip(drawn["y"], inspector_x(drawn), strict=True))
    kinds = [kind_of(x.opcode) for x in main_loop(code)]
    assert counts == {kind: kinds.count(kind) for kind in set(kinds)}
    shown = frame(app, "SASS of the kernel")
    assert shown["instruction"].tolist() == [x.text for x in code]
    assert shown["loop"].sum() == len(main_loop(code))
    row: dict[str, Any] = shown[shown["kind"] == "matrix"].to_dict("records")[0]
    assert (row["line"], row["source"]) == ("a/forward.py:12", "acc = dot(p, v)")
    assert "96 registers a thread; no spills" in texts(app).replace("\\", "")


def inspector_x(trace: dict[str, Any]) -> list[int]:
    """The lengths of a trace's bars."""
    return [int(x) for x in values_of(trace["x"])]


def test_the_whole_kernel_on_request(one: Path) -> None:
    """The chart then counts every instruction but padding."""
    (drawn,) = figures(draw("inspector", ins_part="whole kernel"))[0]["data"]
    assert sum(inspector_x(drawn)) == sum(x.opcode != "NOP" for x in parse_sass(made().sass))


def test_two_tiles_side_by_side(two: Path) -> None:
    """Two sentences, two columns with their ratio, two bars a kind, and the code of either."""
    app = draw("inspector", **TWO)
    takes = frame(app, "What each kernel takes").set_index("")
    assert list(takes.columns) == ["A: 128×64, 8 warps, 2 stages", "B: 64×64, 4 warps, 2 stages", "B / A"]
    assert takes.loc["registers of a thread, at launch (of 255)"].tolist() == ["96", "48", "0.5×"]
    a, b = numbers(facts(made())), numbers(facts(second()))
    assert takes.loc["blocks an SM"].tolist()[:2] == [str(a["blocks_per_sm"]), str(b["blocks_per_sm"])]
    assert len(figures(app)[0]["data"]) == 2
    app = draw("inspector", **TWO, ins_which="B")
    assert "forward_kernel, B: 64×64" in texts(app)
    assert app.code[-1].value.endswith("--tile own --tile 64x64")


@pytest.mark.parametrize(
    ("query", "columns", "lines"),
    [
        ({"ins_view": "PTX"}, ["ptx", "line", "source"], 10),
        ({"ins_view": "source lines"}, ["line", "source", "instructions", "main loop"], 3),
        ({"ins_only": "main loop"}, ["address", "instruction", "kind", "loop"], 4),
        ({"ins_only": "exp"}, ["address", "instruction", "kind", "loop"], 1),
    ],
)
def test_other_views_of_the_code(query: dict[str, str], columns: list[str], lines: int, one: Path) -> None:
    """The PTX, a line of source each, and the SASS narrowed to the loop or a kind."""
    app = draw("inspector", **query)
    shown = frame(app, "of the kernel, with source lines")
    assert list(shown.columns)[: len(columns)] == columns
    assert len(shown) == lines
    assert f": {units.count_text(lines)} lines" in texts(app)


def test_by_source_line_the_counts_add_up(one: Path) -> None:
    """All instructions stand in some line."""
    table = inspector_model.source_table(facts(made()))
    assert table["instructions"].sum() == sum(x.opcode != "NOP" for x in parse_sass(made().sass))
    assert table["main loop"].sum() == len(main_loop(parse_sass(made().sass)))


def click(app: Any) -> Any:
    """Press `Compile`."""
    next(button for button in app.button if button.label == "Compile").click()
    app.run(timeout=60)
    assert not app.exception
    return app


def test_a_click_compiles_each_tile_in_its_own_process(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of each tile, its result in the data folder; what is there is not compiled again."""
    keep(data, made())
    called = []

    def computed(words: list[str]) -> Any:
        called.append(words)
        keep(data, second())
        return [{"numbers": {}, "inspection": second().model_dump(mode="json")}]

    monkeypatch.setattr(computing, "computed", computed)
    app = click(draw("inspector", **TWO))
    assert [words[-7:] for words in called] == [
        ["128", "--tile", "64x64", "--format", "json", "--data", str(data)]
    ]
    assert "B: 64×64" in str(list(frame(app, "What each kernel takes").columns))


def test_a_folder_that_cannot_be_written_shows_the_result_all_the_same(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process printed is kept in the session."""
    result = [{"numbers": {}, "inspection": made().model_dump(mode="json")}]
    monkeypatch.setattr(computing, "computed", lambda words: result)
    app = click(draw("inspector"))
    assert frame(app, "What each kernel takes").iloc[3, 1] == "96"
    app.run()
    assert frame(app, "What each kernel takes").iloc[3, 1] == "96"
    assert not (data / "cache").exists()


def test_what_does_not_compile_is_a_sentence(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's own words, and the button to try again."""

    def fails(words: list[str]) -> Any:
        raise InputError("the computation failed: flashscope: it does not compile: ptxas: [no] registers")

    monkeypatch.setattr(computing, "computed", fails)
    app = click(draw("inspector"))
    assert app.error[0].value.replace("\\", "") == "it does not compile: ptxas: [no] registers"
    assert any(button.label == "Compile" for button in app.button)


def test_a_kernel_that_cannot_be_launched_warns(data: Path) -> None:
    """More shared memory than a block can have: a warning beside the numbers."""
    keep(data, made(shared_bytes=256 * 1024))
    app = draw("inspector")
    assert "cannot be launched: it needs 256 KiB" in app.warning[0].value.replace("\\", "")


def test_without_a_disassembly_what_is_known_is_shown(data: Path) -> None:
    """The table has dashes, no chart is drawn of nothing, the PTX is there."""
    keep(data, made(sass="", registers=None, stack_bytes=None, notes=("nvdisasm is missing: get it",)))
    app = draw("inspector")
    assert "nvdisasm is missing: get it" in app.warning[0].value.replace("\\", "")
    assert not figures(app)
    assert "There is no disassembly" in texts(app)
    assert len(frame(draw("inspector", ins_view="PTX"), "PTX of the kernel")) == 10


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"ins_a_br": "128"}, "both sides, or neither"),
        ({"ins_a_br": "192", "ins_a_bc": "64"}, "power of two from 16 to 256, got 192"),
        ({"ins_kernel": "hopper_dq", "ins_a_stages": "2"}, "has its own tile alone"),
    ],
)
def test_a_tile_that_cannot_be_is_a_sentence(query: dict[str, str], said: str, data: Path) -> None:
    """What is wrong, and what is allowed; no button to compile it."""
    app = draw("inspector", **query)
    assert said in app.error[0].value.replace("\\", "")
    assert not any(button.label == "Compile" for button in app.button)


def test_the_kernels_of_sm_90_offer_nothing_else(data: Path) -> None:
    """Their target is sm_90 and their dtypes have 16 bits, whatever the address says."""
    app = draw("inspector", ins_kernel="hopper_forward", ins_target="sm_80", ins_dtype="fp32")
    assert (
        app.code[-1].value == "flashscope inspect hopper_forward --target sm_90 --dtype bf16 --head-dim 128"
    )


def test_without_a_compiler_it_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop without torch or triton opens the page."""
    monkeypatch.setattr("profiling.pages.inspector.triton_version", lambda: "")
    app = draw("inspector")
    assert "torch or triton is not installed" in app.info[0].value
    assert "pip install 'flashscope[measure]'" in texts(app)


def test_every_figure_is_in_the_table_to_copy(two: Path) -> None:
    """Whole numbers stay whole, and an unknown one is empty and not 0."""
    table = inspector_model.numbers_table([facts(made()), facts(made(second().request, registers=None))])
    assert table["registers"].tolist() == [96, pd.NA]
    assert table["shared_bytes"].dtype == "Int64"
    assert table["tile"].tolist() == ["own", "64x64"]
    assert set(numbers(facts(made()))) <= set(table.columns)


def test_requests_have_the_controls_values() -> None:
    """Text of the controls becomes the request."""
    tile = inspector_model.tile("128", "64", "own", "3")
    assert inspector_model.request("dq", "sm_100", "fp16", 64, True, tile) == Request(
        kernel="dq",
        target="sm_100",
        dtype="fp16",
        head_dim=64,
        causal=True,
        block_m=128,
        block_n=64,
        stages=3,
    )
