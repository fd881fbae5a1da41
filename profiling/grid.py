"""A `Sweep`: groups of axes, whose products are the cases; and its file, TOML."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from profiling.case import (
    ATTENTION,
    TILED_BACKENDS,
    Case,
    Count,
    Direction,
    Dtype,
    InputError,
    Layout,
    Length,
    Operation,
    Protocol,
    Sequences,
    check_heads,
    check_window,
    first_problem,
    split_backend,
    split_name,
)


def _window(value: Any) -> Any:
    """A pair of limits from a sweep; TOML has no null, so `"none"` is no limit."""
    sides = [None if side == "none" else side for side in value] if isinstance(value, list | tuple) else []
    if len(sides) != 2 or any(side is not None and (type(side) is not int or side < 0) for side in sides):
        raise ValueError(
            f'a window must be [left, right], each a whole number of at least 0 or "none", got {value}'
        )
    return tuple(sides)


Window = Annotated[tuple[int | None, int | None], BeforeValidator(_window)]


# What a group of an operation over rows has alone, and all that it has.
_ROW_ONLY = ("rows", "classes", "top_k", "max_classes")
_ROW_GROUP = ("operation", "backends", "direction", "dtype", *_ROW_ONLY)


class Group(BaseModel):
    """One product of axes. `backends` entries are `backend` or `backend/variant`.

    Values that mean "without": `"none"` for a side of a window, 0 for a softcap. `head_dim_v` follows
    `head_dim` where it is not given. `tokens` fixes batch · N in place of `batch`, and `hidden` heads · d in
    place of `heads`: the same work a layer at every N and d, and no curve along N.

    A group of another `operation` than attention has `rows`, `classes` and, of `softmax_top_k`, `top_k` in
    place of the axes of attention; `max_classes` is to `classes` what `max_seq_len` is to `seq_len`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operation: Operation = ATTENTION
    backends: tuple[str, ...]
    direction: tuple[Direction, ...] = ("fwd",)
    dtype: tuple[Dtype, ...] = ("bf16",)
    batch: tuple[Sequences, ...] = (1,)
    heads: tuple[Count, ...] = (16,)
    kv_heads: tuple[Count, ...] = ()
    seq_len: tuple[Length, ...] = ()
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
    rows: tuple[Sequences, ...] = ()
    classes: tuple[Length, ...] = ()
    top_k: tuple[Count, ...] = ()
    max_classes: dict[str, Length] = {}

    @field_validator("backends")
    @classmethod
    def _known(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for name in names:
            split_backend(name, info.data.get("operation", ATTENTION))
        return names

    @model_validator(mode="after")
    def _fits_together(self) -> Group:
        fields = type(self).model_fields
        given = [name for name, field in fields.items() if getattr(self, name) != field.default]
        over_rows = self.operation != ATTENTION
        own = _ROW_GROUP if over_rows else tuple(name for name in fields if name not in _ROW_ONLY)
        if foreign := [name for name in given if name not in own]:
            raise ValueError(f"{foreign[0]} is no axis of {self.operation}: it has {', '.join(own)}")
        needed = ["rows", "classes"] if over_rows else ["seq_len"]
        needed += ["top_k"] if self.operation == "softmax_top_k" else []
        if absent := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f"{absent[0]} must be given: {self.operation} has no default for it")
        if self.operation == "cross_entropy" and self.top_k:
            raise ValueError("top_k is of softmax_top_k alone: cross_entropy keeps one loss a row")
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
            check_heads(heads, kv_heads)
        for causal, (_, right) in itertools.product(self.causal, self.window):
            check_window(causal, right)
        for limits in ("max_seq_len", "max_classes"):
            for name in getattr(self, limits):
                if name not in self.backends:
                    raise ValueError(
                        f"{limits} names {name!r}: must be one of this group's backends, "
                        f"{', '.join(self.backends)}"
                    )
        return self

    def cases(self) -> list[Case]:
        """The product of the axes, in a stable order; `max_seq_len` drops a backend's longer Nq and Nk."""
        if self.operation != ATTENTION:
            return self._cases_over_rows()
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

    def _cases_over_rows(self) -> list[Case]:
        axes = itertools.product(
            self.dtype, self.rows, self.top_k or (1,), self.direction, self.classes, self.backends
        )
        out = []
        for dtype, rows, kept, direction, classes, name in axes:
            if classes > self.max_classes.get(name, classes):
                continue
            backend, variant = split_backend(name, self.operation)
            out.append(
                Case(
                    operation=self.operation,
                    backend=backend,
                    variant=variant,
                    direction=direction,
                    dtype=dtype,
                    batch=rows,
                    seq_len_q=1,
                    seq_len_k=classes,
                    head_dim=1,
                    head_dim_v=kept,
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
        wanted = None if backends is None else {split_name(name) for name in backends}
        cases = dict.fromkeys(case for group in self.group for case in group.cases())
        return [case for case in cases if wanted is None or (case.backend, case.variant) in wanted]


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
