"""Which pages of other origins may use the API: those that the operator lists.

Source: Fetch standard, CORS protocol, docs/authentication.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

MAX_AGE_S: Final = 600
ALLOWED_METHODS: Final = "GET, PUT, POST, DELETE"
ALLOWED_HEADERS: Final = "Authorization, Content-Type, X-Reason, X-Vhost, Last-Event-Id"
EXPOSED_HEADERS: Final = "LavinMQ-Version, Location"


def answer_headers(allowed: Collection[str], origin: str | None) -> dict[str, str]:
    """What an answer to a page of that origin carries; nothing for one that is not allowed.

    With `*` every page may ask, but not with the credentials that the browser keeps.
    """
    if not allowed or origin is None:
        return {}
    if origin in allowed:
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Expose-Headers": EXPOSED_HEADERS,
            "Vary": "Origin",
        }
    if "*" in allowed:
        return {
            "Access-Control-Allow-Origin": "*",
            "Access-Control-Expose-Headers": EXPOSED_HEADERS,
        }
    return {"Vary": "Origin"}


def is_preflight(method: str | None, headers: Mapping[str, str]) -> bool:
    """Whether a browser asks before it sends the request itself."""
    return (
        method == "OPTIONS" and "Origin" in headers and "Access-Control-Request-Method" in headers
    )  # fmt: skip


def preflight_headers() -> dict[str, str]:
    """What else the answer to such a question carries."""
    return {
        "Access-Control-Allow-Methods": ALLOWED_METHODS,
        "Access-Control-Allow-Headers": ALLOWED_HEADERS,
        "Access-Control-Max-Age": str(MAX_AGE_S),
    }
