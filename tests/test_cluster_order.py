"""In which order the ray executor hands out series, and when its actors end; on a clock of its own."""

import sys

import pytest

from profiling.case import Case, blocks
from profiling.cluster import Cluster, longest_first
from tests.test_cluster import StandInRay, open_device


class TimedRay(StandInRay):
    """Blocks take time on a clock of their own: of those under way, the one that ends next is done."""

    def __init__(self, cost_s):
        super().__init__()
        self.cost_s, self.now_s, self.ends_s = cost_s, 0.0, {}
        self.last_s = {}  # when each actor was last done

    def wait(self, refs, num_returns=1, timeout=None):
        """Those that are seen for the first time began just now."""
        if {ref.call[1] for ref in refs} != {"measure"}:
            return super().wait(refs, num_returns, timeout)
        for ref in refs:
            cost_s = sum(map(self.cost_s, ref.call[2][0]))
            self.ends_s.setdefault(ref, self.now_s + cost_s)
        done = min(refs, key=self.ends_s.__getitem__)
        self.now_s = self.last_s[done.call[0].number] = self.ends_s[done]
        return [done], [ref for ref in refs if ref is not done]


def cases():
    """Five series, each twice as long as the one before, the short ones first."""
    return [
        Case(backend="naive", seq_len_q=n, seq_len_k=n, head_dim=d, head_dim_v=d)
        for d in (8, 16, 32, 64, 128)
        for n in (16, 32, 64, 128)
    ]


def ends_s(monkeypatch, guess_s, seats=2):
    """When each actor is done with its last block, if a case takes a second for 32 of its head_dim."""
    ray = TimedRay(lambda case: case.head_dim / 32)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with Cluster(open_device, "cpu", seats, guess_s) as cluster:
        rows = [row for rows in cluster.executor(range(seats))(blocks(cases())) for row in rows]
    assert sorted(row.case.label for row in rows) == sorted(case.label for case in cases())
    for d in (8, 16, 32, 64, 128):
        assert len({row.environment for row in rows if row.case.head_dim == d}) == 1
    return sorted(ray.last_s.values())


def test_by_what_they_cost():
    """Series by their guessed seconds, the blocks of each as they were; equals keep their order."""
    found = longest_first(blocks(cases()), lambda case: case.head_dim)
    assert [one[0][0].head_dim for one in found] == [128, 64, 32, 16, 8]
    assert [[block[0].seq_len_q for block in one] for one in found] == [[16, 32, 64, 128]] * 5
    alike = longest_first(blocks(cases()), lambda case: 1.0)
    assert [one[0][0].head_dim for one in alike] == [8, 16, 32, 64, 128]


def test_actors_end_together(monkeypatch):
    """In the sweep's order one would wait for the longest series, which comes last."""
    assert ends_s(monkeypatch, lambda case: 1.0) == [10.0, 21.0]
    assert ends_s(monkeypatch, lambda case: case.head_dim) == [15.0, 16.0]


@pytest.mark.parametrize("seats", [3, 7])
def test_no_actor_is_busy_for_longer_than_the_longest_series(monkeypatch, seats):
    """More actors than that are of no use, and some may have nothing to do."""
    assert ends_s(monkeypatch, lambda case: case.head_dim, seats)[-1] == 16.0
