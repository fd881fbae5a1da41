"""One plain sentence on what a crossover says, and one on what to measure next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from profiling.analysis.operations import Along, joined
from profiling.analysis.resample import MIN_PROCESSES
from profiling.units import count_text, percent_text


class Facts(NamedTuple):
    """What the sentences are made of; names as in `crossover.Crossover`.

    `undecided` are the N without a sign of their own that keep the verdict open; `stop` is the last N at
    which the baseline ran, if the candidate ran beyond. `of_energy` says that values hold a measured energy,
    of which a case has one and no samples. `noise_share` is that of `interpolation.ZeroInterval`. `along` is
    what the curves run along.
    """

    along: Along
    baseline: str
    candidate: str
    metric: str
    of_energy: bool
    verdict: str
    seq_lens: tuple[int, ...]
    limited: tuple[int, ...]
    brackets: tuple[tuple[int, int], ...]
    ahead: str
    undecided: tuple[int, ...]
    share: float | None
    bracket_only: bool
    processes: int | None
    noise_share: float | None
    baseline_oom_from: int | None
    candidate_oom_from: int | None
    stop: int | None


def why(facts: Facts) -> str:
    """What was seen, in one sentence, with what the interval lacks."""
    return f"{_seen(facts)}{_limited(facts)}{_memory_limits(facts)}{_caveat(facts)}."


def _seen(f: Facts) -> str:
    if f.limited and not f.seq_lens:
        return f"Wherever both {f.baseline} and {f.candidate} ran, the clock cannot tell"
    if not f.seq_lens and f.of_energy:
        return (
            f"There is no {f.along.each} at which the energy of both {f.baseline} and {f.candidate} is known"
        )
    if not f.seq_lens:
        return f"There is no {f.along.each} at which both {f.baseline} and {f.candidate} ran"
    span = _span(f.seq_lens, f.along)
    match f.verdict:
        case "always":
            return f"{f.candidate} is ahead of {f.baseline} {span}"
        case "never":
            return f"{f.candidate} is behind {f.baseline} {span}"
        case "censored":
            stop = "" if f.stop is None else f", and {f.baseline} did not run beyond {f.along.at(f.stop)}"
            return f"{f.candidate} is behind {f.baseline} {span}{stop}"
        case "clear":
            low, high = (f.along.at(n) for n in f.brackets[0])
            first, then = ("behind", "ahead") if f.ahead == "above" else ("ahead", "behind")
            return f"{f.candidate} is {first} up to {low} and {then} from {high} on"
        case "several":
            turns = f"{_times(len(f.brackets))}: {_between(f)}"
            return f"{f.candidate} and {f.baseline} change places {turns}"
        case _:
            return _undecided(f)


def _undecided(f: Facts) -> str:
    known = f"; they change places {_between(f)}" if f.brackets else ""
    if f.undecided:
        tie = f.metric == "memory" or f.of_energy
        noise = "the two are equal" if tie else "the difference is within the noise"
        return f"At {f.along.at(*f.undecided)} {noise}{known}"
    return f"Only {percent_text(f.share)} of the bootstrap replicates show the same signs{known}"


def _limited(f: Facts) -> str:
    if not f.limited:
        return ""
    one = len(f.limited) == 1 and (not f.along.after or f.limited[0] == 1)  # one N, but several classes
    are = "is" if one else "are"
    return f"; {f.along.at(*f.limited)} {are} left out, where a latency is hardly more than an empty kernel's"


def _memory_limits(f: Facts) -> str:
    parts = [
        f"{name} is out of memory from {f.along.at(n)} on"
        for name, n in ((f.baseline, f.baseline_oom_from), (f.candidate, f.candidate_oom_from))
        if n is not None
    ]
    return "".join(f"; {part}" for part in parts)


def _caveat(f: Facts) -> str:
    if f.metric == "memory" or not f.seq_lens:
        return ""
    if f.bracket_only:
        if f.of_energy:
            return "; bracket only: energy is one value a case, hence no interval"
        return "; bracket only: no samples in the file, hence no interval"
    if f.processes == 1:
        return "; with one process only, the interval lacks the spread between processes"
    if f.processes is not None and f.processes < MIN_PROCESSES:
        return (
            f"; {f.processes} processes are too few to know the spread between them, "
            "so the interval may be too narrow"
        )
    return ""


def what_next(facts: Facts) -> str:
    """What to measure to know more, in one sentence."""
    f = facts
    few = f.processes is not None and f.processes < MIN_PROCESSES
    longer = "longer N" if f.along.before else "more classes"
    if f.limited and not f.seq_lens:
        return f"Measure {longer}, or take the graph clock, whose own share is smaller."
    if not f.seq_lens and f.of_energy:
        return "Measure it with `flashscope run --energy all`."
    if not f.seq_lens:
        return (
            f"Measure both backends at the same, {'shorter' if f.along.before else 'smaller'} {f.along.each}."
        )
    match f.verdict:
        case "ambiguous" if f.metric == "memory" or f.of_energy:
            return f"Measure {longer}, where {f.metric} tells the two apart."
        case "ambiguous" if f.bracket_only:
            return "Measure it with `flashscope run`: only samples can tell a difference from noise."
        case "ambiguous":
            where = f" at {f.along.at(*f.undecided)}" if f.undecided else ""
            return f"Repeat{where} with more processes and rounds."
        case "always":
            return f"Measure {_beside(f.seq_lens[0], 'below', f.along)}."
        case "never":
            return f"Measure {_beside(f.seq_lens[-1], 'above', f.along)}."
        case "censored":
            fewer = "batch·heads" if f.along.before else "rows"
            last = f.along.at(f.seq_lens[-1])
            return f"Measure beyond {last} with fewer {fewer} or on a device with more memory."
    if f.bracket_only and not f.of_energy:
        return "Measure it with `flashscope run` to get samples, and with them an interval."
    if few:
        return f"Repeat with at least {MIN_PROCESSES} processes to know the spread between them."
    if f.noise_share is not None and f.noise_share > 0.5:
        return "Repeat with more processes and rounds: most of the interval's width is noise."
    gaps = [_widest_gap(bracket, f.seq_lens) for bracket in f.brackets]
    middles = [middle for gap in gaps if (middle := _middle(*gap)) is not None]
    if not middles:
        return f"Nothing: no {f.along.each} lies between the points of the bracket."
    narrow = "halve" if gaps == list(f.brackets) else "narrow"
    return f"Measure {f.along.at(*middles)} to {narrow} the bracket{'s' if len(middles) > 1 else ''}."


def _widest_gap(bracket: tuple[int, int], seq_lens: Sequence[int]) -> tuple[int, int]:
    """Of the gaps between the N measured in a bracket, points without a sign included, the widest."""
    inside = [n for n in seq_lens if bracket[0] <= n <= bracket[1]]
    return max(itertools.pairwise(inside), key=lambda gap: gap[1] / gap[0])


def _middle(low: int, high: int) -> int | None:
    """A round N near the geometric middle of a bracket, strictly inside it."""
    middle = math.sqrt(low * high)
    for grain in (64, 16, 1):
        candidate = round(middle / grain) * grain
        if low < candidate < high:
            return candidate
    return None


def _beside(end: int, side: str, along: Along) -> str:
    """`N below 512 if such lengths matter`, `fewer than 512 classes if such rows matter`."""
    if along.before:
        return f"N {side} {count_text(end)} if such lengths matter"
    return f"{'fewer' if side == 'below' else 'more'} than {along.at(end)} if such rows matter"


def _span(seq_lens: Sequence[int], along: Along) -> str:
    if len(seq_lens) == 1:
        return f"at {along.at(seq_lens[0])}, the only {along.each} at which both ran"
    span = f"{count_text(seq_lens[0])} to {count_text(seq_lens[-1])}"
    return f"at every {along.each} at which both ran, {span}"


def _times(count: int) -> str:
    return {2: "twice", 3: "three times"}.get(count, f"{count} times")


def _between(f: Facts) -> str:
    return joined([f"between {f.along.of(f'{count_text(a)} and {count_text(b)}')}" for a, b in f.brackets])
