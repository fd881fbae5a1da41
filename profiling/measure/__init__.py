"""Measuring: the only folder that imports torch and fa_core, and only inside worker processes.

The parent's half (`client`, `merge`, `messages`, `budget`, `lock`) imports neither; `worker` and what it
calls run in processes of their own, because one illegal access ends a CUDA context for good.
"""
