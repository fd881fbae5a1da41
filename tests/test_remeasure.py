"""Which rows are measured again: those in doubt with their whole block, or those that failed, alone."""

from __future__ import annotations

import pytest
from synthetic import synthetic_case

from profiling.fingerprint import kernel_hash
from profiling.records import ClockResult, Measurement
from profiling.remeasure import cases_again
from profiling.store import load_run
from tests.stand_in_run import StandIn


def row(name: str, n: int, status: str = "ok", flags=(), clock_flags=(), kernel: str = "") -> Measurement:
    """A row of a backend at N."""
    return Measurement.model_validate(
        {
            "case": synthetic_case(name, n),
            "status": status,
            "flags": flags,
            "clocks": (ClockResult(clock="device", flags=clock_flags),),
            "kernel_hash": kernel,
        }
    )


def again(rows: list[Measurement], which: str, backends=None) -> list[tuple[str, int]]:
    """(backend, N) of what is measured again."""
    return [(case.backend, case.seq_len_q) for case in cases_again(rows, which, backends)]


@pytest.mark.parametrize(
    "doubt",
    [
        {"flags": ("thermal",)},
        {"flags": ("clock_drift",)},
        {"clock_flags": ("noisy",)},
        {"clock_flags": ("timer_limited",)},
        {"kernel": "0" * 12},
    ],
    ids=lambda doubt: str(*doubt.values()),
)
def test_a_doubtful_row_takes_its_block_along(doubt):
    """A comparison holds within a block that was interleaved: its other `ok` cases are measured with it."""
    rows = [row("naive", 64), row("flash", 64, **doubt), row("naive", 128), row("flash", 128)]
    assert again(rows, "flagged") == [("naive", 64), ("flash", 64)]


def test_what_failed_in_a_flagged_block_stays_as_it_is():
    """An out-of-memory is no doubt; `failed` is for that."""
    rows = [row("naive", 64, "oom"), row("flash", 64, flags=("thermal",))]
    assert again(rows, "flagged") == [("flash", 64)]


@pytest.mark.parametrize("status", ["oom", "timeout", "crashed", "incorrect"])
def test_failed_rows_alone(status):
    """What failed is tried again without its neighbours."""
    rows = [row("naive", 64, status), row("flash", 64, flags=("thermal",))]
    assert again(rows, "failed") == [("naive", 64)]


def test_what_a_backend_cannot_take_is_not_tried_again():
    """`unsupported` would be that once more."""
    assert again([row("tiled", 64, "unsupported")], "failed") == []


def test_backends_keep_their_own_rows():
    """With --backends only theirs are looked at."""
    rows = [row("naive", 64, flags=("thermal",)), row("flash", 64, flags=("thermal",))]
    assert again(rows, "flagged", ("flash",)) == [("flash", 64)]


def test_a_kernel_as_it_is_now_is_no_doubt():
    """The hash at hand, or none, is not stale."""
    rows = [row("flash", 64, kernel=kernel_hash("flash")), row("sdpa_flash", 64)]
    assert again(rows, "flagged") == []


class TestRun:
    """`--remeasure`: rows that are in the file already are measured again, and the new ones count."""

    @pytest.fixture
    def doubtful(self, stand_in, request_run, monkeypatch):
        """A run: `naive` was hot at N = 16, `tiled` out of memory at 32. From now on all is well."""

        def row(client, block):
            rows = StandIn.measure(client, block)
            if stand_in.well:
                return rows
            bad = {("naive", "", 16): {"flags": ("thermal",)}, ("tiled", "", 32): {"status": "oom"}}
            return [
                m.model_copy(update=bad.get((m.case.backend, m.case.variant, m.case.seq_len_q), {}))
                for m in rows
            ]

        stand_in.well = False
        monkeypatch.setattr(stand_in, "measure", row)
        path = request_run(run_id="r").path
        stand_in.well = True
        stand_in.measured.clear()
        return path

    def test_flagged_rows_with_their_block(self, stand_in, request_run, doubtful):
        """The whole block is interleaved once more; the file has no problem and no flag any more."""
        result = request_run(resume=doubtful, remeasure="flagged")
        assert [(case.backend, case.seq_len_q) for case in stand_in.measured] == [
            ("naive", 16),
            ("naive", 16),
            ("tiled", 16),
        ]
        run = load_run(doubtful)
        assert (result.status, result.n_rows, result.n_planned) == ("finished", 6, 6)
        assert run.problems == ()
        assert [m.flags for m in run.measurements] == [()] * 6
        assert result.n_by_status == {"ok": 5, "oom": 1}

    def test_failed_rows_alone(self, stand_in, request_run, doubtful):
        """Only what failed, and the flags stay as they are."""
        result = request_run(resume=doubtful, remeasure="failed")
        assert [(case.backend, case.seq_len_q) for case in stand_in.measured] == [("tiled", 32)]
        assert result.n_by_status == {"ok": 6}
        assert sum(bool(m.flags) for m in load_run(doubtful).measurements) == 1

    def test_nothing_in_doubt_is_nothing_to_do(self, stand_in, request_run, doubtful):
        """A second time no worker starts, and the file stays as it is."""
        for which in ("flagged", "failed"):
            request_run(resume=doubtful, remeasure=which)
        before = doubtful.read_bytes()
        stand_in.measured.clear()
        assert request_run(resume=doubtful, remeasure="flagged").status == "finished"
        assert stand_in.measured == []
        assert doubtful.read_bytes() == before

    def test_interrupted_the_old_rows_stand(self, stand_in, request_run, doubtful):
        """What was not measured again keeps its row, so a plain --resume has nothing left."""
        stand_in.stop_at = 16
        first = request_run(resume=doubtful, remeasure="flagged")
        assert (first.status, first.n_rows) == ("interrupted", 6)
        stand_in.stop_at = None
        assert request_run(resume=doubtful).status == "finished"
        assert stand_in.measured == []
        request_run(resume=doubtful, remeasure="flagged")
        assert len(stand_in.measured) == 3
        assert load_run(doubtful).problems == ()

    def test_missing_rows_are_measured_too(self, stand_in, request_run, doubtful):
        """--remeasure adds to what --resume measures."""
        lines = doubtful.read_bytes().splitlines(keepends=True)
        doubtful.write_bytes(b"".join(lines[:-2]))  # without `tiled` at 32, and the end
        request_run(resume=doubtful, remeasure="flagged")
        assert {case.seq_len_q for case in stand_in.measured} == {16, 32}
        assert len(stand_in.measured) == 4
        assert load_run(doubtful).problems == ()
