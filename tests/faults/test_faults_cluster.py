"""A run over the GPUs of a cluster, from sweep to file: one is lost, the run is interrupted, and goes on."""

import sys

import pytest

from profiling.case import InputError
from profiling.store import RunWriter, load_run
from tests.test_cluster import StandInRay


class Ray(StandInRay):
    """A killed actor lets go of its device, as a process does."""

    def kill(self, actor):
        """The end of an actor."""
        super().kill(actor)
        actor.inner.stop()


@pytest.fixture
def start(stand_in, request_run, monkeypatch, tmp_path):
    """Starts a run over GPUs of these UUIDs on a stand-in for ray; other keywords are the request's."""
    path = tmp_path / "two-series.toml"
    path.write_text(
        'name = "two-series"\n[protocol]\nclocks = ["wall"]\nprocesses = 1\n'
        '[[group]]\nbackends = ["naive", "tiled"]\nseq_len = [16, 32]\nhead_dim = [8, 16]\n'
    )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    here = stand_in.environment

    def go(*gpus, ray=None, **fields):
        unused = list(gpus)
        monkeypatch.setitem(sys.modules, "ray", ray or Ray(gpus=len(gpus)))

        def environment(self):
            self.uuid = unused.pop(0)
            return here.model_copy(update={"device_kind": "cuda", "device_uuid": self.uuid})

        def measure(self, block):
            return [row.model_copy(update={"reason": self.uuid}) for row in whole(self, block)]

        def leave(self, *error):
            unused.append(self.uuid)

        monkeypatch.setattr(stand_in, "start", environment)
        monkeypatch.setattr(stand_in, "__exit__", leave)
        monkeypatch.setattr(stand_in, "measure", measure)
        return request_run(**({"sweep": path, "device": "cuda:0", "executor": "ray"} | fields))

    whole = stand_in.measure
    return go


def check(path):
    """Every planned case has one row, `ok`, under the environment of the GPU that made it."""
    run = load_run(path)
    assert run.problems == ()
    assert run.end.status == "finished"
    assert len({row.case for row in run.measurements}) == run.header.planned_cases == 8
    for row in run.measurements:
        assert (row.status, row.reason) == ("ok", run.environments[row.environment].device_uuid)
    return run


def test_rows_of_two_gpus(start):
    """Each GPU is an environment of the file, and its rows say so; it is the cases of a local run."""
    run = check(start("GPU-a", "GPU-b", run_id="ray").path)
    assert [e.device_uuid for e in run.environments] == ["GPU-a", "GPU-b"]
    assert {row.environment for row in run.measurements} == {0, 1}
    local = check(start("GPU-a", executor="local", run_id="local").path)
    assert {row.case for row in local.measurements} == {row.case for row in run.measurements}


def test_a_gpu_that_comes_back(start):
    """A lost actor that is opened again on the same GPU goes on under that GPU's number."""
    ray = Ray(gpus=2, die_at=32, deaths=1)
    run = check(start("GPU-a", "GPU-b", ray=ray).path)
    assert len(ray.made) == 3
    assert len(run.environments) == 2


def test_interrupted_and_resumed_with_the_gpus_the_other_way_round(start, stand_in):
    """A resumed run knows its GPUs again, in whatever order ray hands them out."""
    stand_in.stop_at = 32
    first = start("GPU-a", "GPU-b", run_id="r")
    assert first.status == "interrupted"
    assert 0 < first.n_rows < 8
    stand_in.stop_at = None
    assert start("GPU-b", "GPU-a", resume=first.path).status == "finished"
    run = check(first.path)
    assert [e.device_uuid for e in run.environments] == ["GPU-a", "GPU-b"]


def test_a_file_that_another_run_holds(start):
    """Nothing is started on the cluster for a file that cannot be written."""
    path = start("GPU-a", "GPU-b", run_id="r").path
    ray = Ray(gpus=2)
    with RunWriter.resume(path), pytest.raises(InputError, match="another process writes to it"):
        start("GPU-a", "GPU-b", ray=ray, resume=path)
    assert ray.started == []
