"""A block in a worker, here in the test's own process: outcomes for all cases, whatever each does."""

import pytest
import torch

from profiling.case import Protocol
from profiling.measure import block as block_module
from profiling.measure.block import Bench, PoisonedError
from profiling.measure.failures import classify
from profiling.measure.messages import BlockRequest, RehearsalRequest
from profiling.measure.telemetry import Telemetry

CPU = torch.device("cpu")
CLOCKS = ("wall", "pipelined")
GRADIENTS = {"out", "dq", "dk", "dv"}


@pytest.fixture
def bench(no_grad):
    """A worker's bench on this CPU: two rounds, no memory measurement."""
    protocol = Protocol(rounds=2, samples_per_round=2, warmup_ms=0, memory=False)
    return Bench(CPU, 1, protocol, Telemetry(""))


def measure(bench, cases, first=True, check=True, stages=None):
    """The outcomes of cases in one block; `stages` hears each step."""
    request = BlockRequest(cases=tuple(cases), clocks=CLOCKS, first=first, check=check)
    heard = [] if stages is None else stages
    return bench.measure(request, lambda index, name: heard.append((index, name))).outcomes


def test_outcomes_of_working_cases(bench, make_case, stand_ins):
    """Each case has samples on each clock, error, kernel, tile and the time of its first call."""
    backends = ("naive", "tiled", "sdpa_math", f"{stand_ins}:plain")
    outcomes = measure(bench, [make_case(backend=name, causal=True) for name in backends])
    for outcome in outcomes:
        assert outcome.status == "ok"
        assert {s.clock for s in outcome.samples} == set(CLOCKS)
        assert {s.round for s in outcome.samples} == {0, 1}
        assert {s.process for s in outcome.samples} == {1}
        assert outcome.first_call_ms > 0
        assert outcome.rel_error < 1e-5
        assert outcome.eager_rel_error < 1e-5
    assert [set(x.tensor_errors) for x in outcomes] == [
        {"out", "lse"},
        {"out", "lse"},
        {"out"},
        {"out"},
    ]
    assert [x.kernel for x in outcomes] == ["eager", "fa_core.tiled", "math", ""]
    assert [x.block_m for x in outcomes] == [None, 64, None, None]


@pytest.mark.parametrize("direction", ["bwd", "fwd_bwd"])
def test_gradients_are_checked(bench, make_case, direction):
    """In a backward all five tensors carry an error."""
    (outcome,) = measure(bench, [make_case(backend="tiled", direction=direction)])
    assert outcome.status == "ok"
    assert set(outcome.tensor_errors) == {"out", "lse", "dq", "dk", "dv"}


@pytest.mark.parametrize(
    ("fields", "tensors"),
    [
        ({"direction": "bwd", "bias": True, "causal": True}, {"out", "dq", "dk", "dv", "dbias"}),
        ({"direction": "fwd_bwd", "window_left": 4}, {"out", "dq", "dk", "dv"}),
        ({"alibi": True, "causal": True}, {"out"}),
        ({"layout": "paged", "seq_len_q": 1, "seq_len_k": 70, "batch": 2}, {"out"}),
    ],
)
def test_features_are_checked_and_timed(bench, make_case, fields, tensors):
    """A feature's every tensor has its error, in each backend that takes it."""
    cases = [make_case(backend=name, **fields) for name in ("naive", "tiled", "sdpa_math")]
    for case, outcome in zip(cases, measure(bench, cases), strict=True):
        assert outcome.status == "ok", outcome.reason
        assert set(outcome.tensor_errors) == tensors | ({"lse"} if case.backend != "sdpa_math" else set())
        assert outcome.rel_error < 1e-5
        assert outcome.samples


def test_packed_sequences_with_sinks(bench, make_case):
    """Packed sequences are measured where a backend takes them, and a row that says so elsewhere."""
    fields = {"layout": "varlen", "batch": 3, "sinks": True, "direction": "bwd"}
    naive, tiled, sdpa = measure(
        bench, [make_case(backend=name, **fields) for name in ("naive", "tiled", "sdpa_math")]
    )
    assert [x.status for x in (naive, tiled, sdpa)] == ["ok", "ok", "unsupported"]
    assert set(tiled.tensor_errors) == {"out", "lse", "dq", "dk", "dv", "dsinks"}


def test_rounds_are_shuffled_and_say_the_order(bench, make_case):
    """In each round every case has a place of its own."""
    backends = ("naive", "tiled", "sdpa_math", "sdpa_flash")
    outcomes = measure(bench, [make_case(backend=name) for name in backends])
    for number in (0, 1):
        places = [next(s.order for s in x.samples if s.round == number) for x in outcomes]
        assert sorted(places) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        ("oom", "oom", "64.00 GiB"),
        ("refuse", "unsupported", "head_dim of 7"),
        ("bug", "crashed", "ValueError: list index"),
        ("wrong", "incorrect", "out: max error"),
        ("no_such_function", "unsupported", "cannot be imported"),
    ],
)
def test_a_failure_is_an_outcome_and_the_others_are_measured(
    bench, make_case, stand_ins, function, status, reason
):
    """The case in the middle fails in its own way; its neighbours do not notice."""
    cases = [make_case(), make_case(backend=f"{stand_ins}:{function}"), make_case(backend="tiled")]
    before, bad, after = measure(bench, cases)
    assert (before.status, after.status) == ("ok", "ok")
    assert bad.status == status
    assert reason in bad.reason
    assert bad.samples == ()


def test_no_backward(bench, make_case, stand_ins):
    """A backend whose output has no gradient cannot take a backward."""
    (outcome,) = measure(bench, [make_case(backend=f"{stand_ins}:detached", direction="bwd")])
    assert outcome.status == "unsupported"
    assert "no backward" in outcome.reason


def test_what_a_cpu_cannot_do_is_unsupported(bench, make_case):
    """Backends of a GPU, and tiles that do not exist, are rows."""
    cases = [
        make_case(backend="flash"),
        make_case(tile_m=64, tile_n=64),
        make_case(backend="tiled", tile_m=17, tile_n=16),
    ]
    assert [x.status for x in measure(bench, cases)] == ["unsupported"] * 3


def test_a_failure_while_timing(bench, make_case, monkeypatch):
    """A case that fails in a round loses its samples; the others go on with the rest of theirs."""
    visit = block_module.Visitor.visit
    made = []

    def failing(self, *args):
        made.append(self.case.backend)
        if self.case.backend == "tiled" and made.count("tiled") == 2:
            raise torch.OutOfMemoryError("late")
        return visit(self, *args)

    monkeypatch.setattr(block_module.Visitor, "visit", failing)
    naive, tiled = measure(bench, [make_case(), make_case(backend="tiled")])
    assert (naive.status, tiled.status) == ("ok", "oom")
    assert {s.round for s in naive.samples} == {0, 1}
    assert tiled.samples == ()


def test_a_fatal_failure_poisons(bench, make_case, monkeypatch):
    """An illegal access is raised with its case: nothing after it in this process can be trusted."""

    def broken(q, k, v, **options):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("fa_core.attention", broken)
    with pytest.raises(PoisonedError) as caught:
        measure(bench, [make_case(), make_case(backend="tiled")])
    assert caught.value.index == 1
    assert caught.value.outcome.status == "crashed"
    assert "illegal memory access" in caught.value.outcome.reason


@pytest.mark.parametrize("step", ["inputs_of", "oracle.reference"])
def test_a_fatal_failure_of_what_is_shared_blames_no_case(bench, make_case, monkeypatch, step):
    """Where inputs or the reference cost the device, the worker must go, and the first case is not blamed."""

    def broken(*words):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(f"profiling.measure.block.{step}", broken)
    with pytest.raises(PoisonedError, match="illegal memory access") as caught:
        measure(bench, [make_case(), make_case(backend="tiled")])
    assert caught.value.index is None


def test_memory_that_does_not_come_back_poisons(bench, make_case, stand_ins, monkeypatch):
    """After an out-of-memory that leaks, the next case would fail for nothing: the worker must go."""
    held = iter([0, 0, 2**30])
    monkeypatch.setattr(block_module._BlockRun, "_allocated", lambda self: next(held))
    with pytest.raises(PoisonedError, match="did not come back"):
        measure(bench, [make_case(), make_case(backend=f"{stand_ins}:oom")])


def test_later_processes_only_time(bench, make_case):
    """Error, kernel and memory are found once, by the first process."""
    stages = []
    (outcome,) = measure(bench, [make_case()], first=False, stages=stages)
    assert outcome.status == "ok"
    assert outcome.tensor_errors == {}
    assert outcome.kernel == ""
    assert len(outcome.samples) > 0
    assert {name for _, name in stages} == {"clocks", "inputs", "prepare", "warm up", "time"}


def test_stages_are_told_before_they_are_taken(bench, make_case):
    """A death can be blamed: shared steps on none, each case's steps on the case."""
    stages = []
    measure(bench, [make_case(), make_case(backend="tiled")], stages=stages)
    assert stages[:3] == [(None, "clocks"), (None, "inputs"), (None, "reference")]
    assert stages[3:9] == [
        (0, "prepare"), (0, "check"), (0, "warm up"),
        (1, "prepare"), (1, "check"), (1, "warm up"),
    ]  # fmt: skip
    assert {index for index, name in stages[9:] if name == "time"} == {0, 1}


def test_an_unchecked_block_says_so(bench, make_case):
    """Where the reference cannot be had, rows are `ok` with a reason, and no error is claimed."""
    (outcome,) = measure(bench, [make_case()], check=False)
    assert outcome.status == "ok"
    assert "not checked" in outcome.reason
    assert outcome.rel_error is None


def test_a_reference_that_fails(bench, make_case, monkeypatch):
    """An oracle without memory leaves the block unchecked, not unmeasured."""

    def fail(*args):
        raise torch.OutOfMemoryError("too big")

    monkeypatch.setattr("profiling.measure.oracle.reference", fail)
    (outcome,) = measure(bench, [make_case()])
    assert outcome.status == "ok"
    assert "too big" in outcome.reason


def test_inputs_that_do_not_fit(bench, make_case, monkeypatch):
    """Where not even q, k and v fit, every case is out of memory."""

    def fail(*args):
        raise torch.OutOfMemoryError("no room for q")

    monkeypatch.setattr(block_module, "inputs_of", fail)
    outcomes = measure(bench, [make_case(), make_case(backend="tiled")])
    assert [x.status for x in outcomes] == ["oom", "oom"]
    assert "no room for q" in outcomes[0].reason


def test_a_prediction_spares_the_machine(bench, make_case, monkeypatch):
    """Scores far beyond a CPU's memory are `oom` before anything is allocated; small cases still run."""
    monkeypatch.setattr("profiling.measure.memory.available_bytes", lambda: 10 * 2**20)
    monkeypatch.setattr(block_module, "available_bytes", lambda: 10 * 2**20)
    shape = {"seq_len_q": 2048, "seq_len_k": 2048, "heads": 1, "kv_heads": 1}
    naive, flash = measure(bench, [make_case(**shape), make_case(backend="sdpa_flash", **shape)], check=False)
    assert naive.status == "oom"
    assert "MiB" in naive.reason
    assert flash.status == "ok"


@pytest.mark.parametrize("shape", [{"batch": 0}, {"seq_len_q": 0}, {"seq_len_k": 0}, {"seq_len_q": 1}])
def test_empty_shapes(bench, make_case, shape):
    """Nothing to attend to is measured like anything else."""
    (outcome,) = measure(bench, [make_case(**shape)])
    assert outcome.status == "ok"


def test_gqa_and_unequal_lengths(bench, make_case):
    """Grouped heads, Nq != Nk, causal: still right."""
    (outcome,) = measure(
        bench, [make_case(backend="tiled", heads=4, seq_len_q=10, seq_len_k=30, causal=True)]
    )
    assert outcome.status == "ok"
    assert outcome.rel_error < 1e-5


class TestRehearse:
    """First calls before the first block: nothing of them is kept or told."""

    def test_each_case_is_called_once(self, bench, make_case, stand_ins, monkeypatch):
        """With its backward where it has one; what raises or is refused does not keep the next from it."""
        called = []
        whole = block_module._first_call

        def first_call(backend, case, inputs):
            called.append(case)
            assert set(whole(backend, case, inputs)) == ({"out"} if case.direction == "fwd" else GRADIENTS)

        monkeypatch.setattr(block_module, "_first_call", first_call)
        bad = [make_case(backend=f"{stand_ins}:{name}") for name in ("oom", "bug", "refuse")]
        refused = make_case(layout="paged", direction="bwd")
        cases = (make_case(), *bad, refused, make_case(backend="tiled", direction="bwd"))
        bench.rehearse(RehearsalRequest(cases=cases, limit_s=60.0))
        assert called == [case for case in cases if case is not refused]

    def test_the_clocks_of_rows_are_made_later(self, bench, make_case, monkeypatch):
        """Those of a rehearsal met a busy device: a block makes its own, and measures as ever."""
        made = []
        whole = block_module.timer_for
        monkeypatch.setattr(block_module, "timer_for", lambda device: made.append(whole(device)) or made[-1])
        bench.rehearse(RehearsalRequest(cases=(make_case(),), limit_s=60.0))
        assert len(made) == 1
        (outcome,) = measure(bench, [make_case()])
        assert outcome.status == "ok"
        assert len(made) == 2
        assert bench.timer is made[1]

    def test_no_call_is_begun_after_the_limit(self, bench, make_case, monkeypatch):
        """By a clock that moves ten seconds a case: of five cases those that begin in time are called."""
        now = [0.0]
        called = []

        def first_call(backend, case, inputs):
            now[0] += 10.0
            called.append(case)

        monkeypatch.setattr(block_module, "_first_call", first_call)
        monkeypatch.setattr(block_module.time, "monotonic", lambda: now[0])
        cases = tuple(make_case(seq_len_q=n) for n in range(1, 6))
        bench.rehearse(RehearsalRequest(cases=cases, limit_s=25.0))
        assert called == list(cases[:3])

    def test_a_lost_device_ends_the_worker(self, bench, make_case, monkeypatch):
        """After such an error no later call can be trusted, so the process must not go on."""

        def lost(backend, case, inputs):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(block_module, "_first_call", lost)
        with pytest.raises(PoisonedError, match="illegal memory access") as caught:
            bench.rehearse(RehearsalRequest(cases=(make_case(),), limit_s=60.0))
        assert caught.value.index is None


class TestClassify:
    """From exceptions to statuses."""

    @pytest.mark.parametrize(
        ("error", "ours", "status", "fatal"),
        [
            (NotImplementedError("no"), False, "unsupported", False),
            (ValueError("tile"), True, "unsupported", False),
            (ValueError("tile"), False, "crashed", False),
            (torch.OutOfMemoryError("x"), True, "oom", False),
            (MemoryError(), True, "oom", False),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory: 5 bytes"), True, "oom", False),
            (RuntimeError("CUDA error: an illegal memory access"), True, "crashed", True),
            (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), True, "oom", True),
            (RuntimeError("shapes do not fit"), True, "crashed", False),
            (type("OutOfResources", (Exception,), {})("shared memory"), True, "unsupported", False),
        ],
    )
    def test_statuses(self, error, ours, status, fatal):
        """Each kind of exception has one status; only a lost context is fatal."""
        found = classify(error, ours=ours)
        assert (found.status, found.fatal) == (status, fatal)
        assert found.reason

    def test_reasons_are_one_short_line(self):
        """A page of compiler output is cut to its first line, bounded."""
        found = classify(RuntimeError("\n\n  first line\nsecond\n"), ours=True)
        assert found.reason == "RuntimeError: first line"
        assert len(classify(RuntimeError("x" * 10_000), ours=True).reason) < 400
