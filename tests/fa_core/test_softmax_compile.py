"""The softmax operators as PyTorch has them: opcheck, and one graph with a compiler.

Apart from the other tests, which poison what `torch.empty` returns: a compiler keeps what it has learnt of
torch's functions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import DEVICE

from fa_core import cross_entropy, softmax_top_k

BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"
IGNORED = -100
BOTH = pytest.mark.parametrize("renormalize", [True, False])


def draw(*shape: int) -> torch.Tensor:
    """Normal random numbers on the device at hand."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def make_targets(rows: int, classes: int) -> torch.Tensor:
    """Any classes, the first of them ignored."""
    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(1))
    target[0] = IGNORED
    return target.to(DEVICE)


def operators() -> Any:
    """`torch.ops.fa_core` with the operators registered."""
    softmax_top_k(draw(1, 2), 1, impl="online")
    return torch.ops.fa_core


@pytest.mark.parametrize("classes", [7, 40])
def test_opcheck_cross_entropy(classes):
    """Schemas, fakes, autograd and tracing with dynamic shapes agree with what runs, both ways."""
    ops, logits, target = operators(), draw(5, classes), make_targets(5, classes)
    _, row_max, log_sum = ops.cross_entropy_forward.default(logits, target, IGNORED)
    for sent in ((draw(5), draw(5)), (draw(5), None), (None, draw(5))):
        args = (logits, target, row_max, log_sum, *sent, IGNORED)
        torch.library.opcheck(ops.cross_entropy_backward.default, args)
    torch.library.opcheck(ops.cross_entropy_forward.default, (logits.requires_grad_(), target, IGNORED))


@BOTH
def test_opcheck_top_k(renormalize):
    """The same of the top-k."""
    ops, logits = operators(), draw(5, 12)
    _, indices, statistics = ops.top_k_forward.default(logits, 3, renormalize)
    args = (logits, indices, statistics, draw(5, 3), renormalize)
    torch.library.opcheck(ops.top_k_backward.default, args)
    torch.library.opcheck(ops.top_k_forward.default, (logits.requires_grad_(), 3, renormalize))


@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph_cross_entropy(dynamic):
    """One graph, forward and backward, with a z-loss: what comes out is what comes without a compiler."""
    leaf, target = draw(2, 3, 50).requires_grad_(), make_targets(6, 50).reshape(2, 3)

    def trained(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss, lse = cross_entropy(logits, target, impl="online", return_lse=True)
        return loss + 1e-3 * lse.square().mean()

    found = []
    for call in (trained, torch.compile(trained, fullgraph=True, dynamic=dynamic, backend=BACKEND)):
        loss = call(leaf, target)
        found.append((loss, *torch.autograd.grad(loss, leaf)))
    for seen, expected in zip(*found, strict=True):
        torch.testing.assert_close(seen, expected)


@BOTH
@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph_top_k(dynamic, renormalize):
    """The same of the top-k."""
    leaf, sent = draw(2, 3, 40).requires_grad_(), draw(2, 3, 3)

    def gate(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return softmax_top_k(logits, 3, renormalize=renormalize, impl="online")

    found = []
    for call in (gate, torch.compile(gate, fullgraph=True, dynamic=dynamic, backend=BACKEND)):
        weights, indices = call(leaf)
        found.append((weights, indices, *torch.autograd.grad(weights, leaf, sent)))
    for seen, expected in zip(*found, strict=True):
        torch.testing.assert_close(seen, expected)
