"""Clocks: what is called, how often, and what is divided by what."""

import statistics

import pytest
import torch

from profiling.case import CLOCKS
from profiling.measure.clocks import CpuTimer, CudaTimer, timer_for, warm_up

CUDA = torch.device("cpu")  # the pretended GPU's tensors stay here


class TestCpu:
    """The host's own clock."""

    def test_wall_takes_samples_times_calls(self):
        """A sample of `wall` is one number, whatever the number of calls behind it."""
        made = []
        found = CpuTimer().wall(lambda: made.append(1), samples=3, calls=4)
        assert len(found.ms) == 3
        assert len(made) == 12
        assert all(ms >= 0 for ms in found.ms)

    def test_wall_is_the_median_of_its_calls(self, monkeypatch):
        """One disturbed call among three does not move the sample."""
        ticks = iter([0, 1_000_000, 10, 50_000_010, 20, 2_000_020])
        timer = CpuTimer()
        monkeypatch.setattr("time.perf_counter_ns", lambda: next(ticks))
        assert timer.wall(lambda: None, samples=1, calls=3).ms == [2.0]

    def test_pipelined_divides_by_calls(self, monkeypatch):
        """`pipelined` is the time of all calls over their number."""
        ticks = iter([0, 10_000_000])
        timer = CpuTimer()
        monkeypatch.setattr("time.perf_counter_ns", lambda: next(ticks))
        assert timer.pipelined(lambda: None, samples=1, calls=5).ms == [2.0]

    def test_timer_for_a_cpu(self):
        """A CPU gets the two clocks it has, each with a floor and a step."""
        timer = timer_for(torch.device("cpu"))
        assert set(timer.floor_ms) == set(timer.resolution_ms) == {"wall", "pipelined"}
        assert all(0 < step < 1 for step in timer.resolution_ms.values())


class TestWarmUp:
    """The estimate that plans everything else."""

    def test_calls_once_at_least(self):
        """A warm-up of no length is still one call: without it nothing could be planned."""
        made = []
        call_ms, host_ms = warm_up(lambda: made.append(1), CpuTimer(), 0.0)
        assert len(made) == 1
        assert 0 <= host_ms <= call_ms

    @pytest.mark.parametrize(
        ("times_ms", "calls"),
        [
            ([4.0] * 99, 6),  # the time has passed after three, and six show that it is level
            ([0.5] * 99, 20),  # level from the start: the time alone decides
            ([8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 4.0, 4.0, 4.0], 9),  # until it gets no faster
            ([60.0, 50.0, 40.0, 30.0], 2),  # ten times what was asked for is enough
        ],
    )
    def test_goes_on_until_the_time_has_passed_and_calls_are_level(self, monkeypatch, times_ms, calls):
        """A warm-up of 10 ms: by the clock, by what calls take, and never beyond ten times as long."""
        timer = CpuTimer()
        clock = [0.0]
        monkeypatch.setattr("time.perf_counter_ns", lambda: clock[0] * 1e6)
        waiting = iter(times_ms)
        made = []

        def call():
            made.append(next(waiting))
            clock[0] += made[-1]

        call_ms, host_ms = warm_up(call, timer, 10.0)
        assert len(made) == calls
        assert call_ms == host_ms == pytest.approx(min(made))


class TestCuda:
    """The GPU's clocks, on a pretended GPU."""

    def test_cold_times_each_call_between_its_own_events(self, gpu):
        """The `device` clock reads the call alone, not the flush before it nor the others."""
        timer = CudaTimer(CUDA)

        def call():
            gpu.now_ms += 0.25

        found = timer.cold(call, samples=3, calls=5, host_ms=0.01)
        assert found.ms == pytest.approx([0.251] * 3)
        assert found.remark == ""

    def test_cold_empties_l2_before_each_call(self, gpu, monkeypatch):
        """A buffer of twice the L2 is written, so that all else goes, and then read, so that it is clean."""
        timer = CudaTimer(CUDA)
        assert timer._flush.numel() * 4 == 2 * 1024
        done = []
        zero, add_up = torch.Tensor.zero_, torch.sum
        monkeypatch.setattr(torch.Tensor, "zero_", lambda x: done.append(("write", x)) or zero(x))
        monkeypatch.setattr(torch, "sum", lambda x, **to: done.append(("read", x)) or add_up(x, **to))
        timer.cold(lambda: done.append(("call", None)), samples=2, calls=3, host_ms=0.01)
        assert [what for what, _ in done] == ["write", "read", "call"] * 6
        assert all(x is timer._flush for _, x in done if x is not None)

    def test_cold_holds_the_queue_for_longer_than_enqueueing_takes(self, gpu):
        """The GPU spins first: at least as long as the host needs for all calls."""
        timer = CudaTimer(CUDA)
        gpu.cycles.clear()
        timer.cold(lambda: None, samples=2, calls=5, host_ms=0.3)
        (cycles,) = gpu.cycles
        assert cycles / timer._cycles_per_ms > 10 * 0.3

    def test_cold_tries_again_and_says_so_where_the_host_is_late(self, gpu):
        """A GPU that ran dry spoils the clock: held longer twice, then remarked."""
        timer = CudaTimer(CUDA)
        gpu.behind = True
        gpu.cycles.clear()
        found = timer.cold(lambda: None, samples=1, calls=2, host_ms=0.1)
        assert gpu.cycles == sorted(gpu.cycles)
        assert len(gpu.cycles) == 3
        assert "queue" in found.remark
        assert len(found.ms) == 1

    def test_replay_divides_by_the_copies(self, gpu):
        """A replay of ten copies counts as one call's tenth."""
        timer = CudaTimer(CUDA)
        graph = timer.capture([lambda: None] * 10)
        gpu.replays = 0
        found = timer.replay(graph, copies=10, samples=4)
        assert gpu.replays == 4
        assert found.ms == pytest.approx([0.5001] * 4)

    def test_an_l2_of_unknown_size_is_assumed(self, gpu, monkeypatch):
        """A device that does not tell its L2 is flushed all the same."""
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: object())
        assert CudaTimer(CUDA).l2_bytes == 64 * 2**20

    def test_floors_are_what_an_empty_kernel_reads(self, gpu):
        """Each of a GPU's clocks has one; `device` reads an empty kernel between two events."""
        timer = CudaTimer(CUDA)
        assert set(timer.floor_ms) == set(timer.resolution_ms) == set(CLOCKS)
        assert timer.floor_ms["device"] == pytest.approx(0.001)

    def test_the_step_of_events_is_found_by_the_events_themselves(self, gpu, monkeypatch):
        """A clock that ticks every half microsecond shows it, whatever is timed with it."""
        whole = torch.cuda.Event.elapsed_time
        monkeypatch.setattr(
            torch.cuda.Event, "elapsed_time", lambda a, b: round(whole(a, b) / 0.0005) * 0.0005
        )
        assert CudaTimer(CUDA).resolution_ms["device"] == pytest.approx(0.0005)

    def test_calibration_takes_the_fastest(self, gpu):
        """The spinning kernel's rate comes from the busy GPU: a million cycles a millisecond here."""
        timer = CudaTimer(CUDA)
        assert timer._cycles_per_ms == pytest.approx(1e6, rel=0.01)
        assert statistics.median(timer.wall(lambda: None, 3, 1).ms) >= 0


@pytest.mark.gpu
class TestOnAGpu:
    """The same on a real one."""

    def test_device_clock_sees_less_than_wall(self):
        """A tiny kernel takes less on the device than with its launch; both are positive."""
        device = torch.device("cuda:0")
        with torch.cuda.stream(torch.cuda.Stream(device)):
            timer = CudaTimer(device)
            x = torch.zeros(16, device=device)
            call_ms, host_ms = warm_up(lambda: x.add_(1), timer, 5.0)
            cold = timer.cold(lambda: x.add_(1), 3, 5, host_ms)
            wall = timer.wall(lambda: x.add_(1), 3, 5)
        assert cold.remark == ""
        assert 0 < statistics.median(cold.ms) < statistics.median(wall.ms)
        assert call_ms > 0

    def test_graph_replays_a_backward(self):
        """A backward on a retained graph can be captured when both ran on the measuring stream."""
        device = torch.device("cuda:0")
        with torch.cuda.stream(torch.cuda.Stream(device)):
            timer = CudaTimer(device)
            x = torch.randn(64, 64, device=device, requires_grad=True)
            y = (x @ x).softmax(-1)
            dy = torch.randn_like(y)

            def backward():
                return torch.autograd.grad(y, x, dy, retain_graph=True)

            backward()
            graph = timer.capture([backward] * 10)
            assert 0 < timer.replay(graph, 10, 1).ms[0] < 1
