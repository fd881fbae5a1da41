"""Custom backends for tests, as `stand_ins:<function>`: one that works, and every way of failing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from fa_core import naive_attention

_calls = 0


def plain(q, k, v, causal):
    """Works."""
    return naive_attention(q, k, v, causal=causal)


def with_features(q, k, v, *, causal, **features):
    """Takes whatever `fa_core` takes."""
    return naive_attention(q, k, v, causal=causal, **features)


def chatty(q, k, v, causal):
    """Works, and writes to standard output as libraries do."""
    print('{"kind":"result"}', flush=True)
    os.write(1, b"from below Python\n")
    return naive_attention(q, k, v, causal=causal)


def oom(q, k, v, causal):
    """Has no memory."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB.")


def refuse(q, k, v, causal):
    """Cannot take this."""
    raise NotImplementedError("must have head_dim of 7")


def bug(q, k, v, causal):
    """Is broken."""
    raise ValueError("list index went missing")


def wrong(q, k, v, causal):
    """Is fast and wrong."""
    return naive_attention(q, k, v, causal=causal) * 1.5


def detached(q, k, v, causal):
    """Has no backward."""
    return naive_attention(q, k, v, causal=causal).detach()


def segfault(q, k, v, causal):
    """Ends its process at the first call."""
    os.kill(os.getpid(), signal.SIGSEGV)


def late_segfault(q, k, v, causal):
    """Ends its process when it is timed: by then it has been called a few times."""
    global _calls
    _calls += 1
    if _calls > 6:
        os.kill(os.getpid(), signal.SIGSEGV)
    return naive_attention(q, k, v, causal=causal)


def kill_parent(q, k, v, causal):
    """At N = 32, once: ends the run's main process as a power cut would."""
    return _signal_parent(q, k, v, causal, signal.SIGKILL)


def interrupt_parent(q, k, v, causal):
    """At N = 32, once: Ctrl-C for the run's main process."""
    return _signal_parent(q, k, v, causal, signal.SIGINT)


def _signal_parent(q, k, v, causal, number):
    marker = Path(os.environ["STAND_IN_MARKER"])
    if q.shape[2] == 32 and not marker.exists():
        marker.write_text(str(os.getpid()))
        os.kill(os.getppid(), number)
        signal.pause()  # until this process is ended as well
    return naive_attention(q, k, v, causal=causal)
