"""Sign-offs: appended, read back, never changed, by many at once, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import multiprocessing
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import postgresql, programs

from profiling import reviews
from profiling.case import InputError
from profiling.reviews import APPROVE, CONDITIONS, REJECT, Reviews, SignOff, default_url

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ONE = SignOff("Ada", APPROVE, "", "h200-models", "q1", '{"a": 1}', "f1", {"Llama, batch 1": "d1"})


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL; without one the tests skip, but in CI they fail."""
    missing = [
        word
        for word, there in (
            ("the programs of PostgreSQL (Debian: apt-get install postgresql)", programs() is not None),
            ("psycopg", importlib.util.find_spec("psycopg") is not None),
        )
        if not there
    ]
    if missing:
        reason = f"needs {' and '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return default_url(tmp_path)
    server_url = request.getfixturevalue("server")
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    engine = sa.create_engine(server_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    return sa.make_url(server_url).set(database=name).render_as_string()


def test_what_is_signed_reads_back(url: str) -> None:
    """Every field, in any script, the newest first, by question; a new object sees the same."""
    log = Reviews(url, now=lambda: AT)
    assert log.of("q1") == ()
    assert log.count() == 0
    first = log.add(ONE)
    assert first == ONE._replace(signed_at="2026-01-02T03:04:05Z", id=first.id)
    comment = "only up to N = 4096; 100 % <b>λ</b> 山 '; --\nsecond line"
    second = log.add(ONE._replace(name="  Grace   Hopper ", decision=CONDITIONS, comment=f" {comment} "))
    other = log.add(ONE._replace(question_digest="q2"))
    assert (second.name, second.comment) == ("Grace Hopper", comment)
    assert first.id < second.id < other.id
    assert Reviews(url).of("q1") == (second, first)
    assert Reviews(url).of("q2") == (other,)
    assert log.count() == 3


def test_who_changes_their_mind_signs_again(url: str) -> None:
    """The earlier signature stays as it was."""
    log = Reviews(url)
    first = log.add(ONE)
    log.add(ONE._replace(decision=REJECT, comment="wrong GPU"))
    found = log.of("q1")
    assert [each.decision for each in found] == [REJECT, APPROVE]
    assert found[1] == first


def _sign(url: str, name: str, times: int, start: multiprocessing.synchronize.Barrier) -> None:
    start.wait(60)
    for number in range(times):
        Reviews(url).add(ONE._replace(name=name, comment=str(number)))


def test_writers_at_once_lose_nothing(url: str) -> None:
    """Four processes that meet an empty database make its table together, and all signatures are there."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    writers = [context.Process(target=_sign, args=(url, f"writer {i}", 15, start)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 4
    found = Reviews(url).of("q1")
    assert len({each.id for each in found}) == 60
    for i in range(4):
        own = [each.comment for each in found if each.name == f"writer {i}"]
        assert own == [str(number) for number in range(14, -1, -1)]


def test_there_is_no_statement_that_changes_or_removes() -> None:
    """The module calls nothing named update, delete, drop or text: the log cannot be rewritten with it."""
    tree = ast.parse(inspect.getsource(reviews))
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert {"insert", "select"} <= called
    assert not called & {"update", "delete", "drop", "drop_all", "text", "DropTable", "merge", "upsert"}
    public = {name for name in vars(Reviews) if not name.startswith("_")}
    assert public == {"where", "add", "of", "count"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": " \n "}, "needs a name"),
        ({"decision": "perhaps"}, "unknown decision"),
        ({"decision": REJECT}, "needs a comment"),
        ({"decision": CONDITIONS, "comment": "  "}, "needs a comment"),
        ({"name": "x" * 121}, "at most 120 characters, got 121"),
        ({"comment": "x" * 4001}, "at most 4000 characters, got 4001"),
        ({"name": "a\0b"}, "cannot be stored"),
        ({"comment": "\ud800"}, "cannot be stored"),
    ],
)
def test_a_signature_that_is_none_is_refused(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    """One sentence, and nothing is written: not even the file."""
    with pytest.raises(InputError, match=words):
        Reviews(default_url(tmp_path)).add(ONE._replace(**changes))
    assert not list(tmp_path.iterdir())


def test_reading_makes_no_file(tmp_path: Path) -> None:
    """Who only looks leaves the data folder as it was."""
    assert Reviews(default_url(tmp_path)).of("q1") == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["add", "of"])
def test_a_database_that_cannot_be_reached_is_one_sentence(tmp_path: Path, verb: str, server: str) -> None:
    """No server, no such database, no folder, a file that is none: what and where, without the password."""
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database, but long enough to be looked at" * 40)
    nowhere = tmp_path / "nowhere" / "reviews.db"
    gone = sa.make_url(server).set(password="secret", database="nobody")
    urls = [
        "postgresql+psycopg://me:secret@127.0.0.1:1/x",
        gone.render_as_string(hide_password=False),
        f"sqlite:///{broken}",
        f"sqlite:///{nowhere}",
    ]
    for url in urls:
        log = Reviews(url)
        with pytest.raises(InputError, match="the database of sign-offs") as raised:
            log.add(ONE) if verb == "add" else log.of("q1")
        assert "\n" not in str(raised.value)
        assert "secret" not in str(raised.value)
        assert "secret" not in log.where
    assert broken.read_bytes().startswith(b"no database")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "no valid URL"),
        ("reviews.db", "no valid URL"),
        ("postgresql+psycopg://host:port/db", "no valid URL"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("nosuch://host/db", "driver that is not here"),
        ("postgresql+nosuch://host/db", "driver that is not here"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, words: str) -> None:
    """Before anything is opened; a text that is no URL is not repeated, for it may hold a password."""
    with pytest.raises(InputError, match=words):
        Reviews(url)


def test_a_table_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    """Evidence that is no JSON, or a table of the same name with other columns."""
    url = default_url(tmp_path)
    Reviews(url).add(ONE)
    with sqlite3.connect(tmp_path / reviews.FILE_NAME) as connection:
        connection.execute("INSERT INTO sign_offs VALUES (9, '', 'x', '', '', '', 'q1', '', '', '{')")
    connection.close()
    with pytest.raises(InputError, match="holds what is no sign-off"):
        Reviews(url).of("q1")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE sign_offs (a INTEGER)")
    connection.close()
    with pytest.raises(InputError, match="could not be read"):
        Reviews(f"sqlite:///{other}").of("q1")


def test_the_default_is_a_file_of_the_data_folder(tmp_path: Path) -> None:
    """Whatever the folder's name holds."""
    folder = tmp_path / "a b?#%"
    folder.mkdir()
    Reviews(default_url(folder)).add(ONE)
    assert (folder / reviews.FILE_NAME).is_file()
