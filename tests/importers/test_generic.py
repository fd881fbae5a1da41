"""Wide and long tables as the command line says they are: asked for, never guessed, nothing lost."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiling.case import InputError
from profiling.importers import Imported, Settings, aside_csv, import_tables
from profiling.importers.assembly import summary
from profiling.store import frame, load_run, save_run

SHAPE = ("batch=2", "heads=4", "head_dim=64", "dtype=fp16", "causal=false", "clock=device", "direction=fwd")
WIDE = ("N=seq_len", "naive=latency us, backend=naive", "flash=latency us, backend=flash")


@pytest.fixture
def taken(tmp_path: Path) -> Callable[..., Imported]:
    """A function that imports a text as a table."""

    def take(text: str, maps: tuple[str, ...] = WIDE, sets: tuple[str, ...] = SHAPE, **more: Any) -> Imported:
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8", newline="")
        return import_tables([path], more.pop("family", None), Settings(maps=maps, sets=sets, **more))

    return take


def values(found: Imported) -> dict[tuple[str, int], float]:
    """Latency in ms by backend and N."""
    table = frame(found.runs)
    keys = zip(table["backend"], table["seq_len_k"], strict=True)
    return dict(zip(keys, table["latency_p50_ms"], strict=True))


def test_a_wide_table(taken, tmp_path: Path) -> None:
    """A column per backend; what the file does not say is set; the run is an ordinary one."""
    found = taken("N,naive,flash\n128,100,50.5\n256,400,150\n")
    assert values(found) == {
        ("naive", 128): 0.1,
        ("flash", 128): 0.0505,
        ("naive", 256): 0.4,
        ("flash", 256): 0.15,
    }
    assert found.summary == "2 rows read, 2 used, 0 set aside"
    (run,) = found.runs
    case = run.measurements[0].case
    assert (case.batch, case.heads, case.kv_heads, case.head_dim_v, case.causal) == (2, 4, 4, 64, False)
    assert frame(load_run(save_run(run, tmp_path))).equals(frame(run))
    assert run.run_id.startswith("table-")


def test_a_long_table_with_words_of_its_own(taken) -> None:
    """Backend, metric and unit in columns, JSON and tuple cells, percentiles in columns of their own."""
    text = (
        "impl;what;unit;shape;config;median;q20;q80\n"
        'eager;latency;us;(2, 512);{"h": 8, "seed": 3};1.234,5;1.000;1.300\n'
        'eager;memory;MiB;(2, 512);{"h": 8, "seed": 3};12,5;;\n'
        'fused;latency;us;(2, 512,);{"h": 8, "seed": 3};900,25;800;1.000\n'
    )
    maps = (
        *("impl=backend", "what=metric", "unit=unit", "shape=tuple(batch,seq_len)", "config=json(h=heads)"),
        *("median=value", "q20=value, stat=p20", "q80=value, stat=p80"),
    )
    sets = (*(text for text in SHAPE if not text.startswith(("batch", "heads"))), "above=inputs")
    found = taken(text, maps, sets, names=("eager=naive", "fused=flash"))
    rows = {row["backend"]: row for row in frame(found.runs).to_dict("records")}
    naive = rows["naive"]
    assert naive["latency_p50_ms"] == pytest.approx(1.2345)
    assert naive["latency_p20_ms"] == 1.0
    assert naive["latency_p80_ms"] == pytest.approx(1.3)
    assert naive["peak_mem_bytes"] == 12.5 * 2**20
    assert naive["mem_method"] == "cuda_allocator"
    assert (naive["batch"], naive["heads"], naive["seq_len_q"]) == (2, 8, 512)
    assert rows["flash"]["latency_p50_ms"] == pytest.approx(0.90025)
    assert found.runs[0].header.label == "seed=3"


def test_whatever_has_no_field_keeps_rows_apart(taken) -> None:
    """Two seeds, or two devices, are two runs, and never one curve."""
    text = "N,seed,gpu,naive\n128,1,A,100\n128,2,A,101\n128,2,B,102\n"
    maps = ("N=seq_len", "seed=extra", "gpu=device_name", "naive=latency us, backend=naive")
    found = taken(text, maps)
    assert [(run.header.label, run.header.environment.device_name) for run in found.runs] == [
        ("seed=1", "A"),
        ("seed=2", "A"),
        ("seed=2", "B"),
    ]
    assert len({run.run_id for run in found.runs}) == 3
    assert "3 runs" in found.runs[0].problems[-1]


@pytest.mark.parametrize(
    ("cell", "status", "said"),
    [
        ("OOM", "oom", "'OOM'"),
        ("CUDA OOM", "oom", "'CUDA OOM'"),
        ("nan", "missing", "does not say why"),
        ("", "missing", "empty"),
        ("\u2014", "missing", "\u2014"),
        ("-1", "missing", "'-1'"),
        ("0", "missing", "is 0"),
        ("0.000", "missing", "is 0.000"),
        ("timeout", "timeout", "'timeout'"),
        ("not supported", "unsupported", "'not supported'"),
    ],
)
def test_a_failure_is_a_row_that_keeps_the_files_own_words(taken, cell: str, status: str, said: str) -> None:
    """Never a 0, never a dropped row."""
    found = taken(f"N,naive,flash\n128,100,50\n256,{cell},150\n")
    table = frame(found.runs)
    (row,) = table[(table["backend"] == "naive") & (table["seq_len_k"] == 256)].to_dict("records")
    assert row["status"] == status
    assert said in row["reason"]
    assert row["latency_p50_ms"] != row["latency_p50_ms"]  # NaN
    assert found.summary == "2 rows read, 2 used, 0 set aside"


def test_a_status_column_counts(taken) -> None:
    """`success` is ok, `oom` is oom whatever number stands beside it, a word that is none is set aside."""
    text = "N,naive,how\n128,100,success\n256,0,OOM\n512,3,blue\n"
    found = taken(text, ("N=seq_len", "how=status", "naive=latency us, backend=naive"))
    assert frame(found.runs)["status"].tolist() == ["ok", "oom"]
    assert "line 4: status must be one of ok, oom" in found.aside[0].text


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("x,100,50", ["seq_len must be a whole number", "'x'"]),
        ("1.5,100,50", ["seq_len must be a whole number", "'1.5'"]),
        ("-3,100,50", ["seq_len must be a whole number"]),
        ("99999999999,100,50", ["seq_len must be a whole number"]),
        (",100,50", ["does not say seq_len", "--map COLUMN=seq_len"]),
        ("512,fast,50", ["column naive", "finite number in us", "'fast'"]),
        ("512,-5,50", ["column naive", "negative"]),
        ("512,1e-300,50", ["column naive", "time of one call"]),
        ("512,1e999,50", ["column naive", "finite"]),
        ("512,1", ["3 fields", "got 2"]),
        ("average,1,2", ["`average`"]),
    ],
)
def test_a_row_that_cannot_be_understood_is_set_aside_by_line_and_column(
    taken, row: str, said: list[str]
) -> None:
    """The rest of the table is used, and the row comes out again with its reason."""
    found = taken(f"N,naive,flash\n128,100,50\n{row}\n")
    (aside,) = found.aside
    assert aside.text.startswith("table.csv, line 3: ")
    assert [word for word in said if word not in aside.text] == []
    assert found.summary.startswith("2 rows read, 1 used, 1 set aside because: ")
    assert found.runs[0].problems[0] == found.summary
    records = list(csv.DictReader(io.StringIO(aside_csv(found), newline="")))
    assert [(r["file"], r["line"], r["N"].removeprefix("'")) for r in records] == [
        ("table.csv", "3", row.split(",")[0])
    ]


@pytest.mark.parametrize("role", ["json(h=kernel)", "latency ms, backend=sdpa", "tile_m", "seq_len_k"])
@pytest.mark.parametrize(
    ("cell", "is_zero"),
    [
        ("1e-" + "9" * 5000, True),
        ("0e" + "9" * 5000, True),
        ("9" * 5000, False),
        ('{"h": "\\ud800"}', False),
        ('{"h": ' + "9" * 5000 + "}", False),
    ],
)
def test_monstrous_cells_are_no_crash(taken, role: str, cell: str, is_zero: bool) -> None:
    """Thousands of digits, half a surrogate: set aside, or a latency of 0, which is none."""
    quoted = cell.replace('"', '""')
    text = f'N,naive,flash,c\n128,100,50,{"{}" if "json" in role else ""}\n256,100,50,"{quoted}"\n'
    found = taken(text, (*WIDE, f"c={role}"), decimal=".")
    rows = [row for row in frame(found.runs).to_dict("records") if row["seq_len_q"] == 256]
    if is_zero and role.startswith("latency"):
        assert "missing" in [row["status"] for row in rows]
        assert all(len(row["reason"]) < 300 for row in rows)
    elif is_zero and role == "seq_len_k":
        assert {row["seq_len_k"] for row in rows} == {0}
    else:
        assert rows == []
        assert [aside.line for aside in found.aside] == [3]


def test_a_table_of_which_nothing_is_left_is_refused(taken) -> None:
    """The sentence names the first row and what was expected in it."""
    with pytest.raises(InputError, match=r"line 2: column naive: must be a finite number.*'slow'"):
        taken("N,naive,flash\n128,slow,50\n256,slow,60\n")


@pytest.mark.parametrize("name", ["batch", "heads", "head_dim", "dtype", "causal", "clock", "direction"])
def test_what_a_case_needs_is_asked_for_and_never_assumed(taken, name: str) -> None:
    """Without it no row is used, and the sentence says how to say it."""
    sets = tuple(text for text in SHAPE if not text.startswith(f"{name}="))
    with pytest.raises(InputError) as error:
        taken("N,naive,flash\n128,100,50\n", WIDE, sets)
    assert f"--set {name}=" in str(error.value)


def test_conflicting_duplicates_are_shown_and_not_averaged(taken) -> None:
    """Both rows are set aside with both values; a third, undisputed one is used."""
    found = taken("N,naive,flash\n128,100,50\n256,7,8\n128,110,50\n")
    assert values(found) == {("naive", 256): 0.007, ("flash", 256): 0.008}
    assert [aside.line for aside in found.aside] == [2, 4]
    assert "0.1 in line 2, 0.11 in line 4" in found.aside[0].text


def test_a_number_and_a_failure_for_the_same_case_are_a_conflict(taken) -> None:
    """Which of the two came later is not known."""
    with pytest.raises(InputError, match="two values of latency_p50_ms"):
        taken("N,naive,flash\n128,100,50\n128,OOM,50\n")


def test_exact_repeats_are_set_aside(taken) -> None:
    """A row pasted twice is used once."""
    found = taken("N,naive,flash\n128,100,50\n128,100,50\n")
    assert len(values(found)) == 2
    assert "repeats an earlier row exactly, got what line 2 says" in found.aside[0].text


def test_two_columns_that_claim_the_same_contradict_each_other(taken) -> None:
    """A wrong `--map` is seen."""
    maps = ("N=seq_len", "naive=latency us, backend=flash", "flash=latency us, backend=flash")
    with pytest.raises(InputError, match="two values of latency_p50_ms"):
        taken("N,naive,flash\n128,100,50\n", maps)


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (("2.00", "1.25"), "agrees with the times in all 2 rows"),
        (("2x", "1.25x"), "agrees with the times in all 2 rows"),
        (("0.5", "0.8"), "it is the inverse"),
        (
            ("2.00", "1.40"),
            "in 1 of 2 rows it differs from the row's own times (line 3: 1.4 in the file, 1.25",
        ),
    ],
)
def test_speed_ups_are_recomputed(taken, gain: tuple[str, str], said: str) -> None:
    """Held against the row's own times within what their digits allow."""
    text = f"N,naive,flash,gain\n128,100.0,50.0,{gain[0]}\n256,100.0,80.0,{gain[1]}\n"
    found = taken(text, (*WIDE, "gain=speedup naive/flash"))
    (sentence,) = (problem for problem in found.runs[0].problems if "gain" in problem)
    assert said in sentence


def test_rounding_explains_a_speed_up(taken) -> None:
    """0.094 over 0.009 may well be 10.81; nothing is to be said against it."""
    text = "N,naive,flash,gain\n128,0.094,0.009,10.81x\n"
    found = taken(text, (*WIDE, "gain=speedup naive/flash"))
    assert any("agrees" in problem for problem in found.runs[0].problems)


def test_columns_without_a_role_are_named(taken) -> None:
    """Not used, and said so; `ignore` says it was meant."""
    text = "N,naive,flash,note\n128,100,50,hello\n"
    assert any("not used: note" in problem for problem in taken(text).runs[0].problems)
    assert not any("note" in problem for problem in taken(text, (*WIDE, "note=ignore")).runs[0].problems)


def test_a_doubled_header_can_be_named(taken) -> None:
    """The second `ms` is `ms#2`."""
    maps = ("N=seq_len", "ms=latency ms, backend=naive", "ms#2=latency ms, backend=flash")
    assert values(taken("N,ms,ms\n128,2,1\n", maps)) == {("naive", 128): 2.0, ("flash", 128): 1.0}


def test_throughput_becomes_latency_by_a_count_that_is_said(taken) -> None:
    """4·B·H·N·N·d over TFLOP/s: 4·2·4·1024·1024·64 / 1e12 s at 1 TFLOP/s."""
    text = "N,rate\n1024,1\n"
    maps = ("N=seq_len", "rate=throughput TFLOP/s, backend=flash, flops=paper")
    assert values(taken(text, maps))["flash", 1024] == pytest.approx(4 * 2 * 4 * 1024**2 * 64 / 1e9)
    with pytest.raises(InputError, match="flops=paper"):
        taken(text, ("N=seq_len", "rate=throughput TFLOP/s, backend=flash"))


def test_memory_says_what_it_is_above(taken) -> None:
    """The allocator's whole peak is not our `peak_mem_bytes` above the inputs, and has its own method."""
    maps = ("N=seq_len", "m=memory MB, backend=flash, above=nothing")
    (row,) = frame(taken("N,m\n128,2\n", maps).runs).to_dict("records")
    assert (row["peak_mem_bytes"], row["mem_method"]) == (2_000_000, "allocator_total")
    with pytest.raises(InputError, match="above=inputs"):
        taken("N,m\n128,2\n", ("N=seq_len", "m=memory MB, backend=flash"))


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        (("M=seq_len",), "with a column of the table: N, naive, flash"),
        (("N=length",), "no field 'length'"),
        (("N",), "COLUMN=ROLE"),
        (("N=seq_len", "naive=latency"), "must have its unit: one of s, ms, us"),
        (("N=seq_len", "naive=latency fortnights, backend=naive"), "unit of latency must be one of"),
        (("N=seq_len", "naive=latency ms p99"), "stat must be one of p50, p20, p80"),
        (("N=seq_len", "naive=speedup naive"), "BASELINE/CANDIDATE"),
        (("N=seq_len", "naive=latency ms, colour=red"), "no field 'colour'"),
        (("N=seq_len", "naive=latency ms, backend"), "FIELD=VALUE"),
        (("N=tuple(batch,width)",), "no field 'width'"),
        (("N=json(B)",), "KEY=FIELD"),
        (("N=",), "must have a role"),
        (("N=seq_len",), "no column with values"),
        (("N=seq_len", "naive=latency us, backend=magic"), "unknown backend 'magic'"),
    ],
)
def test_a_mapping_that_does_not_fit_says_what_is_allowed(taken, maps: tuple[str, ...], said: str) -> None:
    """One sentence, and no run."""
    with pytest.raises(InputError) as error:
        taken("N,naive,flash\n128,100,50\n", maps)
    assert said in str(error.value)


def test_the_same_file_read_the_same_way_is_the_same_run(taken) -> None:
    """And another way, another run: ids do not collide by accident."""
    text = "N,naive,flash\n128,100,50\n"
    first, again = (taken(text).runs[0].run_id for _ in range(2))
    other = taken(text, WIDE, (*SHAPE[:-1], "direction=bwd")).runs[0].run_id
    assert first == again
    assert first != other
    assert taken(text, run_id="mine").runs[0].run_id == "mine"


def test_a_foreign_table_without_a_word_about_it_is_refused(tmp_path: Path) -> None:
    """The sentence says which `--as` there are, and `--map`."""
    path = tmp_path / "other.csv"
    path.write_text("N,ms\n128,1.5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"--as liger, .*--map COLUMN=ROLE"):
        import_tables([path])
    with pytest.raises(InputError, match="must be one of comparison, liger"):
        import_tables([path], "magic")


def test_the_summary_counts_by_reason() -> None:
    """The commonest first; beyond three they are counted."""
    from profiling.importers.tables import Aside

    aside = [Aside("t", k, f"reason {k % 5}", "", ()) for k in range(12)]
    said = summary(20, aside)
    assert said.startswith(
        "20 rows read, 8 used, 12 set aside because: reason 0 (3 rows, the first in line 0)"
    )
    assert said.endswith("; 2 more reasons")
