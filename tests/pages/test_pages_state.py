"""Claims about filters, the data folder, and text that stays text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from page_runs import cpu_run, gpu_run
from synthetic import failed_measurement, synthetic_case, synthetic_run

from profiling import store
from profiling.pages import filters, state, widgets
from profiling.paths import DATA_DIR
from profiling.records import Run


def frame(run=None):
    """The table of a run with the filters' columns."""
    return state.with_axes(store.frame(run or cpu_run()))


def run_of(*cases):
    """A run of failed cases: what filters need is in the key."""
    run = synthetic_run(seq_lens=(64,))
    measurements = tuple(failed_measurement(case) for case in cases)
    return Run(header=run.header, measurements=measurements, environments=run.environments)


def test_the_data_folder_is_the_argument_then_the_variable_then_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--data DIR` wins over $FLASHSCOPE_DATA, and both over the checkout's own folder."""
    monkeypatch.delenv("FLASHSCOPE_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    assert state.data_dir() == DATA_DIR
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    assert state.data_dir() == tmp_path
    for argv in (["app.py", "--data", str(tmp_path / "x")], ["app.py", "other", f"--data={tmp_path / 'x'}"]):
        monkeypatch.setattr(sys, "argv", argv)
        assert state.data_dir() == tmp_path / "x"
    monkeypatch.setattr(sys, "argv", ["app.py", "--data"])
    assert state.data_dir() == tmp_path


def test_the_first_visit_shows_the_h200_sample_else_the_newest() -> None:
    """Without the committed sample the newest run is shown; without any, none."""
    infos = [
        store.RunInfo(Path(f"{name}.jsonl"), name, "", created, "", 1, {})
        for name, created in (("old", "2026-01-01T00:00:00Z"), ("new", "2026-02-01T00:00:00Z"))
    ]
    assert state.default_run(infos) == "new"
    tiles = infos[1]._replace(path=Path("t.jsonl"), n_tiled=1, created_at="2026-03-01T00:00:00Z")
    assert state.default_run([*infos, tiles]) == "new"
    assert state.default_run([tiles]) == "t"
    sample = infos[0]._replace(path=Path("h200-standard.jsonl"), created_at="2025-01-01T00:00:00Z")
    assert state.default_run([*infos, sample]) == "h200-standard"
    assert state.default_run([]) is None


def test_filters_offer_values_in_their_natural_order() -> None:
    """B2 comes before B16, fwd before bwd, numbers by size; what a run has alone is offered."""
    table = frame(gpu_run(batch_heads=((16, 4), (2, 32), (2, 4)), seq_lens=(64,), head_dims=(128, 64)))
    assert filters.options(table, filters.AXES["series"]) == ["B2-H4", "B2-H32", "B16-H4"]
    assert filters.options(table, filters.AXES["direction"]) == ["fwd", "bwd"]
    assert filters.options(table, filters.AXES["d"]) == [64, 128]
    assert filters.options(table, filters.AXES["mask"]) == ["none", "causal"]
    assert filters.options(table, filters.AXES["other"]) == ["plain"]


def test_what_sets_a_case_apart_is_a_filter_of_its_own() -> None:
    """Shared heads, unequal lengths or widths, windows and the like never share a line with plain cases."""
    plain = synthetic_case("flash", 128)
    odd = [
        plain.model_copy(update={"kv_heads": 4}),
        plain.model_copy(update={"seq_len_q": 1}),
        plain.model_copy(update={"head_dim_v": 32, "window_left": 64, "alibi": True}),
        plain.model_copy(update={"softcap": 30.0, "layout": "varlen"}),
    ]
    table = frame(run_of(plain, *odd))
    columns = ["series", "layout", "window", "cap", "has_bias", "has_sinks", "has_alibi", "other"]
    assert table.drop_duplicates(columns)[columns].to_numpy().tolist() == [
        ["B1-H16", "dense", "none", "none", "no", "no", "no", "plain"],
        ["B1-H16-KV4", "dense", "none", "none", "no", "no", "no", "plain"],
        ["B1-H16", "dense", "none", "none", "no", "no", "no", "Nq 1"],
        ["B1-H16", "dense", "64 before", "none", "no", "no", "yes", "dv 32"],
        ["B1-H16", "varlen", "none", "30", "no", "no", "no", "plain"],
    ]
    assert table.groupby("series", sort=False)["plain"].any().tolist() == [True, True]
    assert table["plain"].sum() == 2 * table["clock"].nunique()
    assert table["seq_len"].unique().tolist() == [128]


def test_a_link_holds_what_was_drawn_and_nothing_else() -> None:
    """Choices with a single value are left out; several chosen backends are kept as several."""
    choices = [
        filters.Choice("d", "d", 64, 128),
        filters.Choice("dtype", "Dtype", "bf16", "bf16", drawn=False),
        filters.Choice("backends", "Backends", ["naive", "flash"], []),
    ]
    query = filters.query_of("r 1", choices)
    assert query == {"run": "r 1", "d": "64", "backends": ["naive", "flash"]}
    assert filters.query_of("t", [], state.TILE_RUN_KEY) == {"tile_run": "t"}


@pytest.mark.parametrize(
    "text",
    [
        "![x](http://e/p.png)",
        "[a](b)",
        "**b**",
        "<img src=x>",
        ":material/bug:",
        "$x$",
        "`c`",
        "# h",
        "a | b",
        "www.e.com",
    ],
)
def test_plain_leaves_no_mark_that_markdown_reads(text: str) -> None:
    """Every mark of Markdown is escaped, and taking the escapes off gives the text again."""
    shown = widgets.plain(text)
    assert shown.replace("\\", "") == text
    for i, character in enumerate(shown):
        if character in "*_`[]<>#|$:.!":
            assert shown[i - 1] == "\\"


def test_plain_keeps_groups_of_digits_together_and_drops_line_ends() -> None:
    """The space inside 16 384 never breaks; a line end cannot start a heading."""
    assert widgets.plain("16\u00a0384") == "16\u00a0384"
    assert "\n" not in widgets.plain("a\n# b\r\nc")
