"""All links of a broker: they follow policies, parameters of upstreams and sets, and what there is.

A policy names an upstream, or a set, for exchanges and queues. Source: docs/federation.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import gathered
from lavinmq.policy.parameters import Parameter
from lavinmq.process import log
from lavinmq.shovel.endings import Endings
from lavinmq.vhost.exchange import Exchange

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.federation.link import Link
    from lavinmq.federation.upstreams import Upstream
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

LINK: Final = "federation-link"
"""The component of pauses of single links; those of upstreams have the upstream's own."""
UPSTREAM: Final = "federation-upstream"
ESCAPE: Final = "surrogateescape"
"""How names of AMQP that are no UTF-8 are text."""
STOP_S: Final = 8.0
_log = log.get("lmq.federation")

Place = tuple[str, str, str]
"""Virtual host, `exchange` or `queue`, name."""
Key = tuple[str, str, str, str, int]
"""A place, the upstream's name, and its number among those of that name."""


class Broken:
    """Something that cannot be linked: an upstream that is not there, or is none."""

    def __init__(self, place: Place, upstream: str, error: str) -> None:
        self.place, self.upstream, self.error = place, upstream, error

    def row(self) -> dict[str, Any]:
        """As the API shows a link."""
        vhost, kind, resource = self.place
        return {
            "upstream": self.upstream, "vhost": vhost, "timestamp": None, "type": kind, "uri": "",
            "resource": resource, "error": self.error, "status": "error", "consumer-tag": None,
        }  # fmt: skip


class Federation:
    """The links, by what they link."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._resources: dict[Place, Exchange | Queue] = {}
        self._links: dict[Place, dict[Key, tuple[Upstream, Link]]] = {}
        self._broken: dict[Place, list[Broken]] = {}
        self._closing: Endings[Key] = Endings()
        self._names: tuple[str, str] | None = None
        broker.federation = self

    def start(self) -> None:
        """Clients are served: begin with what is there."""
        for vhost in self._broker.vhosts.values():
            for exchange in list(vhost.exchanges.values()):
                self.look(vhost, exchange)
            for queue in list(vhost.queues.values()):
                self.look(vhost, queue)

    # ---- what is told

    def look(self, vhost: VHost, resource: Exchange | Queue) -> None:
        """An exchange or queue is new, has other features, or is gone."""
        if not self._resources and not _is_linked(resource):
            return
        kind = "exchange" if isinstance(resource, Exchange) else "queue"
        place = (vhost.name, kind, resource.name)
        there: Any = vhost.exchanges if kind == "exchange" else vhost.queues
        is_there = (
            self._broker.vhosts.get(vhost.name) is vhost and there.get(resource.name) is resource
        )
        if is_there and _is_linked(resource):
            self._resources[place] = resource
            if self._broker.is_serving:
                self._follow(vhost, place)
        elif place in self._resources and (self._resources[place] is resource or not is_there):
            del self._resources[place]
            self._end_all(place, is_deleted=True)

    def follow(self, vhost: VHost) -> None:
        """Parameters have changed, or the virtual host goes."""
        if not self._broker.is_serving:
            return
        is_there = self._broker.vhosts.get(vhost.name) is vhost
        if is_there:
            _forget_pauses(vhost)
        for place in [each for each in self._resources if each[0] == vhost.name]:
            if is_there:
                self._follow(vhost, place)
            else:
                del self._resources[place]
                self._end_all(place, is_deleted=True)

    # ---- links

    def _follow(self, vhost: VHost, place: Place) -> None:
        """Have the links that the resource of that place should have now."""
        from lavinmq.federation.exchange_link import ExchangeLink
        from lavinmq.federation.hops import Here
        from lavinmq.federation.queue_link import QueueLink

        wanted, self._broken[place] = self._wanted(vhost, place)
        now = self._links.setdefault(place, {})
        for key in list(now):
            if wanted.get(key) != now[key][0]:
                self._closing.add(key, _ended(now.pop(key)[1], is_deleted=True))
        name, id_ = self.names
        here = Here(name, vhost.name, self._broker.given_name, id_)
        made = ExchangeLink if place[1] == "exchange" else QueueLink
        for key, upstream in wanted.items():
            if key not in now:
                link = made(
                    self._broker, here, place[1], place[2], upstream,
                    is_paused=self._is_paused(vhost, key), after=self._closing.of(key),
                )  # fmt: skip
                now[key] = upstream, link
                link.start()

    def _wanted(self, vhost: VHost, place: Place) -> tuple[dict[Key, Upstream], list[Broken]]:
        features = self._resources[place].features
        found: dict[Key, Upstream] = {}
        broken = []
        for name, upstream in _named(vhost, features):
            if isinstance(upstream, str):
                broken.append(Broken(place, name, upstream))
                _log.warning("%s %r of vhost %r: %s", place[1], place[2], vhost.name, upstream)
                continue
            number = sum(1 for key in found if key[3] == name)
            found[(*place, name, number)] = upstream
        return found, broken

    def _end_all(self, place: Place, *, is_deleted: bool) -> None:
        self._broken.pop(place, None)
        for key, (_, link) in self._links.pop(place, {}).items():
            self._closing.add(key, _ended(link, is_deleted=is_deleted))

    # ---- what is asked

    @property
    def names(self) -> tuple[str, str]:
        """What this broker is called at its upstreams, and a name that no other one has."""
        if self._names is None:
            from lavinmq.federation import name

            self._names = name.of(self._broker)
        return self._names

    @property
    def is_idle(self) -> bool:
        """Whether there is no link, and none is ending."""
        return not any(self._links.values()) and not self._closing

    def rows(self, vhost: str) -> list[dict[str, Any]]:
        """All links of a virtual host, as the API shows them."""
        found = [
            link.row()
            for place, links in self._links.items()
            if place[0] == vhost
            for _, link in links.values()
        ]
        return found + [
            each.row() for place, all_ in self._broken.items() if place[0] == vhost for each in all_
        ]

    def links(self, vhost: str) -> list[Link]:
        """Those that can be."""
        found = [links for place, links in self._links.items() if place[0] == vhost]
        return [link for links in found for _, link in links.values()]

    # ---- pauses

    def _is_paused(self, vhost: VHost, key: Key) -> bool:
        paused = vhost.rules.paused
        name = _pause_of(key[1:3], key[3])
        return paused.get(UPSTREAM, key[3]) is not None or paused.get(LINK, name) is not None

    async def set_paused(
        self, vhost: VHost, upstream: str, place: tuple[str, str] | None, is_paused: bool
    ) -> int:
        """Stop all links of an upstream, or that of one place; or let them go on, when that is on
        disk: what they bring nobody takes back.

        Returns: how many that are. Raises: DefinitionsError; nothing has changed then.
        """
        component, name = UPSTREAM, upstream
        if place is not None:
            component, name = LINK, _pause_of(place, upstream)
        of = self._of_upstream(vhost, upstream, place)
        if not of and (place is not None or vhost.rules.parameters.get(UPSTREAM, upstream) is None):
            return 0
        async with gathered():
            if is_paused:
                vhost.rules.paused.put(Parameter(component, name, True))
            else:
                vhost.rules.paused.delete(component, name)
        paused = []
        for key, link in self._of_upstream(vhost, upstream, place):
            wanted = self._is_paused(vhost, key)
            if wanted and not link.is_paused:
                link.pause()
                paused.append(link.settled())
            elif not wanted and link.is_paused:
                link.resume()
        await asyncio.gather(*paused)  # nothing is under way any more
        return max(len(of), 1)

    def _of_upstream(
        self, vhost: VHost, upstream: str, place: tuple[str, str] | None
    ) -> list[tuple[Key, Link]]:
        return [
            (key, link)
            for links in self._links.values()
            for key, (_, link) in links.items()
            if key[0] == vhost.name and key[3] == upstream
            and (place is None or key[1:3] == place)
        ]  # fmt: skip

    def cut(self) -> None:
        """Bring nothing more; `close` waits for what that takes."""
        for links in self._links.values():
            for _, link in links.values():
                link.end()

    async def close(self, timeout_s: float = STOP_S) -> None:
        """End all, within a time; what stands at upstreams stays there."""
        for place in list(self._links):
            self._end_all(place, is_deleted=False)
        await self._closing.wait(timeout_s)


def _pause_of(place: tuple[str, str], upstream: str) -> str:
    """What the pause of a single link is kept by; each of the names may have slashes."""
    return "/".join(quote(part, safe="", errors=ESCAPE) for part in (*place, upstream))


def _forget_pauses(vhost: VHost) -> None:
    """Upstreams that are gone: another one of that name begins anew, and so do its links."""
    rules = vhost.rules
    for component in (UPSTREAM, LINK):
        for each in rules.paused.all(component):
            name = each.name
            if component == LINK:
                name = unquote(name.rpartition("/")[2], errors=ESCAPE)
            if rules.parameters.in_force.get(UPSTREAM, name) is None:
                try:
                    rules.paused.delete(component, each.name)
                except DefinitionsError as error:
                    _log.error("upstream %r of vhost %r is gone: %s", name, vhost.name, error)


def _is_linked(resource: Exchange | Queue) -> bool:
    """Whether a policy names upstreams for it, and it can have links."""
    features = resource.features
    if not (features.federation_upstream or features.federation_upstream_set):
        return False
    if isinstance(resource, Exchange):
        return bool(resource.name) and not resource.internal and not resource.is_mqtt
    return (
        not resource.is_session
        and not resource.is_stream
        and not resource.is_internal
        and resource.arguments.get("x-internal-purpose") is None
    )


def _named(vhost: VHost, features: Any) -> list[tuple[str, Upstream | str]]:
    """The upstreams that a policy means; a text says why there is none of that name."""
    from lavinmq.federation import upstreams

    parameters = vhost.rules.parameters.in_force
    known = {each.name: each.value for each in parameters.all(UPSTREAM)}
    members: list[tuple[str, dict[str, Any]]] = []
    found: list[tuple[str, Upstream | str]] = []
    if features.federation_upstream:
        members.append((features.federation_upstream, {}))
    wanted = features.federation_upstream_set
    if wanted == upstreams.ALL:
        members += [(name, {}) for name in known]
    elif wanted:
        parameter = parameters.get(upstreams.SET, wanted)
        if parameter is None:
            found.append((wanted, f"there is no set of upstreams '{wanted}'"))
        else:
            try:
                members += upstreams.parse_set(parameter.value)
            except ValueError as error:
                found.append((wanted, f"set '{wanted}': {error}"))
    for name, others in members:
        if name not in known:
            found.append((name, f"there is no upstream '{name}'"))
            continue
        try:
            found.append((name, upstreams.of_set(name, known[name], others, vhost.name)))
        except ValueError as error:
            found.append((name, str(error)))
    return found


async def _ended(link: Link, *, is_deleted: bool) -> None:
    await link.close()
    if is_deleted:
        try:
            await link.clean_up()
        except Exception as error:  # noqa: BLE001 - what it made expires there, if that was wanted
            _log.warning("%s: not cleaned up at the upstream: %s", link.resource, error)
