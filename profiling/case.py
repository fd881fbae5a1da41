"""What is measured: one `Case` (a point), and a `Sweep` (the axes whose product gives cases).

A case is identified by its key alone; a row of a result is a case and a clock. See design.md's
counterpart in CONTRIBUTING.md for the words used here.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

Direction = Literal["fwd", "bwd", "fwd_bwd"]
Dtype = Literal["fp16", "bf16", "fp32", "fp64"]
Layout = Literal["dense", "varlen", "paged"]
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
)
CPU_BACKENDS: tuple[str, ...] = ("naive", "naive_compiled", "tiled", "sdpa_math", "sdpa_flash")
FLASH_BACKENDS: tuple[str, ...] = ("flash", "flash_portable", "flash_hopper")
# Which can be asked for a tile: the kernels for sm_90 have their own alone.
TILED_BACKENDS: tuple[str, ...] = ("tiled", "flash", "flash_portable")
VARIANTS: dict[str, tuple[str, ...]] = {
    "naive": NAIVE_VARIANTS,
    "naive_compiled": NAIVE_VARIANTS,
    "flash": (DETERMINISTIC,),
    "flash_hopper": (DETERMINISTIC,),
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
)
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


def split_backend(text: str) -> tuple[str, str]:
    """Split `backend/variant` (`naive/fp32_softmax`) into its two names; the variant may be empty."""
    backend, _, variant = text.partition("/")
    check_backend(backend)
    if variant and backend not in VARIANTS:
        raise InputError(f"backend {backend!r} has no variants, got {text!r}: only {', '.join(VARIANTS)} do")
    if variant and variant not in VARIANTS[backend]:
        raise InputError(
            f"unknown variant {variant!r} of {backend}: must be one of {', '.join(VARIANTS[backend])}"
        )
    return backend, variant


def _check_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")


def _check_window(causal: bool, right: int | None) -> None:
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

    @model_validator(mode="after")
    def _fits_together(self) -> Case:
        _check_heads(self.heads, self.kv_heads)
        _check_window(self.causal, self.window_right)
        pairs = self.batch * self.heads * max(1, self.seq_len_q) * max(1, self.seq_len_k)
        if (work := pairs * max(64, self.head_dim, self.head_dim_v)) > LARGEST_WORK:
            raise ValueError(
                "batch · heads · queries · keys · head_dim must be at most "
                f"{LARGEST_WORK:.2g}, got {work:.2g}"
            )
        if (self.tile_m is None) != (self.tile_n is None):
            raise ValueError("tile_m and tile_n must be given together")
        if self.window_right == 0:  # one spelling, so that equal masks have equal keys
            object.__setattr__(self, "causal", True)
            object.__setattr__(self, "window_right", None)
        return self

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of `KEY_FIELDS`, in order: the identity of the case."""
        return tuple(getattr(self, name) for name in KEY_FIELDS)

    @property
    def shape_key(self) -> tuple[Any, ...]:
        """The key without backend, variant and tile: cases that share it are measured together."""
        return tuple(getattr(self, name) for name in SHAPE_FIELDS)

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


def _window(value: Any) -> Any:
    """A pair of limits from a sweep; TOML has no null, so `"none"` is no limit."""
    sides = [None if side == "none" else side for side in value] if isinstance(value, list | tuple) else []
    if len(sides) != 2 or any(side is not None and (type(side) is not int or side < 0) for side in sides):
        raise ValueError(
            f'a window must be [left, right], each a whole number of at least 0 or "none", got {value}'
        )
    return tuple(sides)


Window = Annotated[tuple[int | None, int | None], BeforeValidator(_window)]


class Group(BaseModel):
    """One product of axes. `backends` entries are `backend` or `backend/variant`.

    Values that mean "without": `"none"` for a side of a window, 0 for a softcap. `head_dim_v` follows
    `head_dim` where it is not given. `tokens` fixes batch · N in place of `batch`, and `hidden` heads · d in
    place of `heads`: the same work a layer at every N and d, and no curve along N.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backends: tuple[str, ...]
    direction: tuple[Direction, ...] = ("fwd",)
    dtype: tuple[Dtype, ...] = ("bf16",)
    batch: tuple[Sequences, ...] = (1,)
    heads: tuple[Count, ...] = (16,)
    kv_heads: tuple[Count, ...] = ()
    seq_len: tuple[Length, ...]
    seq_len_k: tuple[Length, ...] = ()
    head_dim: tuple[Count, ...] = (128,)
    head_dim_v: tuple[Count, ...] = ()
    layout: tuple[Layout, ...] = ("dense",)
    causal: tuple[bool, ...] = (False,)
    window: tuple[Window, ...] = ((None, None),)
    softcap: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = (0.0,)
    bias: tuple[bool, ...] = (False,)
    sinks: tuple[bool, ...] = (False,)
    alibi: tuple[bool, ...] = (False,)
    tile: tuple[tuple[Count, Count], ...] = ()
    tokens: Count | None = None
    hidden: Count | None = None
    max_seq_len: dict[str, Length] = {}

    @field_validator("backends")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            split_backend(name)
        return names

    @model_validator(mode="after")
    def _fits_together(self) -> Group:
        fields = type(self).model_fields
        for whole, part, other in (("tokens", "seq_len", "batch"), ("hidden", "head_dim", "heads")):
            total = getattr(self, whole)
            if total is None:
                continue
            if getattr(self, other) != fields[other].default:
                raise ValueError(f"{whole} stands in place of {other}: only one of them must be given")
            if uneven := [size for size in getattr(self, part) if not size or total % size]:
                raise ValueError(f"{whole} must be a multiple of each {part}, got {total} and {uneven[0]}")
        all_heads = self.heads if self.hidden is None else [self.hidden // d for d in self.head_dim]
        for heads, kv_heads in itertools.product(all_heads, self.kv_heads):
            _check_heads(heads, kv_heads)
        for causal, (_, right) in itertools.product(self.causal, self.window):
            _check_window(causal, right)
        for name in self.max_seq_len:
            if name not in self.backends:
                raise ValueError(
                    f"max_seq_len names {name!r}: must be one of this group's backends, "
                    f"{', '.join(self.backends)}"
                )
        return self

    def cases(self) -> list[Case]:
        """The product of the axes, in a stable order; `max_seq_len` drops a backend's longer Nq and Nk."""
        out = []
        shapes = itertools.product(
            self.batch,
            self.heads,
            self.kv_heads or (None,),
            self.head_dim,
            self.head_dim_v or (None,),
        )
        features = itertools.product(
            self.layout,
            self.window,
            self.softcap,
            self.bias,
            self.sinks,
            self.alibi,
            self.causal,
        )
        axes = itertools.product(
            self.dtype,
            shapes,
            features,
            self.direction,
            self.seq_len,
            self.seq_len_k or (None,),
            self.backends,
        )
        for dtype, shape, feature, direction, n_q, n_k, name in axes:
            batch, heads, kv_heads, head_dim, head_dim_v = shape
            batch = batch if self.tokens is None else self.tokens // n_q
            heads = heads if self.hidden is None else self.hidden // head_dim
            layout, (left, right), softcap, bias, sinks, alibi, causal = feature
            backend, variant = split_backend(name)
            longest = max(n_q, n_q if n_k is None else n_k)
            if longest > self.max_seq_len.get(name, longest):
                continue
            tiles: Sequence[tuple[int | None, int | None]] = (
                self.tile if self.tile and backend in TILED_BACKENDS else ((None, None),)
            )
            for tile_m, tile_n in tiles:
                out.append(
                    Case(
                        backend=backend,
                        variant=variant,
                        direction=direction,
                        dtype=dtype,
                        batch=batch,
                        heads=heads,
                        kv_heads=heads if kv_heads is None else kv_heads,
                        seq_len_q=n_q,
                        seq_len_k=n_q if n_k is None else n_k,
                        head_dim=head_dim,
                        head_dim_v=head_dim if head_dim_v is None else head_dim_v,
                        layout=layout,
                        causal=causal,
                        window_left=left,
                        window_right=right,
                        softcap=softcap or None,
                        bias=bias,
                        sinks=sinks,
                        alibi=alibi,
                        tile_m=tile_m,
                        tile_n=tile_n,
                    )
                )
        return out


class Sweep(BaseModel):
    """A named set of groups and the protocol they are measured with; written as TOML."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    description: str = ""
    protocol: Protocol = Protocol()
    group: tuple[Group, ...]

    def cases(self, backends: Iterable[str] | None = None) -> list[Case]:
        """All cases, each once, in the order of the file; `backends`, such as `naive/fill`, keeps some."""
        wanted = None if backends is None else {split_backend(name) for name in backends}
        cases = dict.fromkeys(case for group in self.group for case in group.cases())
        return [case for case in cases if wanted is None or (case.backend, case.variant) in wanted]


def blocks(cases: Iterable[Case]) -> list[list[Case]]:
    """Group cases by shape, keeping order: a block is measured together, its backends interleaved."""
    grouped: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        grouped.setdefault(case.shape_key, []).append(case)
    return list(grouped.values())


def load_sweep(path: Path) -> Sweep:
    """Read a sweep from TOML.

    Raises:
        InputError: the file is missing, is not TOML, or holds something a sweep cannot.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such sweep file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: not valid TOML: brackets nested too deeply") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return Sweep.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """One sentence for the first problem of a pydantic error: where, and what is allowed."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "the file"
    text = problem["msg"].removeprefix("Value error, ")
    more = error.error_count() - 1
    return f"{where}: {text}" + (f" (and {more} more)" if more else "")
