"""The tile algorithm step by step: what `fa_core.tiled` holds after each tile, on a small input, as JSON.

Nothing is computed anew here: each step is the state that `fa_core.tiled` yields, which is what
`tiled_attention` itself runs through.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from fa_core import naive_attention
from fa_core.band import make_band
from fa_core.scores import ScoreRule
from fa_core.tiled import BackwardTile, Forward, ForwardTile, Gradients, backward_tiles, forward_tiles
from profiling.case import InputError

SCHEMA = 1
MOST_SEQ_LEN, MOST_HEAD_DIM, MOST_TILES = 128, 64, 256
DIGITS = 5  # significant; for the eye


class Walk(NamedTuple):
    """What is walked: one head of N queries and keys, in fp32."""

    seq_len: int = 32
    head_dim: int = 8
    block_m: int = 8
    block_n: int = 8
    causal: bool = False
    seed: int = 0


def trace(walk: Walk) -> dict[str, Any]:
    """Run forward and backward of q, k, v and dO from a standard normal, and keep every tile's state.

    Returns:
        The fields of `walk`; `schema`; `inputs` (q, k, v, dout: N lists of d numbers); `steps`, one a tile,
        forward first (`direction` fwd or bwd, `rows` and `cols` as [first, end), and the fields of
        `ForwardTile` or `BackwardTile` as lists of rows); `outputs` (out, row_max, row_log_sum, dq, dk, dv);
        and `rel_error` (out, dq, dk, dv against `naive_attention` in fp64). Numbers have `DIGITS` digits;
        -inf is None.

    Raises:
        InputError: a side is below 1, or the walk is longer than can be shown.
    """
    check(walk)
    generator = torch.Generator().manual_seed(walk.seed)
    shape = (4, 1, 1, walk.seq_len, walk.head_dim)
    q, k, v, dout = torch.randn(shape, generator=generator).unbind()
    rule = ScoreRule(
        n_q=walk.seq_len,
        n_k=walk.seq_len,
        scale=walk.head_dim**-0.5,
        band=make_band(walk.causal, "bottom-right", None).needed(walk.seq_len, walk.seq_len),
    )
    sides: Any = {"block_m": walk.block_m, "block_n": walk.block_n}
    steps: list[dict[str, Any]] = []
    left = _run(forward_tiles(q, k, v, rule, **sides), steps, "fwd")
    assert isinstance(left, Forward)
    grads = _run(backward_tiles(q, k, v, left, dout, None, rule, **sides), steps, "bwd")
    assert isinstance(grads, Gradients)
    outputs = {"out": left.out, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    return {
        "schema": SCHEMA,
        **walk._asdict(),
        "inputs": {name: _listed(x) for name, x in (("q", q), ("k", k), ("v", v), ("dout", dout))},
        "steps": steps,
        "outputs": {name: _listed(x) for name, x in outputs.items()}
        | {"row_max": _listed(left.row_max), "row_log_sum": _listed(left.row_log_sum)},
        "rel_error": {
            name: _rel_error(outputs[name], right)
            for name, right in _exact(q, k, v, dout, walk.causal).items()
        },
    }


def check(walk: Walk) -> None:
    """Refuse what is no walk, or a walk too long to be looked at.

    Raises:
        InputError: with the field, what it is and what is allowed.
    """
    most = {"seq_len": MOST_SEQ_LEN, "head_dim": MOST_HEAD_DIM}
    for name in ("seq_len", "head_dim", "block_m", "block_n"):
        value, limit = getattr(walk, name), most.get(name, MOST_SEQ_LEN)
        if not 1 <= value <= limit:
            raise InputError(f"{name} of a trace must be from 1 to {limit}, got {value}")
    tiles = math.ceil(walk.seq_len / walk.block_m) * math.ceil(walk.seq_len / walk.block_n)
    if tiles > MOST_TILES:
        raise InputError(
            f"a trace has at most {MOST_TILES} tiles, but {walk.seq_len} queries and keys in tiles of "
            f"{walk.block_m} x {walk.block_n} are {tiles}: choose larger tiles or a shorter sequence"
        )
    if not 0 <= walk.seed < 2**63:
        raise InputError(f"seed of a trace must be from 0 to 2^63 - 1, got {walk.seed}")


def _run(walked: Any, steps: list[dict[str, Any]], direction: str) -> Any:
    """Run a generator of tiles to its end, appending each state to `steps`; returns what it returns."""
    while True:
        try:
            state: ForwardTile | BackwardTile = next(walked)
        except StopIteration as end:
            return end.value
        fields = state._asdict()
        spans = {name: [fields[name].start, fields.pop(name).stop] for name in ("rows", "cols")}
        # Listed at once: what a backward yields are views of sums that go on growing.
        steps.append({"direction": direction, **spans, **{n: _listed(x) for n, x in fields.items()}})


def _listed(x: torch.Tensor) -> list[Any]:
    """A tensor of one head, (1, 1, rows) or (1, 1, rows, columns), as lists of numbers."""
    return _rounded(x[0, 0].tolist())


def _rounded(x: Any) -> Any:
    if isinstance(x, list):
        return [_rounded(one) for one in x]
    return float(f"{x:.{DIGITS}g}") if math.isfinite(x) else None


def _exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, causal: bool
) -> dict[str, torch.Tensor]:
    """The output and the gradients in fp64, by eager attention."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out = naive_attention(*leaves, causal=causal)
    grads = torch.autograd.grad(out, leaves, dout.double())
    return {"out": out.detach()} | dict(zip(("dq", "dk", "dv"), grads, strict=True))


def _rel_error(x: torch.Tensor, right: torch.Tensor) -> float:
    """The distance over the length of what is right, which is 0 for dQ of a softmax over one key."""
    distance, length = float((x.double() - right).norm()), float(right.norm())
    return distance / length if length else distance
