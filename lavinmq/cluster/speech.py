"""Which replication protocol two nodes speak, so that a cluster is updated node by node.

A number stands for all that an older node could not follow, or could not lead with: what is sent,
and what is in the files. A release that changes any of it has the next number, and speaks the one
before as well: with a node of that it sends and writes nothing that is new. What both know is the
smaller of their newest numbers. Nodes further apart refuse each other.
Source: docs/clustering.md, decision 0115.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lavinmq import __version__
from lavinmq.cluster.frames import PeerError, text

if TYPE_CHECKING:
    from lavinmq.config.values import Config

OLDEST: Final = 2
NEWEST: Final = 3
"""Numbers that this release speaks, all between them as well. One that says nothing speaks 1."""
BLOCKS: Final = 3
"""From this number on what a leader sends goes in blocks, which may be packed."""


def spoken() -> dict[str, Any]:
    """What a node says of itself, in its first frame."""
    return {"version": __version__, "protocol": [OLDEST, NEWEST]}


def agreed(said: dict[str, Any], oldest: int = OLDEST, newest: int = NEWEST) -> int:
    """The number that this node and one that has said this speak. Raises: PeerError: there is none,
    or what it says makes no sense."""
    version, theirs = text(said, "version"), said.get("protocol", [1, 1])
    if not (
        isinstance(theirs, list) and len(theirs) == 2
        and all(isinstance(each, int) and not isinstance(each, bool) for each in theirs)
        and 0 < theirs[0] <= theirs[1]
    ):  # fmt: skip
        raise PeerError(f"'protocol' is {theirs!r:.100}, not two numbers")
    number: int = min(theirs[1], newest)
    if number < max(theirs[0], oldest):
        raise PeerError(
            f"it is of release {version:.40}, which replicates by protocol"
            f" {_numbers(*theirs)}; {__version__} does by {_numbers(oldest, newest)}: update by"
            " the releases between them, one after the other"
        )
    return number


def compression(config: Config) -> str:
    """How what is sent to followers is packed, as `Peer` takes it. In TLS only if that is wanted:
    whoever can publish, and sees how long packed records are, learns of what is in them."""
    wanted = config.clustering_compression
    return "off" if wanted == "auto" and config.clustering_tls_cert else wanted


def _numbers(oldest: int, newest: int) -> str:
    return str(newest) if oldest == newest else f"{oldest} to {newest}"
