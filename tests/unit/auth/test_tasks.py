"""Tasks with an owner: they end when told, and a bug in one is heard of."""

from __future__ import annotations

import asyncio

import pytest

from lavinmq.auth.tasks import Tasks


def test_what_runs_is_cancelled_and_awaited() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("forever")

    async def scenario() -> None:
        tasks = Tasks(asyncio.get_running_loop())
        tasks.start(forever())
        assert await tasks.start(asyncio.sleep(0, "result")) == "result"
        await asyncio.sleep(0)
        assert len(tasks) == 1
        await tasks.stop()
        assert (ended, len(tasks)) == (["forever"], 0)

    asyncio.run(scenario())


def test_a_bug_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise KeyError("oops")

    async def scenario() -> None:
        Tasks(asyncio.get_running_loop()).start(broken())
        await asyncio.sleep(0.01)

    asyncio.run(scenario())

    assert "bug in a task" in caplog.text and "oops" in caplog.text
