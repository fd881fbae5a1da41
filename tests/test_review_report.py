"""Files of a review: the same numbers in each, nothing executed, nothing fetched, stale signatures told."""

from __future__ import annotations

import csv
import html.parser
import io
import re

import pandas as pd
import pytest
from synthetic import synthetic_run

from profiling import export, step_table, units
from profiling.analysis import decision_fingerprint as prints
from profiling.analysis.decision import Comparison, Memory, Ratio, Use, decide
from profiling.analysis.deployment import Question, Shape
from profiling.analysis.steps import steps
from profiling.devices import find_device
from profiling.model.step import Body
from profiling.review_report import Review, reasons, to_csv, to_html, to_markdown
from profiling.review_table import (
    Standing,
    comparison_text,
    evidence_text,
    headline,
    memory_text,
    numbers,
    standings,
    table,
    uses_text,
)
from profiling.reviews import APPROVE, REJECT, SignOff
from profiling.store import frame, samples_frame

HOSTILE = "=1+1 | <img src=x onerror=alert(1)> ![x](http://192.0.2.1/p.png) `a`\nnext"
GIB = 2**30


@pytest.fixture(scope="module")
def review() -> Review:
    """Two models, one of them hostile and not measured; a valid and a stale signature."""
    run = synthetic_run(
        backends=("naive", "flash", "sdpa_flash"), seq_lens=(256, 1024, 4096), clocks=("device",)
    )
    shapes = (Shape("sixteen", 16, 16, 64, 64, causal=False), Shape(HOSTILE, 8, 2, 128, 128))
    question = Question(shapes, (1, 1), (256, 4096))
    data = frame(run)
    decision = decide(data, samples_frame(run), question, find_device("h200"), replicates=200)
    found = prints.parts(decision, data)
    now = prints.fingerprint(question, found)
    digest = prints.question_digest(question)
    signed = (
        SignOff("Ada", APPROVE, "", run.run_id, digest, "{}", now, found, "2026-01-03T00:00:00Z", 2),
        SignOff(
            HOSTILE, REJECT, HOSTILE, run.run_id, digest, "{}", "old",
            {**found, "sixteen, batch 1": "other"}, "2026-01-02T00:00:00Z", 1,
        ),
    )  # fmt: skip
    return Review(decision, run.header, now, standings(signed, now, found))


class _Page(html.parser.HTMLParser):
    """Tags with their attributes, and the cells of the page's tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_the_csv_holds_every_digit(review: Review) -> None:
    """One line a row; figures are the decision's own, text that a spreadsheet runs is guarded."""
    lines = list(csv.DictReader(io.StringIO(to_csv(review))))
    first = review.decision.rows[0]
    assert len(lines) == len(review.decision.rows) == 2
    assert first.naive is not None
    assert first.memory is not None
    assert float(lines[0]["naive_ratio_max"]) == max(each.ratio for each in first.naive.ratios)
    assert float(lines[0]["naive_crossover_seq_len"]) == first.naive.crossover_seq_len
    assert int(lines[0]["headroom_bytes"]) == first.memory.headroom_bytes
    assert lines[0]["naive_ahead"] == "above"
    assert lines[1]["model"].startswith("'=1+1")
    assert export.unguard(lines[1]["model"]) == HOSTILE
    assert lines[1]["naive_ratio_max"] == ""
    assert {line["fingerprint"] for line in lines} == {review.fingerprint}


def test_the_markdown_is_a_table_of_text(review: Review) -> None:
    """Provenance, one line a row, and nothing of a name becomes a picture, a cell or a line."""
    text = to_markdown(review)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == (2 + 2) + (2 + 2)
    assert len({line.replace("\\|", "").count("|") for line in rows[:4]}) == 1
    assert review.fingerprint in text
    assert "NVIDIA H200" in text
    assert "torch 2.11.0" in text
    assert "run synthetic" in text
    assert not re.search(r"(?<!\\)!?(?<!\\)\[x(?<!\\)\]\(", text)
    assert not re.search(r"(?<!\\)<img", text)
    assert "stale: the evidence changed for sixteen, batch 1" in text
    assert "## What stands against it" in text


def test_the_html_asks_nothing_and_runs_nothing(review: Review) -> None:
    """No script, no link, no picture, no handler; its cells are the table's, letter for letter."""
    text = to_html(review)
    page = _Page(text)
    allowed = (
        "html head meta title style body main h1 h2 p strong dl dt dd div table thead tr th tbody td ul li"
    )
    assert {tag for tag, _ in page.tags} <= set(allowed.split())
    names = {name for _, attributes in page.tags for name in attributes}
    assert not names & {"src", "href", "style"}
    assert not any(name.startswith("on") for name in names)
    assert "default-src 'none'" in text
    cells = [" ".join(cell.split()) for cell in page.cells]
    for value in table(review.decision).to_numpy().ravel():
        assert any(cell.startswith(" ".join(str(value).split())) for cell in cells)
    assert [attributes.get("class") for tag, attributes in page.tags if tag == "tr"].count("stale") == 1
    assert review.fingerprint in text


def test_model_steps_stand_in_all_three_files(review: Review) -> None:
    """The same step in each: as texts, and in the CSV beside its row with every digit and marked est_."""
    run = synthetic_run(
        backends=("naive", "flash", "sdpa_flash"), seq_lens=(256, 1024, 4096), clocks=("device",)
    )
    bodies = {"sixteen": Body(1024, 4096)}
    found = steps(review.decision, frame(run), bodies, find_device("h200"))
    assert found is not None
    full = review._replace(steps=found)
    (step,) = step_table.shown(found)
    said = step_table.sentence([step], "flash")
    cells = step_table.table([step], "flash").iloc[0].tolist()
    page = _Page(to_html(full))
    for cell in cells:
        assert any(" ".join(shown.split()).startswith(" ".join(cell.split())) for shown in page.cells), cell
        assert export.escaped(cell) in to_markdown(full)
    assert said in to_html(full)
    lines = list(csv.DictReader(io.StringIO(to_csv(full))))
    assert float(lines[0]["step_naive_attention_ms"]) == step.naive.latency_ms  # type: ignore[union-attr]
    assert float(lines[0]["est_step_other_ms"]) == step.est_other_ms
    assert lines[0]["step_seq_len"] == "4096"
    assert lines[1]["est_step_other_ms"] == ""
    without = next(csv.reader(io.StringIO(to_csv(review))))
    assert [name for name in without if "step" in name] == []
    assert "In a whole model step" not in to_html(review) + to_markdown(review)


def test_without_a_signature_the_files_say_so(review: Review) -> None:
    """An empty log is a sentence, not an empty table."""
    for write in (to_markdown, to_html):
        assert "Nobody has signed yet." in write(review._replace(signed=()))


def test_a_signature_is_valid_for_its_evidence_alone(review: Review) -> None:
    """The same fingerprint is valid; another one is stale, and says which rows are others now."""
    valid, stale = review.signed
    assert (valid.stale, valid.changed, valid.text) == (False, (), "valid")
    assert (stale.stale, stale.changed) == (True, ("sixteen, batch 1",))
    many = Standing(stale.sign_off, True, ("a", "b", "c", "d"))
    assert many.text == "stale: the evidence changed for a, b, c and others"
    assert Standing(stale.sign_off, True, ()).text == "stale: the question changed"


def test_the_headline_counts_rows(review: Review) -> None:
    """Verdicts as counted from the rows, and what is used."""
    assert headline(review.decision).startswith("Of 2 rows: 1 decided, 1 not measured.")
    used = {use.backend for use in review.decision.rows[0].uses}
    assert all(name in headline(review.decision) for name in used)
    assert len(reasons(review.decision)) == 1
    assert "not measured: This run has no such heads" in reasons(review.decision)[0]


def test_texts_of_uses() -> None:
    """None, one, and several stretches."""
    assert uses_text(()) == units.UNKNOWN
    assert uses_text([Use("flash", (1, 9))]) == "flash"
    two = [Use("flash", (1, 992)), Use("sdpa_cudnn", (993, 8192)), Use("flash", (8193, 9000))]
    assert uses_text(two).replace(units.GROUP, "") == "flash to 992, sdpa_cudnn from 993, flash from 8193"


def _compared(verdict: str, *ratios: float, at: float | None = None, ahead: str = "") -> Comparison:
    found = tuple(
        Ratio(256 * 2**i, ratio, None, None, 1 if ratio > 1 else -1) for i, ratio in enumerate(ratios)
    )
    return Comparison("flash", "naive", verdict, at, None if at is None else (at - 1, at + 1), ahead, found)


@pytest.mark.parametrize(
    ("found", "last", "text"),
    [
        (None, None, units.UNKNOWN),
        (_compared("always", 2.0, 4.0), 512, "ahead, 2× to 4×"),
        (_compared("never", 0.5), 256, "behind, 0.5×"),
        (_compared("never", 0.5), 512, "behind, 0.5× (to N = 256)"),
        (_compared("undecided", 1.0, 1.1), 512, "undecided, 1× to 1.1×"),
        (_compared("crosses", 0.5, 2.0), 512, "ahead from between 256 and 512 on, 0.5× to 2×"),
        (_compared("crosses", 2.0, 0.5), 512, "ahead up to between 256 and 512, 0.5× to 2×"),
        (_compared("crosses", 2.0, 0.5, 2.0), 1024, "crosses, 0.5× to 2×"),
        (
            _compared("crosses", 0.5, 2.0, at=300, ahead="above"),
            512,
            "ahead from N* 300 [299, 301], 0.5× to 2×",
        ),
        (
            _compared("crosses", 2.0, 0.5, at=300, ahead="below"),
            512,
            "ahead up to N* 300 [299, 301], 0.5× to 2×",
        ),
    ],
)
def test_texts_of_comparisons(found: Comparison | None, last: int | None, text: str) -> None:
    """The side that is ahead, from where, and how far it was measured."""
    assert comparison_text(found, last).replace(units.GROUP, "") == text


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (None, units.UNKNOWN),
        (Memory("flash", 9, 2 * GIB, 3 * GIB, None, 10 * GIB, 1), "5 GiB (measured)"),
        (Memory("flash", 9, 2 * GIB, None, 3 * GIB, 10 * GIB, 1), "5 GiB (modelled)"),
        (Memory("flash", 9, 2 * GIB, None, 9 * GIB, 10 * GIB, 1), "does not fit, 1 GiB too much (modelled)"),
        (Memory("sdpa_cudnn", 9, 2 * GIB, None, None, 10 * GIB, 1), units.UNKNOWN),
        (Memory("flash", 9, 2 * GIB, 3 * GIB, None, None, None), units.UNKNOWN),
    ],
)
def test_texts_of_memory(held: Memory | None, text: str) -> None:
    """What is left, or by how much it does not fit; measured and modelled never look alike."""
    assert memory_text(held).replace(units.GROUP, " ") == text


def test_texts_of_evidence(review: Review) -> None:
    """The measured size, its lengths, rows and flags; another size than the asked one is called nearest."""
    row = review.decision.rows[0]
    text = evidence_text(row._replace(flags=(("noisy", 2),))).replace(units.GROUP, "")
    assert text == "B1 H16, N 256 to 4096, 9 rows, 2 noisy"
    assert evidence_text(row._replace(batch=2)).startswith("nearest B1 H16, N ")
    assert evidence_text(row._replace(batch=2, measured=(2, 16))).startswith("B2 H16, N ")
    assert evidence_text(review.decision.rows[1]) == "none"


def test_numbers_have_a_row_each_even_without_evidence(review: Review) -> None:
    """A row that was not measured keeps its question; its figures are empty, not zero."""
    found = numbers(review.decision)
    assert found["verdict"].tolist() == ["decided", "not measured"]
    assert pd.isna(found.loc[1, "peak_mem_bytes"])
    assert pd.isna(found.loc[1, "naive_ratio_min"])
    assert found.loc[1, "kv_heads"] == 2
