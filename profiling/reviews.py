"""Sign-offs of deployment reviews, in any database that SQLAlchemy reaches: added and read, and nothing else.

The table is a log: there is no statement here that changes or removes a row. Who changes their mind signs
again. A signature carries the digests of the evidence it was given for, so that a reader can tell what has
changed since. Without a URL, SQLite in a file of the data folder.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.schema import CreateIndex, CreateTable

from profiling.case import InputError

APPROVE, CONDITIONS, REJECT = "approved", "approved with conditions", "rejected"
DECISIONS: tuple[str, ...] = (APPROVE, CONDITIONS, REJECT)
FILE_NAME = "reviews.db"
LONGEST_NAME, LONGEST_COMMENT = 120, 4000  # characters
WAIT_S = 10  # for a connection, and for another writer of a SQLite file

_TABLE = sa.Table(
    "sign_offs",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("signed_at", sa.String(32), nullable=False),  # UTC, ISO 8601
    sa.Column("name", sa.String(LONGEST_NAME), nullable=False),
    sa.Column("decision", sa.String(32), nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("question_digest", sa.String(64), nullable=False),
    sa.Column("question", sa.Text, nullable=False),  # JSON
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("evidence", sa.Text, nullable=False),  # JSON: digest by row of the decision table
)
_INDEX = sa.Index("sign_offs_by_question", _TABLE.c.question_digest)


class SignOff(NamedTuple):
    """One signature.

    Attributes:
        name: who signed.
        decision: one of `DECISIONS`.
        comment: why, or under which conditions; may be empty.
        run_id: of the run looked at.
        question_digest: of the question, by which signatures are found again.
        question: the question as JSON.
        fingerprint: of the question and its evidence.
        evidence: a digest for each row of the decision table.
        signed_at: UTC, ISO 8601; set when it is added.
        id: its place in the log; set when it is added.
    """

    name: str
    decision: str
    comment: str
    run_id: str
    question_digest: str
    question: str
    fingerprint: str
    evidence: Mapping[str, str]
    signed_at: str = ""
    id: int = 0

    def checked(self) -> SignOff:
        """The same without white space around name and comment.

        Raises:
            InputError: no name, an unknown decision, a rejection or conditions without a comment, a text
                that is too long, or one with a character that no database keeps.
        """
        name, comment = " ".join(self.name.split()), self.comment.strip()
        if not name:
            raise InputError("a sign-off needs a name: who decides?")
        if self.decision not in DECISIONS:
            raise InputError(f"unknown decision {self.decision!r}: must be one of {', '.join(DECISIONS)}")
        if not comment and self.decision != APPROVE:
            raise InputError(f"a sign-off that is {self.decision} needs a comment: what is to be done?")
        for word, text, most in (("name", name, LONGEST_NAME), ("comment", comment, LONGEST_COMMENT)):
            if len(text) > most:
                raise InputError(f"the {word} must have at most {most} characters, got {len(text)}")
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise InputError(f"the {word} holds a character that cannot be stored")
        return self._replace(name=name, comment=comment)


class Reviews:
    """The log of sign-offs in one database. Cheap to make: nothing is opened before it is needed."""

    def __init__(self, url: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Where the log is.

        Args:
            url: as SQLAlchemy reads it, such as `sqlite:////data/reviews.db` or
                `postgresql+psycopg://user@host/name`.
            now: the clock.

        Raises:
            InputError: it is no URL, its driver is not installed, or it would be lost with the process.
        """
        try:
            self._url = sa.make_url(url)
            if self._url.get_backend_name() == "sqlite":
                options: dict[str, Any] = {"timeout": WAIT_S}
            else:
                options = {"connect_timeout": WAIT_S} if "psycopg" in self._url.drivername else {}
            # No pool: pages are drawn seldom, by threads that come and go.
            self._engine = sa.create_engine(self._url, poolclass=sa.NullPool, connect_args=options)
        except (exc.NoSuchModuleError, ModuleNotFoundError) as error:  # the former is an ArgumentError
            raise InputError(f"the database of sign-offs needs a driver that is not here: {error}") from None
        except (exc.ArgumentError, ValueError):
            # the URL itself is not shown: it may hold a password
            raise InputError(
                "the database of sign-offs has no valid URL: must be like sqlite:////folder/reviews.db"
            ) from None
        if self._url.get_backend_name() == "sqlite" and self._url.database in (None, "", ":memory:"):
            raise InputError("the database of sign-offs must be a file or a server, got one in memory")
        self._now = now

    @property
    def where(self) -> str:
        """The address of the database, without a password."""
        return self._url.render_as_string(hide_password=True)

    def add(self, sign_off: SignOff) -> SignOff:
        """Append a signature; returns it as stored, with its time and place.

        Raises:
            InputError: as `SignOff.checked`, or the database cannot be reached or written.
        """
        sign_off = sign_off.checked()
        stamp = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = sign_off._asdict() | {"signed_at": stamp}
        del values["id"]
        values["evidence"] = json.dumps(dict(sign_off.evidence), ensure_ascii=False)
        with self._reached("written"):
            self._make_table()
            with self._engine.begin() as connection:
                made = connection.execute(sa.insert(_TABLE).values(values)).inserted_primary_key
        return sign_off._replace(signed_at=stamp, id=int(made[0]) if made else 0)

    def of(self, question_digest: str) -> tuple[SignOff, ...]:
        """All signatures of one question, the newest first.

        Raises:
            InputError: the database cannot be reached or read.
        """
        wanted = sa.select(_TABLE).where(_TABLE.c.question_digest == question_digest)
        with self._reached("read"):
            if self._empty():
                return ()
            with self._engine.connect() as connection:
                found = connection.execute(wanted.order_by(_TABLE.c.id.desc())).mappings().all()
            return tuple(SignOff(**{**row, "evidence": json.loads(row["evidence"])}) for row in found)

    def count(self) -> int:
        """How many signatures there are, of all questions.

        Raises:
            InputError: the database cannot be reached or read.
        """
        with self._reached("read"):
            if self._empty():
                return 0
            with self._engine.connect() as connection:
                return int(connection.execute(sa.select(sa.func.count()).select_from(_TABLE)).scalar_one())

    def _empty(self) -> bool:
        """Whether nobody has signed yet. A SQLite file is not made for having been asked."""
        file = self._url.database
        # `file:` is SQLite's own way to name one, with options
        if self._url.get_backend_name() == "sqlite" and file and not file.startswith("file:"):
            if not Path(file).exists() and not Path(file).parent.is_dir():
                raise InputError(f"the database of sign-offs has no folder: {Path(file).parent}")
            if not Path(file).exists():
                return True
        return not sa.inspect(self._engine).has_table(_TABLE.name)

    def _make_table(self) -> None:
        """The table, if it is not there yet; two who make it at once both succeed."""
        try:
            with self._engine.begin() as connection:
                connection.execute(CreateTable(_TABLE, if_not_exists=True))
                connection.execute(CreateIndex(_INDEX, if_not_exists=True))
        except exc.SQLAlchemyError:  # PostgreSQL: the other one was faster, between the look and the making
            if not sa.inspect(self._engine).has_table(_TABLE.name):
                raise

    @contextlib.contextmanager
    def _reached(self, verb: str) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).strip().splitlines()
            said = cause[0] if cause else type(error).__name__
            raise InputError(
                f"the database of sign-offs at {self.where} could not be {verb}: {said}"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the database of sign-offs at {self.where} holds what is no sign-off") from None


def default_url(data: Path) -> str:
    """SQLite in the data folder."""
    return sa.URL.create("sqlite", database=str(data / FILE_NAME)).render_as_string()
