"""Running a plan: rows for every case, an order that interruption cannot spoil, resume as a difference."""

import io
import itertools
import signal

import pytest
from rich.console import Console

from profiling.agenda import Agenda, Limit
from profiling.case import Case, InputError
from profiling.grid import load_sweep
from profiling.measure.budget import planned_clocks
from profiling.paths import DATA_DIR
from profiling.records import Measurement, RunHeader
from profiling.store import RunWriter, load_run
from profiling.sweep import (
    RunProgress,
    differences,
    environment_to_resume,
    in_turn,
    remaining,
    run,
    undisturbed,
)
from tests.synthetic import synthetic_environment

SEQ_LENS = (16, 32, 64)


def cases(seq_lens=SEQ_LENS, backends=("naive", "tiled")):
    """Cases of one block for each N."""
    shape = {"head_dim": 8, "head_dim_v": 8}
    return [Case(backend=b, seq_len_q=n, seq_len_k=n, **shape) for n in seq_lens for b in backends]


def rows(block, status="ok"):
    """A row for each case of a block, without numbers."""
    return [Measurement(case=case, status=status) for case in block]


@pytest.fixture
def writer(tmp_path):
    """A writer on a new run file."""
    header = RunHeader(
        run_id="r", created_at="2026-11-29T00:00:00Z", environment=synthetic_environment(), planned_cases=6
    )
    with RunWriter.create(tmp_path / "r.jsonl", header) as writer:
        yield writer


class TestRun:
    """From plan to file."""

    def test_every_case_gets_its_row_and_the_file_its_end(self, writer):
        """Blocks are measured in turn; the last line says that the run is finished."""
        assert run(remaining(cases(), ()), execute=in_turn(rows), writer=writer) == "finished"
        found = load_run(writer.path)
        assert [m.case for m in found.measurements] == cases()
        assert found.end.status == "finished"

    def test_rows_are_on_disk_before_the_next_block_starts(self, writer):
        """A kill at any moment loses the block under way at most."""
        seen = []

        def measure(block):
            seen.append(len(load_run(writer.path).measurements))
            return rows(block)

        run(remaining(cases(), ()), execute=in_turn(measure), writer=writer)
        assert seen == [0, 2, 4]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interruption_ends_the_file_properly(self, writer, number):
        """Ctrl-C keeps what is finished, and the file says that it was interrupted."""
        before = signal.signal(number, signal.default_int_handler)
        try:

            def measure(block):
                if block[0].seq_len_q == 32:
                    signal.raise_signal(number)
                return rows(block)

            assert run(remaining(cases(), ()), execute=in_turn(measure), writer=writer) == "interrupted"
        finally:
            signal.signal(number, before)
        found = load_run(writer.path)
        assert {m.case.seq_len_q for m in found.measurements} == {16}
        assert found.end.status == "interrupted"

    def test_a_missing_row_is_an_error(self, writer):
        """A measurer that drops a case is a bug, never a silent hole in the file."""
        with pytest.raises(RuntimeError, match="got no row"):
            run(remaining(cases(), ()), execute=in_turn(lambda block: rows(block[:1])), writer=writer)

    def test_rows_carry_their_environment(self, writer):
        """A run resumed elsewhere writes the number of its own environment."""
        number = writer.append_environment(synthetic_environment(torch_version="2.13.0"))
        run(remaining(cases(), ()), execute=in_turn(rows, number), writer=writer)
        assert {m.environment for m in load_run(writer.path).measurements} == {1}

    def test_an_executor_may_change_the_order(self, writer):
        """Blocks done elsewhere arrive as they come."""

        def backwards(plan):
            return (rows(block) for block in reversed(list(plan)))

        run(remaining(cases(), ()), execute=backwards, writer=writer)
        assert [m.case.seq_len_q for m in load_run(writer.path).measurements] == [64, 64, 32, 32, 16, 16]

    def test_how_long_it_took_is_in_the_file(self, writer, monkeypatch):
        """The end says for how long the run was open, and for how much of that calls were timed."""
        clock = iter([100.0])
        monkeypatch.setattr("time.monotonic", lambda: next(clock))
        run([], execute=in_turn(rows), writer=writer, timed_s=lambda: 12.5, began=90.0)
        end = load_run(writer.path).end
        assert (end.took_s, end.timed_s) == (10.0, 12.5)

    def test_an_agenda_decides_from_block_to_block(self, writer):
        """Rows are known to the agenda before the next block is chosen, and blocks it adds are rows too."""
        known = []

        class Asking(Agenda):
            def __iter__(self):
                for block in super().__iter__():
                    known.append(len(load_run(writer.path).measurements))
                    yield block

        run(Asking(remaining(cases(), ())), execute=in_turn(rows), writer=writer)
        assert known == [0, 2, 4]

    def test_out_of_time(self, writer):
        """Cases that the agenda leaves out have no row: the file says why, and they are no failures."""
        limit = Limit(lambda case: 1.0, deadline_s=4.5)
        agenda = Agenda(remaining(cases(), ()), clock="wall", limit=limit, now=lambda: 0.0)
        progress = RunProgress(remaining(cases(), ()), lambda case: 1.0, Console(file=io.StringIO()))
        late = Agenda(remaining(cases(), ()), clock="wall", limit=limit, now=lambda: 3.0)
        assert run(late, execute=in_turn(rows), writer=writer, progress=progress) == "budget"
        found = load_run(writer.path)
        assert found.end.status == "budget"
        assert found.measurements == ()
        assert run(agenda, execute=in_turn(rows), writer=writer) == "finished"

    def test_an_empty_plan_is_finished(self, writer):
        """Nothing to do is done."""
        assert run([], execute=in_turn(rows), writer=writer) == "finished"


class TestRemaining:
    """Resume is a set difference."""

    def test_only_what_has_no_row(self):
        """Cases with a row, whatever its status, are not measured again; blocks keep their order."""
        done = [cases()[0], cases()[2], cases()[3]]
        assert remaining(cases(), done) == [[cases()[1]], cases()[4:]]

    def test_all_and_nothing(self):
        """Everything done leaves nothing, nothing done leaves everything."""
        assert remaining(cases(), cases()) == []
        assert list(itertools.chain(*remaining(cases(), ()))) == cases()


class TestUndisturbed:
    """Signals wait for the end of a line."""

    def test_a_signal_inside_arrives_at_the_end(self):
        """What is written inside is whole before the interruption is felt."""
        done = []

        def write():
            with undisturbed():
                signal.raise_signal(signal.SIGINT)
                done.append("line")

        with pytest.raises(KeyboardInterrupt):
            write()
        assert done == ["line"]

    def test_handlers_are_put_back(self):
        """Afterwards signals do what they did before."""
        before = signal.getsignal(signal.SIGTERM)
        with undisturbed():
            pass
        assert signal.getsignal(signal.SIGTERM) is before


class TestEnvironments:
    """Where a run may be resumed."""

    def run_with(self, writer, *more):
        """The run of `writer` with further environments."""
        for environment in more:
            writer.append_environment(environment)
        return load_run(writer.path)

    def test_the_same_environment(self, writer):
        """Another command line on the same machine is the same environment."""
        here = synthetic_environment(argv=("flashscope", "run", "--resume"))
        assert environment_to_resume(self.run_with(writer), here, force=False) == 0

    @pytest.mark.parametrize(
        "change",
        [
            {"device_uuid": "GPU-other"},
            {"torch_version": "2.13.0"},
            {"triton_version": "3.7.1"},
            {"driver_version": "1"},
            {"git_commit": "f" * 40},
        ],
    )
    def test_another_is_refused_unless_forced(self, writer, change):
        """Device, versions and commit decide; the refusal says what differs and what can be done."""
        loaded, here = self.run_with(writer), synthetic_environment(**change)
        with pytest.raises(InputError, match=f"{next(iter(change))}: .* -> .*--force-resume"):
            environment_to_resume(loaded, here, force=False)
        assert environment_to_resume(loaded, here, force=True) is None

    def test_one_that_the_run_knows_already(self, writer):
        """Going on where the run was last resumed needs no force, and adds no environment."""
        other = synthetic_environment(torch_version="2.13.0")
        assert environment_to_resume(self.run_with(writer, other), other, force=False) == 1

    def test_unknown_values_are_named(self):
        """A version that is not known reads `unknown`."""
        here = synthetic_environment()
        assert differences(here, here.model_copy(update={"triton_version": ""})) == [
            "triton_version: 3.6.0 -> unknown"
        ]


class TestProgress:
    """What is shown of a run."""

    def progress(self, terminal):
        """A progress display into a string."""
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=200)
        return stream, RunProgress(remaining(cases(), ()), lambda case: float(case.seq_len_q), console)

    def test_lines_where_there_is_no_terminal(self):
        """A log gets a line at the end at the latest, with counts by status."""
        stream, progress = self.progress(terminal=False)
        with progress:
            progress.at(cases()[0], "check")
            for block, status in zip(remaining(cases(), ()), ("ok", "oom", "ok"), strict=True):
                progress.advance(rows(block, status))
        assert stream.getvalue().splitlines()[-1].startswith("6/6 cases, 2 oom, at tiled")

    def test_a_bar_on_a_terminal(self):
        """A terminal shows the case under way and what is left."""
        stream, progress = self.progress(terminal=True)
        with progress:
            progress.at(cases()[0], "check")
            progress.advance(rows(remaining(cases(), ())[0]))
        assert "naive fwd bf16 B1 H1 N16 d8: check" in stream.getvalue()
        assert "2/6 cases" in stream.getvalue()

    def test_the_eta_follows_what_was_seen(self, monkeypatch):
        """A guess that was wrong so far is scaled by how wrong it was."""
        clock = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: clock[0])
        _, progress = self.progress(terminal=False)
        with progress:
            assert progress.eta_s == 2 * (16 + 32 + 64)
            clock[0] = 64.0  # twice the 32 s that were guessed for the first block
            progress.advance(rows(remaining(cases(), ())[0]))
            assert progress.eta_s == pytest.approx(2 * 2 * (32 + 64))

    def test_cases_that_nobody_planned_are_counted(self):
        """A block that refining adds is part of what is to do, so that no count exceeds it."""
        _, progress = self.progress(terminal=False)
        (first, *_), extra = remaining(cases(), ()), cases((48,))
        with progress:
            progress.advance(rows(first))
            progress.expect(first)
            assert progress.count_text == "2/6 cases"
            progress.expect(extra)
            progress.advance(rows(extra))
            assert progress.count_text == "4/8 cases"

    def test_no_more_time_left_than_there_is(self, monkeypatch):
        """Under a time limit the ETA is the limit at the latest."""
        monkeypatch.setattr("time.monotonic", lambda: 10.0)
        plan = remaining(cases(), ())
        progress = RunProgress(plan, lambda case: 100.0, Console(file=io.StringIO()), deadline_s=70.0)
        assert progress.eta_s == 60.0


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("quick", 40, 80), ("standard", 480, 600), ("tiles", 200, 500), ("repeat", 60, 60),
        ("models", 200, 300), ("decode", 100, 300), ("features", 150, 170),
    ],
)  # fmt: skip
def test_the_sweeps_that_come_with_it(name, low, high):
    """Each loads, has about as many cases as it says, and keeps batch and heads fixed along N."""
    sweep = load_sweep(DATA_DIR / "sweeps" / f"{name}.toml")
    assert sweep.name == name
    assert low <= len(sweep.cases()) <= high
    assert sweep.protocol.rounds >= 2
    curves = {}
    for case in sweep.cases():
        curve = (
            case.backend,
            case.variant,
            case.direction,
            case.head_dim,
            case.causal,
            case.tile_m,
            case.tile_n,
        )
        curves.setdefault((curve, case.batch, case.heads), set()).add(case.seq_len_q)
    assert max(len(lengths) for lengths in curves.values()) >= 2
    device = "cpu" if name == "quick" else "cuda:0"
    assert planned_clocks(sweep.protocol, device) == sweep.protocol.clocks


def test_standard_is_what_was_asked_for():
    """N 64 to 16384, d 64, 128, 256, with and without a mask, both directions, bf16, two series."""
    found = load_sweep(DATA_DIR / "sweeps" / "standard.toml").cases()
    for d in (64, 128, 256):
        for causal in (False, True):
            for direction in ("fwd", "bwd"):
                for backend in ("naive", "flash", "sdpa_flash"):
                    lengths = {
                        c.seq_len_q
                        for c in found
                        if (c.head_dim, c.causal, c.direction, c.backend) == (d, causal, direction, backend)
                    }
                    assert lengths >= {2**i for i in range(6, 15)}
    assert {c.dtype for c in found} == {"bf16"}
    assert {(c.batch, c.heads) for c in found if c.head_dim == 128} == {(1, 16), (4, 16)}
    assert max(c.seq_len_q for c in found if c.backend == "tiled") == 1024


def test_models_are_what_people_deploy():
    """Grouped heads of eight and more kinds, B·H from 8 to 256, slices of one model for 1, 4 and 8 GPUs."""
    found = load_sweep(DATA_DIR / "sweeps" / "models.toml").cases()
    flash = [c for c in found if c.backend == "flash"]
    assert {c.batch * c.heads for c in flash} >= {8, 16, 64, 256}
    assert all(8 <= c.batch * c.heads <= 256 for c in found)
    assert len({(c.heads, c.kv_heads, c.head_dim, c.softcap, c.sinks) for c in flash}) >= 8
    assert {(c.heads, c.kv_heads) for c in flash} >= {(64, 8), (16, 2), (8, 1), (32, 8), (28, 4)}
    assert all(c.causal for c in found)
    assert {(c.head_dim, c.head_dim_v) for c in flash} >= {(128, 128), (256, 256), (96, 96), (192, 128)}


def test_decode_is_few_queries_beside_many_keys():
    """One query and a few, dense and paged, up to 131072 keys; eager's copies of the keys stay in bounds."""
    found = load_sweep(DATA_DIR / "sweeps" / "decode.toml").cases()
    assert {c.seq_len_q for c in found} == {1, 4, 16}
    assert {c.layout for c in found} == {"dense", "paged"}
    assert max(c.seq_len_k for c in found if c.backend == "flash") == 131072
    assert max(c.seq_len_k for c in found if c.backend == "naive") == 32768
    assert all(c.causal or c.seq_len_q == 1 for c in found)
