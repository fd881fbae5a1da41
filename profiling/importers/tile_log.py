"""Markdown logs of a tile search: a row per tile, PyTorch and Triton side by side, the best one marked.

Columns `Seq Len`, `D Model`, `Dtype`, `Q Tile`, `K Tile`, `Best`, then `Fwd PT (ms)`, `Fwd TR (ms)`,
`Fwd Speedup` and the same for `Bwd` and `E2E`, as course work on FlashAttention prints them. PT is timed
anew beside every tile, so only the row marked as best is a pair; batch, heads and mask are not in it.
"""

from __future__ import annotations

import re

from profiling.importers.roles import Column, Plan, RowError, Settings
from profiling.importers.tables import Table

NAME = "tile_log"
HELP = "Markdown tables of tiles with PT and TR columns, the best one marked"
_FIELDS = {
    "Seq Len": "seq_len",
    "D Model": "head_dim",
    "Dtype": "dtype",
    "Q Tile": "block_m",
    "K Tile": "block_n",
}
_DIRECTIONS = {"Fwd": "fwd", "Bwd": "bwd", "E2E": "fwd_bwd"}
_TIME = re.compile(r"(Fwd|Bwd|E2E) (PT|TR) \((\w+)\)")
_SPEEDUP = re.compile(r"(Fwd|Bwd|E2E) Speedup")
_BACKENDS = {"PT": "naive", "TR": "tile_log:triton"}


def recognises(table: Table) -> bool:
    """Whether there are tiles, the mark, and a time."""
    return {*_FIELDS, "Best"} <= set(table.header) and any(map(_TIME.fullmatch, table.header))


def plan(table: Table, settings: Settings) -> Plan:
    """Roles by column name; the tile is Triton's alone."""
    backends = {name: settings.words.get(name, usual) for name, usual in _BACKENDS.items()}
    columns = {name: Column("field", names=(to,)) for name, to in _FIELDS.items()}
    columns["Best"] = Column("extra")
    for name in table.header:
        if found := _TIME.fullmatch(name):
            options = {
                "metric": "latency",
                "unit": found[3],
                "backend": backends[found[2]],
                "direction": _DIRECTIONS[found[1]],
            }
            tile = {} if found[2] == "TR" else {"block_m": "", "block_n": ""}
            columns[name] = Column("value", options=options | tile)
        elif found := _SPEEDUP.fullmatch(name):
            pair = (backends["PT"], backends["TR"])
            columns[name] = Column("speedup", names=pair, options={"direction": _DIRECTIONS[found[1]]})
    return Plan(
        columns=columns,
        constants={"device_kind": "cuda"},
        refine=_refine,
        notes=(
            f"{table.name}: PT is {backends['PT']}, TR is {backends['TR']} (--name PT=BACKEND says else)",
        ),
        family=NAME,
    )


def _refine(given: dict[str, str], extra: dict[str, str]) -> None:
    """Only rows with a mark under `Best`."""
    if not extra.pop("Best").strip():
        raise RowError("not marked as the best tile of its shape")
