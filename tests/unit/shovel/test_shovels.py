"""Shovels of a broker follow parameters, and one that has ended does nothing to another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from lavinmq.broker import Broker
from lavinmq.policy.parameters import Parameter, ParameterStore
from lavinmq.shovel.shovel import Shovel
from lavinmq.shovel.shovels import COMPONENT, Shovels
from lavinmq.vhost.vhost import VHost

NAME = "s"
VALUE = {"src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": "from"}


class Bench:
    """A virtual host whose shovels are paused, so that none moves anything."""

    def __init__(self, directory: Path) -> None:
        self.parameters, self.paused, offsets = (
            ParameterStore(directory / f"{each}.json")
            for each in ("parameters", "paused", "offsets")
        )
        rules = SimpleNamespace(parameters=self.parameters, paused=self.paused, offsets=offsets)
        self._vhost = cast("VHost", SimpleNamespace(name="/", rules=rules))
        config = SimpleNamespace(data_dir=str(directory))
        broker: Any = SimpleNamespace(
            vhosts={"/": self._vhost}, is_serving=True, config=config, rounds=None, node_name="here"
        )
        self.shovels = Shovels(cast("Broker", broker))
        self.paused.put(Parameter(COMPONENT, NAME, True))

    def set(self, queue: str) -> Shovel:
        """Set the parameter of that name; the shovel that it is now."""
        self.parameters.put(Parameter(COMPONENT, NAME, {**VALUE, "dest-queue": queue}))
        self.shovels.follow(self._vhost)
        found = self.shovels.get("/", NAME)
        assert found is not None
        return found


def test_one_that_has_ended_deletes_no_other_parameter_of_its_name(tmp_path: Path) -> None:
    """Its last messages arrive while another parameter is set in its place: that one stays."""

    async def main() -> None:
        bench = Bench(tmp_path)
        old, new = bench.set("old"), bench.set("new")

        old.has_ended()

        kept = bench.parameters.get(COMPONENT, NAME)
        assert kept is not None and kept.value["dest-queue"] == "new"
        new.has_ended()
        assert bench.parameters.get(COMPONENT, NAME) is None

    asyncio.run(main())


def test_one_that_is_stopped_pauses_no_other_of_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        old, new = bench.set("old"), bench.set("new")
        bench.paused.delete(COMPONENT, NAME)

        old.was_stopped()

        assert bench.paused.get(COMPONENT, NAME) is None
        new.was_stopped()
        assert bench.paused.get(COMPONENT, NAME) is not None

    asyncio.run(main())
