"""The k best classes by the online kernels: the very classes, and weights held to the error rule."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import pytest
import torch
from oracle import DEVICE, DTYPES, HARD_ROWS, assert_within_rule

from fa_core import softmax_top_k
from fa_core.softmax import tiles
from fa_core.softmax.top_k import naive_softmax_top_k

online = partial(softmax_top_k, impl="online")
naive = partial(softmax_top_k, impl="naive")
HALVES = ("fp16", "bf16") if DEVICE == "cuda" else ("fp16",)
BOTH = pytest.mark.parametrize("renormalize", [True, False])
FEW, MANY = 40, 3000  # classes held in registers, and such as are grouped
pytestmark = pytest.mark.usefixtures("poisoned_outputs")


class Gate(NamedTuple):
    """logits (rows, classes), k, and what is sent to the weights (rows, k)."""

    logits: torch.Tensor
    k: int
    dweights: torch.Tensor


def make_gate(rows: int, classes: int, k: int, dtype: str = "fp32", seed: int = 0) -> Gate:
    """Normal random logits and gradients."""
    g = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(*shape, generator=g) for shape in ((rows, classes), (rows, k)))
    logits, dweights = (x.to(DEVICE, DTYPES[dtype]) for x in drawn)
    return Gate(logits, k, dweights)


def first_of_equals(logits: torch.Tensor, k: int) -> torch.Tensor:
    """The k best columns, of equal logits the lower first."""
    return torch.sort(logits.double(), dim=-1, descending=True, stable=True).indices[..., :k]


def weigh(logits: torch.Tensor, indices: torch.Tensor, renormalize: bool) -> torch.Tensor:
    """Eager's formula with the choice given, in the arithmetic of `naive`."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    weights = torch.softmax(logits, dim=-1, dtype=wide).gather(-1, indices)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(logits.dtype)


def assert_right(x: Gate, renormalize: bool) -> torch.Tensor:
    """Classes are the very ones, in order; weights and gradient obey the rule."""
    leaf = x.logits.detach().requires_grad_()
    weights, indices = online(leaf, x.k, renormalize=renormalize)
    (dlogits,) = torch.autograd.grad(weights, leaf, x.dweights)
    assert indices.dtype == torch.int64
    assert torch.equal(indices, first_of_equals(x.logits, x.k))
    found = []
    for dtype in (torch.float64, x.logits.dtype):
        other = x.logits.detach().to(dtype).requires_grad_()
        expected = weigh(other, indices, renormalize)
        found.append((expected.detach(), *torch.autograd.grad(expected, other, x.dweights.to(dtype))))
    for name, seen, ref, eager in zip(
        ("weights", "dlogits"), (weights.detach(), dlogits), *found, strict=True
    ):
        assert (seen.shape, seen.dtype) == (eager.shape, eager.dtype), name
        assert_within_rule(name, seen, ref, eager, x.logits.dtype)
    return weights.detach()


@BOTH
@pytest.mark.parametrize("dtype", [*HALVES, "fp32"])
@pytest.mark.parametrize(
    ("rows", "classes", "k"),
    [
        (3, 1, 1), (5, 7, 7), (70, 8, 2), (33, 64, 6), (3, 127, 1), (9, 129, 8), (2, 1024, 3), (2, 1025, 5),
        (3, 5003, 50), (1, 20000, 64),
    ],
)  # fmt: skip
def test_classes_weights_and_gradient_are_right(rows, classes, k, dtype, renormalize):
    """From one class to many groups of them, k from 1 to 64; sizes that no tile divides."""
    assert_right(make_gate(rows, classes, k, dtype), renormalize)


VALUES = HARD_ROWS | {
    "tiny": lambda x: x * 1e-6,
    "ascending": lambda x: x.sort(dim=-1).values,
    "signed-zeros": lambda x: torch.where(x > 0, 0.0, -0.0).to(x.dtype),
    "least-finite": lambda x: torch.where(x > 1, x, torch.finfo(x.dtype).min),
}


@BOTH
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("classes", [FEW, MANY])
@pytest.mark.parametrize("dtype", [*HALVES, "fp32"])
def test_values_beyond_randn(values, classes, dtype, renormalize):
    """Large, sorted, masked and tied logits: of equals the lower class comes first, -0 and 0 among them."""
    x = make_gate(3, classes, 9, dtype)
    weights = assert_right(x._replace(logits=VALUES[values](x.logits)), renormalize)
    assert (weights.diff(dim=-1) <= 0).all()
    if renormalize:
        torch.testing.assert_close(
            weights.double().sum(-1).float(), torch.ones(3, device=DEVICE), rtol=2e-3, atol=0
        )


@BOTH
@pytest.mark.parametrize("classes", [FEW, MANY])
def test_fewer_finite_logits_than_k(classes, renormalize):
    """What is left over has weight 0 and the lowest classes that are not in use yet."""
    x = make_gate(2, classes, 5)
    logits = torch.full_like(x.logits, -math.inf)
    logits[0, classes - 2], logits[0, 1] = 1.0, 2.0
    logits[1, 0] = 3.0
    weights, indices = online(logits, 5, renormalize=renormalize)
    assert indices.tolist() == [[1, classes - 2, 0, 2, 3], [0, 1, 2, 3, 4]]
    assert (weights > 0).sum(dim=-1).tolist() == [2, 1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, device=DEVICE))


@BOTH
@pytest.mark.parametrize("classes", [FEW, MANY])
def test_what_rows_that_are_no_distribution_give(classes, renormalize):
    """-inf alone, NaN or +inf: weights NaN, classes within bounds and different, other rows untouched."""
    x = make_gate(6, classes, 4)
    logits = x.logits.clone()
    logits[0] = -math.inf
    logits[1, 3] = math.nan
    logits[2, 4] = math.inf
    logits[3] = math.nan
    logits[4, 7] = -torch.tensor(math.nan)
    leaf = logits.requires_grad_()
    weights, indices = online(leaf, 4, renormalize=renormalize)
    assert torch.isnan(weights[:5]).all()
    assert all(len(set(row)) == 4 and 0 <= min(row) <= max(row) < classes for row in indices.tolist())
    assert indices[0].tolist() == [0, 1, 2, 3]
    assert [row[0] for row in indices[1:5].tolist()] == [3, 4, 0, 7]
    (dlogits,) = torch.autograd.grad(weights, leaf, x.dweights)
    assert torch.isnan(dlogits[:5]).all()
    usual = online(x.logits, 4, renormalize=renormalize)
    assert torch.equal(weights[5], usual[0][5])
    assert torch.equal(indices[5], usual[1][5])
    assert torch.isfinite(dlogits[5]).all()


LAYOUTS = {
    "sliced": lambda x: torch.cat([x, x], dim=-1)[:, : x.shape[1]],
    "offset": lambda x: torch.cat([x[:, :1], x], dim=-1)[:, 1:],
    "every-other-row": lambda x: torch.stack([x, -x], dim=1).reshape(-1, x.shape[1])[::2],
    "transposed": lambda x: x.T.contiguous().T,
    "one-row-expanded": lambda x: x[:1].expand_as(x),
}


@BOTH
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("classes", [FEW, MANY])
def test_strides_do_not_matter(layout, classes, renormalize):
    """Logits are read where they lie, or copied, and gradients may come in any layout."""
    x = make_gate(4, classes, 3, HALVES[0])
    logits = LAYOUTS[layout](x.logits)
    found = []
    for given, sent in ((logits, x.dweights.T.contiguous().T), (logits.contiguous(), x.dweights)):
        leaf = given.detach().requires_grad_()
        weights, indices = online(leaf, 3, renormalize=renormalize)
        found.append((weights, indices, *torch.autograd.grad(weights, leaf, sent)))
    for seen, expected in zip(*found, strict=True):
        assert torch.equal(seen, expected)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 3), (0, 3000)])
def test_no_rows_give_empty_results(shape):
    """Nothing is launched, and shapes are kept."""
    logits = torch.zeros(shape, device=DEVICE, requires_grad=True)
    weights, indices = online(logits, 2)
    assert weights.shape == indices.shape == (*shape[:-1], 2)
    (dlogits,) = torch.autograd.grad(weights.sum(), logits)
    assert dlogits.shape == shape


def test_leading_dimensions_are_kept():
    """logits (2, 3, classes) give (2, 3, k); a row alone gives (k,)."""
    x = make_gate(6, 12, 2)
    weights, indices = online(x.logits, 2)
    shaped = online(x.logits.reshape(2, 3, 12), 2)
    assert torch.equal(shaped[0], weights.reshape(2, 3, 2))
    assert torch.equal(shaped[1], indices.reshape(2, 3, 2))
    assert torch.equal(online(x.logits[0], 2)[1], indices[0])


def test_the_same_with_other_tiles(monkeypatch):
    """Many rounds of few groups, and rows of a tile each, choose the same."""
    x = make_gate(3, 2777, 20)
    weights, indices = online(x.logits, 20, renormalize=False)
    usual = tiles.choose

    def small(kernel: str, classes: int, itemsize: int) -> tiles.Tile:
        tile = usual(kernel, classes, itemsize)
        return tile._replace(columns=16 if kernel == "selection" else 256)

    monkeypatch.setattr(tiles, "choose", small)
    other = online(x.logits, 20, renormalize=False)
    assert torch.equal(other[1], indices)
    torch.testing.assert_close(other[0], weights)
    monkeypatch.setattr(tiles, "choose", usual)
    monkeypatch.setattr(tiles, "FEW_CLASSES", 4096)
    whole = online(x.logits, 20, renormalize=False)
    assert torch.equal(whole[1], indices)
    torch.testing.assert_close(whole[0], weights)


@BOTH
def test_naive_is_what_models_write(renormalize):
    """softmax in fp32, topk, division, cast; fp64 stays fp64."""
    for dtype in (*HALVES, "fp32", "fp64"):
        x = make_gate(4, 11, 3, dtype)
        weights, indices = naive_softmax_top_k(x.logits, 3, renormalize=renormalize)
        wide = torch.float64 if dtype == "fp64" else torch.float32
        best, where = torch.softmax(x.logits.to(wide), -1).topk(3, -1)
        expected = (best / best.sum(-1, keepdim=True) if renormalize else best).to(x.logits.dtype)
        assert torch.equal(weights, expected)
        assert torch.equal(indices, where)


@BOTH
def test_eager_formulas_have_the_gradients_they_say(renormalize):
    """gradcheck of the naive door in fp64."""
    x = make_gate(3, 7, 3, "fp64")
    weigh_only = lambda logits: naive(logits, 3, renormalize=renormalize)[0]  # noqa: E731
    assert torch.autograd.gradcheck(weigh_only, x.logits.requires_grad_())


ROW = torch.zeros(2, 5)
REFUSED = {
    "logits must be floating point, got torch.int64": (ROW.long(), 1, {}),
    "logits must be (..., classes) with a class or more, got ()": (ROW.sum(), 1, {}),
    "k must be a whole number, got float": (ROW, 2.0, {}),
    "k must be a whole number, got bool": (ROW, True, {}),
    "k must be from 1 to 5, the classes and at most 64, got 0": (ROW, 0, {}),
    "k must be from 1 to 5, the classes and at most 64, got 6": (ROW, 6, {}),
    "k must be from 1 to 64, the classes and at most 64, got 65": (torch.zeros(1, 100), 65, {}),
    "impl must be one of auto, online, naive, got 'tiled'": (ROW, 1, {"impl": "tiled"}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_wrong_input_is_one_sentence(sentence):
    """What the argument must be, and what it was."""
    logits, k, options = REFUSED[sentence]
    with pytest.raises((TypeError, ValueError)) as raised:
        softmax_top_k(logits, k, **options)
    assert str(raised.value) == sentence


def test_online_refuses_fp64_and_a_second_derivative():
    """One sentence each."""
    x = make_gate(2, 9, 2)
    with pytest.raises(NotImplementedError, match="online must have fp16, bf16 or fp32 logits"):
        online(x.logits.double(), 2)
    leaf = x.logits.requires_grad_()
    (first,) = torch.autograd.grad(online(leaf, 2)[0].sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="once, not twice"):
        torch.autograd.grad(first.sum(), leaf)


@pytest.mark.parametrize("impl", ["online", "naive", "auto"])
def test_shapes_need_no_storage(impl, monkeypatch):
    """`meta` tensors get the shapes and dtypes that real ones would have."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    logits = torch.zeros(2, 3, 50, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weights, indices = softmax_top_k(logits, 4, impl=impl)
    (dlogits,) = torch.autograd.grad(weights, logits, torch.empty_like(weights))
    assert weights.shape == indices.shape == (2, 3, 4)
    assert (weights.dtype, indices.dtype) == (torch.bfloat16, torch.int64)
    assert (dlogits.shape, dlogits.dtype) == (logits.shape, torch.bfloat16)
