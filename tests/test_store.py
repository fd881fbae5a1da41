"""Run files: what is written is on the disk, what is torn is recovered, and what is derived is not stored."""

from __future__ import annotations

import dataclasses
import gc
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import (
    failed_measurement,
    synthetic_case,
    synthetic_environment,
    synthetic_measurement,
    synthetic_run,
    write_synthetic,
)

from profiling.case import KEY_FIELDS, InputError
from profiling.fingerprint import kernel_hash
from profiling.records import COLUMNS, DERIVED_FIELDS, Addition, ClockResult, Run
from profiling.store import (
    DTYPES,
    SAMPLE_COLUMNS,
    RunInfo,
    RunWriter,
    frame,
    list_runs,
    load_run,
    run_path,
    samples_frame,
    save_run,
)
from profiling.store.collector import paused


@pytest.fixture
def run() -> Run:
    """A small finished run: 2 backends, 3 lengths, the longest out of memory for `naive`."""
    return synthetic_run(seq_lens=(64, 128, 256), oom_from={"naive": 256}, processes=2, rounds=2)


@pytest.fixture
def path(tmp_path: Path, run: Run) -> Path:
    """The small run as a file."""
    path = tmp_path / "run.jsonl"
    write_synthetic(run, path)
    return path


def list_runs_of(path: Path) -> list[RunInfo]:
    """The list of runs in a data folder that has this file alone."""
    data = path.parent / "data"
    (data / "runs").mkdir(parents=True)
    (data / "runs" / path.name).write_bytes(path.read_bytes())
    return list_runs(data)


def one_sentence(error: pytest.ExceptionInfo[InputError]) -> str:
    """The message, which is one line."""
    text = str(error.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------------------------------- round trip


def test_a_run_survives_the_disk(run: Run, path: Path) -> None:
    """Loading gives what was written, field by field, and the file knows no derived column."""
    assert load_run(path) == run
    text = path.read_text(encoding="utf-8")
    assert not any(name in text for name in (*DERIVED_FIELDS, "stale_kernel"))


def test_every_line_is_an_object_with_a_kind(path: Path) -> None:
    """The file is JSON Lines: a header, a line per case, an end."""
    kinds = [json.loads(line)["kind"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert kinds == ["header", *["case"] * 6, "end"]


def test_append_is_on_disk_before_close(tmp_path: Path, run: Run) -> None:
    """What `append` returned from can be read while the writer is still open."""
    with RunWriter.create(tmp_path / "r.jsonl", run.header) as writer:
        writer.append(run.measurements[:2])
        assert load_run(writer.path).measurements == run.measurements[:2]
        writer.append([])
        writer.append(run.measurements[2:3])
        assert load_run(writer.path).measurements == run.measurements[:3]


def test_unknown_numbers_are_written_as_null(tmp_path: Path, run: Run) -> None:
    """An error that is NaN or infinite comes back as unknown, not as a number JSON does not have."""
    bad = run.measurements[0].model_copy(update={"rel_error": float("nan"), "eager_rel_error": float("inf")})
    with RunWriter.create(tmp_path / "r.jsonl", run.header) as writer:
        writer.append([bad])
    loaded = load_run(tmp_path / "r.jsonl").measurements[0]
    assert loaded.rel_error is None
    assert loaded.eager_rel_error is None
    assert "NaN" not in (tmp_path / "r.jsonl").read_text(encoding="utf-8")


def test_writer_refuses_what_could_not_be_read_back(tmp_path: Path, run: Run) -> None:
    """A sample that is no number, and an environment that was never added, are the caller's mistakes."""
    first = run.measurements[0]
    broken = first.model_copy(update={"samples": (first.samples[0].model_copy(update={"ms": float("nan")}),)})
    with RunWriter.create(tmp_path / "r.jsonl", run.header) as writer:
        with pytest.raises(ValueError, match="not a finite number"):
            writer.append([broken])
        with pytest.raises(ValueError, match="never added"):
            writer.append([first.model_copy(update={"environment": 1})])
        assert load_run(writer.path).measurements == ()


def test_create_refuses_an_existing_file(path: Path, run: Run) -> None:
    """A second run of the same id does not overwrite the first."""
    before = path.read_bytes()
    with pytest.raises(InputError) as error:
        RunWriter.create(path, run.header)
    assert "exists already" in one_sentence(error)
    assert path.read_bytes() == before


def test_what_was_measured_later_completes_its_row(path: Path, run: Run) -> None:
    """Energy, counters, memory are lines of their own; what they do not say stays, and so does the end."""
    case = run.measurements[0].case
    with RunWriter.resume(path) as writer:
        writer.add([Addition(case=case, energy_mj=2.5, energy_window_s=1.0)])
        writer.add([Addition(case=case, dram_read_bytes=7)])
        writer.add([Addition(case=case, peak_mem_bytes=9, source="another run")])
        writer.end("finished", took_s=10.0, timed_s=4.0)
    again = load_run(path)
    completed = {"energy_mj": 2.5, "energy_window_s": 1.0, "dram_read_bytes": 7, "peak_mem_bytes": 9}
    assert again.measurements == (run.measurements[0].model_copy(update=completed), *run.measurements[1:])
    assert again.end is not None
    assert (again.end.took_s, again.end.timed_s, again.problems) == (10.0, 4.0, ())


def test_what_was_measured_of_no_case_is_named(path: Path) -> None:
    """An addition without its row is left out, and the rest loads."""
    before = load_run(path)
    with RunWriter.resume(path) as writer:
        writer.add([Addition(case=synthetic_case("flash", 999), energy_mj=2.5)])
    again = load_run(path)
    assert again.measurements == before.measurements
    assert len(again.problems) == 1
    assert "has no row before it" in again.problems[0]


@pytest.mark.parametrize("run_id", ["", "../up", "a/b", ".hidden", "a b", "x" * 101, "a\n"])
def test_a_run_id_cannot_leave_its_folder(tmp_path: Path, run_id: str) -> None:
    """Ids from imported files become file names only if they are plain."""
    with pytest.raises(InputError):
        run_path(tmp_path, run_id)


def test_save_run_names_the_file_after_the_run(tmp_path: Path, run: Run) -> None:
    """A run in memory is written whole, further environments included."""
    other = synthetic_environment("NVIDIA A100-SXM4-80GB")
    moved = run.measurements[-1].model_copy(update={"environment": 1})
    run = dataclasses.replace(
        run, measurements=(*run.measurements[:-1], moved), environments=(*run.environments, other)
    )
    saved = save_run(run, tmp_path / "new")
    assert saved == tmp_path / "new" / "synthetic-run.jsonl"
    assert load_run(saved) == run


# ------------------------------------------------------------------------------------------------- torn


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_anywhere_gives_a_prefix_and_can_be_resumed(
    tmp_path: Path, run: Run, path: Path, data: st.DataObject
) -> None:
    """However much of the tail a crash took, whole lines load, the rest is named, and resuming is clean."""
    whole = path.read_bytes()
    cut = data.draw(st.integers(whole.index(b"\n"), len(whole)))
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(whole[:cut])
    loaded = load_run(torn)
    assert loaded.measurements == run.measurements[: len(loaded.measurements)]
    n_lines = 1 + len(loaded.measurements) + (loaded.end is not None)
    whole_lines = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")
    assert n_lines == whole_lines
    missing_tail = cut < len(whole) and whole[cut - 1 : cut] != b"\n" and whole[cut : cut + 1] != b"\n"
    assert ("torn" in " ".join(loaded.problems)) == missing_tail

    done = {m.case for m in loaded.measurements}
    with RunWriter.resume(torn) as writer:
        writer.append([m for m in run.measurements if m.case not in done])
        writer.end("finished", run.end.at if run.end else None)
    again = load_run(torn)
    assert again.problems == ()
    assert again.measurements == run.measurements
    assert again.end == run.end


def test_zero_bytes_after_a_power_cut_are_a_torn_line(path: Path, run: Run) -> None:
    """Some file systems leave zeros where the last block never arrived."""
    with path.open("ab") as handle:
        handle.write(b"\0" * 100)
    loaded = load_run(path)
    assert loaded.measurements == run.measurements
    assert loaded.problems == ("the last line (line 9) is torn and is left out",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{not json", "not a JSON object"),
        (b"[1, 2]", "not a JSON object"),
        (b"\xff\xfe\x00", "not a JSON object"),
        (b'{"kind": "telemetry"}', "'telemetry'"),
        (b'{"kind": "case", "status": "ok"}', "case"),
        (b'{"kind": "end", "status": "bored", "at": ""}', "status"),
    ],
)
def test_a_bad_line_in_the_middle_is_named_and_the_rest_loads(
    path: Path, run: Run, line: bytes, said: str
) -> None:
    """One damaged line costs one line."""
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]))
    loaded = load_run(path)
    assert loaded.measurements == run.measurements
    assert len(loaded.problems) == 1
    assert loaded.problems[0].startswith("line 4 could not be read")
    assert said in loaded.problems[0]


def test_a_case_of_an_unknown_environment_is_named(path: Path, run: Run) -> None:
    """A row whose environment is not in the file is not shown under another one's name."""
    text = path.read_text(encoding="utf-8").replace('"environment":0', '"environment":7', 1)
    path.write_text(text, encoding="utf-8")
    loaded = load_run(path)
    assert loaded.measurements == run.measurements[1:]
    assert "environment 7" in loaded.problems[0]


def test_of_a_case_measured_twice_the_last_counts(path: Path, run: Run) -> None:
    """A forced resume may write a case again: the later row is kept, and the file says so."""
    again = run.measurements[1].model_copy(update={"measured_at": "2026-02-02T00:00:00Z"})
    with RunWriter.resume(path) as writer:
        writer.append([again])
    loaded = load_run(path)
    assert again in loaded.measurements
    assert len(loaded.measurements) == len(run.measurements)
    assert again.case.label in loaded.problems[0]


def test_what_is_measured_again_on_purpose_is_no_problem(path: Path, run: Run) -> None:
    """Each case may have one more row, which counts alone: what was measured beside the old one is gone."""
    case = run.measurements[0].case
    again = run.measurements[0].model_copy(update={"measured_at": "2026-02-02T00:00:00Z", "status": "oom"})
    with RunWriter.resume(path) as writer:
        writer.add([Addition(case=case, energy_mj=2.5)])
    with RunWriter.resume(path, remeasure="flagged") as writer:
        writer.append([again])
        writer.end("finished")
    loaded = load_run(path)
    assert loaded.problems == ()
    assert loaded.measurements == (*run.measurements[1:], again)
    info = next(info for info in list_runs_of(path) if info.run_id == run.run_id)
    assert (info.n_cases, info.n_by_status) == (6, {"ok": 4, "oom": 2})


@pytest.mark.parametrize("reopened", [False, True])
def test_a_purpose_holds_for_one_row_and_one_process(path: Path, run: Run, reopened: bool) -> None:
    """A third row, or one by a process that had no such purpose, is told."""
    with RunWriter.resume(path, remeasure="failed") as writer:
        writer.append(run.measurements[: 2 - reopened])
        if not reopened:
            writer.append([run.measurements[1]])
    if reopened:
        with RunWriter.resume(path) as writer:
            writer.append([run.measurements[1]])
    (problem,) = load_run(path).problems
    assert problem.startswith("1 case(s) are in the file more than once")
    assert run.measurements[1].case.label in problem


# -------------------------------------------------------------------------------------------- rejection


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"hello", b"backend,variant\nnaive,\n", b"[]\n", b"{}\n", b'{"kind":"case"}\n', b"\x00\x01"],
)
def test_what_is_no_run_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    """The first line decides."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_run(path)
    assert "not a run file" in one_sentence(error)


def test_a_newer_schema_asks_for_an_upgrade(path: Path) -> None:
    """A file from the future is not guessed at, whatever else is in it."""
    text = path.read_text(encoding="utf-8").replace('"schema_version":1', '"schema_version":99,"new":1', 1)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_run(path)
    assert "schema 99" in one_sentence(error)
    assert "upgrade" in str(error.value)


def test_a_torn_header_and_a_missing_file_are_refused(path: Path, tmp_path: Path) -> None:
    """Without its header a file says nothing; neither does a folder or a file that is not there."""
    path.write_bytes(path.read_bytes()[:50])
    for bad in (path, tmp_path / "nothing.jsonl", tmp_path):
        with pytest.raises(InputError) as error:
            load_run(bad)
        one_sentence(error)


# ----------------------------------------------------------------------------------------- resume, list


def test_resuming_takes_over_pid_and_reopens_the_end(path: Path, run: Run) -> None:
    """A run that goes on has no end, and the pid of the process that writes now."""
    assert load_run(path).end is not None
    with RunWriter.resume(path, pid=4321) as writer:
        loaded = load_run(path)
        assert loaded.end is None
        assert loaded.header.pid == 4321
        number = writer.append_environment(synthetic_environment("NVIDIA A100-SXM4-80GB"))
        assert number == 1
        case = synthetic_case("flash", 512)
        writer.append([synthetic_measurement(case, environment=number)])
        writer.end("interrupted")
    loaded = load_run(path)
    assert loaded.end is not None
    assert loaded.end.status == "interrupted"
    devices = frame(loaded).groupby("seq_len_q")["device_name"].first()
    assert devices[512] == "NVIDIA A100-SXM4-80GB"
    assert devices[64] == "NVIDIA H200"


def test_runs_are_listed_by_folder_newest_first(tmp_path: Path, run: Run) -> None:
    """Samples come before own runs; a broken file is listed with what is wrong, a stray one is not."""
    first = run.measurements[0].model_copy(update={"dram_read_bytes": 1, "dram_write_bytes": 0})
    run = dataclasses.replace(run, measurements=(first, *run.measurements[1:]))
    for folder, run_id, created_at in (
        ("samples", "s", "2026-01-01T00:00:00Z"),
        ("runs", "old", "2026-01-01T00:00:00Z"),
        ("runs", "new", "2026-03-01T00:00:00Z"),
    ):
        header = run.header.model_copy(update={"run_id": run_id, "created_at": created_at})
        save_run(dataclasses.replace(run, header=header), tmp_path / folder)
    (tmp_path / "runs" / "broken.jsonl").write_text("oops", encoding="utf-8")
    (tmp_path / "runs" / "notes.txt").write_text("not a run", encoding="utf-8")
    infos = list_runs(tmp_path)
    assert [info.run_id for info in infos] == ["s", "new", "old", "broken"]
    assert infos[0].n_cases == 6
    assert infos[0].n_by_status == {"ok": 5, "oom": 1}
    assert infos[0].planned_cases == 6
    assert (infos[0].n_counted, infos[0].n_tiled, infos[0].operations) == (1, 0, ("attention",))
    assert infos[0].end_status == "finished"
    assert infos[0].device_name == "NVIDIA H200"
    assert "not a run file" in infos[3].problem
    assert list_runs(tmp_path / "nowhere") == []


# ----------------------------------------------------------------------------------------------- tables


def test_the_table_has_the_documented_columns_and_types(run: Run) -> None:
    """Columns, order and dtypes hold for a full, an empty and a two-run table."""
    for runs in (run, [], [run, run], dataclasses.replace(run, measurements=())):
        table = frame(runs)
        assert tuple(table.columns) == COLUMNS
        assert {name: str(dtype) for name, dtype in table.dtypes.items()} == DTYPES
        assert table.index.is_unique


def test_a_row_is_a_case_and_a_clock(run: Run) -> None:
    """Numbers arrive as they were measured, and a failed case has one row per planned clock."""
    table = frame(run)
    assert len(table) == 6 * 2
    failed = table[table["status"] == "oom"]
    assert failed["clock"].tolist() == ["wall", "device"]
    assert failed["latency_p50_ms"].isna().all()
    assert failed["peak_mem_bytes"].isna().all()
    first = run.measurements[0].clocks[0]
    assert table.loc[0, "latency_p50_ms"] == first.latency_p50_ms
    assert table.loc[0, "peak_mem_bytes"] == run.measurements[0].peak_mem_bytes


def test_the_collector_goes_on_after_reading(path: Path, tmp_path: Path) -> None:
    """Reading pauses it, whatever comes of it, and leaves it off where it was off."""
    load_run(path)
    with pytest.raises(InputError):
        load_run(tmp_path / "nowhere.jsonl")
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        load_run(path)
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_status_of_a_case_outranks_its_clocks(run: Run) -> None:
    """An incorrect case has no `ok` row; an `ok` case keeps a clock that failed, and why."""
    first = run.measurements[0]
    incorrect = first.model_copy(update={"status": "incorrect", "reason": "out is off"})
    partly = first.model_copy(
        update={"clocks": (first.clocks[0], ClockResult(clock="graph", status="unsupported", reason="no"))}
    )
    table = frame(dataclasses.replace(run, measurements=(incorrect,)))
    assert table["status"].tolist() == ["incorrect", "incorrect"]
    assert table["reason"].tolist() == ["out is off", "out is off"]
    assert table["paper_tflops"].isna().all()
    table = frame(dataclasses.replace(run, measurements=(partly,)))
    assert table["status"].tolist() == ["ok", "unsupported"]
    assert table["reason"].tolist() == ["", "no"]


def test_a_case_is_never_without_a_row(run: Run) -> None:
    """Even a failure for which no clock was planned shows up."""
    header = run.header.model_copy(update={"clocks": ()})
    failed = failed_measurement(synthetic_case("naive", 64), "timeout", "120 s")
    table = frame(dataclasses.replace(run, header=header, measurements=(failed,)))
    assert table["status"].tolist() == ["timeout"]
    assert table["clock"].tolist() == [""]


def test_bytes_stay_exact_integers(run: Run) -> None:
    """A byte count beyond 2^53 keeps its last digit."""
    huge = run.measurements[0].model_copy(update={"peak_mem_bytes": 2**53 + 1})
    assert frame(dataclasses.replace(run, measurements=(huge,)))["peak_mem_bytes"][0] == 2**53 + 1


def test_another_kernel_than_the_one_at_hand_is_flagged(run: Run) -> None:
    """`stale_kernel` comes from the stored hash, beside the stored flags, and only where both are known."""
    base = run.measurements[1]
    assert base.case.backend == "flash"
    hashes = {"same": kernel_hash("flash"), "other": "0123456789ab", "unknown": ""}
    flags = {}
    for name, stored in hashes.items():
        changed = base.model_copy(update={"kernel_hash": stored, "flags": ("noisy",)})
        flags[name] = frame(dataclasses.replace(run, measurements=(changed,)))["flags"][0]
    assert flags == {"same": "noisy", "other": "noisy;stale_kernel", "unknown": "noisy"}


def test_estimates_use_the_device_of_the_row(run: Run) -> None:
    """A CPU row has no DRAM estimate, a GPU row of the same run has one."""
    cpu = synthetic_environment("some CPU", "cpu")
    moved = run.measurements[0].model_copy(update={"environment": 1})
    both = dataclasses.replace(
        run, measurements=(run.measurements[0], moved), environments=(*run.environments, cpu)
    )
    table = frame(both)
    assert table["est_dram_bytes"].notna().tolist() == [True, True, False, False]
    assert (table["est_naive_bytes"] == table["est_naive_bytes"][0]).all()


def test_samples_reproduce_the_summary(run: Run) -> None:
    """The median of a case's raw samples on a clock is its `latency_p50_ms`, joined on key, clock and run."""
    samples = samples_frame([run])
    assert tuple(samples.columns) == SAMPLE_COLUMNS
    by = [*KEY_FIELDS, "clock", "run_id"]
    medians = samples.groupby(by, dropna=False)["ms"].median().reset_index()
    joined = frame(run).merge(medians, on=by, how="inner")
    assert len(joined) == 10
    np.testing.assert_allclose(joined["latency_p50_ms"], joined["ms"], rtol=0, atol=0)


def test_summaries_alone_have_no_samples(run: Run) -> None:
    """An import gives an empty samples table with the same columns."""
    bare = synthetic_run(seq_lens=(64,), keep_samples=False)
    empty = samples_frame(bare)
    assert tuple(empty.columns) == SAMPLE_COLUMNS
    assert len(empty) == 0
    pd.testing.assert_series_equal(empty.dtypes, samples_frame(run).dtypes)
