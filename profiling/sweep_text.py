"""A sweep as TOML, and the sweep of one case: what `flashscope run` takes, written by the program."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from profiling.case import ATTENTION, TILED_BACKENDS, Case, InputError, Protocol, first_problem
from profiling.grid import Group, Sweep

_END = "SWEEP"  # of a here document; no line of `sweep_toml` is this word


def sweep_toml(sweep: Sweep) -> str:
    """The sweep as a file: what is left at its default is left out; `load_sweep` reads the same one back."""
    lines = [f"name = {_value(sweep.name)}"]
    if sweep.description:
        lines.append(f"description = {_value(sweep.description)}")
    if protocol := _changed(sweep.protocol):
        lines += ["", "[protocol]", *protocol]
    for group in sweep.group:
        lines += ["", "[[group]]", *_changed(group)]
    return "\n".join(lines) + "\n"


def sweep_from(fields: Mapping[str, Any]) -> Sweep:
    """The sweep that these fields, named as in a file, are; all of its cases can be made.

    Raises:
        InputError: they are none, or a case is none; where, and what is allowed.
    """
    try:
        sweep = Sweep.model_validate(fields)
        sweep.cases()
    except ValidationError as error:
        raise InputError(first_problem(error)) from None
    return sweep


def sweep_of(case: Case, protocol: Protocol | None = None, name: str = "point") -> Sweep:
    """The sweep that has this case and no other.

    Raises:
        InputError: no sweep can ask for it, since its backend is not known here (an import may name any),
            or takes no tile.
    """
    backend = f"{case.backend}/{case.variant}" if case.variant else case.backend
    axes = _axes(case) if case.operation == ATTENTION else _row_axes(case)
    try:
        return Sweep(
            name=name,
            protocol=protocol or Protocol(),
            group=(Group.model_validate(axes | {"backends": (backend,)}),),
        )
    except ValueError:
        raise InputError(
            f"{case.label}: no sweep can ask for backend {backend!r}, which is not known here"
        ) from None


def _row_axes(case: Case) -> dict[str, Any]:
    axes: dict[str, Any] = {
        "operation": case.operation,
        "direction": (case.direction,),
        "dtype": (case.dtype,),
        "rows": (case.batch,),
        "classes": (case.seq_len_k,),
    }
    return axes if case.operation == "cross_entropy" else axes | {"top_k": (case.head_dim_v,)}


def _axes(case: Case) -> dict[str, Any]:
    axes: dict[str, Any] = {
        field: (getattr(case, field),)
        for field in (
            *("direction", "dtype", "batch", "heads", "kv_heads", "seq_len_k", "head_dim", "head_dim_v"),
            *("layout", "causal", "bias", "sinks", "alibi"),
        )
    }
    axes |= {
        "seq_len": (case.seq_len_q,),
        "window": (
            tuple("none" if side is None else side for side in (case.window_left, case.window_right)),
        ),
        "softcap": (case.softcap or 0.0,),
    }
    if case.tile_m is not None:
        if case.backend not in TILED_BACKENDS:
            raise InputError(
                f"{case.label}: no sweep asks {case.backend} for a tile, only {', '.join(TILED_BACKENDS)}"
            )
        axes["tile"] = ((case.tile_m, case.tile_n),)
    return axes


def command(sweep: Sweep, device: str) -> str:
    """The shell command that measures a sweep without a file: the TOML comes with it, on standard input."""
    line = shlex.join(["flashscope", "run", "/dev/stdin", "--device", device])
    return f"{line} <<'{_END}'\n{sweep_toml(sweep)}{_END}"


def _changed(model: BaseModel) -> list[str]:
    """The fields that are not at their defaults, a line each."""
    fields = type(model).model_fields
    return [
        f"{name} = {_value(value)}"
        for name, value in model
        if fields[name].is_required() or value != fields[name].default
    ]


def _value(value: Any) -> str:
    """A value as TOML; None, which it does not have, is `"none"` as in a window."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # of JSON's escapes TOML knows all but those of pairs of surrogates
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
