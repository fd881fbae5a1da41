"""Runs made from formulas, in the sizes that the pages' tests need."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from synthetic import (
    LAWS,
    ROW_LAWS,
    failed_measurement,
    synthetic_case,
    synthetic_environment,
    synthetic_measurement,
    synthetic_row_case,
    synthetic_run,
)

from profiling.records import Run

TILES = tuple((m, n) for m in (64, 128, 256) for n in (64, 128, 256))


def gpu_run(run_id: str = "h200-standard", **changes: Any) -> Run:
    """A small run of a GPU: two backends, two directions, naive out of memory at the end."""
    axes: dict[str, Any] = {
        "backends": ("naive", "flash"),
        "seq_lens": (64, 256, 1024, 4096, 16384),
        "directions": ("fwd", "bwd"),
        "causals": (False, True),
        "head_dims": (64, 128),
        "batch_heads": ((1, 16),),
        "clocks": ("wall", "device", "graph"),
        "rounds": 3,
        "samples_per_round": 2,
        "oom_from": {"naive": 16384},
    }
    return synthetic_run(run_id=run_id, **{**axes, **changes})


def cpu_run(run_id: str = "cpu-quick", **changes: Any) -> Run:
    """A run of a CPU: two clocks, memory of child processes, no device in the catalogue."""
    axes: dict[str, Any] = {
        "backends": ("naive", "tiled"),
        "seq_lens": (64, 128, 256),
        "dtypes": ("fp32",),
        "batch_heads": ((1, 4),),
        "environment": synthetic_environment("Some CPU", device_kind="cpu"),
        "rounds": 3,
        "samples_per_round": 2,
    }
    return synthetic_run(run_id=run_id, **{**axes, **changes})


# What each feature of `feature_run` is, and how many times slower than plain attention its laws are.
FEATURES: dict[str, tuple[dict[str, Any], float]] = {
    "plain": ({"causal": True}, 1.0),
    "window": ({"causal": True, "window_left": 512}, 2.0),
    "softcap": ({"causal": True, "softcap": 30.0}, 3.0),
    "bias": ({"bias": True}, 5.0),
    "sinks": ({"causal": True, "sinks": True}, 7.0),
    "alibi": ({"causal": True, "alibi": True}, 11.0),
    "varlen": ({"causal": True, "layout": "varlen", "batch": 4}, 13.0),
    "paged": ({"layout": "paged", "batch": 4, "kv_heads": 2, "seq_len_q": 1}, 17.0),
}


def feature_run(run_id: str = "h200-features") -> Run:
    """A run with one feature at a time; the laws of each are its own, so that none can pass for another."""
    rng = np.random.default_rng(0)
    run = gpu_run(run_id, seq_lens=(64,))
    measurements = []
    for fields, slower in FEATURES.values():
        laws = {
            name: law._replace(launch_ms=law.launch_ms * slower, pair_ms=law.pair_ms * slower)
            for name, law in LAWS.items()
        }
        for n, name in itertools.product((256, 1024, 4096), ("naive", "flash")):
            case = synthetic_case(name, n, **fields)
            measurements.append(
                synthetic_measurement(case, clocks=("wall", "device"), laws=laws, round_noise=0.001, rng=rng)
            )
    header = run.header.model_copy(update={"planned_cases": len(measurements), "clocks": ("wall", "device")})
    return Run(header=header, measurements=tuple(measurements), environments=run.environments, end=run.end)


def rows_run(run_id: str = "h200-softmax", *, mixed: bool = False) -> Run:
    """Operations over rows, some out of memory; `mixed` puts them beside attention."""
    rng = np.random.default_rng(0)
    run = gpu_run(run_id, seq_lens=(256, 1024, 4096), causals=(False,))
    backends = ("naive", "naive/fp32_softmax", "naive_compiled", "online")
    cases = [
        synthetic_row_case(name, n, rows=rows, direction=direction)
        for n, rows, direction, name in itertools.product(
            (100, 1000, 5000, 50257), (1024, 4096), ("fwd", "bwd"), backends
        )
    ]
    cases += [
        synthetic_row_case(name, n, rows=16384, top_k=top_k)
        for n, top_k, name in itertools.product((8, 64, 256), (2, 8), ("naive", "naive_compiled", "online"))
    ]
    measured = [
        failed_measurement(case)
        if case.backend == "naive" and case.batch == 4096 and case.seq_len_k == 50257
        else synthetic_measurement(
            case, clocks=("wall", "device", "graph"), laws=ROW_LAWS, round_noise=0.001, rng=rng
        )
        for case in cases
    ]
    rows = (*(run.measurements if mixed else ()), *measured)
    header = run.header.model_copy(update={"planned_cases": len(rows)})
    return Run(header=header, measurements=rows, environments=run.environments, end=run.end)


def mixed_run(run_id: str = "h200-mixed") -> Run:
    """Operations over rows beside attention."""
    return rows_run(run_id, mixed=True)


def tokens_run(run_id: str = "h200-peers") -> Run:
    """16384 tokens at every N, as papers measure, and a curve of one batch that is shorter."""
    run = gpu_run(run_id, seq_lens=(64,))
    rng = np.random.default_rng(0)
    shapes = [(16384 // n, n) for n in (512, 2048, 8192, 16384)] + [(1, 256), (1, 512)]
    measurements = tuple(
        synthetic_measurement(
            synthetic_case(name, n, batch=batch, causal=causal),
            clocks=("device",),
            round_noise=0.001,
            rng=rng,
        )
        for (batch, n), causal, name in itertools.product(shapes, (False, True), ("naive", "flash"))
    )
    header = run.header.model_copy(update={"planned_cases": len(measurements), "clocks": ("device",)})
    return Run(header=header, measurements=measurements, environments=run.environments, end=run.end)


def tile_run(run_id: str = "h200-tiles") -> Run:
    """A tile sweep of flash; 256 x 256 does not fit."""
    return synthetic_run(
        run_id=run_id,
        backends=("flash",),
        seq_lens=(1024, 4096),
        clocks=("device",),
        rounds=3,
        samples_per_round=2,
        tiles=TILES,
    )


def counters_run(run_id: str = "h200-counters") -> Run:
    """A run of `flashscope counters SWEEP`: no clock, and bytes that are simple multiples of N."""
    run = gpu_run(run_id, seq_lens=(1024, 4096), directions=("fwd", "bwd"), causals=(False,))
    counted = [
        row.model_copy(
            update={
                "clocks": (),
                "samples": (),
                "peak_mem_bytes": None,
                "retained_mem_bytes": None,
                "dram_read_bytes": 3000 * row.case.seq_len_k,
                "dram_write_bytes": 1000 * row.case.seq_len_k,
                "l2_bytes": 7000 * row.case.seq_len_k,
                "tensor_pipe_pct": 50.0,
            }
        )
        for row in run.measurements
    ]
    failed = failed_measurement(synthetic_case("naive", 16384, head_dim=128), "oom", "CUDA out of memory")
    header = run.header.model_copy(update={"clocks": (), "planned_cases": len(counted) + 1})
    rows = (*counted, failed.model_copy(update={"clocks": ()}))
    return Run(header=header, measurements=rows, environments=run.environments, end=run.end)


def hostile_run(run_id: str = "hostile") -> Run:
    """A run whose texts try to be Markdown, HTML and a formula."""
    name = "![x](http://192.0.2.1/p.png) <img src=x onerror=alert(1)> :material/bug: $x$"
    run = cpu_run(run_id, environment=synthetic_environment(name, device_kind="cpu"))
    failed = failed_measurement(run.measurements[0].case, "crashed", f"=cmd {name}")
    odd = run.measurements[1]
    odd = odd.model_copy(
        update={
            "case": odd.case.model_copy(update={"backend": name}),
            "clocks": tuple(c.model_copy(update={"clock": name}) for c in odd.clocks),
            "mem_method": name,
            "flags": (name,),
            "kernel": name,
        }
    )
    header = run.header.model_copy(update={"label": name})
    return Run(
        header=header,
        measurements=(failed, odd, *run.measurements[2:]),
        environments=run.environments,
        problems=(),
        end=run.end,
    )
