"""Sign-in in a real Chromium: Streamlit and Authlib against a provider that speaks the protocol."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from app_server import app, free_port, settle
from identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, identity_provider, new_key
from playwright.sync_api import Page, expect

pytestmark = [
    pytest.mark.browser,
    # pytest-base-url, which pytest-playwright brings, still uses a hook's old argument
    pytest.mark.filterwarnings("ignore::pytest.PytestRemovedIn10Warning")
    if hasattr(pytest, "PytestRemovedIn10Warning")
    else pytest.mark.filterwarnings("default"),
]
USERS = {
    "17": {"name": "Ada <b>", "email": "ada@example.org"},
    "18": {"name": "Bob", "email": "bob@example.org"},
}


class Place(NamedTuple):
    """An app where people sign in, and who tells it who they are."""

    url: str
    provider: Provider


@pytest.fixture(scope="module")
def place(data: Path, browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The app with a secrets file and a data folder of its own."""
    folder = tmp_path_factory.mktemp("signin")
    (folder / "data" / "samples").mkdir(parents=True)
    shutil.copy(data / "samples" / "h200-standard.jsonl", folder / "data" / "samples")
    port = free_port()
    callback = f"http://127.0.0.1:{port}/oauth2callback"
    secrets = folder / "secrets.toml"
    with identity_provider(callback, USERS) as provider:
        secrets.write_text(
            f"""
            [auth]
            redirect_uri = "{callback}"
            cookie_secret = "long enough, and for these tests alone"
            client_id = "{CLIENT_ID}"
            client_secret = "{CLIENT_SECRET}"
            server_metadata_url = "{provider.url}/.well-known/openid-configuration"
            """
        )
        with app(folder / "data", folder / "app.log", "--secrets.files", str(secrets), port=port) as url:
            yield Place(url, provider)


def choose(page: Page, place: Place, answer: str) -> None:
    """From a page of the app to the provider, where that is chosen, and back to the app's first page."""
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(f"{place.provider.url}/authorize?*")
    page.get_by_role("link", name=answer, exact=True).click()
    page.wait_for_url(f"{place.url}/", wait_until="commit")


def test_who_is_not_let_in_stays_a_stranger(
    page: Page, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who refuses at the provider, nor a token with another signature, opens page Run."""
    monkeypatch.setattr(place.provider, "key", new_key())  # which is not the one it publishes
    page.goto(f"{place.url}/run")
    for answer in ("Refuse", "Bob"):
        choose(page, place, answer)
        page.goto(f"{place.url}/run")
        settle(page)
        expect(page.get_by_text("Sign in to measure.")).to_be_visible()
        assert page.get_by_text("What to measure").count() == 0


def test_a_review_bears_the_name_that_the_provider_gives(page: Page, place: Place) -> None:
    """In, a signature without a field for the name, and out: at the provider as well as here."""
    page.set_viewport_size({"width": 1280, "height": 1800})
    review = f"{place.url}/review?run=h200-standard&context_from=256&context_to=4096"
    page.goto(review)
    choose(page, place, "Ada <b>")
    page.goto(review)
    main = page.get_by_test_id("stMain")
    expect(main.get_by_text("Signed in as Ada <b> <ada@example.org>")).to_be_visible(timeout=30_000)
    settle(page)
    assert main.get_by_label("Name", exact=True).count() == 0
    main.get_by_text("approved", exact=True).click()
    main.get_by_role("button", name="Sign", exact=True).click()
    expect(main.get_by_text("Signed.", exact=True)).to_be_visible()
    expect(main.get_by_text("Ada <b> <ada@example.org>: approved")).to_be_visible()
    main.get_by_role("button", name="Sign out", exact=True).click()
    page.wait_for_url(f"{place.url}/", wait_until="commit")
    assert place.provider.ended == ["17"]
    page.goto(f"{place.url}/run")
    expect(page.get_by_text("Sign in to measure.")).to_be_visible(timeout=30_000)
