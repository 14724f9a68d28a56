"""All shovels of a broker: they follow the parameters of its virtual hosts.

Pauses are kept in `paused.json` of a virtual host, as parameters are; the file by which LavinMQ
keeps one (`shovels.<sha1 of the name>.paused` in the data directory) counts as well, until it is
resumed. On the loop. Source: docs/shovels.md, docs/formats.md.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import gathered
from lavinmq.policy.parameters import Parameter, ParameterStore
from lavinmq.process import log
from lavinmq.shovel.endings import Endings

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.shovel import Shovel
    from lavinmq.vhost.vhost import VHost

COMPONENT: Final = "shovel"
STOP_S: Final = 8.0
_log = log.get("lmq.shovel")


class Shovels:
    """Those that run, wait or are paused, by virtual host and name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._all: dict[tuple[str, str], tuple[Parameter, Shovel]] = {}
        self._wrong: dict[tuple[str, str], str] = {}
        self._closing: Endings[tuple[str, str]] = Endings()
        broker.shovels = self

    def start(self) -> None:
        """Clients are served: begin with what is there."""
        for vhost in self._broker.vhosts.values():
            self.follow(vhost)

    def get(self, vhost: str, name: str) -> Shovel | None:
        """The shovel of a parameter, None when its parameter cannot be one."""
        found = self._all.get((vhost, name))
        return found[1] if found is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether there is none, and none is ending."""
        return not self._all and not self._closing

    def of(self, vhost: str) -> list[Shovel]:
        """The shovels of a virtual host."""
        return [shovel for key, (_, shovel) in self._all.items() if key[0] == vhost]

    def why_not(self, vhost: str, name: str) -> str:
        """Why a parameter is no shovel, for people."""
        return self._wrong.get((vhost, name), "")

    def follow(self, vhost: VHost) -> None:
        """Other parameters of a virtual host are in force, or it has come or gone."""
        if not self._broker.is_serving:
            return
        is_there = self._broker.vhosts.get(vhost.name) is vhost
        parameters = vhost.rules.parameters.in_force.all(COMPONENT) if is_there else []
        wanted = {(vhost.name, each.name): each for each in parameters}
        for key in [key for key in self._all if key[0] == vhost.name]:
            if wanted.get(key) is not self._all[key][0]:
                shovel = self._all.pop(key)[1]
                self._closing.add(key, shovel.close())
                if key not in wanted and is_there:
                    shovel.position.is_over = True
                    self._forget(vhost, key[1])
        for key in [key for key in self._wrong if key[0] == vhost.name]:
            del self._wrong[key]
        for key, parameter in wanted.items():
            if key not in self._all:
                self._begin(vhost, parameter)

    def _begin(self, vhost: VHost, parameter: Parameter) -> None:
        # Few brokers have any: the client of programs is loaded for those.
        from lavinmq.shovel import values
        from lavinmq.shovel.shovel import Shovel

        key = (vhost.name, parameter.name)
        try:
            read = values.parse(parameter.value, vhost.name)
        except ValueError as error:
            # It came with definitions, or from another broker's data directory.
            self._wrong[key] = str(error)
            _log.error("shovel %r of vhost %r: %s", parameter.name, vhost.name, error)
            return
        paused = vhost.rules.paused.get(COMPONENT, parameter.name) is not None
        shovel = Shovel(
            self._broker, vhost.name, parameter.name, read,
            is_paused=paused or self._pause_file(parameter.name).exists(),
            position=Offsets(vhost.rules.offsets, parameter.name),
            after=self._closing.of(key), owner=self,
        )  # fmt: skip
        self._all[key] = (parameter, shovel)

    def _forget(self, vhost: VHost, name: str) -> None:
        """Its parameter is gone: another one of that name begins anew."""
        try:
            vhost.rules.paused.delete(COMPONENT, name)
            vhost.rules.offsets.delete(COMPONENT, name)
        except DefinitionsError as error:
            _log.error("shovel %r of vhost %r is gone: %s", name, vhost.name, error)

    def stopped(self, shovel: Shovel) -> None:
        """Its destination wants no more: it stays where it is, over restarts, too."""
        vhost = self._home(shovel)
        if vhost is None:
            return
        try:
            vhost.rules.paused.put(Parameter(COMPONENT, shovel.name, True))
        except DefinitionsError as error:
            _log.error("shovel %r of vhost %r is paused: %s", shovel.name, vhost.name, error)

    def done(self, shovel: Shovel) -> None:
        """It has moved all that it was to: the parameter goes."""
        vhost = self._home(shovel)
        if vhost is None:
            return
        try:
            vhost.rules.parameters.delete(COMPONENT, shovel.name)
        except DefinitionsError as error:
            _log.error("shovel %r of vhost %r has ended: %s", shovel.name, vhost.name, error)

    def _home(self, shovel: Shovel) -> VHost | None:
        """Its virtual host; None when it is none of ours any more: others may have its name, or
        get it as soon as that is on disk."""
        parameter, ours = self._all.get((shovel.vhost, shovel.name), (None, None))
        vhost = self._broker.vhosts.get(shovel.vhost)
        if vhost is None or ours is not shovel:
            return None
        is_wanted = vhost.rules.parameters.get(COMPONENT, shovel.name) is parameter
        return vhost if is_wanted else None

    async def pause(self, vhost: VHost, shovel: Shovel) -> None:
        """Stop it, over restarts, too; nothing is under way any more then.

        Raises: DefinitionsError; it goes on then.
        """
        async with gathered():
            vhost.rules.paused.put(Parameter(COMPONENT, shovel.name, True))
        now = self.get(vhost.name, shovel.name)  # its parameter may be another one meanwhile
        if now is not None and not now.is_paused:
            now.pause()
            await now.settled()

    async def resume(self, vhost: VHost, shovel: Shovel) -> None:
        """Let it go on. Raises: DefinitionsError, OSError; it stays where it is then: what it moves
        nobody takes back."""
        async with gathered():
            vhost.rules.paused.delete(COMPONENT, shovel.name)
        with contextlib.suppress(FileNotFoundError):
            self._broker.disk.changes.unlink(self._pause_file(shovel.name))
        now = self.get(vhost.name, shovel.name)
        if now is not None and now.is_paused:
            now.resume()

    def _pause_file(self, name: str) -> Path:
        """Where LavinMQ keeps that a shovel is paused."""
        digest = hashlib.sha1(name.encode(errors="surrogateescape"), usedforsecurity=False)
        return Path(self._broker.config.data_dir) / f"shovels.{digest.hexdigest()}.paused"

    def cut(self) -> None:
        """Move nothing more; `close` waits for what that takes."""
        for _, shovel in self._all.values():
            shovel.end()

    async def close(self, timeout_s: float = STOP_S) -> None:
        """End all, within a time; before the connections of the broker are closed."""
        while self._all:
            key, (_, shovel) = self._all.popitem()
            self._closing.add(key, shovel.close())
        await self._closing.wait(timeout_s)


class Offsets:
    """How far a shovel has read its source: the offset of a stream, or how many messages are left.

    Args: store: `shovel_offsets.json`; name: its own.
    """

    __slots__ = ("_name", "_store", "is_over")

    def __init__(self, store: ParameterStore, name: str) -> None:
        self._store, self._name = store, name
        self.is_over = False
        """Whether its parameter is gone: nothing is kept any more."""

    def load(self, of: list[Any]) -> int | None:
        """Where to go on; None for another source than the one that is known."""
        found = self._store.get(COMPONENT, self._name)
        if found is None or not isinstance(found.value, dict) or found.value.get("of") != of:
            return None
        offset = found.value.get("offset")
        return offset if isinstance(offset, int) else None

    def save(self, of: list[Any], position: int) -> None:
        """Keep it; if that fails, messages come again after the next start."""
        if self.is_over:
            return
        try:
            self._store.put(Parameter(COMPONENT, self._name, {"of": of, "offset": position}))
        except DefinitionsError as error:
            _log.warning("shovel %r: how far it has come cannot be kept: %s", self._name, error)
