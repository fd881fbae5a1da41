"""Which calls a worker makes before the first block, so that no case there has to load its libraries.

Loaded in turn they would keep the other workers waiting, and be part of `first_call_ms` in whichever row came
first.

What is slow about the first use of a backend (libraries, kernels' modules, a compiler) is the same at any
length. So a rehearsal has the backends, masks and widths of the plan on shapes that take no time and hardly
any memory, however many workers rehearse side by side. Pure; no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from profiling.case import FLASH_BACKENDS, Case

MOST = 8  # first calls of one worker: the backends' own, and then some of the kernels' that they load
_ROWS = 256  # no tile has more: a length keeps its rest by it, and so takes the kernels of the longer one
_FEW_QUERIES = 64  # as in `precompile`
_FEW_HEADS = 2
_SHORT_WINDOW = 64  # of a shortened case, so that its window still hides something


def rehearsal(cases: Iterable[Case], most: int = MOST) -> list[Case]:
    """Small cases that use for the first time what `cases` use; at most `most`, every backend's first.

    There is one for each backend with its dtype, head dims and features, in the order of `cases`: a backward
    where the plan has one, since its first call runs the forward as well, and rather with more queries than
    have kernels of their own. A custom backend has none: what a
    stranger's function does with shapes that nobody asked for is not known.
    """
    first: dict[Any, Case] = {}
    for case in cases:
        if ":" in case.backend:
            continue
        if _worth(case) > _worth(first.setdefault(_kind(case), case)):
            first[_kind(case)] = case
    by_backend: dict[str, list[Case]] = {}
    for case in first.values():
        by_backend.setdefault(case.backend, []).append(shortened(case))
    turns = itertools.zip_longest(*by_backend.values())
    return [case for turn in turns for case in turn if case is not None][:most]


def _kind(case: Case) -> tuple[Any, ...]:
    features = (case.softcap is not None, case.bias, case.sinks, case.alibi, case.layout)
    window = (case.window_left is not None, case.window_right is not None)
    widths = (case.head_dim, case.head_dim_v)
    return (case.operation, case.backend, case.dtype, widths, case.causal, window, features)


def _worth(case: Case) -> tuple[bool, bool]:
    return case.direction != "fwd", case.seq_len_q > _FEW_QUERIES


def shortened(case: Case) -> Case:
    """The same case with one sequence of a few hundred tokens, and few heads.

    `flash` keeps its heads: they cost it little, and what is compiled ahead for the plan is then what the
    short case needs, but for tiles that only long sequences have.
    """
    kv_heads = case.kv_heads if case.backend in FLASH_BACKENDS else min(case.kv_heads, _FEW_HEADS)
    left, right = (None if side is None else min(side, _SHORT_WINDOW) for side in case.hiding_window)
    n_q, n_k = _short(case.seq_len_q), _short(case.seq_len_k)
    if n_q == n_k and case.seq_len_q != case.seq_len_k:
        n_k += _ROWS
    small = {
        "batch": min(case.batch, 1),
        "heads": kv_heads * (case.heads // case.kv_heads),
        "kv_heads": kv_heads,
        "seq_len_q": n_q,
        "seq_len_k": n_k,
        "window_left": left,
        "window_right": right,
    }
    return case.model_copy(update=small)


def _short(length: int) -> int:
    return length if length < 2 * _ROWS else _ROWS + length % _ROWS
