"""What a mask and ALiBi add to the scores, written out: for PyTorch's SDPA, and for the oracle's slabs."""

from __future__ import annotations

import torch

from profiling.case import Case


def keys_in_reach(case: Case, queries: range, n_q: int, n_k: int) -> range:
    """The keys that at least one of some consecutive queries sees, bottom-right aligned."""
    right = 0 if case.causal else case.window_right
    shift = n_k - n_q
    start = 0 if case.window_left is None else queries.start + shift - case.window_left
    stop = n_k if right is None else queries.stop + shift + right
    start, stop = (min(max(x, 0), n_k) for x in (start, stop))
    return range(min(start, stop), stop)


def added_scores(
    case: Case,
    slopes: torch.Tensor | None,
    like: torch.Tensor,
    n_q: int,
    n_k: int,
    queries: range | None = None,
    keys: range | None = None,
) -> torch.Tensor | None:
    """-slope·|distance| of ALiBi, and -inf where a mask hides a pair; None where there is neither.

    Args:
        case: whose mask.
        slopes: (heads,), or None without ALiBi.
        like: a tensor of the dtype and device wanted.
        n_q: queries of the sequence; the last stands at the last of its keys.
        n_k: keys of the sequence.
        queries: the rows to write out; all when None.
        keys: the columns; all when None.

    Returns:
        (1, heads, rows, columns), heads 1 where they are all alike.
    """
    windowed = case.window_left is not None or case.window_right is not None
    if slopes is None and not case.causal and not windowed:
        return None
    queries = range(n_q) if queries is None else queries
    keys = range(n_k) if keys is None else keys
    place = torch.arange(queries.start, queries.stop, device=like.device) + (n_k - n_q)
    ahead = torch.arange(keys.start, keys.stop, device=like.device) - place[:, None]
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if case.causal:
        hidden |= ahead > 0
    if case.window_left is not None:
        hidden |= ahead < -case.window_left
    if case.window_right is not None:
        hidden |= ahead > case.window_right
    heads = 1 if slopes is None else len(slopes)
    added = like.new_zeros(1, heads, *ahead.shape)
    if slopes is not None:
        distance = ahead.abs_().to(torch.promote_types(like.dtype, torch.float32))
        for head, slope in enumerate(slopes):  # one at a time: the wide product is as large as the scores
            added[0, head] = -slope * distance
    return added.masked_fill_(hidden, float("-inf"))
