"""Which keys a query may see: a causal mask, a sliding window, or both, as one band along the diagonal."""

from __future__ import annotations

from typing import NamedTuple

ALIGNMENTS: tuple[str, ...] = ("bottom-right", "top-left")


class Band(NamedTuple):
    """Query i sees key j when i + shift - left <= j <= i + shift + right; None is no limit on that side."""

    left: int | None = None
    right: int | None = None
    top_left: bool = False  # the diagonal starts at the first key, rather than ending at the last

    def shift(self, n_q: int, n_k: int) -> int:
        """The key that stands on the diagonal of query 0."""
        return 0 if self.top_left else n_k - n_q

    @property
    def unlimited(self) -> bool:
        """Whether every query sees every key."""
        return self.left is None and self.right is None

    def needed(self, n_q: int, n_k: int) -> Band:
        """The same band without the limits that hide nothing at these lengths."""
        shift = self.shift(n_q, n_k)
        left = None if self.left is None or n_q - 1 + shift - self.left <= 0 else self.left
        right = None if self.right is None or shift + self.right >= n_k - 1 else self.right
        return Band(left, right, self.top_left)

    def visible_rows(self, n_q: int, n_k: int) -> tuple[int, int]:
        """The queries [first, end) that see a key at all; (0, 0) when none does."""
        shift = self.shift(n_q, n_k)
        first = 0 if self.right is None else min(n_q, max(0, -shift - self.right))
        end = n_q if self.left is None else max(0, min(n_q, n_k + self.left - shift))
        return (first, end) if n_k and first < end else (0, 0)

    def most_keys(self, n_q: int, n_k: int) -> int:
        """The keys that the query which sees the most of them sees."""
        shift = self.shift(n_q, n_k)

        def seen(i: int) -> int:
            first = 0 if self.left is None else max(0, i + shift - self.left)
            last = n_k - 1 if self.right is None else min(n_k - 1, i + shift + self.right)
            return max(0, last - first + 1)

        # Along the queries the number first grows, then falls: it is largest where one of the two starts.
        turns = (0, n_q - 1, (self.left or 0) - shift, n_k - 1 - (self.right or 0) - shift)
        return max((seen(min(max(i, 0), n_q - 1)) for i in turns), default=0) if n_q else 0


def make_band(causal: bool, causal_align: str, window: tuple[int | None, int | None] | None) -> Band:
    """The band of a causal mask and a window together: causal puts its right edge on the diagonal.

    Raises:
        ValueError: an unknown alignment, or a window that is not two lengths of at least 0 (or None).
        TypeError: a window that is not a pair.
    """
    if causal_align not in ALIGNMENTS:
        raise ValueError(f"causal_align must be one of {', '.join(ALIGNMENTS)}, got {causal_align!r}")
    left, right = None, None
    if window is not None:
        if not isinstance(window, tuple | list) or len(window) != 2:
            raise TypeError(f"window must be a pair (left, right), got {window!r}")
        left, right = window
        for name, side in (("left", left), ("right", right)):
            if side is not None and (isinstance(side, bool) or not isinstance(side, int)):
                raise TypeError(f"window's {name} must be a whole number or None, got {side!r}")
            if side is not None and side < 0:
                raise ValueError(f"window's {name} must be at least 0 (None: no limit), got {side}")
    return Band(left, 0 if causal else right, causal_align == "top-left")
