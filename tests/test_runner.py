"""One run from request to file, with stand-in workers: refusals, resume, interruption."""

import contextlib
import io
import sys
import types

import pytest
from filelock import FileLock, Timeout
from rich.console import Console

from profiling import runner
from profiling.case import Case, InputError, Protocol
from profiling.grid import Sweep
from profiling.measure.lock import lock_path
from profiling.records import ClockResult, Measurement
from profiling.store import RunWriter, list_runs, load_run
from tests.stand_in_run import CROSSING
from tests.test_cluster import StandInRay


def test_a_run_from_start_to_end(stand_in, request_run):
    """The file holds header, rows and end; the header says what was planned, where and by whom."""
    result = request_run(run_id="mine", label="hello")
    assert (result.path.name, result.status, result.n_rows, result.n_planned) == (
        "mine.jsonl",
        "finished",
        6,
        6,
    )
    run = load_run(result.path)
    assert run.header.label == "hello"
    assert run.header.planned_cases == 6
    assert run.header.pid is not None
    assert run.header.clocks == ("wall",)
    assert Sweep.model_validate(run.header.sweep).cases() == [m.case for m in run.measurements]
    assert run.environments[0].argv == ("flashscope", "run")
    assert run.end.status == "finished"


def test_what_starting_took_is_told(stand_in, request_run, monkeypatch):
    """The line before the first block says how long it took to come there, by a clock of the test."""
    now = [1000.0]

    def start(client):
        now[0] += 125.0
        return stand_in.environment

    monkeypatch.setattr(stand_in, "start", start)
    monkeypatch.setattr(runner, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    console = Console(file=io.StringIO())
    path = request_run(console).path
    assert (
        f"Measuring 6 cases on stand-in, rows go to {path} (starting took 2 minutes and 5 seconds)\n"
        in console.file.getvalue()
    )


def test_ids_name_date_sweep_and_device(stand_in, request_run):
    """Without --run-id the name says when, what and on what."""
    assert request_run().path.stem.endswith("Z-tiny-cpu")


def test_backends_filter(stand_in, request_run):
    """--backends keeps some; a variant is a backend of its own."""
    result = request_run(backends=("naive/fill",))
    assert result.n_planned == result.n_rows == 2
    assert {(case.backend, case.variant) for case in stand_in.measured} == {("naive", "fill")}


def test_interrupted_and_resumed(stand_in, request_run):
    """What is left is measured, what is there is kept; the same set of cases, none twice."""
    stand_in.stop_at = 32
    first = request_run(run_id="r")
    assert (first.status, first.n_rows, first.n_planned) == ("interrupted", 3, 6)
    stand_in.stop_at = None
    stand_in.measured.clear()
    second = request_run(resume=first.path)
    assert (second.status, second.n_rows) == ("finished", 6)
    assert {case.seq_len_q for case in stand_in.measured} == {32}
    run = load_run(first.path)
    assert run.problems == ()
    assert len({m.case for m in run.measurements}) == len(run.measurements) == 6
    assert run.header.created_at == load_run(second.path).header.created_at


def test_resume_finds_sweep_and_device_in_the_file(stand_in, request_run):
    """`run --resume FILE` alone goes on with what the file says."""
    stand_in.stop_at = 32
    first = request_run(run_id="r")
    stand_in.stop_at = None
    assert request_run(sweep=None, device=None, resume=first.path).status == "finished"


def test_resuming_a_finished_run_does_nothing(stand_in, request_run):
    """Nothing is left: no worker starts, the file is as it was."""
    first = request_run(run_id="r")
    before = first.path.read_bytes()
    stand_in.measured.clear()
    assert request_run(resume=first.path).status == "finished"
    assert stand_in.measured == []
    assert first.path.read_bytes() == before


def test_resuming_a_killed_run_with_all_its_rows_ends_it(stand_in, request_run):
    """Killed between the last row and the end: only the end is missing."""
    first = request_run(run_id="r")
    lines = first.path.read_bytes().splitlines(keepends=True)
    first.path.write_bytes(b"".join(lines[:-1]))
    assert request_run(resume=first.path).status == "finished"
    assert load_run(first.path).end.status == "finished"


def test_a_torn_file_is_resumed_and_the_tear_is_told(stand_in, request_run, tmp_path):
    """A line cut by SIGKILL is measured again."""
    stand_in.stop_at = 32
    first = request_run(run_id="r")
    lines = first.path.read_bytes().splitlines(keepends=True)
    first.path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    stand_in.stop_at = None
    assert request_run(resume=first.path).n_rows == 6
    assert load_run(first.path).problems == ()


def test_resume_elsewhere_needs_force(stand_in, request_run):
    """Other versions are refused and leave the file untouched; forced, each row says where it was made."""
    stand_in.stop_at = 32
    first = request_run(run_id="r")
    before = first.path.read_bytes()
    stand_in.stop_at = None
    stand_in.environment = stand_in.environment.model_copy(update={"torch_version": "9.9"})
    with pytest.raises(InputError, match="torch_version"):
        request_run(resume=first.path)
    assert first.path.read_bytes() == before
    request_run(resume=first.path, force_resume=True)
    run = load_run(first.path)
    assert [run.environments[m.environment].torch_version for m in run.measurements] == ["2.11.0"] * 3 + [
        "9.9"
    ] * 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "tpu"}, "must be cpu or cuda:0"),
        ({"backends": ("flash",)}, "is not in sweep tiny, which has naive, naive/fill, tiled"),
        ({"backends": ("nonsense",)}, "unknown backend 'nonsense'"),
        ({"run_id": "../x"}, "cannot name a file"),
        ({"sweep": None}, "no sweep"),
        ({"git_commit": "main"}, "7 to 40 hex digits"),
        ({"executor": "slurm"}, "must be one of local, ray"),
        ({"executor": "ray", "budget_s": 60.0}, "must go without --refine and --budget"),
        ({"executor": "ray", "refine_to": 0.125}, "must go without --refine and --budget"),
        ({"energy": "all"}, "must go with a GPU, got --device cpu"),
        ({"energy": "all", "device": "cuda:0", "executor": "ray"}, "must go with --executor local, got ray"),
        ({"remeasure": "flagged"}, "name it by --resume"),
    ],
)
def test_rejected_requests_leave_no_file(stand_in, request_run, tmp_path, fields, message):
    """What cannot be is one sentence, before anything is measured or written."""
    with pytest.raises(InputError, match=message):
        request_run(**fields)
    assert list((tmp_path / "runs").glob("*")) == []
    assert stand_in.measured == []


def test_an_existing_file_is_never_overwritten(stand_in, request_run):
    """A second run of that name is refused and told of --resume."""
    first = request_run(run_id="r")
    before = first.path.read_bytes()
    with pytest.raises(InputError, match="--resume"):
        request_run(run_id="r")
    assert first.path.read_bytes() == before


def test_resume_and_run_id_exclude_each_other(stand_in, request_run):
    """A resumed run has its name already."""
    first = request_run(run_id="r")
    with pytest.raises(InputError, match="--run-id"):
        request_run(run_id="s", resume=first.path)


def test_out_must_be_a_folder(stand_in, request_run, tmp_path):
    """A file in the folder's place is refused."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"folder|Not a directory"):
        request_run(out=tmp_path / "file")


def test_a_header_without_a_sweep_cannot_be_resumed_alone(stand_in, request_run, tmp_path):
    """An imported run says nothing of a sweep: it must be named."""
    first = request_run(run_id="r")
    header = load_run(first.path).header.model_copy(update={"sweep": {}, "run_id": "s"})
    other = tmp_path / "s.jsonl"
    RunWriter.create(other, header).close()
    with pytest.raises(InputError, match="no sweep to go on with"):
        request_run(sweep=None, resume=other)


class TestStart:
    """What is made ready on a GPU before the first block, and in which order."""

    PROTOCOL = Protocol(processes=3)

    @pytest.fixture
    def heard(self, stand_in, monkeypatch):
        """The steps of opening a device, and the cases of each."""
        steps = []
        uuid = {"device_kind": "cuda", "device_uuid": "GPU-a"}
        monkeypatch.setattr(stand_in, "environment", stand_in.environment.model_copy(update=uuid))

        @contextlib.contextmanager
        def rehearsal(client, cases):
            steps.append(("rehearse", [case.backend for case in cases], locked()))
            yield
            steps.append(("rehearsed", [case.backend for case in cases], locked()))

        def locked():
            with pytest.raises(Timeout), FileLock(lock_path("GPU-a"), timeout=0):
                pass
            return "locked"

        class Ahead:
            def __init__(self, cases, processes):
                self.cases = [case for case in cases if case.backend == "flash"]
                steps.append(("children", processes, [case.seq_len_q for case in cases]))

            def __enter__(self):
                return self

            def __exit__(self, *error):
                pass

            def compile(self, environment):
                steps.append(("compile", [case.backend for case in self.cases], locked()))
                return True

        monkeypatch.setattr(stand_in, "rehearsal", rehearsal)
        monkeypatch.setattr(runner, "Precompiler", Ahead)
        monkeypatch.setattr(runner, "cpu_count", lambda: 32)
        return steps

    def cases(self, *backends):
        """Long cases of these backends."""
        return [
            Case(backend=name, seq_len_q=4096, seq_len_k=4096, head_dim=64, head_dim_v=64)
            for name in backends
        ]

    def test_libraries_load_while_kernels_are_compiled(self, heard):
        """`flash` has its turn when its kernels are there, those of its rehearsal among them."""
        cases = self.cases("naive", "flash", "sdpa_flash")
        said = []
        with runner.open_device("cuda:0", self.PROTOCOL, ("device",), cases, said.append) as (_, _, load):
            load()
            heard.append("open")
        assert heard == [
            ("children", 31, [4096, 4096, 4096, 256, 256, 256]),
            ("rehearse", ["naive", "sdpa_flash"], "locked"),
            ("compile", ["flash", "flash"], "locked"),
            ("rehearsed", ["naive", "sdpa_flash"], "locked"),
            ("rehearse", ["flash"], "locked"),
            ("rehearsed", ["flash"], "locked"),
            "open",
        ]
        assert said[0] == "Loading libraries in 3 worker process(es) ..."

    def test_one_worker_rehearses_too(self, heard):
        """Its first calls go into rows, and are to be those of the cases."""
        said, cases = [], self.cases("naive", "flash")
        one = Protocol(processes=1)
        with runner.open_device("cuda:0", one, ("device",), cases, said.append) as (_, _, load):
            load()
        assert heard[0] == ("children", 31, [4096, 4096, 256, 256])
        assert [step[:2] for step in heard[1:]] == [
            ("rehearse", ["naive"]),
            ("compile", ["flash", "flash"]),
            ("rehearsed", ["naive"]),
            ("rehearse", ["flash"]),
            ("rehearsed", ["flash"]),
        ]
        assert said[0] == "Loading libraries in 1 worker process(es) ..."

    def test_under_a_budget_what_is_likely_is_compiled_ahead(
        self, heard, stand_in, request_run, monkeypatch, tmp_path
    ):
        """Of four N the time has room for two, the ends; the others are measured where time is left."""
        monkeypatch.setattr(runner, "cost_s", lambda *about: 100.0)
        path = tmp_path / "long.toml"
        path.write_text(
            'name = "long"\n[protocol]\nclocks = ["device"]\n'
            '[[group]]\nbackends = ["naive", "flash"]\nseq_len = [1024, 2048, 4096, 8192]\n'
        )
        result = request_run(sweep=path, device="cuda:0", budget_s=500.0)
        assert heard[0][2] == [1024, 1024, 8192, 8192, 256, 256]
        assert (result.n_rows, result.n_left_out) == (8, 0)  # the stand-in measures in no time
        heard.clear()
        request_run(sweep=path, device="cuda:0", run_id="whole")
        assert heard[0][2] == [1024, 1024, 2048, 2048, 4096, 4096, 8192, 8192, 256, 256]

    def test_a_cpu_has_nothing_to_make_ready(self, heard):
        """Its libraries load in no time, and nothing can be compiled for it."""
        cases = self.cases("naive", "sdpa_flash")
        with runner.open_device("cpu", self.PROTOCOL, ("wall",), cases) as (_, _, load):
            load()
        assert heard == [("children", 31, [])]

    def test_of_actors_on_one_machine_one_compiles(self, heard, stand_in, request_run, monkeypatch, tmp_path):
        """It compiles the plan's cases on all cores; both rehearse, what is compiled when all is there."""
        monkeypatch.setitem(sys.modules, "ray", StandInRay(gpus=2))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        environments = [
            stand_in.environment.model_copy(update={"device_uuid": uuid}) for uuid in ("GPU-b", "GPU-a")
        ]
        monkeypatch.setattr(stand_in, "start", lambda client: environments.pop())
        path = tmp_path / "two.toml"
        path.write_text(
            'name = "two"\n[protocol]\nclocks = ["device"]\nprocesses = 2\n'
            '[[group]]\nbackends = ["naive", "flash"]\nseq_len = [1024, 2048]\n'
        )
        result = request_run(sweep=path, device="cuda:0", executor="ray")
        assert result.n_rows == 4
        kernels = [1024, 1024, 2048, 2048, 256, 256]
        assert [step[:2] for step in heard if step[0] != "rehearsed"] == [
            ("children", 31),
            ("rehearse", ["naive"]),
            ("compile", ["flash"] * 3),
            ("children", 31),
            ("rehearse", ["naive"]),
            ("rehearse", ["flash"]),
            ("rehearse", ["flash"]),
        ]
        assert [step[2] for step in heard if step[0] == "children"] == [kernels, []]


class TestRefineAndBudget:
    """`--refine` and `--budget`, with naive and tiled that change places at N = 300."""

    @pytest.fixture
    def crossing(self, stand_in, request_run, tmp_path, monkeypatch):
        """Starts a run of the crossing sweep; `crossing.measured` has the N of the blocks."""
        path = tmp_path / "crossing.toml"
        path.write_text(CROSSING)

        def measure(client, block):
            if block[0].seq_len_q == stand_in.stop_at:
                raise KeyboardInterrupt
            stand_in.measured.append(block[0].seq_len_q)
            ms = {"naive": block[0].seq_len_q / 300, "tiled": 1.0}
            return [
                Measurement(
                    case=case,
                    status="ok",
                    clocks=(ClockResult(clock="wall", latency_p50_ms=ms[case.backend]),),
                )
                for case in block
            ]

        monkeypatch.setattr(stand_in, "measure", measure)

        def start(**fields):
            return request_run(**({"sweep": path} | fields))

        start.measured = stand_in.measured
        return start

    def test_refined(self, crossing):
        """New N until the bracket is narrow; they count as planned, in the result as in the list."""
        result = crossing(refine_to=0.125)
        assert crossing.measured == [64, 1024, 256, 512, 368, 304, 272]
        assert (result.status, result.n_rows, result.n_planned) == ("finished", 14, 14)
        run = load_run(result.path)
        assert [m.refined for m in run.measurements] == [False] * 4 + [True] * 10
        assert run.header.planned_cases == 4
        (info,) = [x for x in list_runs(result.path.parent.parent) if x.path == result.path]
        assert (info.n_cases, info.planned_cases) == (14, 14)

    def test_a_stopped_refinement_is_resumed(self, crossing, stand_in):
        """With --refine it goes on where it was; without, nothing is missing."""
        stand_in.stop_at = 368
        first = crossing(refine_to=0.125)
        assert (first.status, first.n_rows, first.n_planned) == ("interrupted", 8, 8)
        stand_in.stop_at = None
        crossing.measured.clear()
        assert crossing(resume=first.path).status == "finished"
        assert crossing.measured == []
        second = crossing(resume=first.path, refine_to=0.125)
        assert crossing.measured == [368, 304, 272]
        assert (second.status, second.n_rows, second.n_planned) == ("finished", 14, 14)
        assert load_run(first.path).problems == ()

    def test_a_refined_run_has_nothing_left(self, crossing):
        """Resumed with --refine once more, no worker starts and the file stays as it is."""
        first = crossing(refine_to=0.125)
        before = first.path.read_bytes()
        again = crossing(resume=first.path, refine_to=0.125)
        assert (again.status, again.n_rows, again.took_s) == ("finished", 14, None)
        assert first.path.read_bytes() == before

    def test_only_the_backends_that_were_asked_for(self, crossing):
        """--backends holds for new N, too: alone, a backend has nothing to cross."""
        first = crossing()
        crossing.measured.clear()
        assert crossing(resume=first.path, refine_to=0.125, backends=("tiled",)).status == "finished"
        assert crossing.measured == []

    def test_a_budget(self, crossing):
        """No time for anything: no rows, no failures, and --resume measures what was left out."""
        first = crossing(budget_s=1e-6)
        assert (first.status, first.n_rows, first.n_planned, first.n_left_out) == ("budget", 0, 4, 4)
        assert load_run(first.path).end.status == "budget"
        second = crossing(resume=first.path, budget_s=3600.0)
        assert (second.status, second.n_rows, second.n_left_out) == ("finished", 4, 0)

    def test_time_is_told(self, crossing):
        """How long it took, and how much of that calls were timed, are in file and result."""
        result = crossing()
        end = load_run(result.path).end
        assert result.timed_s == end.timed_s == 0.25
        assert result.took_s == end.took_s >= 0.0


def test_a_sweep_of_rows_has_online_and_one_may_ask_for_it():
    """Its backends are split as its operation has them; attention's are none of it."""
    group = {"operation": "cross_entropy", "backends": ("naive", "online"), "rows": (8,), "classes": (10, 20)}
    sweep = Sweep.model_validate({"name": "rows", "group": (group,)})
    assert len(runner._cases(sweep, None)) == 4
    assert {case.backend for case in runner._cases(sweep, ["online"])} == {"online"}
    with pytest.raises(InputError, match="flash is not in sweep rows, which has naive, online"):
        runner._cases(sweep, ["flash"])
