"""What a page says of one point: its case, what it was measured with, and how to measure it again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiling import sweep_text, units
from profiling.analysis.operations import named
from profiling.case import ATTENTION, KEY_FIELDS, Case, Protocol, feature_words
from profiling.figures import strip
from profiling.figures.series import status_word
from profiling.records import GpuState, Measurement, Run
from profiling.store import FLAG_SEPARATOR

COLUMNS = ("about", "what", "value")
CLOCK_COLUMNS = [
    *("clock", "status", "latency_p50_ms", "latency_p20_ms", "latency_p80_ms", "flags"),
    *("n_samples", "n_rounds", "n_processes", "floor_ms", "resolution_ms", "reason"),
]
FLAG_WORDS: dict[str, str] = {
    "thermal": "the GPU slowed down for heat",
    "clock_drift": "the median SM clock differed by more than 3 % between processes, or halves of a lone one",
    "noisy": "an interquartile range above 10 % of the median",
    "timer_limited": "too short for this clock: below twice an empty kernel, or ten of its steps",
    "stale_kernel": "measured with other kernel sources than those at hand",
}
# NVML's bits for why the clocks are what they are.
EVENT_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clock",
}

Fact = tuple[str, str, str]


def rows_of(frame: pd.DataFrame, case: Case) -> pd.DataFrame:
    """The rows of the comparison table that are of this case, one a clock."""
    mask = pd.Series(True, index=frame.index)
    for name in KEY_FIELDS:
        value = getattr(case, name)
        mask &= frame[name].isna() if value is None else (frame[name] == value).fillna(False)
    return frame[mask]


def clocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Quantiles, counts and flags of each clock, every digit kept."""
    return rows[CLOCK_COLUMNS].reset_index(drop=True)


def flags(rows: pd.DataFrame) -> list[str]:
    """Each flag of a case, on which clocks unless on all, and what it means."""
    found: dict[str, list[str]] = {}
    for clock, text in zip(rows["clock"], rows["flags"].fillna(""), strict=True):
        for flag in filter(None, text.split(FLAG_SEPARATOR)):
            found.setdefault(flag, []).append(clock)
    out = []
    for flag, own in found.items():
        where = "" if len(own) == len(rows) else f" ({', '.join(own)} clock)"
        out.append(f"{flag}{where}" + (f": {FLAG_WORDS[flag]}" if flag in FLAG_WORDS else ""))
    return out


def facts(run: Run, row: Measurement, label: str = "") -> pd.DataFrame:
    """What is known of a case beyond its clocks: columns `about`, `what`, `value`, all texts.

    Args:
        run: the case is of.
        row: of the case.
        label: of the run, if it has one.
    """
    found = [*_shape(row.case), *_outcome(row), *_memory(row), *_gpu(row), *_provenance(run, row, label)]
    return pd.DataFrame([fact for fact in found if fact[2]], columns=list(COLUMNS), dtype="string")


def _shape(case: Case) -> list[Fact]:
    tile = "" if case.tile_m is None else f"{case.tile_m}×{case.tile_n}"
    widths = (
        f"{case.head_dim}" if case.head_dim_v == case.head_dim else f"{case.head_dim}, dv {case.head_dim_v}"
    )
    shared = [
        ("backend", f"{case.backend}/{case.variant}" if case.variant else case.backend),
        ("direction", case.direction),
        ("dtype", case.dtype),
    ]
    if case.operation != ATTENTION:
        kept = units.count_text(case.head_dim_v) if case.operation == "softmax_top_k" else ""
        over_rows = [
            ("operation", named(case.operation)),
            ("rows", units.count_text(case.batch)),
            ("classes of a row", units.count_text(case.seq_len_k)),
            ("classes kept", kept),
        ]
        return [("case", *pair) for pair in (*over_rows, *shared)]
    pairs = [
        *shared,
        ("batch", units.count_text(case.batch)),
        ("heads, KV heads", f"{case.heads}, {case.kv_heads}"),
        ("queries Nq, keys Nk", f"{units.count_text(case.seq_len_q)}, {units.count_text(case.seq_len_k)}"),
        ("head dim d", widths),
        ("mask and features", ", ".join(feature_words(case)) or "none"),
        ("tile asked for", tile),
    ]
    return [("case", *pair) for pair in pairs]


def _outcome(row: Measurement) -> list[Fact]:
    tile = "" if row.block_m is None else f"{row.block_m}×{row.block_n}"
    pairs = [
        ("status", status_word(row.status) + (f": {row.reason}" if row.reason else "")),
        ("tile that ran", tile),
        ("kernel", row.kernel),
        ("first call, compilers included", _known(units.time_text, row.first_call_ms)),
        ("of these, compilers", _known(units.time_text, row.compile_ms)),
        ("relative error, worst tensor", _known(units.number_text, row.rel_error)),
        ("the eager baseline's", _known(units.number_text, row.eager_rel_error)),
    ]
    out: list[Fact] = [("outcome", *pair) for pair in pairs]
    for name, error in row.tensor_errors.items():
        told = f"{units.number_text(error.rel_error)}, largest {units.number_text(error.max_error)}"
        out.append(
            ("outcome", f"error of {name}", f"{told} of {units.number_text(error.max_allowed)} allowed")
        )
    return out


def _memory(row: Measurement) -> list[Fact]:
    pairs = [
        ("peak", _known(units.bytes_text, row.peak_mem_bytes)),
        ("retained after the forward", _known(units.bytes_text, row.retained_mem_bytes)),
        ("held by the allocator", _known(units.bytes_text, row.reserved_mem_bytes)),
        ("of the whole process", _known(units.bytes_text, row.process_mem_bytes)),
        ("measured by", row.mem_method),
        ("DRAM read", _known(units.traffic_text, row.dram_read_bytes)),
        ("DRAM written", _known(units.traffic_text, row.dram_write_bytes)),
        ("through L2", _known(units.traffic_text, row.l2_bytes)),
        ("tensor cores, % of their peak", _known(units.number_text, row.tensor_pipe_pct)),
        ("energy a call (mJ)", _known(units.number_text, row.energy_mj)),
    ]
    return [("memory and energy", *pair) for pair in pairs]


def _gpu(row: Measurement) -> list[Fact]:
    low, high = row.sm_clock_min_mhz, row.sm_clock_max_mhz
    span = "" if low is None or high is None else f"{low} MHz" if low == high else f"{low} to {high} MHz"
    pairs = [
        ("before", gpu_text(row.gpu_before)),
        ("after", gpu_text(row.gpu_after)),
        ("SM clock over the visits", span),
    ]
    return [("GPU", *pair) for pair in pairs]


def gpu_text(gpu: GpuState | None) -> str:
    """The state of a GPU at one moment; empty where nothing is known of it."""
    if gpu is None:
        return ""
    reasons = gpu.event_reasons or 0
    named = [word for bit, word in EVENT_REASONS.items() if reasons & bit]
    if unknown := reasons & ~sum(EVENT_REASONS):
        named.append(f"reason {unknown:#x}")
    parts = [
        *([] if gpu.sm_clock_mhz is None else [f"SM clock {gpu.sm_clock_mhz} MHz"]),
        *([] if gpu.mem_clock_mhz is None else [f"memory clock {gpu.mem_clock_mhz} MHz"]),
        *([] if gpu.power_w is None else [f"{units.number_text(gpu.power_w)} W"]),
        *([] if gpu.temperature_c is None else [f"{gpu.temperature_c} °C"]),
        *([f"held back by: {', '.join(named)}"] if named else []),
    ]
    return ", ".join(parts)


def _provenance(run: Run, row: Measurement, label: str) -> list[Fact]:
    e = run.environments[row.environment]
    changes = {True: "", False: ", uncommitted changes", None: ""}[e.git_clean]
    pairs = [
        ("run", run.run_id if not label else f"{run.run_id} ({label})"),
        ("imported from", run.header.source),
        ("measured at (UTC)", row.measured_at),
        ("device", e.device_name),
        ("driver", e.driver_version),
        ("CUDA", e.cuda_version),
        ("torch", e.torch_version),
        ("triton", e.triton_version),
        ("Python", e.python_version),
        ("FlashScope", e.flashscope_version),
        ("platform", e.platform),
        ("CPU", e.cpu_name),
        ("commit", f"{e.git_commit}{changes}" if e.git_commit else ""),
        ("kernel sources", row.kernel_hash),
        ("command of the run", shlex.join(e.argv)),
    ]
    return [("provenance", *pair) for pair in pairs]


def _known(text: Any, value: Any) -> str:
    return "" if value is None else text(value)


def strip_chart(row: Measurement, clock: str) -> strip.StripChart | None:
    """The raw samples of a case on a clock; None where there are none, as of a summary."""
    dots = tuple(strip.Dot(s.process, s.round, s.order, s.ms) for s in row.samples if s.clock == clock)
    if not dots:
        return None
    own = next((c for c in row.clocks if c.clock == clock), None)
    quantiles = () if own is None else (own.latency_p20_ms, own.latency_p50_ms, own.latency_p80_ms)
    return strip.StripChart(row.case.backend, clock, dots, *quantiles)


def samples(row: Measurement) -> pd.DataFrame:
    """All raw samples of a case, in the order they were taken."""
    columns = ("clock", "process", "round", "order", "ms")
    return pd.DataFrame([[getattr(s, c) for c in columns] for s in row.samples], columns=list(columns))


def command(run: Run, row: Measurement) -> str:
    """The shell command that measures this case again, with the run's protocol and on its kind of device.

    Raises:
        InputError: no sweep can ask for the case.
    """
    protocol = _protocol(run.header.sweep)
    kind = run.environments[row.environment].device_kind
    return sweep_text.command(sweep_text.sweep_of(row.case, protocol), "cpu" if kind == "cpu" else "cuda:0")


def _protocol(sweep: Mapping[str, Any]) -> Protocol:
    """The protocol of a run's sweep; the usual one of an import, or where this version cannot read it."""
    try:
        return Protocol.model_validate(sweep.get("protocol", {}))
    except ValueError:
        return Protocol()
