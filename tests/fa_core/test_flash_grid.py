"""The Triton kernels on shapes off the tile, against the fp64 oracle, by the project's error rule."""

import itertools
from functools import partial

import pytest
import torch
from oracle import DEVICE, assert_as_good_as_eager, make_inputs, run

from fa_core import attention

pytestmark = pytest.mark.usefixtures("interpreter_tiles")
# What there is of the kernels for one architecture alone has a grid of its own: test_hopper.
flash = partial(attention, impl="flash_portable")
GPU = DEVICE == "cuda"

# On a GPU the whole grid; under the interpreter a sample of it that still meets every edge.
LENGTHS = (1, 15, 17, 63, 127, 129, 1023, 1025) if GPU else (1, 17, 129)
HEAD_DIMS = (16, 64, 80, 96, 128, 192, 256) if GPU else (16, 80)
DTYPES = ("fp16", "bf16", "fp32") if GPU else ("fp16", "fp32")


def _other_length(n: int) -> int:
    """A key length that is not the query length: longer for short queries, shorter for long ones."""
    return n + 130 if n < 100 else n - 62


def _grid() -> list:
    axes = itertools.product(DTYPES, HEAD_DIMS, (False, True), (1, 3), LENGTHS)
    cases = [(*axis, n_k) for axis in axes for n_k in (axis[-1], _other_length(axis[-1]))]
    return [
        pytest.param(*case, id=f"{dtype}-d{d}-{'causal' if causal else 'full'}-kv{kv_heads}-N{n}x{n_k}")
        for case in cases
        for dtype, d, causal, kv_heads, n, n_k in [case]
    ]


@pytest.mark.parametrize(("dtype", "d", "causal", "kv_heads", "n_q", "n_k"), _grid())
def test_flash_is_as_good_as_eager(dtype, d, causal, kv_heads, n_q, n_k, record_property):
    """out, LSE, dQ, dK and dV stay within twice eager's error on every shape of the grid."""
    x = make_inputs(n_q, n_k, d, kv_heads=kv_heads, dtype=dtype)
    got = run(flash, x, causal=causal)
    record_property("tensors", assert_as_good_as_eager(got, x, causal=causal))
    if GPU:
        torch.cuda.synchronize()
