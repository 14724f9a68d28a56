"""The control socket of a node that does not lead: what is about the cluster, or about the node's
own files, is answered here.

Everything else is the leader's: it is refused with 503, and the answer names who leads. Nothing is
passed on: whoever can open the socket of this machine need not be an administrator of the cluster.
Source: docs/lavinmqctl.md.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import orjson

from lavinmq.cluster import places
from lavinmq.cluster.probes import log_request
from lavinmq.http import encoding, probes
from lavinmq.http.access.origin import Origin
from lavinmq.http.handler import JSON, Handler
from lavinmq.http.health import Alive
from lavinmq.http.server import GuardedApplication

if TYPE_CHECKING:
    from lavinmq.cluster.coordinator import State
    from lavinmq.cluster.recovery import Recovery
    from lavinmq.config.values import Config
    from lavinmq.integrity.keeper import Integrity

WAITS: Final = "this node waits: nobody leads the cluster"


class _Answering(Handler):
    """Answers in JSON."""

    def _refuse(self, status: int, error: str, reason: str) -> None:
        self._send(status, {"error": error, "reason": reason})

    def _send(self, status: int, value: dict[str, Any]) -> None:
        self.set_status(status)
        self.set_header("Content-Type", JSON)
        self.finish(encoding.encode(value))


class _Sums(_Answering):
    """About this node's files; it answers as a broker does."""

    @property
    def integrity(self) -> Integrity:
        """Who keeps their sums."""
        integrity: Integrity = self.application.settings["integrity"]
        return integrity

    def prepare(self) -> None:
        """Without sums there is nothing to say."""
        if self.application.settings["integrity"] is None:
            self._refuse(409, "conflict", "There are no sums of files: scrub_rate is 0")


class Damaged(_Sums):
    """`/api/integrity`."""

    def get(self) -> None:
        """Show what is damaged."""
        self._send(200, self.integrity.status())


class Verify(_Sums):
    """`/api/integrity/verify`."""

    def post(self) -> None:
        """Have all files read."""
        self._send(200, {"number": self.integrity.verify()})


class Lost(_Answering):
    """`/api/cluster/recovery`: going on without nodes that are lost."""

    @property
    def recovery(self) -> Recovery:
        """Who knows of that, and does it."""
        recovery: Recovery = self.application.settings["recovery"]
        return recovery

    async def get(self) -> None:
        """Show what it would mean."""
        try:
            report = await self.recovery.report()
        except OSError as error:
            self._refuse(503, "service_unavailable", str(error))
            return
        self._send(200, report)

    async def post(self) -> None:
        """Do it, if what was seen is still so."""
        try:
            body: Any = orjson.loads(self.request.body)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict) or body.get("accept_loss") is not True:
            self._refuse(400, "bad_request", "Field 'accept_loss' must be true")
            return
        try:
            why = await self.recovery.recover(body.get("seen"))
        except OSError as error:
            self._refuse(503, "service_unavailable", str(error))
            return
        if why:
            self._refuse(409, "conflict", why)
        else:
            self.set_status(204)
            self.finish()


class Elsewhere(Handler):
    """Whatever only a broker can answer."""

    def prepare(self) -> None:
        """Say who can. Plain text, as a follower of LavinMQ answers: lavinmqctl ends with 2."""
        self.set_status(503)
        self.set_header("Content-Type", "text/plain")
        text = f"{self.application.settings['elsewhere']()}\n"
        self.set_header("Content-Length", str(len(text.encode())))
        self.finish("" if self.request.method == "HEAD" else text)


def application(
    config: Config, picture: Callable[[], dict[str, Any]], recovery: Recovery,
    elsewhere: Callable[[], str], integrity: Integrity | None = None,
) -> GuardedApplication:  # fmt: skip
    """What is served. Args: picture: makes what `/api/cluster` shows; elsewhere: says who leads;
    integrity: the sums of this node's files."""
    ours = [(r"/api/cluster/recovery", Lost), (r"/api/integrity", Damaged),
            (r"/api/integrity/verify", Verify)]  # fmt: skip
    return GuardedApplication(
        [(r"/healthz", Alive), *ours, *probes.ROUTES],
        default_handler_class=Elsewhere,
        log_function=log_request,
        config=config,
        names=(socket.gethostname().lower(),),
        origin=Origin.CONTROL,
        cluster=picture,
        recovery=recovery,
        elsewhere=elsewhere,
        integrity=integrity,
    )


def elsewhere(state: State, me: str) -> str:
    """Where to go with what only the leader can do."""
    leader, http = state.leader, places.of_leader(state, me, "http")
    if leader is None or state.epoch_leader == me:
        return WAITS
    by = f", or by --uri http://{http.host}:{http.port}" if http is not None else ""
    return f"this node follows {state.epoch_leader} at {leader.uri}: run this there{by}"
