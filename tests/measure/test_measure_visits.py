"""A visit: what is sampled of a case, what is held between visits, and what a failed capture costs."""

import pytest
import torch

from profiling.case import Protocol
from profiling.measure.backends import bind, resolve
from profiling.measure.clocks import CpuTimer, CudaTimer
from profiling.measure.inputs import make_inputs
from profiling.measure.visits import Visitor

CPU = torch.device("cpu")
PROTOCOL = Protocol(rounds=4, samples_per_round=3, warmup_ms=0)
LARGE = 2**40


def visitor(case, timer, clocks, keep_bytes=LARGE):
    """A case warmed up on CPU tensors."""
    inputs = make_inputs(case, CPU, 0)
    return Visitor(case, resolve(case, CPU), inputs, timer, PROTOCOL, clocks, keep_bytes)


@pytest.mark.usefixtures("no_grad")
class TestVisit:
    """Samples, graphs and what is held."""

    @pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
    def test_cpu_clocks(self, make_case, direction):
        """Each clock of a CPU gets its samples, in every direction."""
        one = visitor(make_case(direction=direction), CpuTimer(), ("wall", "pipelined"))
        found = one.visit()
        assert list(found) == ["wall", "pipelined"]
        assert all(1 <= len(ms) <= 3 and min(ms) > 0 for ms in found.values())
        assert one.notes == {}

    def test_clocks_of_a_gpu_are_refused_on_a_cpu(self, make_case):
        """A clock that the device has not is said to be unsupported, once, and the others go on."""
        one = visitor(make_case(), CpuTimer(), ("wall", "device", "graph"))
        assert list(one.visit()) == ["wall"]
        assert {name: note.status for name, note in one.notes.items()} == {
            "device": "unsupported",
            "graph": "unsupported",
        }

    @pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
    def test_all_clocks_of_a_gpu(self, make_case, gpu, direction):
        """Eager clocks, a rotating graph and a hot one, in every direction."""
        clocks = ("wall", "pipelined", "device", "graph", "graph_hot")
        one = visitor(make_case(direction=direction), CudaTimer(CPU), clocks)
        first, second = one.visit(), one.visit()
        assert set(first) == set(second) == set(clocks)
        assert one.notes == {}

    def test_a_graph_is_captured_once_and_kept(self, make_case, gpu, monkeypatch):
        """A light graph serves all rounds."""
        timer = CudaTimer(CPU)
        captured = []
        monkeypatch.setattr(timer, "capture", lambda calls: captured.append(len(calls)) or _Graph(gpu))
        one = visitor(make_case(), timer, ("graph",))
        one.visit()
        one.visit()
        assert len(captured) == 1

    def test_a_heavy_graph_is_made_anew(self, make_case, gpu, monkeypatch):
        """A graph that holds more than allowed is gone after its visit."""
        timer = CudaTimer(CPU)
        captured = []

        def capture(calls):
            captured.append(len(calls))
            gpu.reserved += 2**20
            return _Graph(gpu)

        monkeypatch.setattr(timer, "capture", capture)
        one = visitor(make_case(), timer, ("graph",), keep_bytes=2**10)
        one.visit()
        one.visit()
        assert len(captured) == 2

    def test_rotation_leaves_l2_behind(self, make_case, gpu, monkeypatch):
        """`graph` goes round input sets of twice the L2 in all, each in memory of its own."""
        timer = CudaTimer(CPU)
        timer.l2_bytes = 64 * 2**10
        seen = []

        def forward_of(case):
            backend = resolve(case, CPU)
            return backend._replace(forward=lambda inputs: seen.append(inputs.q.data_ptr()) or inputs.q)

        case = make_case()
        inputs = make_inputs(case, CPU, 0)
        one = Visitor(case, forward_of(case), inputs, timer, PROTOCOL, ("graph",), LARGE)
        one.host_ms = 0.001  # capturing costs nothing here, and must not cut the rotation short
        seen.clear()
        one._captured("graph", timer)
        set_bytes = inputs.read_bytes("fwd")
        assert len(set(seen)) * set_bytes >= 2 * timer.l2_bytes
        assert len(set(seen)) == -(-2 * timer.l2_bytes // set_bytes)

    def test_a_mask_counts_and_rotates_like_an_input(self, make_case, gpu):
        """What SDPA needs beside q, k and v is in each input set of a graph, in memory of its own."""
        timer = CudaTimer(CPU)
        timer.l2_bytes = 64 * 2**10
        case = make_case(backend="sdpa_math", window_left=4)
        seen = []
        backend = resolve(case, CPU)
        inputs = backend.prepare(make_inputs(case, CPU, 0))
        spy = backend._replace(forward=lambda x: seen.append(x.bias.data_ptr()) or backend.forward(x))
        one = Visitor(case, spy, inputs, timer, PROTOCOL, ("graph",), LARGE)
        one.host_ms = 0.001
        seen.clear()
        one._captured("graph", timer)
        assert inputs.read_bytes("fwd") == 3 * 2 * 16 * 8 * 4 + 16 * 16 * 4
        assert len(set(seen)) == -(-2 * timer.l2_bytes // inputs.read_bytes("fwd"))

    def test_a_failed_capture_is_a_note_and_is_not_repeated(self, make_case, gpu):
        """The row keeps its other clocks; the backend is known as uncapturable from then on."""
        gpu.fail_capture = RuntimeError("CUDA error: operation not permitted when stream is capturing")
        one = visitor(make_case(), CudaTimer(CPU), ("wall", "graph"))
        assert list(one.visit()) == ["wall"]
        assert one.notes["graph"].status == "unsupported"
        assert "capturing" in one.uncapturable
        assert list(one.visit()) == ["wall"]

        other = visitor(make_case(), CudaTimer(CPU), ("wall", "graph"))
        gpu.fail_capture = None
        assert list(other.visit(one.uncapturable)) == ["wall"]
        assert other.notes["graph"].reason == one.uncapturable

    def test_a_capture_without_memory_blames_no_backend(self, make_case, gpu):
        """Out of memory while capturing is this case's clock alone."""
        gpu.fail_capture = torch.OutOfMemoryError("CUDA out of memory")
        one = visitor(make_case(), CudaTimer(CPU), ("wall", "graph"))
        assert list(one.visit()) == ["wall"]
        assert one.notes["graph"].status == "oom"
        assert one.uncapturable == ""

    def test_a_late_host_is_remarked_on_the_clock(self, make_case, gpu):
        """A `device` clock that could not hide the launches keeps its samples and says so."""
        gpu.behind = True
        one = visitor(make_case(), CudaTimer(CPU), ("device",))
        assert len(one.visit()["device"]) >= 1
        assert one.notes["device"].status == "ok"
        assert "queue" in one.notes["device"].reason

    def test_a_large_backward_graph_is_not_held(self, make_case, monkeypatch):
        """Saved tensors beyond the limit are dropped between visits and made again."""
        built = []

        def counting(*args):
            built.append(1)
            return bind(*args)

        monkeypatch.setattr("profiling.measure.visits.bind", counting)
        one = visitor(make_case(direction="bwd"), CpuTimer(), ("wall",), keep_bytes=0)
        one.visit()
        one.visit()
        assert len(built) == 3  # the warm-up and two visits

    def test_close_lets_go(self, make_case, gpu):
        """After closing nothing is held."""
        one = visitor(make_case(), CudaTimer(CPU), ("graph",))
        one.visit()
        one.close()
        assert one._graphs == {}
        assert one._bound is None


class _Graph:
    def __init__(self, gpu):
        self.gpu = gpu

    def replay(self):
        self.gpu.now_ms += 5.0
