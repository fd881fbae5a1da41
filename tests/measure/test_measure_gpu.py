"""On a GPU: every feature in every backend that has it is right and timed, and refused in words elsewhere."""

import pytest
import torch

from profiling.case import Protocol
from profiling.measure.block import Bench
from profiling.measure.messages import BlockRequest
from profiling.measure.telemetry import Telemetry

BACKENDS = ("naive", "flash", "sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math", "flex")
FEATURES = {
    "plain": {"causal": True},
    "window": {"causal": True, "window_left": 100},
    "two-sided window": {"window_left": 100, "window_right": 30},
    "softcap": {"causal": True, "softcap": 30.0},
    "bias": {"bias": True},
    "sinks": {"causal": True, "sinks": True},
    "alibi": {"causal": True, "alibi": True},
    "shared heads": {"causal": True, "kv_heads": 2},
    "values narrower": {"causal": True, "head_dim": 128, "head_dim_v": 64},
    "varlen": {"causal": True, "layout": "varlen", "batch": 3},
    "decode": {"seq_len_q": 1, "kv_heads": 2, "batch": 2},
    "paged": {"seq_len_q": 1, "kv_heads": 2, "batch": 2, "layout": "paged"},
}


@pytest.mark.gpu
@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("name", FEATURES)
def test_features_on_a_gpu(make_case, name, direction):
    """naive and flash take everything, each other backend what it has; whatever runs is within the rule."""
    shape = {"heads": 4, "kv_heads": 4, "seq_len_q": 500, "seq_len_k": 500, "head_dim": 64, "head_dim_v": 64}
    fields = shape | {"dtype": "bf16", "direction": direction} | FEATURES[name]
    if direction == "bwd" and fields.get("layout") == "paged":
        pytest.skip("a paged cache has no backward")
    device = torch.device("cuda:0")
    protocol = Protocol(rounds=2, samples_per_round=2, warmup_ms=0)
    clocks = ("wall", "device", "graph")
    with torch.cuda.stream(torch.cuda.Stream(device)):  # a graph cannot be captured on the default one
        bench = Bench(device, 1, protocol, Telemetry(""))
        cases = tuple(make_case(backend=backend, **fields) for backend in BACKENDS)
        outcomes = bench.measure(
            BlockRequest(cases=cases, clocks=clocks, first=True), lambda index, stage: None
        ).outcomes
    found = {case.backend: outcome for case, outcome in zip(cases, outcomes, strict=True)}
    said = {backend: f"{outcome.status}: {outcome.reason}" for backend, outcome in found.items()}
    assert found["naive"].status == found["flash"].status == "ok", said
    assert {outcome.status for outcome in found.values()} <= {"ok", "unsupported"}, said
    assert all(outcome.reason for outcome in found.values() if outcome.status == "unsupported"), said
    flex = "unsupported" if fields.get("layout") == "paged" else "ok"
    assert found["flex"].status == flex, said
    for backend, outcome in found.items():
        if outcome.status == "ok":
            assert {sample.clock for sample in outcome.samples} == set(clocks), (backend, outcome.clocks)
            assert outcome.peak_mem_bytes is not None
