"""In which order the ray executor hands out series, and when its actors end; on a clock of its own."""

import functools
import sys
from datetime import datetime
from itertools import pairwise

import pytest

from profiling.case import Case, blocks
from profiling.cluster import Cluster, longest_first
from profiling.grid import Sweep
from profiling.measure.budget import cost_s
from profiling.paths import DATA_DIR
from profiling.store import load_run
from tests.test_cluster import StandInRay, open_device


class TimedRay(StandInRay):
    """Blocks take time on a clock of their own: of those under way, the one that ends next is done."""

    def __init__(self, took_s):
        super().__init__()
        self.took_s, self.now_s, self.ends_s = took_s, 0.0, {}
        self.last_s = {}  # when each actor was last done

    def wait(self, refs, num_returns=1, timeout=None):
        """Those that are seen for the first time began just now."""
        if {ref.call[1] for ref in refs} != {"measure"}:
            return super().wait(refs, num_returns, timeout)
        for ref in refs:
            self.ends_s.setdefault(ref, self.now_s + self.took_s(ref.call[2][0]))
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


def took_s(block):
    """A case takes a second for 32 of its head_dim."""
    return sum(case.head_dim / 32 for case in block)


def ends_s(monkeypatch, guess_s, seats=2, plan=cases, took_s=took_s):
    """When each actor is done with its last block."""
    ray = TimedRay(took_s)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with Cluster(open_device, "cpu", seats, guess_s) as cluster:
        rows = [row for rows in cluster.executor(range(seats))(blocks(plan())) for row in rows]
    assert sorted(row.case.label for row in rows) == sorted(case.label for case in plan())
    for one in longest_first(blocks(plan()), guess_s):
        alone = {case for block in one for case in block}
        assert len({row.environment for row in rows if row.case in alone}) == 1
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


def test_two_gpus_end_together_in_the_standard_sweep(monkeypatch):
    """With blocks as long as those of the committed run, and the seconds that are guessed before it."""
    run = load_run(DATA_DIR / "samples" / "h200-standard.jsonl")
    plan = [row.case for row in run.measurements]
    by_block = {row.case.shape_key: datetime.fromisoformat(row.measured_at) for row in run.measurements}
    times = [datetime.fromisoformat(run.header.created_at), *by_block.values()]
    took_s = {
        key: (end - begin).total_seconds()
        for key, (begin, end) in zip(by_block, pairwise(times), strict=True)
    }
    protocol = Sweep.model_validate(run.header.sweep).protocol
    guess_s = functools.partial(cost_s, protocol=protocol, clocks=run.header.clocks, device_kind="cuda")
    ends = ends_s(monkeypatch, guess_s, 2, lambda: plan, lambda block: took_s[block[0].shape_key])
    assert sum(ends) == pytest.approx(sum(took_s.values()))
    assert ends[-1] < 1.02 * sum(ends) / 2
