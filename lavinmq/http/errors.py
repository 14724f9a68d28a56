"""What an endpoint raises when it does not do what it was asked for; the handler makes JSON of it.

`from_protocol` turns what AMQP would answer with a reply code into the status with which HTTP says
the same. Source: docs/http-api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lavinmq.errors import LowOnDiskError, ProtocolError, ReplyCode
from lavinmq.process.worker import NoThreadError


class ApiError(Exception):
    """An answer other than success.

    Args: status: of HTTP; error: the code for programs; reason: for people. Without a code the body
        is empty. `more` is what else the body says.
    """

    more: Mapping[str, object] = MappingProxyType({})

    def __init__(self, status: int, error: str = "", reason: str = "") -> None:
        super().__init__(status, error, reason)
        self.status = status
        self.error = error
        self.reason = reason


def bad_request(reason: str) -> ApiError:
    """400: the request makes no sense; the reason names the field."""
    return ApiError(400, "bad_request", reason)


def access_refused(reason: str = "Access refused") -> ApiError:
    """403: the user may not do this, or the virtual host is unknown."""
    return ApiError(403, "access_refused", reason)


def not_found(reason: str = "Not Found") -> ApiError:
    """404 with a body."""
    return ApiError(404, "Object Not Found", reason)


def too_large(limit: int) -> ApiError:
    """413: a body that is longer than the operator allows."""
    return ApiError(413, "payload_too_large", f"A body may have {limit} bytes")


def no_thread(error: NoThreadError) -> ApiError:
    """503: the machine has no more threads for us, now."""
    return ApiError(503, "service_unavailable", str(error))


def from_protocol(error: ProtocolError) -> ApiError:
    """What the virtual host refuses, in the words of HTTP."""
    text = error.text or error.reply_text
    if error.code == ReplyCode.ACCESS_REFUSED:
        return access_refused(text)
    if error.code == ReplyCode.NOT_FOUND:
        return not_found(text)
    if isinstance(error, LowOnDiskError):
        return ApiError(412, "precondition_failed", text)
    return bad_request(text)
