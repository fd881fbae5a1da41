"""attention-gym's CSVs: a shape in a tuple, per provider `<name>_fwd_time` in microseconds and TFLOPs.

Format as in meta-pytorch/attention-gym (its benchmark tables): any failure is `nan`, so that a failure's
reason is unknown; `<name>_fwd_speedup` is that provider's time over `flex_attn`'s. `flex_attn` is another
kernel from file to file, which is why the file's name becomes part of the backend's.
"""

from __future__ import annotations

import re

from profiling.importers.roles import Column, Plan, RowError, Settings
from profiling.importers.tables import Table, shown

NAME = "attention_gym"
HELP = "attention-gym's tables, with shape(B,Hq,M,Hkv,N,D)"
_SHAPE = re.compile(r"shape\s*\(([^)]*)\)")
_TIME = re.compile(r"(\w+)_(fwd|bwd)_time")
_SPEEDUP = re.compile(r"(\w+)_(fwd|bwd)_speedup")
_LETTERS = {
    "B": "batch",
    "Hq": "heads",
    "M": "seq_len_q",
    "Hkv": "kv_heads",
    "N": "seq_len_k",
    "D": "head_dim",
}
_MASKS = {
    "noop": {"causal": "false"},
    "causal": {"causal": "true"},
    "alibi": {"causal": "false", "alibi": "true"},
}
_BACKENDS = {"cudnn": "sdpa_cudnn"}


def recognises(table: Table) -> bool:
    """Whether there is a shape and a provider's time."""
    return (
        "attn_type" in table.header
        and any(_SHAPE.fullmatch(name) for name in table.header)
        and any(_TIME.fullmatch(name) for name in table.header)
    )


def plan(table: Table, settings: Settings) -> Plan:
    """Roles by column name; the derived columns (TFLOPs, bandwidth) are not used."""
    stem = re.sub(r"\W", "_", re.sub(r"\.\w+$", "", table.name))
    columns: dict[str, Column] = {}
    words = settings.words

    def backend(provider: str) -> str:
        return words.get(provider, _BACKENDS.get(provider, f"{provider}:{stem}"))

    for name in table.header:
        if found := _SHAPE.fullmatch(name):
            letters = [letter.strip() for letter in found[1].split(",")]
            columns[name] = Column("tuple", names=tuple(_LETTERS.get(letter, "_") for letter in letters))
        elif found := _TIME.fullmatch(name):
            options = {"metric": "latency", "unit": "us", "backend": backend(found[1]), "direction": found[2]}
            columns[name] = Column("value", options=options)
        elif found := _SPEEDUP.fullmatch(name):
            pair = (backend(found[1]), backend("flex_attn"))
            columns[name] = Column("speedup", names=pair, options={"direction": found[2]})
        elif name == "dtype":
            columns[name] = Column("field", names=("dtype",))
        elif name == "attn_type":
            columns[name] = Column("extra")
        elif re.fullmatch(r"\w+_(fwd|bwd)_(TFlops|mem_bw \(TB/s\))", name):
            columns[name] = Column("ignore")
    named = sorted({column.options["backend"] for column in columns.values() if "backend" in column.options})
    return Plan(
        columns=columns,
        constants={"clock": "device", "device_kind": "cuda"},
        refine=_refine,
        notes=(
            f"{table.name}: backends are {', '.join(named)} (--name PROVIDER=BACKEND says otherwise); times "
            "are microseconds, filed under the clock `device` (--set clock= says otherwise); noop and alibi "
            "are taken as without a causal mask; TFLOPs and bandwidth are derived and not read",
        ),
        family=NAME,
    )


def _refine(given: dict[str, str], extra: dict[str, str]) -> None:
    """The mask from `attn_type`."""
    mask = extra.pop("attn_type")
    if mask not in _MASKS:
        raise RowError(
            f"attn_type must be one of {', '.join(_MASKS)}: what {shown(mask)} hides is not in the file"
        )
    given.update(_MASKS[mask])
