"""What a run of `data/sweeps/peers.toml` says of the targets: ratios, must, aim and verdict, as Markdown.

    python tests/benchmarks/peers_table.py RUN.jsonl [--shapes]

A ratio is of the latencies of one shape, both sides measured in turns in this run: theirs over ours, so that
above 1 ours is faster, or ours over theirs where `<=` is asked. The mean over shapes is geometric. A shape on
which a side has no `ok` row, or one within what the clock itself takes, has no ratio, and the verdict says
how many there are. `--shapes` adds every ratio. Host time is not in a run:
`python tests/benchmarks/host_time.py` measures it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from profiling.case import Case, InputError
from profiling.records import Run
from profiling.store import load_run

FA4 = "profiling.measure.peers:fa4"
BEST = ("sdpa_cudnn", FA4)
SDPA = ("sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
SMALL_SEQ_LEN, SMALL_HEADS = 512, 16


class Target(NamedTuple):
    """What issue 5 asks of `ours` against the fastest of `theirs`, on one clock.

    `at_most`: the ratio is ours over theirs, and must be small. `each`: every shape must reach it, not only
    the geometric mean.
    """

    text: str
    ours: str
    theirs: tuple[str, ...]
    must: float
    aim: float
    holds: Callable[[Case], bool]
    clock: str = "device"
    at_most: bool = False
    each: bool = False


def is_small(case: Case) -> bool:
    """Whether a case belongs to the row of the small ones: 16 heads in all, and 512 tokens at most."""
    return case.seq_len_q <= SMALL_SEQ_LEN and case.batch * case.heads == SMALL_HEADS


def _layer(direction: str, causal: bool | None = None) -> Callable[[Case], bool]:
    def holds(case: Case) -> bool:
        return (
            case.direction == direction
            and not is_small(case)
            and case.seq_len_q >= SMALL_SEQ_LEN
            and (causal is None or case.causal == causal)
        )

    return holds


def _small_forward(case: Case) -> bool:
    return case.direction == "fwd" and is_small(case)


TARGETS: tuple[Target, ...] = (
    Target("forward, no mask", "flash_hopper", BEST, 1.00, 1.08, _layer("fwd", False)),
    Target("forward, causal", "flash_hopper", BEST, 0.95, 1.05, _layer("fwd", True)),
    Target("backward, default", "flash_hopper", BEST, 0.95, 1.05, _layer("bwd")),
    Target("backward, deterministic", "flash_hopper/deterministic", BEST, 0.75, 0.85, _layer("bwd")),
    Target("forward, each shape", "flash_portable", ("sdpa_flash",), 1.15, 1.4, _layer("fwd"), each=True),
    Target("backward", "flash_portable", ("sdpa_flash",), 1.0, 1.2, _layer("bwd")),
    *(
        Target("N <= 512, 16 heads", name, SDPA, 1.2, 1.0, _small_forward, "graph", at_most=True)
        for name in ("flash", "flash_hopper", "flash_portable")
    ),
)
_NAMES = {FA4: "FlashAttention-4", "sdpa_flash": "FlashAttention-2 (sdpa_flash)", "sdpa_cudnn": "cuDNN"}
Shape = tuple[Any, ...]
Latencies = Mapping[Shape, Mapping[str, float]]  # by shape, by backend (with variant): ms


class Found(NamedTuple):
    """A target's ratios by shape, and the shapes that were planned but have none."""

    target: Target
    ratios: dict[Case, float]
    lacking: tuple[Case, ...]

    @property
    def mean(self) -> float | None:
        """The geometric mean, or None where there is no ratio at all."""
        logs = [math.log(ratio) for ratio in self.ratios.values()]
        return math.exp(sum(logs) / len(logs)) if logs else None

    @property
    def worst(self) -> tuple[Case, float] | None:
        """The shape that is furthest behind."""
        pick = max if self.target.at_most else min
        return pick(self.ratios.items(), key=lambda item: item[1]) if self.ratios else None

    @property
    def verdict(self) -> str:
        """`aim`, `must` or `missed`, and how many shapes are lacking; "not measured" without a ratio."""
        if self.mean is None or self.worst is None:
            return "not measured"
        value = self.worst[1] if self.target.each else self.mean
        levels = {"aim": self.target.aim, "must": self.target.must}
        reached = next((word for word, level in levels.items() if self._reaches(value, level)), "missed")
        return f"{reached}, without {len(self.lacking)} of the shapes" if self.lacking else reached

    def _reaches(self, value: float, level: float) -> bool:
        return value <= level if self.target.at_most else value >= level


def name_of(case: Case) -> str:
    """The backend, with its variant."""
    return f"{case.backend}/{case.variant}" if case.variant else case.backend


def latencies(run: Run, clock: str) -> dict[Shape, dict[str, float]]:
    """Median ms on a clock of every case without a requested tile that ran, and that the clock can time."""
    found: dict[Shape, dict[str, float]] = {}
    for row in run.measurements:
        for one in row.clocks if row.status == "ok" and row.case.tile_m is None else ():
            usable = one.status == "ok" and "timer_limited" not in one.flags
            if one.clock == clock and usable and one.latency_p50_ms:
                found.setdefault(row.case.shape_key, {})[name_of(row.case)] = one.latency_p50_ms
    return found


def judge(run: Run, target: Target) -> Found:
    """The ratios of a target, over the shapes that the run planned for our side."""
    by_shape: Latencies = latencies(run, target.clock)
    ratios: dict[Case, float] = {}
    lacking: list[Case] = []
    for case in (row.case for row in run.measurements):
        if name_of(case) != target.ours or case.tile_m is not None or not target.holds(case):
            continue
        here = by_shape.get(case.shape_key, {})
        theirs = [here[name] for name in target.theirs if name in here]
        if target.ours not in here or not theirs:
            lacking.append(case)
            continue
        ratio = min(theirs) / here[target.ours]
        ratios[case] = 1 / ratio if target.at_most else ratio
    return Found(target, ratios, tuple(lacking))


def _against(target: Target, run: Run) -> str:
    """Who was there to be compared with, in words."""
    ran = {name for shape in latencies(run, target.clock).values() for name in shape}
    present = [_NAMES.get(name, name) for name in target.theirs if name in ran]
    if target.theirs == SDPA:
        return "best of SDPA"
    return "better of " + " and ".join(present) if len(present) > 1 else next(iter(present), "-")


def _shape_text(case: Case) -> str:
    words = [f"N = {case.seq_len_q}", f"d = {case.head_dim}", *(["causal"] if case.causal else [])]
    return ", ".join(words)


def table(run: Run) -> str:
    """The targets of issue 5 with what the run says of each, as Markdown."""
    head = ("target", "ours", "against", "clock", "shapes", "mean", "worst", "must", "aim", "verdict")
    lines = [_line(head), _line(["---"] * len(head))]
    for target in TARGETS:
        found = judge(run, target)
        sign = "<= " if target.at_most else ""
        worst = "-" if found.worst is None else f"{found.worst[1]:.2f} ({_shape_text(found.worst[0])})"
        lines.append(
            _line(
                [
                    target.text,
                    f"`{target.ours}`",
                    _against(target, run),
                    f"`{target.clock}`",
                    f"{len(found.ratios)} of {len(found.ratios) + len(found.lacking)}",
                    "-" if found.mean is None else f"{found.mean:.3f}",
                    worst,
                    f"{sign}{target.must:.2f}",
                    f"{sign}{target.aim:.2f}",
                    found.verdict,
                ]
            )
        )
    return "\n".join(lines)


def shapes_table(run: Run) -> str:
    """Every ratio, a row for each target, width and mask, a column for each N."""
    found = [judge(run, target) for target in TARGETS]
    lengths = sorted({case.seq_len_q for one in found for case in one.ratios})
    head = ["target", "ours", "d", "mask", *(f"N = {n}" for n in lengths)]
    lines = [_line(head), _line(["---"] * len(head))]
    for one in found:
        kinds = sorted({(case.head_dim, case.causal) for case in one.ratios})
        for d, causal in kinds:
            own = {c.seq_len_q: r for c, r in one.ratios.items() if (c.head_dim, c.causal) == (d, causal)}
            cells = [f"{own[n]:.2f}" if n in own else "" for n in lengths]
            mask = "causal" if causal else "-"
            lines.append(_line([one.target.text, f"`{one.target.ours}`", str(d), mask, *cells]))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def lacking_text(run: Run) -> str:
    """A line for each backend of the targets that has rows which did not run: how many, and a reason."""
    wanted = {name for target in TARGETS for name in (target.ours, *target.theirs)}
    failed: dict[str, list[str]] = {}
    for row in run.measurements:
        if row.status != "ok" and name_of(row.case) in wanted:
            failed.setdefault(name_of(row.case), []).append(f"{row.status}: {row.reason}")
    return "\n".join(f"{name}: {len(why)} rows, such as {why[0]}" for name, why in sorted(failed.items()))


def main() -> None:
    """Print the tables of the run that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--shapes", action="store_true", help="also every ratio")
    options = parser.parse_args()
    try:
        run = load_run(options.run)
    except InputError as error:
        sys.exit(str(error))
    at = run.header.environment
    print(
        f"Run {run.header.run_id}: {at.device_name}, torch {at.torch_version}, triton {at.triton_version}, "
        f"commit {at.git_commit[:7]}{' and changes' if at.git_clean is False else ''}\n"
    )
    print(table(run))
    for text in (shapes_table(run) if options.shapes else "", lacking_text(run)):
        if text:
            print(f"\n{text}")


if __name__ == "__main__":
    main()
