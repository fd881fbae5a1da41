"""Masks written out: each pair as the definition says, whole and in parts."""

import pytest
import torch

from profiling.measure.masks import added_scores, keys_in_reach

LIKE = torch.zeros(1, dtype=torch.float64)
FIELDS = [
    {"causal": True},
    {"window_left": 5},
    {"window_right": 3},
    {"window_left": 4, "window_right": 2},
    {"causal": True, "window_left": 0},
]


def visible(case, n_q, n_k):
    """True where query i sees key j, by the definition."""
    i, j = torch.arange(n_q)[:, None] + n_k - n_q, torch.arange(n_k)
    seen = torch.ones(n_q, n_k, dtype=torch.bool)
    if case.causal:
        seen &= j <= i
    if case.window_left is not None:
        seen &= j >= i - case.window_left
    if case.window_right is not None:
        seen &= j <= i + case.window_right
    return seen


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize(("n_q", "n_k"), [(12, 12), (5, 17), (17, 5), (1, 9), (9, 1)])
class TestPairs:
    """What is hidden, and what is within reach."""

    def test_hidden_pairs(self, make_case, fields, n_q, n_k):
        """-inf where the definition hides a pair, 0 elsewhere."""
        case = make_case(**fields)
        added = added_scores(case, None, LIKE, n_q, n_k)
        assert added.shape == (1, 1, n_q, n_k)
        assert torch.equal(added[0, 0] == 0, visible(case, n_q, n_k))
        assert torch.equal(added[0, 0].isneginf(), ~visible(case, n_q, n_k))

    def test_keys_in_reach(self, make_case, fields, n_q, n_k):
        """The keys of a slab are exactly those between the first and the last that it sees."""
        case = make_case(**fields)
        for start in range(n_q):
            for stop in range(start + 1, n_q + 1):
                found = keys_in_reach(case, range(start, stop), n_q, n_k)
                seen = visible(case, n_q, n_k)[start:stop].any(dim=0).nonzero().flatten().tolist()
                assert list(found) == seen

    def test_parts_are_of_the_whole(self, make_case, fields, n_q, n_k):
        """A part of the rows and columns is cut out of the whole, slopes included."""
        case = make_case(**fields, alibi=True)
        slopes = torch.tensor([0.5, 0.25])
        whole = added_scores(case, slopes, LIKE, n_q, n_k)
        part = added_scores(case, slopes, LIKE, n_q, n_k, range(n_q // 2, n_q), range(n_k // 3, n_k))
        assert torch.equal(part, whole[:, :, n_q // 2 :, n_k // 3 :])


def test_alibi_counts_from_the_diagonal(make_case):
    """-slope times the distance to the query's own place, head by head."""
    added = added_scores(make_case(alibi=True), torch.tensor([1.0, 0.5]), LIKE, 2, 3)
    assert added[0, 0].tolist() == [[-1, 0, -1], [-2, -1, 0]]
    assert added[0, 1].tolist() == [[-0.5, 0, -0.5], [-1, -0.5, 0]]


def test_nothing_to_add(make_case):
    """Without a mask and without slopes there is no tensor."""
    assert added_scores(make_case(), None, LIKE, 4, 4) is None
