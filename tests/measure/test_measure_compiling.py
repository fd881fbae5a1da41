"""The compile clock: what compilers took, once, and nothing where their caches had it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from profiling.measure.compiling import CompileClock, _triton_knobs

knobs = _triton_knobs()


@pytest.mark.skipif(knobs is None, reason="Triton is not there, or has no listener")
class TestTriton:
    """What Triton's listener hears."""

    def test_compiled_kernels_add_up_and_cached_ones_count_nothing(self):
        """Two kernels of 3 and 4 ms, and one from the cache: 7 ms."""
        clock = CompileClock()
        with clock.watch():
            for microseconds, hit in ((3000, False), (9000, True), (4000, False)):
                times = SimpleNamespace(total=microseconds)
                knobs.listener(src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit)
        assert clock.ms == 7.0

    def test_another_listener_is_put_back(self):
        """Whoever listened before listens again, also after a failure."""
        before = knobs.listener
        with pytest.raises(ValueError, match="broken"), CompileClock().watch():
            raise ValueError("broken")
        assert knobs.listener is before


def test_nothing_compiled_is_nothing():
    """A call without compilers takes them no time."""
    with CompileClock().watch() as clock:
        torch.ones(3).sum()
    assert clock.ms == 0.0


def test_torch_compile_counts_its_own_kernels_once(monkeypatch):
    """The time that torch.compile reports holds what its Triton kernels took: the larger counts."""
    import torch._dynamo.utils as utils

    spent = [1.0]
    monkeypatch.setattr(utils, "calculate_time_spent", lambda: {"total_wall_time": spent[0]})
    clock = CompileClock()
    with clock.watch():
        clock._hear(times=SimpleNamespace(total=2e6), cache_hit=False)
        spent[0] = 6.0
    assert clock.ms == 5000.0
