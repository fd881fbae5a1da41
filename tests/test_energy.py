"""When energy is measured: which cases lack it, after which block, and that nothing is tried twice."""

from __future__ import annotations

import pytest
from synthetic import synthetic_case, synthetic_run, write_synthetic

from profiling.energy import Energies, lacking
from profiling.records import Addition
from profiling.store import RunWriter, load_run


@pytest.fixture
def run():
    """naive and flash, which change places between N = 512 and 1024; naive is out of memory at 4096."""
    return synthetic_run(seq_lens=(64, 512, 1024, 4096), oom_from={"naive": 4096}, clocks=("device",))


@pytest.fixture
def path(run, tmp_path):
    """The run as a file."""
    path = tmp_path / "run.jsonl"
    write_synthetic(run, path)
    return path


def names(cases):
    """(backend, N) of cases."""
    return [(case.backend, case.seq_len_q) for case in cases]


def measured(energy_mj=5.0, reason=None):
    """What measures: remembers its cases, and finds the same of each."""

    def measure(cases):
        measure.seen += cases
        return [
            Addition(case=case, energy_mj=None if reason else energy_mj, energy_reason=reason)
            for case in cases
        ]

    measure.seen = []
    return measure


def test_all_is_every_row_that_ran(run):
    """A case without a latency has no energy to ask for."""
    wanted = names(lacking(run.measurements, "all", "device"))
    assert ("naive", 4096) not in wanted
    assert len(wanted) == 7


def test_brackets_are_the_cases_beside_a_sign_change(run):
    """Where no sign changes, none is wanted; where one does, both cases at both ends."""
    wanted = names(lacking(run.measurements, "brackets", "device"))
    ms = {
        (m.case.backend, m.case.seq_len_q): m.clocks[0].latency_p50_ms for m in run.measurements if m.clocks
    }
    ahead = {n: ms["flash", n] < ms["naive", n] for n in (64, 512, 1024)}
    turns = [(a, b) for a, b in ((64, 512), (512, 1024)) if ahead[a] != ahead[b]]
    assert len(turns) == 1
    assert sorted(wanted) == sorted((name, n) for n in turns[0] for name in ("flash", "naive"))


def test_what_is_known_or_stale_or_elsewhere_is_not_wanted(run):
    """Energy belongs to the kernel and the environment of the row."""
    known, stale, elsewhere, *rest = run.measurements
    rows = [
        known.model_copy(update={"energy_mj": 1.0}),
        stale.model_copy(update={"kernel_hash": "0" * 12}),
        elsewhere.model_copy(update={"environment": 1}),
        *rest,
    ]
    wanted = lacking(rows, "all", "device", environment=0)
    assert elsewhere.case not in wanted
    assert known.case not in wanted
    assert stale.case not in wanted


def test_results_complete_the_rows_of_the_file(run, path):
    """They are appended as additions, once a case, whatever is asked again."""
    measure = measured()
    with RunWriter.resume(path) as writer:
        energies = Energies(measure, writer)
        wanted = lacking(run.measurements, "all", "device")
        energies.measure(wanted)
        energies.measure(wanted)
    assert measure.seen == wanted
    found = {m.case: m.energy_mj for m in load_run(path).measurements}
    assert {case for case, energy in found.items() if energy == 5.0} == set(wanted)
    assert energies.summary == "Energy of 7 of 7 cases measured"


def test_an_unknown_energy_has_its_reason(run, path):
    """It stays unknown in the row, and the summary says why."""
    with RunWriter.resume(path) as writer:
        energies = Energies(measured(reason="the counter did not move"), writer)
        energies.measure([run.measurements[0].case])
    row = load_run(path).measurements[0]
    assert (row.energy_mj, row.energy_reason) == (None, "the counter did not move")
    assert "1 unknown, the counter did not move" in energies.summary


def test_energy_follows_the_rows_of_its_block(run, path):
    """With `all`, a block's energy is measured when its rows are written and before the next block."""
    events = []
    blocks = [[m for m in run.measurements if m.case.seq_len_q == n] for n in (64, 4096)]

    def execute(plan):
        for rows in blocks:
            events.append(("rows", rows[0].case.seq_len_q))
            yield rows

    def measure(cases):
        events.append(("energy", *names(cases)))
        return []

    with RunWriter.resume(path) as writer:
        for rows in Energies(measure, writer).after_each(execute)([]):
            events.append(("written", rows[0].case.seq_len_q))
    assert events == [
        ("rows", 64), ("written", 64), ("energy", ("naive", 64), ("flash", 64)),
        ("rows", 4096), ("written", 4096), ("energy", ("flash", 4096)),
    ]  # fmt: skip


def test_a_case_that_was_never_measured_is_not_wanted():
    """No rows, nothing to ask."""
    assert lacking([], "all", "device") == []
    assert synthetic_case("flash", 64) not in lacking([], "brackets", "device")
