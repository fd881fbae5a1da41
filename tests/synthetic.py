"""Runs made from formulas, for tests only: nothing here was measured, and no page or file ships it.

Times follow `launch + pairs * N²` per backend, so the true crossover of two backends is known in closed
form (`true_crossover`); noise is multiplicative and seeded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profiling.case import CPU_CLOCKS, DTYPE_BYTES, Case, split_backend
from profiling.fingerprint import kernel_hash
from profiling.records import (
    ClockResult,
    Environment,
    GpuState,
    Measurement,
    Run,
    RunEnd,
    RunHeader,
    Sample,
    TensorError,
)
from profiling.store import RunWriter


class Law(NamedTuple):
    """A backend's laws. For one (batch, head) pair at d = 64, forward, without a mask:
    time = launch_ms + pair_ms * N²; memory = pair_bytes * N² + token_bytes * N.
    """

    launch_ms: float
    pair_ms: float
    pair_bytes: float = 0.0
    token_bytes: float = 0.0
    skips_masked: bool = False  # half the pairs when causal


LAWS: dict[str, Law] = {
    "naive": Law(launch_ms=0.020, pair_ms=2.0e-9, pair_bytes=4.0, token_bytes=128.0),
    "flash": Law(launch_ms=0.035, pair_ms=0.5e-9, token_bytes=132.0, skips_masked=True),
    "sdpa_flash": Law(launch_ms=0.030, pair_ms=0.5e-9, token_bytes=132.0, skips_masked=True),
    "tiled": Law(launch_ms=0.400, pair_ms=6.0e-9, token_bytes=140.0, skips_masked=True),
}
# Of operations over rows: `pair_ms` is of 64 logits. Both are as fast at 13 333 times 64 of them.
ROW_LAWS: dict[str, Law] = {
    "naive": Law(launch_ms=0.020, pair_ms=2.0e-6, pair_bytes=4.0),
    "naive_compiled": Law(launch_ms=0.025, pair_ms=1.0e-6, pair_bytes=2.0),
    "online": Law(launch_ms=0.040, pair_ms=0.5e-6, token_bytes=512.0),
}
WORK = {"fwd": 1.0, "bwd": 2.5, "fwd_bwd": 3.5}  # of the pairs, relative to the forward
LAUNCH = {"wall": 3.0, "pipelined": 1.5, "device": 1.0, "graph": 0.5, "graph_hot": 0.5}


def law_ms(case: Case, clock: str, laws: Mapping[str, Law] = LAWS) -> float:
    """The noise-free latency of a case on a clock, in milliseconds."""
    law = laws[case.backend]
    pairs = case.batch * case.heads * case.seq_len_q * case.seq_len_k * (case.head_dim / 64)
    if case.causal and law.skips_masked:
        pairs /= 2
    return law.launch_ms * LAUNCH[clock] + law.pair_ms * pairs * WORK[case.direction]


def law_bytes(case: Case, laws: Mapping[str, Law] = LAWS) -> int:
    """The peak memory of a case, in bytes."""
    law = laws[case.backend]
    square = law.pair_bytes * case.seq_len_q * case.seq_len_k
    linear = law.token_bytes * case.seq_len_q * (case.head_dim / 64)
    scale = DTYPE_BYTES[case.dtype] / 2 * (1.0 if case.direction == "fwd" else 1.5)
    return round(case.batch * case.heads * (square + linear) * scale)


def true_crossover(a: Law, b: Law, *, clock: str, pairs_per_square: float) -> float:
    """N at which the laws of two backends meet; `pairs_per_square` is batch·heads·work·d/64."""
    launch = (b.launch_ms - a.launch_ms) * LAUNCH[clock]
    return math.sqrt(launch / ((a.pair_ms - b.pair_ms) * pairs_per_square))


def synthetic_environment(
    device_name: str = "NVIDIA H200", device_kind: str = "cuda", **changes: object
) -> Environment:
    """An environment that looks like a GPU machine's; `changes` replace its fields."""
    fields: dict[str, object] = {
        "device_kind": device_kind,
        "device_name": device_name,
        "device_uuid": "GPU-synthetic",
        "compute_capability": "9.0",
        "sm_count": 132,
        "driver_version": "580.0",
        "cuda_version": "13.0",
        "python_version": "3.12.0",
        "torch_version": "2.11.0",
        "triton_version": "3.6.0",
        "flashscope_version": "0.1.0",
        "git_commit": "0" * 40,
        "git_clean": True,
        "argv": ("run", "synthetic"),
    }
    if device_kind == "cpu":
        fields |= {"compute_capability": "", "sm_count": None, "driver_version": "", "cuda_version": ""}
        fields |= {"device_uuid": "", "cpu_name": device_name, "cpu_count": 2}
    return Environment.model_validate(fields | changes)


def synthetic_measurement(
    case: Case,
    *,
    clocks: Sequence[str] = ("wall", "device"),
    processes: int = 3,
    rounds: int = 5,
    samples_per_round: int = 3,
    round_noise: float = 0.01,
    process_noise: float = 0.005,
    laws: Mapping[str, Law] = LAWS,
    rng: np.random.Generator | None = None,
    keep_samples: bool = True,
    mem_method: str = "cuda_allocator",
    environment: int = 0,
) -> Measurement:
    """One `ok` case that obeys its law, with relative noise per sample and per process."""
    rng = rng or np.random.default_rng(0)
    samples: list[Sample] = []
    results = []
    for clock in clocks:
        shift = rng.normal(0.0, process_noise, (processes, 1, 1))
        noise = rng.normal(0.0, round_noise, (processes, rounds, samples_per_round))
        ms = law_ms(case, clock, laws) * np.exp(shift + noise)
        if keep_samples:
            samples += [
                Sample(clock=clock, process=p, round=r, order=0, ms=float(ms[p, r, i]))
                for p in range(processes)
                for r in range(rounds)
                for i in range(samples_per_round)
            ]
        results.append(
            ClockResult(
                clock=clock,
                latency_p50_ms=float(np.quantile(ms, 0.5)),
                latency_p20_ms=float(np.quantile(ms, 0.2)),
                latency_p80_ms=float(np.quantile(ms, 0.8)),
                n_samples=ms.size,
                n_rounds=processes * rounds,
                n_processes=processes,
            )
        )
    error = TensorError(rel_error=0.0031, eager_rel_error=0.0029, max_error=0.008, max_allowed=0.02)
    peak = law_bytes(case, laws)
    return Measurement(
        case=case,
        status="ok",
        clocks=tuple(results),
        samples=tuple(samples),
        kernel="synthetic_kernel",
        block_m=case.tile_m or (128 if case.backend in ("flash", "tiled") else None),
        block_n=case.tile_n or (64 if case.backend in ("flash", "tiled") else None),
        kernel_hash=kernel_hash(case.backend),
        first_call_ms=123.0,
        peak_mem_bytes=peak,
        retained_mem_bytes=peak // 2,
        mem_method=mem_method,
        rel_error=0.0031,
        eager_rel_error=0.0029,
        tensor_errors={"out": error},
        gpu_before=GpuState(sm_clock_mhz=1980, power_w=300.0, temperature_c=40),
        gpu_after=GpuState(sm_clock_mhz=1965, power_w=500.0, temperature_c=45),
        measured_at="2026-01-02T03:04:05Z",
        environment=environment,
    )


def failed_measurement(case: Case, status: str = "oom", reason: str = "out of memory") -> Measurement:
    """A case that did not run: no clocks, no samples."""
    return Measurement.model_validate(
        {"case": case, "status": status, "reason": reason, "measured_at": "2026-01-02T03:04:05Z"}
    )


def synthetic_case(name: str, seq_len: int, **fields: object) -> Case:
    """A square case; `name` may hold a variant (`naive/fill`)."""
    backend, variant = split_backend(name)
    shape = {"heads": 16, "kv_heads": fields.get("heads", 16), "head_dim": 64}
    shape["head_dim_v"] = fields.get("head_dim", 64)
    shape |= {"backend": backend, "variant": variant, "seq_len_q": seq_len, "seq_len_k": seq_len}
    return Case.model_validate(shape | fields)


def synthetic_row_case(
    name: str,
    classes: int,
    *,
    rows: int = 4096,
    top_k: int | None = None,
    direction: str = "fwd",
    dtype: str = "bf16",
) -> Case:
    """A cross-entropy over `rows` rows, or where `top_k` is given a softmax that keeps so many classes."""
    operation = "cross_entropy" if top_k is None else "softmax_top_k"
    backend, variant = split_backend(name, operation)
    shape = {"batch": rows, "seq_len_q": 1, "seq_len_k": classes, "head_dim": 1, "head_dim_v": top_k or 1}
    own = {"operation": operation, "backend": backend, "variant": variant}
    return Case.model_validate(own | shape | {"direction": direction, "dtype": dtype})


def synthetic_run(
    *,
    run_id: str = "synthetic-run",
    backends: Sequence[str] = ("naive", "flash"),
    seq_lens: Sequence[int] = (64, 128, 256, 512, 1024, 2048, 4096),
    directions: Sequence[str] = ("fwd",),
    dtypes: Sequence[str] = ("bf16",),
    head_dims: Sequence[int] = (64,),
    causals: Sequence[bool] = (False,),
    batch_heads: Sequence[tuple[int, int]] = ((1, 16),),
    clocks: Sequence[str] = ("wall", "device"),
    processes: int = 3,
    rounds: int = 5,
    samples_per_round: int = 3,
    round_noise: float = 0.01,
    process_noise: float = 0.005,
    laws: Mapping[str, Law] = LAWS,
    oom_from: Mapping[str, int] | None = None,
    environment: Environment | None = None,
    keep_samples: bool = True,
    tiles: Sequence[tuple[int, int]] = (),
    seed: int = 0,
) -> Run:
    """A finished run over the product of the axes.

    `oom_from` maps a backend to the first N at which it is out of memory. `tiles` adds, for `flash` and
    `tiled`, cases with these requested tiles: 256 x 256 is `unsupported`, the others run the slower the
    further from 128 x 64.
    """
    rng = np.random.default_rng(seed)
    environment = environment or synthetic_environment()
    cpu = environment.device_kind == "cpu"
    clocks = CPU_CLOCKS if cpu else tuple(clocks)
    measurements = []
    for direction, dtype, (batch, heads), head_dim, causal, seq_len, name in itertools.product(
        directions, dtypes, batch_heads, head_dims, causals, seq_lens, backends
    ):
        shape = {"direction": direction, "dtype": dtype, "batch": batch, "heads": heads}
        case = synthetic_case(name, seq_len, head_dim=head_dim, causal=causal, **shape)
        tiled = tiles if case.backend in ("flash", "tiled") else ()
        for each in (case, *(case.model_copy(update={"tile_m": m, "tile_n": n}) for m, n in tiled)):
            if seq_len >= (oom_from or {}).get(each.backend, seq_len + 1):
                measurements.append(failed_measurement(each))
            elif (each.tile_m, each.tile_n) == (256, 256):
                reason = "the tile needs 294912 bytes of shared memory, 232448 usable"
                measurements.append(failed_measurement(each, "unsupported", reason))
            else:
                measurements.append(
                    synthetic_measurement(
                        each,
                        clocks=clocks,
                        processes=processes,
                        rounds=rounds,
                        samples_per_round=samples_per_round,
                        round_noise=round_noise,
                        process_noise=process_noise,
                        laws=_slowed(laws, each),
                        rng=rng,
                        keep_samples=keep_samples,
                        mem_method="child_rss" if cpu else "cuda_allocator",
                    )
                )
    header = RunHeader(
        run_id=run_id,
        created_at="2026-01-02T03:00:00Z",
        label="synthetic: made from formulas, not measured",
        environment=environment,
        sweep={"name": "synthetic"},
        clocks=clocks,
        planned_cases=len(measurements),
    )
    return Run(
        header=header,
        measurements=tuple(measurements),
        environments=(environment,),
        end=RunEnd(status="finished", at="2026-01-02T04:00:00Z"),
    )


def _slowed(laws: Mapping[str, Law], case: Case) -> Mapping[str, Law]:
    """The laws for a case with a requested tile: a tenth more per pair for each octave off 128 x 64."""
    if case.tile_m is None or case.tile_n is None:
        return laws
    octaves = abs(math.log2(case.tile_m / 128)) + abs(math.log2(case.tile_n / 64))
    law = laws[case.backend]
    return {**laws, case.backend: law._replace(pair_ms=law.pair_ms * (1 + 0.1 * octaves))}


def write_synthetic(run: Run, path: Path) -> None:
    """Write a synthetic run to a run file, through the real writer."""
    with RunWriter.create(path, run.header) as writer:
        for environment in run.environments[1:]:
            writer.append_environment(environment)
        writer.append(run.measurements)
        if run.end is not None:
            writer.end(run.end.status, run.end.at)
