"""Our own CSV comes back to the last digit, and a file that is not ours is refused in plain words."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import synthetic_environment, synthetic_run, write_synthetic

from profiling.case import InputError
from profiling.export import to_csv
from profiling.importers import import_file, import_runs
from profiling.importers.comparison import import_csv
from profiling.importers.comparison import import_runs as import_csv_runs
from profiling.paths import DATA_DIR
from profiling.records import ADDED_FIELDS, COLUMNS, ClockResult, Run
from profiling.store import frame, load_run, save_run


def small_run(**changes: object) -> Run:
    """Three lengths, two backends, one case out of memory, one unsupported tile, one half-failed case."""
    run = synthetic_run(
        seq_lens=(64, 128, 256), oom_from={"naive": 256}, tiles=((64, 64), (256, 256)), processes=1, **changes
    )
    first = run.measurements[0]
    clocks = (first.clocks[0], ClockResult(clock="graph", status="unsupported", reason="cannot capture"))
    partly = first.model_copy(
        update={"clocks": clocks, "flags": ("noisy", "thermal"), "energy_mj": 0.1 + 0.2}
    )
    return dataclasses.replace(run, measurements=(partly, *run.measurements[1:]))


@pytest.fixture(scope="module")
def text() -> str:
    """The small run as CSV."""
    return to_csv(frame(small_run()))


def edited(text: str, edit: Callable[[list[list[str]]], object]) -> str:
    """The CSV after `edit` has changed its rows (header first) in place."""
    rows = list(csv.reader(io.StringIO(text, newline="")))
    edit(rows)
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def set_cell(line: int, column: str, value: str) -> Callable[[list[list[str]]], object]:
    """An edit that puts `value` into one cell; `line` counts from 1, the header's line."""
    return lambda rows: rows[line - 1].__setitem__(rows[0].index(column), value)


def refused(source: str | bytes | Path) -> str:
    """The one-line message with which `source` is refused."""
    with pytest.raises(InputError) as error:
        import_csv(source)
    message = str(error.value)
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_export_and_import_give_the_same_table(tmp_path: Path, kind: str) -> None:
    """CSV to run to run file to table: every column, every dtype, every digit."""
    environment = synthetic_environment("NVIDIA H200" if kind == "cuda" else "some CPU", kind)
    run = small_run(environment=environment, directions=("fwd", "bwd"), causals=(False, True))
    before = frame(run)
    path = tmp_path / "table.csv"
    path.write_text(to_csv(before), encoding="utf-8", newline="")
    imported = import_file(path)
    assert imported.problems == ()
    assert imported.header.source == "table.csv"
    assert not any(m.samples for m in imported.measurements)
    after = frame(load_run(save_run(imported, tmp_path)))
    pd.testing.assert_frame_equal(before, after, check_exact=True)
    assert to_csv(after) == to_csv(before)


def test_operations_over_rows_come_back(tmp_path: Path) -> None:
    """The committed run of them, whole: its key has the operation, its estimates are computed again."""
    before = frame(load_run(DATA_DIR / "samples" / "h200-softmax.jsonl"))
    imported = import_csv(to_csv(before))
    assert imported.problems == ()
    after = frame(load_run(save_run(imported, tmp_path)))
    pd.testing.assert_frame_equal(before, after, check_exact=True)


def test_a_table_from_before_operations_is_of_attention(text: str) -> None:
    """Without the column `operation` nothing is asked, and nothing else changes."""

    def without(rows: list[list[str]]) -> None:
        place = rows[0].index("operation")
        for row in rows:
            del row[place]

    old, new = import_csv(edited(text, without)), import_csv(text)
    assert {row.case.operation for row in old.measurements} == {"attention"}
    assert old.measurements == new.measurements


def test_another_operation_is_refused_with_those_there_are(text: str) -> None:
    """The message names line, column and what is allowed."""
    said = refused(edited(text, set_cell(3, "operation", "convolution")))
    assert "line 3, column operation" in said
    assert "attention, cross_entropy, softmax_top_k" in said


words = st.text(st.characters(exclude_categories=["Cs"])) | st.builds(
    "".join,
    st.lists(st.sampled_from(["=", "'", ",", '"', "\n", "\r", "\t", "+1", "@", ";", "OOM", " ", "\ufeff"])),
)
numbers = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
latencies = st.floats(min_value=0, exclude_min=True, max_value=1e100)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reason=words, kernel=words, p50=latencies, error=numbers, size=st.integers(0, 2**63 - 1))
def test_any_text_and_number_survives(
    tmp_path: Path, reason: str, kernel: str, p50: float, error: float, size: int
) -> None:
    """Reasons with commas, quotes, newlines, a leading `=` or `'`; floats of any size; bytes beyond 2^53."""
    run = synthetic_run(seq_lens=(64,), backends=("flash",), keep_samples=False)
    m = run.measurements[0]
    clock = m.clocks[0].model_copy(update={"latency_p50_ms": p50, "status": "unsupported", "reason": reason})
    update = {"clocks": (clock, m.clocks[1]), "kernel": kernel, "rel_error": error, "peak_mem_bytes": size}
    before = frame(dataclasses.replace(run, measurements=(m.model_copy(update=update),)))
    imported = import_csv(to_csv(before).encode())
    path = tmp_path / "synthetic-run.jsonl"
    path.unlink(missing_ok=True)
    save_run(imported, tmp_path)
    pd.testing.assert_frame_equal(before, frame(load_run(path)), check_exact=True)


def test_a_spreadsheet_may_have_saved_it(text: str) -> None:
    """A BOM, CRLF, blank lines, upper-case truth, `1024.0` for an integer and other column order are fine."""

    def as_saved(rows: list[list[str]]) -> None:
        at = rows[0].index("seq_len_q")
        for row in rows[1:]:
            row[at] += ".0"
            row[:] = [{"true": "TRUE", "false": "FALSE"}.get(cell, cell) for cell in row]
        for row in rows:
            row.reverse()

    saved = "\ufeff" + edited(text, as_saved).replace("\n", "\r\n") + "\r\n\r\n"
    expected = frame(import_csv(text))
    pd.testing.assert_frame_equal(frame(import_csv(saved.encode())), expected)
    pd.testing.assert_frame_equal(frame(import_csv(saved)), expected)


def test_several_runs_in_one_file_stay_several() -> None:
    """Rows of different runs are never merged; asking for one run says how many there are."""
    tables = [frame(synthetic_run(run_id=name, seq_lens=(64,), seed=k)) for k, name in enumerate("ab")]
    both = pd.concat(tables, ignore_index=True)
    runs = import_csv_runs(to_csv(both))
    assert [run.run_id for run in runs] == ["a", "b"]
    pd.testing.assert_frame_equal(frame(runs), both, check_exact=True)
    assert "2 runs (a, b)" in refused(to_csv(both))


def test_each_row_keeps_its_own_environment() -> None:
    """A run resumed with other software says so row by row, also after the round trip."""
    run = small_run()
    newer = synthetic_environment(torch_version="2.12.0")
    moved = run.measurements[-1].model_copy(update={"environment": 1})
    run = dataclasses.replace(
        run, measurements=(*run.measurements[:-1], moved), environments=(*run.environments, newer)
    )
    before = frame(run)
    assert set(before["torch_version"]) == {"2.11.0", "2.12.0"}
    pd.testing.assert_frame_equal(frame(import_csv(to_csv(before))), before, check_exact=True)


def test_a_run_file_is_imported_as_it_is(tmp_path: Path) -> None:
    """JSON Lines are recognised by content, whatever the file is called."""
    run = small_run()
    write_synthetic(run, tmp_path / "run.txt")
    assert import_file(tmp_path / "run.txt") == run


# ----------------------------------------------------------------------------------------------- derived


def test_estimates_are_derived_again_and_differences_told(text: str) -> None:
    """Another version's estimates are not stored: ours are shown, and the file's are named."""
    run = import_csv(edited(text, set_cell(3, "est_tile_bytes", "12345")))
    assert len(run.problems) == 1
    assert "est_tile_bytes" in run.problems[0]
    assert "line 3" in run.problems[0]
    pd.testing.assert_frame_equal(frame(run), frame(import_csv(text)))


def test_a_mask_has_one_spelling(text: str) -> None:
    """A window that ends at the query's own place comes in as causal, on every clock of its case."""

    def end_windows(rows: list[list[str]]) -> None:
        for row in rows[1:]:
            row[rows[0].index("window_left")], row[rows[0].index("window_right")] = "16", "0"

    run = import_csv(edited(text, end_windows))
    assert {(m.case.causal, m.case.window_left, m.case.window_right) for m in run.measurements} == {
        (True, 16, None)
    }
    assert len(run.measurements) == len(import_csv(text).measurements)


def test_estimates_may_be_left_out(text: str) -> None:
    """A file without derived columns, as another tool may write it, is complete."""

    def drop(rows: list[list[str]]) -> None:
        derived = [k for k, name in enumerate(rows[0]) if name.startswith("est_") or name == "paper_tflops"]
        for row in rows:
            for k in reversed(derived):
                del row[k]

    pd.testing.assert_frame_equal(frame(import_csv(edited(text, drop))), frame(import_csv(text)))


def test_a_file_of_an_older_version_is_read(text: str) -> None:
    """Columns that came later may be absent; what they hold is then unknown."""

    def drop(rows: list[list[str]]) -> None:
        for row in rows:
            del row[-len(ADDED_FIELDS) :]

    table = frame(import_csv(edited(text, drop)))
    assert table[list(ADDED_FIELDS)].isna().all().all()
    assert len(table) == len(frame(import_csv(text)))


def test_a_stale_flag_is_not_believed_but_found(text: str) -> None:
    """`stale_kernel` in a file says how it looked elsewhere; here the hash decides."""
    at = next(
        k for k, row in enumerate(csv.DictReader(io.StringIO(text)), start=2) if row["backend"] == "flash"
    )

    def both_clocks(column: str, value: str) -> Callable[[list[list[str]]], object]:
        return lambda rows: [set_cell(line, column, value)(rows) for line in (at, at + 1)]

    run = import_csv(edited(text, both_clocks("flags", "stale_kernel;noisy")))
    assert frame(run)["flags"][at - 2] == "noisy"
    run = import_csv(edited(text, both_clocks("kernel_hash", "0123456789ab")))
    assert frame(run)["flags"][at - 2] == "stale_kernel"


def test_exact_copies_are_set_aside_and_counted(text: str) -> None:
    """A row pasted twice is used once, and the run says so."""
    run = import_csv(edited(text, lambda rows: rows.append(rows[4])))
    n = len(frame(import_csv(text)))
    assert run.problems[0].startswith(f"{n + 1} rows read, {n} used, 1 set aside")
    pd.testing.assert_frame_equal(frame(run), frame(import_csv(text)))


# -------------------------------------------------------------------------------------------- rejection


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (set_cell(3, "latency_p50_ms", "fast"), ["line 3", "latency_p50_ms", "'fast'", "number"]),
        (set_cell(3, "latency_p50_ms", "1,5"), ["line 3", "latency_p50_ms", "decimal point"]),
        (set_cell(3, "latency_p50_ms", "nan"), ["line 3", "latency_p50_ms", "empty"]),
        (set_cell(3, "latency_p50_ms", "1e999"), ["line 3", "latency_p50_ms", "finite"]),
        (set_cell(3, "latency_p50_ms", "0"), ["line 3", "latency_p50_ms", "above 0"]),
        (set_cell(3, "peak_mem_bytes", "-1"), ["line 3", "peak_mem_bytes", "negative"]),
        (set_cell(3, "peak_mem_bytes", "1.5"), ["line 3", "peak_mem_bytes", "whole number"]),
        (set_cell(3, "peak_mem_bytes", "9" * 30), ["line 3", "peak_mem_bytes", "whole number"]),
        (set_cell(3, "seq_len_q", ""), ["line 3", "seq_len_q", "must not be empty"]),
        (set_cell(3, "causal", "maybe"), ["line 3", "causal", "true or false"]),
        (set_cell(3, "causal", ""), ["line 3", "causal", "true or false"]),
        (set_cell(3, "status", "fine"), ["line 3", "status", "'fine'", "ok, oom"]),
        (set_cell(3, "clock", "sundial"), ["line 3", "clock", "'sundial'", "wall"]),
        (set_cell(3, "direction", "up"), ["line 3", "direction", "fwd"]),
        (set_cell(3, "device_kind", "tpu"), ["line 3", "device_kind", "cuda"]),
        (set_cell(3, "run_id", ""), ["line 3", "run_id", "must not be empty"]),
        (set_cell(3, "backend", "magic"), ["line 3", "'magic'", "naive"]),
        (set_cell(4, "kv_heads", "5"), ["kv_heads", "multiple"]),
        (set_cell(5, "peak_mem_bytes", "77"), ["the same case", "peak_mem_bytes"]),
        (set_cell(5, "device_name", "other"), ["the same case", "device_name"]),
        (lambda rows: rows.append([*rows[4][:-1], "9"]), ["same run, case and clock", "other values"]),
        (lambda rows: rows[3].append("extra"), ["line 4", f"{len(COLUMNS) + 1} fields", str(len(COLUMNS))]),
        (lambda rows: rows[3].pop(), ["line 4", f"{len(COLUMNS) - 1} fields", str(len(COLUMNS))]),
        (lambda rows: rows[0].__setitem__(0, "impl"), ["backend", "missing", "'impl'", "unknown"]),
        (lambda rows: [row.append("x") for row in rows], ["'x'", "unknown"]),
        (lambda rows: [row.append(row[0]) for row in rows], ["backend", "more than once"]),
        (lambda rows: rows.__delitem__(slice(1, None)), ["header but no rows"]),
    ],
)
def test_a_fault_is_named_by_line_and_column(
    text: str, edit: Callable[[list[list[str]]], object], said: list[str]
) -> None:
    """What, where, what is allowed: and nothing of the file is taken."""
    message = refused(edited(text, edit))
    assert [word for word in said if word not in message] == []


def test_several_faults_are_counted(text: str) -> None:
    """The first few are named, the others counted."""

    def spoil(rows: list[list[str]]) -> None:
        for line in range(2, 8):
            set_cell(line, "status", "fine")(rows)

    message = refused(edited(text, spoil))
    assert "line 2" in message
    assert "and 3 more" in message


def test_a_line_number_counts_lines_not_rows(text: str) -> None:
    """A cell with a newline before the fault does not shift the line that is named."""
    shifted = edited(edited(text, set_cell(8, "reason", "two\nlines")), set_cell(9, "status", "fine"))
    assert "line 10, column status" in refused(shifted)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\n\n", "is empty"),
        ("N;ms\n1;2\n".encode("utf-16"), "not UTF-8"),
        ("ger\xe4t,ms\n".encode("latin-1"), "not UTF-8"),
        (b"N;ms\n128;1,5\n", "separated by ';'"),
        (b"N\tms\n128\t1.5\n", "separated by '\\t'"),
        (b"N,ms\n128,1.5\n", "not a comparison CSV"),
        (b'N,"ms\n128,1.5\n', "not well-formed CSV"),
        (b"N\n1\n", "missing"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Empty, wrong encoding, wrong delimiter, torn quotes, somebody else's table."""
    path = tmp_path / "other.csv"
    path.write_bytes(content)
    assert said in refused(path)
    with pytest.raises(InputError):
        import_runs(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Both doors say which file."""
    for door in (import_file, import_csv):
        with pytest.raises(InputError, match=r"nothing\.csv: no such file"):
            door(tmp_path / "nothing.csv")
    with pytest.raises(InputError):
        import_file(tmp_path)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_whole(text: str, data: st.DataObject) -> None:
    """Whatever few bytes are changed: one clear sentence, or every row is there. No crash, no silent loss."""
    damaged = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    message = ""
    runs = []
    try:
        runs = import_csv_runs(bytes(damaged))
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    if message:
        return
    used = sum(len(frame(run)) for run in runs)
    records = [row for row in csv.reader(io.StringIO(bytes(damaged).decode("utf-8-sig"), newline="")) if row]
    copies = len(records) - len({tuple(row) for row in records})
    assert used >= len(records) - 1 - copies
