"""From readings to runs: conflicts shown, repeats set aside, speed-ups held against the file's own.

A run holds one machine, and one value of everything that the case has no field for: rows that differ there
never meet in one curve.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from profiling.case import Case, InputError
from profiling.importers.points import Claim, Group, Reading, Understood
from profiling.importers.roles import ENVIRONMENT_FIELDS, Plan, Settings
from profiling.importers.tables import Aside, Row, Table
from profiling.records import ClockResult, Environment, Measurement, Run, RunHeader
from profiling.units import count_text

_QUANTILES = ("latency_p50_ms", "latency_p20_ms", "latency_p80_ms")
_ENOUGH = 3  # how many of several kinds a sentence names


class Imported(NamedTuple):
    """What came of a file: its runs, how many rows were read, those set aside, and the header."""

    runs: tuple[Run, ...]
    n_read: int
    aside: tuple[Aside, ...] = ()
    header: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """`N rows read, M used, K set aside because ...`."""
        return summary(self.n_read, self.aside)


class _Source(NamedTuple):
    """A used row, where it comes from, and what it says."""

    file: str
    row: Row
    readings: tuple[Reading, ...]


def summary(n_read: int, aside: Sequence[Aside]) -> str:
    """Rows read, used and set aside, with the reasons by number of rows."""
    said = f"{count_text(n_read)} rows read, {count_text(n_read - len(aside))} used, "
    said += f"{count_text(len(aside))} set aside"
    kinds: dict[str, list[Aside]] = {}
    for each in aside:
        kinds.setdefault(each.why, []).append(each)
    reasons = []
    for why, found in sorted(kinds.items(), key=lambda item: -len(item[1]))[:_ENOUGH]:
        got = f", got {found[0].got}" if found[0].got else ""
        rows = f"{count_text(len(found))} rows, the first in" if len(found) > 1 else ""
        reasons.append(f"{why} ({f'{rows} ' if rows else ''}line {found[0].line}{got})")
    if len(kinds) > _ENOUGH:
        more = len(kinds) - _ENOUGH
        reasons.append(f"{more} more reason{'s' if more > 1 else ''}")
    return said + (f" because: {'; '.join(reasons)}" if reasons else "")


def assemble(parts: Sequence[tuple[Table, Plan, Understood]], settings: Settings, content: bytes) -> Imported:
    """The runs of one table, or of several that were measured together.

    Args:
        parts: each table, how it was read, and what came of it.
        settings: what was asked for.
        content: of the files; the run's id has a hash of it, so that the same file is the same run.

    Raises:
        InputError: not one row can be used; the message names the first fault.
    """
    sources = [
        _Source(table.name, row, readings) for table, _, found in parts for row, readings in found.rows
    ]
    aside = [each for table, _, found in parts for each in (*table.aside, *found.aside)]
    clashing, clashes = _conflicts(sources)
    sources = [source for number, source in enumerate(sources) if number not in clashing]
    sources, repeats = _distinct(sources)
    aside = sorted([*aside, *clashes, *repeats], key=lambda each: (each.file, each.line))
    n_read = sum(table.n_read for table, _, _ in parts)
    if not sources:
        more = f"; none of the {count_text(n_read)} rows can be used" if n_read > 1 else ""
        raise InputError(f"{aside[0].text}{more}" if aside else f"{parts[0][0].name}: has no rows")
    groups: dict[Group, dict[Case, list[Reading]]] = {}
    for source in sources:
        for reading in source.readings:
            groups.setdefault(reading.group, {}).setdefault(reading.case, []).append(reading)
    ids = _ids(parts, settings, content, len(groups))
    runs = [
        _run(run_id, group, cases, parts) for run_id, (group, cases) in zip(ids, groups.items(), strict=True)
    ]
    said = [summary(n_read, aside)] if aside else []
    said += _sentences(parts, groups)
    runs[0] = replace(runs[0], problems=tuple(said))
    header = next(table.header for table, _, _ in parts)
    return Imported(tuple(runs), n_read, tuple(aside), header)


# --------------------------------------------------------------------------------------- rows that disagree


def _slots(source: _Source) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """What a row says of which place: two rows with the same place must say the same."""
    found = []
    for reading in source.readings:
        place = (reading.group, reading.case, reading.clock)
        found.append(((*place, reading.slot), (reading.value, reading.status)))
        found += [((*place, name), (value, "")) for name, value in reading.about]
    return found


def _conflicts(sources: Sequence[_Source]) -> tuple[set[int], list[Aside]]:
    """Rows that say something else of the same place than another row: none of them can be believed.

    A row may also contradict itself, where two of its columns are said to hold the same.
    """
    seen: dict[tuple[Any, ...], dict[tuple[Any, ...], list[int]]] = {}
    for number, source in enumerate(sources):
        for place, value in _slots(source):
            seen.setdefault(place, {}).setdefault(value, []).append(number)
    found: dict[int, Aside] = {}
    for place, values in seen.items():
        if len(values) < 2:
            continue
        by_line = [(numbers[0], value) for value, numbers in values.items()]
        shown = ", ".join(
            f"{value[0] if value[0] is not None else value[1]!r} in line {sources[number].row.line}"
            for number, value in by_line[:_ENOUGH]
        )
        for number in (number for numbers in values.values() for number in numbers):
            file, row, _ = sources[number]
            why = f"two values of {place[-1]} for the same case, and which one counts is not said"
            found.setdefault(number, Aside(file, row.line, why, shown, row.cells))
    return set(found), list(found.values())


def _distinct(sources: Sequence[_Source]) -> tuple[list[_Source], list[Aside]]:
    """Without rows that say only what earlier ones have said."""
    said: dict[tuple[Any, ...], int] = {}
    kept: list[_Source] = []
    aside: list[Aside] = []
    for source in sources:
        places = [place for place, _ in _slots(source)]
        if all(place in said for place in places):
            got = f"what line {said[places[0]]} says" if places else ""
            aside.append(
                Aside(source.file, source.row.line, "repeats an earlier row exactly", got, source.row.cells)
            )
            continue
        for place in places:
            said.setdefault(place, source.row.line)
        kept.append(source)
    return kept, aside


# ------------------------------------------------------------------------------------------------------ runs


def _ids(
    parts: Sequence[tuple[Table, Plan, Understood]], settings: Settings, content: bytes, count: int
) -> list[str]:
    """One name a run: asked for, or the file's with a hash of what is in it and how it was read."""
    base = settings.run_id
    if base is None:
        stem = re.sub(r"\.[A-Za-z0-9]{1,8}$", "", parts[0][0].name)
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:70] or "import"
        digest = hashlib.sha256(content + repr(replace(settings, run_id=None)).encode()).hexdigest()[:8]
        base = f"{plain}-{digest}"
    return [base] if count == 1 else [f"{base}-{number}" for number in range(1, count + 1)]


def _run(
    run_id: str,
    group: Group,
    cases: dict[Case, list[Reading]],
    parts: Sequence[tuple[Table, Plan, Understood]],
) -> Run:
    known = {name: text for name, text in zip(ENVIRONMENT_FIELDS, group.environment, strict=True) if text}
    environment = Environment.model_validate({"device_name": "unknown", **known})
    names = ", ".join(table.name for table, _, _ in parts)
    return Run(
        header=RunHeader(
            run_id=run_id,
            created_at="",
            label=" ".join(f"{name}={text}" for name, text in group.extra)[:200],
            source=f"{names} ({parts[0][1].family})",
            environment=environment,
        ),
        measurements=tuple(_measurement(case, readings) for case, readings in cases.items()),
        environments=(environment,),
    )


def _measurement(case: Case, readings: Sequence[Reading]) -> Measurement:
    clocks: dict[str, dict[str, Reading]] = {}
    whole: dict[str, Reading] = {}
    for reading in readings:
        own = clocks.setdefault(reading.clock, {}) if reading.slot in _QUANTILES else whole
        own.setdefault(reading.slot, reading)
    results = tuple(_clock(clock, found) for clock, found in clocks.items())
    outcomes = [(each.status, each.reason) for each in (*results, *whole.values())]
    status, reason = "ok", ""
    if all(outcome[0] != "ok" for outcome in outcomes) and (len(set(outcomes)) == 1 or not results):
        status, reason = outcomes[0]
    elif lost := [each.reason for each in whole.values() if each.status != "ok"]:
        reason = "; ".join(lost)
    fields: dict[str, Any] = {name: value for reading in readings for name, value in reading.about}
    for name, reading in whole.items():
        if reading.value is None:
            continue
        fields[name] = int(reading.value) if name.endswith("_bytes") else reading.value
    fields |= {"status": status, "reason": reason, "clocks": results}
    return Measurement.model_validate({"case": case, **fields})


def _clock(clock: str, found: dict[str, Reading]) -> ClockResult:
    median = found.get("latency_p50_ms")
    status = "missing" if median is None else median.status
    reason = "the file has no median" if median is None else median.reason
    values = {name: reading.value for name, reading in found.items()}
    return ClockResult.model_validate({"clock": clock, "status": status, "reason": reason, **values})


# ------------------------------------------------------------------------------------------------- sentences


def _sentences(
    parts: Sequence[tuple[Table, Plan, Understood]], groups: dict[Group, dict[Case, list[Reading]]]
) -> list[str]:
    """What else there is to say of the import: once each."""
    said: list[str] = []
    for table, plan, found in parts:
        said += [*table.notes, *plan.notes]
        unused = [name for name in table.header if name not in plan.columns]
        if unused:
            said.append(f"{table.name}: columns that are not used: {', '.join(unused)}")
        said += _about_speedups(table, found.claims)
    place = ENVIRONMENT_FIELDS.index("device_name")
    if any(not group.environment[place] for group in groups):
        said.append("the file does not say on which device it was measured: --set device_name=... does")
    if len(groups) > 1:
        said.append(f"{len(groups)} runs, since device, versions or what is not part of a case differ")
    return list(dict.fromkeys(said))


def _about_speedups(table: Table, claims: Sequence[Claim]) -> list[str]:
    """For each column of speed-ups, whether its rows agree with their own times; ours are shown."""
    said = []
    for column in dict.fromkeys(claim.column for claim in claims):
        own = [claim for claim in claims if claim.column == column]
        apart = [claim for claim in own if not claim.agrees]
        if not apart:
            said.append(f"{table.name}: {column} agrees with the times in all {len(own)} rows that have both")
            continue
        first = apart[0]
        turned = ": it is the inverse" if all(claim.inverted for claim in own) else ""
        said.append(
            f"{table.name}: {column} is not taken over: in {len(apart)} of {len(own)} rows it differs from "
            f"the row's own times (line {first.line}: {first.claimed.value:.6g} in the file, "
            f"{first.computed:.6g} from its times){turned}"
        )
    return said
