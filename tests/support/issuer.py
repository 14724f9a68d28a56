"""An issuer of access tokens: keys of every kind, tokens good and bad, and an HTTP server for them.

Owns the private keys; the server is a thread that answers discovery, keys and the exchange of codes
and counts what it was asked. Tests that need no server read `Issuer.documents`.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.ports import HOST, free_port

AUDIENCE = "broker"
WRITERS: dict[str, Callable[..., Any]] = {
    "RS256": RSAAlgorithm.to_jwk, "PS256": RSAAlgorithm.to_jwk, "ES256": ECAlgorithm.to_jwk,
    "EdDSA": OKPAlgorithm.to_jwk,
}  # fmt: skip


def private_key(alg: str, number: int = 0) -> Any:
    """A key for a signature algorithm; the same for the same number."""
    return _made(alg, number)


@cache
def _made(alg: str, number: int) -> Any:
    if alg == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    if alg == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


def jwk(alg: str, key: Any, kid: str, **members: Any) -> dict[str, Any]:
    """The public half as one entry of a set of keys."""
    public = WRITERS[alg](key.public_key(), as_dict=True)
    return public | {"kid": kid, "use": "sig", "alg": alg} | members


def part(content: Any) -> str:
    """One part of a token."""
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


class Issuer:
    """Signs with the key `alg` has at the time, which goes by the name `<alg>-<number>`."""

    def __init__(self, url: str = "https://issuer.example") -> None:
        self.url = url
        self.numbers = dict.fromkeys(WRITERS, 0)
        self.entries: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        """Answers by path that replace the usual ones."""
        self.asked: Counter[str] = Counter()
        self.forms: list[dict[str, str]] = []
        self.cache_control = ""
        self.publish()

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a broker that takes tokens of this issuer."""
        return {
            "LAVINMQ_MAIN_AUTH_BACKENDS": "local,oauth",
            "LAVINMQ_OAUTH_ISSUER": self.url,
            "LAVINMQ_OAUTH_RESOURCE_SERVER_ID": AUDIENCE,
        }

    def publish(self) -> None:
        """Make the present keys those that can be fetched."""
        self.entries = [
            jwk(alg, private_key(alg, number), f"{alg}-{number}")
            for alg, number in self.numbers.items()
        ]

    def rotate(self, alg: str) -> None:
        """Sign with another key from now on, and publish it."""
        self.numbers[alg] += 1
        self.publish()

    def token(self, alg: str = "RS256", *, kid: str | None = None, key: Any = None,
              headers: Mapping[str, Any] | None = None, **claims: Any) -> str:  # fmt: skip
        """A token with the usual claims, changed by those given; None takes one away."""
        now = time.time()
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "anna", "iat": now, "exp": now + 60,
                 "scope": ""}  # fmt: skip
        content = {name: value for name, value in (usual | claims).items() if value is not None}
        head = {"kid": f"{alg}-{self.numbers.get(alg, 0)}" if kid is None else kid}
        signing = key or private_key(alg, self.numbers[alg])
        return jwt.encode(content, signing, alg, headers=head | dict(headers or {}))

    def document(self, path: str) -> tuple[int, Any]:
        """Status and content of the answer to a path."""
        self.asked[path] += 1
        if path in self.answers:
            return self.answers[path]
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
            }
        if path == "/keys":
            return 200, {"keys": self.entries}
        return 404, None


@contextmanager
def serving() -> Iterator[Issuer]:
    """An issuer on a port of this machine."""
    port = free_port()
    issuer = Issuer(f"http://{HOST}:{port}")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*issuer.document(self.path))

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            issuer.forms.append(dict(parse_qsl(self.rfile.read(size).decode())))
            self._answer(*issuer.document(self.path))

        def _answer(self, status: int, content: Any) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if issuer.cache_control:
                self.send_header("Cache-Control", issuer.cache_control)
            if status == 302:
                self.send_header("Location", f"{issuer.url}/keys")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # who has asked may not want all of it
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((HOST, port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
