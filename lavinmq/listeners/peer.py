"""What every connection of a client is, whatever it speaks: its socket, its link, who it is.

A protocol's connection builds on it and says how it comes, lives and ends. On the loop's thread.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from lavinmq import _core
from lavinmq.listeners.secure import SecureSocket
from lavinmq.process import log

if TYPE_CHECKING:
    from lavinmq.auth.identity import Identity
    from lavinmq.auth.standing import Standing
    from lavinmq.broker import Broker
    from lavinmq.listeners.endpoints import Endpoints
    from lavinmq.stats.totals import Traffic
    from lavinmq.stats.track import Track
    from lavinmq.vhost.vhost import VHost

LinkT = TypeVar("LinkT", bound=_core.Link)


class Peer(Generic[LinkT]):
    """A client. `broker` owns it and is told by `lost` when it is over.

    Args: link: of its socket, made just now.
    """

    # So many attributes of so many instances: dictionaries would take 1.6 KB of each.
    __slots__ = (
        "_is_over", "_tls", "broker", "ends", "is_blocked", "is_member", "link", "standing",
        "track", "traffic", "user", "vhost",
    )  # fmt: skip

    logger: ClassVar[str]
    """What its lines in the log are of."""
    arrival_s: ClassVar[float]
    """Seconds that it has for saying who it is."""

    def __init__(self, broker: Broker, sock: socket.socket, ends: Endpoints, link: LinkT) -> None:
        self.broker = broker
        self.ends = ends
        self.user: Identity
        self.standing: Standing | None = None
        """The log-in, once there is one."""
        self.vhost: VHost
        self.is_member = False
        """Whether it counts as a connection of its virtual host."""
        self.is_blocked = False
        """Whether a publish of its waits for room on the disk."""
        self.traffic: Traffic | None = None
        self.track: Track | None = None
        self.link = link
        self.link.session = self  # type: ignore[assignment]  # it is what a protocol makes of it
        self._tls: SecureSocket | None = None
        if isinstance(sock, SecureSocket):
            self.link.use_tls(sock.session)
            self._tls = sock
        else:
            self.link.own()  # an object for its descriptor would be 96 bytes
            sock.detach()
        self._is_over = False

    @property
    def connected_at_ms(self) -> int:
        """When it came, in Unix milliseconds."""
        return self.link.connected_at_ms

    @property
    def name(self) -> str:
        """What lists and logs call it."""
        return self.ends.name

    @property
    def _log(self) -> log.Log:
        return log.get(self.logger, client=self.ends.peer)

    def counters(self) -> dict[str, int]:
        """Bytes that have come and gone."""
        return {"recv_oct": self.link.received_bytes, "send_oct": self.link.sent_bytes}

    def start(self) -> None:
        """Begin to read."""
        self.broker.newcomers.enter(self, self.ends)
        self.link.start(self.arrival_s)

    def make_room(self) -> None:
        """It has not logged in for longest, and others want to come."""
        self.on_lost("it is the oldest of too many that have not logged in")

    def abandon(self) -> None:
        """Let go of the socket, as if the process had died: nothing is sent or deleted."""
        self._is_over = True
        self.broker.newcomers.leave(self)
        self._end_login()
        self._close_link()
        if self._tls is not None:
            self._tls.close()

    def on_lost(self, why: str) -> None:
        """The socket is gone, or given up. Idempotent."""
        raise NotImplementedError

    def _end_login(self) -> None:
        """Nobody asks any more who it is."""
        raise NotImplementedError

    def _leave_vhost(self) -> bool:
        """It is as good as over: it counts for limits no more. Returns: whether it did."""
        if not self.is_member:
            return False
        self.is_member = False
        self.vhost.connections.discard(self)
        self.vhost.totals.churn.count("connection_closed")
        return True

    def _cut(self, *, is_clean: bool) -> None:
        """Let go of the socket: nothing is sent to it any more."""
        self.broker.newcomers.leave(self)
        self._end_login()
        self.link.cut()
        if self._tls is not None:
            if is_clean:
                self._tls.say_goodbye()
            self._tls.close()

    def _end_output(self) -> None:
        """All is sent: close our side, and wait for the peer's end of file."""
        try:
            if self._tls is not None:
                self._tls.say_goodbye()
            self.link.end_output()
        except OSError:
            self.on_lost("")

    def _close_link(self) -> None:
        """Nothing comes from it any more. Link and session name each other: left to the garbage
        collector, those of clients that stayed for long would be there for hours."""
        self.link.close()
        self.link.session = None  # type: ignore[assignment]
