"""What each column of somebody else's table holds, as it was said: on the command line, or by a family.

A column is a field of the case (`N=seq_len`), several at once (`shape=tuple(batch,heads,seq_len)`,
`config=json(B=batch)`), a value (`flash=latency us, backend=flash`), a speed-up to be checked
(`gain=speedup naive/flash`), part of what must be alike (`seed=extra`), or of no use (`note=ignore`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from profiling.case import KEY_FIELDS, InputError
from profiling.importers.cells import UNITS
from profiling.importers.tables import Table, shown

INTEGERS: tuple[str, ...] = (
    *("batch", "heads", "kv_heads", "seq_len", "seq_len_q", "seq_len_k", "head_dim", "head_dim_v"),
    *("hidden_size", "window_left", "window_right", "tile_m", "tile_n", "block_m", "block_n"),
)
BOOLEAN_FIELDS: tuple[str, ...] = ("causal", "bias", "sinks", "alibi")
ENVIRONMENT_FIELDS: tuple[str, ...] = (
    *("device_kind", "device_name", "device_uuid", "torch_version", "triton_version", "driver_version"),
)
READING_FIELDS: tuple[str, ...] = ("metric", "unit", "stat", "above", "flops", "clock", "status")
# `seq_len` is both lengths, `hidden_size` the heads' widths together
FIELDS: tuple[str, ...] = (
    *(*KEY_FIELDS, "seq_len", "hidden_size", "block_m", "block_n", "kernel"),
    *(*ENVIRONMENT_FIELDS, *READING_FIELDS),
)
STATS: tuple[str, ...] = ("p50", "p20", "p80")
ABOVE: tuple[str, ...] = ("inputs", "nothing")

Kind = Literal["field", "tuple", "json", "value", "speedup", "extra", "ignore"]
_CALL = re.compile(r"(tuple|json)\((.*)\)")


@dataclass(frozen=True)
class Column:
    """A column's role.

    Attributes:
        kind: what it is.
        names: of a field: its name; of a tuple: the fields in order; of a speed-up: baseline and candidate.
        keys: of a JSON object: which field each key is; `_` for a key that is not used.
        options: of a value or a speed-up: the fields that this column alone has.
    """

    kind: Kind
    names: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


Refine = Callable[[dict[str, str], dict[str, str]], None]


@dataclass(frozen=True)
class Plan:
    """How a table is read.

    Attributes:
        columns: by column name; a column without a role is named in a note.
        constants: fields that are alike for the whole table.
        names: words of the file and what they stand for.
        refine: completes a row's fields and extras in place, or raises `RowError`.
        notes: sentences about how the file was understood.
        family: its name.
    """

    columns: Mapping[str, Column]
    constants: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    refine: Refine | None = None
    notes: tuple[str, ...] = ()
    family: str = "generic"


@dataclass(frozen=True)
class Settings:
    """What was asked for on the command line: see `flashscope import --help`."""

    maps: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    delimiter: str | None = None
    decimal: str | None = None
    run_id: str | None = None

    @property
    def constants(self) -> dict[str, str]:
        """The fields of `--set`.

        Raises:
            InputError: an entry is no FIELD=VALUE, or names no field.
        """
        found = dict(_pair(text, "--set", "FIELD=VALUE") for text in self.sets)
        for name in found:
            _check_field(name, f"--set {name}")
        return found

    @property
    def words(self) -> dict[str, str]:
        """The words of `--name`.

        Raises:
            InputError: an entry is no WORD=OURS.
        """
        return dict(_pair(text, "--name", "WORD=OURS") for text in self.names)


class RowError(Exception):
    """Why a row cannot be used: `why` is alike for rows with the same fault."""

    def __init__(self, why: str, got: str = "") -> None:
        super().__init__(why)
        self.why, self.got = why, got


def completed(plan: Plan, table: Table, settings: Settings) -> Plan:
    """A family's plan with what was said on the command line, which counts more.

    Raises:
        InputError: something said does not fit the table; the message says what is allowed.
    """
    said = dict(column_of(text, table.header) for text in settings.maps)
    return replace(
        plan,
        columns={**plan.columns, **said},
        constants={**plan.constants, **settings.constants},
        names={**plan.names, **settings.words},
    )


def column_of(text: str, header: Sequence[str]) -> tuple[str, Column]:
    """`COLUMN=ROLE` as a column of this header and its role.

    Raises:
        InputError: there is no such column or role.
    """
    fitting = [name for name in header if text.startswith(f"{name}=")]
    if not fitting:
        raise InputError(
            f"--map {shown(text)}: must be COLUMN=ROLE with a column of the table: {_listed(header)}"
        )
    name = max(fitting, key=len)
    return name, role(text[len(name) + 1 :].strip(), f"--map {name}")


def role(text: str, where: str) -> Column:
    """The role that a text describes; the forms are in the module's docstring.

    Raises:
        InputError: it describes none.
    """
    if text in ("extra", "ignore"):
        return Column(text)
    if found := _CALL.fullmatch(text):
        parts = [part.strip() for part in found[2].split(",")]
        if found[1] == "tuple":
            for part in parts:
                _check_field(part, where, "_")
            return Column("tuple", names=tuple(parts))
        keys = dict(_pair(part, where, "KEY=FIELD") for part in parts)
        for part in keys.values():
            _check_field(part, where, "_")
        return Column("json", keys=keys)
    head, *rest = (part.strip() for part in text.split(","))
    options = dict(_pair(part, where, "FIELD=VALUE") for part in rest)
    for part in options:
        _check_field(part, where)
    words = head.split()
    if not words:
        raise InputError(f"{where}: must have a role, such as seq_len or 'latency us, backend=flash'")
    if words[0] == "value" and len(words) == 1:
        return Column("value", options=options)
    if words[0] == "speedup":
        pair = words[1].split("/") if len(words) == 2 else []
        if len(pair) != 2:
            raise InputError(f"{where}: a speed-up must be 'speedup BASELINE/CANDIDATE', got {shown(text)}")
        return Column("speedup", names=tuple(pair), options=options)
    if words[0] in UNITS:
        return _value(words, options, where)
    if options or len(words) > 1:
        raise InputError(f"{where}: no role {shown(text)}: a value must start with one of {_listed(UNITS)}")
    _check_field(words[0], where)
    return Column("field", names=(words[0],))


def _value(words: Sequence[str], options: dict[str, str], where: str) -> Column:
    metric = words[0]
    if len(words) not in (2, 3):
        raise InputError(f"{where}: {metric} must have its unit: one of {_listed(UNITS[metric])}")
    options = {"metric": metric, "unit": words[1], **options}
    if len(words) == 3:
        options["stat"] = words[2]
    check_value(options, where)
    return Column("value", options=options)


def check_value(options: Mapping[str, str], where: str) -> None:
    """See that metric, unit, stat, above and flops are known words, where they are said.

    Raises:
        InputError: one is not.
    """
    metric = options.get("metric", "any metric")
    every = tuple(unit for units in UNITS.values() for unit in units)
    allowed = {
        "metric": tuple(UNITS),
        "unit": tuple(UNITS.get(metric, every)),
        "stat": STATS,
        "above": ABOVE,
        "flops": ("paper",),
    }
    for name, words in allowed.items():
        if name in options and options[name] not in words:
            what = f"{name} of {metric}" if name == "unit" else name
            raise InputError(f"{where}: {what} must be one of {_listed(words)}, got {shown(options[name])}")


def _check_field(name: str, where: str, *also: str) -> None:
    if name not in FIELDS and name not in also:
        raise InputError(f"{where}: no field {shown(name)}: must be one of {_listed(FIELDS)}")


def _pair(text: str, where: str, form: str) -> tuple[str, str]:
    name, found, value = (part.strip() for part in text.partition("="))
    if not found or not name:
        raise InputError(f"{where}: must be {form}, got {shown(text)}")
    return name, value


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
