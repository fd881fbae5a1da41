"""`flashscope import`: what it writes, and the last line that accounts for every row."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import synthetic_run, write_synthetic

from profiling import __main__ as command_line
from profiling.export import to_csv
from profiling.store import frame, load_run

DATA = Path(__file__).parent / "importers" / "data"
BENCH = ("--set", "direction=fwd", "--set", "dtype=bf16", "--set", "causal=false")
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `flashscope import` on an empty data folder: exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        argv = ["flashscope", "import", *map(str, words), "--data", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as end:
            command_line.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


def written(tmp_path: Path) -> list[Path]:
    """The run files made."""
    return sorted((tmp_path / "runs").glob("*.jsonl"))


def test_a_family_is_taken_in_by_itself(take: Command, tmp_path: Path) -> None:
    """Each run becomes a file, and the last line accounts for all rows."""
    code, out, err = take(DATA / "liger.csv")
    assert (code, err) == (0, "")
    assert len(written(tmp_path)) == 2
    last = out.splitlines()[-1]
    assert last.startswith("18 rows read, 14 used, 4 set aside because: ")
    assert out.count("18 rows read") == 1


def test_rows_set_aside_are_written_out(take: Command, tmp_path: Path) -> None:
    """With their place, the reason and their own cells."""
    code, _, _ = take(DATA / "liger.csv", "--set-aside", tmp_path / "aside.csv")
    assert code == 0
    rows = list(csv.DictReader((tmp_path / "aside.csv").open(encoding="utf-8", newline="")))
    assert [row["line"] for row in rows] == ["16", "17", "18", "19"]
    assert rows[2]["kernel_name"] == "rms_norm"
    assert "no attention" in rows[2]["reason"]


def test_what_is_not_said_is_asked_for(take: Command, tmp_path: Path) -> None:
    """One sentence with the option to give; nothing is written before it is given."""
    code, out, err = take(DATA / "tritonbench.csv")
    assert (code, out) == (2, "")
    assert "--set direction=" in err
    assert written(tmp_path) == []
    words = (*BENCH, "--name", "cudnn-90100=sdpa_cudnn", "--run-id", "tb")
    code, out, _ = take(DATA / "tritonbench.csv", *words)
    assert code == 0
    (path,) = written(tmp_path)
    assert path.name == "tb.jsonl"
    assert {m.case.backend for m in load_run(path).measurements} == {"naive", "sdpa_cudnn"}
    assert out.splitlines()[-1] == (
        "4 rows read, 3 used, 1 set aside because: a row of `average`, not of a measurement (line 5)"
    )


def test_any_table_by_its_columns(take: Command, tmp_path: Path) -> None:
    """`--map` alone is enough to say that no family is meant; a tab may be named."""
    table = tmp_path / "mine.txt"
    table.write_text("N\tslow\tquick\n1024\t2,5\t1,25\n2048\tOOM\t3,5\n", encoding="utf-8")
    maps = ("N=seq_len", "slow=latency ms, backend=naive", "quick=latency ms, backend=flash")
    sets = ("batch=1", "heads=8", "head_dim=64", "dtype=fp16", "causal=true", "clock=wall", "direction=fwd")
    words = [word for text in maps for word in ("--map", text)]
    words += [word for text in sets for word in ("--set", text)]
    code, out, err = take(table, *words, "--delimiter", "tab", "--run-id", "mine")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "2 rows read, 2 used, 0 set aside"
    table = frame(load_run(tmp_path / "runs" / "mine.jsonl"))
    assert table["latency_p50_ms"].dropna().tolist() == [2.5, 1.25, 3.5]
    assert table["status"].tolist() == ["ok", "ok", "oom", "ok"]


def test_files_taken_together_are_one_run(take: Command, tmp_path: Path) -> None:
    """Backends of two files meet in one curve only if one says that they were measured together."""
    code, out, _ = take(DATA / "gym_flash.csv", DATA / "gym_cudnn.csv", "--set", "device_name=NVIDIA H200")
    assert code == 0
    (path,) = written(tmp_path)
    assert load_run(path).header.environment.device_name == "NVIDIA H200"
    assert out.splitlines()[-1].startswith("7 rows read, 6 used, 1 set aside")


def test_a_run_that_is_there_is_not_overwritten(take: Command, tmp_path: Path) -> None:
    """The same file again is the same run; of several runs none is written if one is there."""
    assert take(DATA / "liger.csv")[0] == 0
    (first, second) = written(tmp_path)
    first.unlink()
    code, out, err = take(DATA / "liger.csv")
    assert (code, out) == (2, "")
    assert "exists already; nothing was written" in err
    assert written(tmp_path) == [second]


def test_our_own_files_are_accounted_for_too(take: Command, tmp_path: Path) -> None:
    """A comparison CSV with a copied row; a run file with a torn line and a case that is there twice."""
    run = synthetic_run(run_id="ours", seq_lens=(64, 128), processes=1)
    lines = to_csv(frame(run)).splitlines(keepends=True)
    table = tmp_path / "ours.csv"
    table.write_text("".join([*lines, lines[1]]), encoding="utf-8", newline="")
    code, out, _ = take(table)
    n = len(lines) - 1
    assert code == 0
    assert out.splitlines()[-1].startswith(f"{n + 1} rows read, {n} used, 1 set aside because: an exact copy")

    run = synthetic_run(run_id="two", seq_lens=(64, 128), processes=1)
    write_synthetic(run, tmp_path / "two.jsonl")
    text = (tmp_path / "two.jsonl").read_text(encoding="utf-8")
    case = text.splitlines(keepends=True)[1]
    (tmp_path / "two.jsonl").write_text(text + "nonsense\n" + case + '{"kind":"ca', encoding="utf-8")
    code, out, _ = take(tmp_path / "two.jsonl", "--set-aside", tmp_path / "aside.csv")
    assert code == 0
    cases = len(load_run(tmp_path / "runs" / "two.jsonl").measurements)
    assert out.splitlines()[-1].startswith(f"{cases + 3} rows read, {cases} used, 3 set aside because: ")
    rows = list(csv.DictReader((tmp_path / "aside.csv").open(encoding="utf-8", newline="")))
    assert rows[0]["line"] == "2"
    assert "last line counts" in rows[0]["reason"]
    assert rows[1]["text"] == "nonsense"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("backend,", "impl,", "column(s) backend missing, column(s) 'impl' unknown"),
        (",", ";", "separated by ';'"),
        ("latency_p50_ms", "latency", "column(s) latency_p50_ms missing"),
    ],
)
def test_our_own_csv_with_a_fault_is_told_its_fault(
    take: Command, tmp_path: Path, before: str, after: str, said: str
) -> None:
    """It is not taken for a table of others."""
    text = to_csv(frame(synthetic_run(seq_lens=(64,), processes=1)))
    header, rows = text.split("\n", 1)
    header = header.replace(before, after) if after == ";" else header.replace(before, after, 1)
    (tmp_path / "ours.csv").write_text(f"{header}\n{rows}", encoding="utf-8", newline="")
    code, _, err = take(tmp_path / "ours.csv")
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--as", "liger"), "its columns are not those of liger"),
        (("--set", "batch"), "--set: must be FIELD=VALUE"),
        (("--set", "colour=red"), "no field 'colour'"),
        (("--name", "x"), "--name: must be WORD=OURS"),
        (("--decimal", ";"), "--decimal ;: must be . or ,"),
        (("--run-id", "../x", *BENCH), "cannot name a file"),
        (("--delimiter", "ab"), "--delimiter"),
    ],
)
def test_an_option_that_does_not_fit_is_one_sentence(
    take: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """Exit status 2, nothing written."""
    code, out, err = take(DATA / "tritonbench.csv", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert written(tmp_path) == []
