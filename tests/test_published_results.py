"""Published results: every row has its source, and a file that is not one is refused by its place."""

import pytest

from profiling.case import InputError
from profiling.store.published import Published, load_published

HEADER = ",".join(Published.model_fields)
GOOD = "A paper,Table 1,A100,fp16,1,2,128,64,false,fwd,theirs,latency_ms,0.5,text,"


def test_what_is_committed_loads():
    """Several hundred numbers, each with source, place and unit; what was not stated is empty, not 0."""
    table = load_published()
    assert len(table) > 700
    assert list(table.columns) == list(Published.model_fields)
    assert not (table[["source", "figure", "device_name", "method"]] == "").any().any()
    assert table["causal"].isna().any()
    assert (table[["batch", "heads", "seq_len", "head_dim"]].fillna(1) > 0).all().all()
    assert not table.duplicated([name for name in table.columns if name not in ("value", "note")]).any()


def test_a_row_is_read(tmp_path):
    """A file of one row."""
    (tmp_path / "one.csv").write_text(f"{HEADER}\n{GOOD}\n", encoding="utf-8")
    (row,) = load_published(tmp_path).to_dict("records")
    assert (row["seq_len"], row["causal"], row["value"]) == (128, False, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line must be source,figure"),
        ("a,b\n", "the first line must be source,figure"),
        (f"{HEADER}\n{GOOD},more\n", "line 2: must have 15 cells, got 16"),
        (f"{HEADER}\n{GOOD}\n{GOOD.replace('0.5', 'fast')}\n", "line 3, value: .*got 'fast'"),
        (f"{HEADER}\n{GOOD.replace('0.5', '-1')}\n", "line 2, value: "),
        (f"{HEADER}\n{GOOD.replace('0.5', 'nan')}\n", "line 2, value: "),
        (f"{HEADER}\n{GOOD.replace(',fwd,', ',both,')}\n", "line 2, direction: .*got 'both'"),
        (f"{HEADER}\n{GOOD.replace('latency_ms', 'seconds')}\n", "line 2, metric: .*got 'seconds'"),
        (f"{HEADER}\n{GOOD.replace('A paper', '')}\n", "line 2, source: "),
        (f"{HEADER}\n{GOOD.replace(',128,', ',1.5,')}\n", "line 2, seq_len: "),
    ],
)
def test_what_is_not_a_table_of_them_is_refused(tmp_path, text, message):
    """File, line and column are named, with what is there."""
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_published(tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    """Nothing there is said, not answered with an empty table."""
    with pytest.raises(InputError, match="no CSV of published results"):
        load_published(tmp_path)
