"""A sweep out of what a form holds: numbers as people write them, and a limit to the number of cases."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from profiling.case import BACKENDS, CLOCKS, CPU_BACKENDS, CPU_CLOCKS, LARGEST, VARIANTS, InputError
from profiling.grid import Sweep
from profiling.sweep_text import sweep_from

MOST_VALUES = 64  # on one axis
MOST_CASES = 20_000


class Fields(NamedTuple):
    """The form: texts hold numbers, see `numbers`. `naive_to` limits N of eager attention; None: no limit."""

    name: str
    backends: Sequence[str]
    directions: Sequence[str]
    dtypes: Sequence[str]
    masks: Sequence[str]  # of `none` and `causal`
    seq_len: str
    batch: str
    heads: str
    kv_heads: str
    head_dim: str
    clocks: Sequence[str]
    processes: int
    rounds: int
    naive_to: int | None = None


def backends_for(device: str) -> list[str]:
    """What can be asked for on a device, variants of eager attention included."""
    known = CPU_BACKENDS if device == "cpu" else BACKENDS
    return [f"{name}/{variant}" if variant else name for name in known for variant in _variants(name)]


def _variants(name: str) -> tuple[str, ...]:
    """Without one first; of eager attention `add` is what it does anyway."""
    return ("", *(v for v in VARIANTS.get(name, ()) if name != "naive_compiled" and v != "add"))


def clocks_for(device: str) -> tuple[str, ...]:
    """The clocks that a device has."""
    return CPU_CLOCKS if device == "cpu" else CLOCKS


def numbers(text: str, what: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers with spaces or commas between them; `64..1024` doubles from 64 to 1024. Each once.

    Raises:
        InputError: something else is in the text, or a number is below `least`.
    """
    found: dict[int, None] = {}
    for word in filter(None, re.split(r"[\s,;]+", text)):
        match = re.fullmatch(r"(\d{1,13})(?:\.\.(\d{1,13}))?", word)
        if not match:
            raise InputError(
                f"{what}: {word[:40]!r} must be a whole number, or two as 64..1024, which doubles"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not least <= first <= last <= LARGEST or (first == 0 < last):
            raise InputError(f"{what}: {word} must lie between {least} and {LARGEST}, the smaller first")
        while first <= last:
            found[first] = None
            first = 2 * first or last + 1
    if len(found) > MOST_VALUES:
        raise InputError(f"{what}: must be at most {MOST_VALUES} numbers, got {len(found)}")
    return tuple(found)


def sweep(fields: Fields) -> Sweep:
    """The sweep of a form.

    Raises:
        InputError: a field says nothing, or something that a sweep cannot; or there would be too many cases.
    """
    group: dict[str, Sequence[object]] = {
        "backends": tuple(fields.backends),
        "direction": tuple(fields.directions),
        "dtype": tuple(fields.dtypes),
        "causal": tuple(mask == "causal" for mask in fields.masks),
        "seq_len": numbers(fields.seq_len, "Sequence lengths N"),
        "batch": numbers(fields.batch, "Batch"),
        "heads": numbers(fields.heads, "Heads"),
        "head_dim": numbers(fields.head_dim, "Head dim d"),
    }
    empty = [name for name, values in group.items() if not values]
    if empty or not fields.clocks:
        words = ", ".join((*empty, *([] if fields.clocks else ["clocks"]))).replace("_", " ")
        raise InputError(f"choose at least one of: {words}")
    kv_heads = numbers(fields.kv_heads, "KV heads")
    count = math.prod(len(values) for values in group.values()) * max(1, len(kv_heads))
    if count > MOST_CASES:
        raise InputError(f"that would be {count} cases: must be at most {MOST_CASES}")
    limits = {}
    if fields.naive_to is not None:
        limits = {name: fields.naive_to for name in fields.backends if name.partition("/")[0] == "naive"}
    protocol = {
        "clocks": tuple(fields.clocks),
        "processes": fields.processes,
        "rounds": fields.rounds,
        "min_rounds": min(3, fields.rounds),
    }
    try:
        return sweep_from(
            {
                "name": fields.name,
                "protocol": protocol,
                "group": [group | {"kv_heads": kv_heads, "max_seq_len": limits}],
            }
        )
    except InputError as error:
        raise InputError(_in_the_forms_words(str(error))) from None


def _in_the_forms_words(problem: str) -> str:
    if problem.startswith("name"):
        return "Name: must be small letters, digits, - and _, the first a letter or digit"
    return problem.removeprefix("group.0: ").removeprefix("group.0.").removeprefix("the file: ")
