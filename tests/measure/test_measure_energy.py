"""Energy of a call: exact on a pretended counter that moves in steps; elsewhere unknown, with a reason."""

import bisect
import math
import sys

import pytest
import torch

from profiling.case import Protocol
from profiling.measure import energy
from profiling.measure.block import Bench, PoisonedError
from profiling.measure.client import Client
from profiling.measure.energy import WINDOW_S, energy_of, energy_of_block
from profiling.measure.messages import CaseEnergy, EnergyRequest
from profiling.measure.process import Worker
from profiling.measure.telemetry import Telemetry
from tests.measure.test_measure_telemetry import Nvml


class PretendedBoard:
    """A GPU that works through its queue at `power_w`, idles at `idle_w`, and shows energy in steps.

    Time passes by `host_s` with every look at the clock and by `launch_s` with every call.
    """

    def __init__(self, call_s, power_w=700.0, step_s=0.1, idle_w=100.0, launch_s=1e-5, host_s=1e-4):
        self.call_s, self.power_w, self.step_s, self.idle_w = call_s, power_w, step_s, idle_w
        self.launch_s, self.host_s = launch_s, host_s
        self.time = 5.0
        self.ends = self.time  # of what is enqueued
        self.starts = []  # of each call

    def call(self):
        """Enqueue one call."""
        self.time += self.launch_s
        self.starts.append(max(self.ends, self.time))
        self.ends = self.starts[-1] + self.call_s

    def now(self):
        """The host's clock."""
        self.time += self.host_s
        return self.time

    def mark(self):
        """A mark at the end of the queue."""
        at = self.ends
        return lambda: self.time >= at

    def energy_mj(self):
        """The counter, as of the last step."""
        shown = math.floor(self.time / self.step_s) * self.step_s
        begun = bisect.bisect_right(self.starts, shown)
        last = min(shown - self.starts[begun - 1], self.call_s) if begun else 0.0
        busy = max(begun - 1, 0) * self.call_s + last
        return int(1e3 * (self.power_w * busy + self.idle_w * (shown - busy)))


class TestWindow:
    """What a window says."""

    @pytest.mark.parametrize("call_s", [5e-6, 1e-4, 3e-3, 0.05, 0.4])
    @pytest.mark.parametrize("step_s", [0.02, 0.1])
    def test_energy_is_power_times_the_length_of_a_call(self, call_s, step_s):
        """Short calls and long ones, quick counters and slow ones: within 2 % of what the board takes."""
        board = PretendedBoard(call_s, step_s=step_s, launch_s=min(1e-5, call_s / 2))
        found = energy_of(board.call, call_s, board)
        assert found.reason == ""
        assert found.energy_mj == pytest.approx(700e3 * call_s, rel=0.02)
        assert found.energy_window_s >= WINDOW_S

    def test_the_warm_up_does_not_count(self):
        """A board that takes twice the power at first: the window begins when that is over."""
        board = PretendedBoard(1e-3)
        began, counter = board.time, board.energy_mj
        board.energy_mj = lambda: counter() + int(700e3 * min(board.time - began, 0.9))
        assert energy_of(board.call, 1e-3, board).energy_mj == pytest.approx(700, rel=0.02)

    def test_a_wrong_guess_of_the_call_s_length_does_no_harm(self):
        """The length is for planning: a guess ten times off gives the same energy."""
        for guess in (1e-4, 1e-2):
            board = PretendedBoard(1e-3)
            assert energy_of(board.call, guess, board).energy_mj == pytest.approx(700, rel=0.03)

    def test_a_queue_is_kept(self):
        """The board never idles while it is measured: at no look are all marks passed."""
        board = PretendedBoard(1e-3)
        idle = []
        now = board.now
        board.now = lambda: idle.append(board.time > board.ends) or now()
        energy_of(board.call, 1e-3, board)
        assert not any(idle[2:])

    def test_calls_that_the_host_cannot_keep_up_with_include_the_gaps(self):
        """Launches longer than calls, as in the clock `pipelined`: energy is that of a call and its gap."""
        board = PretendedBoard(1e-5, launch_s=4e-5, host_s=0.0)
        found = energy_of(board.call, 4e-5, board)
        assert found.energy_mj == pytest.approx(1e3 * (700 * 1e-5 + 100 * 3e-5), rel=0.03)

    def test_few_steps_take_a_longer_window(self):
        """A counter that moves every 0.7 s is given the time for its steps."""
        board = PretendedBoard(1e-3, step_s=0.7)
        found = energy_of(board.call, 1e-3, board)
        assert found.energy_window_s > 3
        assert found.energy_mj == pytest.approx(700, rel=0.02)


class TestUnknown:
    """No number without a counter that can be believed; never 0."""

    def test_a_counter_that_stands_still(self):
        """Zero steps are no energy of zero."""
        board = PretendedBoard(1e-3)
        board.energy_mj = lambda: 1234
        found = energy_of(board.call, 1e-3, board)
        assert found.energy_mj is found.energy_window_s is None
        assert "did not move" in found.reason

    def test_a_counter_that_moves_too_seldom(self):
        """Two or three steps say little, and it says so."""
        board = PretendedBoard(1e-3, step_s=4.0)
        found = energy_of(board.call, 1e-3, board)
        assert found.energy_mj is None
        assert "moved only" in found.reason

    def test_a_counter_that_goes_backwards(self):
        """A driver that starts to count anew gives no negative energy."""
        board = PretendedBoard(1e-3)
        counter = board.energy_mj
        board.energy_mj = lambda: counter() if board.time < 6.5 else 5
        assert "backwards" in energy_of(board.call, 1e-3, board).reason

    @pytest.mark.parametrize("until", [0.0, 6.5])
    def test_a_counter_that_falls_silent(self, until):
        """From the start or in the middle."""
        board = PretendedBoard(1e-3)
        counter = board.energy_mj
        board.energy_mj = lambda: counter() if board.time < until else None
        assert "did not answer" in energy_of(board.call, 1e-3, board).reason

    def test_calls_that_take_too_long(self):
        """A window of ten such calls would take minutes: it is not begun."""
        board = PretendedBoard(60.0)
        assert "too long" in energy_of(board.call, 60.0, board).reason
        assert board.starts == []


class TestBlock:
    """A block in a worker."""

    @pytest.fixture
    def bench(self, monkeypatch, gpu, no_grad):
        """A bench that takes itself for one of a GPU; the energy of a call is always 7 mJ."""
        monkeypatch.setattr(energy, "energy_of", lambda call, call_s, meter: CaseEnergy(energy_mj=7.0))
        found = Bench(torch.device("cpu"), 0, Protocol(), Telemetry("GPU-aaaa", Nvml()))
        found.device = type("Device", (), {"type": "cuda"})()
        monkeypatch.setattr(energy, "inputs_of", lambda case, device, seed: _inputs(case, seed))
        monkeypatch.setattr(energy, "resolve", lambda case, device: _resolve(case))
        return found

    def test_a_failure_is_a_reason_and_the_others_go_on(self, bench, make_case, stand_ins):
        """Whatever a backend raises: no number, its words, and energies for its neighbours."""
        names = ("naive", f"{stand_ins}:oom", f"{stand_ins}:refuse", f"{stand_ins}:bug", "naive")
        stages = []
        request = EnergyRequest(cases=tuple(make_case(backend=name) for name in names))
        found = energy_of_block(bench, request, lambda *stage: stages.append(stage)).energies
        assert [x.energy_mj for x in found] == [7.0, None, None, None, 7.0]
        assert [x.reason.partition(":")[0] for x in found] == ["", "oom", "unsupported", "crashed", ""]
        assert [index for index, _ in stages] == [None, 0, 1, 2, 3, 4]

    @pytest.mark.parametrize("direction", ["fwd", "bwd", "fwd_bwd"])
    def test_every_direction(self, bench, make_case, direction):
        """Forward, backward alone, and both."""
        request = EnergyRequest(cases=(make_case(direction=direction),))
        assert energy_of_block(bench, request, lambda *_: None).energies[0].reason == ""

    def test_a_poisoned_device_ends_the_worker(self, bench, make_case, monkeypatch):
        """After an illegal access nothing on this device can be believed."""

        def poison(call, call_s, meter):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(energy, "energy_of", poison)
        with pytest.raises(PoisonedError, match="illegal memory access"):
            energy_of_block(bench, EnergyRequest(cases=(make_case(),)), lambda *_: None)

    def test_inputs_that_do_not_fit(self, bench, make_case, monkeypatch):
        """Then no case has an energy, and all say why."""

        def full(case, device, seed):
            raise torch.OutOfMemoryError("CUDA out of memory.")

        monkeypatch.setattr(energy, "inputs_of", full)
        found = energy_of_block(bench, EnergyRequest(cases=(make_case(), make_case())), lambda *_: None)
        assert {x.reason for x in found.energies} == {"CUDA out of memory."}

    def test_without_a_counter_nothing_is_called(self, bench, make_case):
        """A GPU whose counter cannot be had: the sentence of `no_energy`, for every case."""
        bench.telemetry = Telemetry("", Nvml())
        found = energy_of_block(bench, EnergyRequest(cases=(make_case(),)), lambda *_: None)
        assert found.energies[0].reason == bench.telemetry.problem

    def test_a_cpu_has_no_counter(self, make_case, no_grad):
        """It says so, and gives no number."""
        bench = Bench(torch.device("cpu"), 0, Protocol(), Telemetry(""))
        found = energy_of_block(bench, EnergyRequest(cases=(make_case(),)), lambda *_: None)
        assert "CPU" in found.energies[0].reason


# A worker without torch: the energy of a case is what its backend's name says.
SCRIPT = """
import os, signal, sys
from profiling.measure.messages import *
from profiling.records import Environment
reader, writer = os.fdopen(int(sys.argv[-2])), os.fdopen(int(sys.argv[-1]), "w", buffering=1)
say = lambda message: writer.write(message.model_dump_json() + "\\n")
reader.readline()
say(Hello(environment=Environment(device_kind="cpu", device_name="stand-in")))
for line in reader:
    request = TO_WORKER.validate_json(line)
    energies = []
    for index, case in enumerate(request.cases):
        say(Stage(index=index, name="energy"))
        if case.backend == "x:crash":
            os.kill(os.getpid(), signal.SIGABRT)
        if case.backend == "x:poison":
            say(Unclean(index=index, outcome=Outcome(status="crashed", reason="poisoned")))
            os._exit(1)
        known = case.backend == "naive"
        energies.append(
            CaseEnergy(energy_mj=case.seq_len_q, energy_window_s=1.5) if known else CaseEnergy(reason="no")
        )
    other = request.cases[0].backend == "x:answer"
    say(BlockResult(outcomes=()) if other else EnergyResult(energies=energies))
"""


class TestClient:
    """The parent's side."""

    def energies(self, cases):
        """What a client with stand-in workers finds, as (energy, reason), and how many it started."""
        started = []

        def spawn(device, process, protocol):
            started.append(process)
            return Worker(device, process, protocol, command=(sys.executable, "-c", SCRIPT))

        with Client("cpu", Protocol(processes=2), ("wall",), spawn=spawn) as client:
            found = client.energy(cases)
        assert [x.case for x in found] == list(cases)
        return [(x.energy_mj, x.energy_reason) for x in found], started

    def test_blocks_are_measured_in_the_first_process(self, make_case):
        """Cases of two shapes, in their order; the second process is not needed."""
        cases = [make_case(seq_len_q=n, backend=name) for n in (16, 32) for name in ("naive", "x:none")]
        assert self.energies(cases) == ([(16, ""), (None, "no"), (32, ""), (None, "no")], [0])

    @pytest.mark.parametrize(("what", "reason"), [("crash", "SIGABRT"), ("poison", "crashed: poisoned")])
    def test_who_ends_the_worker_has_no_energy(self, make_case, what, reason):
        """The guilty case says why, the innocent are measured by another worker, nothing is tried twice."""
        cases = [make_case(backend=name) for name in ("naive", f"x:{what}", "x:none")]
        found, started = self.energies(cases)
        assert found[0] == (16, "")
        assert found[1][0] is None
        assert reason in found[1][1]
        assert found[2] == (None, "no")
        assert started == [0, 0]

    def test_an_answer_to_another_question_is_none(self, make_case):
        """A result that is not of energies ends the worker; all cases say so."""
        found, _ = self.energies([make_case(backend="x:answer")])
        assert "no answer" in found[0][1]


def _inputs(case, seed):
    from profiling.measure.inputs import make_inputs

    return make_inputs(case, torch.device("cpu"), seed)


def _resolve(case):
    from profiling.measure.backends import resolve

    return resolve(case, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.usefixtures("no_grad")
def test_energy_on_a_gpu(make_case):
    """A counter that is there says 0.3 to 5 pJ a FLOP: an H200 was seen to take 1.1 (gpu_machine.md)."""
    device = torch.device("cuda:0")
    telemetry = Telemetry(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    if telemetry.no_energy():
        pytest.skip(telemetry.no_energy())
    shape = {"heads": 16, "kv_heads": 16, "seq_len_q": 4096, "seq_len_k": 4096}
    case = make_case(backend="sdpa_flash", dtype="bf16", head_dim=128, head_dim_v=128, **shape)
    bench = Bench(device, 0, Protocol(), telemetry)
    (found,) = energy_of_block(bench, EnergyRequest(cases=(case,)), lambda *_: None).energies
    assert found.reason == ""
    assert 0.3 < 1e9 * found.energy_mj / (4 * 16 * 4096**2 * 128) < 5
