"""The command line: exit codes, one sentence for what is rejected, and whole runs killed and resumed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.case import Case
from profiling.importers import import_file
from profiling.records import RunHeader
from profiling.store import RunWriter, frame, load_run
from tests.synthetic import synthetic_environment, synthetic_measurement

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = [2**i for i in range(6, 12)]


@pytest.fixture
def data(tmp_path):
    """A data folder with one run: naive and flash along N."""
    header = RunHeader(
        run_id="one",
        created_at="2026-11-29T00:00:00Z",
        environment=synthetic_environment(),
        clocks=("wall", "device"),
    )
    with RunWriter.create(tmp_path / "data" / "runs" / "one.jsonl", header) as writer:
        writer.append(
            synthetic_measurement(
                Case(backend=b, heads=16, kv_heads=16, seq_len_q=n, seq_len_k=n, head_dim=64, head_dim_v=64)
            )
            for n in LENGTHS
            for b in ("naive", "flash")
        )
        writer.end("finished")
    return tmp_path / "data"


class TestRejected:
    """Exit code 2, one sentence on stderr, no traceback, nothing on stdout."""

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["run", "nowhere.toml", "--device", "cpu"], "no such sweep file"),
            (["run"], "no sweep"),
            (["run", "data/sweeps/quick.toml", "--device", "npu"], "must be cpu or cuda:0"),
            (["run", "data/sweeps/quick.toml", "--backends", "fast"], "unknown backend 'fast'"),
            (["run", "--resume", "nowhere.jsonl"], "no such run file"),
            (["run", "data/sweeps/quick.toml", "--device", "cpu", "--budget", "10"], "such as 90s, 10m"),
            (["run", "data/sweeps/quick.toml", "--device", "cpu", "--refine-to", "3"], "from 0.01 to 1"),
            (["run", "data/sweeps/quick.toml", "--executor", "ray", "--refine"], "without --refine"),
            (["run", "data/sweeps/quick.toml", "--device", "cpu", "--energy", "all"], "must go with a GPU"),
            (["run", "data/sweeps/quick.toml", "--remeasure", "failed"], "name it by --resume"),
            (["show", "nowhere"], "no run of that id"),
            (["show", "nowhere.jsonl"], "no such run file"),
            (["list", "--data", "nowhere"], "no such folder"),
            (["crossover", "one", "--candidate", "fast"], "unknown backend 'fast'"),
            (["crossover", "nowhere.csv"], "no such file"),
            (["import", "nowhere.csv"], "no such file"),
            (["export", "one", "--out", "/nowhere/x.csv"], "cannot be written"),
            (["show", "one", "--clock", "graph"], "must be one of wall, device"),
            (
                ["estimate", "--batch=1", "--heads=3", "--kv-heads=2", "--seq-len=8", "--head-dim=8"],
                "multiple of --kv-heads",
            ),
            (
                ["estimate", "--batch=1", "--heads=1", "--seq-len=8", "--head-dim=8", "--gpu=Abacus"],
                "H200",
            ),
        ],
    )
    def test_one_sentence(self, flashscope, data, monkeypatch, words, said):
        """What, where and what is allowed."""
        monkeypatch.chdir(ROOT)
        if "one" in words:
            words = [*words, "--data", str(data)]
        code, out, err = flashscope(*words)
        assert code == 2
        assert said in err
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1
        assert out == ""

    def test_no_gpu_where_one_was_asked_for(self, flashscope, tmp_path):
        """A machine without a GPU says so and leaves no file behind."""
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        sweep, out = tmp_path / "tiny.toml", tmp_path / "runs"
        sweep.write_text(SWEEP.format(backend="flash", processes=1))
        code, _, err = flashscope("run", sweep, "--device", "cuda:0", "--out", out)
        assert code == 2
        assert "cuda:0 cannot be used" in err
        assert not out.exists()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("name = ", "not valid TOML"),
            ("name = 'x'\n", "group"),
            ("name = 'x'\n[[group]]\nbackends = ['flush']\nseq_len = [1]\n", "unknown backend 'flush'"),
            ("name = 'x'\n[[group]]\nbackends = ['naive']\nseq_lens = [1]\n", "seq_len"),
        ],
    )
    def test_malformed_sweeps(self, flashscope, tmp_path, text, said):
        """A sweep file that is wrong is refused with the place of the fault."""
        path = tmp_path / "bad.toml"
        path.write_text(text)
        code, _, err = flashscope("run", path, "--device", "cpu")
        assert code == 2
        assert said in err

    @pytest.mark.parametrize("words", [["nonsense"], ["run", "--nonsense"], ["estimate"], ["crossover"]])
    def test_wrong_usage(self, flashscope, words):
        """Unknown commands and options, and missing ones, end in the same code."""
        code, _, err = flashscope(*words)
        assert code == 2
        assert "Traceback" not in err


class TestHelp:
    """What a newcomer reads first."""

    @pytest.mark.parametrize(
        "command",
        [
            "run",
            "list",
            "show",
            "export",
            "import",
            "estimate",
            "crossover",
            "compare",
            "counters",
            "doctor",
            "app",
        ],
    )
    def test_every_command_explains_itself(self, flashscope, command):
        """Each command's help says in words what it does."""
        code, out, _ = flashscope(command, "--help")
        assert code == 0
        assert "Usage:" in out
        assert len(out) > 150

    def test_the_list_of_commands_is_not_cut(self, flashscope):
        """Every command's first sentence fits."""
        code, out, _ = flashscope("--help")
        assert code == 0
        assert "..." not in out.partition("Commands:")[2]

    @pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["counters", "--help"]])
    def test_help_imports_nothing_heavy(self, words):
        """Help comes at once: no library is imported but typer, and of ours what it runs in.

        Typer's own adapters of a command's parameters need pydantic.
        """
        code = (
            "import atexit, sys\n"
            "atexit.register(lambda: print('LOADED', *sys.modules))\n"
            f"sys.argv = ['flashscope', *{words!r}]\n"
            "from profiling.__main__ import main\n"
            "main()\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0
        loaded = set(done.stdout.partition("LOADED")[2].split())
        options = ("comparing", "evidence", "experiments", "importing", "inspecting", "reporting")
        names = ("__main__", "at_hand", *options)  # what holds the options of commands
        light = {f"profiling.{name}" for name in names}
        assert {name for name in loaded if name.startswith("profiling.")} <= light
        heavy = {"torch", "triton", "numpy", "pandas", "scipy", "plotly", "streamlit", "rich"}
        assert loaded & (heavy if len(words) > 1 else heavy | {"pydantic"}) == set()

    def test_help_needs_no_torch_and_no_pandas(self):
        """`--help` works where only the light part is installed."""
        blocked = "".join(
            f"sys.modules[{name!r}] = None; " for name in ("torch", "pandas", "triton", "numpy")
        )
        command = "sys.argv = ['flashscope', '--help']; from profiling.__main__ import main; main()"
        code = f"import sys; {blocked}{command}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0
        assert "crossover" in done.stdout


class TestReading:
    """Commands that read."""

    def test_list_and_show(self, flashscope, data):
        """A run is found by its id, with its rows."""
        code, out, _ = flashscope("list", "--data", data)
        assert code == 0
        assert "one" in out
        assert "finished" in out
        code, out, _ = flashscope("show", "one", "--data", data, "--clock", "device")
        assert code == 0
        assert out.count("flash fwd") == len(LENGTHS)

    def test_list_of_nothing(self, flashscope, tmp_path):
        """An empty folder is no fault, and the way out is told."""
        code, out, _ = flashscope("list", "--data", tmp_path)
        assert code == 0
        assert "flashscope run" in out

    def test_csv_round_trip(self, flashscope, data, tmp_path):
        """Exported and imported, the table is the same to the last digit."""
        table = tmp_path / "one.csv"
        code, _, _ = flashscope("export", "one", "--format", "csv", "--out", table, "--data", data)
        assert code == 0
        before = frame(load_run(data / "runs" / "one.jsonl"))
        assert frame(import_file(table)).equals(before)

        other = tmp_path / "other"
        other.mkdir()
        code, out, _ = flashscope("import", table, "--data", other)
        assert code == 0
        assert "12 cases" in out
        assert frame(load_run(other / "runs" / "one.jsonl")).equals(before)
        code, _, err = flashscope("import", table, "--data", other)
        assert code == 2
        assert "exists already" in err

    def test_export_to_standard_output(self, flashscope, data):
        """Without --out the text goes to stdout, and nothing else does."""
        code, out, _ = flashscope("export", "one", "--format", "json", "--data", data)
        assert code == 0
        assert json.loads(out)["header"]["run_id"] == "one"

    def test_crossover(self, flashscope, data, tmp_path):
        """As text and as JSON, from a run and from a CSV of it, with the same verdict."""
        code, text, _ = flashscope("crossover", "one", "--data", data)
        assert code == 0
        code, out, _ = flashscope("crossover", "one", "--format", "json", "--data", data)
        (found,) = json.loads(out)
        assert found["verdict"] in text
        assert found["slice"]["clock"] == "device"
        told = {"slice", "verdict", "brackets", "crossover_seq_len", "interval", "calibrated", "why", "next"}
        assert told <= set(found)
        table = tmp_path / "one.csv"
        flashscope("export", "one", "--out", table, "--data", data)
        code, out, _ = flashscope("crossover", table, "--format", "json")
        (bare,) = json.loads(out)
        assert code == 0
        assert bare["bracket_only"] is True
        assert bare["brackets"] == found["brackets"]

    def test_crossover_in_energy_and_cost(self, flashscope, data):
        """A cost needs its price and tells what tokens cost; energy nobody measured is told, too."""
        ask = ("crossover", "one", "--data", data, "--metric")
        code, text, _ = flashscope(*ask, "cost", "--price-per-hour", "3.5")
        assert code == 0
        assert "cost, device clock" in text
        assert "A million tokens cost, in thousandths, with naive and flash:" in text
        code, _, told = flashscope(*ask, "cost")
        assert (code, told.count("\n")) == (2, 1)
        assert "needs a price" in told
        code, text, _ = flashscope(*ask, "energy")
        assert code == 0
        assert "--energy all" in text

    def test_crossover_of_what_is_not_there(self, flashscope, data):
        """No shape with both backends is an answer, not a fault."""
        code, out, _ = flashscope("crossover", "one", "--candidate", "sdpa_flash", "--data", data)
        assert code == 0
        assert "no shape has both naive and sdpa_flash" in out

    def test_crossover_of_rows_asks_for_what_they_have(self, flashscope):
        """Without a candidate it is flash of attention, and online of a loss or a gate."""
        code, out, _ = flashscope("crossover", "h200-softmax")
        assert code == 0
        assert "cross-entropy fwd bf16 8192 rows" in out
        assert "classes are left out" in out
        assert "is left out" not in out

    def test_crossover_explained(self, flashscope, data):
        """What either side's time consists of, or that nothing can be said, and how far off the model is."""
        code, text, _ = flashscope("crossover", "one", "--explain", "--data", data)
        assert code == 0
        assert "latency model" in text.lower()
        code, out, _ = flashscope("crossover", "one", "--explain", "--format", "json", "--data", data)
        assert [set(one) for one in json.loads(out)[0]["shares"]] == [
            {"backend", "seq_len", "est_latency_ms", "shares"}
        ] * len(json.loads(out)[0]["shares"])
        code, out, _ = flashscope("crossover", "h200-standard", "--explain")
        assert "of it launch" in out
        assert "batch · heads = 16: " in out

    def test_show_limits(self, flashscope, data):
        """What bounds each case, and how near it is; without a known device a sentence."""
        code, out, _ = flashscope("show", "h200-standard", "--limits")
        assert code == 0
        assert out.startswith(
            "Measured, beside limits that are modelled; bytes through the L2 and DRAM are counted in 0 "
        )
        assert "least by l2" in out.splitlines()[1]
        assert "least by tensor" in out
        code, out, err = flashscope("show", "cpu-quick", "--limits", "--clock", "wall")
        assert (code, out) == (2, "")
        assert "need a device of the catalogue" in err

    def test_whatif(self, flashscope, data):
        """A prediction says that it is one, and how far off it is; without a model, why there is none."""
        code, out, _ = flashscope("whatif", "h200-standard", "--gpu", "A100-SXM-80GB")
        assert code == 0
        assert out.startswith("Predicted, not measured: A100-SXM-80GB")
        assert "the model is off by" in out
        for words, said in (
            (("whatif", "h200-standard", "--gpu", "Abacus"), "Abacus"),
            (("whatif", "h200-standard", "--gpu", "T4"), "T4: the catalogue has no bf16 peak"),
            (("whatif", "cpu-quick", "--gpu", "H200", "--clock", "wall"), "no latency model of both"),
        ):
            code, out, err = flashscope(*words)
            assert (code, out) == (2, "")
            assert said in err

    def test_policy(self, flashscope, data, tmp_path):
        """Rules as a table and as a file that `load_policy` reads; a place that cannot be written is told."""
        torch = pytest.importorskip("torch")
        from fa_core import explain, load_policy

        path = tmp_path / "policy.json"
        code, text, _ = flashscope("policy", "one", "--out", path, "--data", data)
        assert code == 0
        assert "flash" in text
        assert f"{path}: " in text
        policy = load_policy(path, force=True)
        rule = policy.rules[0]
        q = torch.empty(1, rule.batch_heads[0], rule.seq_len[0], rule.call.head_dim, dtype=torch.bfloat16)
        assert rule.evidence["run_id"] == "one"
        assert "run one, device clock" in explain(q, q, q, causal=rule.call.causal, policy=policy)
        code, _, err = flashscope("policy", "one", "--out", tmp_path, "--data", data)
        assert code == 2
        assert "cannot be written" in err

    def test_estimate(self, flashscope):
        """The issue's own example: 256 MiB for one head, 64 GiB for all, and four series."""
        code, out, _ = flashscope(
            "estimate",
            "--batch",
            "8",
            "--heads",
            "32",
            "--seq-len",
            "8192",
            "--head-dim",
            "128",
            "--dtype",
            "fp32",
        )
        assert code == 0
        assert "256 MiB" in out
        assert "64 GiB" in out
        for series in ("naive", "tile", "dram", "compulsory"):
            assert series in out

    def test_doctor(self, flashscope):
        """The doctor always has an answer."""
        code, out, _ = flashscope("doctor")
        assert code == 0
        assert "python" in out


SWEEP = """
name = "tiny"
[protocol]
clocks = ["wall", "pipelined"]
processes = {processes}
rounds = 2
samples_per_round = 1
warmup_ms = 0
memory = false
[[group]]
backends = ["naive", "{backend}"]
dtype = ["fp32"]
heads = [2]
head_dim = [8]
seq_len = [16, 32, 48]
"""


@pytest.fixture
def run_for_real(tmp_path, monkeypatch):
    """Starts `python -m profiling run` with real workers, and only what a GPU machine has installed."""
    pytest.importorskip("torch")
    light = tmp_path / "light"
    light.mkdir()
    # As on a machine that only measures: no dashboard, no chart, no table validation.
    absent = ("streamlit", "plotly", "pandera", "tabulate", "jinja2", "pyarrow")
    (light / "sitecustomize.py").write_text(
        "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in absent)
    )
    paths = [str(light), str(ROOT / "tests" / "measure"), str(ROOT)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "GIT_DIR": str(tmp_path),  # whoever commits meanwhile must not make a resume a forced one
        "TMPDIR": str(tmp_path),
        "STAND_IN_MARKER": str(tmp_path / "marker"),
    }

    def start(backend, processes, *words):
        sweep = tmp_path / "tiny.toml"
        sweep.write_text(SWEEP.format(backend=backend, processes=processes))
        command = [sys.executable, "-m", "profiling", "run", str(sweep), "--device", "cpu", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )

    return start


def check_complete(path):
    """Every planned case is there once and `ok`."""
    run = load_run(path)
    assert run.problems == ()
    assert run.end.status == "finished"
    assert [m.status for m in run.measurements] == ["ok"] * 6
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    keys = [json.dumps(line["case"], sort_keys=True) for line in lines if line["kind"] == "case"]
    assert len(set(keys)) == len(keys) == run.header.planned_cases == 6
    return run


def test_killed_and_resumed(run_for_real, tmp_path):
    """SIGKILL half way: the workers die too, finished rows stay, and a resume completes the set."""
    done = run_for_real("stand_ins:kill_parent", 2, "--out", str(tmp_path / "runs"), "--run-id", "r")
    path = tmp_path / "runs" / "r.jsonl"
    assert done.returncode == -signal.SIGKILL
    killed = load_run(path)
    assert len(killed.measurements) == 2
    assert killed.end is None
    worker = int((tmp_path / "marker").read_text())
    _wait_until_gone(worker)

    done = run_for_real("stand_ins:kill_parent", 2, "--resume", str(path))
    assert done.returncode == 0, done.stderr
    run = check_complete(path)
    assert run.measurements[:2] == killed.measurements
    measured = run.measurements[-1]
    assert {s.process for s in measured.samples} == {0, 1}
    assert {c.clock for c in measured.clocks} == {"wall", "pipelined"}
    assert measured.rel_error is not None


def test_interrupted(run_for_real, tmp_path):
    """Ctrl-C: exit code 3, finished rows are in the file, which says how it ended; how to go on is told."""
    done = run_for_real("stand_ins:interrupt_parent", 1, "--out", str(tmp_path / "runs"), "--run-id", "r")
    path = tmp_path / "runs" / "r.jsonl"
    assert done.returncode == 3, done.stderr
    run = load_run(path)
    assert run.end.status == "interrupted"
    assert len(run.measurements) == 2
    assert f"--resume {path}" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("status", "code"), [("interrupted", 3), ("budget", 0)])
def test_how_to_go_on_is_told_with_all_it_takes(flashscope, monkeypatch, status, code):
    """The line can be copied: it keeps what the resumed run must share, the commit among it."""
    from profiling import runner

    result = runner.Result(Path("a b.jsonl"), status, 1, 2, {"ok": 1}, n_left_out=1)
    monkeypatch.setattr(runner, "run", lambda request: result)
    options = ["--device", "cpu", "--refine", "--git-commit", "abcdef1"]
    found, out, _ = flashscope("run", "data/sweeps/quick.toml", *options)
    assert found == code
    assert out.splitlines()[-1] == (
        "Go on with: flashscope run data/sweeps/quick.toml --device cpu --refine-to 0.125 "
        "--git-commit abcdef1 --resume 'a b.jsonl'"
    )


def _wait_until_gone(pid):
    psutil = pytest.importorskip("psutil")
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    _, alive = psutil.wait_procs([process], timeout=30)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
