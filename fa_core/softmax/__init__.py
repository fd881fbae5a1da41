"""Online softmax beyond attention: cross-entropy over a vocabulary, and the k best classes with weights."""

from fa_core.softmax.cross_entropy import cross_entropy
from fa_core.softmax.top_k import softmax_top_k

__all__ = ["cross_entropy", "softmax_top_k"]
