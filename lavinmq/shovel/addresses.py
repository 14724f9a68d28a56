"""Which addresses a webhook may reach: no metadata service, and no private network where forbidden.

A name is looked up once, and what was looked at is connected to: a second answer of a lying server
for names does not count. Source: docs/shovels.md#webhooks.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

_METADATA: Final = tuple(
    map(ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32",
                     "fd20:ce::254/128", "192.0.0.192/32", "168.63.129.16/32"))
)  # fmt: skip
"""Where clouds tell machines their secrets: whoever may write a webhook is not to read them."""
_CARRIERS: Final = tuple(
    map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"))
)
"""Networks whose addresses end with one of IPv4, which is the one that is reached."""


def refusal(address: str, allows_private: bool) -> str:
    """Why an address is not connected to; empty if it is."""
    try:
        found = _plain(ip_address(address.partition("%")[0]))
    except ValueError:
        return f"'{address}' is no address"
    if any(found in network for network in _METADATA if network.version == found.version):
        return f"{found} is link-local, as metadata services are: no webhook may reach it"
    if not allows_private and not found.is_global:
        return f"{found} is private: webhook_private_networks = false forbids it"
    return ""


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address that is meant by those that carry another."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        if inner is not None:
            return inner
        if int(address) > 1 and any(address in network for network in _CARRIERS):
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


async def lookup(host: str, port: int, allows_private: bool) -> list[str]:
    """The addresses of a host that may be connected to. Raises: OSError, which says why none."""
    loop = asyncio.get_running_loop()
    try:
        rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"{host} is not known: {error.strerror or error}") from None
    except UnicodeError:
        raise OSError(f"{host} is no name of a host") from None
    found = list(dict.fromkeys(str(row[4][0]) for row in rows))
    reasons = {address: refusal(address, allows_private) for address in found}
    allowed = [address for address in found if not reasons[address]]
    if not allowed:
        raise OSError(next(iter(reasons.values()), f"{host} has no address"))
    return allowed
