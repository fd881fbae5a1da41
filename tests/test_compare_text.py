"""What `flashscope compare` prints: nothing unsaid, in three formats."""

import json
import re

import pytest

from profiling.analysis.compare import compare
from profiling.analysis.regressions import broken, limit, summary
from profiling.compare_text import broken_text, json_text, markdown_text, plain_text
from profiling.store import frame, samples_frame
from tests.synthetic import LAWS, synthetic_environment, synthetic_run

NAMES = ("before", "after")
QUIET = {"process_noise": 0.002, "round_noise": 0.002, "processes": 6}


@pytest.fixture(scope="module")
def found():
    """On another GPU, flash is 30 % slower, naive the same; B has lost a length and gained one."""
    law = LAWS["flash"]
    slow = {**LAWS, "flash": law._replace(launch_ms=1.3 * law.launch_ms, pair_ms=1.3 * law.pair_ms)}
    a = synthetic_run(seq_lens=(512, 1024, 4096), **QUIET)
    b = synthetic_run(
        seq_lens=(1024, 2048, 4096),
        laws=slow,
        oom_from={"naive": 4096},
        seed=1,
        environment=synthetic_environment("NVIDIA A100", git_commit="f" * 40),
        **QUIET,
    )
    return compare(frame(a), frame(b), samples_frame(a), samples_frame(b))


def test_the_banner_is_on_top(found):
    """What else differs stands before every number, hashes short."""
    text = plain_text(found, summary(found), NAMES)
    paragraphs = text.split("\n\n")
    assert paragraphs[0] == "A: before, B: after; ratios are B / A"
    assert paragraphs[1].splitlines() == [
        "! A and B differ in more than time:",
        "! device: A NVIDIA H200, B NVIDIA A100",
        "! git commit: A 000000000000, B ffffffffffff",
    ]


def test_no_difference_no_banner(found):
    """Alike in all that is known, nothing is said."""
    same = found._replace(differences=())
    assert "!" not in plain_text(same, summary(same), NAMES)


def test_slower_lost_faster_and_how_many_more(found):
    """By default what is slower, lost and faster is listed; the rest is counted, none is left unsaid."""
    told = summary(found)
    text = plain_text(found, told, NAMES)
    slower = [row for row in found.rows if row.verdict == "slower"]
    assert len(slower) == 4
    for row in (*slower, *told.lost):
        assert re.search(rf"^{re.escape(row.case.label)} +{row.clock or row.metric} ", text, re.MULTILINE)
    assert text.index("Slower, the worst first:") < text.index("Ran in A, not in B:") < text.index("Missing:")
    assert "Faster, the best first:" not in text
    listed = len(slower) + len(told.lost)
    assert f"{len(found.rows) - listed} more row(s) are counted above; --all lists them." in text
    assert re.search(r"^ok +oom +3$", text, re.MULTILINE)
    assert re.search(r"^ok +missing, not in B +6$", text, re.MULTILINE)


def test_all_lists_every_row(found):
    """With `whole` each row is a line, and nothing is left to count."""
    text = plain_text(found, summary(found), NAMES, whole=True)
    (table,) = re.findall(r"All rows:\n\n(.*?)\n\n", text, re.DOTALL)
    assert len(table.splitlines()) == len(found.rows) + 1
    assert "more row(s)" not in text


def test_numbers_have_units_and_intervals(found):
    """A slower row tells both times, the ratio and its interval."""
    text = plain_text(found, summary(found), NAMES)
    line = next(x for x in text.splitlines() if x.startswith("flash fwd") and " device " in x)
    assert re.search(r"\d (µs|ms) +\d+ (µs|ms) +1\.[23]\d*× +1\.[23]\d* to 1\.[23]\d*  slower$", line)


def test_flags_stand_beside_the_verdict(found):
    """A row of a GPU that slowed down says so, on the side where it did."""
    rows = tuple(
        row._replace(b=tuple(side._replace(flags=("thermal", "noisy")) for side in row.b))
        for row in found.rows
    )
    hot = found._replace(rows=rows)
    text = plain_text(hot, summary(hot), NAMES)
    assert text.count("  slower   B thermal noisy\n") == 4
    assert "A thermal" not in text


def test_gpus_that_ran_at_other_clocks(found):
    """More than 3 % apart is told on top, with its count, and beside each row; less is not."""
    both = [row for row in found.rows if row.metric == "latency" and row.verdict != "missing"]
    for mhz, told in ((1900.0, True), (1950.0, False)):
        rows = tuple(
            row._replace(
                a=tuple(side._replace(sm_clock_mhz=1980.0) for side in row.a),
                b=tuple(side._replace(sm_clock_mhz=mhz) for side in row.b),
            )
            for row in found.rows
        )
        text = plain_text(found._replace(rows=rows), summary(found), NAMES)
        assert (f"! SM clock: more than 3 % apart in {len(both)} of {len(both)} rows" in text) == told
        assert ("  slower   SM at 1\u00a0980 and 1\u00a0900 MHz\n" in text) == told


def test_the_rule_is_told(found):
    """Margin and level always; the threshold where it was used, and for how many rows."""
    assert "Same: within 2 %, at 95 % for each row." in plain_text(found, summary(found), NAMES)
    assert "no samples" not in plain_text(found, summary(found), NAMES)
    table = frame(synthetic_run(seq_lens=(64,)))
    bare = compare(table, table, metrics=("latency",))
    text = plain_text(bare, summary(bare), NAMES)
    assert "4 row(s) have no samples: faster or slower only beyond 5 %." in text
    assert "Of memory" not in text
    one = synthetic_run(seq_lens=(64,), processes=1)
    few = compare(frame(one), frame(one), samples_frame(one), samples_frame(one))
    assert "4 row(s) have too few processes" in plain_text(few, summary(few), NAMES)


def test_markdown_has_the_same_numbers(found):
    """Every table is one of Markdown, with as many columns in each line, and the banner a quotation."""
    told = summary(found)
    text = markdown_text(found, told, NAMES)
    assert text.startswith("### A: before, B: after")
    assert "> device: A NVIDIA H200, B NVIDIA A100  \n" in text
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert re.fullmatch(r"\|(:-+:?\|)+", lines[1])
            assert {line.count("|") for line in lines} == {lines[0].count("|")}
    plain = plain_text(found, told, NAMES)
    assert re.findall(r"\d\.\d+×", text) == re.findall(r"\d\.\d+×", plain)


def test_text_of_a_file_stays_text(found):
    """A reason or a name with Markdown's signs, or line breaks, makes no new cell, link or line."""
    rows = tuple(
        row._replace(b=tuple(side._replace(reason="a | b\n[x](y)") for side in row.b), why="a | b\n[x](y)")
        for row in found.rows
    )
    odd = found._replace(rows=rows)
    text = markdown_text(odd, summary(odd), NAMES, whole=True)
    assert "[x](y)" not in text
    for line in text.splitlines():
        if line.startswith("|") and "flash fwd" in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 9


def test_json_holds_everything(found):
    """Rows, summary, differences and what is broken; no NaN."""
    told, off = summary(found), broken(found, [limit("slower=5%")])
    read = json.loads(json_text(found, told, off, NAMES))
    assert (read["a"], read["b"]) == NAMES
    assert len(read["rows"]) == len(found.rows)
    assert [row["label"] for row in read["broken"]] == [row.case.label for row in off]
    assert {d["what"] for d in read["differences"]} == {"device", "git commit"}
    assert (read["margin"], read["threshold"]) == (0.02, 0.05)
    assert sum(read["summary"]["n_by_verdict"]["latency"].values()) == sum(
        row["metric"] == "latency" for row in read["rows"]
    )
    oom = next(row for row in read["rows"] if row["b"][0]["status"] == "oom")
    assert (oom["verdict"], oom["ratio"], oom["b"][0]["reason"]) == ("missing", None, "out of memory")


def test_what_is_broken_is_one_line(found):
    """The first rows by name, with their ratio, and how many more."""
    rows = [row for row in found.rows if row.verdict == "slower"]
    text = broken_text(rows * 3, ["slower=5%"])
    assert text.startswith("flashscope: 12 row(s) break slower=5%: flash fwd")
    assert text.endswith(" and 7 more")
    assert "\n" not in text
    lost = broken_text(summary(found).lost[:1], ["missing"])
    assert lost.endswith("missing")
