"""The tiled algorithm's own state: what the lab will show is what the algorithm computed."""

import torch
from oracle import make_inputs

from fa_core import naive_attention
from fa_core.tiled import backward_tiles, forward_tiles


def _drain(tiles):
    states = []
    while True:
        try:
            states.append(next(tiles))
        except StopIteration as end:
            return states, end.value


def test_forward_states_tell_the_online_softmax():
    """Each tile's sum and output are the previous ones rescaled plus this tile's share; m never falls."""
    x = [t.double() for t in make_inputs(12, 20, 4)[:3]]
    states, result = _drain(forward_tiles(*x, causal=True, scale=0.5, block_m=4, block_n=8))
    for s in states:
        probs = torch.exp(s.scores - torch.where(s.row_max.isneginf(), 0.0, s.row_max)[..., None])
        torch.testing.assert_close(s.row_sum, s.row_sum_before * s.rescale + probs.sum(-1))
        torch.testing.assert_close(s.out, s.out_before * s.rescale[..., None] + probs @ x[2][:, :, s.cols])
        assert (s.row_max >= s.row_max_before).all()
        assert ((s.rescale >= 0) & (s.rescale <= 1)).all()
    torch.testing.assert_close(result.out, naive_attention(*x, causal=True, scale=0.5))


def test_causal_tiles_that_see_nothing_are_skipped():
    """Of a 16 x 16 causal score matrix in 4 x 4 tiles, the 10 on or below the diagonal are visited."""
    x = make_inputs(16, 16, 4)[:3]
    states, _ = _drain(forward_tiles(*x, causal=True, scale=1.0, block_m=4, block_n=4))
    assert len(states) == 10
    assert {(s.rows.start // 4, s.cols.start // 4) for s in states} == {
        (i, j) for i in range(4) for j in range(i + 1)
    }


def test_backward_states_sum_to_the_gradients():
    """The tiles' dscores, multiplied out, are the gradients that the backward returns."""
    x = make_inputs(9, 7, 4)
    q, k, v, dout = (t.double() for t in x)
    _, forward = _drain(forward_tiles(q, k, v, causal=False, scale=0.5, block_m=4, block_n=4))
    states, (dq, dk, dv) = _drain(
        backward_tiles(q, k, v, *forward, dout, None, causal=False, scale=0.5, block_m=4, block_n=4)
    )
    total = torch.zeros(2, 3, 9, 7, dtype=torch.float64, device=q.device)
    probs = torch.zeros_like(total)
    for s in states:
        total[:, :, s.rows, s.cols] = s.dscores
        probs[:, :, s.rows, s.cols] = s.probs
    torch.testing.assert_close(dq, 0.5 * total @ k)
    torch.testing.assert_close(dk, 0.5 * total.transpose(-1, -2) @ q)
    torch.testing.assert_close(dv, probs.transpose(-1, -2) @ dout)
