"""Exchanges of one virtual host that keep their newest messages for who is bound later.

They are fanout exchanges besides. A destination that is bound gets what is kept, in portions, and
from then on what is published; what comes meanwhile is kept, too, and is part of it. Called by
`vhost.py`. Source: documentation of RabbitMQ's exchange x-recent-history.
"""

from collections.abc import Callable, Iterator
from functools import partial

from lavinmq import _core
from lavinmq.arguments.exchange_types import (
    EXCHANGE_TYPES,
    HISTORY_LENGTH,
    HISTORY_LENGTH_DEFAULT,
)
from lavinmq.errors import low_on_disk
from lavinmq.files.directories import hashed
from lavinmq.process.portions import Portions
from lavinmq.vhost.destination import Destination
from lavinmq.vhost.exchange import Exchange


class Histories:
    """What the exchanges of one virtual host keep.

    Args: loop: of the message path; place: a directory for queues without files; portions: those
        of the virtual host.
    """

    def __init__(self, loop: _core.Loop, place: str, portions: Portions) -> None:
        self._loop = loop
        self._place = place
        self._portions = portions
        # Under way, the one that began last behind the others, and who waits for it.
        self._replays: dict[_core.Replay, list[Callable[[], object]]] = {}

    def give(self, exchange: Exchange) -> None:
        """Have an exchange keep messages, if it is of the type. What is in the files is taken as
        well as it can be."""
        if not exchange.keeps:
            return
        wanted = exchange.arguments.get(HISTORY_LENGTH)
        reason = EXCHANGE_TYPES[exchange.type].complaint(exchange.arguments)
        most = wanted if isinstance(wanted, int) and reason is None else HISTORY_LENGTH_DEFAULT
        queue = _core.Queue(self._loop, f"{self._place}/{hashed(exchange.name)}", 4096, False)
        exchange.core.set_history(queue, most)

    def check(self, exchange: Exchange, to: Destination) -> None:
        """Refuse a binding while publishers wait for the disk. Raises: ChannelError 406."""
        if self._loop.is_held and exchange.awaits(to):
            raise low_on_disk(
                f"Server low on disk space, can not bind '{to.name}': exchange '{exchange.name}'"
                f" has {exchange.core.n_kept} messages for it"
            )

    def begin(self, exchange: Exchange, to: Destination) -> None:
        """A destination has its first binding: give it what is kept."""
        replay = exchange.replay(to)
        if replay is not None:
            self._replays[replay] = []
            self._portions.begin(self._steps(exchange, to, replay), partial(self._over, replay))

    @property
    def are_idle(self) -> bool:
        """Whether all bindings are in force."""
        return not self._replays

    def when_filled(self, callback: Callable[[], object]) -> None:
        """Call back once bindings that were made so far are in force."""
        if self._replays:
            self._replays[next(reversed(self._replays))].append(callback)
        else:
            callback()

    def stop(self) -> None:
        """Nothing is given to anybody any more: all goes. Idempotent."""
        for replay in self._replays:
            replay.stop()

    def _steps(self, exchange: Exchange, to: Destination, replay: _core.Replay) -> Iterator[object]:
        yield from replay
        exchange.replayed(to, replay)

    def _over(self, replay: _core.Replay) -> None:
        for callback in self._replays.pop(replay):
            callback()
