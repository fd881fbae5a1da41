"""Sign-in: who may measure and sign, and under which name. Streamlit's own part is stood in for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from drawing import draw, texts
from page_runs import gpu_run
from streamlit import config
from streamlit.runtime.secrets import secrets_singleton
from synthetic import write_synthetic

from profiling import reviews, store
from profiling.pages import jobs, signin

SECRETS = """
[auth]
redirect_uri = "http://127.0.0.1/oauth2callback"
cookie_secret = "not a secret, and long enough"
client_id = "app"
client_secret = "also not one"
server_metadata_url = "http://127.0.0.1/.well-known/openid-configuration"
"""
ADA = {"is_logged_in": True, "name": "Ada Lovelace", "email": "ada@example.org", "sub": "1"}
Secrets = Callable[[str], None]


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secrets]:
    """Write Streamlit's secrets, for this test alone; what sign-in needs counts as installed."""
    file = tmp_path / "secrets.toml"
    before = config.get_option("secrets.files")
    config.set_option("secrets.files", [str(file)])
    real = signin.find_spec
    monkeypatch.setattr(
        signin, "find_spec", lambda name: real("json" if name in ("authlib", "httpx") else name)
    )

    def write(text: str) -> None:
        file.write_text(text)
        secrets_singleton._reset()

    secrets_singleton._reset()
    yield write
    config.set_option("secrets.files", before)
    secrets_singleton._reset()


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Be that user from now on, by the claims of the provider."""

    def be(claims: dict[str, Any]) -> None:
        monkeypatch.setattr(type(st.user), "to_dict", lambda self: dict(claims))

    return be


@pytest.fixture
def measured(data: Path) -> Path:
    """A data folder with a run."""
    write_synthetic(gpu_run(), data / "samples" / "h200-standard.jsonl")
    return data


def signed(data: Path) -> list[str]:
    """Who has signed."""
    log = reviews.Reviews(reviews.default_url(data))
    if not (data / reviews.FILE_NAME).exists():
        return []
    with log._engine.connect() as connection:
        return [row[0] for row in connection.exec_driver_sql("select name from sign_offs order by id")]


def button(app: Any, label: str) -> Any:
    """The one button of that label."""
    (found,) = [each for each in app.button if each.label == label]
    return found


def test_without_secrets_all_is_as_on_ones_own_machine(measured: Path, secrets: Secrets) -> None:
    """No file, or one about something else: no word of signing in, a name is typed, Run can start."""
    for text in (None, 'other = "thing"\n'):
        if text is not None:
            secrets(text)
        app = draw("review")
        assert [each.label for each in app.text_input if each.label == "Name"] == ["Name"]
        assert "Sign in" not in texts(app)
        assert "What to measure" in texts(draw("run"))


def test_a_stranger_reads_and_neither_measures_nor_signs(
    measured: Path, secrets: Secrets, be: Callable[[dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run is closed; Review shows table, exports and log, and no form; a button begins the login."""
    secrets(SECRETS)
    be({"is_logged_in": False, "name": "Ada Lovelace"})
    asked: list[Any] = []
    monkeypatch.setattr(st, "login", lambda provider=None: asked.append(provider))
    monkeypatch.setattr(jobs, "start", lambda *args: pytest.fail("a run was started"))
    app = draw("run")
    assert "Sign in to measure." in texts(app)
    assert [each.label for each in app.button] == ["Sign in"]
    button(app, "Sign in").click().run()
    assert asked == [None]
    app = draw("review")
    assert "Sign in to sign." in texts(app)
    assert app.table
    assert not [each for each in app.button if each.label == "Sign"]
    assert "Nobody has signed" in texts(app)


def test_a_sign_off_bears_the_users_name_which_nobody_types(
    measured: Path, secrets: Secrets, be: Callable[[dict[str, Any]], None]
) -> None:
    """There is no field for a name; what is stored is the provider's name and address."""
    secrets(SECRETS)
    be(ADA)
    app = draw("review")
    assert not [each for each in app.text_input if each.label == "Name"]
    app.radio[0].set_value("approved")
    button(app, "Sign").click().run()
    assert not app.exception
    assert signed(measured) == ["Ada Lovelace <ada@example.org>"]
    assert "Signed in as Ada Lovelace" in texts(app)
    assert "What to measure" in texts(draw("run"))


def test_who_signs_out_before_signing_has_not_signed(
    measured: Path, secrets: Secrets, be: Callable[[dict[str, Any]], None]
) -> None:
    """A form that was open when the session ended writes nothing."""
    secrets(SECRETS)
    be(ADA)
    app = draw("review")
    app.radio[0].set_value("approved")
    be({"is_logged_in": False})
    button(app, "Sign").click().run()
    assert not app.exception
    assert signed(measured) == []
    assert "Sign in to sign." in texts(app)


def test_a_stranger_looks_at_an_upload_and_cannot_add_it(
    data: Path, secrets: Secrets, be: Callable[[dict[str, Any]], None]
) -> None:
    """It is read and summed up without a button; one that is pressed after signing out adds nothing."""
    write_synthetic(gpu_run(), data / "elsewhere.jsonl")
    content = (data / "elsewhere.jsonl").read_bytes()
    secrets(SECRETS)
    be({"is_logged_in": False})
    app = draw("data")
    app.file_uploader[0].set_value(("run.jsonl", content, "application/json")).run()
    assert "cases" in texts(app)
    assert "Only who is signed in can add it" in texts(app)
    assert [each.label for each in app.button] == ["Sign in"]
    be(ADA)
    add = button(app.run(), "Add to the data folder")
    be({"is_logged_in": False})
    add.click().run()
    assert not store.list_runs(data)
    be(ADA)
    button(app.run(), "Add to the data folder").click().run()
    assert not app.exception
    assert [info.run_id for info in store.list_runs(data)] == [gpu_run().run_id]


@pytest.mark.parametrize("claim", [None, "yes", 1, {}])
def test_only_true_is_signed_in(
    claim: Any, data: Path, secrets: Secrets, be: Callable[[dict[str, Any]], None]
) -> None:
    """Anything else that stands in `is_logged_in` admits nobody."""
    secrets(SECRETS)
    be({**ADA, "is_logged_in": claim})
    assert "Sign in to measure." in texts(draw("run"))


def test_secrets_that_cannot_be_read_admit_nobody(measured: Path, secrets: Secrets) -> None:
    """A typing error in the file must not open what it was to close."""
    secrets("[auth\nclient_id = ")
    app = draw("run")
    assert "cannot be read" in app.error[0].value
    assert not app.button
    assert not [each for each in draw("review").button if each.label == "Sign"]


def test_what_is_not_installed_is_named(
    data: Path, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sign-in that is set up where Authlib is absent says how to install it, and admits nobody."""
    secrets(SECRETS)
    monkeypatch.setattr(signin, "find_spec", lambda name: None)
    app = draw("run")
    assert "signin" in app.error[0].value
    assert "What to measure" not in texts(app)


def test_each_provider_has_its_button(
    data: Path, secrets: Secrets, be: Callable[[dict[str, Any]], None]
) -> None:
    """Sections below `[auth]` are providers, asked for by name."""
    part = 'client_id = "a"\nclient_secret = "b"\nserver_metadata_url = "http://127.0.0.1/"\n'
    secrets(f'[auth]\ncookie_secret = "c"\n[auth.one]\n{part}[auth.two]\n{part}')
    be({"is_logged_in": False})
    assert [each.label for each in draw("run").button] == ["Sign in with one", "Sign in with two"]


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        (ADA, "Ada Lovelace <ada@example.org>"),
        ({"email": "ada@example.org", "sub": "1"}, "ada@example.org"),
        ({"name": "  Ada \n Lovelace "}, "Ada Lovelace"),
        ({"sub": 17}, "17"),
        ({"name": "x" * 500, "email": "ada@example.org"}, "ada@example.org"),
        ({"name": "x" * 500}, "x" * reviews.LONGEST_NAME),
        ({}, ""),
        ({"name": None, "email": ""}, ""),
    ],
)
def test_the_name_of_a_user(claims: dict[str, Any], name: str) -> None:
    """Name and address, so that two of one name are told apart; never longer than a sign-off holds."""
    assert signin.name_of(claims) == name
