"""A real worker: its own process, with torch, spoken to through pipes."""

import pytest

from profiling.case import Protocol
from profiling.measure.client import Client

PROTOCOL = Protocol(
    clocks=("wall",), processes=1, rounds=2, samples_per_round=1, warmup_ms=0, memory=False, timeout_s=60
)


def test_faults_of_all_kinds_in_one_block(make_case, stand_ins):
    """Printing, segmentation faults at once and while timing, no memory: the innocent are measured."""
    names = ("naive", "chatty", "segfault", "oom", "late_segfault", "plain")
    block = [make_case(backend=name if name == "naive" else f"{stand_ins}:{name}") for name in names]
    with Client(
        "cpu",
        PROTOCOL,
        ("wall",),
        kernel_hash=lambda backend, operation: f"hash of {backend} for {operation}",
    ) as client:
        assert client.start().device_kind == "cpu"
        rows = client.measure(block)
    assert [row.status for row in rows] == ["ok", "ok", "crashed", "oom", "crashed", "ok"]
    assert "SIGSEGV" in rows[2].reason
    assert "'prepare'" in rows[2].reason
    assert "SIGSEGV" in rows[4].reason
    for row in (rows[0], rows[1], rows[5]):
        assert len(row.samples) == 2
        assert row.rel_error == pytest.approx(row.eager_rel_error, rel=1e-3)
        assert row.clocks[0].latency_p50_ms > 0
        assert row.kernel_hash == f"hash of {row.case.backend} for attention"


def test_a_rehearsal_leaves_a_worker_as_good_as_new(make_case):
    """Both make first calls, one of which they have to refuse; then both measure as ever."""
    two = PROTOCOL.model_copy(update={"processes": 2})
    calls = [make_case(backend="flash"), make_case(backend="sdpa_math", direction="bwd")]
    with Client("cpu", two, ("wall",)) as client:
        client.start()
        started = dict(client._workers)
        with client.rehearsal(calls):
            pass
        assert client._workers == started
        (row,) = client.measure([make_case(backend="sdpa_math")])
        assert client._workers == started
    assert row.status == "ok"
    assert [sample.process for sample in row.samples] == [0, 0, 1, 1]
