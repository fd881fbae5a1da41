"""Runs one kernel with candidate tiles on inputs made for it, and judges what comes out.

A candidate is judged on short sequences, one that fills its tiles and one that does not, by the error
rule of CONTRIBUTING.md against the eager baseline in fp64; it is timed on long ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from fa_core import launch
from fa_core.kernels import tuning
from fa_core.kernels.tuning import TileConfig
from fa_core.launch import Launch, Problem, Saved
from fa_core.naive import naive_attention

TOKENS, HIDDEN = 16384, 2048  # of the inputs that are timed: enough to fill a GPU
SHORT_LENGTHS = (512, 333)
REPEATS = 3  # launches within one timing
Tensors = tuple[torch.Tensor, ...]


class Case(NamedTuple):
    """One problem, with what its forward left and the gradient that its backward starts from."""

    problem: Problem
    out: torch.Tensor
    saved: Saved


def make_case(
    batch: int, heads: int, kv_heads: int, n: int, head_dim: int, dtype: torch.dtype, masked: bool,
    device: torch.device, *, biased: bool = False,
) -> Case:  # fmt: skip
    """Normal random inputs, with a random state of their own; the table's tile has run the forward."""
    g = torch.Generator(device=device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, device=device, dtype=torch.float32).to(dtype)

    p = Problem(
        q=draw(batch, heads, n, head_dim),
        k=draw(batch, kv_heads, n, head_dim),
        v=draw(batch, kv_heads, n, head_dim),
        bias=draw(batch, heads, n, n) if biased else None,
        slopes=None, sinks=None, cu_q=None, cu_k=None, table=None,
        scale=head_dim**-0.5, left=None, right=0 if masked else None, top_left=False, softcap=0.0,
    )  # fmt: skip
    statistics = p.q.new_empty(p.q.shape[:3], dtype=p.statistics_dtype)
    saved = Saved(draw(*p.q.shape), *(torch.empty_like(statistics) for _ in range(3)))
    case = Case(p, torch.empty_like(p.q), saved)
    first = table_tile("forward", p, 2 if biased else 0)
    for step in launch.forward_launches(p, case.out, saved.row_max, saved.log_sum, first):
        step.run()
    launch.delta_launch(case.out, case.saved.dout, None, case.saved.delta, tuning.exact(p.q)).run()
    return case


def table_tile(kernel: str, p: Problem, bias_bytes: int = 0) -> TileConfig:
    """The table's tile on p's device, whatever was tuned."""
    target = tuning.gpu(p.q.device)
    config = tuning.seeded_config(kernel, p.width, p.q.dtype, p.masked, target)
    if target is None:
        return config
    return tuning.fit(config, kernel, p.width, p.q.dtype, target, bias_bytes=bias_bytes)


def steps_of(kernel: str, case: Case, config: TileConfig) -> tuple[list[Launch], Tensors]:
    """The launches of one kernel of a case, and what they write; it holds NaN so far."""
    p, saved = case.problem, case.saved

    def poisoned(*like: torch.Tensor) -> Tensors:
        return tuple(torch.full_like(x, torch.nan) for x in like)

    if kernel == "forward":
        out, row_max, log_sum = written = poisoned(case.out, saved.row_max, saved.log_sum)
        return launch.forward_launches(p, out, row_max, log_sum, config), written
    if kernel == "dkdv":
        dk, dv = written = poisoned(p.k, p.v)
        return [launch.dkdv_launch(p, saved, dk, dv, config)], written
    if kernel == "dq":
        (dq,) = written = poisoned(p.q)
        return [launch.dq_launch(p, saved, dq, None, config)], written
    assert p.bias is not None
    (dbias,) = written = poisoned(p.bias)
    return [launch.dbias_launch(p, saved, dbias, config)], written


def eager(kernel: str, case: Case, dtype: torch.dtype) -> Tensors:
    """What `steps_of` is to write, by the eager baseline computed in `dtype`."""
    p = case.problem
    leaves = [x.to(dtype).requires_grad_() for x in (p.q, p.k, p.v)]
    bias = None if p.bias is None else p.bias.to(dtype).requires_grad_()
    with torch.enable_grad():
        out, lse = naive_attention(
            leaves[0], leaves[1], leaves[2], causal=p.right == 0, bias=bias, scale=p.scale, return_lse=True
        )
        if kernel == "forward":
            return out.detach(), lse.detach()
        wanted = {"dq": leaves[:1], "dkdv": leaves[1:], "dbias": [bias]}[kernel]
        return torch.autograd.grad(out, [x for x in wanted if x is not None], case.saved.dout.to(dtype))


def within_rule(x: torch.Tensor, ref: torch.Tensor, low: torch.Tensor) -> bool:
    """The error rule: x is no further from the fp64 `ref` than twice the eager `low`, and rounding."""
    rounded = (ref.to(x.dtype) + 0.3 - 0.3).double()
    allowed = 2 * (low.double() - ref).abs().max() + 2 * (rounded - ref).abs().max()
    return bool((x.double() - ref).abs().max() <= allowed)


class Experiment:
    """Candidates of one kernel, for one kind of call.

    Args:
        kernel: one of tuning.KERNELS.
        head_dim: padded; also that of the values.
        dtype: of q, k and v.
        masked: with a causal mask.
        device: where to run.
        n: queries and keys of the timed inputs.
        timed: False leaves those out, so that nothing but correctness can be asked.
    """

    def __init__(
        self, kernel: str, head_dim: int, dtype: torch.dtype, masked: bool, device: torch.device, n: int,
        short_lengths: tuple[int, ...] = SHORT_LENGTHS, timed: bool = True,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        biased = kernel == "dbias"
        self.short = [
            make_case(1, 2, 1, length, head_dim, dtype, masked, device, biased=biased)
            for length in short_lengths
        ]
        self.references = [
            (eager(kernel, case, torch.float64), eager(kernel, case, dtype)) for case in self.short
        ]
        self.long = None
        if timed:
            heads = 1 if biased else max(1, HIDDEN // head_dim)  # a bias has as many bytes as its scores
            batch = 1 if biased else max(1, TOKENS // n)
            self.long = make_case(batch, heads, heads, n, head_dim, dtype, masked, device, biased=biased)

    def launch(self, config: TileConfig) -> list[Tensors]:
        """What a candidate writes for each short case."""
        return [self._run(case, config) for case in self.short]

    def _run(self, case: Case, config: TileConfig) -> Tensors:
        steps, written = steps_of(self.kernel, case, config)
        for step in steps:
            step.run()
        if self.kernel == "forward":
            # Which maximum was subtracted is the kernel's affair; what it says is the log-sum-exp.
            out, row_max, log_sum = written
            return out, row_max * case.problem.unit + log_sum
        return written

    def is_right(self, results: list[Tensors]) -> bool:
        """Whether all of it obeys the error rule."""
        return all(
            within_rule(x, ref, low)
            for written, (refs, lows) in zip(results, self.references, strict=True)
            for x, ref, low in zip(written, refs, lows, strict=True)
        )

    def time_ms(self, config: TileConfig) -> float:
        """Milliseconds of one launch on the long case, by the GPU's own clock."""
        assert self.long is not None
        steps, _ = steps_of(self.kernel, self.long, config)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for repeat in range(REPEATS + 1):
            if repeat == 1:  # the first may compile, and warms the caches
                begin.record()
            for step in steps:
                step.run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / REPEATS
