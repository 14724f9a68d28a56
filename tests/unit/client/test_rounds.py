"""One timer for many clients: each is looked after in time, and forgotten when it is over."""

from __future__ import annotations

import asyncio

import pytest

from lavinmq.client.config import Config
from lavinmq.client.link import HEARTBEAT, Link
from lavinmq.client.rounds import MOST_TICKS, Rounds
from lavinmq.client.url import parse_url


class Watched:
    def __init__(self) -> None:
        self.is_over = False
        self.looks = 0

    def look(self) -> None:
        self.looks += 1


@pytest.mark.parametrize("count", [1, 3, MOST_TICKS, 5 * MOST_TICKS + 1])
def test_each_is_looked_after_in_turn_and_forgotten_when_it_is_over(count: int) -> None:
    async def main() -> None:
        rounds = Rounds(3600)
        all_ = [Watched() for _ in range(count)]
        for each in all_:
            rounds.add(each)
        for _ in range(min(count, MOST_TICKS)):
            assert rounds._timer is not None
            rounds._timer.cancel()
            rounds._tick()
        assert {each.looks for each in all_} <= {1, 2}
        for each in all_[1:]:
            each.is_over = True
        for _ in range(MOST_TICKS):
            assert rounds._timer is not None
            rounds._timer.cancel()
            rounds._tick()
        assert all(each.looks <= 2 for each in all_[1:]) and all_[0].looks > 1
        assert len(rounds._waiting) == 1
        all_[0].is_over = True
        assert rounds._timer is not None
        rounds._timer.cancel()
        rounds._tick()
        assert rounds._timer is None

    asyncio.run(main())


class Transport:
    def __init__(self) -> None:
        self.sent = b""
        self.is_ended = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        """As a transport has it."""

    def abort(self) -> None:
        self.is_ended = True


@pytest.mark.parametrize(("interval_s", "is_alone"), [(15.0, False), (40.0, True)])
def test_who_is_looked_after_has_a_timer_only_if_heartbeats_are_due_more_often(
    interval_s: float, is_alone: bool
) -> None:
    async def main() -> None:
        config = Config(health_interval=interval_s)
        loop = asyncio.get_running_loop()
        link, transport = Link(config, parse_url("amqp://h"), loop), Transport()
        link.connection_made(transport)  # type: ignore[arg-type]
        link.heartbeat = 60
        link._beat()
        link.is_watched()
        assert (link._timer is not None) == is_alone
        assert transport.sent == b""
        link.last_write -= 30
        link.beat()
        assert transport.sent == HEARTBEAT
        link.last_read -= 121
        link.beat()
        assert "silent" in str(link.lost) and transport.is_ended
        assert link._timer is None or link._timer.cancelled()

    asyncio.run(main())
