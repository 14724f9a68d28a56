"""Checks of the parameters that make shovels, federation upstreams, and MQTT's bridge.

Source: docs/http-api.md.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lavinmq.fieldtable import FieldTable
from lavinmq.http.errors import ApiError, bad_request
from lavinmq.mqtt import groups
from lavinmq.vhost import bridge
from lavinmq.vhost.rights import may_declare_queue

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity

_OF_MQTT: Final[Mapping[str, Callable[[Any], object]]] = {
    bridge.COMPONENT: bridge.check,
    groups.COMPONENT: groups.parse,
}


COMPONENTS: Final = frozenset(
    {"shovel", "federation-upstream", "federation-upstream-set", *_OF_MQTT}
)
"""Those that mean something; of others parameters are kept and have no effect."""


def check(
    component: str, value: Any, user: Identity, vhost: str, default_user: str,
    upstreams: Iterable[str],
) -> None:  # fmt: skip
    """Refuse what cannot work. Other components may say anything.

    Args: user: who needs rights on what a shovel uses in this broker without logging in;
        default_user: whom the broker lets in from its own machine only; upstreams: those that the
        virtual host has.
    Raises: ApiError 400.
    """
    if component == "shovel":
        _check_shovel(_object(value), user, vhost, default_user)
    elif component == "federation-upstream":
        _check_upstream(_object(value), user, vhost, default_user)
    elif component in _OF_MQTT:
        try:
            _OF_MQTT[component](value)
        except ValueError as error:
            raise bad_request(str(error)) from error
    elif component == "federation-upstream-set":
        _check_set(value, user, vhost, default_user, upstreams)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_request("Field 'value' must be an object")
    return value


def _check_upstream(value: dict[str, Any], user: Identity, vhost: str, default_user: str) -> None:
    from lavinmq.federation import upstreams
    from lavinmq.shovel.checks import uris

    try:
        parsed = upstreams.parse("", value, vhost)
    except ValueError as error:
        raise bad_request(str(error)) from error
    _check_uris(uris(value["uri"]), user, default_user)
    if any(place.is_local for place in parsed.places) and not user.has_tag("administrator"):
        raise bad_request(
            "A URI without user and host is this broker, with all rights: for administrators only"
        )


def _check_set(
    value: Any, user: Identity, vhost: str, default_user: str, known: Iterable[str]
) -> None:
    from lavinmq.federation.upstreams import OF_PLACES, parse_set

    try:
        entries = parse_set(value, known)
    except ValueError as error:
        raise bad_request(str(error)) from error
    for name, others in entries:
        if others.get("uri") is not None:
            _check_upstream({"uri": others["uri"]}, user, vhost, default_user)
        elif not user.has_tag("administrator") and others.keys() & OF_PLACES:
            # It logs in with what another one has written there.
            raise bad_request(
                f"Another exchange or queue of upstream '{name}' is for administrators, or needs a"
                " 'uri' of its own"
            )


def _check_shovel(value: dict[str, Any], user: Identity, vhost: str, default_user: str) -> None:
    # Few brokers have any: the client of programs is loaded for those.
    from lavinmq.shovel import values
    from lavinmq.shovel.checks import uris

    try:
        parsed = values.parse(value, vhost)
    except ValueError as error:
        raise bad_request(str(error)) from error
    given = uris(value["src-uri"]) + uris(value["dest-uri"])
    _check_uris(given, user, default_user)
    source, to = parsed.source, parsed.destination
    for place in source.places:
        if place.is_local:
            _check_source(user, place.vhost, source.queue, source.exchange, source.key)
            _check_arguments(user, place.vhost, source.queue, source.queue_arguments)
    if not isinstance(to, values.Destination):
        _check_headers(to.headers, user, default_user)
        return
    for there in [place.vhost for place in to.places if place.is_local]:
        if to.queue is None:
            _check_exchange(user, there, to.exchange or "", to.key)
        elif not user.can_configure(there, to.queue):
            raise _no_access(user, "destination", to.queue, there)
        else:
            _check_arguments(user, there, to.queue, to.queue_arguments)


def _check_source(
    user: Identity, there: str, queue: str | None, exchange: str | None, key: str
) -> None:
    for name in filter(None, (queue, exchange)):
        if not (user.can_read(there, name) and user.can_configure(there, name)):
            raise _no_access(user, "source", name, there)
    if queue and exchange and not user.can_write(there, queue):
        raise _no_access(user, "source", queue, there)  # it is bound, which takes that
    rights = user.key_rights(there, exchange) if exchange else None
    if rights is not None and not rights.can_read(key):
        raise bad_request(f"{user.name} can't bind to '{exchange}' with key '{key}'")


def _check_arguments(
    user: Identity, there: str, queue: str | None, arguments: Mapping[str, Any]
) -> None:
    """A queue that the shovel declares may lead to another exchange, as one of AMQP may."""
    if arguments and not may_declare_queue(user, there, queue or "", FieldTable(arguments)):
        raise bad_request(
            f"{user.name} may not declare queue '{queue or ''}' in vhost '{there}' with these"
            " arguments"
        )


def _check_exchange(user: Identity, there: str, exchange: str, key: str | None) -> None:
    """A shovel publishes with all rights: its author needs those that it will use."""
    if not (user.can_write(there, exchange) and user.can_configure(there, exchange)):
        raise _no_access(user, "destination", exchange, there)
    rights = user.key_rights(there, exchange)
    if rights is None:
        return
    if key is None:
        raise bad_request(
            f"{user.name} may use some keys of '{exchange}' only: 'dest-exchange-key' is needed"
        )
    if not rights.can_write(key):
        raise bad_request(f"{user.name} can't publish to '{exchange}' with key '{key}'")


def _no_access(user: Identity, what: str, name: str, there: str) -> ApiError:
    return bad_request(f"{user.name} can't access {what} '{name}' in vhost '{there}'")


def _check_uris(uris: list[str], user: Identity, default_user: str) -> None:
    """What only an administrator may have in a URI. Raises: ApiError 400.

    The broker reads files that a URI names, connects from this machine, from which alone the
    default user may log in, and holds a frame and a message as a whole.
    """
    if user.has_tag("administrator"):
        return
    from lavinmq.shovel import places

    for uri in uris:
        files = places.files_of(uri)
        if files:
            raise bad_request(f"'{files[0]}' in a URI names a file: for administrators only")
        large = places.large_of(uri)
        if large:
            raise bad_request(f"'{large}' in a URI above its default is for administrators only")
        _check_login(places.user_of(uri), "A URI with", default_user)


def _check_headers(headers: Mapping[str, str], user: Identity, default_user: str) -> None:
    """A login in a header of a webhook is one as in its URI. Raises: ApiError 400."""
    if user.has_tag("administrator"):
        return
    for name, text in headers.items():
        if name.lower() == "cookie":
            raise bad_request("'Cookie' in 'dest-headers' may log in: for administrators only")
        scheme, _, login = text.strip().partition(" ")
        if name.lower().endswith("authorization") and scheme.lower() == "basic":
            _check_login(_user_of_basic(login), "A header with", default_user)


def _user_of_basic(login: str) -> str:
    """The user of basic authentication, read as leniently as any server may read it."""
    plain = re.sub(r"[^A-Za-z0-9+/]", "", login.replace("-", "+").replace("_", "/"))
    decoded = base64.b64decode(plain[: len(plain) - (len(plain) % 4 == 1)] + "==")
    return decoded.partition(b":")[0].decode(errors="replace")


def _check_login(name: str, what: str, default_user: str) -> None:
    if name in ("guest", default_user):
        raise bad_request(
            f"{what} the user '{name}', whom brokers let in from their own machine only, is for"
            " administrators"
        )
