"""From a function of dense attention to one of a case's inputs, in each layout.

A dense function takes q, k, v (batch, heads, seq_len, head_dim) and the keywords `causal`, `window`,
`softcap`, `bias`, `sinks`, `alibi_slopes` and `return_lse`, as `fa_core.attention` does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from profiling.case import Case
from profiling.measure.inputs import Inputs

Dense = Callable[..., Any]  # (q, k, v, **keywords) -> out, or (out, lse) with return_lse=True
Attend = Callable[..., Any]  # (inputs, return_lse=False) -> out, or (out, lse)


def options(case: Case) -> dict[str, Any]:
    """What of a case is no tensor, as keywords: `causal`, and a window and a softcap where it has one."""
    found: dict[str, Any] = {"causal": case.causal}
    if case.window_left is not None or case.window_right is not None:
        found["window"] = (case.window_left, case.window_right)
    if case.softcap is not None:
        found["softcap"] = case.softcap
    return found


def tensors(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The tensors beside q, k and v, as keywords; only those that are there."""
    known = {"bias": inputs.bias, "sinks": inputs.sinks, "alibi_slopes": inputs.slopes}
    return {name: x for name, x in known.items() if x is not None}


def in_layout(dense: Dense, case: Case) -> Attend:
    """`dense` on the inputs of a case: as it is, once per packed sequence, or on gathered pages."""
    layouts = {"dense": _as_it_is, "varlen": _per_sequence, "paged": _gathered}
    return functools.partial(layouts[case.layout], dense, case)


def _as_it_is(dense: Dense, case: Case, inputs: Inputs, *, return_lse: bool = False) -> Any:
    more = tensors(inputs) | ({"return_lse": True} if return_lse else {})
    return dense(inputs.q, inputs.k, inputs.v, **more)


def _per_sequence(dense: Dense, case: Case, inputs: Inputs, *, return_lse: bool = False) -> Any:
    """One sequence after the other, their places known to the host: nothing is padded, nothing waited for.

    Returns:
        out (total_q, heads, head_dim_v); with `return_lse` also lse (heads, total_q).
    """
    outs, lses = [], []
    more = tensors(inputs)
    ends = itertools.accumulate(case.lengths, lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0, 0))
    for (q0, k0), (q1, k1) in itertools.pairwise(ends):
        q, k, v = (
            x[start:end].transpose(0, 1).unsqueeze(0)
            for x, start, end in ((inputs.q, q0, q1), (inputs.k, k0, k1), (inputs.v, k0, k1))
        )
        if return_lse:
            out, lse = dense(q, k, v, **more, return_lse=True)
            lses.append(lse.squeeze(0))
        else:
            out = dense(q, k, v, **more)
        outs.append(out.squeeze(0).transpose(0, 1))
    out = torch.cat(outs) if outs else inputs.dout.new_empty(inputs.dout.shape)
    if not return_lse:
        return out
    return out, torch.cat(lses, dim=1) if lses else inputs.q.new_empty(inputs.q.shape[1], 0)


def _gathered(dense: Dense, case: Case, inputs: Inputs, *, return_lse: bool = False) -> Any:
    """The pages of each sequence put side by side first, as one does without a kernel that reads pages."""
    k, v = (gather_pages(x, inputs.block_table, case.seq_len_k) for x in (inputs.k, inputs.v))
    return _as_it_is(dense, case, inputs._replace(k=k, v=v), return_lse=return_lse)


def gather_pages(cache: torch.Tensor, table: torch.Tensor | None, seq_len: int) -> torch.Tensor:
    """(pages, page_size, heads, d) and a table (batch, pages) to (batch, heads, seq_len, d), copied."""
    assert table is not None
    return cache[table].flatten(1, 2)[:, :seq_len].transpose(1, 2)
