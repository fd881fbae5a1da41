"""Larger logits: eager attention loses digits in 16 bits, the tile algorithm does not; in fp32 they agree."""

from __future__ import annotations

import pytest

from profiling.analysis.numerics import ratio_to_eager, share_of_allowed
from profiling.case import InputError
from profiling.lab.logit_scale import scale_errors

SCALES = (1.0, 64.0)


@pytest.fixture(scope="module")
def found():
    """By dtype, scale and tensor, of short sequences."""
    return {(x.dtype, x.scale, x.tensor): x.error for x in scale_errors(SCALES, seq_len=64)}


def test_every_tensor_of_every_scale_and_dtype(found):
    """Forward and both kinds of gradient, each within the error rule."""
    tensors = ("out", "lse", "dq", "dk", "dv")
    assert list(found) == [(d, s, t) for d in ("fp16", "bf16", "fp32") for s in SCALES for t in tensors]
    shares = [share_of_allowed(error) for error in found.values()]
    assert all(share is not None and share <= 1 for share in shares)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
def test_eager_loses_what_the_tiles_keep(found, dtype, tensor):
    """At 64 times the logits eager is several times worse than at 1, and the tiles far better than eager."""
    small, large = (found[dtype, scale, tensor] for scale in SCALES)
    assert large.eager_rel_error > 3 * small.eager_rel_error
    assert ratio_to_eager(large) < 0.2 < ratio_to_eager(small) < 1


@pytest.mark.parametrize("scale", SCALES)
def test_in_fp32_both_are_as_good(found, scale):
    """Both keep their scores in fp32 then: the output's errors are within a third of each other."""
    assert ratio_to_eager(found["fp32", scale, "out"]) == pytest.approx(1, abs=1 / 3)


def test_the_same_seed_gives_the_same_numbers():
    """And another seed others."""
    options = {"dtypes": ("fp32",), "seq_len": 32, "head_dim": 16}
    first, again, other = (scale_errors([4], seed=seed, **options) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("scale", [0, -1, 1e4, float("nan"), float("inf")])
def test_what_is_no_scale_is_refused(scale):
    """Zero, negative, beyond what fp16 inputs can hold, or no number."""
    with pytest.raises(InputError, match="must be above 0 and at most 1024"):
        scale_errors([1, scale], seq_len=16)


def test_no_scale_gives_nothing():
    """An empty list is no error."""
    assert scale_errors([]) == []
