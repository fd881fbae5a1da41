"""Online softmax beyond attention: cross-entropy over a vocabulary, and the best k classes with weights."""

from fa_core.softmax.cross_entropy import cross_entropy

__all__ = ["cross_entropy"]
