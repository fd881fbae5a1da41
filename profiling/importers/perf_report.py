"""triton's `perf_report` CSVs: one x column of floats, a column per line of the plot.

Header `N_CTX,Triton [FP16],Flash-2` or, newer, `... (TFLOPS)`. Shape, direction and mask stand in the name
that triton's attention tutorial gives the file (`fused-attention-batch4-head32-d64-fwd-causal=True.csv`) or
are said with `--set`; the unit stands in the header or is said with `--set unit=`. The tutorial counts FLOPs
as the paper does.
"""

from __future__ import annotations

import re

from profiling.case import InputError
from profiling.importers import cells
from profiling.importers.roles import Column, Plan, Settings
from profiling.importers.tables import Table, shown

NAME = "perf_report"
HELP = "triton's perf_report, such as its attention tutorial"
_X = ("N_CTX", "seq_len", "SEQ_LEN")
_LINE = re.compile(r"(?P<name>.*?)(?:\s*\[(?P<dtype>\w+)\])?(?:\s*\((?P<unit>[^)]*)\))?")
_DTYPES = ("fp16", "bf16", "fp32", "fp64")
_FILE = {
    "batch": re.compile(r"batch[-_]?(\d+)", re.IGNORECASE),
    "heads": re.compile(r"heads?[-_]?(\d+)", re.IGNORECASE),
    "head_dim": re.compile(r"(?<![A-Za-z])d(\d+)", re.IGNORECASE),
    "direction": re.compile(r"(?<![A-Za-z])(fwd|bwd)(?![A-Za-z])"),
    "causal": re.compile(r"causal=(True|False)", re.IGNORECASE),
}


def recognises(table: Table) -> bool:
    """Whether the first column is the tutorial's context length, and lines follow that it would draw."""
    return table.header[0] == "N_CTX" and len(table.header) > 1


def plan(table: Table, settings: Settings) -> Plan:
    """A value for each line; the file's name says what it says.

    Raises:
        InputError: a line has no unit.
    """
    stem = re.sub(r"\.\w+$", "", table.name)
    read = {name: found[1].lower() for name, form in _FILE.items() if (found := form.search(stem))}
    columns = {table.header[0]: Column("field", names=("seq_len",))}
    notes = []
    named = []
    for name in table.header[1:]:
        found = _LINE.fullmatch(name)
        if found is None or name.endswith(("-min", "-max", "-CV")):
            continue
        dtype, unit = (found["dtype"] or "").lower(), found["unit"] or settings.constants.get("unit", "")
        if dtype and dtype not in _DTYPES:
            notes.append(f"{table.name}: column {name!r} is not used: {dtype} is no dtype of a case")
            columns[name] = Column("ignore")
            continue
        options = {"backend": _backend(found["name"], settings), "flops": "paper"}
        if dtype:
            options["dtype"] = dtype
        metric = next((metric for metric in ("latency", "throughput") if unit in cells.UNITS[metric]), "")
        if not metric and not any(text.startswith(f"{name}=") for text in settings.maps):
            raise InputError(
                f"{table.name}: column {shown(name)} has no unit: say --set unit=TFLOPS or --set unit=ms"
            )
        if metric:
            options |= {"metric": metric, "unit": unit}
        columns[name] = Column("value", options=options)
        named.append(f"{options['backend']} for {name!r}")
    if read:
        said = ", ".join(f"{name} {text}" for name, text in read.items())
        notes.append(f"{table.name}: from the file's name: {said}")
    notes.append(
        f"{table.name}: backends are {', '.join(named)} (--name LINE=BACKEND says otherwise); times are "
        "filed under the clock `device` (--set clock= says otherwise)"
    )
    if any(column.options.get("metric") == "throughput" for column in columns.values()):
        notes.append(f"{table.name}: latencies are computed from TFLOP/s by the paper's count of FLOPs")
    return Plan(
        columns=columns,
        constants={"clock": "device", "device_kind": "cuda", **read},
        notes=tuple(notes),
        family=NAME,
    )


def _backend(line: str, settings: Settings) -> str:
    """`Flash-2` -> `perf_report:Flash_2`, unless it was said what it stands for."""
    plain = line.strip()
    return settings.words.get(
        plain, f"perf_report:{re.sub(r'[^0-9A-Za-z]+', '_', plain).strip('_') or 'line'}"
    )
