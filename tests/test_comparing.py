"""`flashscope compare` as a user calls it: runs, files and CSVs, three formats, and its exit status."""

import json

import pytest

from profiling.paths import DATA_DIR
from tests.synthetic import LAWS, synthetic_environment, synthetic_run, write_synthetic

QUIET = {"process_noise": 0.002, "round_noise": 0.002, "processes": 6, "seq_lens": (1024, 4096)}


@pytest.fixture
def data(tmp_path):
    """A data folder with a run, the same run again, a slower one, one that has lost a case, and a CPU's."""
    folder = tmp_path / "data" / "runs"
    law = LAWS["flash"]
    slow = {**LAWS, "flash": law._replace(launch_ms=1.2 * law.launch_ms, pair_ms=1.2 * law.pair_ms)}
    runs = {
        "one": synthetic_run(run_id="one", **QUIET),
        "again": synthetic_run(run_id="again", seed=1, **QUIET),
        "slow": synthetic_run(run_id="slow", seed=2, laws=slow, **QUIET),
        "lost": synthetic_run(run_id="lost", seed=3, oom_from={"naive": 4096}, **QUIET),
        "apart": synthetic_run(
            run_id="apart", environment=synthetic_environment("a CPU", "cpu"), **(QUIET | {"seq_lens": (7,)})
        ),
    }
    for name, run in runs.items():
        write_synthetic(run, folder / f"{name}.jsonl")
    return tmp_path / "data"


class TestExitStatus:
    """0 where nothing breaks a limit, 4 where something does, 2 where the question makes no sense."""

    @pytest.mark.parametrize(
        ("b", "limits", "code", "said"),
        [
            ("slow", [], 0, ""),
            ("again", ["slower=5%", "faster=5%", "missing"], 0, ""),
            ("slow", ["slower=5%"], 4, "4 row(s) break slower=5%: flash fwd"),
            ("slow", ["slower=50%"], 0, ""),
            ("slow", ["missing"], 0, ""),
            ("lost", ["slower=5%"], 0, ""),
            ("lost", ["slower=5%", "missing"], 4, "break slower=5%, missing: naive fwd"),
            ("apart", ["slower=5%"], 4, "not one case ran on both sides"),
        ],
    )
    def test_of_a_limit(self, flashscope, data, b, limits, code, said):
        """Said in one line on stderr; the tables are printed all the same."""
        options = [word for each in limits for word in ("--fail-on", each)]
        found, out, err = flashscope("compare", "one", b, *options, "--data", data)
        assert found == code
        assert said in err
        assert len(err.strip().splitlines()) == bool(said)
        assert f"A: one, B: {b}" in out

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["nowhere", "one"], "no run of that id"),
            (["one", "nowhere.csv"], "no such file"),
            (["one", "one", "--fail-on", "slow"], "slower=5%"),
            (["one", "one", "--margin", "2"], "per cent sign"),
            (["one", "one", "--margin", "6%"], "at most the threshold"),
            (["one", "one", "--metric", "energy"], "nothing to compare"),
            (["one", "one", "--clock", "graph"], "nothing to compare"),
        ],
    )
    def test_rejected(self, flashscope, data, words, said):
        """One sentence, status 2, nothing on stdout."""
        code, out, err = flashscope("compare", *words, "--data", data)
        assert code == 2
        assert said in err
        assert len(err.strip().splitlines()) == 1
        assert out == ""


def test_a_run_against_itself(flashscope, data):
    """Never slower or faster; no banner."""
    code, out, err = flashscope("compare", "one", "one", "--format", "json", "--data", data)
    assert (code, err) == (0, "")
    read = json.loads(out)
    assert {row["verdict"] for row in read["rows"]} <= {"same", "ambiguous"}
    assert read["differences"] == []


def test_one_clock_or_one_metric(flashscope, data):
    """Only what was asked for."""
    ask = ("compare", "one", "slow", "--format", "json", "--data", data)
    read = json.loads(flashscope(*ask, "--clock", "device", "--metric", "latency")[1])
    assert {(row["metric"], row["clock"]) for row in read["rows"]} == {("latency", "device")}
    read = json.loads(flashscope(*ask, "--metric", "memory")[1])
    assert {row["verdict"] for row in read["rows"]} == {"same"}


def test_csv_files_have_summaries(flashscope, data, tmp_path):
    """A comparison CSV stands for its run; without samples there is no interval, and that is said."""
    for name in ("one", "slow"):
        flashscope("export", name, "--out", tmp_path / f"{name}.csv", "--data", data)
    pair = (tmp_path / "one.csv", tmp_path / "slow.csv")
    code, out, _ = flashscope("compare", *pair, "--fail-on", "slower=5%")
    assert code == 4
    assert "8 row(s) have no samples: faster or slower only beyond 5 %." in out
    read = json.loads(flashscope("compare", *pair, "--format", "json")[1])
    told = {(row["case"]["backend"], row["verdict"]) for row in read["rows"] if row["metric"] == "latency"}
    assert told == {("naive", "same"), ("flash", "slower")}
    assert {row["interval"] for row in read["rows"]} == {None}


def test_markdown(flashscope, data):
    """A comment for a pull request, with every row if asked for."""
    code, out, _ = flashscope("compare", "one", "slow", "--format", "markdown", "--all", "--data", data)
    assert code == 0
    assert out.startswith("### A: one, B: slow")
    rows = [line for line in out.splitlines() if line.startswith(("| flash fwd", "| naive fwd"))]
    assert len(rows) == 12


def test_a_committed_run_by_its_id(flashscope):
    """The runs of the checkout are at hand without a folder; nothing breaks a limit against itself."""
    limits = ("--fail-on", "slower", "--fail-on", "faster", "--fail-on", "missing")
    code, out, err = flashscope("compare", "h200-decode", DATA_DIR / "samples" / "h200-decode.jsonl", *limits)
    assert (code, err) == (0, "")
    assert "A: h200-decode" in out
