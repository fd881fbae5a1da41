"""What a team wants to deploy: models as one GPU sees their attention, batches, contexts, workload, clock.

Heads, KV heads, head_dim, windows and caps of the presets are those of each model's published configuration
(`config.json` at huggingface.co; of DeepSeek-V2-Lite qk_nope_head_dim + qk_rope_head_dim and v_head_dim). A
window of n tokens there counts the query's own, which ours does not: n - 1.
"""

from __future__ import annotations

from typing import NamedTuple

from profiling.case import CLOCKS, DTYPE_BYTES, Case, InputError, feature_words, split_backend
from profiling.model.step import Body

INFERENCE, TRAINING = "inference", "training"
WORKLOADS: tuple[str, ...] = (INFERENCE, TRAINING)
LONGEST = 2**24  # tokens; a typing error beyond this would plan a sweep without end
MOST_SEQUENCES = 4096


class Shape(NamedTuple):
    """The attention of a model, or of one kind of its layers; None means unlimited or absent."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    causal: bool = True
    window_left: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def text(self) -> str:
        """The shape in words, such as `32 heads on 8, d 128, causal`."""
        width = f"d {self.head_dim}" + ("" if self.head_dim_v == self.head_dim else f"/{self.head_dim_v}")
        case = self.case("flash", "fwd", 1, 1, "bf16")
        return ", ".join([f"{self.heads} heads on {self.kv_heads}", width, *feature_words(case)])

    def case(self, backend: str, direction: str, batch: int, seq_len: int, dtype: str) -> Case:
        """The case of one backend at one batch and N.

        Raises:
            pydantic.ValidationError: the shape is none (see `Question.checked`).
        """
        fields = self._asdict()
        del fields["name"]
        return Case.model_validate(
            fields
            | {"backend": backend, "direction": direction, "batch": batch, "dtype": dtype}
            | {"seq_len_q": seq_len, "seq_len_k": seq_len}
        )


def _shape(name: str, heads: int, kv_heads: int, d: int = 128, **features: float | None) -> Shape:
    return Shape(name, heads, kv_heads, d, d)._replace(**features)


PRESETS: tuple[Shape, ...] = (
    _shape("Llama 3 8B", 32, 8),
    _shape("Llama 3 70B", 64, 8),
    _shape("Llama 3 70B, 1 of 4 GPUs", 16, 2),
    _shape("Llama 3 70B, 1 of 8 GPUs", 8, 1),
    _shape("Mistral 7B v0.1", 32, 8, window_left=4095),
    _shape("Qwen2.5 7B", 28, 4),
    _shape("Qwen2.5 72B", 64, 8),
    _shape("Gemma 2 9B, full layers", 16, 8, 256, softcap=50.0),
    _shape("Gemma 2 9B, windowed layers", 16, 8, 256, softcap=50.0, window_left=4095),
    _shape("Gemma 2 27B, full layers", 32, 16, softcap=50.0),
    _shape("Phi 3 mini 128k", 32, 32, 96),
    Shape("DeepSeek V2 Lite", 16, 16, 192, 128),
    _shape("gpt-oss 20b, full layers", 64, 8, 64, sinks=True),
    _shape("gpt-oss 20b, windowed layers", 64, 8, 64, sinks=True, window_left=127),
)


# The layers around the attention of each preset: hidden_size, intermediate_size, num_hidden_layers and
# vocab_size of the same configurations. A slice of a model has its part of the MLP and the head. Of a mixture
# the width is that of the experts a token passes: DeepSeek-V2-Lite 6 + 2 shared of 1408, gpt-oss 4 of 2880.
# DeepSeek's projections are those of its latent attention (kv_lora_rank 512, without one for q); its first
# layer has a dense MLP of 10944, counted as the others are.
_LLAMA_70B = Body(8192, 28672, 80, 128256)
_GEMMA_9B, _GEMMA_27B = Body(3584, 14336, 42, 256000), Body(4608, 36864, 46, 256000)
_GPT_OSS = Body(2880, 4 * 2880, 24, 201088)
BODIES: dict[str, Body] = {
    "Llama 3 8B": Body(4096, 14336, 32, 128256),
    "Llama 3 70B": _LLAMA_70B,
    "Llama 3 70B, 1 of 4 GPUs": _LLAMA_70B._replace(intermediate=7168, vocabulary=32064),
    "Llama 3 70B, 1 of 8 GPUs": _LLAMA_70B._replace(intermediate=3584, vocabulary=16032),
    "Mistral 7B v0.1": Body(4096, 14336, 32, 32000),
    "Qwen2.5 7B": Body(3584, 18944, 28, 152064),
    "Qwen2.5 72B": Body(8192, 29568, 80, 152064),
    "Gemma 2 9B, full layers": _GEMMA_9B,
    "Gemma 2 9B, windowed layers": _GEMMA_9B,
    "Gemma 2 27B, full layers": _GEMMA_27B,
    "Phi 3 mini 128k": Body(3072, 8192, 32, 32064),
    "DeepSeek V2 Lite": Body(
        2048, 8 * 1408, 27, 102400, 2048 * 16 * 192 + 2048 * (512 + 64) + 512 * 16 * 256 + 16 * 128 * 2048
    ),
    "gpt-oss 20b, full layers": _GPT_OSS,
    "gpt-oss 20b, windowed layers": _GPT_OSS,
}


class Question(NamedTuple):
    """What a review asks.

    Attributes:
        shapes: the models.
        batches: from and to, sequences at a time.
        seq_lens: from and to, tokens of context.
        workload: `inference` (a forward: prefill) or `training` (forward and backward).
        clock: whose latencies decide.
        dtype: of q, k and v.
        candidate: the backend whose advantage is in question.
    """

    shapes: tuple[Shape, ...]
    batches: tuple[int, int] = (1, 1)
    seq_lens: tuple[int, int] = (512, 8192)
    workload: str = INFERENCE
    clock: str = "device"
    dtype: str = "bf16"
    candidate: str = "flash"

    def checked(self) -> Question:
        """The question itself.

        Raises:
            InputError: no model, twice the same name, heads that are no multiple of the KV heads, a number
                below 1, a range that ends before it begins, or an unknown workload, clock, dtype or backend.
        """
        if not self.shapes:
            raise InputError("no model was chosen: a review needs at least one")
        names = [shape.name for shape in self.shapes]
        if len(set(names)) < len(names):
            raise InputError(f"each model must be named once, got {', '.join(names)}")
        for shape in self.shapes:
            if min(shape.heads, shape.kv_heads, shape.head_dim, shape.head_dim_v) < 1:
                raise InputError(f"{shape.name}: heads, KV heads and head_dim must be at least 1")
            if shape.heads % shape.kv_heads:
                raise InputError(
                    f"{shape.name}: heads must be a multiple of KV heads, "
                    f"got {shape.heads} and {shape.kv_heads}"
                )
        for word, (low, high), most in (
            ("batch", self.batches, MOST_SEQUENCES),
            ("context", self.seq_lens, LONGEST),
        ):
            if not 1 <= low <= high <= most:
                raise InputError(
                    f"{word} must go from at least 1 to at most {most}, upwards, got {low} to {high}"
                )
        for word, value, allowed in (
            ("workload", self.workload, WORKLOADS),
            ("clock", self.clock, CLOCKS),
            ("dtype", self.dtype, tuple(DTYPE_BYTES)),
        ):
            if value not in allowed:
                raise InputError(f"unknown {word} {value!r}: must be one of {', '.join(allowed)}")
        split_backend(self.candidate)
        return self

    def doubled_batches(self) -> tuple[int, ...]:
        """The batches of the table: from the first in doubling steps, and the last."""
        return _doubled(*self.batches)

    def doubled_seq_lens(self) -> tuple[int, ...]:
        """The lengths to measure: likewise."""
        return _doubled(*self.seq_lens)


def _doubled(low: int, high: int) -> tuple[int, ...]:
    values = []
    while low < high:
        values.append(low)
        low *= 2
    return (*values, high)
