"""Liger-Kernel's `all_benchmark_data.csv`: long, one row per kernel, provider, mode, metric and x.

Format as in linkedin/Liger-Kernel, `benchmark/scripts/utils.py`: memory is divided by 2^20 and labelled MB;
times are medians of triton's `do_bench` (GPU events, caches flushed), with the 20th and 80th percentile.
Only attention along the sequence length is a case of ours.
"""

from __future__ import annotations

import re
from functools import partial

from profiling.importers.roles import Column, Plan, RowError, Settings
from profiling.importers.tables import Table, shown

NAME = "liger"
HELP = "Liger-Kernel's benchmark data"
_HEADER = (
    *("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit"),
    *("x_name", "x_value", "y_value_50", "extra_benchmark_config_str"),
)
_LENGTHS = ("seq_len", "L", "T", "N")
_MODES = {"forward": "fwd", "backward": "bwd", "full": "fwd_bwd"}


def recognises(table: Table) -> bool:
    """Whether the columns are Liger's."""
    return set(_HEADER) <= set(table.header)


def plan(table: Table, settings: Settings) -> Plan:
    """Roles of Liger's columns; version and leftover configuration are part of what must be alike."""
    columns = {
        "kernel_name": Column("extra"),
        "kernel_provider": Column("extra"),
        "kernel_operation_mode": Column("extra"),
        "metric_name": Column("extra"),
        "metric_unit": Column("extra"),
        "x_name": Column("extra"),
        "x_label": Column("ignore"),
        "x_value": Column("field", names=("seq_len",)),
        "y_value_50": Column("value"),
        "y_value_20": Column("value", options={"stat": "p20"}),
        "y_value_80": Column("value", options={"stat": "p80"}),
        "extra_benchmark_config_str": Column("json", keys=_KEYS),
        "gpu_name": Column("field", names=("device_name",)),
        "timestamp": Column("ignore"),
        "liger_version": Column("extra"),
    }
    return Plan(
        columns={name: column for name, column in columns.items() if name in table.header},
        constants={"clock": "device", "device_kind": "cuda", "above": "nothing"},
        refine=partial(_refine, settings.words),
        notes=(
            "a provider is the backend PROVIDER:KERNEL, such as liger:fused_neighborhood_attention "
            "(--name PROVIDER=BACKEND says otherwise)",
            "times are filed under the clock `device` (triton's do_bench: GPU events, caches flushed), "
            "memory labelled MB is MiB and the allocator's whole peak",
        ),
        family=NAME,
    )


_KEYS = {
    **dict.fromkeys(("B", "batch_size", "batch"), "batch"),
    **dict.fromkeys(("H", "num_heads", "heads"), "heads"),
    **dict.fromkeys(("D", "head_dim"), "head_dim"),
    "hidden_size": "hidden_size",
    "dtype": "dtype",
}


def _refine(words: dict[str, str], given: dict[str, str], extra: dict[str, str]) -> None:
    """From Liger's words to ours; a kernel other than attention along N is set aside."""
    kernel, x_name = extra.pop("kernel_name"), extra.pop("x_name")
    if "attention" not in kernel or x_name not in _LENGTHS:
        raise RowError(f"{kernel} along {x_name} is no attention along the sequence length")
    mode = extra.pop("kernel_operation_mode")
    if mode not in _MODES:
        raise RowError(f"kernel_operation_mode must be one of {', '.join(_MODES)}", shown(mode))
    given["direction"] = _MODES[mode]
    metric, unit = extra.pop("metric_name"), extra.pop("metric_unit")
    metrics = {("speed", "ms"): ("latency", "ms"), ("memory", "MB"): ("memory", "MiB")}
    if (metric, unit) not in metrics:
        raise RowError("metric must be speed in ms or memory in MB", f"{shown(metric)} in {shown(unit)}")
    given["metric"], given["unit"] = metrics[metric, unit]
    provider = extra.pop("kernel_provider")
    given["backend"] = words.get(provider, f"{provider}:{kernel}")
    _window(given, extra)


def _window(given: dict[str, str], extra: dict[str, str]) -> None:
    """A neighbourhood of k keys around each query is a window of k // 2 on either side."""
    if extra.get("dilation", "1") != "1":
        raise RowError("a dilated neighbourhood is no window of ours", f"dilation {extra['dilation']}")
    size = extra.get("kernel_size")
    if size is not None:
        if not re.fullmatch(r"[0-9]{1,9}", size):
            raise RowError("kernel_size must be a whole number", shown(size))
        given["window_left"] = given["window_right"] = str(int(size) // 2)
        given["causal"] = "false"
