"""The claims as the page shows them: counts, texts, charts and the table of all numbers. No widget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from profiling import units
from profiling.analysis.operations import Along
from profiling.claims.chapter import VERDICTS, Claim, Missing
from profiling.claims.evidence import KINDS, Evidence, Line
from profiling.figures import theme
from profiling.figures.claims import ClaimChart
from profiling.figures.series import Metric, Point, Series
from profiling.pages import widgets

COLOURS = {"right": "green", "condition": "orange", "wrong": "red", "open": "grey"}
NO_BACKEND = ("sdpa", "flash")  # whose styles lines take that are no backend's
KIND_COLOURS = {"measured": "blue", "modelled": "orange", "computed": "violet"}


def summary(claims: Sequence[Claim]) -> str:
    """How many claims there are of each verdict: `42 claims: 5 right, ...`."""
    counts = Counter(claim.verdict for claim in claims)
    parts = [f"{counts[verdict]} {word}" for verdict, word in VERDICTS.items() if counts[verdict]]
    return f"{units.count_text(len(claims))} claims: {', '.join(parts)}." if claims else "No claim."


def sections(claims: Sequence[Claim]) -> list[str]:
    """The chapter's sections that have claims, in order."""
    return sorted({claim.section for claim in claims})


def chosen(claims: Sequence[Claim], verdicts: Sequence[str], sections: Sequence[str]) -> list[Claim]:
    """The claims with one of these verdicts (as `VERDICTS` words them) and sections; none given means all."""
    return [
        claim
        for claim in claims
        if (not verdicts or VERDICTS[claim.verdict] in verdicts)
        and (not sections or claim.section in sections)
    ]


def words(claim: Claim) -> str:
    """Number, section and verdict of a claim, the claim, and what is right instead (Markdown, escaped)."""
    place = f", {widgets.plain(claim.place)}" if claim.place else ""
    badge = f":{COLOURS[claim.verdict]}-badge[{VERDICTS[claim.verdict]}]"
    head = f"**Claim {claim.number}** · section {claim.section}{place} {badge}"
    return f"{head}\n\n**{widgets.plain(claim.claim)}**\n\n{widgets.plain(claim.correct)}"


def evidence_text(found: Evidence) -> str:
    """What an evidence says, after a badge with its kind, and its source (Markdown, escaped)."""
    badge = f":{KIND_COLOURS[found.kind]}-badge[{found.kind}]"
    return f"{badge} {widgets.plain(found.says)}  \n:small[{widgets.plain(found.source)}]"


def chart(found: Evidence) -> ClaimChart:
    """The curves of an evidence."""
    series = tuple(_series(line, place, found.along) for place, line in enumerate(found.lines))
    return ClaimChart(Metric(found.title, found.unit, "lower"), series)


def _series(line: Line, place: int, along: Along) -> Series:
    points = tuple(Point(n, value) for n, value in sorted(line.points.items()))
    style = None
    if line.modelled and line.name in theme.MODEL_STYLES:
        style = theme.style_of(line.name)._replace(colour=theme.MODEL_STYLES[line.name][0])
    elif line.name not in theme.STYLES:  # no backend
        style = theme.style_of(NO_BACKEND[place % len(NO_BACKEND)])
    return Series(line.name, points, modelled=line.modelled, style=style, along=along)


def table(rows: Sequence[tuple[Claim, str, Evidence | Missing]]) -> pd.DataFrame:
    """Every number of the claims shown: a row each, and one without a number where evidence is lacking.

    Args:
        rows: claim, name of the evidence, and the evidence.
    """
    out = []
    for claim, name, found in rows:
        shared = {
            "claim": claim.number,
            "section": claim.section,
            "verdict": VERDICTS[claim.verdict],
            "evidence": name,
        }
        if isinstance(found, Missing):
            out.append(shared | {"kind": "lacking", "number": found.lacks, "value": None, "shown": ""})
            continue
        out += [
            shared | {"kind": found.kind, "number": fact.label, "value": fact.value, "shown": fact.text}
            for fact in found.facts
        ]
        out += [
            shared
            | {
                "kind": found.kind,
                "number": f"{line.name} at {found.along.at(n)}",
                "value": value,
                "shown": "",
            }
            for line in found.lines
            for n, value in sorted(line.points.items())
        ]
    return pd.DataFrame(out).astype({"value": "float64"}) if out else pd.DataFrame()


def kinds_text() -> str:
    """What the three badges mean (Markdown)."""
    return "  \n".join(f":{KIND_COLOURS[kind]}-badge[{kind}] :small[{text}.]" for kind, text in KINDS.items())
