"""What page Run says of a plan and of a run under way: how long, how far, what next. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from profiling import units
from profiling.analysis.operations import Along, along
from profiling.case import Case, blocks
from profiling.figures.gpu_trace import Moment
from profiling.grid import Sweep
from profiling.measure.budget import cost_s, planned_clocks
from profiling.pages.jobs import Job
from profiling.records import Measurement, Run


def costs_s(cases: Sequence[Case], sweep: Sweep, device: str) -> list[float]:
    """A rough guess of the seconds each case takes on a device, as `flashscope run` makes it for its bar."""
    clocks = planned_clocks(sweep.protocol, device)
    kind = device.partition(":")[0]
    return [cost_s(case, sweep.protocol, clocks, kind) for case in cases]


def plan_text(cases: Sequence[Case], sweep: Sweep, device: str) -> str:
    """What a sweep would measure, and for how long."""
    if not cases:
        return "No case."
    names = dict.fromkeys(name for group in sweep.group for name in group.backends)
    return (
        f"{_count(len(cases), 'case')} in {_count(len(blocks(cases)), 'shape')}, "
        f"{_lengths_text(cases)}; "
        f"{'backend' if len(names) == 1 else 'backends'} {', '.join(names)}; "
        f"up to {_count(sweep.protocol.rounds, 'round')} in {_count(sweep.protocol.processes, 'process')}."
    )


def _lengths_text(cases: Sequence[Case]) -> str:
    """`N from 64 to 4096`, `100 to 5000 classes`, or both."""
    by: dict[Along, list[int]] = {}
    for case in cases:
        by.setdefault(along([case.operation]), []).append(case.seq_len_k)
    parts = []
    for words, lengths in by.items():
        first, last = min(lengths), max(lengths)
        span = f"{units.count_text(first)} to {units.count_text(last)}"
        if first == last:
            parts.append(words.at(first))
        else:
            parts.append(f"N from {span}" if words.before else words.of(span))
    return ", ".join(parts)


def _count(n: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{units.count_text(n)} {noun if n == 1 else plural}"


def device_of(run: Run) -> str:
    """The device that a run was measured on, as one asks for it: from its command, else by its kind."""
    environment = run.environments[-1]
    asked = re.search(r"--device[= ](cpu|cuda:\d+)\b", " ".join(environment.argv))
    return asked[1] if asked else "cpu" if environment.device_kind == "cpu" else "cuda:0"


class Pace(NamedTuple):
    """How a run gets on: seconds since it began (or was resumed), seconds left, cases a minute.

    None where that cannot be said yet.
    """

    elapsed_s: float | None
    left_s: float | None = None
    per_minute: float | None = None


def pace(run: Run, began_at: str, planned: int | None, now: datetime | None = None) -> Pace:
    """How a run gets on, by the cases done since it began and by what cases are guessed to cost.

    Args:
        run: as far as it is.
        began_at: when the process that measures began to write (UTC, ISO 8601).
        planned: how many cases are planned in all.
        now: the time; by default, now.
    """
    try:
        began = datetime.fromisoformat(began_at.replace("Z", "+00:00"))
        elapsed = max(0.0, ((now or datetime.now(UTC)) - began).total_seconds())
    except (ValueError, TypeError):
        return Pace(None)
    done = [row.case for row in run.measurements if row.measured_at >= began_at]
    if not done or not planned or not elapsed:
        return Pace(elapsed)
    share = _left_share(run, done, planned)
    return Pace(elapsed, elapsed * share, len(done) / elapsed * 60)


def pace_text(pace: Pace) -> str:
    """What a bar says of it, after the cases: how long so far, how long still, how many cases a minute."""
    return "".join(
        (
            "" if pace.elapsed_s is None else f", {units.duration_text(pace.elapsed_s)} so far",
            "" if pace.left_s is None else f", about {units.duration_text(pace.left_s)} left",
            "" if pace.per_minute is None else f", {units.number_text(pace.per_minute)} cases a minute",
        )
    )


def _left_share(run: Run, done: Sequence[Case], planned: int) -> float:
    """What is left over what was done: by guessed cost where the sweep says which cases are left."""
    left = remaining(run)
    if left is None:
        return max(0, planned - len(run.measurements)) / len(done)
    sweep, cases = left
    device = run.header.environment.device_kind
    spent = sum(costs_s(done, sweep, device))
    return sum(costs_s(cases, sweep, device)) / spent if spent else 0.0


def remaining(run: Run) -> tuple[Sweep, list[Case]] | None:
    """The sweep of a run and its cases without a row, in their order.

    None where the file does not say which are planned: an import, or a part of a sweep.
    """
    sweep = _sweep(run.header.sweep)
    if sweep is None:
        return None
    cases = sweep.cases()
    if len(cases) != run.header.planned_cases:
        return None
    seen = dict.fromkeys(row.case for row in run.measurements)
    return sweep, [case for case in cases if case not in seen]


def _sweep(sweep: Mapping[str, Any]) -> Sweep | None:
    try:
        return Sweep.model_validate(sweep)
    except ValueError:
        return None


def at_hand(run: Run) -> str:
    """The block that is measured now, by its cases: the first that has no rows; empty where unknown."""
    left = remaining(run)
    if left is None or not left[1]:
        return ""
    block = blocks(left[1])[0]
    names = dict.fromkeys(f"{c.backend}/{c.variant}" if c.variant else c.backend for c in block)
    shape = block[0].model_copy(update={"tile_m": None, "tile_n": None}).label.partition(" ")[2]
    return f"{', '.join(names)} at {shape}" + (f", {len(block)} cases" if len(block) > 1 else "")


def moments(rows: Sequence[Measurement]) -> list[Moment]:
    """The GPU's state after each case that recorded it, in the order of time."""
    found = []
    for row in sorted(rows, key=lambda row: row.measured_at):
        gpu = row.gpu_after
        try:
            at = datetime.fromisoformat(row.measured_at.replace("Z", "+00:00"))
        except ValueError:
            continue
        if gpu is not None and (gpu.sm_clock_mhz, gpu.power_w, gpu.temperature_c) != (None, None, None):
            found.append((at, row.case.label, gpu))
    return [
        Moment(
            (at - found[0][0]).total_seconds() / 60, label, gpu.sm_clock_mhz, gpu.power_w, gpu.temperature_c
        )
        for at, label, gpu in found
    ]


def queue_text(job: Job, holders: Sequence[str], others: Sequence[str]) -> str:
    """Who waits for whom: a job, the runs that have its device, and the others that wait for it."""
    holder = " and ".join(holders) or "a run started elsewhere"
    also = f" So do {', '.join(others)}: one begins after the other." if others else ""
    return f"{job.run_id} waits for {job.device}: {holder} has it. It begins when that has ended.{also}"
