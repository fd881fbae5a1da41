"""The tensors of a case: shapes in each layout, seeds, gradients, copies and bytes."""

import pytest
import torch

from profiling.case import PAGE_SIZE
from profiling.measure.inputs import alibi_slopes, clone_inputs, make_inputs
from profiling.model.memory import input_bytes

CPU = torch.device("cpu")
EVERYTHING = {"bias": True, "sinks": True, "alibi": True, "heads": 4, "kv_heads": 2, "head_dim_v": 5}


def test_the_same_for_all_processes(make_case):
    """The seed alone decides the values; another seed gives others."""
    case = make_case(direction="bwd", dtype="bf16", **EVERYTHING)
    a, b, c = (make_inputs(case, CPU, seed) for seed in (1, 1, 2))
    assert all(x is y is None or torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a.q, c.q)
    assert not torch.equal(a.q, a.dout)
    assert not torch.equal(a.bias, c.bias)


def test_features_leave_q_k_and_v_alone(make_case):
    """A case with a bias has the values of the plain one: only what is asked for differs."""
    plain, other = (make_inputs(make_case(**more), CPU, 0) for more in ({}, {"bias": True, "sinks": True}))
    assert all(torch.equal(getattr(plain, name), getattr(other, name)) for name in ("q", "k", "v", "dout"))


def test_what_a_feature_brings(make_case):
    """A bias for every head, query and key; a sink and a slope for every head; nothing unless asked for."""
    inputs = make_inputs(make_case(seq_len_q=6, seq_len_k=9, dtype="fp16", **EVERYTHING), CPU, 0)
    assert inputs.bias.shape == (1, 4, 6, 9)
    assert inputs.sinks.shape == inputs.slopes.shape == (4,)
    assert (inputs.bias.dtype, inputs.sinks.dtype) == (torch.float16, torch.float16)
    assert inputs.slopes.dtype == torch.float32
    assert inputs.dout.shape == (1, 4, 6, 5)
    assert make_inputs(make_case(), CPU, 0)[4:] == (None,) * 7


def test_slopes_are_the_papers():
    """Of 8 heads: 1/2, 1/4, ..., 1/256."""
    assert alibi_slopes(8, CPU).tolist() == [2.0**-i for i in range(1, 9)]


def test_packed_sequences(make_case):
    """Sequences lie end to end; the offsets are those of the case's lengths, the longest first."""
    case = make_case(layout="varlen", batch=5, seq_len_q=40, seq_len_k=80, heads=4, kv_heads=2, sinks=True)
    inputs = make_inputs(case, CPU, 0)
    assert case.lengths[0] == (40, 80)
    assert len(set(case.lengths)) == 5
    assert all(10 <= n_q <= 40 and 20 <= n_k <= 80 for n_q, n_k in case.lengths)
    assert inputs.cu_seqlens_q.diff().tolist() == [n for n, _ in case.lengths]
    assert inputs.cu_seqlens_k.diff().tolist() == [n for _, n in case.lengths]
    assert inputs.cu_seqlens_q.dtype == torch.int32
    assert inputs.q.shape == (inputs.cu_seqlens_q[-1], 4, 8)
    assert inputs.v.shape == (inputs.cu_seqlens_k[-1], 2, 8)
    assert inputs.dout.shape == inputs.q.shape


def test_a_paged_cache(make_case):
    """Each page belongs to one sequence, in no order; the last one may be part empty."""
    case = make_case(layout="paged", batch=3, seq_len_q=1, seq_len_k=2 * PAGE_SIZE + 5)
    inputs = make_inputs(case, CPU, 0)
    assert inputs.q.shape == (3, 2, 1, 8)
    assert inputs.k.shape == inputs.v.shape == (9, PAGE_SIZE, 2, 8)
    assert sorted(inputs.block_table.flatten().tolist()) == list(range(9))
    assert inputs.block_table.tolist() != [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert inputs.seq_lens.tolist() == [2 * PAGE_SIZE + 5] * 3


@pytest.mark.parametrize("layout", ["dense", "varlen", "paged"])
def test_an_empty_batch(make_case, layout):
    """No sequences give empty tensors and no error."""
    inputs = make_inputs(make_case(layout=layout, batch=0), CPU, 0)
    assert inputs.dout.numel() == inputs.q.numel() == 0


def test_gradients_only_where_asked_for(make_case):
    """A forward alone must not build a graph; a backward goes by all that is differentiable."""
    assert make_inputs(make_case(**EVERYTHING), CPU, 0).leaves == {}
    inputs = make_inputs(make_case(direction="bwd", **EVERYTHING), CPU, 0)
    assert list(inputs.leaves) == ["q", "k", "v", "bias", "sinks"]
    assert not inputs.slopes.requires_grad
    assert list(make_inputs(make_case(direction="fwd_bwd"), CPU, 0).leaves) == ["q", "k", "v"]


@pytest.mark.parametrize("layout", ["dense", "varlen", "paged"])
def test_clones_are_elsewhere(make_case, layout):
    """A clone has the values and the need for gradients, in other memory."""
    inputs = make_inputs(make_case(direction="bwd", layout=layout, batch=2, sinks=True), CPU, 0)
    other = clone_inputs(inputs)
    for x, y in zip(inputs, other, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert torch.equal(x, y)
            assert x.data_ptr() != y.data_ptr()
            assert y.is_leaf
            assert x.requires_grad == y.requires_grad


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"heads": 4, "kv_heads": 2, "seq_len_k": 30, "head_dim_v": 5},
        EVERYTHING,
        {"layout": "varlen", "batch": 3, "alibi": True, "sinks": True, "seq_len_q": 50, "seq_len_k": 70},
        {"layout": "paged", "batch": 2, "seq_len_k": 100, "kv_heads": 1, "head_dim_v": 4},
        {"layout": "varlen", "batch": 0},
    ],
)
def test_bytes_are_the_models(make_case, fields, direction):
    """What a graph's rotation counts is what `input_bytes` says; a forward does not read dO."""
    case = make_case(direction=direction, dtype="bf16", **fields)
    assert make_inputs(case, CPU, 0).read_bytes(direction) == input_bytes(case)


@pytest.mark.parametrize(
    "fields",
    [
        {"direction": "bwd", "dtype": "bf16", **EVERYTHING},
        {"layout": "varlen", "batch": 3, "sinks": True, "direction": "bwd"},
        {"layout": "paged", "batch": 2, "seq_len_k": 100},
    ],
)
def test_without_storage(make_case, monkeypatch, fields):
    """On `meta` the tensors are the same but for their values, and nothing draws any."""
    case = make_case(**fields)
    real = make_inputs(case, CPU, 0)
    monkeypatch.setattr(torch, "randn", None)
    for x, y in zip(real, make_inputs(case, torch.device("meta"), 0), strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert (y.device.type, y.shape, y.stride()) == ("meta", x.shape, x.stride())
            assert (y.dtype, y.requires_grad) == (x.dtype, x.requires_grad)
