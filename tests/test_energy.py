"""When energy is measured: which cases lack it, after which block, and that nothing is tried twice."""

from __future__ import annotations

import pytest
from synthetic import synthetic_case, synthetic_run, write_synthetic

from profiling import runner
from profiling.energy import Energies, lacking
from profiling.records import Addition, ClockResult, Measurement
from profiling.store import RunWriter, load_run
from tests.stand_in_run import CROSSING


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


def test_what_was_found_before_an_interruption_is_kept(run, path):
    """Each block's energies are in the file before the next is measured."""

    def measure(cases):
        if cases[0].seq_len_q != 64:
            raise KeyboardInterrupt
        return [Addition(case=case, energy_mj=5.0) for case in cases]

    with RunWriter.resume(path) as writer, pytest.raises(KeyboardInterrupt):
        Energies(measure, writer).measure(lacking(run.measurements, "all", "device"))
    known = [m.case.seq_len_q for m in load_run(path).measurements if m.energy_mj is not None]
    assert known == [64, 64]


def test_where_none_is_wanted_none_is_counted(path):
    """Nothing tried is not "0 of 0"."""
    with RunWriter.resume(path) as writer:
        energies = Energies(measured(), writer)
        energies.measure([])
    assert energies.summary == "No energy was measured"


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


class TestRun:
    """`--energy`, on a GPU that is pretended: naive and tiled change places between N = 64 and 1024."""

    @pytest.fixture
    def on_gpu(self, stand_in, request_run, tmp_path, monkeypatch):
        """Starts a run on it; `on_gpu.asked` has (backend, N) of the cases whose energy was measured."""
        path = tmp_path / "crossing.toml"
        path.write_text(CROSSING.replace("[64, 1024]", "[16, 64, 1024]").replace('"wall"', '"device"'))
        asked = []

        def measure(client, block):
            if block[0].seq_len_q == stand_in.stop_at:
                raise KeyboardInterrupt
            ms = {"naive": block[0].seq_len_q / 300, "tiled": 1.0}
            return [
                Measurement(
                    case=case,
                    status="oom" if ms[case.backend] > 3 and stand_in.full else "ok",
                    clocks=(ClockResult(clock="device", latency_p50_ms=ms[case.backend]),),
                )
                for case in block
            ]

        def energy(client, cases):
            asked.extend((case.backend, case.seq_len_q) for case in cases)
            return [Addition(case=case, energy_mj=2.0, energy_window_s=1.0) for case in cases]

        stand_in.full = False
        stand_in.energy = energy
        monkeypatch.setattr(stand_in, "measure", measure)
        monkeypatch.setattr(runner, "check_device", lambda device: device)
        precompiler = runner.Precompiler
        monkeypatch.setattr(runner, "Precompiler", lambda cases, workers: precompiler((), workers))

        def start(**fields):
            return request_run(**({"sweep": path, "device": "cuda:0"} | fields))

        start.asked = asked
        return start

    def known(self, path):
        """(backend, N) of the rows with an energy."""
        return {(m.case.backend, m.case.seq_len_q) for m in load_run(path).measurements if m.energy_mj == 2.0}

    def test_brackets_after_the_plan(self, on_gpu):
        """The two cases at either side of the change of sign, and the file still ends as finished."""
        result = on_gpu(energy="brackets")
        assert self.known(result.path) == {(b, n) for b in ("naive", "tiled") for n in (64, 1024)}
        run = load_run(result.path)
        assert (result.status, run.end.status, run.problems) == ("finished", "finished", ())

    def test_brackets_after_the_refinement(self, on_gpu):
        """Refined, the bracket is a narrow one."""
        result = on_gpu(energy="brackets", refine_to=0.125)
        lengths = sorted({n for _, n in self.known(result.path)})
        assert len(lengths) == 2
        assert lengths[0] < 300 < lengths[1] <= 1.125 * lengths[0]

    def test_all_that_ran(self, on_gpu, stand_in):
        """After each block, of what is `ok`."""
        stand_in.full = True
        result = on_gpu(energy="all")
        assert sorted(on_gpu.asked) == sorted(self.known(result.path))
        assert self.known(result.path) == {(b, n) for b in ("naive", "tiled") for n in (16, 64, 1024)} - {
            ("naive", 1024)
        }

    def test_a_finished_run_can_be_asked_for_it_later(self, on_gpu):
        """Resumed with --energy what lacks it is measured, once; no case is."""
        first = on_gpu()
        assert on_gpu.asked == []
        on_gpu(resume=first.path, energy="all")
        assert len(on_gpu.asked) == len(set(on_gpu.asked)) == 6
        before = first.path.read_bytes()
        assert on_gpu(resume=first.path, energy="all").status == "finished"
        assert len(on_gpu.asked) == 6
        assert first.path.read_bytes() == before

    def test_an_interrupted_run_goes_on_with_it(self, on_gpu, stand_in):
        """What has its energy is not asked again."""
        stand_in.stop_at = 1024
        first = on_gpu(energy="all")
        assert (first.status, len(on_gpu.asked)) == ("interrupted", 4)
        stand_in.stop_at = None
        on_gpu(resume=first.path, energy="all")
        assert len(on_gpu.asked) == len(set(on_gpu.asked)) == 6

    def test_measured_again_a_case_has_its_energy_again(self, on_gpu, stand_in):
        """The energy of the row before is not that of the new one."""
        stand_in.full = True
        first = on_gpu(energy="all")
        stand_in.full = False
        on_gpu(resume=first.path, remeasure="failed", energy="all")
        assert on_gpu.asked[5:] == [("naive", 1024)]
        assert len(self.known(first.path)) == 6

    def test_interrupted_while_energy_is_measured(self, on_gpu, stand_in):
        """The rows are whole and the file is finished; what is known of energy stays."""

        def energy(client, cases):
            if cases[0].seq_len_q == 1024:
                raise KeyboardInterrupt
            return [Addition(case=case, energy_mj=2.0) for case in cases]

        stand_in.energy = energy
        result = on_gpu(energy="brackets")
        assert result.status == "interrupted"
        assert load_run(result.path).end.status == "finished"
        assert self.known(result.path) == {("naive", 64), ("tiled", 64)}
