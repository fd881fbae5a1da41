"""Cross-entropy by the online kernels: held to the error rule against fp64, and to PyTorch's meaning."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import NamedTuple

import numpy
import pytest
import torch
from oracle import DEVICE, DTYPES, HARD_ROWS, assert_within_rule

from fa_core import cross_entropy
from fa_core.softmax import tiles
from fa_core.softmax.cross_entropy import naive_cross_entropy
from fa_core.softmax.validation import why_not_online

online = partial(cross_entropy, impl="online")
naive = partial(cross_entropy, impl="naive")
HALVES = ("fp16", "bf16") if DEVICE == "cuda" else ("fp16",)
IGNORED = -100
pytestmark = pytest.mark.usefixtures("poisoned_outputs")


class Rows(NamedTuple):
    """logits (rows, classes), target (rows,), and what is sent to the loss and the lse (rows,)."""

    logits: torch.Tensor
    target: torch.Tensor
    dloss: torch.Tensor
    dlse: torch.Tensor


def make_rows(rows: int, classes: int, dtype: str = "fp32", *, ignored: int = 0, seed: int = 0) -> Rows:
    """Normal random logits, any targets, the first `ignored` of them ignored."""
    g = torch.Generator().manual_seed(seed)
    target = torch.randint(0, classes, (rows,), generator=g)
    target[:ignored] = IGNORED
    drawn = (torch.randn(rows, classes, generator=g).to(DTYPES[dtype]), target)
    sent = (torch.randn(rows, generator=g) for _ in range(2))
    return Rows(*(x.to(DEVICE) for x in (*drawn, *sent)))


def run(impl: str, x: Rows, *, wide: bool = False) -> dict[str, torch.Tensor]:
    """loss, lse and the gradient that both send back, of one implementation; `wide` in fp64."""
    logits, dloss, dlse = (t.double() if wide else t for t in (x.logits, x.dloss, x.dlse))
    leaf = logits.detach().requires_grad_()
    loss, lse = cross_entropy(leaf, x.target, impl=impl, reduction="none", return_lse=True)
    (dlogits,) = torch.autograd.grad((loss, lse), leaf, (dloss, dlse))
    return {"loss": loss.detach(), "lse": lse.detach(), "dlogits": dlogits}


def assert_right(x: Rows) -> dict[str, torch.Tensor]:
    """Every tensor of `online` obeys the rule."""
    got, eager, reference = run("online", x), run("naive", x), run("naive", x, wide=True)
    for name, ref in reference.items():
        assert (got[name].shape, got[name].dtype) == (eager[name].shape, eager[name].dtype), name
        assert_within_rule(name, got[name], ref, eager[name], x.logits.dtype)
    return got


@pytest.mark.parametrize("dtype", [*HALVES, "fp32"])
@pytest.mark.parametrize(
    ("rows", "classes"),
    [(9, 1), (40, 7), (70, 16), (30, 127), (40, 129), (16, 5003), (8, 8208), (4, 40000)],
)
def test_loss_lse_and_gradient_obey_the_rule(rows, classes, dtype):
    """Many short rows, few long ones, some divided between programs; sizes that no tile divides.

    Not too few rows: by chance eager may err by next to nothing on one or two, and twice that is allowed.
    """
    assert_right(make_rows(rows, classes, dtype, ignored=rows > 1))


VALUES = HARD_ROWS | {
    "tiny": lambda x: x * 1e-3,
    "least-finite": lambda x: torch.full_like(x, torch.finfo(x.dtype).min),
    "ascending": lambda x: x.sort(dim=-1).values * 5,
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", [*HALVES, "fp32"])
def test_values_beyond_randn(values, dtype):
    """Large, constant, sorted, masked and tied logits obey the rule too; a maximum may come last."""
    x = make_rows(12, 4500, dtype)
    logits = VALUES[values](x.logits)
    target = torch.tensor([0, 2, 2250, 4497], device=DEVICE).repeat(3)  # none of them masked
    if values == "least-finite":
        # Beside it the logarithm is lost: what PyTorch sends back from its logsumexp is 1 and not 1/n.
        x = x._replace(dlse=torch.zeros_like(x.dlse))
    got = assert_right(x._replace(logits=logits, target=target))
    assert all(torch.isfinite(t).all() for t in got.values())


def test_a_masked_target_costs_infinity():
    """A target of probability 0 has loss +inf, and its gradient is finite: -1 of what was sent."""
    x = make_rows(2, 50)
    logits = x.logits.clone()
    logits[torch.arange(2), x.target] = -math.inf
    x = x._replace(logits=logits, dlse=torch.zeros_like(x.dlse))
    got = run("online", x)
    assert torch.equal(got["loss"], torch.full_like(got["loss"], math.inf))
    torch.testing.assert_close(got["dlogits"], run("naive", x)["dlogits"])


@pytest.mark.parametrize("classes", [5, 3000])
def test_what_rows_that_are_no_distribution_give(classes):
    """-inf alone: loss NaN, lse -inf. NaN or +inf anywhere: NaN for both, and in the gradient of the row."""
    x = make_rows(5, classes)
    logits = x.logits.clone()
    logits[0] = -math.inf
    logits[1, 3] = math.nan
    logits[2, 4] = math.inf
    logits[3] = math.nan
    got = run("online", x._replace(logits=logits))
    assert torch.isnan(got["loss"][:4]).all()
    assert torch.isneginf(got["lse"][0])
    assert torch.isnan(got["lse"][1:4]).all()
    assert torch.isnan(got["dlogits"][:4]).any(dim=1).all()
    for name, value in run("online", x).items():
        assert torch.equal(got[name][4], value[4]), name


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [0, 2, 6])
def test_reductions_are_pytorchs(reduction, ignored):
    """Ignored rows have loss 0 and leave the mean; of no row at all it is NaN, as with PyTorch."""
    x = make_rows(6, 33, ignored=ignored)
    shaped = x.logits.reshape(2, 3, 33).requires_grad_()
    results = []
    for impl in ("online", "naive"):
        loss = cross_entropy(shaped, x.target.reshape(2, 3), impl=impl, reduction=reduction)
        results.append((loss, *torch.autograd.grad(loss.sum(), shaped)))
    assert results[0][0].shape == ((2, 3) if reduction == "none" else ())
    assert results[0][0].dtype == torch.float32
    for seen, expected in zip(*results, strict=True):
        torch.testing.assert_close(seen, expected, equal_nan=True)


@pytest.mark.parametrize("classes", [9, 2000])
def test_ignored_rows_get_no_gradient_from_the_loss_but_from_their_lse(classes):
    """Loss 0 and gradient exactly 0, whatever lies in the row; the lse is that of the row, and sends back."""
    x = make_rows(3, classes, ignored=1)
    logits = x.logits.clone()
    logits[0, 2] = math.nan
    got = run("online", x._replace(logits=logits, dlse=torch.zeros_like(x.dlse)))
    assert got["loss"][0] == 0
    assert not got["dlogits"][0].any()
    got = run("online", x)
    torch.testing.assert_close(got["lse"], torch.logsumexp(x.logits, -1))
    torch.testing.assert_close(got["dlogits"][0], x.dlse[0] * torch.softmax(x.logits[0], -1))


@pytest.mark.parametrize("bad", [-1, 50, 2**40, -(2**40)])
def test_a_target_outside_the_classes_is_nan_and_reads_nothing(bad):
    """Loss and gradient of that row are NaN, those of the others as they were, and the lse is right."""
    x = make_rows(3, 50)
    target = x.target.clone()
    target[1] = bad
    got, usual = run("online", x._replace(target=target)), run("online", x)
    assert torch.isnan(got["loss"][1])
    assert torch.isnan(got["dlogits"][1]).all()
    assert torch.equal(got["lse"], usual["lse"])
    for name in ("loss", "dlogits"):
        assert torch.equal(got[name][[0, 2]], usual[name][[0, 2]])


def test_another_index_may_be_ignored():
    """Also one that is a class, and 1 or 0, which Triton would compile in."""
    x = make_rows(8, 4)
    for ignore_index in (0, 1, 3, -1):
        loss = online(x.logits, x.target, ignore_index=ignore_index)
        torch.testing.assert_close(loss, naive(x.logits, x.target, ignore_index=ignore_index))


LAYOUTS = {
    "sliced": lambda x: torch.cat([x, x], dim=-1)[:, : x.shape[1]],
    "offset": lambda x: torch.cat([x[:, :1], x], dim=-1)[:, 1:],
    "every-other-row": lambda x: torch.stack([x, -x], dim=1).reshape(-1, x.shape[1])[::2],
    "reversed-copy": lambda x: x.flip(1).contiguous().flip(1),
    "transposed": lambda x: x.T.contiguous().T,
    "one-row-expanded": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("classes", [37, 3000])
def test_strides_do_not_matter(layout, classes):
    """Rows are read where they lie, or copied: the same comes out, and back, but for the order of sums."""
    x = make_rows(5, classes, HALVES[0])
    logits = LAYOUTS[layout](x.logits)
    assert torch.equal(logits, x.logits if "expanded" not in layout else x.logits[:1].expand_as(x.logits))
    got = run("online", x._replace(logits=logits))
    expected = run("online", x._replace(logits=logits.contiguous()))
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value)


@pytest.mark.parametrize("classes", [8, 9, 33, 127, 3003])
@pytest.mark.parametrize("room", [0, 1, 8])
@pytest.mark.parametrize("dtype", [HALVES[0], "fp32"])
def test_rows_that_start_anywhere(classes, room, dtype, monkeypatch):
    """Lengths that no load of 16 bytes divides, with or without room between rows: nothing is lost."""
    monkeypatch.setattr(tiles, "_TABLE", dict.fromkeys(tiles.KERNELS, tiles._Sizes(512, 1024, 4)))
    tiles.choose.cache_clear()
    x = make_rows(max(5, 500 // classes), classes, dtype, ignored=1)
    wide = torch.cat([x.logits, torch.full_like(x.logits, math.nan)[:, :room]], dim=1)
    assert_right(x._replace(logits=wide[:, :classes]))
    tiles.choose.cache_clear()


def test_more_than_two_to_the_31_elements():
    """Offsets have 64 bits: a row may lie that far from the first."""
    classes, apart = 50, 2**31 + 8
    if DEVICE == "cpu":  # memory that is asked for and never touched costs nothing
        held = torch.from_numpy(numpy.zeros(apart + classes, numpy.float16))
    else:
        held = torch.zeros(apart + classes, dtype=torch.float16, device=DEVICE)
    far = held.as_strided((2, classes), (apart, 1))
    x = make_rows(2, classes, "fp16")
    far.copy_(x.logits)
    got, expected = run("online", x._replace(logits=far)), run("online", x)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value)


def test_what_is_sent_may_have_any_strides():
    """The gradient of a sum comes expanded, that of a slice with a stride."""
    x = make_rows(6, 40)
    leaf = x.logits.requires_grad_()
    weights = torch.stack([x.dloss, x.dlse], dim=1)[:, 0]
    for send in (torch.sum, lambda loss: loss[::2].sum(), lambda loss: (loss * weights).sum()):
        found = [
            torch.autograd.grad(send(cross_entropy(leaf, x.target, impl=impl, reduction="none")), leaf)[0]
            for impl in ("online", "naive")
        ]
        torch.testing.assert_close(*found)


def test_targets_may_have_any_strides():
    """A column of a matrix of targets, as labels shifted by one are."""
    x = make_rows(6, 40)
    columns = torch.stack([x.target, x.target.roll(1)], dim=1)
    torch.testing.assert_close(online(x.logits, columns[:, 1]), naive(x.logits, x.target.roll(1)))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 3)])
def test_no_rows_give_empty_results(shape):
    """Nothing is launched; the sum is 0 and the mean NaN."""
    logits = torch.zeros(shape, device=DEVICE, requires_grad=True)
    target = torch.empty(shape[:-1], dtype=torch.int64, device=DEVICE)
    loss, lse = online(logits, target, reduction="none", return_lse=True)
    assert loss.shape == lse.shape == shape[:-1]
    assert online(logits, target, reduction="sum") == 0
    assert torch.isnan(online(logits, target))
    (dlogits,) = torch.autograd.grad(loss.sum() + lse.sum(), logits)
    assert dlogits.shape == shape


def test_one_row_has_no_dimensions_to_spare():
    """logits (classes,) with a target () give a loss ()."""
    x = make_rows(1, 20)
    loss, lse = online(x.logits[0], x.target[0], return_lse=True)
    assert loss.shape == lse.shape == ()
    torch.testing.assert_close(loss, naive(x.logits, x.target))


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_parts_of_a_row_join_to_the_same(rows, monkeypatch):
    """Rows divided between programs give what whole ones do; the last part may be short, or all -inf."""
    x = make_rows(rows, 20011)
    x = x._replace(logits=x.logits.index_fill(1, torch.arange(8192, 16384, device=DEVICE), -math.inf))
    assert tiles.parts(1, 20011, 132) == 2
    whole = run("online", x)
    monkeypatch.setattr(tiles, "parts", lambda rows, classes, processors: 5)
    divided = run("online", x)
    for name, value in whole.items():
        torch.testing.assert_close(divided[name], value, rtol=1e-6, atol=1e-6)


def test_few_rows_are_divided_and_many_are_not():
    """A part has 8192 classes or more, and a device with enough rows divides none."""
    assert tiles.parts(16, 128256, 132) == 15
    assert tiles.parts(8192, 128256, 132) == 1
    assert tiles.parts(1, 5000, 132) == 1
    assert tiles.parts(0, 128256, 132) == 1


def test_every_tile_is_made_of_powers_of_two():
    """For any number of classes and any width of an element; a tile holds no more than a kernel's bytes."""
    for kernel, classes, itemsize in itertools.product(tiles.KERNELS, (1, 16, 60, 1000, 10**6), (2, 4)):
        if kernel == "few_classes" and classes > tiles.FEW_CLASSES:
            continue
        tile = tiles.choose(kernel, classes, itemsize)
        assert all(n & (n - 1) == 0 for n in tile), (kernel, tile)
        assert tile.columns >= 8


def test_eager_formulas_have_the_gradients_they_say():
    """gradcheck of the naive door in fp64: loss and lse, ignored rows among them."""
    x = make_rows(4, 6, "fp64", ignored=1)

    def both(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return naive(logits, x.target, return_lse=True)

    assert torch.autograd.gradcheck(both, x.logits.requires_grad_())


def test_naive_is_pytorchs_own_in_the_logits_dtype():
    """Bit for bit, widened at the end; fp64 stays fp64."""
    for dtype in (*HALVES, "fp32", "fp64"):
        x = make_rows(5, 11, dtype, ignored=1)
        loss, lse = naive_cross_entropy(x.logits, x.target, return_lse=True)
        expected = torch.nn.functional.cross_entropy(x.logits, x.target)
        wide = torch.float64 if dtype == "fp64" else torch.float32
        assert loss.dtype == wide
        assert torch.equal(loss, expected.to(wide))
        assert lse is not None
        assert torch.equal(lse, torch.logsumexp(x.logits.to(wide), -1))


def test_auto_takes_what_can_run():
    """Online on a CUDA device, naive elsewhere, under the interpreter, and in fp64."""
    x = make_rows(3, 9)
    name = cross_entropy(x.logits.requires_grad_(), x.target).grad_fn
    graph = {type(node).__name__ for node in _nodes(name)}
    assert any("cross_entropy_forward" in name for name in graph) == (DEVICE == "cuda")
    assert (
        why_not_online(x.logits.double()) == "online must have fp16, bf16 or fp32 logits, got torch.float64"
    )


def _nodes(node):
    yield node
    for child, _ in node.next_functions:
        if child is not None:
            yield from _nodes(child)


ROW = torch.zeros(2, 5)
REFUSED = {
    "logits must be a tensor, got list": ([[0.0]], torch.zeros(1, dtype=torch.int64), {}),
    "logits must be floating point, got torch.int64": (ROW.long(), torch.zeros(2, dtype=torch.int64), {}),
    "logits must be (..., classes) with a class or more, got ()": (ROW.sum(), torch.tensor(0), {}),
    "logits must be (..., classes) with a class or more, got (2, 0)": (ROW[:, :0], torch.zeros(2), {}),
    "target must be a tensor, got int": (ROW, 3, {}),
    "target must be int64, got torch.int32": (ROW, torch.zeros(2, dtype=torch.int32), {}),
    "target must have the shape of logits without classes (2,), got (3,)": (
        ROW,
        torch.zeros(3, dtype=torch.int64),
        {},
    ),
    "target must be on logits' device cpu, got meta": (
        ROW,
        torch.zeros(2, dtype=torch.int64, device="meta"),
        {},
    ),
    "reduction must be one of none, sum, mean, got 'max'": (
        ROW,
        torch.zeros(2, dtype=torch.int64),
        {"reduction": "max"},
    ),
    "impl must be one of auto, online, naive, got 'flash'": (
        ROW,
        torch.zeros(2, dtype=torch.int64),
        {"impl": "flash"},
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_wrong_input_is_one_sentence(sentence):
    """What the argument must be, and what it was."""
    logits, target, options = REFUSED[sentence]
    with pytest.raises((TypeError, ValueError)) as raised:
        cross_entropy(logits, target, **options)
    assert str(raised.value) == sentence


def test_online_refuses_what_it_cannot_take(monkeypatch):
    """fp64 anywhere; a CPU without the interpreter; bf16 with it."""
    x = make_rows(2, 5)
    with pytest.raises(NotImplementedError, match="online must have fp16, bf16 or fp32 logits"):
        online(x.logits.double(), x.target)
    if DEVICE == "cpu":
        with pytest.raises(NotImplementedError, match="under Triton's interpreter, got bf16"):
            online(x.logits.bfloat16(), x.target)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(NotImplementedError, match="online must have logits on a CUDA device, got cpu"):
        online(x.logits.cpu(), x.target.cpu())


def test_a_second_derivative_is_refused():
    """One clear sentence, which names the implementation that has it."""
    x = make_rows(2, 5)
    leaf = x.logits.requires_grad_()
    (first,) = torch.autograd.grad(online(leaf, x.target), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="once, not twice: impl='naive' has both"):
        torch.autograd.grad(first.sum(), leaf)


@pytest.mark.parametrize("impl", ["online", "naive", "auto"])
def test_shapes_need_no_storage(impl, monkeypatch):
    """`meta` tensors get the shapes and dtypes that real ones would have."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    logits = torch.zeros(2, 3, 50, dtype=torch.bfloat16, device="meta", requires_grad=True)
    target = torch.empty(2, 3, dtype=torch.int64, device="meta")
    loss, lse = cross_entropy(logits, target, impl=impl, reduction="none", return_lse=True)
    (dlogits,) = torch.autograd.grad((loss, lse), logits, (torch.empty_like(loss), torch.empty_like(lse)))
    assert (loss.shape, loss.dtype, lse.shape) == ((2, 3), torch.float32, (2, 3))
    assert (dlogits.shape, dlogits.dtype) == (logits.shape, torch.bfloat16)
