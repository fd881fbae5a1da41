"""Exact attention, three ways: eager, tile by tile in plain PyTorch, and fused in Triton; other softmaxes.

Importing this package imports torch but neither triton nor a CUDA driver.
"""

from fa_core.api import IMPLS, attention, explain, flash_kernels, flash_tile
from fa_core.naive import VARIANTS, naive_attention
from fa_core.packed import attention_paged, attention_varlen
from fa_core.policy import Policy, load_policy
from fa_core.softmax import cross_entropy, softmax_top_k
from fa_core.tiled import tiled_attention

__all__ = [
    "IMPLS",
    "VARIANTS",
    "Policy",
    "attention",
    "attention_paged",
    "attention_varlen",
    "cross_entropy",
    "explain",
    "flash_kernels",
    "flash_tile",
    "load_policy",
    "naive_attention",
    "softmax_top_k",
    "tiled_attention",
]
