"""Shovels of a broker follow parameters, and one that has ended does nothing to another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

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
        self.vhost = cast("VHost", SimpleNamespace(name="/", rules=rules))
        config = SimpleNamespace(data_dir=str(directory))
        broker: Any = SimpleNamespace(
            vhosts={"/": self.vhost}, is_serving=True, config=config, rounds=None, node_name="here"
        )
        self.shovels = Shovels(cast("Broker", broker))
        self.paused.put(Parameter(COMPONENT, NAME, True))

    def set(self, queue: str) -> Shovel:
        """Set the parameter of that name; the shovel that it is now."""
        self.parameters.put(Parameter(COMPONENT, NAME, {**VALUE, "dest-queue": queue}))
        self.shovels.follow(self.vhost)
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


class EndlessRun:
    """Moves until it is told to end, and then for a while."""

    error, is_running = "", True

    def __init__(self, goodbye: asyncio.Event) -> None:
        self._goodbye = goodbye

    def figures(self) -> dict[str, int]:
        return {}

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self._goodbye.wait()


def test_a_pause_is_over_when_nothing_is_under_way_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was answered before: what was published behind the answer was moved still."""

    async def main() -> None:
        goodbye = asyncio.Event()
        monkeypatch.setattr(Shovel, "made", lambda _: EndlessRun(goodbye))
        bench = Bench(tmp_path)
        bench.paused.delete(COMPONENT, NAME)
        shovel = bench.set("to")
        await asyncio.sleep(0)
        assert shovel.state == "Running"

        pause = asyncio.get_running_loop().create_task(bench.shovels.pause(bench.vhost, shovel))
        while not shovel.is_paused:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not pause.done()
        goodbye.set()
        await pause

        assert shovel.state == "Paused"
        await bench.shovels.close()

    asyncio.run(main())
