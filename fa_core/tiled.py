"""FlashAttention's algorithm in plain PyTorch, tile by tile, forward and backward.

The forward walks query tiles outside and key tiles inside, keeping a running maximum m, a running sum
l and an unnormalised output per row (online softmax; Milakov & Gimelshein 2018, Dao 2023 algorithm 1).
The backward recomputes the probabilities of each tile from the stored log-sum-exp (Dao 2023,
algorithm 2). Both yield their state after every tile, so that what is shown elsewhere is this very
computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, overload

import torch
from torch.autograd.function import once_differentiable

NEG_INF = float("-inf")


class ForwardTile(NamedTuple):
    """The forward's state after one (query tile, key tile); B = batch, H = heads.

    Row statistics are (B, H, rows), scores (B, H, rows, cols), outputs (B, H, rows, head_dim_v), all in
    the accumulator's dtype (fp32; fp64 for fp64 inputs).
    """

    rows: slice  # of the queries
    cols: slice  # of the keys
    scores: torch.Tensor  # scaled and masked
    row_max_before: torch.Tensor
    row_max: torch.Tensor
    row_sum_before: torch.Tensor
    row_sum: torch.Tensor
    rescale: torch.Tensor  # what the rows' earlier output and sum were multiplied by
    out_before: torch.Tensor  # unnormalised
    out: torch.Tensor


class BackwardTile(NamedTuple):
    """The backward's state after one (key tile, query tile): this tile's p, dp, ds and the running sums."""

    rows: slice
    cols: slice
    probs: torch.Tensor  # (B, H, rows, cols)
    dprobs: torch.Tensor
    dscores: torch.Tensor
    dq: torch.Tensor  # (B, H, rows, head_dim), summed so far
    dk: torch.Tensor  # (B, H, cols, head_dim), summed so far
    dv: torch.Tensor  # (B, H, cols, head_dim_v), summed so far


class Forward(NamedTuple):
    """What the forward leaves: out (B, H, Nq, dv) in q's dtype, lse (B, H, Nq) in the accumulator's dtype."""

    out: torch.Tensor
    lse: torch.Tensor


def _spans(length: int, block: int) -> Iterator[slice]:
    for start in range(0, length, block):
        yield slice(start, min(start + block, length))


def _hidden(rows: slice, cols: slice, offset: int, device: torch.device) -> torch.Tensor | None:
    """The causal mask of a tile (True: not seen), or None where the whole tile is visible."""
    if cols.stop - 1 <= rows.start + offset:
        return None
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(cols.start, cols.stop, device=device)[None, :]
    return j > i + offset


def _is_empty(rows: slice, cols: slice, offset: int) -> bool:
    return cols.start > rows.stop - 1 + offset


def _expand_heads(x: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).repeat_interleave(heads // x.shape[1], dim=1)


def forward_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    block_m: int,
    block_n: int,
) -> Iterator[ForwardTile]:
    """Run the forward, yielding after each tile; the generator's return value is a `Forward`.

    Shapes as in `tiled_attention`. Tiles that the causal mask empties are skipped, not computed.
    """
    heads, n_q, n_k = q.shape[1], q.shape[2], k.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = _expand_heads(k, heads, wide), _expand_heads(v, heads, wide)
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], NEG_INF, dtype=wide, device=q.device)
    for rows in _spans(n_q, block_m):
        q_tile = q[:, :, rows].to(wide)
        m = torch.full_like(lse[:, :, rows], NEG_INF)
        row_sum = torch.zeros_like(m)
        acc = torch.zeros(*m.shape, v.shape[-1], dtype=wide, device=q.device)
        for cols in _spans(n_k, block_n):
            if causal and _is_empty(rows, cols, n_k - n_q):
                break
            scores = (q_tile @ k[:, :, cols].transpose(-2, -1)) * scale
            hidden = _hidden(rows, cols, n_k - n_q, q.device) if causal else None
            if hidden is not None:
                scores = scores.masked_fill(hidden, NEG_INF)
            m_new = torch.maximum(m, scores.amax(dim=-1))
            # A row that has seen no key keeps m = -inf; any finite pivot then gives exp(-inf) = 0.
            pivot = torch.where(m_new == NEG_INF, 0.0, m_new)
            probs = torch.exp(scores - pivot[..., None])
            rescale = torch.exp(m - pivot)
            new_sum = row_sum * rescale + probs.sum(dim=-1)
            acc_new = acc * rescale[..., None] + probs @ v[:, :, cols]
            yield ForwardTile(rows, cols, scores, m, m_new, row_sum, new_sum, rescale, acc, acc_new)
            m, row_sum, acc = m_new, new_sum, acc_new
        out[:, :, rows] = (acc / torch.where(row_sum == 0, 1.0, row_sum)[..., None]).to(q.dtype)
        lse[:, :, rows] = torch.where(row_sum == 0, NEG_INF, m + torch.log(row_sum))
    return Forward(out, lse)


def backward_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    *,
    causal: bool,
    scale: float,
    block_m: int,
    block_n: int,
) -> Iterator[BackwardTile]:
    """Run the backward, yielding after each tile; the generator's return value is (dq, dk, dv).

    Shapes as in `tiled_attention`; dout as out, dlse as lse. The row sum over *all* keys that the
    softmax's derivative needs is delta = rowsum(dout · out), which no single tile could form from p · dp.
    """
    heads, kv_heads, n_q, n_k = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    k_wide, v_wide = _expand_heads(k, heads, wide), _expand_heads(v, heads, wide)
    q_wide, dout = q.to(wide), dout.to(wide)
    delta = (dout * out.to(wide)).sum(dim=-1)
    if dlse is not None:
        delta = delta - dlse
    # +inf makes every probability of a row that sees no key 0.
    lse = torch.where(lse == NEG_INF, float("inf"), lse)
    dq, dk, dv = torch.zeros_like(q_wide), torch.zeros_like(k_wide), torch.zeros_like(v_wide)
    for cols in _spans(n_k, block_n):
        for rows in _spans(n_q, block_m):
            if causal and _is_empty(rows, cols, n_k - n_q):
                continue
            scores = (q_wide[:, :, rows] @ k_wide[:, :, cols].transpose(-2, -1)) * scale
            probs = torch.exp(scores - lse[:, :, rows, None])
            hidden = _hidden(rows, cols, n_k - n_q, q.device) if causal else None
            if hidden is not None:
                probs = probs.masked_fill(hidden, 0.0)
            dprobs = dout[:, :, rows] @ v_wide[:, :, cols].transpose(-2, -1)
            dscores = probs * (dprobs - delta[:, :, rows, None])
            dv[:, :, cols] += probs.transpose(-2, -1) @ dout[:, :, rows]
            dk[:, :, cols] += scale * (dscores.transpose(-2, -1) @ q_wide[:, :, rows])
            dq[:, :, rows] += scale * (dscores @ k_wide[:, :, cols])
            yield BackwardTile(
                rows, cols, probs, dprobs, dscores, dq[:, :, rows], dk[:, :, cols], dv[:, :, cols]
            )
    group = (kv_heads, heads // kv_heads)
    dk = dk.unflatten(1, group).sum(dim=2)
    dv = dv.unflatten(1, group).sum(dim=2)
    if n_k == 1 and dlse is None:
        # A softmax over one key is constant: what dout seems to send to its score is rounding.
        dq, dk = torch.zeros_like(dq), torch.zeros_like(dk)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _finish(tiles: Iterator[Any]) -> Any:
    while True:
        try:
            next(tiles)
        except StopIteration as end:
            return end.value


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = _finish(forward_tiles(q, k, v, **options))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        if dout is None and dlse is None:
            return (None,) * 4
        if dout is None:
            dout = torch.zeros_like(ctx.saved_tensors[3])
        # pyright cannot know how many tensors a context has saved
        grads = _finish(backward_tiles(*ctx.saved_tensors, dout, dlse, **ctx.options))  # pyright: ignore[reportCallIssue]
        return *grads, None


@overload
def tiled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    block_m: int = ...,
    block_n: int = ...,
    return_lse: Literal[False] = ...,
) -> torch.Tensor: ...
@overload
def tiled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    block_m: int = ...,
    block_n: int = ...,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def tiled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_m: int = 64,
    block_n: int = 64,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Exact attention, one block_m x block_n tile at a time; never holds a score matrix.

    Args:
        q: (batch, heads, seq_len_q, head_dim), any floating dtype, any device and strides.
        k: (batch, kv_heads, seq_len_k, head_dim); kv_heads divides heads.
        v: (batch, kv_heads, seq_len_k, head_dim_v).
        causal: query i sees key j when j <= i + seq_len_k - seq_len_q.
        scale: factor on the scores; 1/sqrt(head_dim) when None.
        block_m: query rows of a tile, >= 1.
        block_n: keys of a tile, >= 1.
        return_lse: also return lse (batch, heads, seq_len_q), natural log, differentiable.

    Returns:
        out (batch, heads, seq_len_q, head_dim_v) in q's dtype, 0 for rows that see no key (lse -inf).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    options = {"causal": causal, "scale": scale, "block_m": block_m, "block_n": block_n}
    apply: Any = _Tiled.apply
    out, lse = apply(q, k, v, options)
    return (out, lse) if return_lse else out
