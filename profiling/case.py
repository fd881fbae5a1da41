"""What is measured: one `Case` (a point), and the `Protocol` it is measured by.

A case is identified by its key alone; a row of a result is a case and a clock. See design.md's
counterpart in CONTRIBUTING.md for the words used here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

Direction = Literal["fwd", "bwd", "fwd_bwd"]
Dtype = Literal["fp16", "bf16", "fp32", "fp64"]
Layout = Literal["dense", "varlen", "paged"]
Operation = Literal["attention", "cross_entropy", "softmax_top_k"]
Clock = Literal["wall", "pipelined", "device", "graph", "graph_hot"]
# No size that a device could hold: a file that says more would have its reader count to it.
LARGEST, LARGEST_BATCH = 2**30, 2**20
LARGEST_WORK = 2**58  # batch · heads · queries · keys · head_dim: many minutes; its bytes fit 64 bits
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Length = Annotated[int, Field(ge=0, le=LARGEST)]
Sequences = Annotated[int, Field(ge=0, le=LARGEST_BATCH)]

DIRECTIONS: tuple[str, ...] = ("fwd", "bwd", "fwd_bwd")
DTYPE_BYTES: dict[str, int] = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
CLOCKS: tuple[str, ...] = ("wall", "pipelined", "device", "graph", "graph_hot")
CPU_CLOCKS: tuple[str, ...] = ("wall", "pipelined")
LAYOUTS: tuple[str, ...] = ("dense", "varlen", "paged")

ATTENTION = "attention"
# What each operation that is a softmax over the rows of a matrix is called in a label.
ROW_OPERATIONS: dict[str, str] = {"cross_entropy": "cross-entropy", "softmax_top_k": "softmax top-k"}
OPERATIONS: tuple[str, ...] = (ATTENTION, *ROW_OPERATIONS)
MOST_KEPT = 64  # of a row's classes, by `softmax_top_k`

NAIVE_VARIANTS: tuple[str, ...] = ("add", "fill", "fp32_softmax")
DETERMINISTIC = "deterministic"  # the variant whose gradients are the same bit for bit on every run
BACKENDS: tuple[str, ...] = (
    "naive",
    "naive_compiled",
    "tiled",
    "flash",
    "flash_portable",
    "flash_hopper",
    "sdpa",
    "sdpa_flash",
    "sdpa_cudnn",
    "sdpa_efficient",
    "sdpa_math",
    "flex",
    "online",
)
CPU_BACKENDS: tuple[str, ...] = ("naive", "naive_compiled", "tiled", "sdpa_math", "sdpa_flash")
FLASH_BACKENDS: tuple[str, ...] = ("flash", "flash_portable", "flash_hopper")
COMPILED_AHEAD: tuple[str, ...] = (*FLASH_BACKENDS, "online")  # whose kernels are Triton's, and ours
# What takes a row operation: PyTorch's own kernels, what a compiler makes of them, and the kernel here.
ROW_BACKENDS: tuple[str, ...] = ("naive", "naive_compiled", "online")
# Which can be asked for a tile: the kernels for sm_90 have their own alone.
TILED_BACKENDS: tuple[str, ...] = ("tiled", "flash", "flash_portable")
VARIANTS: dict[str, tuple[str, ...]] = {
    "naive": NAIVE_VARIANTS,
    "naive_compiled": NAIVE_VARIANTS,
    "flash": (DETERMINISTIC,),
    "flash_hopper": (DETERMINISTIC,),
}
# The same of the operations over rows: PyTorch's cross-entropy takes logits as they are, or widened first.
ROW_VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "cross_entropy": dict.fromkeys(("naive", "naive_compiled"), ("fp32_softmax",)),
    "softmax_top_k": {},
}
PAGE_SIZE = 64  # tokens of one page of a `paged` cache
_CUSTOM_BACKEND = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

KEY_FIELDS: tuple[str, ...] = (
    "backend",
    "variant",
    "direction",
    "dtype",
    "batch",
    "heads",
    "kv_heads",
    "seq_len_q",
    "seq_len_k",
    "head_dim",
    "head_dim_v",
    "layout",
    "causal",
    "window_left",
    "window_right",
    "softcap",
    "bias",
    "sinks",
    "alibi",
    "tile_m",
    "tile_n",
    "operation",
)
# What an operation over rows has of these.
_OF_ROWS = ("backend", "variant", "direction", "dtype", "batch", "seq_len_k", "head_dim_v", "operation")
SHAPE_FIELDS: tuple[str, ...] = tuple(
    name for name in KEY_FIELDS if name not in ("backend", "variant", "tile_m", "tile_n")
)


class InputError(ValueError):
    """Rejected input; its message is one sentence: what, where, what is allowed. Ends in exit code 2."""


def check_backend(name: str) -> str:
    """Return `name` if it is a known backend or a `module:function`, else raise `InputError`."""
    if name in BACKENDS or _CUSTOM_BACKEND.fullmatch(name):
        return name
    raise InputError(f"unknown backend {name!r}: must be one of {', '.join(BACKENDS)}, or module:function")


def split_backend(text: str, operation: str = ATTENTION) -> tuple[str, str]:
    """Split `backend/variant` (`naive/fp32_softmax`) into its two names; the variant may be empty.

    Raises:
        InputError: there is no such backend or variant, or the operation is none of its.
    """
    backend, _, variant = text.partition("/")
    check_backend(backend)
    if operation != ATTENTION and backend in BACKENDS and backend not in ROW_BACKENDS:
        raise InputError(
            f"backend {backend!r} does not take {operation}: must be one of {', '.join(ROW_BACKENDS)}, "
            "or module:function"
        )
    if operation == ATTENTION and backend == "online":
        raise InputError(
            f"backend 'online' does not take attention: it is of {', '.join(ROW_OPERATIONS)}, "
            "and attention's is flash"
        )
    variants = VARIANTS if operation == ATTENTION else ROW_VARIANTS[operation]
    of = "" if operation == ATTENTION else f" for {operation}"
    if variant and backend not in variants:
        raise InputError(
            f"backend {backend!r} has no variants{of}, got {text!r}"
            + (f": only {', '.join(variants)} do" if variants else "")
        )
    if variant and variant not in variants[backend]:
        raise InputError(
            f"unknown variant {variant!r} of {backend}{of}: must be one of {', '.join(variants[backend])}"
        )
    return backend, variant


def split_name(text: str) -> tuple[str, str]:
    """As `split_backend`, for a name that whatever operation has.

    Raises:
        InputError: no operation has it; the sentence is attention's.
    """
    for operation in ROW_OPERATIONS:
        with contextlib.suppress(InputError):
            return split_backend(text, operation)
    return split_backend(text)


def check_heads(heads: int, kv_heads: int) -> None:
    """Refuse query heads that no KV head is shared by evenly (ValueError)."""
    if heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")


def check_window(causal: bool, right: int | None) -> None:
    """Refuse a causal mask with a window that sees later keys (ValueError)."""
    if causal and right:
        raise ValueError(
            f"a causal case's window_right must be 0 or left out (it sees no later key), got {right}"
        )


def ragged_lengths(batch: int, longest: int) -> tuple[int, ...]:
    """Lengths of a `varlen` batch: the first is `longest`, the others lie between a quarter of it and it.

    Spread evenly and in no order (steps of the golden ratio), so that nothing has to be drawn: the same
    for everybody who reads the case.
    """
    low = longest // 4
    steps = (i * 0.6180339887498949 % 1.0 for i in range(1, batch))
    return (longest, *(low + round(step * (longest - low)) for step in steps))[:batch]


def window_text(left: int | None, right: int | None) -> str:
    """A window in words, such as `512 before` or `512 before, 64 after`; "" where there is no limit."""
    sides = ((left, "before"), (right, "after"))
    return ", ".join(f"{tokens} {side}" for tokens, side in sides if tokens is not None)


class Case(BaseModel):
    """One point: what to run, on which shape. Frozen and hashable; equal keys are the same case.

    Lengths are in tokens; `tile_m`, `tile_n` are the *requested* tile (None: the backend's choice).
    In a `varlen` batch `seq_len_q` and `seq_len_k` are those of its longest sequence (see `lengths`).
    `causal` and a window that ends at the query's own place are the same mask, and are both written as
    `causal` without `window_right`.

    An operation over rows (`cross_entropy`, `softmax_top_k`) is a softmax like that of one query a
    sequence: `batch` rows of `seq_len_k` classes, whose scores are given, and `head_dim_v` numbers come out
    of a row (a loss; the k largest probabilities). It has one head, one query, `head_dim` 1 and no features.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    variant: str = ""
    direction: Direction = "fwd"
    dtype: Dtype = "bf16"
    batch: Sequences = 1
    heads: Count = 1
    kv_heads: Count = 1
    seq_len_q: Length
    seq_len_k: Length
    head_dim: Count
    head_dim_v: Count
    layout: Layout = "dense"
    causal: bool = False
    window_left: Length | None = None
    window_right: Length | None = None
    softcap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    bias: bool = False
    sinks: bool = False
    alibi: bool = False
    tile_m: Count | None = None
    tile_n: Count | None = None
    operation: Operation = ATTENTION

    @model_validator(mode="after")
    def _fits_together(self) -> Case:
        check_heads(self.heads, self.kv_heads)
        check_window(self.causal, self.window_right)
        pairs = self.batch * self.heads * max(1, self.seq_len_q) * max(1, self.seq_len_k)
        if (work := pairs * max(64, self.head_dim, self.head_dim_v)) > LARGEST_WORK:
            raise ValueError(
                "batch · heads · queries · keys · head_dim must be at most "
                f"{LARGEST_WORK:.2g}, got {work:.2g}"
            )
        if (self.tile_m is None) != (self.tile_n is None):
            raise ValueError("tile_m and tile_n must be given together")
        if self.operation != ATTENTION:
            self._is_over_rows()
        if self.window_right == 0:  # one spelling, so that equal masks have equal keys
            object.__setattr__(self, "causal", True)
            object.__setattr__(self, "window_right", None)
        return self

    def _is_over_rows(self) -> None:
        """Refuse what only attention has."""
        for name, field in type(self).model_fields.items():
            value = 1 if field.is_required() else field.default
            if name not in _OF_ROWS and getattr(self, name) != value:
                raise ValueError(
                    f"{name} is attention's: of {self.operation} it must be "
                    f"{'left out' if value is None else value}, got {getattr(self, name)}"
                )
        if self.operation == "cross_entropy" and self.head_dim_v != 1:
            raise ValueError(
                f"a row of cross_entropy has one loss: head_dim_v must be 1, got {self.head_dim_v}"
            )
        if not self.seq_len_k:
            raise ValueError(f"a row of {self.operation} must have at least 1 class, got 0")
        if self.head_dim_v > (most := min(MOST_KEPT, self.seq_len_k)):
            raise ValueError(f"k of {self.operation} must be from 1 to {most} here, got {self.head_dim_v}")

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `KEY_FIELDS`, in order: the identity of the case."""
        return tuple(getattr(self, name) for name in KEY_FIELDS)

    @property
    def shape_key(self) -> tuple[Any, ...]:
        """The key without backend, variant and tile: cases that share it are measured together."""
        return tuple(getattr(self, name) for name in SHAPE_FIELDS)

    @property
    def is_square(self) -> bool:
        """Whether N is both lengths: attention of as many queries as keys."""
        return self.seq_len_q == self.seq_len_k and self.operation == ATTENTION

    @property
    def hiding_window(self) -> tuple[int | None, int | None]:
        """(window_left, window_right) without a side that reaches over every key or query and hides none."""
        left, right = self.window_left, self.window_right
        return (
            None if left is None or left >= self.seq_len_k else left,
            None if right is None or right >= self.seq_len_q else right,
        )

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """(queries, keys) of each sequence of the batch; they differ in a `varlen` batch alone."""
        if self.layout != "varlen":
            return ((self.seq_len_q, self.seq_len_k),) * self.batch
        both = (ragged_lengths(self.batch, longest) for longest in (self.seq_len_q, self.seq_len_k))
        return tuple(zip(*both, strict=True))

    @property
    def label(self) -> str:
        """A short text for progress bars and logs, such as `flash fwd bf16 B2 H16 N4096 d128 causal`."""
        name = f"{self.backend}/{self.variant}" if self.variant else self.backend
        if self.operation != ATTENTION:
            classes = "1 class" if self.seq_len_k == 1 else f"{self.seq_len_k} classes"
            return f"{name} {rows_label(self)} {classes}"
        heads = f"H{self.heads}" if self.kv_heads == self.heads else f"H{self.heads}/{self.kv_heads}"
        length = (
            f"N{self.seq_len_q}"
            if self.seq_len_q == self.seq_len_k
            else f"N{self.seq_len_q}x{self.seq_len_k}"
        )
        width = (
            f"d{self.head_dim}" if self.head_dim_v == self.head_dim else f"d{self.head_dim}/{self.head_dim_v}"
        )
        parts = [name, self.direction, self.dtype, f"B{self.batch}", heads, length, width]
        parts += feature_words(self)
        if self.tile_m is not None:
            parts.append(f"tile {self.tile_m}x{self.tile_n}")
        return " ".join(parts)


def rows_text(rows: int) -> str:
    """How many rows, such as `1 row` or `8192 rows`."""
    return f"{rows} row" if rows == 1 else f"{rows} rows"


def rows_label(case: Any) -> str:
    """An operation over rows in short, without its classes, such as `softmax top-k 8 fwd bf16 4096 rows`.

    `case` is a `Case`, or anything else with its fields.
    """
    kept = f" {case.head_dim_v}" if case.operation == "softmax_top_k" else ""
    return f"{ROW_OPERATIONS[case.operation]}{kept} {case.direction} {case.dtype} {rows_text(case.batch)}"


def feature_words(case: Any) -> list[str]:
    """What a case does beyond plain attention, a word or two each: `causal`, `window 512 before`, `sinks`.

    `case` is a `Case`, or anything else with its fields.
    """
    window = window_text(case.window_left, case.window_right)
    return [
        *(["causal"] if case.causal else []),
        *([f"window {window}"] if window else []),
        *([] if case.softcap is None else [f"softcap {case.softcap:g}"]),
        *(name for name in ("bias", "sinks", "alibi") if getattr(case, name)),
        *([] if case.layout == "dense" else [case.layout]),
    ]


class Protocol(BaseModel):
    """How each case is measured. Times in the unit that ends the name.

    A block (all cases of one shape) is measured in `processes` worker processes; in each, rounds visit the
    block's cases in a freshly shuffled order, and a visit takes `samples_per_round` samples on each clock.
    A clock of a case is left out of further rounds once it has had `min_rounds` and the standard error of
    their medians is at most `rel_stderr` of their mean; and after `rounds`, or when the case has been timed
    for `max_ms`, in any case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    clocks: Annotated[tuple[Clock, ...], Field(min_length=1)] = ("wall", "device", "graph")
    processes: Annotated[int, Field(ge=1, le=32)] = 2
    rounds: Annotated[int, Field(ge=1, le=1000)] = 5
    min_rounds: Annotated[int, Field(ge=1, le=1000)] = 2
    rel_stderr: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.005
    max_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    samples_per_round: Annotated[int, Field(ge=1, le=1000)] = 3
    warmup_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20.0
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    memory: bool = True
    seed: int = 0

    @field_validator("clocks")
    @classmethod
    def _each_once(cls, clocks: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(clocks)) < len(clocks):
            raise ValueError(f"each clock must be named once, got {', '.join(clocks)}")
        return clocks


def blocks(cases: Iterable[Case]) -> list[list[Case]]:
    """Group cases by shape, keeping order: a block is measured together, its backends interleaved."""
    grouped: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        grouped.setdefault(case.shape_key, []).append(case)
    return list(grouped.values())


def first_problem(error: ValidationError) -> str:
    """One sentence for the first problem of a pydantic error: where, and what is allowed."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "the file"
    text = problem["msg"].removeprefix("Value error, ")
    more = error.error_count() - 1
    return f"{where}: {text}" + (f" (and {more} more)" if more else "")
