"""The parent's side: whatever a worker does, every case of a block gets a row, and the right one."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.case import InputError, Protocol
from profiling.measure.client import Client, Worker, WorkerDiedError
from profiling.measure.messages import (
    BlockRequest,
    BlockResult,
    Outcome,
)
from profiling.records import Environment, Sample

ENVIRONMENT = Environment(device_kind="cpu", device_name="stand-in")

# A worker without torch: it speaks the protocol, and does to each case what its backend's name says.
SCRIPT = """
import os, signal, sys
from profiling.measure.messages import *
from profiling.records import Environment
reader, writer = os.fdopen(int(sys.argv[-2])), os.fdopen(int(sys.argv[-1]), "w", buffering=1)
say = lambda message: writer.write(message.model_dump_json() + "\\n")
start = TO_WORKER.validate_json(reader.readline())
if start.device == "cuda:7":
    say(Refused(message="there is no cuda:7"))
    sys.exit()
if start.device == "cuda:8":
    print("Traceback ...\\nImportError: something is broken")
    sys.exit(1)
say(Hello(environment=Environment(device_kind="cpu", device_name="stand-in")))
for line in reader:
    request = TO_WORKER.validate_json(line)
    if "HEARD" in os.environ:
        with open(os.environ["HEARD"], "a") as file:
            file.write(f"{request.kind} {start.process}\\n")
    if isinstance(request, RehearsalRequest):
        if "GATE" in os.environ:
            open(os.environ["GATE"]).close()  # until somebody opens it for writing
        with open(os.environ["HEARD"], "a") as file:
            file.write(f"rehearsed {start.process}\\n")
        say(Rehearsed())
        continue
    outcomes = []
    say(Stage(index=None, name="reference"))
    if any(":orphan" in case.backend for case in request.cases):
        os._exit(9)
    if request.check and any(":bad_reference" in case.backend for case in request.cases):
        os._exit(9)
    for index, case in enumerate(request.cases):
        say(Stage(index=index, name="prepare"))
        what = case.backend.partition(":")[2]
        if what == "crash":
            os.kill(os.getpid(), signal.SIGABRT)
        if what == "leave":
            print("last words", flush=True)
            os._exit(5)
        if what == "hang":
            signal.pause()
        if what == "poison":
            say(Unclean(index=index, outcome=Outcome(status="oom", reason="poisoned")))
            os._exit(1)
        status = "oom" if what == "oom" else "ok"
        sample = Sample(clock="wall", process=start.process, round=0, order=index, ms=1.0)
        samples = [sample] if status == "ok" else []
        outcomes.append(Outcome(status=status, samples=samples, reason=str(os.getpid())))
    say(BlockResult(outcomes=outcomes))
"""


class Spawner:
    """Starts stand-in workers and remembers them."""

    def __init__(self):
        self.started = []

    def __call__(self, device, process, protocol):
        """Start a stand-in worker."""
        worker = Worker(device, process, protocol, command=(sys.executable, "-c", SCRIPT))
        self.started.append(process)
        return worker


@pytest.fixture
def spawn():
    """A fresh `Spawner`."""
    return Spawner()


def measure(block, spawn, **protocol):
    """The rows of a block, by a client with stand-in workers."""
    with Client("cpu", Protocol(**protocol), ("wall",), spawn=spawn) as client:
        assert client.start() == ENVIRONMENT
        return client.measure(block)


def block_of(make_case, *backends):
    """Cases of one shape; a name but `naive` is what the stand-in does to it."""
    return [make_case(backend=name if name == "naive" else f"x:{name}") for name in backends]


def test_two_processes_measure_in_turn(make_case, spawn):
    """Each process measures the block, and its samples say which it was."""
    rows = measure(block_of(make_case, "naive", "good"), spawn, processes=2)
    assert [row.status for row in rows] == ["ok", "ok"]
    assert [[s.process for s in row.samples] for row in rows] == [[0, 1], [0, 1]]
    assert spawn.started == [0, 1]


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        ("crash", "crashed", "SIGABRT"),
        ("leave", "crashed", "exit code 5: last words"),
        ("poison", "oom", "poisoned"),
        ("hang", "timeout", "more than 0.3 s"),
    ],
)
def test_a_death_is_blamed_and_the_innocent_are_measured(make_case, spawn, what, status, reason):
    """The case that ended its worker is a row; those before and after it are measured in a fresh one."""
    rows = measure(block_of(make_case, "naive", what, "good"), spawn, processes=1, timeout_s=0.3)
    assert [row.status for row in rows] == ["ok", status, "ok"]
    assert reason in rows[1].reason
    assert rows[0].reason == rows[2].reason  # the same, second, worker
    assert spawn.started == [0, 0]


def test_a_case_that_failed_is_not_tried_in_the_next_process(make_case, spawn):
    """The second process is spared what ended the first."""
    rows = measure(block_of(make_case, "crash", "oom", "good"), spawn, processes=2)
    assert [row.status for row in rows] == ["crashed", "oom", "ok"]
    assert [s.process for s in rows[2].samples] == [0, 1]
    assert spawn.started == [0, 1, 0]


def test_all_fail(make_case, spawn):
    """A block in which everything fails has all its rows."""
    rows = measure(block_of(make_case, "crash", "leave", "oom"), spawn, processes=2)
    assert [row.status for row in rows] == ["crashed", "crashed", "oom"]


def test_a_death_that_no_case_is_to_blame_for(make_case, spawn):
    """A worker that dies before any case is tried again twice, then the cases say so."""
    rows = measure(block_of(make_case, "naive", "orphan"), spawn, processes=1)
    assert [row.status for row in rows] == ["crashed", "crashed"]
    assert "reference" in rows[0].reason
    assert spawn.started == [0, 0, 0]


def test_a_reference_that_kills_is_left_out(make_case, spawn):
    """Where the oracle itself ends the worker, the block is measured without."""
    rows = measure(block_of(make_case, "naive", "bad_reference"), spawn, processes=1)
    assert [row.status for row in rows] == ["ok", "ok"]
    assert spawn.started == [0, 0]


def test_a_refusal_reaches_the_user(spawn):
    """No such device is one sentence, not a row and not a traceback."""
    client = Client("cuda:7", Protocol(), ("wall",), spawn=spawn)
    with client, pytest.raises(InputError, match="there is no cuda:7"):
        client.start()


def test_a_worker_that_cannot_start_shows_its_last_words(spawn):
    """What a broken installation printed last is in the sentence."""
    client = Client("cuda:8", Protocol(), ("wall",), spawn=spawn)
    with client, pytest.raises(InputError, match="ImportError: something is broken"):
        client.start()


class TestRehearsal:
    """First calls in all workers, side by side."""

    @pytest.fixture
    def heard(self, monkeypatch, tmp_path):
        """What workers are asked, as they read it: a function that returns the words so far."""
        path = tmp_path / "heard"
        path.touch()
        monkeypatch.setenv("HEARD", str(path))
        return lambda: path.read_text().splitlines()

    def test_all_have_ended_before_one_is_timed(self, make_case, spawn, heard, monkeypatch, tmp_path):
        """They are at it together, the caller goes on meanwhile, and no block is begun until all are done.

        The workers wait at a gate, which opens when the client begins to wait for the first of them.
        """
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        monkeypatch.setenv("GATE", str(gate))
        whole = Worker.rehearsed

        def rehearsed(worker, until):
            with gate.open("w") if len(heard()) == 4 else contextlib.nullcontext():
                return whole(worker, until)

        monkeypatch.setattr(Worker, "rehearsed", rehearsed)
        with Client("cpu", Protocol(processes=4), ("wall",), spawn=spawn) as client:
            client.start()
            with client.rehearsal([make_case()]):
                while len(heard()) < 4:
                    pass
            assert [row.status for row in client.measure([make_case()])] == ["ok"]
        assert sorted(heard()[:4]) == ["rehearse 0", "rehearse 1", "rehearse 2", "rehearse 3"]
        assert sorted(heard()[4:8]) == ["rehearsed 0", "rehearsed 1", "rehearsed 2", "rehearsed 3"]
        assert heard()[8:] == ["block 0", "block 1", "block 2", "block 3"]
        assert spawn.started == [0, 1, 2, 3]

    def test_one_worker_alone(self, make_case, spawn, heard):
        """It loads its libraries before its first block, whose first calls go into rows."""
        with Client("cpu", Protocol(processes=1), ("wall",), spawn=spawn) as client:
            client.start()
            with client.rehearsal([make_case()]):
                pass
            client.measure([make_case()])
        assert heard() == ["rehearse 0", "rehearsed 0", "block 0"]

    def test_nothing_to_rehearse(self, spawn, heard):
        """No calls: nobody is asked for anything."""
        with Client("cpu", Protocol(processes=3), ("wall",), spawn=spawn) as client:
            client.start()
            with client.rehearsal([]):
                pass
        assert heard() == []

    def test_time_is_counted_from_the_request(self, make_case, spawn, heard, monkeypatch):
        """By a clock of the test: who answered while the caller was busy is kept, however long that took."""
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        with Client("cpu", Protocol(processes=2), ("wall",), spawn=spawn) as client:
            client.start()
            with client.rehearsal([make_case()]):
                while len(heard()) < 4:
                    pass
                for worker in client._workers.values():
                    worker._selector.select(60)  # its answer is in the pipe
                now[0] += 1e6
            assert sorted(client._workers) == [0, 1]


def test_progress_hears_of_cases(make_case, spawn):
    """The step under way is told with its case; shared steps with none."""
    heard = []
    case = make_case()
    with Client(
        "cpu", Protocol(processes=1), ("wall",), spawn=spawn, notify=lambda *step: heard.append(step)
    ) as client:
        client.measure([case])
    assert heard == [(None, "reference"), (case, "prepare")]


def test_a_dead_worker_is_noticed_when_it_is_asked(make_case, spawn):
    """A worker that died between blocks costs a restart, not a row."""
    with Client("cpu", Protocol(processes=1), ("wall",), spawn=spawn) as client:
        client.start()
        client._workers[0]._process.kill()
        client._workers[0]._process.wait()
        assert [row.status for row in client.measure([make_case()])] == ["ok"]
    assert spawn.started == [0, 0]


def test_workers_do_not_see_the_interpreter(monkeypatch):
    """TRITON_INTERPRET is for tests: a worker that measures never inherits it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    script = "import os, sys; sys.exit(7 if 'TRITON_INTERPRET' in os.environ else 6)"
    worker = Worker("cpu", 0, Protocol(), command=(sys.executable, "-c", script))
    with pytest.raises(InputError, match="exit code 6"):
        worker.hello()


def test_killing_twice_is_harmless(make_case):
    """Ends in any order: kill, close, kill."""
    worker = Worker("cpu", 0, Protocol(), command=(sys.executable, "-c", SCRIPT))
    worker.hello()
    worker.kill()
    worker.close()
    with pytest.raises((WorkerDiedError, OSError)):
        worker.measure(BlockRequest(cases=(make_case(),), clocks=("wall",), first=True), lambda *_: None)


def test_no_torch_in_the_parent():
    """The parent's modules start without torch, pandas or Streamlit being imported."""
    code = (
        "import sys; import profiling.measure.client, profiling.measure.lock, profiling.measure.environment; "
        "print([m for m in ('torch', 'fa_core', 'streamlit', 'triton', 'pandas') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def test_messages_survive_the_pipe():
    """A result with everything in it is the same after JSON."""
    result = BlockResult(
        outcomes=(
            Outcome(
                status="incorrect",
                rel_error=0.1 + 0.2,
                samples=(Sample(clock="wall", process=0, round=1, order=2, ms=1 / 3),),
            ),
        ),
        floor_ms={"wall": 1e-9},
    )
    assert BlockResult.model_validate_json(result.model_dump_json()) == result
