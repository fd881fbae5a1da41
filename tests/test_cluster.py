"""The ray executor: whole series to one actor, rows with their environment, lost actors as rows."""

import contextlib
import sys
import types

import pytest

from profiling.case import Case, InputError, blocks
from profiling.cluster import Cluster, series
from profiling.records import Environment, Measurement


def plan():
    """Blocks of two series (d = 8 and 16) along N, two backends each."""
    return blocks(
        Case(backend=b, seq_len_q=n, seq_len_k=n, head_dim=d, head_dim_v=d)
        for n in (16, 32, 64)
        for d in (8, 16)
        for b in ("naive", "tiled")
    )


@contextlib.contextmanager
def open_device():
    """A device that measures nothing, in whatever process it is opened."""

    def measure(block):
        return [Measurement(case=case, status="ok") for case in block]

    yield measure, Environment(device_kind="cpu", device_name="stand-in")


@contextlib.contextmanager
def open_nothing():
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

    def __init__(self, gpus=0, die_at=None):
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayError=self.RayError, RayTaskError=self.RayTaskError)
        self.gpus, self.die_at = gpus, die_at
        self.made, self.killed = [], []

    def init(self, **options):
        """Nothing to start."""

    def shutdown(self):
        """Nothing to stop."""

    def cluster_resources(self):
        """The GPUs it was made with."""
        return {"CPU": 2.0} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def remote(self, **resources):
        """An actor's class: each method call becomes a reference that `get` resolves."""
        ray = self

        def decorate(cls):
            class Actor:
                def __init__(self, *args):
                    self.inner, self.number, self.dead = cls(*args), len(ray.made), False
                    ray.made.append((self, resources))

                def __getattr__(self, name):
                    def call(*args):
                        return (self, name, args)

                    return types.SimpleNamespace(remote=lambda *args: _Ref(call(*args)))

            return types.SimpleNamespace(remote=Actor)

        return decorate

    def get(self, refs):
        """The result of a reference, or of a list of them."""
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        actor, name, args = refs.call
        if name == "measure" and (actor.dead or args[0][0].seq_len_q == self.die_at):
            actor.dead = True
            raise self.RayError("the actor died")
        try:
            return getattr(actor.inner, name)(*args)
        except InputError as error:
            raise self.RayTaskError(error) from None

    def wait(self, refs, num_returns=1, timeout=None):
        """The first are done first."""
        return refs[:num_returns], refs[num_returns:]

    def kill(self, actor):
        """Remember it."""
        self.killed.append(actor.number)


class _Ref:
    def __init__(self, call):
        self.call = call


class TestScheduling:
    """With a stand-in for ray."""

    def rows(self, monkeypatch, ray, seats, device="cpu"):
        """All rows, in the order they arrive."""
        monkeypatch.setitem(sys.modules, "ray", ray)
        with Cluster(open_device, device, seats) as cluster:
            numbers = list(range(len(cluster.environments)))
            return [row for rows in cluster.executor(numbers)(plan()) for row in rows]

    @pytest.mark.parametrize("seats", [1, 2, 3])
    def test_every_case_once_and_each_series_on_one_actor(self, monkeypatch, seats):
        """However many actors there are, each case is measured once, and no series is split."""
        ray = StandInRay()
        rows = self.rows(monkeypatch, ray, seats)
        assert sorted(row.case.label for row in rows) == sorted(c.label for block in plan() for c in block)
        assert {row.status for row in rows} == {"ok"}
        for d in (8, 16):
            assert len({row.environment for row in rows if row.case.head_dim == d}) == 1
        assert sorted(ray.killed) == list(range(seats))

    def test_an_actor_that_dies_costs_its_block(self, monkeypatch):
        """The block under way is a row that says so; the rest of the series goes to another actor."""
        rows = self.rows(monkeypatch, StandInRay(die_at=32), 4)
        lost = {row.case.seq_len_q for row in rows if row.status == "crashed"}
        assert lost == {32}
        assert len(rows) == 12
        assert {row.case.seq_len_q for row in rows if row.status == "ok"} == {16, 64}

    def test_no_actor_left(self, monkeypatch):
        """Where all actors have died, what is left still gets its rows."""
        rows = self.rows(monkeypatch, StandInRay(die_at=16), 1)
        assert len(rows) == 12
        assert {row.status for row in rows} == {"crashed"}

    def test_one_actor_a_gpu(self, monkeypatch):
        """As many actors as the cluster has GPUs, each asking for one."""
        ray = StandInRay(gpus=3)
        self.rows(monkeypatch, ray, None, device="cuda:0")
        assert [resources["num_gpus"] for _, resources in ray.made] == [1, 1, 1]

    def test_no_gpu_in_the_cluster(self, monkeypatch):
        """A GPU asked of a cluster that has none is refused."""
        with pytest.raises(InputError, match="has no GPU"):
            self.rows(monkeypatch, StandInRay(), None, device="cuda:0")

    def test_a_refusal_inside_an_actor_reaches_the_user(self, monkeypatch):
        """What an actor's device says is the sentence that is shown, not a remote traceback."""
        monkeypatch.setitem(sys.modules, "ray", StandInRay())
        with pytest.raises(InputError, match=r"^there is no cuda:0$"), Cluster(open_nothing, "cpu"):
            pass


@pytest.mark.slow
def test_with_ray_itself(monkeypatch):
    """Two real actors share the series; every case comes back once, with its actor's environment."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    with Cluster(open_device, "cpu", 2) as cluster:
        assert len(cluster.environments) == 2
        rows = [row for rows in cluster.executor([0, 1])(plan()) for row in rows]
    assert sorted(row.case.label for row in rows) == sorted(c.label for block in plan() for c in block)
    assert {row.environment for row in rows} == {0, 1}
