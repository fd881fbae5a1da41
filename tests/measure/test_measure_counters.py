"""Counting: each case gets its own call's kernels or a reason, whatever happens to the process."""

import os
import sys
from pathlib import Path

import pytest

from profiling.case import InputError
from profiling.measure import counters, ncu
from profiling.measure.counters import Ended, Note, Profiler, count, summed
from profiling.measure.ncu import Kernel, Report

HERE = Path(__file__).parent

# A process without torch: it notes what a real one would, and does to each case what its name says.
CHILD = """
import os, sys, time
from profiling.measure.counters import CountRequest, Note
request = CountRequest.model_validate_json(open(sys.argv[-2]).read())
if request.device == "cuda:8":
    print("Traceback ...\\nImportError: something is broken")
    sys.exit(1)
notes = open(sys.argv[-1], "ab", buffering=0)
def say(index, what, **more):
    notes.write(Note(index=index, what=what, **more).model_dump_json().encode() + b"\\n")
for index, case in enumerate(request.cases):
    say(index, "begin")
    if case.backend == "x:oom":
        say(index, "done", status="oom", reason="CUDA out of memory")
        continue
    if case.backend == "x:crash":
        os.abort()
    if case.backend == "x:hang":
        time.sleep(60)
    say(index, "call")
    if case.backend == "x:late":
        print("the call was lost", flush=True)
        os._exit(5)
    say(index, "done", kernel="k", block_m=128, block_n=64)
"""


@pytest.fixture
def profiler(tmp_path, monkeypatch):
    """Makes a profiler with the fake tool (in some mode) and the process above, or another."""
    tool = tmp_path / "ncu"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_ncu.py"} "$@"\n')
    tool.chmod(0o755)
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]))

    def make(mode="", device="cuda:0", command=(sys.executable, str(child))):
        monkeypatch.setenv("FAKE_NCU", mode)
        return Profiler(device, 0, str(tool), command)

    return make


@pytest.fixture
def counted(make_case):
    """Counts cases given by backend; the results by backend, and how they were spread over processes."""

    def run(profiler, *backends, **fields):
        cases = [make_case(backend=name, **fields) for name in backends]
        parts = list(count(cases, profiler.launch))
        found = [x for part in parts for x in part]
        assert sorted(x.case.backend for x in found) == sorted(backends)  # each once
        return {x.case.backend: x for x in found}, [len(part) for part in parts]

    return run


class TestCount:
    """`count` with a tool that is a fake, and processes that are real."""

    def test_kernels_of_a_call_are_summed(self, profiler, counted):
        """Bytes by addition, the tensor pipe by time; the mark and other cases' kernels play no part."""
        found, parts = counted(profiler(), "x:one", "x:three", "naive")
        one, three = found["x:one"].addition, found["x:three"].addition
        assert (one.dram_read_bytes, one.dram_write_bytes, one.l2_bytes) == (1000, 200, 5000)
        assert one.tensor_pipe_pct == 80.0
        assert (three.dram_read_bytes, three.dram_write_bytes, three.l2_bytes) == (1037, 205, 5611)
        assert three.tensor_pipe_pct == pytest.approx((80 * 300 + 20 * 100) / 1000)
        assert found["naive"].addition.dram_read_bytes == 1037
        assert (found["naive"].n_kernels, found["naive"].n_passes) == (3, 3)
        assert found["x:one"].note.block_m == 128
        assert parts == [3]  # one process

    def test_caches_by_the_number_of_kernels(self, profiler, counted):
        """A fused forward is flushed by the tool; eager and backward kernels find what was left."""
        found, _ = counted(profiler(), "flash", "naive")
        assert (found["flash"].caches, found["naive"].caches) == ("all", "none")
        found, _ = counted(profiler(), "flash", direction="bwd")
        assert found["flash"].caches == "none"

    @pytest.mark.parametrize("backend", ["flash", "flash_portable", "flash_hopper"])
    def test_each_name_of_flash_has_a_forward_of_one_kernel(self, make_case, backend):
        """Its caches are controlled at every pass; a backward of several kernels is counted without."""
        asked = []

        def launch(cases, caches):
            asked.extend((case.direction, caches) for case in cases)
            raise InputError("enough")

        for direction in ("fwd", "bwd"):
            with pytest.raises(InputError, match="enough"):
                next(count([make_case(backend=backend, direction=direction)], launch))
        assert asked == [("fwd", "all"), ("bwd", "none")]

    def test_a_forward_of_several_kernels_is_counted_again(self, make_case):
        """Flushing between its kernels would count what it never moves."""
        asked = []

        def launch(cases, caches):
            asked.append((len(cases), caches))
            kernels = [Kernel("spin_kernel(long)", {}), *[Kernel("k", {"l2_bytes": 5.0})] * 2] * len(cases)
            notes = [
                Note(index=i, what=what) for i in range(len(cases)) for what in ("begin", "call", "done")
            ]
            return Ended(tuple(notes), Report(tuple(kernels)))

        (found,) = [x for part in count([make_case(backend="flash")], launch) for x in part]
        assert asked == [(1, "all"), (1, "none")]
        assert (found.caches, found.addition.l2_bytes) == ("none", 10)

    @pytest.mark.parametrize("mode", ["", "mute"])
    @pytest.mark.parametrize("guilty", ["x:crash", "x:late"])
    def test_a_death_costs_one_case(self, profiler, counted, mode, guilty):
        """The guilty case is a row that says how; the others are counted, before and after it."""
        found, _ = counted(profiler(mode), "x:one", guilty, "x:three")
        assert found[guilty].status == "crashed"
        assert "exit code" in found[guilty].reason
        assert found[guilty].addition is None
        assert found["x:one"].addition.dram_read_bytes == 1000
        assert found["x:three"].addition.dram_read_bytes == 1037
        if guilty == "x:late":
            assert "the call was lost" in found[guilty].reason

    def test_out_of_memory_is_its_own_row(self, profiler, counted):
        """A case that failed by itself ends no process and takes nobody's kernels."""
        found, parts = counted(profiler(), "x:one", "x:oom", "x:three")
        assert (found["x:oom"].status, found["x:oom"].reason) == ("oom", "CUDA out of memory")
        assert found["x:three"].addition.dram_read_bytes == 1037
        assert parts == [3]

    def test_a_hang_is_ended(self, profiler, counted, monkeypatch):
        """Where nothing is noted for too long the process is killed, and the case is a timeout."""
        monkeypatch.setattr(counters, "CASE_TIMEOUT_S", 2.0)
        found, _ = counted(profiler(), "x:one", "x:hang", "x:three")
        assert found["x:hang"].status == "timeout"
        assert "took more than 2 s" in found["x:hang"].reason
        assert found["x:one"].addition is not None
        assert found["x:three"].addition is not None

    def test_a_report_with_a_gap_counts_nothing(self, profiler, counted):
        """A sum that lacks a kernel is no number."""
        found, _ = counted(profiler("lossy"), "x:one", "x:three")
        assert {x.status for x in found.values()} == {"crashed"}
        assert "missing in Nsight Compute's report" in found["x:one"].reason

    @pytest.mark.parametrize(
        ("mode", "said"),
        [
            ("permission", "NVreg_RestrictProfilingToAdminUsers=0"),
            ("old", "too old"),
            ("error", "The GPU is too new"),
        ],
    )
    def test_refused_where_nothing_can_be_counted(self, profiler, counted, mode, said):
        """One sentence, before anything is written."""
        with pytest.raises(InputError, match=said):
            counted(profiler(mode), "x:one")

    def test_a_process_that_cannot_start(self, profiler, counted):
        """Its last words are in the sentence."""
        with pytest.raises(InputError, match="ImportError: something is broken"):
            counted(profiler(device="cuda:8"), "x:one")

    def test_without_the_tool(self, profiler, counted, monkeypatch, tmp_path):
        """Not installed, and gone since."""
        monkeypatch.setattr(ncu, "find", lambda: None)
        with pytest.raises(InputError, match="there is no ncu on PATH"):
            Profiler.here("cuda:0", 0)
        made = profiler()
        (tmp_path / "ncu").unlink()
        with pytest.raises(InputError, match="cannot be run: No such file"):
            counted(made, "x:one")

    def test_nothing_is_left_running(self, profiler, make_case, monkeypatch):
        """Ctrl-C ends the tool and what it profiles."""
        monkeypatch.setattr(counters, "_LOOK_EVERY_S", 0.05)
        made = profiler()
        pids = []

        class Impatient(counters.subprocess.Popen):
            def wait(self, timeout=None):
                if timeout is not None and not pids:
                    pids.append(self.pid)
                    raise KeyboardInterrupt
                return super().wait(timeout)

        monkeypatch.setattr(counters.subprocess, "Popen", Impatient)
        with pytest.raises(KeyboardInterrupt):
            made.launch([make_case(backend="x:hang")], "all")
        with pytest.raises(ProcessLookupError):
            os.killpg(pids[0], 0)


class TestSummed:
    """`summed`: what one kernel lacks is unknown for the call."""

    def test_a_missing_counter(self, make_case):
        """The others stay."""
        whole = {"dram_read_bytes": 1.0, "l2_bytes": 2.0, "tensor_pipe_pct": 50.0, "duration_ns": 10.0}
        lacking = {"dram_read_bytes": None, "l2_bytes": 3.0, "duration_ns": 10.0}
        addition = summed(make_case(), [Kernel("a", dict(whole)), Kernel("b", dict(lacking))])
        assert addition.dram_read_bytes is None
        assert addition.dram_write_bytes is None
        assert addition.l2_bytes == 5
        assert addition.tensor_pipe_pct is None

    def test_a_real_zero_stays(self, make_case):
        """Nothing written to DRAM is a finding, not an unknown."""
        kernel = Kernel("a", {"dram_write_bytes": 0.0, "tensor_pipe_pct": 0.0, "duration_ns": 5.0})
        addition = summed(make_case(), [kernel])
        assert addition.dram_write_bytes == 0
        assert addition.tensor_pipe_pct == 0.0

    def test_a_gpu_without_any_of_them(self, make_case):
        """Then the case says so."""

        def launch(cases, caches):
            kernels = (Kernel("spin_kernel(long)", {}), Kernel("k", {"duration_ns": 3.0}))
            notes = tuple(Note(index=0, what=what) for what in ("begin", "call", "done"))
            return Ended(notes, Report(kernels))

        (found,) = [x for part in count([make_case()], launch) for x in part]
        assert "none of the counters" in found.reason


def test_the_real_process_on_a_cpu(profiler, counted, stand_ins, monkeypatch):
    """It calls every case in both directions, notes what happens, and outlives what fails."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))
    made = profiler(device="cpu", command=(sys.executable, "-m", "profiling.measure.counted"))
    names = ("naive", "tiled", f"{stand_ins}:oom", f"{stand_ins}:bug", f"{stand_ins}:segfault", "sdpa_math")
    found, _ = counted(made, *names, direction="bwd")
    assert found["naive"].addition.dram_read_bytes == 1037
    assert found["tiled"].note.block_m is not None
    assert found["sdpa_math"].note.kernel == "math"
    assert found[f"{stand_ins}:oom"].status == "oom"
    assert found[f"{stand_ins}:bug"].status == "crashed"
    assert "list index went missing" in found[f"{stand_ins}:bug"].reason
    assert found[f"{stand_ins}:segfault"].status == "crashed"


def test_a_process_whose_parent_is_gone_ends(tmp_path, make_case):
    """Its lock is free then: it makes no further call."""
    from profiling.measure import counted as module

    gone = counters.subprocess.Popen(["true"])
    gone.wait()
    request = counters.CountRequest(device="cpu", seed=0, cases=(make_case(),), parent=gone.pid)
    (tmp_path / "request.json").write_text(request.model_dump_json())
    notes = tmp_path / "notes.jsonl"
    done = counters.subprocess.run([sys.executable, "-m", module.__name__, tmp_path / "request.json", notes])
    assert done.returncode == 0
    assert notes.read_bytes() == b""
