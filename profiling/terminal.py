"""What the command line prints of runs and crossovers: plain text tables. Pure but for `is_alive`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from profiling import units
from profiling.case import InputError
from profiling.records import Addition, ClockResult, Environment, Measurement, Run
from profiling.units import (
    bytes_text,
    count_text,
    duration_text,
    number_text,
    percent_text,
    ratio_text,
    time_text,
)

if TYPE_CHECKING:
    from profiling.analysis.crossover import Crossover
    from profiling.analysis.explain import Shares
    from profiling.analysis.latency_fit import LatencyFit
    from profiling.analysis.operations import Along
    from profiling.analysis.policy import Policy
    from profiling.analysis.whatif import WhatIf
    from profiling.runner import Result
    from profiling.store import RunInfo


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them, whatever the terminal's width; the last one unpadded."""
    lines = [header, *rows]
    widths = [max(len(row[i]) for row in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )


def is_alive(pid: int | None) -> bool:
    """Whether a process of this machine has this id."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def run_list(infos: Sequence[RunInfo]) -> str:
    """A table of run files: device, date, rows by status, and whether each is finished."""
    rows = []
    for info in infos:
        bad = [f", {n} {status}" for status, n in sorted(info.n_by_status.items()) if status != "ok"]
        planned = "" if info.planned_cases is None else f" of {count_text(info.planned_cases)}"
        cases = f"{count_text(info.n_cases)}{planned} cases{''.join(bad)}"
        ended = "out of time: go on with --resume" if info.end_status == "budget" else info.end_status
        state = ended or (
            f"running (pid {info.pid})" if is_alive(info.pid) else "killed: go on with --resume"
        )
        rows.append(
            (
                info.run_id,
                info.device_name,
                info.created_at,
                "" if info.problem else state + ", archived" * info.archived,
                info.problem or cases,
                info.label,
            )
        )
    return table(("run", "device", "made", "state", "rows", "label"), rows)


def summary_text(result: Result) -> str:
    """How a run ended: its file, rows by status, how long it took, and how much of that was measuring."""
    counts = ", ".join(f"{n} {status}" for status, n in sorted(result.n_by_status.items()))
    text = f"{result.path}: {'out of time' if result.status == 'budget' else result.status}, "
    text += f"{result.n_rows} of {result.n_planned} cases ({counts or 'none'})"
    if result.took_s:
        text += f" in {duration_text(result.took_s)}"
        if result.timed_s is not None:
            text += f", {round(100 * result.timed_s / result.took_s)} % of it measuring"
    if result.status == "budget":
        text += f"; {result.n_left_out} case(s) were left out"
    return text


def environment_line(environment: Environment) -> str:
    """Device, versions and commit in one line."""
    e = environment
    named = (
        ("driver", e.driver_version),
        ("CUDA", e.cuda_version),
        ("torch", e.torch_version),
        ("triton", e.triton_version),
    )
    changes = " with uncommitted changes" if e.git_clean is False else ""
    parts = [
        e.device_name + (f" ({bytes_text(e.memory_bytes)})" if e.memory_bytes else ""),
        e.device_uuid,
        *(f"{name} {version}" for name, version in named if version),
        f"commit {e.git_commit[:12]}{changes}" if e.git_commit else "commit unknown",
    ]
    return ", ".join(filter(None, parts))


def run_text(run: Run, clock: str = "") -> str:
    """A run: its environments, then every case with latency on one clock, memory, error and status.

    Raises:
        InputError: the run has no such clock.
    """
    clocks = run.header.clocks or tuple(dict.fromkeys(c.clock for m in run.measurements for c in m.clocks))
    if clock and clock not in clocks:
        raise InputError(
            f"clock {clock!r} is not in run {run.run_id}: must be one of {', '.join(clocks) or 'none'}"
        )
    chosen = clock or next(iter(clocks), "")
    lines = [f"{run.run_id}, {run.header.created_at}" + (f", {run.header.label}" if run.header.label else "")]
    lines += [environment_line(e) for e in run.environments]
    header = ("case", f"{chosen} p50", "p20", "p80", "peak memory", "error", "of eager's", "flags", "status")
    return "\n".join([*lines, "", table(header, [_case_row(m, chosen) for m in run.measurements])])


def _case_row(m: Measurement, clock: str) -> tuple[str, ...]:
    own = next((c for c in m.clocks if c.clock == clock), ClockResult(clock=clock))
    status, reason = (m.status, m.reason) if m.status != "ok" else (own.status, own.reason or m.reason)
    times = (own.latency_p50_ms, own.latency_p20_ms, own.latency_p80_ms) if status == "ok" else (None,) * 3
    relative = None if not m.rel_error or not m.eager_rel_error else m.rel_error / m.eager_rel_error
    return (
        m.case.label,
        *(time_text(x) for x in times),
        bytes_text(m.peak_mem_bytes),
        number_text(m.rel_error),
        ratio_text(relative),
        " ".join((*m.flags, *own.flags)),
        f"{status}: {reason}" if reason else status,
    )


def counters_text(additions: Sequence[Addition]) -> str:
    """A table of what hardware counters saw of one call of each case."""
    rows = [
        (
            addition.case.label,
            *(units.traffic_text(x) for x in (addition.dram_read_bytes, addition.dram_write_bytes)),
            units.traffic_text(addition.l2_bytes),
            units.percent_text(None if addition.tensor_pipe_pct is None else addition.tensor_pipe_pct / 100),
        )
        for addition in additions
    ]
    return table(("case", "DRAM read", "DRAM written", "through L2", "tensor cores busy"), rows)


def crossover_text(found: Crossover) -> str:
    """One slice's answer: the slice, N* where there is one, what was seen, what to measure next."""
    where = f"{found.slice.label} on {found.slice.device_name or 'an unknown device'}"
    what = [found.metric] * (found.metric != "latency") + [f"{found.clock} clock"] * bool(found.clock)
    head = f"{where}, {', '.join(what)}: {found.verdict}{_star(found)}"
    lines = [head, f"  {_costs(found)}", f"  {found.why}", f"  {found.next}"]
    return "\n".join(line for line in lines if line.strip())


def _costs(found: Crossover) -> str:
    """What a million tokens cost with either, at both ends: of a cost, the ratio alone tells little."""
    if found.metric != "cost" or not found.points:
        return ""
    ends = dict.fromkeys((found.points[0], found.points[-1]))
    told = [
        f"{number_text(point.baseline_value)} and {number_text(point.candidate_value)} "
        f"at {_along(found).at(point.seq_len)}"
        for point in ends
    ]
    names = f"{found.baseline} and {found.candidate}"
    return f"A million {_along(found).item}s cost, in thousandths, with {names}: {'; '.join(told)}."


def _star(found: Crossover) -> str:
    words = _along(found)
    if found.crossover_seq_len is None:
        ends = [words.of(f"{count_text(a)} and {count_text(b)}") for a, b in found.brackets]
        return "".join(f", between {pair}" for pair in ends)
    return f", {words.found(units.crossover_text(found.crossover_seq_len, found.interval))}"


def _along(found: Crossover) -> Along:
    from profiling.analysis.operations import along

    return along([found.slice.operation])


def policy_text(policy: Policy) -> str:
    """Every rule in a line, and what no rule is about."""
    rows = []
    for rule in policy.rules:
        ratios = rule.evidence["runner_up_ratio"]
        lead = f"{ratio_text(min(ratios))} to {ratio_text(max(ratios))}" if ratios else ""
        rows.append(
            (
                f"{rule.direction} {rule.dtype} d{rule.head_dim}{' causal' if rule.causal else ''}",
                f"{rule.group}" if rule.group > 1 else "",
                "-".join(count_text(n) for n in dict.fromkeys(rule.batch_heads)),
                "-".join(count_text(n) for n in dict.fromkeys(rule.seq_len)),
                rule.impl if rule.tile is None else f"{rule.impl} {rule.tile[0]} x {rule.tile[1]}",
                rule.evidence["runner_up"],
                lead,
            )
        )
    header = ("call", "heads per KV head", "batch · heads", "N", "take", "instead of", "faster by")
    left = ", ".join(f"{count_text(n)} {what}" for what, n in policy.left_out.items())
    tail = f"\nrows that no rule is about: {left}" if left else ""
    return f"{policy.device_name}, {policy.clock} clock\n{table(header, rows)}{tail}"


def shares_text(shares: Sequence[Shares]) -> str:
    """What either side's time consists of, a line each; or that the model says nothing of them."""
    if not shares:
        return "  The fitted latency model says nothing of these shapes."
    lines = []
    for one in shares:
        parts = ", ".join(f"{reason} {percent_text(share)}" for reason, share in one.shares.items())
        at = f"N = {count_text(one.seq_len)}"
        lines.append(f"  Modelled at {at}, {one.backend}: {time_text(one.est_latency_ms)}, of it {parts}.")
    return "\n".join(lines)


def fits_text(fits: Mapping[str, Mapping[tuple[str, str, str], LatencyFit]]) -> str:
    """How far off the fitted model is, on what it was fitted to and on what it had not seen."""
    rows = []
    for run_id, own in fits.items():
        for key, fit in sorted(own.items()):
            unseen = [f"{what}: {percent_text(error)}" for what, error in fit.unseen.items()]
            rows.append(
                (run_id, " ".join(key), count_text(fit.points), percent_text(fit.error), ", ".join(unseen))
            )
    if not rows:
        return "No latency model: it needs a device of the catalogue, and six points of a backend."
    header = ("run", "model", "points", "off by (median)", "off by, where it was left out of the fit")
    text = f"Latency model, fitted to the run itself:\n{table(header, rows)}"
    left_out = [
        (error, f"{' '.join(key)} at {what}")
        for own in fits.values()
        for key, fit in own.items()
        for what, error in fit.unseen.items()
    ]
    if not left_out:
        return text
    worst, where = max(left_out)
    return (
        f"{text}\nOn what was left out, {count_text(len(left_out))} times: off by "
        f"{percent_text(median(error for error, _ in left_out))} (median of these), at most by "
        f"{percent_text(worst)} ({where})."
    )


def whatif_text(found: WhatIf) -> str:
    """Predictions for another GPU, a shape a line, with what they rest on."""
    rows = []
    for one in found.predictions:
        first, *_, last = one.est_latency_ms.items()
        ends = [
            f"N = {count_text(n)}: {time_text(pair[0])} and {time_text(pair[1])}" for n, pair in (first, last)
        ]
        there, here = (
            "never" if n is None else f"N* = {count_text(n)}" if n > first[0] else "always"
            for n in (one.crossover_seq_len, one.here_crossover_seq_len)
        )
        rows.append((one.slice.label, there, here, count_text(one.largest_seq_len), *ends))
    pair = f"{found.predictions[0].baseline} and {found.predictions[0].candidate}"
    header = (
        "shape",
        f"on {found.device.name}",
        f"on {found.here.name}",
        "largest N of the baseline",
        pair,
        "",
    )
    return (
        f"Predicted, not measured: {found.device.name} from a model fitted on {found.here.name}, "
        f"{found.clock} clock.\n{table(header, rows)}\n"
        f"On {found.here.name} the model is off by {percent_text(found.unseen_error)} (median) where it has "
        f"not seen the head dim or batch · heads. How far it is off on {found.device.name} is not known: "
        f"kernels are taken to suit it as well.{found.kernels_text}"
    )


def roofs_text(run: Run, clock: str = "") -> str:
    """Each case's latency beside the least time of each ceiling, which of them bounds it, and how near it is.

    Raises:
        InputError: no case of the run, on that clock, is one that the ceilings are known for.
    """
    from profiling.analysis.roofline import CEILINGS, roofs
    from profiling.store import frame

    chosen = clock or "device"
    found = roofs(frame([run]), clock=chosen)
    if not found:
        raise InputError(f"{run.run_id}: no limits on clock {chosen!r}: they need a device of the catalogue")
    rows = [
        (
            roof.case.label,
            time_text(roof.latency_ms),
            *(time_text(roof.least_ms.get(ceiling)) for ceiling in CEILINGS),
            roof.bound_by,
            percent_text(roof.reached),
        )
        for roof in found
    ]
    least = [f"least by {ceiling}" for ceiling in CEILINGS]
    header = ("case", f"{chosen} p50", *least, "bound by", "reached")
    counted = sum(any(moved.counted for moved in roof.moved.values()) for roof in found)
    how = f"counted in {count_text(counted)} of {count_text(len(found))} cases, else modelled"
    return (
        f"Measured, beside limits that are modelled; bytes through the L2 and DRAM are {how}.\n"
        f"{table(header, rows)}"
    )
