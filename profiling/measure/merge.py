"""Join what several processes found of a block into one `Measurement` per case. Pure; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from profiling.case import Case
from profiling.measure.messages import BlockResult, ClockNote, Outcome
from profiling.records import ClockResult, Measurement, Sample

NOISY_IQR = 0.1  # of the median; torch.utils.benchmark warns from here on
DRIFT = 0.03  # of the largest of a case's SM clocks
FLOOR_FACTOR = 2.0  # less than this many empty kernels: half of it or more is launch and clock
STEP_FACTOR = 10.0  # less than this many steps of the clock: it cannot show differences of 10 %
_THERMAL_REASONS = 0x20 | 0x40  # NVML: SwThermalSlowdown, HwThermalSlowdown


class Attempt(NamedTuple):
    """One process' outcomes by position in the block; `result` is None if it never came to an end."""

    process: int
    outcomes: Mapping[int, Outcome]
    result: BlockResult | None


def merge(
    block: Sequence[Case],
    attempts: Sequence[Attempt],
    clocks: Sequence[str],
    kernel_hashes: Mapping[str, str],
    now: datetime | None = None,
) -> list[Measurement]:
    """One measurement per case, in the block's order.

    A case is `ok` when it is in every process that tried it; else it has the status of the first that
    failed. Error, memory, kernel and first call are those of the first process.
    """
    at = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    results = [attempt.result for attempt in attempts if attempt.result is not None]
    thermal = any(result.event_reasons & _THERMAL_REASONS for result in results)
    floors, steps = (results[0].floor_ms, results[0].resolution_ms) if results else ({}, {})
    rows = []
    for index, case in enumerate(block):
        tries = [(a, a.outcomes[index]) for a in attempts if index in a.outcomes]
        if not tries:
            raise ValueError(f"no process tried {case.label}")
        first = tries[0][1]
        bad = next(((a, outcome) for a, outcome in tries if outcome.status != "ok"), None)
        status, reason = (first.status, first.reason) if bad is None else (bad[1].status, bad[1].reason)
        if bad is not None and bad[0].process > 0:
            reason = f"in process {bad[0].process}: {reason}"
        samples = tuple(sample for _, outcome in tries for sample in outcome.samples)
        by_process = [outcome.sm_clocks_mhz for _, outcome in tries]
        sm_clocks = [clock for own in by_process for clock in own]
        found = tuple(
            summary(
                clock,
                samples,
                _note(clock, [outcome for _, outcome in tries]),
                failed=status != "ok",
                floor_ms=floors.get(clock),
                resolution_ms=steps.get(clock),
            )
            for clock in clocks
        )
        rows.append(
            Measurement(
                case=case,
                status=status,
                reason=reason,
                clocks=tuple(
                    clock.model_copy(update={"status": status, "reason": reason}) if status != "ok" else clock
                    for clock in found
                ),
                samples=samples,
                kernel=first.kernel,
                block_m=first.block_m,
                block_n=first.block_n,
                kernel_hash=kernel_hashes.get(case.backend, ""),
                first_call_ms=first.first_call_ms,
                compile_ms=first.compile_ms,
                peak_mem_bytes=first.peak_mem_bytes,
                retained_mem_bytes=first.retained_mem_bytes,
                reserved_mem_bytes=first.reserved_mem_bytes,
                process_mem_bytes=first.process_mem_bytes,
                mem_method=first.mem_method,
                rel_error=first.rel_error,
                eager_rel_error=first.eager_rel_error,
                tensor_errors=first.tensor_errors,
                gpu_before=results[0].gpu_before if results else None,
                gpu_after=results[-1].gpu_after if results else None,
                sm_clock_min_mhz=min(sm_clocks, default=None),
                sm_clock_max_mhz=max(sm_clocks, default=None),
                flags=_case_flags(thermal, by_process) if status == "ok" else (),
                measured_at=at,
            )
        )
    return rows


def summary(
    clock: str,
    samples: Sequence[Sample],
    note: ClockNote | None,
    *,
    failed: bool,
    floor_ms: float | None = None,
    resolution_ms: float | None = None,
) -> ClockResult:
    """Quantiles of a clock over all samples of all processes; without samples, or failed, none.

    `floor_ms` is what the clock reads for a kernel that does nothing, `resolution_ms` its smallest step.
    """
    own = [sample for sample in samples if sample.clock == clock]
    if note is not None and note.status != "ok":
        return ClockResult(clock=clock, status=note.status, reason=note.reason)
    if failed or not own:
        return ClockResult(clock=clock, status="crashed", reason="no sample was taken")
    p20, p50, p80 = np.quantile([sample.ms for sample in own], [0.2, 0.5, 0.8])
    return ClockResult(
        clock=clock,
        reason="" if note is None else note.reason,
        latency_p20_ms=float(p20),
        latency_p50_ms=float(p50),
        latency_p80_ms=float(p80),
        n_samples=len(own),
        n_rounds=len({(sample.process, sample.round) for sample in own}),
        n_processes=len({sample.process for sample in own}),
        floor_ms=floor_ms,
        resolution_ms=resolution_ms,
        flags=_clock_flags(own, float(p50), floor_ms or 0.0, resolution_ms or 0.0),
    )


def _note(clock: str, outcomes: Sequence[Outcome]) -> ClockNote | None:
    """What any process had to say of a clock; a failure before a remark."""
    notes = [outcome.clocks[clock] for outcome in outcomes if clock in outcome.clocks]
    return min(notes, key=lambda note: note.status == "ok", default=None)


def _case_flags(thermal: bool, by_process: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Flags of a case on every clock: heat in its block, and SM clocks that differ between its processes.

    Two cases of a block may well run at different clocks: what draws more power is slowed down more, and
    that is how it will run. A case that ran at different clocks itself has samples that do not belong
    together. Medians are compared and not readings: a power cap regulates the clock up and down from one
    visit to the next, in every process alike, and measuring again would find the same.
    """
    flags = ["thermal"] * thermal
    medians = [float(np.median(part)) for part in _compared(by_process)]
    if medians and max(medians) - min(medians) > DRIFT * max(medians):
        flags.append("clock_drift")
    return tuple(flags)


def _compared(by_process: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The SM clocks of each process; of one alone those of its earlier and later visits, if it has two."""
    read = [own for own in by_process if own]
    if len(read) != 1:
        return read
    half = len(read[0]) // 2  # a visit in the middle is of neither
    return [read[0][:half], read[0][-half:]] if half else []


def _clock_flags(
    own: Sequence[Sample], p50_ms: float, floor_ms: float, resolution_ms: float
) -> tuple[str, ...]:
    """Flags of one clock of one case."""
    flags = []
    if _noisy([sample.ms for sample in own]):
        flags.append("noisy")
    if p50_ms < max(FLOOR_FACTOR * floor_ms, STEP_FACTOR * resolution_ms):
        flags.append("timer_limited")
    return tuple(flags)


def _noisy(times: Sequence[float]) -> bool:
    if len(times) < 4:
        return False
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75])
    return bool(high - low > NOISY_IQR * middle)
