"""`flashscope counters`: which cases are counted, where the numbers go, and what is refused before."""

import json

import pytest

from profiling import counting
from profiling.case import InputError
from profiling.counting import Request, count_cases
from profiling.fingerprint import kernel_hash
from profiling.importers import import_file
from profiling.measure.counters import Count, Note
from profiling.records import Addition
from profiling.store import RunWriter, frame, load_run
from tests.synthetic import synthetic_environment, synthetic_run, write_synthetic

pytest.importorskip("filelock")

SWEEP = """
name = "few"
[protocol]
seed = 7
[[group]]
backends = ["naive", "flash"]
direction = ["fwd", "bwd"]
seq_len = [64, 128]
"""
HERE = synthetic_environment(device_uuid="GPU-1")


def counters_of(case):
    """Made-up counters, different for each length."""
    n = case.seq_len_k
    return Addition(
        case=case, dram_read_bytes=n, dram_write_bytes=2 * n, l2_bytes=3 * n, tensor_pipe_pct=50.0
    )


class Machine:
    """A GPU with Nsight Compute, as far as counting asks; `fails` says why of backends that cannot."""

    def __init__(self):
        self.environment = HERE
        self.fails = {}
        self.seeds = []
        self.counted = []
        self.held = []
        self.interrupt_after = None

    def install(self, monkeypatch):
        """Put it in the place of what would start processes."""
        machine = self

        class Client:
            def __init__(self, device, protocol, clocks):
                assert device == "cuda:0"

            def __enter__(self):
                return self

            def __exit__(self, *error):
                pass

            def start(self):
                return machine.environment

        class Profiler:
            launch = None

            @classmethod
            def here(cls, device, seed):
                machine.seeds.append(seed)
                return cls()

        def count(cases, launch):
            for number, case in enumerate(cases):
                if machine.interrupt_after == number:
                    raise KeyboardInterrupt
                machine.counted.append(case)
                if why := machine.fails.get(case.backend):
                    yield [Count(case, "oom", why)]
                    continue
                note = Note(index=0, what="done", kernel="k", block_m=128, block_n=64)
                yield [Count(case, addition=counters_of(case), note=note, n_kernels=1)]

        for name, value in {"Client": Client, "Profiler": Profiler, "count": count}.items():
            monkeypatch.setattr(counting, name, value)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine that counts whatever it is asked."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the device's lock file
    made = Machine()
    made.install(monkeypatch)
    return made


@pytest.fixture
def sweep(tmp_path):
    """A sweep file of eight cases."""
    path = tmp_path / "few.toml"
    path.write_text(SWEEP)
    return path


@pytest.fixture
def run(tmp_path):
    """A run of six cases, one of them out of memory."""
    made = synthetic_run(run_id="one", seq_lens=(64, 128, 256), oom_from={"naive": 256}, environment=HERE)
    path = tmp_path / "runs" / "one.jsonl"
    write_synthetic(made, path)
    return path


def asked(tmp_path, **fields):
    """A request with what does not matter filled in."""
    return Request(**{"sweep": None, "run": None, "device": "cuda", "out": tmp_path / "out", **fields})


class TestSweep:
    """A sweep's counters are a run of their own."""

    def test_rows_without_latency(self, machine, sweep, tmp_path):
        """Each case is an `ok` row with its counters, the tile that ran, and no clock."""
        result = count_cases(asked(tmp_path, sweep=sweep, run_id="c", label="x"))
        made = load_run(result.path)
        assert result.path == tmp_path / "out" / "c.jsonl"
        assert (len(made.measurements), made.header.planned_cases, made.header.clocks) == (8, 8, ())
        assert made.end.status == "finished"
        assert made.problems == ()
        row = made.measurements[0]
        assert (row.status, row.clocks, row.block_m, row.dram_write_bytes) == ("ok", (), 128, 128)
        assert {m.kernel_hash for m in made.measurements} == {kernel_hash("naive"), kernel_hash("flash")}
        assert machine.seeds == [7]
        table = frame(made)
        assert len(table) == 8
        assert table["latency_p50_ms"].isna().all()
        assert table["l2_bytes"].notna().all()

    def test_a_failure_is_a_row(self, machine, sweep, tmp_path):
        """With its status and its reason, and no number."""
        machine.fails["naive"] = "CUDA out of memory"
        result = count_cases(asked(tmp_path, sweep=sweep))
        rows = [m for m in load_run(result.path).measurements if m.case.backend == "naive"]
        assert [(m.status, m.reason, m.dram_read_bytes) for m in rows] == [
            ("oom", "CUDA out of memory", None)
        ] * 4
        assert len(result.failed) == 4

    def test_some_of_its_cases(self, machine, sweep, tmp_path):
        """By backend, and by words of their names: all of an alternative's words, of any alternative."""
        count_cases(asked(tmp_path, sweep=sweep, backends=("flash",), run_id="a"))
        assert {case.backend for case in machine.counted} == {"flash"}
        machine.counted.clear()
        result = count_cases(asked(tmp_path, sweep=sweep, words="flash bwd N64, naive fwd N128", run_id="b"))
        assert [case.label.split()[:2] for case in machine.counted] == [["naive", "fwd"], ["flash", "bwd"]]
        assert load_run(result.path).header.planned_cases == 2

    def test_interrupted(self, machine, sweep, tmp_path):
        """Ctrl-C keeps what was counted, and the file says how it ended."""
        machine.interrupt_after = 3
        with pytest.raises(KeyboardInterrupt):
            count_cases(asked(tmp_path, sweep=sweep, run_id="c"))
        made = load_run(tmp_path / "out" / "c.jsonl")
        assert (len(made.measurements), made.end.status) == (3, "interrupted")

    def test_nothing_is_written_where_nothing_can_be_counted(self, machine, sweep, tmp_path, monkeypatch):
        """A refusal of the tool leaves no file."""

        def refuse(cases, launch):
            raise InputError("hardware counters cannot be read: ...")
            yield

        monkeypatch.setattr(counting, "count", refuse)
        with pytest.raises(InputError, match="cannot be read"):
            count_cases(asked(tmp_path, sweep=sweep))
        assert not (tmp_path / "out").exists()


class TestRun:
    """A run's rows are completed."""

    def test_its_rows_get_counters(self, machine, run, tmp_path):
        """Every row that ran, and nothing else of the file changes: not its end, not its samples."""
        before = load_run(run)
        result = count_cases(asked(tmp_path, run=run))
        after = load_run(run)
        assert result.path == run
        assert [x.case for x in result.counts] == [m.case for m in before.measurements if m.status == "ok"]
        assert after.problems == ()
        assert after.end == before.end
        for old, new in zip(before.measurements, after.measurements, strict=True):
            expected = counters_of(old.case) if old.status == "ok" else Addition(case=old.case)
            fields = expected.model_dump(exclude={"case"}, exclude_none=True)
            assert new == old.model_copy(update=fields)

    def test_a_case_that_fails_leaves_its_row(self, machine, run, tmp_path):
        """It ran when it was measured; that it cannot be counted is told, not written."""
        machine.fails["naive"] = "CUDA out of memory"
        before = run.read_bytes()
        result = count_cases(asked(tmp_path, run=run, backends=("naive",)))
        assert [x.reason for x in result.failed] == ["CUDA out of memory"] * 2
        assert run.read_bytes() == before

    def test_counted_twice_the_later_counts(self, machine, run, tmp_path):
        """Counting again is no fault, and no problem of the file."""
        for _ in range(2):
            count_cases(asked(tmp_path, run=run))
        assert load_run(run).problems == ()
        kinds = [json.loads(line)["kind"] for line in run.read_text().splitlines()]
        assert kinds.count("addition") == 10

    def test_of_another_gpu(self, machine, run, tmp_path):
        """Counters of one GPU do not belong beside latencies of another."""
        machine.environment = synthetic_environment("NVIDIA A100")
        before = run.read_bytes()
        with pytest.raises(InputError, match="device_name was NVIDIA H200 and is NVIDIA A100"):
            count_cases(asked(tmp_path, run=run))
        assert run.read_bytes() == before

    def test_of_other_kernels(self, machine, run, tmp_path):
        """A row whose kernel has changed since is left out, and told; the others are counted."""
        made = load_run(run)
        stale = made.measurements[0].model_copy(update={"kernel_hash": "0" * 12})
        with RunWriter.resume(run) as writer:
            writer.append([stale])
        result = count_cases(asked(tmp_path, run=run))
        assert [x.case for x in result.failed] == [stale.case]
        assert "have changed" in result.failed[0].reason
        assert len(machine.counted) == 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"device": "cpu"}, "must be cuda:0"),
        ({"device": "npu"}, "must be cpu or cuda:0"),
        ({"backends": ("fast",)}, "unknown backend 'fast'"),
        ({"backends": ("tiled",)}, "no case to count"),
        ({"words": "N7"}, "such as naive fwd bf16 B1 H16 N64 d128"),
    ],
)
def test_refused(machine, sweep, tmp_path, fields, said):
    """One sentence, before a process is started."""
    with pytest.raises(InputError, match=said):
        count_cases(asked(tmp_path, sweep=sweep, **fields))
    assert machine.counted == []


def test_a_name_that_is_taken(machine, sweep, tmp_path):
    """An old file is never written over."""
    count_cases(asked(tmp_path, sweep=sweep, run_id="c"))
    with pytest.raises(InputError, match="exists already"):
        count_cases(asked(tmp_path, sweep=sweep, run_id="c"))


class TestCommand:
    """The command line."""

    def test_it_prints_what_it_counted(self, machine, flashscope, run, tmp_path):
        """A table of bytes, the reasons of what failed, and where it is."""
        machine.fails["naive"] = "CUDA out of memory"
        code, out, _ = flashscope("counters", "one", "--data", tmp_path, "--cases", "N64, N128")
        assert code == 0
        assert "flash fwd bf16 B1 H16 N128 d64" in out
        assert "384 B" in out  # through L2
        assert "naive fwd bf16 B1 H16 N64 d64: oom: CUDA out of memory" in out
        assert "2 of 4 cases counted" in out
        assert load_run(run).measurements[1].l2_bytes == 192

    def test_a_run_without_latencies_can_be_read(self, machine, flashscope, sweep, tmp_path):
        """Every command that reads runs takes one that holds counters alone, and the CSV keeps them."""
        machine.fails["naive"] = "CUDA out of memory"
        out = tmp_path / "data" / "runs"
        flashscope("counters", sweep, "--out", out, "--run-id", "c")
        code, said, _ = flashscope("show", "c", "--data", tmp_path / "data")
        assert (code, said.count("oom: CUDA out of memory")) == (0, 4)
        code, said, _ = flashscope("list", "--data", tmp_path / "data")
        assert "8 of 8 cases" in said
        code, said, _ = flashscope("crossover", "c", "--data", tmp_path / "data")
        assert (code, "no shape has both" in said) == (0, True)
        table = tmp_path / "c.csv"
        assert flashscope("export", "c", "--out", table, "--data", tmp_path / "data")[0] == 0
        again = import_file(table)
        assert frame(again).equals(frame(load_run(out / "c.jsonl")))

    def test_a_csv_is_no_run_file(self, machine, flashscope, run, tmp_path):
        """Counters need a file that can grow."""
        pytest.importorskip("pandera")
        table = tmp_path / "one.csv"
        flashscope("export", "one", "--out", table, "--data", tmp_path)
        code, _, err = flashscope("counters", table, "--data", tmp_path)
        assert code == 2
        assert "import the CSV first" in err

    def test_without_nsight_compute(self, flashscope, sweep, tmp_path, monkeypatch):
        """The exit code of rejected input, one sentence, no file."""
        monkeypatch.setattr("profiling.measure.ncu.find", lambda: None)
        code, out, err = flashscope("counters", sweep, "--out", tmp_path / "out")
        assert (code, out) == (2, "")
        assert len(err.strip().splitlines()) == 1
        assert "there is no ncu on PATH" in err
        assert not (tmp_path / "out").exists()


def test_the_committed_sweep_is_small():
    """Less than fifty cases, in both directions, and the lengths where K and V of a head outgrow the L2."""
    from profiling.grid import load_sweep
    from profiling.paths import DATA_DIR

    cases = load_sweep(DATA_DIR / "sweeps" / "counters.toml").cases()
    assert len(cases) < 50
    assert {case.direction for case in cases} == {"fwd", "bwd"}
    ours = [case for case in cases if case.backend == "flash_portable" and case.direction == "fwd"]
    lengths = {case.seq_len_k for case in ours}
    assert {16384, 20480, 24576, 28672, 32768} <= lengths
    assert any(case.causal for case in cases)
