"""What the attention of a whole model holds, tensor by tensor, eager and fused: does it fit a GPU?

Built from the peaks of one call (`profiling.model.memory`), for `layers` layers that run one after the other.
Inference keeps the keys and values of every layer (a cache of N tokens), and of the layer at work what a
forward over all N tokens holds: a prompt that is read at once. Training keeps of every layer its inputs and
what the forward leaves behind, and of the layer at work what the backward holds at its peak. Weights,
optimizer, and everything but attention come on top; `other_bytes` may stand for them.
"""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import Case, Dtype, split_backend
from profiling.model.memory import largest_that_fits, peak_tensors, retained_tensors
from profiling.model.naive import sizes

BACKENDS: tuple[str, ...] = ("naive", "flash")
# Tensors of one kind, by the names of `profiling.model.memory`; in the order in which they are shown.
TENSORS: dict[str, tuple[str, ...]] = {
    "K, V": (),
    "Q": (),
    "S, scores": ("scores", "masked", "wide_scores"),
    "P, probabilities": ("probs", "wide_probs"),
    "dP": ("dprobs", "wide_dprobs"),
    "P ∘ dP": ("product",),
    "dS": ("dscores", "wide_dscores", "filled"),
    "mask": ("ones", "hidden", "mask"),
    "O": ("out", "all_out", "zeros"),
    "dO": (),
    "row statistics": ("rows", "beside"),
    "Q, scaled": ("q",),
    "K, V, repeated": ("k", "v"),
    "dQ": ("dq", "dq_all", "dscaled_q"),
    "dK, dV": ("dk", "dv", "dk_sum", "dv_sum"),
    "other": (),
}
_KIND = {name: kind for kind, names in TENSORS.items() for name in names}


class Workload(NamedTuple):
    """The attention of a model at work. Lengths in tokens; `other_bytes` is whatever else has to fit."""

    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    dtype: Dtype
    layers: int = 1
    training: bool = False
    causal: bool = False
    other_bytes: int = 0

    def case(self, backend: str) -> Case:
        """One layer's call: of both directions in training, else the forward.

        Raises:
            ValidationError: heads are no multiple of KV heads, or a size is below 1.
        """
        name, variant = split_backend(backend)
        case = Case(
            backend=name,
            variant=variant,
            direction="fwd_bwd" if self.training else "fwd",
            dtype=self.dtype,
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_len_q=1,
            seq_len_k=1,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim,
            causal=self.causal,
        )
        # Past what a case may be asked for: the search for the largest N looks beyond it.
        return case.model_copy(update={"seq_len_q": self.seq_len, "seq_len_k": self.seq_len})


# The case of the chapter's section 4.4, which counts four bytes an element.
CHAPTER = Workload(batch=8, heads=32, kv_heads=32, seq_len=8192, head_dim=128, dtype="fp32")


def tensors(load: Workload, backend: str) -> dict[str, int]:
    """Bytes by kind of tensor, in the order of `TENSORS`, without kinds that hold nothing.

    Args:
        load: what runs.
        backend: `naive` in any variant, or `flash` by any of its names.
    """
    case = load.case(backend)
    peak, retained = peak_tensors(case), retained_tensors(case)
    if peak is None or retained is None:
        raise ValueError(f"no memory law for {case.label}")
    s = sizes(case)
    held = dict.fromkeys(TENSORS, 0)
    held["K, V"] = load.layers * (s.k + s.v)
    held["Q"] = (load.layers if load.training else 1) * s.q_all
    held["dO"] = s.out_all if load.training else 0
    for name, nbytes in peak.items():
        held[_KIND[name]] += nbytes
    if load.training:
        for name, nbytes in retained.items():
            held[_KIND[name]] += (load.layers - 1) * nbytes
    held["other"] = load.other_bytes
    return {kind: nbytes for kind, nbytes in held.items() if nbytes}


def total_bytes(load: Workload, backend: str) -> int:
    """All of `tensors`."""
    return sum(tensors(load, backend).values())


def largest_seq_len(load: Workload, backend: str, memory_bytes: int) -> int:
    """The largest N that fits; 0 if not even one token does."""
    found = largest_that_fits(lambda n: total_bytes(load._replace(seq_len=n), backend), memory_bytes)
    return found or 0
