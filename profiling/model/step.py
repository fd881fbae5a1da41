"""FLOPs of a model's step outside of attention: the matrix products of projections, MLP and head.

A multiply and an add are two FLOPs; a backward costs twice its forward, for the gradients of weights and
inputs. Embeddings, norms, activations, rotary positions, routers and the optimizer are not counted.
"""

from __future__ import annotations

from typing import NamedTuple


class Body(NamedTuple):
    """A model as one GPU sees it, beside the heads of its attention.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the gated MLP; of a mixture, of all experts that a token passes, together.
        layers: of every kind, among which the head is divided.
        vocabulary: columns of the head; 0 leaves it out.
        projection_weights: of one layer's attention, where they are no plain q, k, v and o; else None.
    """

    hidden: int
    intermediate: int
    layers: int = 1
    vocabulary: int = 0
    projection_weights: int | None = None


def layer_weights(body: Body, heads: int, kv_heads: int, head_dim: int, head_dim_v: int) -> int:
    """Weights of one layer that every token is multiplied with: q, k, v, o, and three of a gated MLP."""
    projections = body.projection_weights
    if projections is None:
        projections = body.hidden * (heads + kv_heads) * (head_dim + head_dim_v)
    return projections + 3 * body.hidden * body.intermediate


def other_flops(
    body: Body,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    head_dim_v: int,
    batch: int,
    seq_len: int,
    training: bool,
) -> float:
    """FLOPs of one layer outside of attention, with its part of the head.

    A prefill needs the head for the last token of each sequence alone; training needs it for all tokens.
    """
    tokens = batch * seq_len
    layer = 2 * tokens * layer_weights(body, heads, kv_heads, head_dim, head_dim_v)
    head = 2 * (tokens if training else batch) * body.hidden * body.vocabulary
    return (3 if training else 1) * (layer + head / body.layers)
