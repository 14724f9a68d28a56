"""What listeners need of a node that does not lead: no broker runs there that were their host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lavinmq.config.values import Config
    from lavinmq.listeners.tls import Contexts
    from lavinmq.process.portions import SharedPortion


@dataclass(slots=True)
class NodeHost:
    """A `listeners.listener.Host`; clients come to it by themselves, never by another node."""

    events: asyncio.AbstractEventLoop
    config: Config
    tls: Contexts
    arrivals: SharedPortion
    peers: frozenset[str] = frozenset()
