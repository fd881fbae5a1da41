"""From the rows of a table to readings: one value of one case, on one clock, in the unit that is stored.

A row that cannot be understood is set aside with the column and what was expected in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from profiling.case import (
    CLOCKS,
    KEY_FIELDS,
    Case,
    InputError,
    check_backend,
    first_problem,
)
from profiling.importers import cells
from profiling.importers.roles import (
    BOOLEAN_FIELDS,
    ENVIRONMENT_FIELDS,
    INTEGERS,
    Column,
    Plan,
    RowError,
    check_value,
)
from profiling.importers.tables import Aside, Row, Table, shown
from profiling.model.flops import flops
from profiling.records import STATUSES

LARGEST = 2**31 - 1  # of a length or a count: beyond it no attention was ever measured
_SHORTEST, _LONGEST = 1e-9, 1e12  # ms: what lies beyond is no latency, and overflows a rate
_TELLING = 200  # characters of a cell that a reason repeats
_REQUIRED = ("backend", "direction", "dtype", "batch", "heads", "head_dim", "causal")
_SLOTS = {"memory": "peak_mem_bytes", "retained": "retained_mem_bytes", "energy": "energy_mj"}
_ABOVE = {"inputs": "cuda_allocator", "nothing": "allocator_total"}


class Group(NamedTuple):
    """What a run's rows have in common: the machine, and what the case has no field for."""

    environment: tuple[str, ...]  # by ENVIRONMENT_FIELDS
    extra: tuple[tuple[str, str], ...]


class Reading(NamedTuple):
    """One value. `slot` is its column in the comparison table; `clock` is empty where it has none.

    `value` is None where there is none, and `status` and `reason` say why. `half` is half a unit of its last
    digit as written, in the unit that is stored. `about` holds what else is known of the measurement.
    """

    group: Group
    case: Case
    clock: str
    slot: str
    value: float | None
    status: str
    reason: str
    half: float = 0.0
    about: tuple[tuple[str, Any], ...] = ()


class Claim(NamedTuple):
    """A speed-up as the file has it, beside the one that its own times give.

    `low` and `high` are how far rounding may move the latter.
    """

    column: str
    line: int
    claimed: cells.Number
    computed: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """Whether both can be the same number, rounded."""
        slack = 1e-6 * abs(self.claimed.value)
        return self.low - slack <= self.claimed.value + self.claimed.half and (
            self.claimed.value - self.claimed.half <= self.high + slack
        )

    @property
    def inverted(self) -> bool:
        """Whether the file's number is one over it."""
        return (
            self.claimed.value > 0
            and self._replace(computed=1 / self.computed, low=1 / self.high, high=1 / self.low).agrees
        )


class Understood(NamedTuple):
    """The readings of each used row, rows set aside, and speed-ups held against the rows' own times."""

    rows: tuple[tuple[Row, tuple[Reading, ...]], ...]
    aside: tuple[Aside, ...]
    claims: tuple[Claim, ...]


def understand(table: Table, plan: Plan, decimal: str | None = None) -> Understood:
    """Every row as readings, or set aside.

    Raises:
        InputError: no column has a value, or it cannot be told how decimals are written.
    """
    if not any(column.kind == "value" for column in plan.columns.values()):
        raise InputError(
            f"{table.name}: no column with values: say which with --map, such as "
            "--map 'COLUMN=latency ms, backend=flash, direction=fwd'"
        )
    check_value(plan.constants, table.name)
    places = [(table.header.index(name), name, column) for name, column in plan.columns.items()]
    mark = decimal or cells.decimal_mark(
        (
            row.cells[place]
            for place, _, column in places
            if column.kind in ("value", "speedup") or set(column.names) & set(INTEGERS)
            for row in table.rows
            if column.kind != "tuple"
        ),
        table.name,
    )
    rows: list[tuple[Row, tuple[Reading, ...]]] = []
    aside: list[Aside] = []
    claims: list[Claim] = []
    for row in table.rows:
        try:
            readings, speedups = _row(row, places, plan, mark)
        except RowError as error:
            aside.append(Aside(table.name, row.line, error.why, error.got, row.cells))
            continue
        rows.append((row, readings))
        claims += speedups
    return Understood(tuple(rows), tuple(aside), tuple(claims))


def _row(
    row: Row, places: Sequence[tuple[int, str, Column]], plan: Plan, decimal: str
) -> tuple[tuple[Reading, ...], list[Claim]]:
    fields: dict[str, str] = {}
    extra: dict[str, str] = {}
    for place, name, column in places:
        _take(fields, extra, row.cells[place], name, column)
    fields = {name: plan.names.get(text, text) for name, text in fields.items() if text}
    given = {**plan.constants, **fields}
    if plan.refine is not None:
        try:
            plan.refine(given, extra)
        except KeyError as error:  # the command line gave one of its columns another role
            raise RowError(
                f"{plan.family} needs column {error}: it must not be mapped to something else"
            ) from None
    found = [
        _reading(row.cells[place], name, {**given, **column.options}, extra, decimal)
        for place, name, column in places
        if column.kind == "value"
    ]
    readings = tuple(reading for reading in found if reading is not None)
    if not readings:
        raise RowError("no value in it that has a place in the comparison table")
    claims = [
        claim
        for place, name, column in places
        if column.kind == "speedup"
        for claim in _claims(row, row.cells[place], name, column, plan, readings, decimal)
    ]
    return readings, claims


def _take(fields: dict[str, str], extra: dict[str, str], cell: str, name: str, column: Column) -> None:
    """Put what a cell says into the row's fields."""
    if column.kind == "field":
        fields[column.names[0]] = cell
    elif column.kind == "extra":
        extra[name] = cell
    elif column.kind == "tuple":
        parts = [part.strip().strip("'\"") for part in cell.strip().strip("()[]").split(",")]
        parts = parts[:-1] if parts and not parts[-1] else parts  # (512,)
        if len(parts) != len(column.names):
            raise RowError(f"column {name}: must be a tuple of {len(column.names)}", shown(cell))
        fields.update((to, part) for to, part in zip(column.names, parts, strict=True) if to != "_")
    elif column.kind == "json":
        try:
            found = json.loads(cell)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not _is_text(found):
            raise RowError(f"column {name}: must be a JSON object", shown(cell))
        for key, value in found.items():
            to = column.keys.get(key)
            text = value if isinstance(value, str) else json.dumps(value)
            if to is None:
                extra[key] = text
            elif to != "_":
                fields[to] = text


def _is_text(value: Any) -> bool:
    """Whether JSON can be written down again: half of a surrogate pair cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _reading(
    cell: str, name: str, given: Mapping[str, str], extra: Mapping[str, str], decimal: str
) -> Reading | None:
    """What a value's cell says; None for a quantile of what has none here (memory, energy)."""
    metric, unit = given.get("metric", ""), given.get("unit", "")
    for asked, word in (("metric", metric), ("unit", unit)):
        if not word:
            raise RowError(f"column {name}: its {asked} is not said: say it with --set {asked}=... or --map")
    try:
        check_value(given, f"column {name}")
    except InputError as error:
        raise RowError(str(error)) from None
    stat = given.get("stat", "p50")
    if stat != "p50" and metric == "throughput":
        raise RowError(
            f"column {name}: a quantile must be of latency, since one of throughput is its reverse"
        )
    if stat != "p50" and metric != "latency":
        return None
    case = _case(given, decimal)
    clock, about = "", []
    if metric in ("latency", "throughput"):
        clock = given.get("clock", "")
        if clock not in CLOCKS:
            got = shown(clock) if clock else ""
            raise RowError(f"clock must be said (--set clock=...), one of {', '.join(CLOCKS)}", got)
        slot = f"latency_{stat}_ms"
    else:
        slot = _SLOTS[metric]
        if metric == "memory":
            above = given.get("above", "")
            if not above:
                raise RowError(
                    f"column {name}: must say what its memory is above: above=inputs (q, k, v not counted) "
                    "or above=nothing (the allocator's whole peak)"
                )
            about.append(("mem_method", _ABOVE[above]))
    for field in ("kernel", "block_m", "block_n"):
        if given.get(field):
            about.append((field, given[field] if field == "kernel" else _whole(given, field, decimal)))
    group = Group(tuple(_environment(given)), tuple(sorted((key, text) for key, text in extra.items())))
    status, reason = _outcome(cell, name, given)
    value = half = None
    if status == "ok":
        found = cells.measured(cell, unit, cells.UNITS[metric], decimal)
        if found is None:
            raise RowError(
                f"column {name}: must be a finite number in {unit}, or a word such as OOM", shown(cell)
            )
        value, half = found
        if value == 0 and metric != "retained":
            status, reason, value = "missing", f"{name} is {cell[:_TELLING]} in the file", None
        elif value < 0:
            raise RowError(f"column {name}: must not be negative", shown(cell))
    if metric == "throughput" and value is not None:
        value, half = _latency(case, value, half or 0.0, given, name)
    if value is not None and slot.startswith("latency_") and not _SHORTEST <= value <= _LONGEST:
        raise RowError(f"column {name}: must be a time of one call (1 ps to 30 years)", shown(cell))
    if value is not None and slot.endswith("_bytes"):
        value = float(round(value))
        if value >= 2**63:
            raise RowError(f"column {name}: must be less than 2^63 bytes", shown(cell))
    if value is not None and not (value < float("inf") and (value > 0 or metric in ("retained", "memory"))):
        raise RowError(f"column {name}: must be a number that a float can hold", shown(cell))
    return Reading(group, case, clock, slot, value, status, reason, half or 0.0, tuple(about))


def _outcome(cell: str, name: str, given: Mapping[str, str]) -> tuple[str, str]:
    """Status and reason: by the status column if it says other than `ok`, else by the value's own cell."""
    said = given.get("status", "")
    if said:
        plain = cells.WORDS["status"].get(said.lower(), said.lower())
        status = plain if plain in STATUSES else cells.failure(said)
        if status is None:
            raise RowError(f"status must be one of {', '.join(STATUSES)}, or a word for one", shown(said))
        if status != "ok":
            return status, f"{said[:_TELLING]!r} in the file"
    status = cells.failure(cell)
    if status is None:
        return "ok", ""
    why = f"{name} is {cell[:_TELLING]!r} in the file" if cell.strip() else f"{name} is empty in the file"
    return status, why if status != "missing" else f"{why}, which does not say why"


def _latency(
    case: Case, tflops: float, half: float, given: Mapping[str, str], name: str
) -> tuple[float, float]:
    """Milliseconds of one call by the FLOP count that the file's script uses, as it was said."""
    if given.get("flops") != "paper":
        raise RowError(f"column {name}: must say how FLOPs were counted: flops=paper (4*B*H*N*N*d)")
    if case.window_left is not None or case.window_right is not None:
        raise RowError(f"column {name}: the paper's FLOP count knows no window")
    value = flops(case, "paper") / tflops / 1e9
    return value, value * half / tflops


def _environment(given: Mapping[str, str]) -> list[str]:
    kind = given.get("device_kind", "cuda")
    if kind not in ("cuda", "cpu"):
        raise RowError("device_kind must be cuda or cpu", shown(kind))
    return [kind if name == "device_kind" else given.get(name, "") for name in ENVIRONMENT_FIELDS]


# ---------------------------------------------------------------------------------------------------- cases


def _case(given: Mapping[str, str], decimal: str) -> Case:
    """The case of a reading; what a case must have is asked for, and not assumed."""
    words: dict[str, Any] = {name: given[name] for name in KEY_FIELDS if given.get(name)}
    for name in INTEGERS:
        if given.get(name):
            words[name] = _whole(given, name, decimal)
    for name in BOOLEAN_FIELDS:
        if name in words:
            plain = str(words[name]).strip().lower()
            if plain not in cells.BOOLEANS:
                raise RowError(f"{name} must be true or false", shown(str(words[name])))
            words[name] = cells.BOOLEANS[plain]
    for name in ("dtype", "direction"):
        if name in words:
            words[name] = cells.WORDS[name].get(words[name].lower(), words[name].lower())
    if "softcap" in words:
        found = cells.number(words["softcap"], decimal)
        if found is None:
            raise RowError("softcap must be a number above 0", shown(words["softcap"]))
        words["softcap"] = found.value or None
    hidden = words.pop("hidden_size", None)
    if hidden is not None and "head_dim" not in words and words.get("heads"):
        if hidden % words["heads"]:
            raise RowError("hidden_size must be a multiple of heads", f"{hidden} and {words['heads']}")
        words["head_dim"] = hidden // words["heads"]
    length = words.pop("seq_len", None)
    for name in ("seq_len_q", "seq_len_k"):
        words.setdefault(name, length if length is not None else words.get("seq_len_q"))
    for name in ("block_m", "block_n"):
        words.pop(name, None)
    absent = [name for name in _REQUIRED if name not in words]
    absent += ["seq_len"] * any(words[name] is None for name in ("seq_len_q", "seq_len_k"))
    if absent:
        how = f"--set {absent[0]}=... or --map COLUMN={absent[0]}"
        raise RowError(f"the table does not say {', '.join(absent)}: say it with {how}")
    words.setdefault("kv_heads", words["heads"])
    words.setdefault("head_dim_v", words["head_dim"])
    try:
        check_backend(words["backend"])
        return Case(**words)
    except ValidationError as error:
        raise RowError(first_problem(error)) from None
    except InputError as error:
        raise RowError(f"{error} (--name WORD=OURS says what a word stands for)") from None


def _whole(given: Mapping[str, str], name: str, decimal: str) -> int:
    """A field's whole number: `8,192`, `1024.000000`."""
    found = cells.number(given[name], decimal)
    if found is None or found.value != int(found.value) or not 0 <= found.value <= LARGEST:
        raise RowError(f"{name} must be a whole number from 0 to {LARGEST}", shown(given[name]))
    return int(found.value)


# ------------------------------------------------------------------------------------------ within one row


def _claims(
    row: Row,
    cell: str,
    name: str,
    column: Column,
    plan: Plan,
    readings: Sequence[Reading],
    decimal: str,
) -> list[Claim]:
    """The file's speed-up beside that of the row's own latencies; nothing where either is not there."""
    if cells.failure(cell) is not None:
        return []
    claimed = cells.measured(cell, "", {}, decimal)
    if claimed is None:
        raise RowError(f"column {name}: must be a speed-up, such as 1.25 or 1.25x", shown(cell))
    wanted = {key: plan.names.get(text, text) for key, text in column.options.items()}
    found = []
    for backend in column.names:
        backend = plan.names.get(backend, backend)
        fitting = [
            reading
            for reading in readings
            if reading.case.backend == backend
            and reading.slot == "latency_p50_ms"
            and reading.value
            and all(str(getattr(reading.case, key, reading.clock)) == text for key, text in wanted.items())
        ]
        if len(fitting) == 1:
            found.append(fitting[0])
    if len(found) != 2:
        return []
    (a, b) = found
    low = max(a.value - a.half, 0.0) / (b.value + b.half)
    high = (a.value + a.half) / max(b.value - b.half, 1e-300)
    return [Claim(name, row.line, claimed, a.value / b.value, low, high)]
