"""FLOPs of a model's step outside of attention, against published parameter counts and by hand."""

from __future__ import annotations

import pytest

from profiling.analysis.deployment import BODIES, PRESETS
from profiling.model.step import Body, layer_weights, other_flops

# Parameters of the whole model in billions, as its card states, and how many times its vocabulary matrix
# counts: twice, or once where embedding and head are one.
PUBLISHED = {
    "Llama 3 8B": (8.03, 2),
    "Llama 3 70B": (70.6, 2),
    "Mistral 7B v0.1": (7.24, 2),
    "Qwen2.5 7B": (7.62, 2),
    "Qwen2.5 72B": (72.7, 2),
    "Gemma 2 9B, full layers": (9.24, 1),
    "Gemma 2 27B, full layers": (27.2, 1),
    "Phi 3 mini 128k": (3.82, 2),
}
SHAPES = {shape.name: shape for shape in PRESETS}


def weights(name: str) -> int:
    """Weights of one layer of a preset."""
    shape = SHAPES[name]
    return layer_weights(BODIES[name], shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim_v)


def test_every_preset_has_a_body_and_every_body_a_preset() -> None:
    """None is forgotten, none is left over."""
    assert set(BODIES) == set(SHAPES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_presets_add_up_to_their_published_size(name: str) -> None:
    """Layers times their weights, and the vocabulary's, come to the parameters of the model's card in 1 %."""
    billions, times = PUBLISHED[name]
    body = BODIES[name]
    total = body.layers * weights(name) + times * body.hidden * body.vocabulary
    assert total / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("name", "parts"), [("Llama 3 70B, 1 of 4 GPUs", 4), ("Llama 3 70B, 1 of 8 GPUs", 8)]
)
def test_a_slice_has_its_part_of_every_weight(name: str, parts: int) -> None:
    """The slices of a layer come to the layer, and those of the head to the head."""
    assert parts * weights(name) == weights("Llama 3 70B")
    assert parts * BODIES[name].vocabulary == BODIES["Llama 3 70B"].vocabulary


def test_a_mixture_counts_the_experts_that_a_token_passes() -> None:
    """DeepSeek V2 Lite's 2.4 billion and gpt-oss 20b's 3.6 billion active parameters, embedding aside."""
    lite, oss = BODIES["DeepSeek V2 Lite"], BODIES["gpt-oss 20b, full layers"]
    active = lite.layers * weights("DeepSeek V2 Lite") + lite.hidden * lite.vocabulary
    assert active / 1e9 == pytest.approx(2.4, rel=0.1)
    active = oss.layers * weights("gpt-oss 20b, full layers") + oss.hidden * oss.vocabulary
    assert active / 1e9 == pytest.approx(3.6, rel=0.1)


def test_a_small_layer_by_hand() -> None:
    """Two heads on one of width 3, dv 4: q, k, v, o, MLP and half of the head."""
    body = Body(hidden=5, intermediate=7, layers=2, vocabulary=11)
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 3, "head_dim_v": 4}
    own = 5 * 6 + 5 * 3 + 5 * 4 + 8 * 5 + 3 * 5 * 7
    assert layer_weights(body, *shape.values()) == own
    prefill = other_flops(body, **shape, batch=2, seq_len=10, training=False)
    assert prefill == 2 * 20 * own + 2 * 2 * 5 * 11 / 2
    training = other_flops(body, **shape, batch=2, seq_len=10, training=True)
    assert training == 3 * (2 * 20 * own + 2 * 20 * 5 * 11 / 2)
    headless = other_flops(body._replace(vocabulary=0), **shape, batch=2, seq_len=10, training=True)
    assert headless == 3 * 2 * 20 * own
    latent = body._replace(projection_weights=100, vocabulary=0)
    assert other_flops(latent, **shape, batch=1, seq_len=1, training=False) == 2 * (100 + 3 * 5 * 7)
