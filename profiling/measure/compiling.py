"""What compilers take of a first call, so that it is told apart from everything else in it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


class CompileClock:
    """Milliseconds spent compiling within `watch`, by Triton (as its listener says) or torch.compile."""

    def __init__(self) -> None:
        self._triton_ms = 0.0
        self._dynamo_ms = 0.0

    @property
    def ms(self) -> float:
        """The larger of the two: torch.compile's own time holds that of the Triton kernels it makes."""
        return max(self._triton_ms, self._dynamo_ms)

    @contextlib.contextmanager
    def watch(self) -> Iterator[CompileClock]:
        """Add what is compiled inside to `ms`; a kernel that its cache holds already adds nothing."""
        before_ms = _dynamo_ms()
        knobs = _triton_knobs()
        listener = getattr(knobs, "listener", None)
        if knobs is not None:
            knobs.listener = self._hear
        try:
            yield self
        finally:
            if knobs is not None:
                knobs.listener = listener
            self._dynamo_ms += max(_dynamo_ms() - before_ms, 0.0)

    def _hear(self, *, times: Any, cache_hit: bool, **what: Any) -> None:
        if not cache_hit:
            self._triton_ms += times.total / 1e3  # microseconds


def _triton_knobs() -> Any:
    """Triton's compilation settings; None without Triton, or with one that has no listener."""
    try:
        from triton import knobs
    except ImportError:
        return None
    return knobs.compilation if hasattr(knobs.compilation, "listener") else None


def _dynamo_ms() -> float:
    """What torch.compile has taken in this process so far. It is asked only where it was used."""
    utils = sys.modules.get("torch._dynamo.utils")
    spent = getattr(utils, "calculate_time_spent", dict)()
    return spent.get("total_wall_time", 0.0) * 1e3
