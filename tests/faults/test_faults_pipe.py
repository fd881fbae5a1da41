"""Workers that die, hang or talk nonsense: each case has one row, and it says what happened."""

import pytest

from profiling.case import InputError
from profiling.measure import process
from tests.faults.bad_worker import STEPS


@pytest.mark.parametrize("step", STEPS)
def test_killed_in_a_step(client, make_block, step):
    """At whichever step a worker is killed, the case it was at is the row, and the step is in it."""
    cases = make_block("naive", f"x:{step.replace(' ', '_')}_kill", "x:good")
    with client() as workers:
        workers.start()
        rows = workers.measure(cases)
    assert [row.status for row in rows] == ["ok", "crashed", "ok"]
    assert "killed by SIGKILL" in rows[1].reason
    assert f"at the step {step!r}" in rows[1].reason


@pytest.mark.parametrize("step", ["prepare", "time"])
def test_hanging_in_a_step(client, make_block, step):
    """A case that does not end is ended, and says after how long and where."""
    with client(timeout_s=1.0) as workers:
        workers.start()
        rows = workers.measure(make_block("naive", f"x:{step}_hang", "x:good"))
    assert [row.status for row in rows] == ["ok", "timeout", "ok"]
    assert rows[1].reason == f"took more than 1 s, at the step {step!r}"


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        ("exit", "crashed", "exit code 5: last words"),
        ("garbage", "crashed", "sent what is no answer, 'Traceback (most recent"),
        ("binary", "crashed", "sent what is no answer"),
        ("half", "crashed", "exit code 0"),
        ("flood", "crashed", "sent what is no answer, 'xxx"),
        ("close", "crashed", "closed its pipe and went on"),
        ("beyond", "crashed", "sent what is no answer"),
        ("hello", "crashed", "sent what is no answer"),
        ("energies", "crashed", "sent what is no answer"),
        ("short", "crashed", "sent what is no answer"),
        ("poison", "oom", "poisoned"),
    ],
)
def test_nonsense_on_the_pipe(client, make_block, monkeypatch, what, status, reason):
    """What no worker should say ends it as a death does, and costs the case that was under way."""
    monkeypatch.setattr(process, "_MAX_LINE_BYTES", 2**20)
    monkeypatch.setattr(process, "_END_WAIT_S", 0.5)
    with client() as workers:
        workers.start()
        rows = workers.measure(make_block("naive", f"x:memory_{what}", "x:good"))
    assert [row.status for row in rows] == ["ok", status, "ok"]
    assert reason in rows[1].reason


@pytest.mark.parametrize("what", ["kill", "garbage"])
def test_a_shared_step_blames_no_case_alone(client, make_block, what):
    """Inputs that end every worker: all cases of the block say so, and the next block is measured."""
    with client() as workers:
        workers.start()
        rows = workers.measure(make_block("naive", f"x:inputs_{what}"))
        after = workers.measure(make_block("naive", "x:good", n=32))
    assert [row.status for row in rows] == ["crashed", "crashed"]
    assert all("at the step 'inputs'" in row.reason for row in rows)
    assert [row.status for row in after] == ["ok", "ok"]


def test_a_reference_that_costs_the_device(client, make_block):
    """The block is measured without the reference, in a fresh worker; no case pays for it."""
    with client() as workers:
        workers.start()
        rows = workers.measure(make_block("naive", "x:reference_poison"))
    assert [row.status for row in rows] == ["ok", "ok"]


def test_every_case_fails_in_a_way_of_its_own(client, make_block):
    """A block in which each case ends its worker has all its rows, in both processes."""
    cases = make_block("x:prepare_kill", "x:time_exit", "x:check_poison", "x:warm_up_garbage", "naive")
    with client(processes=2) as workers:
        workers.start()
        rows = workers.measure(cases)
    assert [row.case for row in rows] == list(cases)
    assert [row.status for row in rows] == ["crashed", "crashed", "oom", "crashed", "ok"]
    assert {sample.process for sample in rows[4].samples} == {0, 1}


def test_the_device_disappears(client, make_block):
    """From when no worker can start any more, cases are rows at once that say why."""
    with client("cuda:9") as workers:
        workers.start()
        started = []
        spawn, workers._spawn = workers._spawn, lambda *words: (started.append(words), spawn(*words))[1]
        rows = [row for n in range(1, 8) for row in workers.measure(make_block("naive", "x:check_gone", n=n))]
    assert len(rows) == 14
    assert {row.status for row in rows} == {"crashed"}
    assert "exit code 1" in rows[1].reason
    assert rows[-1].reason.startswith("no worker could be started any more: there is no cuda:9 any more")
    assert len(started) == 3 + 1 + 1  # of the first block, and of the two after it


def test_no_process_can_be_made(client, make_block, monkeypatch):
    """Out of processes or memory for one, a run does not start, and one that is under way has rows."""

    def refuse(*words, **options):
        raise OSError(11, "Resource temporarily unavailable")

    with client() as workers:
        workers.start()
        monkeypatch.setattr("subprocess.Popen", refuse)
        rows = workers.measure(make_block("x:time_kill", "naive"))
        assert [row.status for row in rows] == ["crashed", "crashed"]
        assert "Resource temporarily unavailable" in rows[1].reason
    with client() as workers, pytest.raises(InputError, match="could not start: Resource temporarily"):
        workers.start()


def test_no_temporary_folder(client, monkeypatch):
    """Where nothing can be written a worker cannot start, and TMPDIR is named."""

    def refuse(*words, **options):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with client() as workers, pytest.raises(InputError, match="set TMPDIR"):
        workers.start()


@pytest.mark.parametrize(
    "what", ["kill", "exit", "hang", "close", "garbage", "half", "poison", "hello", "short", "beyond"]
)
def test_a_rehearsal_costs_no_row(client, make_block, monkeypatch, what):
    """Workers that end, hang or talk nonsense in a rehearsal are replaced where needed, every one of them."""
    monkeypatch.setenv("FAULT_REHEARSAL", what)
    monkeypatch.setattr(process, "_END_WAIT_S", 0.5)
    cases = make_block("naive", "x:time_kill", "x:good")
    with client(processes=3, timeout_s=0.5 if what == "hang" else 60) as workers:
        workers.start()
        with workers.rehearsal(cases[:1]):
            pass
        assert workers._workers == {}
        rows = workers.measure(cases)
        assert sorted(workers._workers) == [0, 1, 2]
    assert [row.status for row in rows] == ["ok", "crashed", "ok"]
    assert [s.process for s in rows[0].samples] == [0, 1, 2]


def test_no_worker_can_be_started_after_a_rehearsal(client, make_block, monkeypatch, tmp_path):
    """A device that goes in the rehearsal: cases are rows that say so, each once."""
    monkeypatch.setenv("FAULT_REHEARSAL", "gone")
    cases = make_block("naive", "x:good")
    with client("cuda:9", processes=2) as workers:
        workers.start()
        with workers.rehearsal(cases[:1]):
            pass
        rows = workers.measure(cases)
    assert [row.status for row in rows] == ["crashed", "crashed"]
    assert rows[0].reason == "no worker could be started any more: there is no cuda:9 any more"


def test_interrupted_in_a_rehearsal(client, make_block, monkeypatch):
    """Ctrl-C meanwhile: nobody waits for a worker that hangs, and none is left."""
    monkeypatch.setenv("FAULT_REHEARSAL", "hang")
    children = []

    def interrupted():
        with client(processes=2, timeout_s=3600.0) as workers:
            workers.start()
            children.extend(worker._process for worker in workers._workers.values())
            with workers.rehearsal(make_block("naive")):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [child.poll() is not None for child in children] == [True, True]
