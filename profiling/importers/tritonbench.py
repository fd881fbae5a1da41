"""tritonbench's CSV: `;` between columns, a tuple for the shape, `<provider>-<metric>`, an `average` row.

Format as in meta-pytorch/tritonbench: latency in ms, `gpu_peak_mem` in 10^9 bytes (the allocator's whole
peak), a failed cell holds words. Its attention operator writes `(Batch, Heads, SeqLen, SeqLen_KV, Dhead)`.
Direction, dtype and mask are not in the file. Where `speedup` was asked for, a version of it prints the
baseline's error in a provider's row: an OOM there may not be the provider's own.
"""

from __future__ import annotations

import re

from profiling.importers.roles import Column, Plan, Settings
from profiling.importers.tables import Table

NAME = "tritonbench"
HELP = "tritonbench --op flash_attention --csv"
_SHAPE = re.compile(r"\(([^()]*)\)")
_NAMES = {
    "batch": "batch",
    "b": "batch",
    "heads": "heads",
    "h": "heads",
    "heads_kv": "kv_heads",
    "seqlen": "seq_len_q",
    "seqlen_q": "seq_len_q",
    "seqlen_kv": "seq_len_k",
    "dhead": "head_dim",
    "d": "head_dim",
}
# by the last `-`, since a provider's own name may hold one (`cudnn-90100-latency`)
_METRICS = {
    "latency": {"metric": "latency", "unit": "ms"},
    "gpu_peak_mem": {"metric": "memory", "unit": "GB", "above": "nothing"},
}
_BACKENDS = {"aten": "naive", "sdpa": "sdpa", "cudnn": "sdpa_cudnn"}


def recognises(table: Table) -> bool:
    """Whether the first column is an attention's tuple and another is a provider's metric."""
    return bool(_shape(table.header[0])) and any(_metric(name) for name in table.header[1:])


def plan(table: Table, settings: Settings) -> Plan:
    """Roles by column name; metrics that follow from others are not used."""
    columns = {table.header[0]: Column("tuple", names=_shape(table.header[0]) or ("_",))}
    named: dict[str, str] = {}
    for name in table.header[1:]:
        provider, _, metric = name.rpartition("-")
        if metric in _METRICS:
            named[provider] = settings.words.get(provider, _backend(provider))
            columns[name] = Column("value", options={**_METRICS[metric], "backend": named[provider]})
        elif metric == "speedup" and (baseline := settings.words.get("baseline")):
            pair = (baseline, settings.words.get(provider, _backend(provider)))
            columns[name] = Column("speedup", names=pair)
    said = ", ".join(f"{backend} for {provider}" for provider, backend in named.items())
    notes = [
        f"{table.name}: backends are {said} (--name PROVIDER=BACKEND says otherwise); times are filed under "
        "the clock `device` (--set clock= says otherwise), memory is the allocator's whole peak"
    ]
    if any(name.endswith("-speedup") for name in table.header):
        notes.append(
            f"{table.name}: it has speed-ups (checked with --name baseline=BACKEND): tritonbench may then "
            "print its baseline's failure in the rows of others"
        )
    return Plan(
        columns=columns,
        constants={"clock": "device", "device_kind": "cuda"},
        notes=tuple(notes),
        family=NAME,
    )


def _shape(header: str) -> tuple[str, ...]:
    """The fields of an attention's tuple; empty where it is another operator's."""
    found = _SHAPE.fullmatch(header)
    names = [name.strip().lower() for name in found[1].split(",")] if found else []
    fields = tuple(_NAMES.get(name, "_") for name in names)
    return fields if {"seq_len_q", "head_dim"} <= set(fields) else ()


def _metric(name: str) -> str:
    provider, _, metric = name.rpartition("-")
    return metric if provider and metric in _METRICS else ""


def _backend(provider: str) -> str:
    """tritonbench's `aten` is eager attention; others are its own functions."""
    plain = re.sub(r"[^0-9A-Za-z]+", "_", provider).strip("_")
    return _BACKENDS.get(provider, f"tritonbench:{plain if plain[:1].isalpha() else f'p_{plain}'}")
