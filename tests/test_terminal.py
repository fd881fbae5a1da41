"""What the command line prints: whole, aligned, and honest about what is missing."""

import os

import pytest

from profiling.analysis.crossover import crossovers
from profiling.analysis.latency_fit import LatencyFit
from profiling.case import Case, InputError
from profiling.devices import find_device
from profiling.records import ClockResult, Measurement, Run, RunHeader
from profiling.runner import Result
from profiling.store import RunInfo, frame, samples_frame
from profiling.terminal import (
    crossover_text,
    environment_line,
    fits_text,
    is_alive,
    run_list,
    run_text,
    summary_text,
    table,
)
from tests.synthetic import synthetic_environment, synthetic_measurement

SHAPE = {"head_dim": 64, "head_dim_v": 64, "heads": 16, "kv_heads": 16}
BAD = Measurement(
    case=Case(backend="naive", seq_len_q=2**17, seq_len_k=2**17, **SHAPE),
    status="oom",
    reason="no room",
    clocks=(ClockResult(clock="wall", status="oom", reason="no room"),),
)


def a_run(*measurements):
    """A run of these measurements on two clocks."""
    header = RunHeader(
        run_id="r",
        created_at="2026-11-29T00:00:00Z",
        label="a label",
        environment=synthetic_environment(git_clean=False),
        clocks=("wall", "device"),
    )
    return Run(header, measurements, (header.environment,))


def test_columns_are_aligned():
    """Each column starts at one place; nothing trails."""
    text = table(("a", "b"), [("long word", "x"), ("s", "")])
    assert text.splitlines() == ["a          b", "long word  x", "s"]


def test_an_empty_table_has_its_header():
    """Without rows there is the header alone."""
    assert table(("a", "b"), []) == "a  b"


class TestRunText:
    """`flashscope show`."""

    def test_cases_with_their_numbers(self):
        """Environment, then a line per case; a failure has its reason and no number."""
        good = synthetic_measurement(Case(backend="flash", seq_len_q=1024, seq_len_k=1024, **SHAPE))
        lines = run_text(a_run(good, BAD)).splitlines()
        assert lines[0] == "r, 2026-11-29T00:00:00Z, a label"
        assert "NVIDIA H200" in lines[1]
        assert "uncommitted changes" in lines[1]
        assert lines[3].startswith("case")
        assert lines[4].startswith("flash fwd bf16")
        assert lines[4].endswith("ok")
        assert lines[5].endswith("oom: no room")
        assert "ms" not in lines[5]

    def test_a_clock_of_choice(self):
        """The first clock by default, another by name; one that is not there is refused."""
        run = a_run(BAD)
        assert "wall p50" in run_text(run)
        assert "device p50" in run_text(run, "device")
        with pytest.raises(InputError, match="must be one of wall, device"):
            run_text(run, "graph")

    def test_an_empty_run(self):
        """A run without rows can be shown."""
        assert "case" in run_text(a_run())


def test_environment_without_git():
    """What is not known is said to be unknown, or left out."""
    line = environment_line(synthetic_environment(git_commit="", driver_version=""))
    assert "commit unknown" in line
    assert "driver" not in line


class TestRunList:
    """`flashscope list`."""

    def info(self, tmp_path, **fields):
        """A run's summary; fields replace its defaults."""
        default = {
            "path": tmp_path / "r.jsonl",
            "run_id": "r",
            "device_name": "a GPU",
            "created_at": "now",
            "label": "",
            "n_cases": 3,
            "n_by_status": {"ok": 2, "oom": 1},
            "planned_cases": 5,
        }
        return RunInfo(**(default | fields))

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"end_status": "finished"}, "finished"),
            ({"end_status": "interrupted"}, "interrupted"),
            ({"end_status": "budget"}, "out of time: go on with --resume"),
            ({"pid": 2**22 + 1}, "killed: go on with --resume"),
            ({}, "killed"),
            ({"problem": "r.jsonl: not a run file"}, "not a run file"),
        ],
    )
    def test_states(self, tmp_path, fields, said):
        """Finished, interrupted, killed, unreadable: each is told apart."""
        assert said in run_list([self.info(tmp_path, **fields)])

    def test_a_live_process(self, tmp_path):
        """A run whose writer lives and has not ended is running."""
        assert f"running (pid {os.getpid()})" in run_list([self.info(tmp_path, pid=os.getpid())])

    def test_counts(self, tmp_path):
        """Rows of planned ones, and how many of them failed how."""
        assert "3 of 5 cases, 1 oom" in run_list([self.info(tmp_path)])


class TestSummary:
    """The last line of `flashscope run`."""

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            (
                {"took_s": 310.2, "timed_s": 189.0},
                "r.jsonl: finished, 498 of 498 cases (490 ok, 8 oom) in 5 minutes and 10 seconds, "
                "61 % of it measuring",
            ),
            ({"took_s": 310.2}, "(490 ok, 8 oom) in 5 minutes and 10 seconds"),
            ({}, "r.jsonl: finished, 498 of 498 cases (490 ok, 8 oom)"),
            ({"n_rows": 0, "n_by_status": {}}, "0 of 498 cases (none)"),
            (
                {"status": "budget", "n_rows": 100, "took_s": 59.6, "timed_s": 0.0, "n_left_out": 398},
                "r.jsonl: out of time, 100 of 498 cases (490 ok, 8 oom) in 1 minute, 0 % of it measuring; "
                "398 case(s) were left out",
            ),
        ],
    )
    def test_one_line(self, tmp_path, fields, said):
        """How it ended, rows by status, how long it took and how much of that was measuring."""
        default = {"path": tmp_path / "r.jsonl", "status": "finished", "n_rows": 498, "n_planned": 498}
        result = Result(**(default | {"n_by_status": {"oom": 8, "ok": 490}} | fields))
        assert summary_text(result).endswith(said)


def test_is_alive():
    """This process lives; none, and one beyond the system's largest, do not."""
    assert is_alive(os.getpid())
    assert not is_alive(None)
    assert not is_alive(2**22 + 1)


def test_crossover_text_names_slice_clock_and_verdict():
    """A crossover comes with its slice, its clock, N* and the sentence that explains it."""
    lengths = [2**i for i in range(6, 14)]
    run = a_run(
        *(
            synthetic_measurement(Case(backend=b, seq_len_q=n, seq_len_k=n, **SHAPE))
            for n in lengths
            for b in ("naive", "flash")
        )
    )
    (found,) = crossovers(frame(run), samples_frame(run), clock="device", replicates=100)
    text = crossover_text(found)
    assert text.startswith("fwd bf16 B1 H16 d64 on NVIDIA H200, device clock: ")
    assert found.verdict in text
    assert found.why in text
    assert ("N* = " in text) == (found.crossover_seq_len is not None)


def a_fit(unseen):
    """A fit that is off by so much where it was left out."""
    return LatencyFit("flash", "fwd", "bf16", find_device("H200"), {}, 9, 0.05, unseen)


def test_a_fit_says_how_far_off_it_is_on_what_it_has_not_seen():
    """Below the table: the median of all that was left out, and the worst of it by name; else nothing."""
    key, other = ("flash", "fwd", "bf16"), ("naive", "bwd", "bf16")
    text = fits_text({"one": {key: a_fit({"d = 64": 0.1, "d = 128": 0.3}), other: a_fit({"d = 64": 0.2})}})
    assert text.splitlines()[-1] == (
        "On what was left out, 3 times: off by 20 % (median of these), at most by 30 % "
        "(flash fwd bf16 at d = 128)."
    )
    assert text.splitlines()[2].endswith(" d = 64: 10 %, d = 128: 30 %")
    assert "left out, " not in fits_text({"one": {key: a_fit({})}})
    assert fits_text({"one": {}}).startswith("No latency model")
