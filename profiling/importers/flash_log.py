"""The log of flash-attention's `benchmark_flash_attention.py`: a line of settings, then a line per method.

`### causal=False, headdim=64, batch_size=32, seqlen=512 ###`, then
`Flash2 fwd: 84.08 TFLOPs/s, bwd: 52.88 TFLOPs/s, fwd + bwd: 59.15 TFLOPs/s`. The script keeps heads times
head dim at 2048 and counts FLOPs as the paper does; a failure, whatever it was, is printed as 0.00.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from profiling.case import InputError
from profiling.importers.roles import Column, Plan, Settings
from profiling.importers.tables import Aside, Row, Table

NAME = "flash_log"
HELP = "the log of flash-attention's benchmark_flash_attention.py"
_SETTINGS = re.compile(
    r"#+\s*causal=(True|False),\s*headdim=(\d+),\s*batch_size=(\d+),\s*seqlen=(\d+)\s*#+", re.IGNORECASE
)
_METHOD = re.compile(r"(\S.*?) fwd: *(\S+) TFLOPs/s, *bwd: *(\S+) TFLOPs/s, *fwd \+ bwd: *(\S+) TFLOPs/s")
_HEADER = ("causal", "head_dim", "batch", "seq_len", "method", "fwd", "bwd", "fwd + bwd")
_BACKENDS = {"Flash2": "flash_attn:flash_attn_2", "Pytorch": "naive"}
_WIDTH = 2048  # heads x head dim in the script


def recognises_text(text: str) -> bool:
    """Whether a line of settings is in it."""
    return any(_SETTINGS.fullmatch(line.strip()) for line in text.splitlines())


def table_of(text: str, name: str) -> Table:
    """The log as a table of one row a method; lines that are neither are set aside.

    Raises:
        InputError: there is no line of a method.
    """
    setting: Sequence[str] = ()
    rows: list[Row] = []
    aside: list[Aside] = []
    for number, line in enumerate(text.splitlines(), start=1):
        plain = line.strip()
        if found := _SETTINGS.fullmatch(plain):
            setting = found.groups()
        elif (found := _METHOD.fullmatch(plain)) and setting:
            rows.append(Row(number, (*setting, *found.groups())))
        elif plain:
            why = "must be '### causal=..., headdim=... ###' or 'METHOD fwd: ... TFLOPs/s, bwd: ...'"
            aside.append(Aside(name, number, why, "", (plain,)))
    if not rows:
        raise InputError(f"{name}: no line such as 'Flash2 fwd: 84.08 TFLOPs/s, bwd: ...' below its settings")
    return Table(name, _HEADER, tuple(rows), "", tuple(aside))


def recognises(table: Table) -> bool:
    """Never as a table: `recognises_text` does."""
    return False


def plan(table: Table, settings: Settings) -> Plan:
    """A value for each direction; heads follow from the script's fixed width."""
    columns = {name: Column("field", names=(name,)) for name in _HEADER[:4]}
    columns["method"] = Column("extra")
    for name, direction in (("fwd", "fwd"), ("bwd", "bwd"), ("fwd + bwd", "fwd_bwd")):
        options = {"metric": "throughput", "unit": "TFLOP/s", "flops": "paper", "direction": direction}
        columns[name] = Column("value", options=options)

    def refine(given: dict[str, str], extra: dict[str, str]) -> None:
        method = extra.pop("method")
        plain = re.sub(r"[^0-9A-Za-z]+", "_", method).strip("_") or "method"
        known = settings.words.get(method, _BACKENDS.get(method))
        given["backend"] = known or f"flash_attn:{plain if plain[0].isalpha() else f'm_{plain}'}"
        width = int(given["head_dim"][:9])
        if "heads" not in given and width and _WIDTH % width == 0:
            given["heads"] = str(_WIDTH // width)

    return Plan(
        columns=columns,
        constants={"dtype": "fp16", "clock": "pipelined", "device_kind": "cuda"},
        refine=refine,
        notes=(
            f"{table.name}: as that script has it unless --set says otherwise: fp16, heads such that heads x "
            "head dim is 2048, many calls and one synchronisation (clock `pipelined`); latencies are "
            "computed from TFLOP/s by the paper's count; 0.00 is how it prints any failure",
        ),
        family=NAME,
    )
