"""A trace is the tile algorithm's own state after every tile, on an input small enough to look at."""

from __future__ import annotations

import json

import pytest
import torch

from fa_core import tiled_attention
from profiling.case import InputError
from profiling.lab import trace as lab
from profiling.lab.trace import Walk, trace

WALKS = (
    Walk(),
    Walk(seq_len=16, head_dim=4, block_m=4, block_n=8, causal=True, seed=3),
    Walk(seq_len=13, head_dim=3, block_m=4, block_n=5, causal=True),
    Walk(seq_len=7, head_dim=2, block_m=16, block_n=2),
    Walk(seq_len=1, head_dim=1, block_m=1, block_n=1, causal=True),
)


def of(found, direction):
    """The steps of one direction."""
    return [step for step in found["steps"] if step["direction"] == direction]


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_the_outputs_are_those_of_tiled_attention(walk):
    """Output and gradients have the bits that `tiled_attention` gives for the same inputs."""
    found = trace(walk)
    generator = torch.Generator().manual_seed(walk.seed)
    drawn = torch.randn((4, 1, 1, walk.seq_len, walk.head_dim), generator=generator)
    leaves = [x.clone().requires_grad_() for x in drawn[:3]]
    out = tiled_attention(*leaves, causal=walk.causal, block_m=walk.block_m, block_n=walk.block_n)
    gradients = torch.autograd.grad(out, leaves, drawn[3])
    expected = dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *gradients), strict=True))
    for name, tensor in expected.items():
        assert found["outputs"][name] == lab._listed(tensor), name
    assert max(found["rel_error"].values()) < 1e-6


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_each_step_begins_where_the_last_one_of_its_queries_ended(walk):
    """Maximum, sum and output: before a tile what they were after the one before; new queries begin empty."""
    before = None
    for step in of(trace(walk), "fwd"):
        if before is None or before["rows"] != step["rows"]:
            assert set(step["row_sum_before"]) == {0.0}
            assert set(step["row_max_before"]) == {None}
        else:
            for name in ("row_max", "row_sum", "out"):
                assert step[f"{name}_before"] == before[name], name
        before = step


def test_the_backwards_steps_are_copies():
    """The sums go on growing while they are walked: the first tile of a query has less than the last."""
    found = trace(Walk(seq_len=16, head_dim=4, block_m=8, block_n=4))
    own = [step for step in of(found, "bwd") if step["rows"] == [0, 8]]
    assert len({json.dumps(step["dq"]) for step in own}) == len(own) == 4
    assert own[-1]["dq"] == found["outputs"]["dq"][:8]


@pytest.mark.parametrize(
    ("walk", "tiles"),
    [(Walk(seq_len=64), 64), (Walk(seq_len=64, causal=True), 36), (Walk(seq_len=9, block_m=4), 6)],
)
def test_a_tile_is_a_step_in_both_directions(walk, tiles):
    """Tiles that the mask empties are no step."""
    found = trace(walk)
    assert len(of(found, "fwd")) == len(of(found, "bwd")) == tiles


def test_seeds_differ_and_json_holds_it_all():
    """The same seed gives the same trace, and it survives JSON without a NaN."""
    first, again, other = (trace(Walk(seq_len=8, causal=True, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert first["inputs"] != other["inputs"]
    assert json.loads(json.dumps(first, allow_nan=False)) == first


@pytest.mark.parametrize(
    ("walk", "said"),
    [
        (Walk(seq_len=0), "seq_len of a trace must be from 1 to 128, got 0"),
        (Walk(seq_len=129), "from 1 to 128, got 129"),
        (Walk(head_dim=65), "head_dim of a trace must be from 1 to 64, got 65"),
        (Walk(block_m=0), "block_m"),
        (Walk(block_n=-1), "block_n"),
        (Walk(seq_len=128, block_m=4), "at most 256 tiles, but 128 .* 4 x 8 are 512"),
        (Walk(seed=-1), "seed of a trace must be from 0"),
    ],
)
def test_what_cannot_be_shown_is_refused(walk, said):
    """One sentence: what it is and what is allowed."""
    with pytest.raises(InputError, match=said):
        trace(walk)
