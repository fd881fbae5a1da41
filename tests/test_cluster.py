"""The ray executor: whole series to one actor, rows with their environment, lost actors as rows."""

import contextlib
import functools
import itertools
import os
import sys
import tempfile
import types
from pathlib import Path

import pytest

from profiling.case import Case, InputError, Protocol, blocks
from profiling.cluster import Cluster, series
from profiling.measure.client import Client
from profiling.measure.process import Worker
from profiling.records import Environment, Measurement

BAD_WORKER = Path(__file__).parent / "faults" / "bad_worker.py"


def plan():
    """Blocks of two series (d = 8 and 16) along N, two backends each."""
    return blocks(
        Case(backend=b, seq_len_q=n, seq_len_k=n, head_dim=d, head_dim_v=d)
        for n in (16, 32, 64)
        for d in (8, 16)
        for b in ("naive", "tiled")
    )


@contextlib.contextmanager
def open_device(compiles=True):
    """A device that measures nothing, in whatever process it is opened."""

    class Device:
        timed_s = 1.5

        def measure(self, block):
            return [Measurement(case=case, status="ok") for case in block]

    yield Device(), Environment(device_kind="cpu", device_name="stand-in"), lambda: None


def open_writing(steps):
    """As `open_device`; adds to `steps` whether it was to compile, and when it was to load."""

    @contextlib.contextmanager
    def open_noting(compiles):
        steps.append(compiles)
        with open_device() as (device, environment, _):
            yield device, environment, lambda: steps.append("load")

    return open_noting


@contextlib.contextmanager
def open_nothing(compiles=True):
    """A device that is not there."""
    raise InputError("there is no cuda:0")
    yield


def test_a_series_is_all_n_of_one_shape():
    """Blocks are grouped by all but N, in their order."""
    found = series(plan())
    assert [[block[0].seq_len_q for block in one] for one in found] == [[16, 32, 64]] * 2
    assert [{block[0].head_dim for block in one} for one in found] == [{8}, {16}]


def test_without_ray(monkeypatch):
    """Where ray is missing, one sentence says how to get it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install -e '\.\[cluster\]'"):
        Cluster(open_device, "cpu")


class StandInRay(types.ModuleType):
    """Ray's functions that are used, without processes: a call is made when it is waited for."""

    class RayError(Exception):
        """As ray's."""

    class RayTaskError(RayError):
        """As ray's: what an actor raised."""

        def __init__(self, cause):
            super().__init__("a long remote traceback")
            self.cause = cause

    def __init__(self, gpus=0, die_at=None, deaths=99, full=False, machines=None):
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayError=self.RayError, RayTaskError=self.RayTaskError)
        self.gpus, self.die_at, self.deaths, self.full = gpus, die_at, deaths, full
        self.machines = itertools.cycle(machines or ["here"])
        self.made, self.killed, self.started = [], [], []
        self.death = "the actor died\nfor many reasons"

    def is_initialized(self):
        """Not yet."""
        return False

    def init(self, **options):
        """There is no cluster to join; a local one starts."""
        self.started.append(options)
        if options["address"] == "auto":
            raise ConnectionError("Could not find any running Ray instance.")

    def shutdown(self):
        """Nothing to stop."""

    def get_runtime_context(self):
        """Of an actor: the machine that is its turn."""
        return types.SimpleNamespace(get_node_id=lambda: next(self.machines))

    def cluster_resources(self):
        """The GPUs it was made with."""
        return {"CPU": 2.0} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def remote(self, **resources):
        """An actor's class: each method call becomes a reference that `get` resolves."""
        ray = self

        def decorate(cls):
            class Actor:
                def __init__(self, *args):
                    self.inner, self.number = cls(*args), len(ray.made)
                    self.late = len(ray.made) >= (ray.gpus or 1)
                    ray.made.append((self, resources))

                def __getattr__(self, name):
                    def call(*args):
                        return (self, name, args)

                    return types.SimpleNamespace(remote=lambda *args: _Ref(call(*args)))

            return types.SimpleNamespace(remote=Actor)

        return decorate

    def get(self, refs, timeout=None):
        """The result of a reference, or of a list of them."""
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        actor, name, args = refs.call
        if name == "measure" and args[0][0].seq_len_q == self.die_at and self.deaths:
            self.deaths -= 1
            raise self.RayError(self.death)
        try:
            return getattr(actor.inner, name)(*args)
        except (InputError, ZeroDivisionError) as error:
            raise self.RayTaskError(error) from None

    def wait(self, refs, num_returns=1, timeout=None):
        """The first are done first; where the cluster is full, no further actor ever starts."""
        first = ("machine", "start_again")  # what an actor is asked as it is made
        opening = [ref for ref in refs if self.full and ref.call[1] in first and ref.call[0].late]
        ready = [ref for ref in refs if ref not in opening]
        assert ready or timeout is not None
        return ready[:num_returns], [*ready[num_returns:], *opening]

    def kill(self, actor):
        """Remember it."""
        self.killed.append(actor.number)


class _Ref:
    def __init__(self, call):
        self.call = call


class TestScheduling:
    """With a stand-in for ray."""

    def rows(self, monkeypatch, ray, seats, device="cpu", opener=open_device):
        """All rows, in the order they arrive."""
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        with Cluster(opener, device, seats) as cluster:
            numbers = list(range(len(cluster.environments)))
            rows = [row for rows in cluster.executor(numbers)(plan()) for row in rows]
            self.timed_s = cluster.timed_s
        assert sorted(row.case.label for row in rows) == sorted(c.label for block in plan() for c in block)
        return rows

    @pytest.mark.parametrize(("seats", "timed_s"), [(1, 1.5), (2, 1.5), (3, 1.0)])
    def test_every_case_once_and_each_series_on_one_actor(self, monkeypatch, seats, timed_s):
        """However many actors there are, each case is measured once, and no series is split."""
        ray = StandInRay()
        rows = self.rows(monkeypatch, ray, seats)
        assert {row.status for row in rows} == {"ok"}
        for d in (8, 16):
            assert len({row.environment for row in rows if row.case.head_dim == d}) == 1
        assert sorted(ray.killed) == list(range(seats))
        assert self.timed_s == timed_s  # of a seat; the third had nothing to do

    @pytest.mark.parametrize("seats", [1, 2])
    def test_the_cases_of_a_lost_actor_are_run_again(self, monkeypatch, seats):
        """Where an actor dies once or twice, another has the block and the rest of its series."""
        rows = self.rows(monkeypatch, StandInRay(die_at=32, deaths=2), seats)
        assert {row.status for row in rows} == {"ok"}

    def test_a_block_that_ends_every_actor_is_a_row_in_the_end(self, monkeypatch):
        """After the third loss its cases say so; the rest of the series is measured."""
        ray = StandInRay(die_at=32)
        rows = self.rows(monkeypatch, ray, 2)
        assert {row.case.seq_len_q for row in rows if row.status == "crashed"} == {32}
        assert {row.reason for row in rows if row.status == "crashed"} == {
            "its ray actor was lost 3 times: the actor died"
        }
        assert {row.case.seq_len_q for row in rows if row.status == "ok"} == {16, 64}
        assert len(ray.made) == 2 + 2 * 3
        assert sorted(ray.killed) == list(range(8))

    def test_no_actor_left(self, monkeypatch):
        """Where the only actor dies, and the cluster has no room for another, what is left gets its rows."""
        rows = self.rows(monkeypatch, StandInRay(die_at=32, full=True), 1)
        assert [row.status for row in rows if row.case.seq_len_q == 32] == ["crashed"] * 4
        assert any("no ray actor was left to measure it: the actor died" in row.reason for row in rows)

    def test_an_actor_that_comes_back_elsewhere_is_sent_away(self, monkeypatch):
        """A new actor on a device that the run does not know measures nothing for it."""
        names = iter(["stand-in", "another"])

        @contextlib.contextmanager
        def open_next(compiles=True):
            with open_device() as (device, environment, load):
                yield device, environment.model_copy(update={"device_name": next(names)}), load

        rows = self.rows(monkeypatch, StandInRay(die_at=32, deaths=1), 1, opener=open_next)
        assert "came back on another device" in next(row.reason for row in rows if row.status == "crashed")

    def test_an_error_inside_an_actor_does_not_end_it(self, monkeypatch):
        """What an actor raises is tried again on it and then said; no actor is replaced for it."""

        @contextlib.contextmanager
        def open_broken(compiles=True):
            with open_device() as (device, environment, load):
                whole = device.measure
                device.measure = lambda block: whole(block) if block[0].seq_len_q != 64 else [1 / 0]
                yield device, environment, load

        ray = StandInRay()
        rows = self.rows(monkeypatch, ray, 1, opener=open_broken)
        assert {row.case.seq_len_q for row in rows if row.status == "crashed"} == {64}
        assert "division by zero" in next(row.reason for row in rows if row.status == "crashed")
        assert len(ray.made) == 1

    def test_interrupted(self, monkeypatch):
        """Actors that are at work when the run ends are killed, and nobody waits for their block."""
        ray = StandInRay()
        monkeypatch.setitem(sys.modules, "ray", ray)
        with Cluster(open_device, "cpu", 2) as cluster:
            rows = cluster.executor([0, 1])(plan())
            next(rows)
            rows.close()
            assert sorted(ray.killed) == [0, 1]
        assert sorted(ray.killed) == [0, 1]

    def test_an_actor_that_cannot_be_made(self, monkeypatch):
        """Of what ray says of it, the cause is shown, and neither colours nor the machine's address."""
        ray = StandInRay(die_at=32)
        ray.death = (
            "The actor died because of an error, \x1b[36mray::_Actor()\x1b[39m (pid=7, ip=192.0.2.2)\n"
            "traceback: Traceback (most recent call last):\n"
            "ModuleNotFoundError: No module named 'profiling'\n"
        )
        rows = self.rows(monkeypatch, ray, 1)
        reasons = {row.reason for row in rows if row.status == "crashed"}
        assert reasons == {"its ray actor was lost 3 times: ModuleNotFoundError: No module named 'profiling'"}

    def test_what_a_loss_says_names_no_machine(self, monkeypatch):
        """Rows are shared: the address that ray gives is left out."""
        ray = StandInRay(die_at=32)
        ray.death = "The actor died: \x1b[36m_Actor()\x1b[39m (pid=7, ip=192.0.2.2, x=<>) ip: 192.0.2.2\nmore"
        rows = self.rows(monkeypatch, ray, 1)
        assert not [row for row in rows if "192.0.2" in row.reason or "\x1b" in row.reason]

    def test_ray_starts_small_and_tells_nobody(self, monkeypatch):
        """A cluster that runs is joined; else a local one is started without dashboard and reports."""
        monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
        ray = StandInRay()
        self.rows(monkeypatch, ray, 1)
        assert [options["address"] for options in ray.started] == ["auto", "local"]
        assert ray.started[1]["include_dashboard"] is False
        assert ray.started[1]["num_cpus"] == 8  # not a process a core beside the workers that start
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"

    def test_a_named_cluster_that_is_not_there(self, monkeypatch):
        """With RAY_ADDRESS no other cluster is started in the place of the one that was meant."""
        monkeypatch.setitem(sys.modules, "ray", StandInRay())
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        with (
            pytest.raises(InputError, match="ray does not start: Could not find"),
            Cluster(open_device, "cpu"),
        ):
            pass

    def test_gpus_that_others_hold(self, monkeypatch):
        """An actor that never starts is a sentence after a while, not a run that hangs."""
        monkeypatch.setitem(sys.modules, "ray", StandInRay(gpus=1, full=True))
        with pytest.raises(InputError, match="1 of 2 actors had not started"), Cluster(open_device, "cpu", 2):
            pass

    def test_one_gpu_cannot_be_chosen(self):
        """Ray decides which GPU an actor has: to ask for the second is refused."""
        with pytest.raises(InputError, match="--device must be cuda:0 or cpu, got cuda:1"):
            Cluster(open_device, "cuda:1")

    def test_threads_are_those_of_the_run(self, monkeypatch):
        """Ray's own number of threads for its actors does not reach what they measure."""
        seen = []

        @contextlib.contextmanager
        def open_noting(compiles=True):
            seen.append(os.environ.get("OMP_NUM_THREADS"))
            with open_device() as opened:
                yield opened

        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        self.rows(monkeypatch, StandInRay(), 1, opener=open_noting)
        assert seen == ["7"]

    def test_one_actor_a_gpu(self, monkeypatch):
        """As many actors as the cluster has GPUs, each asking for one."""
        ray = StandInRay(gpus=3)
        self.rows(monkeypatch, ray, None, device="cuda:0")
        assert [resources["num_gpus"] for _, resources in ray.made] == [1, 1, 1]

    def test_one_actor_of_a_machine_compiles_and_nobody_loads_before(self, monkeypatch):
        """The first of each machine compiles; the last step is taken when all have started."""
        steps = []
        ray = StandInRay(gpus=4, machines=["a", "b", "a", "b"])
        self.rows(monkeypatch, ray, None, device="cuda:0", opener=open_writing(steps))
        assert steps == [True, True, False, False, *["load"] * 4]

    def test_an_actor_that_is_opened_again_compiles_nothing(self, monkeypatch):
        """The machine's kernels are there, and its other GPUs are being measured; but they are loaded."""
        steps = []
        rows = self.rows(monkeypatch, StandInRay(die_at=32, deaths=1), 1, opener=open_writing(steps))
        assert steps == [True, "load", False, "load"]
        assert {row.status for row in rows} == {"ok"}

    def test_a_last_step_that_fails(self, monkeypatch):
        """It is a sentence, as any failure of an actor that starts."""

        @contextlib.contextmanager
        def open_badly(compiles):
            with open_device() as (device, environment, _):
                yield device, environment, lambda: 1 / 0

        monkeypatch.setitem(sys.modules, "ray", StandInRay())
        with (
            pytest.raises(InputError, match="an actor failed: division by zero"),
            Cluster(open_badly, "cpu"),
        ):
            pass

    def test_no_gpu_in_the_cluster(self, monkeypatch):
        """A GPU asked of a cluster that has none is refused."""
        with pytest.raises(InputError, match="has no GPU"):
            self.rows(monkeypatch, StandInRay(), None, device="cuda:0")

    def test_a_refusal_inside_an_actor_reaches_the_user(self, monkeypatch):
        """What an actor's device says is the sentence that is shown, not a remote traceback."""
        monkeypatch.setitem(sys.modules, "ray", StandInRay())
        with pytest.raises(InputError, match=r"^there is no cuda:0$"), Cluster(open_nothing, "cpu"):
            pass


@contextlib.contextmanager
def open_workers(compiles=True):
    """A device whose workers need no torch and have no lock: two of them share this machine's CPU."""
    command = (sys.executable, str(BAD_WORKER))
    spawn = functools.partial(Worker, command=command)
    with Client("cpu", Protocol(processes=1), ("wall",), spawn=spawn) as client:
        yield client, client.start(), lambda: None


@pytest.fixture
def ray_of_its_own(monkeypatch, tmp_path):
    """A local ray of two CPUs and little memory, that ends with the test."""
    ray = pytest.importorskip("ray")
    for name in ("RAY_ADDRESS", "GIT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "PYTHONPATH": os.pathsep.join(map(str, BAD_WORKER.parents[1:3])),  # this module is `test_cluster`
        "FAULT_MARKER": str(tmp_path / "marker"),
    }.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # sockets' names must be short
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=2**27,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
        try:
            yield ray
        finally:
            ray.shutdown()


def test_with_ray_itself(ray_of_its_own, tmp_path):
    """Two real actors, one of which is killed while it measures: the rows are those of a local run.

    The worker of one case kills the process above it, which is the actor, once. Its block and the rest of
    its series are measured again; every row says in which actor's environment it was made.
    """
    backends = ("naive", "x:time_kill", "x:time_killparent")
    cases = [
        Case(backend=b, seq_len_q=n, seq_len_k=n, head_dim=d, head_dim_v=d)
        for n in (16, 32, 64)
        for d in (8, 16)
        for b in (backends if (n, d) == (32, 8) else backends[:2])
    ]
    with Cluster(open_workers, "cpu", 2) as cluster:
        assert len(cluster.environments) == 2
        actors = [seat.actor for seat in cluster._seats]
        arrived = list(cluster.executor([0, 1])(blocks(cases)))
        assert sum(seat.actor not in actors for seat in cluster._seats) == 1  # it was replaced
    assert (tmp_path / "marker").exists()  # so that it does not kill this process
    with open_workers() as (client, *_):
        here = [row for block in blocks(cases) for row in client.measure(block)]
    rows = [row for found in arrived for row in found]
    assert len(arrived) == 6  # they came block by block
    assert sorted(map(outcome, rows)) == sorted(map(outcome, here))
    assert {row.status for row in rows if row.case.backend == "x:time_kill"} == {"crashed"}
    assert {row.status for row in rows if row.case.backend != "x:time_kill"} == {"ok"}
    assert {row.environment for row in rows} == {0, 1}


def outcome(row):
    """What must be the same wherever a case is measured."""
    return row.case.label, row.status, row.reason, [s.clock for s in row.samples]
