"""The chapter's claims, from `data/claims.toml`, and the evidence for each from what is at hand."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from profiling.case import InputError, first_problem
from profiling.claims import algorithm, held, moved, onchip, rows, speed
from profiling.claims.evidence import AtHand, Evidence, LackingError, Maker
from profiling.paths import DATA_DIR

VERDICTS: dict[str, str] = {
    "right": "right",
    "condition": "right under a condition",
    "wrong": "wrong",
    "open": "open",
}
# Every evidence function by name, and the sweep that measures what it needs; empty where it needs no run.
MAKERS: dict[str, tuple[Maker, str]] = {
    maker.__name__: (maker, sweep)
    for module in (algorithm, held, moved, onchip, rows, speed)
    for maker, sweep in module.MAKERS.items()
}
COUNTED = ("counters", "predictions")  # sweeps of hardware counters

Text = Annotated[str, Field(min_length=1)]


class Claim(BaseModel):
    """A claim of the chapter, in our words.

    `section` is the chapter's, `place` says where in it where that is not its text. `evidence` names
    functions of `MAKERS`, `pages` the URL paths of pages that show more, the best first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: Annotated[int, Field(ge=1)]
    section: Annotated[str, Field(pattern=r"^4(\.\d){0,2}$")]
    place: str = ""
    verdict: Literal["right", "condition", "wrong", "open"]
    claim: Text
    correct: Text
    evidence: Annotated[tuple[str, ...], Field(min_length=1)]
    pages: Annotated[tuple[str, ...], Field(min_length=1)]

    @field_validator("evidence")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in MAKERS:
                raise ValueError(f"unknown evidence {name!r}: must be one of {', '.join(MAKERS)}")
        return names


class Missing(NamedTuple):
    """Evidence that no run at hand can give: what is lacking, and the command that measures it."""

    lacks: str
    command: str


def claims(path: Path | None = None) -> tuple[Claim, ...]:
    """All claims in the chapter's order.

    Args:
        path: a claims.toml; the checkout's `data/claims.toml` by default.

    Raises:
        InputError: the file cannot be read, is not TOML, or a claim lacks something or is numbered twice.
    """
    path = path or DATA_DIR / "claims.toml"
    try:
        return _load(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path}: the claims cannot be read: {error.strerror}") from None


@lru_cache(maxsize=4)
def _load(path: Path, _mtime_ns: int) -> tuple[Claim, ...]:
    try:
        listed = tomllib.loads(path.read_text(encoding="utf-8")).get("claim", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    found: dict[int, Claim] = {}
    for place, row in enumerate(listed, start=1):
        try:
            claim = Claim.model_validate(row)
        except ValidationError as error:
            raise InputError(f"{path}: claim {place}: {first_problem(error)}") from None
        if claim.number in found:
            raise InputError(f"{path}: claim {place}: number {claim.number} is taken")
        found[claim.number] = claim
    return tuple(found[number] for number in sorted(found))


def evidence(claim: Claim, hand: AtHand) -> tuple[Evidence | Missing, ...]:
    """The evidence of a claim, computed now, in the order of the file."""
    return tuple(one(name, hand) for name in claim.evidence)


def one(name: str, hand: AtHand) -> Evidence | Missing:
    """The evidence of that name, or what it lacks."""
    maker, sweep = MAKERS[name]
    try:
        return maker(hand)
    except LackingError as lacking:
        return Missing(str(lacking), command(sweep))


def command(sweep: str) -> str:
    """The command line that measures a sweep on a GPU."""
    verb = "counters" if sweep in COUNTED else "run"
    return f"flashscope {verb} data/sweeps/{sweep}.toml --device cuda:0"
