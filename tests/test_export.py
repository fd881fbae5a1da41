"""What leaves the program keeps every digit, runs in no spreadsheet, and stays text in Markdown."""

from __future__ import annotations

import csv
import io
import json
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import synthetic_run

from profiling.case import InputError
from profiling.export import guard, to_csv, to_json, to_markdown, unguard
from profiling.records import COLUMNS, Measurement
from profiling.store import frame

TRIGGERS = ("=", "+", "-", "@", "\t", "\r")


@given(st.text() | st.builds(str.__add__, st.sampled_from(["'", "''", *TRIGGERS, "'=", "'-"]), st.text()))
def test_the_guard_is_undone_exactly(text: str) -> None:
    """No cell begins with what a spreadsheet runs, and taking the guard off gives the text back."""
    assert not guard(text).startswith(TRIGGERS)
    assert unguard(guard(text)) == text


def test_text_that_needs_no_guard_is_left_alone() -> None:
    """An apostrophe of one's own, and a minus inside a word, are nobody's formula."""
    for text in ("", "'quoted'", "sdpa_flash", "a=b", "don't"):
        assert guard(text) == text
        assert unguard(text) == text


def test_csv_has_every_digit_and_nothing_for_the_unknown() -> None:
    """Floats are written by `repr`, integers whole, truth in lower case, unknown as an empty cell."""
    table = pd.DataFrame(
        {
            "ms": pd.array([0.1 + 0.2, math.nan, 1e-300], dtype="float64"),
            "bytes": pd.array([2**53 + 1, None, 0], dtype="Int64"),
            "causal": pd.array([True, False, None], dtype="boolean"),
            "reason": pd.array(["=1+1", 'a,b\n"c"', ""], dtype="string"),
        }
    )
    text = to_csv(table)
    assert text == (
        "ms,bytes,causal,reason\n"
        "0.30000000000000004,9007199254740993,true,'=1+1\n"
        ',,false,"a,b\n""c"""\n'
        "1e-300,0,,\n"
    )


def test_the_comparison_csv_is_one_line_per_row() -> None:
    """The header is the documented one, lines end in LF, and there is nothing after the last."""
    table = frame(synthetic_run(seq_lens=(64, 128), oom_from={"naive": 128}))
    text = to_csv(table)
    assert "\r" not in text
    lines = text.split("\n")
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) == 1 + len(table) + 1
    assert lines[-1] == ""


@given(st.text(alphabet=st.sampled_from(list("\r\n\",' =a"))))
def test_any_cell_is_read_back_by_a_csv_reader(cell: str) -> None:
    """Quotes, commas and every kind of line break stay inside their cell."""
    text = to_csv(pd.DataFrame({"a": pd.array([cell], dtype="string"), "b": pd.array([1], dtype="Int64")}))
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert rows[1:] == [[guard(cell), "1"]]


def test_json_holds_the_whole_run() -> None:
    """The measurements come back equal; NaN, which JSON does not know, is null."""
    run = synthetic_run(seq_lens=(64,), processes=1)
    loaded = json.loads(to_json(run))
    assert [Measurement.model_validate(m) for m in loaded["measurements"]] == list(run.measurements)
    assert loaded["header"]["run_id"] == run.run_id
    assert loaded["end"]["status"] == "finished"
    spoilt = run.measurements[0].model_copy(update={"rel_error": math.nan})
    text = to_json(type(run)(run.header, (spoilt,), run.environments))
    assert "NaN" not in text
    assert json.loads(text)["measurements"][0]["rel_error"] is None


def test_markdown_is_for_people() -> None:
    """Three digits, grouped integers, a dash for the unknown, columns as asked for."""
    table = frame(synthetic_run(seq_lens=(64,), oom_from={"naive": 64}, clocks=("device",)))
    text = to_markdown(table, ["backend", "seq_len_q", "latency_p50_ms", "causal"])
    lines = text.split("\n")
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "backend",
        "seq_len_q",
        "latency_p50_ms",
        "causal",
    ]
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == ["naive", "64", "–", "no"]
    assert to_markdown(table.iloc[:0], ["backend"]).startswith("| backend")


def test_markdown_from_a_file_stays_text() -> None:
    """A device name can draw no image, open no link and start no cell or row."""
    table = pd.DataFrame({"name": pd.array(["![x](http://e.example/p.png)<b>|a\nb`c`"], dtype="string")})
    line = to_markdown(table).split("\n")[2]
    assert r"!\[x\]" in line
    assert r"\<b\>" in line
    assert r"\|a b" in line
    assert to_markdown(table).count("\n") == 2


def test_markdown_names_a_column_that_is_not_there() -> None:
    """The message lists what exists."""
    with pytest.raises(InputError, match=r"no column speed.*name"):
        to_markdown(pd.DataFrame({"name": ["a"]}), ["speed"])
