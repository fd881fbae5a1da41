"""Who looks at the page: optional sign-in through Streamlit's OIDC (`st.login`), set up in its secrets.

Where they have `[auth]`, measuring, signing and changing the data folder need a user, and the name of a
sign-off is the user's. Where not, everybody who reaches the page may do everything, as on one's own machine.
Secrets that are there and cannot be read admit nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from profiling.reviews import LONGEST_NAME

LACKING = 'Sign-in is set up, but what it needs is not installed: pip install -e ".[signin]"'
UNREADABLE = "Streamlit's secrets.toml is there and cannot be read, so nobody can sign in."


class Visitor(NamedTuple):
    """Whoever looks at the page.

    Attributes:
        needed: whether sign-in is set up.
        name: of the user; empty if nobody is signed in.
        problem: why nobody can sign in; empty if they can.
    """

    needed: bool
    name: str = ""
    problem: str = ""

    @property
    def admitted(self) -> bool:
        """Whether they may measure, sign and change the data folder."""
        return not self.needed or bool(self.name)


def visitor() -> Visitor:
    """Whoever looks at the page now."""
    auth = _auth()
    if auth is None:
        return Visitor(needed=False)
    if not auth:
        return Visitor(needed=True, problem=UNREADABLE)
    if any(find_spec(name) is None for name in ("authlib", "httpx")):
        return Visitor(needed=True, problem=LACKING)
    user = st.user.to_dict()
    return Visitor(needed=True, name=name_of(user) if user.get("is_logged_in") is True else "")


def name_of(claims: Mapping[str, Any]) -> str:
    """What a user is called in a sign-off: name and address as the provider gives them, else its own id."""
    name, address, number = (" ".join(str(claims.get(key) or "").split()) for key in ("name", "email", "sub"))
    both = f"{name} <{address}>" if name and address else name or address or number
    # cut in the name: the address tells two of one name apart
    return both if len(both) <= LONGEST_NAME else (address or both)[:LONGEST_NAME]


def admit(to: str) -> Visitor:
    """Whoever looks at the page; draws who is signed in, or what to do to be.

    Args:
        to: what a user is needed for, such as `measure`.
    """
    found = visitor()
    if found.problem:
        st.error(found.problem)
    elif not found.admitted:
        st.info(f"Sign in to {to}. You come back on the first page, so keep the address of this one.")
        with st.container(horizontal=True):
            for provider in _providers(_auth() or {}):
                label = f"Sign in with {provider}" if provider else "Sign in"
                st.button(label, key=f"sign-in-{provider}", on_click=st.login, args=(provider,))
    elif found.needed:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.text(f"Signed in as {found.name}")
            st.button("Sign out", key="sign-out", on_click=st.logout)
    return found


def _auth() -> Mapping[str, Any] | None:
    """The section of the secrets: None if there is none, empty if the secrets cannot be read."""
    if st.secrets.load_if_toml_exists():
        auth = st.secrets.get("auth")
        return auth if auth is None or isinstance(auth, Mapping) else {}
    files = st.get_option("secrets.files")
    return {} if any(Path(file).exists() for file in files) else None


def _providers(auth: Mapping[str, Any]) -> list[str | None]:
    """What `st.login` can be asked for: None for the one without a name of its own."""
    named = sorted(key for key, value in auth.items() if isinstance(value, Mapping) and "client_id" in value)
    return [*([None] if "client_id" in auth else []), *named]
