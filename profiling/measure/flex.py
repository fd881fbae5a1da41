"""PyTorch's FlexAttention with our semantics: the other way to have features fused into the tile loop.

What changes scores (softcap, ALiBi, bias) is a `score_mod`, what hides pairs a `mask_mod` whose block mask
is made once per case and not timed, as one does for all layers of a model. Sinks follow from the returned
log-sum-exp: with one more logit s in the denominator the output is sigmoid(lse - s) times what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from profiling.case import Case
from profiling.measure.inputs import Inputs

Place = Callable[[torch.Tensor], torch.Tensor]


class _Places(NamedTuple):
    """Where a query and a key stand among the keys of their sequence, and which sequence that is.

    Tensors (total,) int32 for packed sequences, to be indexed with a place in the pack.
    """

    query: torch.Tensor
    key: torch.Tensor
    query_sequence: torch.Tensor
    key_sequence: torch.Tensor


def check(case: Case) -> None:
    """Raise `NotImplementedError`, one sentence, for what is not measured with FlexAttention."""
    if case.tile_m is not None:
        raise NotImplementedError("flex has no tiles: only tiled and flash do")
    if case.layout == "paged":
        raise NotImplementedError("flex cannot take a paged cache: PyTorch's paged attention is experimental")


def forward_of(case: Case, device: torch.device) -> Callable[[Inputs], torch.Tensor]:
    """The forward of a case, not compiled; its block mask and the places of packed tokens are made here."""
    places = _packed_places(case, device) if case.layout == "varlen" else None
    block_mask = _block_mask(case, places, device)

    def forward(inputs: Inputs) -> torch.Tensor:
        q, k, v = inputs.q, inputs.k, inputs.v
        if case.layout == "varlen":  # one long sequence, whose mask keeps the packed ones apart
            q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        found: Any = flex_attention(
            q,
            k,
            v,
            score_mod=_score_mod(case, inputs, places),
            block_mask=block_mask,
            enable_gqa=case.heads != case.kv_heads,
            return_aux=AuxRequest(lse=True) if case.sinks else None,
        )
        if inputs.sinks is None:
            out = found
        else:
            out, lse = found[0], found[1].lse
            share = torch.sigmoid(lse - inputs.sinks.to(lse.dtype)[:, None])
            out = (out * share.unsqueeze(-1)).to(out.dtype)
        return out.squeeze(0).transpose(0, 1) if case.layout == "varlen" else out

    return forward


def _packed_places(case: Case, device: torch.device) -> _Places:
    def joined(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int32, device=device)

    def count(start: int, stop: int) -> torch.Tensor:
        return torch.arange(start, stop, dtype=torch.int32, device=device)

    def repeated(number: int, times: int) -> torch.Tensor:
        return torch.full((times,), number, dtype=torch.int32, device=device)

    return _Places(
        query=joined([count(n_k - n_q, n_k) for n_q, n_k in case.lengths]),
        key=joined([count(0, n_k) for _, n_k in case.lengths]),
        query_sequence=joined([repeated(i, n_q) for i, (n_q, _) in enumerate(case.lengths)]),
        key_sequence=joined([repeated(i, n_k) for i, (_, n_k) in enumerate(case.lengths)]),
    )


def _ahead(case: Case, places: _Places | None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """How many tokens key `kv` stands after query `q`'s own place, bottom-right aligned."""
    if places is not None:
        return lambda q, kv: places.key[kv] - places.query[q]
    shift = case.seq_len_k - case.seq_len_q
    return lambda q, kv: kv - q - shift


def _score_mod(case: Case, inputs: Inputs, places: _Places | None) -> Callable[..., torch.Tensor] | None:
    softcap, bias, slopes, ahead = case.softcap, inputs.bias, inputs.slopes, _ahead(case, places)
    if softcap is None and bias is None and slopes is None:
        return None

    def score_mod(score: Any, batch: Any, head: Any, q: Any, kv: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if slopes is not None:
            score = score - slopes[head] * ahead(q, kv).abs()
        if bias is not None:
            score = score + bias[0, head, q, kv]
        return score

    return score_mod


def _block_mask(case: Case, places: _Places | None, device: torch.device) -> BlockMask | None:
    causal, left, right, ahead = case.causal, case.window_left, case.window_right, _ahead(case, places)
    if places is None and not causal and left is None and right is None:
        return None

    def mask_mod(batch: Any, head: Any, q: Any, kv: Any) -> Any:
        seen = kv >= 0 if places is None else places.query_sequence[q] == places.key_sequence[kv]
        if causal:
            seen = seen & (ahead(q, kv) <= 0)
        if left is not None:
            seen = seen & (ahead(q, kv) >= -left)
        if right is not None:
            seen = seen & (ahead(q, kv) <= right)
        return seen

    n_q, n_k = (case.seq_len_q, case.seq_len_k)
    if places is not None:
        n_q, n_k = len(places.query), len(places.key)
    return create_block_mask(mask_mod, None, None, n_q, n_k, device=device)
