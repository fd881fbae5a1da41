"""A small OpenID Connect provider on 127.0.0.1: as much of it as the authorization code flow with PKCE needs.

Unlike a real one it asks for no password: its page lists its users, and one link each.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "flashscope"
CLIENT_SECRET = "known to both sides"
KEY_ID = "1"
LIFETIME_S = 300  # of a token


class Provider(ThreadingHTTPServer):
    """What the provider knows.

    Attributes:
        url: its address, and the issuer of its tokens.
        users: claims by subject.
        key: what it signs with; what it publishes is the key it began with.
        callback: where it sends people back to; no other place.
        ended: subjects whose session an app has ended here.
    """

    daemon_threads = True

    def __init__(self, callback: str, users: dict[str, dict[str, str]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.users = users
        self.callback = callback
        self.key = new_key()
        self.published = {"keys": [self.key.as_dict(private=False)]}
        self.granted: dict[str, tuple[str, dict[str, str]]] = {}  # by code: subject, and what was asked
        self.ended: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Answers one request; what is not as the protocol wants it is refused with 400."""

    server: Provider  # type: ignore[assignment]

    def do_GET(self) -> None:
        """Metadata, keys, the page that asks who one is, and the end of a session."""
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        url = self.server.url
        if parts.path == "/.well-known/openid-configuration":
            self._json(
                {
                    "issuer": url,
                    "authorization_endpoint": f"{url}/authorize",
                    "token_endpoint": f"{url}/token",
                    "jwks_uri": f"{url}/keys",
                    "end_session_endpoint": f"{url}/logout",
                    "response_types_supported": ["code"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["RS256"],
                    "code_challenge_methods_supported": ["S256"],
                }
            )
        elif parts.path == "/keys":
            self._json(self.server.published)
        elif parts.path == "/authorize":
            self._authorize(asked)
        elif parts.path == "/logout":
            self._logout(asked)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """A code against tokens, once."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        sent = {name: values[0] for name, values in parse_qs(body).items()}
        subject, asked = self.server.granted.pop(sent.get("code", ""), ("", {}))
        client = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        right = (
            self.path == "/token"
            and self.headers["Authorization"] == f"Basic {client}"
            and sent.get("grant_type") == "authorization_code"
            and sent.get("redirect_uri") == self.server.callback
            and asked.get("code_challenge") == base64.urlsafe_b64encode(digest).decode().rstrip("=")
        )
        if not right:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        now = int(time.time())
        claims = {
            "iss": self.server.url,
            "sub": subject,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + LIFETIME_S,
            "nonce": asked["nonce"],
            **self.server.users[subject],
        }
        token = jwt.encode({"alg": "RS256", "kid": KEY_ID}, claims, self.server.key)
        self._json({"access_token": "opaque", "token_type": "Bearer", "id_token": token})

    def _authorize(self, asked: dict[str, str]) -> None:
        wanted = {
            "response_type": "code",
            "client_id": CLIENT_ID,
            "redirect_uri": self.server.callback,
            "code_challenge_method": "S256",
        }
        if wanted.items() - asked.items() or "openid" not in asked.get("scope", "").split():
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        answers = [("Refuse", {"error": "access_denied"})]
        for subject, claims in self.server.users.items():
            code = secrets.token_urlsafe()
            self.server.granted[code] = subject, asked
            answers.append((claims["name"], {"code": code}))
        page, state = "", asked["state"]
        for label, answer in answers:
            back = f"{self.server.callback}?{urlencode(answer | {'state': state})}"
            page += f'<p><a href="{html.escape(back)}">{html.escape(label)}</a></p>'
        self._send(f"<!doctype html><title>Who are you?</title>{page}".encode(), "text/html; charset=utf-8")

    def _logout(self, asked: dict[str, str]) -> None:
        token = jwt.decode(asked.get("id_token_hint", ""), self.server.key, algorithms=["RS256"])
        self.server.ended.append(token.claims["sub"])
        self.send_response(HTTPStatus.FOUND)
        self.send_header("Location", self.server.callback)
        self.end_headers()

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the tests say what went wrong."""


def new_key() -> RSAKey:
    """A key to sign with."""
    return RSAKey.generate_key(2048, {"kid": KEY_ID, "use": "sig", "alg": "RS256"}, private=True)


@contextlib.contextmanager
def identity_provider(callback: str, users: dict[str, dict[str, str]]) -> Iterator[Provider]:
    """A provider that answers while the block runs."""
    with Provider(callback, users) as provider:
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        yield provider
        provider.shutdown()
