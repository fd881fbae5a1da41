"""Measures attention, stores what was measured, and finds where FlashAttention starts to pay off."""

__version__ = "0.1.0"
