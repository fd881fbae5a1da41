"""Any separated or Markdown text becomes cells with their lines, and nothing of it gets lost."""

from __future__ import annotations

import pytest

from profiling.case import InputError
from profiling.importers.tables import read_table, text_of


def cells(text: str, delimiter: str | None = None) -> list[tuple[str, ...]]:
    """The rows' cells."""
    return [row.cells for row in read_table(text, "t.csv", delimiter).rows]


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("N,ms\n1,2\n3,4\n", ","),
        ("N;ms\n1;2,5\n3;4,5\n", ";"),
        ("N\tms, median\n1\t2\n", "\t"),
        ("N|ms\n1|2\n", "|"),
        ("(B, T, V);a-latency;b-latency\n(8, 512, 4096);0.3;0.2\n", ";"),
        ("(B, H, N);a-latency\n(8, 5, 4096);0.3\n", ";"),  # more columns by the comma, but torn brackets
        ('a,"shape(B,N)"\n1,"(2, 3)"\n', ","),
    ],
)
def test_the_delimiter_is_the_one_that_keeps_rows_and_brackets_whole(text: str, delimiter: str) -> None:
    """By agreement with the header, whatever else occurs in the cells."""
    assert read_table(text, "t.csv").delimiter == delimiter


def test_two_delimiters_that_fit_alike_are_asked_about() -> None:
    """`a;b,c` may be split either way: the sentence names the option that decides."""
    with pytest.raises(InputError, match="--delimiter"):
        read_table("a;b,c\n1;2,3\n", "t.csv")
    assert cells("a;b,c\n1;2,3\n", ";") == [("1", "2,3")]


def test_bom_crlf_and_blank_rows_are_no_fault() -> None:
    """As spreadsheets save: the first header has no BOM in it, blank rows are no rows."""
    text = text_of(b"\xef\xbb\xbfN,ms\r\n\r\n128,1.5\r\n,\r\n256,2.5\r\n\r\n", "t.csv")
    table = read_table(text, "t.csv")
    assert table.header == ("N", "ms")
    assert [(row.line, row.cells) for row in table.rows] == [(3, ("128", "1.5")), (5, ("256", "2.5"))]
    assert table.n_read == 2


def test_a_second_column_of_the_same_name_gets_a_number() -> None:
    """Both are kept and can be named; a column without a name has its place for one."""
    table = read_table("Noise,,Noise,Noise#2,Noise\n1,2,3,4,5\n", "t.csv")
    assert table.header == ("Noise", "column 2", "Noise#3", "Noise#2", "Noise#4")
    assert len(set(table.header)) == 5
    assert "'Noise' is there 3 times" in table.notes[0]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("1,2,3", "2 fields"),
        ("1", "2 fields"),
        ("N,ms", "header again"),
        ("average,2", "`average`"),
        ("AVERAGE,", "`average`"),
    ],
)
def test_what_is_no_row_is_set_aside_with_its_line(row: str, why: str) -> None:
    """Torn rows, averages and repeated headers are counted and kept with a reason."""
    table = read_table(f"N,ms\n1,2\n{row}\n", "t.csv", ",")
    assert table.n_read == 2
    (aside,) = table.aside
    assert aside.line == 3
    assert why in aside.text
    assert aside.cells == tuple(row.split(","))


def test_markdown_with_text_around_it() -> None:
    """Rows of all tables with the first one's header; another table's rows are set aside, not lost."""
    text = "\n".join(
        [
            "# Results",
            "| N | ms |",
            "|--:|:---|",
            "| 8,192 | 1.5 |",
            "words",
            "| N | ms |",
            "| --- | --- |",
            "| 64 |  |",
            "",
            "| other | table | here |",
            "|---|---|---|",
            "| a \\| b | 2 | 3 |",
        ]
    )
    table = read_table(text, "t.md")
    assert [(row.line, row.cells) for row in table.rows] == [(4, ("8,192", "1.5")), (8, ("64", ""))]
    (aside,) = table.aside
    assert (aside.line, aside.cells) == (12, ("a | b", "2", "3"))
    assert any("3 lines of text" in note for note in table.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("N\n1\n", "one column"),
        ('N,"ms\n1,2\n', "not well-formed"),
        ("N,ms\n", "no rows"),
    ],
)
def test_what_is_no_table_is_refused(text: str, said: str) -> None:
    """One sentence that says what was expected."""
    with pytest.raises(InputError, match=said):
        read_table(text, "t.csv")


def test_another_encoding_is_named() -> None:
    """UTF-16 and Latin-1 are not taken for something else."""
    for data in ("N;ms\n".encode("utf-16"), "ger\xe4t;ms\n".encode("latin-1")):
        with pytest.raises(InputError, match="UTF-8"):
            text_of(data, "t.csv")
