"""A pause of links is over when nothing is under way any more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lavinmq.federation.links import Federation
from lavinmq.policy.parameters import ParameterStore

PLACE = ("/", "queue", "q")


class SlowLink:
    """A link whose run ends when it may."""

    def __init__(self) -> None:
        self.is_paused = False
        self.may_end = asyncio.Event()

    def pause(self) -> None:
        self.is_paused = True

    async def settled(self) -> None:
        await self.may_end.wait()


def test_a_pause_waits_for_what_is_under_way(tmp_path: Path) -> None:
    """It was answered before: what was published behind the answer was brought still."""

    async def main() -> None:
        link = SlowLink()
        federation = Federation(SimpleNamespace())  # type: ignore[arg-type]
        federation._links[PLACE] = {(*PLACE, "u"): (None, link)}  # type: ignore[dict-item]
        rules = SimpleNamespace(paused=ParameterStore(tmp_path / "paused.json"))
        vhost: Any = SimpleNamespace(name="/", rules=rules)

        pause = asyncio.get_running_loop().create_task(
            federation.set_paused(vhost, "u", PLACE[1:], is_paused=True)
        )
        while not link.is_paused:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not pause.done()
        link.may_end.set()

        assert await pause == 1

    asyncio.run(main())
