"""What a run leaves behind: the header's environment, a `Measurement` per case, and a `Run` of both.

Field names are column names, and the last word of a name is its unit. None means unknown, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from profiling.case import KEY_FIELDS, Case, Count, Length

SCHEMA_VERSION = 1

Status = Literal["ok", "oom", "timeout", "unsupported", "incorrect", "crashed", "missing"]
STATUSES: tuple[str, ...] = ("ok", "oom", "timeout", "unsupported", "incorrect", "crashed", "missing")
MEM_METHODS: tuple[str, ...] = ("cuda_allocator", "child_rss", "allocator_total")
FLAGS: tuple[str, ...] = ("thermal", "clock_drift", "noisy", "timer_limited", "stale_kernel")

# The comparison CSV, in order: the case's key, then one row's results. data/README.md describes each.
RESULT_FIELDS: tuple[str, ...] = (
    "run_id",
    "device_kind",
    "device_name",
    "device_uuid",
    "kernel",
    "block_m",
    "block_n",
    "clock",
    "status",
    "reason",
    "flags",
    "latency_p50_ms",
    "latency_p20_ms",
    "latency_p80_ms",
    "n_samples",
    "n_rounds",
    "n_processes",
    "peak_mem_bytes",
    "retained_mem_bytes",
    "mem_method",
    "energy_mj",
    "rel_error",
    "eager_rel_error",
    "paper_tflops",
    "est_naive_bytes",
    "est_tile_bytes",
    "est_dram_bytes",
    "est_compulsory_bytes",
    "dram_read_bytes",
    "dram_write_bytes",
    "torch_version",
    "triton_version",
    "driver_version",
    "git_commit",
    "kernel_hash",
    "measured_at",
)
# Of the key what later versions know: an older CSV lacks it, and means attention.
ADDED_KEY_FIELDS: tuple[str, ...] = ("operation",)
# What later versions measure, too: an older CSV lacks these columns, and is read all the same.
ADDED_FIELDS: tuple[str, ...] = (
    "floor_ms",
    "resolution_ms",
    "compile_ms",
    "reserved_mem_bytes",
    "process_mem_bytes",
    "energy_window_s",
    "l2_bytes",
    "tensor_pipe_pct",
    "sm_clock_min_mhz",
    "sm_clock_max_mhz",
)
COLUMNS: tuple[str, ...] = KEY_FIELDS + RESULT_FIELDS + ADDED_FIELDS
# Which record a column comes from; status, reason and flags are of both a case and its clock.
ENVIRONMENT_COLUMNS: tuple[str, ...] = (
    *("device_kind", "device_name", "device_uuid"),
    *("torch_version", "triton_version", "driver_version", "git_commit"),
)
CLOCK_COLUMNS: tuple[str, ...] = (
    *("latency_p50_ms", "latency_p20_ms", "latency_p80_ms", "n_samples", "n_rounds", "n_processes"),
    *("floor_ms", "resolution_ms"),
)
MEASUREMENT_COLUMNS: tuple[str, ...] = (
    *("kernel", "block_m", "block_n", "peak_mem_bytes", "retained_mem_bytes", "mem_method", "energy_mj"),
    *("rel_error", "eager_rel_error", "dram_read_bytes", "dram_write_bytes", "kernel_hash", "measured_at"),
    *(name for name in ADDED_FIELDS if name not in CLOCK_COLUMNS),
)
# Derived on load from the case and the device, never stored (design rule 1).
DERIVED_FIELDS: tuple[str, ...] = (
    "paper_tflops",
    "est_naive_bytes",
    "est_tile_bytes",
    "est_dram_bytes",
    "est_compulsory_bytes",
)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(_Record):
    """The machine and software a measurement was made with. Never a host name, user or absolute path."""

    device_kind: Literal["cuda", "cpu"]
    device_name: str
    device_uuid: str = ""
    compute_capability: str = ""
    sm_count: int | None = None
    l2_bytes: int | None = None
    sram_bytes: int | None = None  # usable shared memory of one block
    memory_bytes: int | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    driver_version: str = ""
    cuda_version: str = ""
    python_version: str = ""
    torch_version: str = ""
    triton_version: str = ""
    flashscope_version: str = ""
    platform: str = ""
    cpu_name: str = ""
    cpu_count: int | None = None
    git_commit: str = ""
    git_clean: bool | None = None
    argv: tuple[str, ...] = ()


class Sample(_Record):
    """One raw latency. `order` is the case's place in its shuffled round; `ms` one call's milliseconds."""

    clock: str
    process: Length
    round: Length
    order: Length
    ms: float


class ClockResult(_Record):
    """The summary of one clock: quantiles over all its samples, in milliseconds."""

    clock: str
    status: Status = "ok"
    reason: str = ""
    latency_p50_ms: float | None = None
    latency_p20_ms: float | None = None
    latency_p80_ms: float | None = None
    n_samples: int | None = None
    n_rounds: int | None = None
    n_processes: int | None = None
    floor_ms: float | None = None  # what this clock reads for a call that does nothing
    resolution_ms: float | None = None  # the smallest difference that this clock can show
    flags: tuple[str, ...] = ()  # of this clock alone: `noisy`, `timer_limited`


class TensorError(_Record):
    """Error of one tensor (`out`, `lse`, `dq`, `dk`, `dv`, `dbias`, `dsinks`) against the fp64 oracle.

    The rule is under Words in CONTRIBUTING.md.
    """

    rel_error: float | None  # ‖x - ref‖ / ‖ref‖, the backend's
    eager_rel_error: float | None  # the same for the eager baseline in the dtype under test
    max_error: float | None
    max_allowed: float | None


class GpuState(_Record):
    """What NVML said at one moment; every field optional. `event_reasons` is NVML's bit mask."""

    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    event_reasons: int | None = None


class Measurement(_Record):
    """One case's outcome: its status, one `ClockResult` per planned clock, and what rode along.

    `environment` indexes `Run.environments`: 0 unless a run was resumed on another environment.
    """

    case: Case
    status: Status
    reason: str = ""
    clocks: tuple[ClockResult, ...] = ()
    samples: tuple[Sample, ...] = ()
    kernel: str = ""
    block_m: Count | None = None
    block_n: Count | None = None
    kernel_hash: str = ""
    # Compilers included; libraries were loaded before, but for those of a CPU, of a custom backend, and in a
    # worker that replaced another. Never part of a latency.
    first_call_ms: float | None = None
    compile_ms: float | None = None  # of these, what compilers took; 0 where all of it was in their caches
    peak_mem_bytes: int | None = None
    retained_mem_bytes: int | None = None
    reserved_mem_bytes: int | None = None  # what the caching allocator held at its peak, inputs included
    process_mem_bytes: int | None = None  # what the driver saw of the whole process then
    mem_method: str = ""
    energy_mj: float | None = None  # of one call
    energy_window_s: float | None = None  # how long the calls were whose energy was divided
    energy_reason: str = ""  # why it was looked for and is not known
    rel_error: float | None = None
    eager_rel_error: float | None = None
    tensor_errors: dict[str, TensorError] = {}
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    l2_bytes: int | None = None
    tensor_pipe_pct: float | None = None  # of its peak, while the call's kernels run
    sm_clock_min_mhz: int | None = None  # over the visits of this case
    sm_clock_max_mhz: int | None = None
    gpu_before: GpuState | None = None
    gpu_after: GpuState | None = None
    flags: tuple[str, ...] = ()  # of the case on every clock: `thermal`, `clock_drift`
    measured_at: str = ""  # UTC, ISO 8601, ends in Z
    environment: int = 0
    refined: bool = False  # not of the sweep: added between two N around a change of sign


class Addition(_Record):
    """What was measured of a case beside its row, and later: energy, hardware counters, memory.

    Its fields that are not None take the place of those of the case's `Measurement`; but for `source`, which
    says where they were measured if that was not in this run, and is read by people.
    """

    case: Case
    source: str | None = None
    energy_mj: float | None = None
    energy_window_s: float | None = None
    energy_reason: str | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    l2_bytes: int | None = None
    tensor_pipe_pct: float | None = None
    peak_mem_bytes: int | None = None
    retained_mem_bytes: int | None = None
    reserved_mem_bytes: int | None = None


class RunHeader(_Record):
    """The first line of a run file. `sweep` is the sweep as loaded, `source` where an import came from."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created_at: str
    label: str = ""
    source: str = ""
    environment: Environment
    sweep: dict[str, Any] = {}
    clocks: tuple[str, ...] = ()
    planned_cases: int | None = None
    pid: int | None = None  # of the process that writes the file; dead and no `RunEnd`: it was killed


class RunEnd(_Record):
    """The last line of a run that ended by itself.

    `finished`: every planned case has its row; `interrupted`: Ctrl-C; `budget`: its time was up. `took_s` is
    how long this part of the run was open, `timed_s` for how much of that calls were timed.
    """

    status: Literal["finished", "interrupted", "budget"]
    at: str
    took_s: float | None = None
    timed_s: float | None = None


@dataclass(frozen=True)
class Run:
    """A run file in memory. `problems` says, a sentence each, what in the file could not be read."""

    header: RunHeader
    measurements: tuple[Measurement, ...] = ()
    environments: tuple[Environment, ...] = ()
    problems: tuple[str, ...] = ()
    end: RunEnd | None = None
    path: Path | None = field(default=None, compare=False)

    @property
    def run_id(self) -> str:
        """The run's name, unique among runs."""
        return self.header.run_id

    @property
    def planned_cases(self) -> int:
        """How many cases were planned: those of the sweep, and those that refining it has added."""
        added = sum(row.refined for row in self.measurements)
        return max((self.header.planned_cases or 0) + added, len(self.measurements))
